// Two causes: a serial phase, then a phase bound by one mutex. With n = 2 serial loses 4
// parts of 14 and the lock 2.5.
package main

import (
	"sync"
	"time"
)

var (
	door  sync.Mutex
	taken int64
)

//go:noinline
func unlockTheBuilding() { burn(300000) }

//go:noinline
func queueAtTheDoor() time.Duration {
	since := time.Now()
	door.Lock()
	return time.Since(since)
}

//go:noinline
func leaveTheDoor() { door.Unlock() }

//go:noinline
func passTheDoor() { burn(3000) }

//go:noinline
func walkToMyDesk() { burn(500) }

func main() {
	n := begin()
	since := time.Now()
	unlockTheBuilding()
	serial := time.Duration(n-1) * time.Since(since)
	waited := runCrew(n, func(int) (waited time.Duration) {
		for another(&taken, 75) {
			waited += queueAtTheDoor()
			passTheDoor()
			leaveTheDoor()
			walkToMyDesk()
		}
		return waited
	})
	tell("serial", serial)
	tell("lock-wait", waited)
}
