// Two waits of one goroutine in turn: for a mutex that another one holds, and for its message. The thread that has
// parked the goroutine sleeps at the same place for both. Each wait is timed by the goroutine itself.
//
//	goroutines [ROUNDS]
//	{"mutex": {"times": 40, "seconds": 0.1234}, "channel": {"times": 40, "seconds": 0.2468}}
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"
)

const (
	heldUnits    = 4000 // some 3 ms
	messageUnits = 2 * heldUnits
	stepsPerUnit = 500
)

var (
	vault  sync.Mutex
	letter = make(chan int)
	isHeld = make(chan int)
)

type wait struct {
	times   int
	seconds float64
}

func (w *wait) add(since time.Time) {
	w.times++
	w.seconds += time.Since(since).Seconds()
}

// burn is pure ALU work.
//
//go:noinline
func burn(units int) uint64 {
	x := uint64(88172645463325252)
	for i := units * stepsPerUnit; i != 0; i-- {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x
}

//go:noinline
func wantTheVault(w *wait) {
	since := time.Now()
	vault.Lock()
	w.add(since)
	vault.Unlock()
}

//go:noinline
func wantTheLetter(w *wait) {
	since := time.Now()
	<-letter
	w.add(since)
}

func main() {
	rounds := 40
	if len(os.Args) > 1 {
		rounds, _ = strconv.Atoi(os.Args[1])
	}
	runtime.GOMAXPROCS(2)
	go func() {
		for range rounds {
			vault.Lock()
			isHeld <- 0
			burn(heldUnits)
			vault.Unlock()
			burn(messageUnits)
			letter <- 0
		}
	}()
	var mutex, channel wait
	for range rounds {
		<-isHeld
		wantTheVault(&mutex)
		wantTheLetter(&channel)
	}
	out := os.Stderr
	if path := os.Getenv("PLANTED_OUT"); path != "" {
		file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		defer file.Close()
		out = file
	}
	fmt.Fprintf(out, "{\"mutex\": {\"times\": %d, \"seconds\": %.6f}, \"channel\": {\"times\": %d, \"seconds\": %.6f}}\n",
		mutex.times, mutex.seconds, channel.times, channel.seconds)
}
