/* Two threads that change permissions all the time. Prints how many calls there are. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define CALLS 3000

static void *storm(void *unused)
{
	size_t page = sysconf(_SC_PAGESIZE);
	char *at = mmap(0, 4 * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)unused;
	if (at == MAP_FAILED)
		exit(2);
	for (int i = 0; i < CALLS; i++)
		if (mprotect(at, 4 * page, i & 1 ? PROT_READ : PROT_READ | PROT_WRITE))
			exit(2);
	return 0;
}

int main(void)
{
	pthread_t other;

	if (pthread_create(&other, 0, storm, 0))
		return 2;
	storm(0);
	pthread_join(other, 0);
	printf("%d\n", 2 * CALLS);
	return 0;
}
