/* Memory that is used first in pages of different sizes, or not for the first time at all. Begins when a line comes in on
 * standard input. Then writes to the file PLANTED_OUT "address what pages" for each mapping, pages being the small ones
 * that it takes of the machine's memory, and waits until its standard input ends. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define HUGE (2 * MIB)

static size_t page;
static FILE *out;

/* Aligned to a huge page, with nothing usable around it that it could merge with. */
static char *place(size_t bytes, int advice, int sharing)
{
	char *at = mmap(0, bytes + 2 * HUGE, PROT_NONE, sharing | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		exit(2);
	at = (char *)(((uintptr_t)at + page + HUGE - 1) & ~(HUGE - 1));
	if (mprotect(at, bytes, PROT_READ | PROT_WRITE))
		exit(2);
	madvise(at, bytes, advice);
	return at;
}

static void tell(char *at, const char *what, size_t bytes)
{
	fprintf(out, "%lx %s %lu\n", (unsigned long)at, what, bytes / page);
}

static void look(volatile char *at, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += page)
		at[i];
}

static void fill(volatile char *at, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += page)
		at[i] = 1;
}

int main(void)
{
	char line[16], *at;
	pid_t child;

	page = sysconf(_SC_PAGESIZE);
	out = fopen(getenv("PLANTED_OUT"), "w");
	if (!out || !fgets(line, sizeof(line), stdin))
		return 2;

	at = place(16 * MIB, MADV_HUGEPAGE, MAP_PRIVATE);
	fill(at, 16 * MIB);
	tell(at, "huge", 16 * MIB);

	at = place(MIB, MADV_NOHUGEPAGE, MAP_PRIVATE);
	fill(at, MIB);
	tell(at, "small", MIB);

	at = place(MIB, MADV_NOHUGEPAGE, MAP_SHARED);
	fill(at, MIB);
	tell(at, "shared", MIB);

	/* All of it is the one page of zeros, but for what is written, which keeps the mapping in the tables. */
	at = place(MIB, MADV_NOHUGEPAGE, MAP_PRIVATE);
	look(at, MIB);
	fill(at, page);
	tell(at, "zeros", page);

	at = place(MIB, MADV_NOHUGEPAGE, MAP_PRIVATE);
	look(at, MIB);
	fill(at, MIB);
	tell(at, "written-later", MIB);

	/* The child's copies are the child's. */
	at = place(MIB, MADV_NOHUGEPAGE, MAP_PRIVATE);
	fill(at, MIB);
	child = fork();
	if (!child) {
		fill(at, MIB);
		_exit(0);
	}
	if (child < 0 || waitpid(child, 0, 0) != child)
		return 2;
	tell(at, "forked", MIB);

	fprintf(out, "ready\n");
	fclose(out);
	while (fgets(line, sizeof(line), stdin))
		;
	return 0;
}
