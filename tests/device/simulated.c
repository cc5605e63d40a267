/* SPDX-License-Identifier: MIT */
/*
 * tests/device/simulated.c - drives that are files in memory, no faster than a given bandwidth; for
 * a machine whose own are not worth the name
 *
 * Preloaded (LD_PRELOAD) in front of libaio: the library above runs unchanged. All files in the
 * folder SPW_SIMULATED_DRIVES share SPW_SIMULATED_RATE bytes per second, both ways together, one
 * request after the other: each is told of when it would have ended. A file system in memory knows
 * no direct I/O before Linux 6.6; there its cache is the memory that is meant.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libaio.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NS_PER_SECOND 1000000000
#define REQUESTS_MAX  65536
#define EVENTS_MAX    64
#define NEVER_NS      1e18

struct request {
	io_context_t context; /* NULL: none */
	const struct iocb *iocb;
	struct io_event event;
	double end_ns;
	bool moved; /* its event is here */
};

static struct {
	int (*submit)(io_context_t context, long count, struct iocb *iocbs[]);
	int (*events)(io_context_t context, long min, long max, struct io_event *events,
		      struct timespec *timeout);
	int (*open)(const char *path, int flags, ...);
	const char *folder;
	double ns_per_byte;
	pthread_mutex_t lock; /* of what follows */
	double free_ns;       /* when all that was submitted has ended */
	struct request requests[REQUESTS_MAX];
	unsigned count; /* of those that may be in use */
} drives = {.lock = PTHREAD_MUTEX_INITIALIZER};

__attribute__((constructor)) static void begin(void)
{
	const char *rate = getenv("SPW_SIMULATED_RATE");

	drives.folder = getenv("SPW_SIMULATED_DRIVES");
	if (rate && atof(rate) > 0)
		drives.ns_per_byte = NS_PER_SECOND / atof(rate);
}

/* The function behind this one's, from when it is called first. Return: whether there is one. */
static bool real(const char *name, void *pointer)
{
	void *function;

	memcpy(&function, pointer, sizeof(function));
	if (function)
		return true;
	function = dlsym(RTLD_NEXT, name);
	memcpy(pointer, &function, sizeof(function));
	return function != NULL;
}

static uint64_t bytes_of(const struct iocb *iocb)
{
	uint64_t bytes = 0;

	switch (iocb->aio_lio_opcode) {
	case IO_CMD_PREAD:
	case IO_CMD_PWRITE: return iocb->u.c.nbytes;
	case IO_CMD_PREADV:
	case IO_CMD_PWRITEV:
		for (unsigned i = 0; i < (unsigned)iocb->u.v.nr; i++)
			bytes += iocb->u.v.vec[i].iov_len;
		return bytes;
	default: return 0;
	}
}

static double now_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * NS_PER_SECOND + (double)now.tv_nsec;
}

/* The caller holds the lock. */
static struct request *request_new(io_context_t context, const struct iocb *iocb, double end_ns)
{
	unsigned i = 0;

	while (i < drives.count && drives.requests[i].context)
		i++;
	if (i == REQUESTS_MAX)
		abort();
	if (i == drives.count)
		drives.count++;
	drives.requests[i] = (struct request){.context = context, .iocb = iocb, .end_ns = end_ns};
	return &drives.requests[i];
}

static void submitted(io_context_t context, long count, struct iocb *iocbs[], double began_ns)
{
	(void)pthread_mutex_lock(&drives.lock);
	for (long i = 0; i < count; i++) {
		uint64_t bytes = bytes_of(iocbs[i]);

		if (bytes == 0)
			continue;
		if (drives.free_ns < began_ns)
			drives.free_ns = began_ns;
		drives.free_ns += (double)bytes * drives.ns_per_byte;
		(void)request_new(context, iocbs[i], drives.free_ns);
	}
	(void)pthread_mutex_unlock(&drives.lock);
}

int io_submit(io_context_t context, long count, struct iocb *iocbs[])
{
	double began_ns = now_ns();
	int done;

	if (!real("io_submit", &drives.submit))
		return -ENOSYS;
	done = drives.submit(context, count, iocbs);
	submitted(context, done, iocbs, began_ns);
	return done;
}

/* An event of the kernel: it is told of when its request's time has come. */
static void moved(io_context_t context, const struct io_event *event)
{
	struct request *request = NULL;

	for (unsigned i = 0; i < drives.count && !request; i++)
		if (drives.requests[i].context == context && !drives.requests[i].moved &&
		    drives.requests[i].iocb == event->obj)
			request = &drives.requests[i];
	if (!request)
		request = request_new(context, event->obj, 0);
	request->event = *event;
	request->moved = true;
}

/* Return: how many events have come. @next_ns: set to when the next one will */
static long take_events(io_context_t context, long max, struct io_event *events, double *next_ns)
{
	double now = now_ns();
	long count = 0;

	*next_ns = NEVER_NS;
	for (unsigned i = 0; i < drives.count; i++) {
		struct request *request = &drives.requests[i];

		if (request->context != context || !request->moved)
			continue;
		if (request->end_ns <= now && count < max) {
			events[count++] = request->event;
			request->context = NULL;
		} else if (request->end_ns < *next_ns) {
			*next_ns = request->end_ns;
		}
	}
	return count;
}

/* Wait for events of the kernel until then. Return: 0; a negative errno */
static int get_events(io_context_t context, double until_ns)
{
	double left_ns = until_ns - now_ns();
	struct io_event events[EVENTS_MAX];
	struct timespec left = {0};
	int count;

	if (left_ns > 0) {
		left.tv_sec = (time_t)(left_ns / NS_PER_SECOND);
		left.tv_nsec = (long)(left_ns - (double)left.tv_sec * NS_PER_SECOND);
	}
	count = drives.events(context, left_ns > 0, EVENTS_MAX, events,
			      until_ns < NEVER_NS ? &left : NULL);
	(void)pthread_mutex_lock(&drives.lock);
	for (int i = 0; i < count; i++)
		moved(context, &events[i]);
	(void)pthread_mutex_unlock(&drives.lock);
	return count < 0 ? count : 0;
}

int io_getevents(io_context_t context, long min, long max, struct io_event *events,
		 struct timespec *timeout)
{
	double end_ns = timeout ? now_ns() + (double)timeout->tv_sec * NS_PER_SECOND +
					  (double)timeout->tv_nsec
				: NEVER_NS;
	double next_ns = 0;
	long count = 0;
	int rc = 0;

	if (!real("io_getevents", &drives.events))
		return -ENOSYS;
	while (rc == 0) {
		rc = get_events(context, next_ns < end_ns ? next_ns : end_ns);
		(void)pthread_mutex_lock(&drives.lock);
		count += take_events(context, max - count, events + count, &next_ns);
		(void)pthread_mutex_unlock(&drives.lock);
		if (count >= min || count == max || now_ns() >= end_ns)
			break;
	}
	return count > 0 || rc == 0 ? (int)count : rc;
}

/* ---- Files ---- */

static int open_there(const char *path, int flags, mode_t mode)
{
	if (drives.folder && strncmp(path, drives.folder, strlen(drives.folder)) == 0)
		flags &= ~O_DIRECT;
	return real("open", &drives.open) ? drives.open(path, flags, mode) : -1;
}

#define OPEN(name)                                                           \
	int name(const char *path, int flags, ...)                           \
	{                                                                    \
		mode_t mode = 0;                                             \
		va_list arguments;                                           \
                                                                             \
		if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) { \
			va_start(arguments, flags);                          \
			mode = (mode_t)va_arg(arguments, int);               \
			va_end(arguments);                                   \
		}                                                            \
		return open_there(path, flags, mode);                        \
	}

/* What libc's headers make of open() where it checks its arguments. */
#define CHECKED_OPEN(name)                         \
	int name(const char *path, int flags);     \
	int name(const char *path, int flags)      \
	{                                          \
		return open_there(path, flags, 0); \
	}

OPEN(open)
OPEN(open64)
CHECKED_OPEN(__open_2)
CHECKED_OPEN(__open64_2)
