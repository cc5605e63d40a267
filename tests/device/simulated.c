/* SPDX-License-Identifier: MIT */
/*
 * tests/device/simulated.c - drives that are files in memory, no faster than a given bandwidth; for
 * a machine whose own are not worth the name
 *
 * Preloaded (LD_PRELOAD) in front of libaio: the library above runs unchanged. All files in the
 * folder SPW_SIMULATED_DRIVES share SPW_SIMULATED_RATE bytes per second, both ways together: the
 * thread that submits transfers goes on when they would have ended. A file system in memory knows
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
/* Behind by more, after a pause, nothing is made up for. */
#define BEHIND_NS_MAX 1000000

static struct {
	int (*submit)(io_context_t context, long count, struct iocb *iocbs[]);
	int (*open)(const char *path, int flags, ...);
	const char *folder;
	double ns_per_byte;
	pthread_mutex_t lock; /* of what follows */
	double free_ns;       /* when all that was submitted has ended */
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

static void wait_for(uint64_t bytes)
{
	struct timespec until;
	double now_ns, free_ns;

	if (bytes == 0 || drives.ns_per_byte <= 0)
		return;
	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	now_ns = (double)until.tv_sec * NS_PER_SECOND + (double)until.tv_nsec;
	(void)pthread_mutex_lock(&drives.lock);
	if (drives.free_ns < now_ns - BEHIND_NS_MAX)
		drives.free_ns = now_ns - BEHIND_NS_MAX;
	drives.free_ns += (double)bytes * drives.ns_per_byte;
	free_ns = drives.free_ns;
	(void)pthread_mutex_unlock(&drives.lock);
	if (free_ns <= now_ns)
		return;
	until.tv_sec = (time_t)(free_ns / NS_PER_SECOND);
	until.tv_nsec = (long)(free_ns - (double)until.tv_sec * NS_PER_SECOND);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0) {
	}
}

int io_submit(io_context_t context, long count, struct iocb *iocbs[])
{
	uint64_t bytes = 0;
	int submitted;

	if (!real("io_submit", &drives.submit))
		return -ENOSYS;
	submitted = drives.submit(context, count, iocbs);
	for (int i = 0; i < submitted; i++)
		bytes += bytes_of(iocbs[i]);
	wait_for(bytes);
	return submitted;
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
