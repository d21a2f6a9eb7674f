/* Page faults of known kinds and numbers, each kind in a function of its own. Writes one line for
 * each into FOLDER/said: "function kind count". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define FRESH 5000
#define COPIED 1000
#define READ_INTO 256
/* A fault on a page of a file maps those around it, too, how many is up to the file system. */
#define AROUND 16
#define FILE_FAULTS 32

static size_t page;

static volatile char *memory(size_t pages, int flags, int fd)
{
	volatile char *at = mmap(0, pages * page, PROT_READ | PROT_WRITE, flags, fd, 0);

	if (at == MAP_FAILED)
		exit(2);
	/* Small pages, whatever the machine's settings. */
	madvise((void *)at, pages * page, MADV_NOHUGEPAGE);
	return at;
}

static volatile char *anonymous(size_t pages)
{
	return memory(pages, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static NOINLINE void touch_fresh(volatile char *at, size_t pages)
{
	for (size_t i = 0; i < pages; i++)
		at[i * page] = 1;
	__asm__ volatile("" ::: "memory");
}

static NOINLINE void write_copied(volatile char *at, size_t pages)
{
	for (size_t i = 0; i < pages; i++)
		at[i * page] = 2;
	__asm__ volatile("" ::: "memory");
}

static NOINLINE int read_file(volatile char *at)
{
	int sum = 0;

	for (size_t i = 0; i < FILE_FAULTS; i++)
		sum += at[i * AROUND * page];
	__asm__ volatile("" ::: "memory");
	return sum;
}

static NOINLINE void write_file(volatile char *at)
{
	for (size_t i = 0; i < FILE_FAULTS; i++)
		at[i * AROUND * page] = 3;
	__asm__ volatile("" ::: "memory");
}

static NOINLINE void read_into_fresh(int fd, volatile char *at)
{
	if (pread(fd, (void *)at, READ_INTO * page, 0) != (ssize_t)(READ_INTO * page))
		exit(2);
	__asm__ volatile("" ::: "memory");
}

static long faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_minflt;
}

int main(int argc, char **argv)
{
	char name[4096];
	int fd, status;
	volatile char *at;
	pid_t child;
	long before;
	char *content;

	if (argc != 2)
		return 2;
	page = sysconf(_SC_PAGESIZE);
	snprintf(name, sizeof(name), "%s/said", argv[1]);
	if (!freopen(name, "w", stdout))
		return 2;
	snprintf(name, sizeof(name), "%s/pages", argv[1]);
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	content = calloc(FILE_FAULTS * AROUND, page);
	if (fd < 0 || !content || write(fd, content, FILE_FAULTS * AROUND * page) < 0 || fsync(fd))
		return 2;

	touch_fresh(anonymous(FRESH), FRESH);
	printf("touch_fresh first-touch %d\n", FRESH);

	at = anonymous(COPIED);
	for (size_t i = 0; i < COPIED; i++)
		at[i * page] = 1;
	fflush(stdout);
	child = fork();
	if (!child) {
		write_copied(at, COPIED);
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status)
		return 2;
	printf("write_copied copy-on-write %d\n", COPIED);

	at = memory(FILE_FAULTS * AROUND, MAP_SHARED, fd);
	/* The kernel copies our stack for this call, if it is the first one on its page since the fork. */
	faults();
	before = faults();
	read_file(at);
	printf("read_file file-minor %ld\n", faults() - before);
	before = faults();
	write_file(at);
	printf("write_file write-notify %ld\n", faults() - before);

	read_into_fresh(fd, anonymous(READ_INTO));
	printf("read_into_fresh first-touch %d\n", READ_INTO);
	return 0;
}
