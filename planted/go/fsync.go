// Appends to a file per goroutine, each made durable before the next.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

var taken int64

//go:noinline
func makeItDurable(file *os.File, record []byte) time.Duration {
	since := time.Now()
	if _, err := file.Write(record); err != nil {
		panic(err)
	}
	if err := file.Sync(); err != nil {
		panic(err)
	}
	return time.Since(since)
}

//go:noinline
func composeARecord() { burn(50) }

func main() {
	n := begin()
	waited := runCrew(n, func(id int) (waited time.Duration) {
		self, err := os.Executable()
		if err != nil {
			panic(err)
		}
		name := fmt.Sprintf("journal.%d.%d.tmp", os.Getpid(), id)
		file, err := os.OpenFile(filepath.Join(filepath.Dir(self), name), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			panic(err)
		}
		defer file.Close()
		os.Remove(file.Name())
		record := make([]byte, 4096)
		for another(&taken, 2000) {
			composeARecord()
			waited += makeItDurable(file, record)
		}
		return waited
	})
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	// What the kernel computed meanwhile was not waiting.
	tell("io", waited-time.Duration(used.Stime.Nano()))
}
