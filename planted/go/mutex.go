// A sync.Mutex held for 3/4 of the work.
package main

import (
	"sync"
	"time"
)

var (
	cache sync.Mutex
	taken int64
)

//go:noinline
func lockTheCache() time.Duration {
	since := time.Now()
	cache.Lock()
	return time.Since(since)
}

//go:noinline
func unlockTheCache() { cache.Unlock() }

//go:noinline
func refillTheCache() { burn(2700) }

//go:noinline
func thinkAlone() { burn(900) }

func main() {
	n := begin()
	tell("lock-wait", runCrew(n, func(int) (waited time.Duration) {
		for another(&taken, 160) {
			waited += lockTheCache()
			refillTheCache()
			unlockTheCache()
			thinkAlone()
		}
		return waited
	}))
}
