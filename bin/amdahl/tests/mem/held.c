/* Holds its own address-space lock for long: changes the permissions of much memory at once, and gives it back. Writes to the
 * file PLANTED_OUT how many seconds the calls took, which is little more than the lock was held:
 *
 *   {"mprotect": 0.0123, "munmap": 0.0345, "longest": 0.0067}
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define BYTES (96ul << 20)
#define ROUNDS 6

static double now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec + at.tv_nsec * 1e-9;
}

int main(void)
{
	size_t page = sysconf(_SC_PAGESIZE);
	double protecting = 0, unmapping = 0, longest = 0;
	FILE *out;

	for (int round = 0; round < ROUNDS; round++) {
		volatile char *at = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		double began, took;

		if (at == MAP_FAILED)
			return 2;
		/* Small pages: each is work for the kernel. */
		madvise((void *)at, BYTES, MADV_NOHUGEPAGE);
		for (size_t i = 0; i < BYTES; i += page)
			at[i] = 1;
		began = now();
		if (mprotect((void *)at, BYTES, PROT_READ))
			return 2;
		took = now() - began;
		protecting += took;
		longest = took > longest ? took : longest;
		began = now();
		if (munmap((void *)at, BYTES))
			return 2;
		unmapping += now() - began;
	}
	out = fopen(getenv("PLANTED_OUT"), "w");
	if (!out)
		return 2;
	fprintf(out, "{\"mprotect\": %.9f, \"munmap\": %.9f, \"longest\": %.9f}\n", protecting, unmapping, longest);
	return fclose(out);
}
