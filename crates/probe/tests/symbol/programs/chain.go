// Blocks in read() on a goroutine's stack.
package main

import "syscall"

var sink int

//go:noinline
func inner(buffer []byte) int {
	count, _ := syscall.Read(0, buffer)
	return count + sink
}

//go:noinline
func outer(buffer []byte) int {
	return inner(buffer) + sink
}

func main() {
	sink = outer(make([]byte, 1))
}
