// One goroutine forges pieces for n - 1 others, which need a third of its time per piece
// and wait on the channel.
package main

import (
	"sync"
	"time"
)

const pieces = 200

//go:noinline
func takeFromTheForge(forge <-chan int, waited *time.Duration) bool {
	since := time.Now()
	_, more := <-forge
	*waited += time.Since(since)
	return more
}

//go:noinline
func handFromTheForge(forge chan<- int) { forge <- 1 }

//go:noinline
func forgeAPiece() { burn(2100) }

//go:noinline
func polishAPiece() { burn(700) }

func main() {
	n := begin()
	forge := make(chan int)
	var polishers sync.WaitGroup
	waited := make([]time.Duration, n)
	for id := 1; id < n; id++ {
		polishers.Add(1)
		go func() {
			defer polishers.Done()
			for takeFromTheForge(forge, &waited[id]) {
				polishAPiece()
			}
		}()
	}
	for i := 0; i < pieces; i++ {
		forgeAPiece()
		if n == 1 {
			polishAPiece()
		} else {
			handFromTheForge(forge)
		}
	}
	close(forge)
	polishers.Wait()
	var sum time.Duration
	for _, one := range waited {
		sum += one
	}
	tell("partner", sum)
}
