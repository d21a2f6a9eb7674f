/* Mappings that are not in huge pages, each for a reason of its own. Prints "address reason" for
 * each, then "ready", and waits until its standard input ends. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define HUGE (2 * MIB)
#define SPACE (64 * MIB)

/* Aligned to a huge page, with nothing usable around it that it could merge with. */
static char *place(void)
{
	char *at = mmap(0, SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		exit(2);
	return (char *)(((uintptr_t)at + 8 * MIB) & ~(HUGE - 1));
}

static char *usable(char *at, size_t bytes)
{
	if (mprotect(at, bytes, PROT_READ | PROT_WRITE))
		exit(2);
	return at;
}

static void tell(char *at, const char *reason)
{
	printf("%lx %s\n", (unsigned long)at, reason);
}

static void fill(char *at, size_t bytes)
{
	memset(at, 1, bytes);
}

int main(int argc, char **argv)
{
	char name[4096], *at, byte;
	int fd;

	if (argc < 2)
		return 2;
	if (argc > 2 && prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
		return 2;

	at = usable(place(), 8 * MIB);
	fill(at, 8 * MIB);
	tell(at, "not-advised");

	at = usable(place(), 8 * MIB);
	madvise(at, 8 * MIB, MADV_NOHUGEPAGE);
	fill(at, 8 * MIB);
	tell(at, "mapping-disabled");

	at = usable(place(), MIB);
	fill(at, MIB);
	tell(at, "too-small");

	at = usable(place() + 4096, 3 * MIB);
	fill(at, 3 * MIB);
	tell(at, "not-aligned");

	at = usable(place(), 8 * MIB);
	madvise(at, 8 * MIB, MADV_HUGEPAGE);
	fill(at, 8 * MIB);
	tell(at, "huge");

	at = usable(place() + MIB, 6 * MIB);
	madvise(at, 6 * MIB, MADV_HUGEPAGE);
	fill(at, 6 * MIB);
	tell(at, "edges");

	at = usable(place(), 8 * MIB);
	madvise(at, 8 * MIB, MADV_NOHUGEPAGE);
	fill(at, 8 * MIB);
	madvise(at, 8 * MIB, MADV_HUGEPAGE);
	tell(at, "not-collapsed");

	at = mmap(place(), 8 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	if (at == MAP_FAILED)
		return 2;
	fill(at, 8 * MIB);
	tell(at, "shmem-policy");

	snprintf(name, sizeof(name), "%s/content", argv[1]);
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	/* In small pieces: file systems with large folios would take them large. */
	for (size_t i = 0; i < 8 * MIB; i += 4096)
		if (fd < 0 || write(fd, at + i, 4096) != 4096)
			return 2;
	at = mmap(place(), 8 * MIB, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0);
	if (at == MAP_FAILED)
		return 2;
	for (size_t i = 0; i < 8 * MIB; i += 4096)
		*(volatile char *)(at + i);
	tell(at, "file");

	printf("ready\n");
	fflush(stdout);
	while (read(0, &byte, 1) > 0)
		;
	return 0;
}
