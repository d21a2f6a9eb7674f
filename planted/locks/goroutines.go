// Waits of one goroutine in turn: for a mutex and a reader-writer lock that another one holds, and for its message.
// The thread that has parked the goroutine sleeps at the same place for all. Each wait is timed by the goroutine itself.
//
//	goroutines [ROUNDS]
//	{"mutex": {"times": 40, "seconds": 0.1234}, "read": ..., "write": ..., "channel": {"times": 40, "seconds": 0.2468}}
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"
)

const (
	heldUnits    = 4000          // some 3 ms
	pauseUnits   = 2 * heldUnits // the other one goes on, on its own thread
	stepsPerUnit = 500
)

var (
	vault   sync.Mutex
	archive sync.RWMutex
	letter  = make(chan int)
	isHeld  = make(chan int)
)

type wait struct {
	Times   int     `json:"times"`
	Seconds float64 `json:"seconds"`
}

func (w *wait) add(since time.Time) {
	w.Times++
	w.Seconds += time.Since(since).Seconds()
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
func wantToRead(w *wait) {
	since := time.Now()
	archive.RLock()
	w.add(since)
	archive.RUnlock()
}

//go:noinline
func wantToWrite(w *wait) {
	since := time.Now()
	archive.Lock()
	w.add(since)
	archive.Unlock()
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
			burn(pauseUnits)
			vault.Lock()
			isHeld <- 0
			burn(heldUnits)
			vault.Unlock()
			burn(pauseUnits)
			archive.Lock()
			isHeld <- 0
			burn(heldUnits)
			archive.Unlock()
			burn(pauseUnits)
			archive.RLock()
			isHeld <- 0
			burn(heldUnits)
			archive.RUnlock()
			burn(pauseUnits)
			letter <- 0
		}
	}()
	var mutex, read, write, channel wait
	for range rounds {
		<-isHeld
		wantTheVault(&mutex)
		<-isHeld
		wantToRead(&read)
		<-isHeld
		wantToWrite(&write)
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
	said, err := json.Marshal(map[string]wait{"mutex": mutex, "read": read, "write": write, "channel": channel})
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(out, "%s\n", said)
}
