// Go beside C in one program. Blocks in read() on a goroutine's stack.
package main

// int one_more(int number) { return number + 1; }
import "C"
import "syscall"

//go:noinline
func inner(buffer []byte) int {
	count, _ := syscall.Read(0, buffer)
	return count + int(C.one_more(1))
}

func main() {
	println(inner(make([]byte, 1)))
}
