/* SPDX-License-Identifier: MIT */
/*
 * tests/sweep/faults.h - the Nth allocation or the Nth system call of the library fails, once or
 * from then on
 *
 * Included once by a test whose source has `wrap:` lines for everything named here: the linker then
 * leads the library's calls to __wrap_NAME below. Calls that shared libraries (libblkid, liburing,
 * libnuma) make themselves are not reached; their own entry points are, and fail as a whole. Beside
 * the faults it keeps the balance of allocations and mappings, so that a leak of a single failed
 * operation shows at once, with no sanitizer.
 *
 * free, close, munmap and what else takes down never fail here: what they would leave behind is the
 * system's fault, not the library's.
 */
#ifndef TESTS_SWEEP_FAULTS_H
#define TESTS_SWEEP_FAULTS_H

#include <blkid/blkid.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libaio.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/sweep/wrap_ioctl.h"
#include "tests/wrap.h"

enum fault_class {
	FAULT_NONE,
	FAULT_MEMORY, /* what returns memory of the heap */
	FAULT_CALL,   /* what asks the kernel, or a library that does */
};

static struct {
	_Atomic int cls;
	_Atomic long countdown; /* 1: the next one fails */
	_Atomic long burst;     /* this many fail in a row */
	_Atomic unsigned hits;
	_Atomic(const char *) name; /* of the first that failed */
	_Atomic unsigned writes;    /* to drives, since armed */
	_Atomic long allocations;   /* alive */
	_Atomic long long mapped;   /* bytes */
	_Atomic long threads;       /* not joined */
} faults;

/* The @nth operation of the class fails, and the @burst - 1 after it. */
static void fault_arm(enum fault_class cls, long nth, long burst)
{
	atomic_store(&faults.countdown, nth);
	atomic_store(&faults.burst, burst);
	atomic_store(&faults.hits, 0);
	atomic_store(&faults.name, "nothing");
	atomic_store(&faults.writes, 0);
	atomic_store(&faults.cls, (int)cls);
}

/* Return: how many failed. */
static unsigned fault_disarm(void)
{
	atomic_store(&faults.cls, FAULT_NONE);
	return atomic_load(&faults.hits);
}

static bool fault_due(enum fault_class cls, const char *name)
{
	long left;

	if (atomic_load(&faults.cls) != (int)cls)
		return false;
	left = atomic_fetch_sub(&faults.countdown, 1);
	if (left > 1 || left <= 1 - atomic_load(&faults.burst))
		return false;
	if (atomic_fetch_add(&faults.hits, 1) == 0)
		atomic_store(&faults.name, name);
	return true;
}

/* ---- Memory ---- */

static void *fault_counted(void *memory)
{
	if (memory)
		atomic_fetch_add(&faults.allocations, 1);
	return memory;
}

static bool fault_memory(const char *name)
{
	if (!fault_due(FAULT_MEMORY, name))
		return false;
	errno = ENOMEM;
	return true;
}

/* A wrapper: declare both, fail if it is due, else go on to the real one. */
#define WRAP_MEMORY(name, parameters, arguments)                                            \
	WRAP(void *, name, parameters)                                                      \
	{                                                                                   \
		return fault_memory(#name) ? NULL : fault_counted(__real_##name arguments); \
	}

WRAP_MEMORY(malloc, (size_t len), (len))
WRAP_MEMORY(calloc, (size_t count, size_t len), (count, len))
WRAP_MEMORY(aligned_alloc, (size_t align, size_t len), (align, len))
WRAP_MEMORY(strdup, (const char *text), (text))

WRAP(void *, reallocarray, (void *memory, size_t count, size_t len))
{
	void *larger;

	if (fault_memory("reallocarray"))
		return NULL;
	larger = __real_reallocarray(memory, count, len);
	return memory ? larger : fault_counted(larger);
}

static int answer_asprintf(char **text, const char *format, va_list args)
{
	int len;

	if (fault_memory("asprintf"))
		return -1;
	len = vasprintf(text, format, args);
	if (len >= 0)
		(void)fault_counted(*text);
	return len;
}

WRAP(int, asprintf, (char **text, const char *format, ...))
{
	va_list args;
	int len;

	va_start(args, format);
	len = answer_asprintf(text, format, args);
	va_end(args);
	return len;
}

/* What a build that checks libc's calls makes of it. */
WRAP(int, __asprintf_chk, (char **text, int flag, const char *format, ...))
{
	va_list args;
	int len;

	(void)flag;
	va_start(args, format);
	len = answer_asprintf(text, format, args);
	va_end(args);
	return len;
}

WRAP(ssize_t, __getdelim, (char **line, size_t *len, int delimiter, FILE *file))
{
	bool had = *line != NULL;
	ssize_t got;

	if (fault_memory("getline"))
		return -1;
	got = __real___getdelim(line, len, delimiter, file);
	if (!had)
		(void)fault_counted(*line);
	return got;
}

/* What a build without optimization calls. */
WRAP(ssize_t, getline, (char **line, size_t *len, FILE *file))
{
	return __wrap___getdelim(line, len, '\n', file);
}

WRAP(void, free, (void *memory))
{
	if (memory)
		atomic_fetch_sub(&faults.allocations, 1);
	__real_free(memory);
}

/* ---- System calls ---- */

static bool fault_call(const char *name, int error)
{
	if (!fault_due(FAULT_CALL, name))
		return false;
	errno = error;
	return true;
}

/* @failed is what the caller sees; @error what errno says. */
#define WRAP_CALL(type, name, parameters, arguments, failed, error)                   \
	WRAP(type, name, parameters)                                                  \
	{                                                                             \
		return fault_call(#name, error) ? (failed) : __real_##name arguments; \
	}

WRAP_CALL(int, stat, (const char *path, struct stat *st), (path, st), -1, EACCES)
WRAP_CALL(int, fstat, (int fd, struct stat *st), (fd, st), -1, EIO)
WRAP_CALL(int, statx, (int dir, const char *path, int flags, unsigned mask, struct statx *st),
	  (dir, path, flags, mask, st), -1, ENOSYS)
WRAP_CALL(int, access, (const char *path, int mode), (path, mode), -1, EACCES)
WRAP_CALL(ssize_t, pread, (int fd, void *buf, size_t len, off_t at), (fd, buf, len, at), -1, EIO)
WRAP_CALL(int, fallocate, (int fd, int mode, off_t at, off_t len), (fd, mode, at, len), -1, EIO)
WRAP_CALL(int, ftruncate, (int fd, off_t len), (fd, len), -1, EFBIG)
WRAP_CALL(int, lstat, (const char *path, struct stat *st), (path, st), -1, EACCES)
WRAP_CALL(ssize_t, readlink, (const char *path, char *target, size_t len), (path, target, len), -1,
	  EACCES)
WRAP_CALL(int, linkat, (int from_dir, const char *from, int to_dir, const char *to, int flags),
	  (from_dir, from, to_dir, to, flags), -1, ENOSPC)
WRAP_CALL(int, socket, (int family, int type, int protocol), (family, type, protocol), -1, EMFILE)
WRAP_CALL(int, bind, (int fd, const struct sockaddr *address, socklen_t len), (fd, address, len),
	  -1, EADDRINUSE)
WRAP_CALL(int, listen, (int fd, int backlog), (fd, backlog), -1, EADDRINUSE)
WRAP_CALL(int, connect, (int fd, const struct sockaddr *address, socklen_t len), (fd, address, len),
	  -1, ECONNREFUSED)
WRAP_CALL(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags),
	  -1, ENOBUFS)
WRAP_CALL(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags), -1,
	  ECONNRESET)
WRAP_CALL(int, madvise, (void *at, size_t len, int advice), (at, len, advice), -1, EINVAL)
WRAP_CALL(int, eventfd, (unsigned value, int flags), (value, flags), -1, EMFILE)
WRAP_CALL(FILE *, fopen, (const char *path, const char *mode), (path, mode), NULL, EMFILE)
WRAP_CALL(DIR *, opendir, (const char *path), (path), NULL, EMFILE)
WRAP_CALL(ssize_t, getrandom, (void *buf, size_t len, unsigned flags), (buf, len, flags), -1, EINTR)
WRAP_CALL(char *, realpath, (const char *path, char *out), (path, out), NULL, EACCES)
WRAP_CALL(int, io_setup, (int count, io_context_t *context), (count, context), -EAGAIN, 0)
WRAP_CALL(int, io_submit, (io_context_t context, long count, struct iocb **iocbs),
	  (context, count, iocbs), -EIO, 0)
WRAP_CALL(int, io_getevents,
	  (io_context_t context, long min, long max, struct io_event *events,
	   struct timespec *timeout),
	  (context, min, max, events, timeout), -EINTR, 0)
WRAP_CALL(int, io_uring_queue_init_params,
	  (unsigned entries, struct io_uring *ring, struct io_uring_params *params),
	  (entries, ring, params), -ENOMEM, 0)
WRAP_CALL(int, io_uring_register_buffers,
	  (struct io_uring * ring, const struct iovec *vector, unsigned count),
	  (ring, vector, count), -ENOMEM, 0)
WRAP_CALL(int, io_uring_register_files, (struct io_uring * ring, const int *files, unsigned count),
	  (ring, files, count), -EMFILE, 0)
WRAP_CALL(int, io_uring_register_ring_fd, (struct io_uring * ring), (ring), -EINVAL, 0)
WRAP_CALL(int, io_uring_register,
	  (unsigned fd, unsigned opcode, const void *argument, unsigned count),
	  (fd, opcode, argument, count), -ENOMEM, 0)
WRAP_CALL(int, io_uring_enter2,
	  (unsigned fd, unsigned submit, unsigned wait, unsigned flags, sigset_t *set, size_t len),
	  (fd, submit, wait, flags, set, len), -EIO, 0)
WRAP_CALL(blkid_probe, blkid_new_probe, (void), (), NULL, ENOMEM)
WRAP_CALL(int, blkid_probe_set_device,
	  (blkid_probe probe, int fd, blkid_loff_t at, blkid_loff_t len), (probe, fd, at, len), -1,
	  EIO)
WRAP_CALL(int, blkid_do_probe, (blkid_probe probe), (probe), -1, EIO)

/* Nothing here is cut off from power: hundreds of flushes of a slow disk would prove nothing. */
WRAP(int, fdatasync, (int fd))
{
	(void)fd;
	return fault_call("fdatasync", EIO) ? -1 : 0;
}

WRAP(ssize_t, pwrite, (int fd, const void *buf, size_t len, off_t at))
{
	atomic_fetch_add(&faults.writes, 1);
	return fault_call("pwrite", EIO) ? -1 : __real_pwrite(fd, buf, len, at);
}

WRAP(int, open, (const char *path, int flags, ...))
{
	mode_t mode = 0;
	va_list args;

	va_start(args, flags);
	if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE)
		mode = va_arg(args, mode_t);
	va_end(args);
	return fault_call("open", EMFILE) ? -1 : __real_open(path, flags, mode);
}

WRAP(int, fcntl, (int fd, int command, ...))
{
	va_list args;
	void *argument;

	va_start(args, command);
	argument = va_arg(args, void *);
	va_end(args);
	return fault_call("fcntl", ENOLCK) ? -1 : __real_fcntl(fd, command, argument);
}

static int answer_ioctl(int fd, unsigned long request, void *argument)
{
	return fault_call("ioctl", EIO) ? -1 : __real_ioctl(fd, request, argument);
}

WRAP(void *, mmap, (void *at, size_t len, int protection, int flags, int fd, off_t offset))
{
	void *memory = MAP_FAILED;

	if (!fault_call("mmap", ENOMEM))
		memory = __real_mmap(at, len, protection, flags, fd, offset);
	if (memory != MAP_FAILED)
		atomic_fetch_add(&faults.mapped, (long long)len);
	return memory;
}

WRAP(int, munmap, (void *at, size_t len))
{
	atomic_fetch_sub(&faults.mapped, (long long)len);
	return __real_munmap(at, len);
}

WRAP(int, pthread_create,
     (pthread_t * thread, const pthread_attr_t *attr, void *(*start)(void *), void *context))
{
	int error = fault_call("pthread_create", EAGAIN)
			    ? EAGAIN
			    : __real_pthread_create(thread, attr, start, context);

	atomic_fetch_add(&faults.threads, error == 0);
	return error;
}

WRAP(int, pthread_join, (pthread_t thread, void **result))
{
	atomic_fetch_sub(&faults.threads, 1);
	return __real_pthread_join(thread, result);
}

/* ---- What an operation must not leave behind ---- */

struct fault_balance {
	long allocations;
	long long mapped;
	long threads, descriptors;
};

static long fault_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	long count = 0;

	while (dir && readdir(dir))
		count++;
	if (dir)
		(void)closedir(dir);
	return count;
}

static struct fault_balance fault_balance_now(void)
{
	return (struct fault_balance){
		.allocations = atomic_load(&faults.allocations),
		.mapped = atomic_load(&faults.mapped),
		.threads = atomic_load(&faults.threads),
		.descriptors = fault_descriptors(),
	};
}

#endif
