/* Threads that want one mutex for as long as the program runs: until its parent ends. */
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((noinline)) static void want_the_lock(void)
{
	pthread_mutex_lock(&lock);
	usleep(2000);
	pthread_mutex_unlock(&lock);
	usleep(100);
}

static void *worker(void *unused)
{
	for (;;)
		want_the_lock();
	return unused;
}

int main(void)
{
	pthread_t thread;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < 3; i++)
		if (pthread_create(&thread, 0, worker, 0))
			return 2;
	worker(0);
	return 0;
}
