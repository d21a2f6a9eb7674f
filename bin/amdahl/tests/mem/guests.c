/* Processes or threads that live for some page faults each: batches of them come, use memory for the first time,
 * and end. Each counts what it takes itself; the program writes the sums to the file PLANTED_OUT: faults in
 * fill_the_room, and of processes also those of their whole lives.
 *
 *   guests processes|threads COUNT BATCHES|FILE
 *   {"filled": 4000, "lived": 4711}
 *
 * It begins when a line comes in on standard input, or its end. With the name of a file it goes on until that is
 * there. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define PAGES 64

static size_t page;
static long *filled; /* of each guest, seen by parent and child */

static long faults(int whose)
{
	struct rusage usage;

	getrusage(whose, &usage);
	return usage.ru_minflt + usage.ru_majflt;
}

static NOINLINE void fill_the_room(volatile char *at)
{
	for (size_t i = 0; i < PAGES; i++)
		at[i * page] = 1;
	__asm__ volatile("" ::: "memory");
}

static void stay(long *filled, int whose)
{
	char *at = mmap(0, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		exit(2);
	/* Small pages, whatever the machine's settings. */
	madvise(at, PAGES * page, MADV_NOHUGEPAGE);
	/* The first call may fault on the stack that it writes to, and what is counted on its page. */
	*filled = faults(whose);
	*filled = faults(whose);
	fill_the_room(at);
	*filled = faults(whose) - *filled;
	munmap(at, PAGES * page);
}

static void *guest(void *filled)
{
	stay(filled, RUSAGE_THREAD);
	return 0;
}

static void threads(int count)
{
	pthread_t *all = calloc(count, sizeof(*all));

	for (int i = 0; i < count; i++)
		if (!all || pthread_create(&all[i], 0, guest, &filled[i]))
			exit(2);
	for (int i = 0; i < count; i++)
		pthread_join(all[i], 0);
	free(all);
}

static void processes(int count)
{
	for (int i = 0; i < count; i++) {
		pid_t child = fork();

		if (!child) {
			prctl(PR_SET_NAME, "guest");
			stay(&filled[i], RUSAGE_SELF);
			_exit(0);
		}
		if (child < 0)
			exit(2);
	}
	for (int i = 0; i < count; i++) {
		int status;

		if (wait(&status) < 0 || status)
			exit(2);
	}
}

int main(int argc, char **argv)
{
	const char *out = getenv("PLANTED_OUT");
	int count = argc > 3 ? atoi(argv[2]) : 0, batches = argc > 3 ? atoi(argv[3]) : 0;
	long sum = 0;
	FILE *to;

	if (count < 1 || count > 4096)
		return 2;
	page = sysconf(_SC_PAGESIZE);
	filled = mmap(0, count * sizeof(*filled), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (filled == MAP_FAILED)
		return 2;
	while (getchar() != '\n' && !feof(stdin))
		;
	for (int i = 0; batches ? i < batches : !i || access(argv[3], F_OK) != 0; i++) {
		if (argv[1][0] == 'p')
			processes(count);
		else
			threads(count);
		for (int j = 0; j < count; j++)
			sum += filled[j];
	}
	to = out ? fopen(out, "w") : stdout;
	if (!to)
		return 2;
	fprintf(to, "{\"filled\": %ld, \"lived\": %ld}\n", sum, faults(RUSAGE_CHILDREN));
	return fclose(to) != 0;
}
