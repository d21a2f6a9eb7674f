// Each goroutine sleeps between the pieces of its work.
package main

import "time"

var taken int64

//go:noinline
func restBetweenCalls() time.Duration {
	since := time.Now()
	time.Sleep(3 * time.Millisecond)
	return time.Since(since)
}

//go:noinline
func answerACall() { burn(6000) }

func main() {
	n := begin()
	tell("sleep", runCrew(n, func(int) (slept time.Duration) {
		for another(&taken, 80) {
			answerACall()
			slept += restBetweenCalls()
		}
		return slept
	}))
}
