// Many goroutines on two threads that are always busy: whoever waits for the mutex, for the condition or for all others leaves its
// thread to another goroutine, so that no thread sleeps for it. Each wait is timed by the goroutine itself; a mutex that is free is
// no wait.
//
//	crowd [ROUNDS]
//	{"mutex": {"times": 1234, "seconds": 12.34}, "condition": {"times": 16, "seconds": 0.2}, "group": {"times": 1, "seconds": 0.4}}
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
	goroutines   = 16
	stepsPerUnit = 500
	heldUnits    = 400 // some 0.3 ms
	pauseUnits   = 600
)

var (
	vault sync.Mutex
	told  = sync.NewCond(&sync.Mutex{})
	begun int // of `told`
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
	if vault.TryLock() {
		return
	}
	since := time.Now()
	vault.Lock()
	w.add(since)
}

//go:noinline
func waitToBegin(w *wait) {
	told.L.Lock()
	begun++
	since := time.Now()
	told.Wait()
	w.add(since)
	told.L.Unlock()
}

//go:noinline
func waitForAll(all *sync.WaitGroup, w *wait) {
	since := time.Now()
	all.Wait()
	w.add(since)
}

// letBegin waits until all others do, without leaving its thread to the end: they come to their wait in turn.
//
//go:noinline
func letBegin() {
	for {
		burn(pauseUnits)
		told.L.Lock()
		if begun == goroutines {
			told.Broadcast()
			told.L.Unlock()
			return
		}
		told.L.Unlock()
		runtime.Gosched()
	}
}

func main() {
	rounds := 40
	if len(os.Args) > 1 {
		rounds, _ = strconv.Atoi(os.Args[1])
	}
	runtime.GOMAXPROCS(2)
	var all sync.WaitGroup
	var mutex, condition [goroutines]wait
	var group wait
	for n := range goroutines {
		all.Add(1)
		go func() {
			defer all.Done()
			waitToBegin(&condition[n])
			for range rounds {
				burn(pauseUnits)
				wantTheVault(&mutex[n])
				burn(heldUnits)
				vault.Unlock()
			}
		}()
	}
	letBegin()
	waitForAll(&all, &group)
	sum := func(of [goroutines]wait) (sum wait) {
		for _, w := range of {
			sum.Times += w.Times
			sum.Seconds += w.Seconds
		}
		return
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
	said, err := json.Marshal(map[string]wait{"mutex": sum(mutex), "condition": sum(condition), "group": group})
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(out, "%s\n", said)
}
