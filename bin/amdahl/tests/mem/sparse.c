/* Large mappings that are in memory in small part. Prints "address resident-bytes" for each, then "ready", and waits until
 * its standard input ends. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define GIB (1ul << 30)

/* Of each `every` bytes uses the first `used`, in small pages. */
static void sparse(size_t bytes, size_t every, size_t used)
{
	size_t page = sysconf(_SC_PAGESIZE), resident = 0;
	/* A page around it keeps it from merging with others. */
	char *at = mmap(0, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		exit(77);
	at += page;
	if (mprotect(at, bytes, PROT_READ | PROT_WRITE))
		exit(77);
	madvise(at, bytes, MADV_NOHUGEPAGE);
	for (size_t from = 0; from < bytes; from += every)
		for (size_t i = 0; i < used; i += page, resident += page)
			((volatile char *)at)[from + i] = 1;
	printf("%lx %lu\n", (unsigned long)at, resident);
}

int main(void)
{
	char byte;

	sparse(2 * GIB, 64 * MIB, MIB);
	sparse(64 * GIB, 16 * MIB, 16 << 10);
	printf("ready\n");
	fflush(stdout);
	while (read(0, &byte, 1) > 0)
		;
	return 0;
}
