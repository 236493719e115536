// Loaded ahead of libc, it makes a process's wall clock run SKEW_SECONDS off.
// libfaketime does more, and does not get along with jemalloc.
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long seconds(void) {
	const char *text = getenv("SKEW_SECONDS");
	return text ? atol(text) : 0;
}

int clock_gettime(clockid_t id, struct timespec *ts) {
	int err = syscall(SYS_clock_gettime, id, ts);
	if (!err && id == CLOCK_REALTIME) ts->tv_sec += seconds();
	return err;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
	struct timespec ts;
	if (clock_gettime(CLOCK_REALTIME, &ts)) return -1;
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *t) {
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	if (t) *t = ts.tv_sec;
	return ts.tv_sec;
}
