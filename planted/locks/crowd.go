// Many goroutines on two threads that are always busy: whoever waits for the mutex, for the condition or for all others leaves its
// thread to another goroutine, so that no thread sleeps for it. Each wait is timed by the goroutine itself; a mutex that is free is
// no wait.
//
// With `stuck` all wait for a mutex that nobody lets go until the program ends, half a second later.
//
//	crowd [ROUNDS|stuck]
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

// beStuck waits for what is never let go, since the time that it tells.
//
//go:noinline
func beStuck(since *time.Time) {
	told.L.Lock()
	begun++
	*since = time.Now()
	told.L.Unlock()
	vault.Lock()
}

// stick is the time that all others have waited when the program ends.
func stick() (sum wait) {
	var since [goroutines]time.Time
	vault.Lock()
	for n := range goroutines {
		go beStuck(&since[n])
	}
	letBegin()
	time.Sleep(time.Second / 2)
	for _, begun := range since {
		sum.add(begun)
	}
	return
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
	runtime.GOMAXPROCS(2)
	rounds := 40
	if len(os.Args) > 1 && os.Args[1] == "stuck" {
		say(map[string]wait{"stuck": stick()})
		return
	}
	if len(os.Args) > 1 {
		rounds, _ = strconv.Atoi(os.Args[1])
	}
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
	say(map[string]wait{"mutex": sum(mutex), "condition": sum(condition), "group": group})
}

func say(waits map[string]wait) {
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
	said, err := json.Marshal(waits)
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(out, "%s\n", said)
}
