// 40 % of the work in one goroutine, then the rest in n that a WaitGroup waits for.
package main

import "time"

var taken int64

//go:noinline
func loadTheWholeIndex() { burn(240000) }

//go:noinline
func scanMyPart() {
	for another(&taken, 1800) {
		burn(200)
	}
}

func main() {
	n := begin()
	since := time.Now()
	loadTheWholeIndex()
	serial := time.Since(since)
	runCrew(n, func(int) time.Duration {
		scanMyPart()
		return 0
	})
	tell("serial", time.Duration(n-1)*serial)
}
