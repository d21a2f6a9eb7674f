/* Reads of the address space of a process again and again, until so many reads have slept, or it is gone. Of these it
 * writes how many they were and how long they took to the file PLANTED_OUT.
 *
 *   reader /proc/PID/cmdline 20
 *   {"times": 20, "seconds": 0.0567} */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec + at.tv_nsec * 1e-9;
}

static long sleeps(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_nvcsw;
}

int main(int argc, char **argv)
{
	const char *out = getenv("PLANTED_OUT");
	int from = argc > 2 ? open(argv[1], O_RDONLY) : -1;
	long times = 0, enough = argc > 2 ? atol(argv[2]) : 0;
	double seconds = 0;
	FILE *to = out ? fopen(out, "w") : stdout;
	char byte;

	if (from < 0 || !to)
		return 2;
	while (times < enough) {
		long slept = sleeps();
		double since = now();

		if (pread(from, &byte, 1, 0) != 1)
			break;
		if (sleeps() > slept) {
			seconds += now() - since;
			times++;
		}
	}
	fprintf(to, "{\"times\": %ld, \"seconds\": %.6f}\n", times, seconds);
	return fclose(to) != 0;
}
