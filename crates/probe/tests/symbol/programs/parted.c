// A function of which the compiler moves the unlikely part away from the rest.

#include <stdlib.h>
#include <unistd.h>

__attribute__((noinline, noclone)) static long take(int fd)
{
	char byte;
	long taken = read(fd, &byte, 1);

	if (taken < 0)
		abort();
	return taken + 1;
}

int main(void)
{
	return (int)take(0) == 7;
}
