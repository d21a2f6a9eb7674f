// Scales perfectly: goroutines that take pieces of work and meet nobody.
package main

import "time"

var taken int64

//go:noinline
func weighMySamples() {
	for another(&taken, 5000) {
		burn(120)
	}
}

func main() {
	n := begin()
	runCrew(n, func(int) time.Duration {
		weighMySamples()
		return 0
	})
	tell("none", 0)
}
