// What the planted Go programs share: work of an exactly known size, and the line that
// says what was planted. The twin of c/planted.h.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const stepsPerUnit = 500

var (
	startedAt = time.Now()
	crewSize  int
	sink      uint64
)

// burn is pure ALU work: no memory, no system call, nothing to share. Go inlines it.
func burn(units int) {
	x := uint64(88172645463325252)
	for i := units * stepsPerUnit; i != 0; i-- {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	if x == 0 { // never: but without a use of x the compiler would drop the loop's body
		panic("xorshift reached zero")
	}
}

// begin reads the number of threads from the command line.
func begin() int {
	n := 0
	if len(os.Args) > 1 {
		n, _ = strconv.Atoi(os.Args[1])
	}
	if n < 1 || n > 4096 {
		fmt.Fprintln(os.Stderr, "usage:", os.Args[0], "THREADS")
		os.Exit(2)
	}
	runtime.GOMAXPROCS(n)
	crewSize = n
	return n
}

// tell says what was planted: one line of JSON, appended to $PLANTED_OUT or to standard error.
func tell(cause string, seconds time.Duration) {
	line := fmt.Sprintf("{\"cause\": %q, \"seconds\": %.6f, \"wall\": %.6f, \"cpus\": %d}\n",
		cause, seconds.Seconds(), time.Since(startedAt).Seconds(), crewSize)
	out := os.Stderr
	if path := os.Getenv("PLANTED_OUT"); path != "" {
		file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		defer file.Close()
		out = file
	}
	out.WriteString(line)
}

// another takes the next of total pieces of work, which are common to all goroutines.
func another(taken *int64, total int64) bool {
	return atomic.AddInt64(taken, 1) <= total
}

// runCrew runs job in n goroutines and adds up the results.
func runCrew(n int, job func(id int) time.Duration) time.Duration {
	var crew sync.WaitGroup
	var sum int64
	for id := 0; id < n; id++ {
		crew.Add(1)
		go func() {
			defer crew.Done()
			atomic.AddInt64(&sum, int64(job(id)))
		}()
	}
	crew.Wait()
	return time.Duration(sum)
}
