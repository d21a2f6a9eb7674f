/* Forks with many mappings, and unmaps. Prints how often each. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAPPINGS 1000
#define FORKS 40
#define UNMAPS 200

int main(void)
{
	size_t page = sysconf(_SC_PAGESIZE);

	/* Neighbours differ in what is allowed: they stay apart. */
	for (int i = 0; i < MAPPINGS; i++) {
		char *at = mmap(0, page, PROT_READ | (i & 1 ? PROT_WRITE : 0), MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (at == MAP_FAILED)
			return 2;
	}
	for (int i = 0; i < FORKS; i++) {
		int status;
		pid_t child = fork();

		if (!child)
			_exit(0);
		if (child < 0 || waitpid(child, &status, 0) != child || status)
			return 2;
	}
	for (int i = 0; i < UNMAPS; i++) {
		char *at = mmap(0, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (at == MAP_FAILED || munmap(at, 4 * page))
			return 2;
	}
	printf("%d %d\n", FORKS, UNMAPS);
	return 0;
}
