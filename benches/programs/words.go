// Counts made-up words on several threads: `words THREADS TEXTS`. Shared maps behind locks, a
// queue of work, garbage: what Go programs are made of.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"sync"
)

const (
	shards       = 64
	wordsPerText = 40000
)

type shard struct {
	sync.Mutex
	count map[string]int
}

// text makes the words of a text; the same for the same number.
func text(number uint64) []string {
	state := number*0x9e3779b97f4a7c15 + 1
	words := make([]string, wordsPerText)
	for i := range words {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		words[i] = "w" + strconv.FormatUint(state%(1+state>>32%20000), 36)
	}
	return words
}

func hash(word string) uint32 {
	sum := uint32(2166136261)
	for i := 0; i < len(word); i++ {
		sum = (sum ^ uint32(word[i])) * 16777619
	}
	return sum
}

func main() {
	threads, _ := strconv.Atoi(os.Args[1])
	texts, _ := strconv.Atoi(os.Args[2])
	runtime.GOMAXPROCS(threads)
	var all [shards]shard
	for i := range all {
		all[i].count = map[string]int{}
	}
	queue := make(chan uint64, threads)
	var workers sync.WaitGroup
	for i := 0; i < threads; i++ {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for number := range queue {
				local := map[string]int{}
				for _, word := range text(number) {
					local[word]++
				}
				for word, count := range local {
					home := &all[hash(word)%shards]
					home.Lock()
					home.count[word] += count
					home.Unlock()
				}
			}
		}()
	}
	for number := 0; number < texts; number++ {
		queue <- uint64(number)
	}
	close(queue)
	workers.Wait()
	words := []string{}
	for i := range all {
		for word := range all[i].count {
			words = append(words, word)
		}
	}
	sort.Strings(words)
	fmt.Println(len(words), words[0])
}
