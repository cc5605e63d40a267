/* SPDX-License-Identifier: MIT */
/* util/util.h - helpers of all layers: error texts, log, clock, sizes as text, small files */
#ifndef SPW_UTIL_H
#define SPW_UTIL_H

#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <spillway/error.h>

#define SPW_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
/* Arguments are evaluated twice. */
#define SPW_MIN(a, b) ((a) < (b) ? (a) : (b))
#define SPW_MAX(a, b) ((a) > (b) ? (a) : (b))
/* A rarely called function, placed apart so that the hot code lies on fewer pages. */
#define SPW_COLD __attribute__((cold))
/* No stack protector: for functions that run for every transfer and have no array to overflow. */
#define SPW_UNGUARDED __attribute__((no_stack_protector))
#define likely(x)     __builtin_expect(!!(x), 1)
#define unlikely(x)   __builtin_expect(!!(x), 0)
#define SPW_PRINTF(format_index, first_index) \
	__attribute__((format(printf, format_index, first_index)))

/* Checks our own invariants, never a drive's bytes or arguments. Enabled in release builds too. */
#define SPW_ASSERT(condition) \
	((condition) ? (void)0 : spw_assert_failed(#condition, __FILE__, __LINE__))
SPW_COLD __attribute__((noreturn)) void spw_assert_failed(const char *condition, const char *file,
							  int line);

/*
 * Assert that a call returns 0, because another result means that we misused it: locking a mutex,
 * for example. The call has an effect; conditions of SPW_ASSERT() must not have one.
 */
#define SPW_MUST(call) \
	((call) == 0 ? (void)0 : spw_assert_failed(#call " == 0", __FILE__, __LINE__))

/* Set the thread's last error to the formatted text and return @error (negative). */
SPW_COLD int spw_error(int error, const char *format, ...) SPW_PRINTF(2, 3);

/* The same with the errno's own words appended: "...: No such file or directory". */
SPW_COLD int spw_error_errno(int error, const char *format, ...) SPW_PRINTF(2, 3);
/* Advice on EACCES or EPERM (@error) from a device, to be appended to an error message. */
const char *spw_permission_advice(int error);

SPW_COLD void spw_log(const struct spw_log *log, enum spw_log_level level, const char *format, ...)
	SPW_PRINTF(3, 4);

uint64_t spw_clock_ns(void);

/* A value unique to this thread among all living ones; cheap enough for asserts. */
static inline const void *spw_thread_self(void)
{
	return __builtin_thread_pointer();
}

/* How long ago @then_ns was; 0 if it is in the future. */
static inline uint64_t spw_since_ns(uint64_t then_ns, uint64_t now_ns)
{
	return now_ns > then_ns ? now_ns - then_ns : 0;
}

/* 1610612736 -> "1.5 GiB". Return: buf. */
const char *spw_size_format(uint64_t bytes, char *buf, size_t len);

/* The same, in memory that lives until the end of the enclosing block. */
#define SPW_SIZE_TEXT(bytes) spw_size_format(bytes, (char[32]){0}, 32)

/* Options structs start with their size: copy what the caller's version has over the defaults. */
void spw_opts_merge(void *to, size_t to_size, const void *from, size_t from_size);
/* Check the reserved fields of @what, a struct. Return: 0; -EINVAL one of them is not 0. */
int spw_reserved_check(const void *reserved, size_t len, const char *what);

/* Control characters, and bytes that are not UTF-8, become question marks; done to all messages. */
void spw_make_printable(char *text);

/* Format a path; one too long for the kernel becomes "", which never exists. Return: @path. */
const char *spw_path(char path[PATH_MAX], const char *format, ...) SPW_PRINTF(2, 3);

/* The same, in memory that lives until the end of the enclosing block. */
#define SPW_PATH(...) spw_path((char[PATH_MAX]){0}, __VA_ARGS__)

/* The first line of a small file, without its newline. Return: false, and "": it cannot be read. */
bool spw_read_line(const char *path, char *line, size_t len);

/* The same, trimmed and made printable: drives and processes choose their own names. */
bool spw_read_text(const char *path, char *text, size_t len);

/* The number in a small file; @otherwise if it cannot be read or holds anything else. */
int64_t spw_read_number(const char *path, int64_t otherwise);

/* Read a device number ("8:1") from a file named dev. Return: false: it has none. */
bool spw_read_device(const char *path, dev_t *number);

/*
 * Call @visit for each entry whose name does not begin with a dot, until it returns non-zero. A
 * missing folder has no entries. Return: what @visit returned; 0; -errno: cannot be read.
 */
int spw_each_name(const char *folder,
		  int (*visit)(void *context, const char *folder, const char *name), void *context);

/*
 * Does another file description hold a lock in the range (0 bytes: to the end)? Return: 1; 0;
 * -errno.
 */
int spw_fd_locked(int fd, uint64_t offset_bytes, uint64_t len_bytes);

/* Bytes of memory that this process may lock (RLIMIT_MEMLOCK); UINT64_MAX: no limit. */
uint64_t spw_memlock_bytes(void);

static inline uint64_t spw_round_up(uint64_t value, uint64_t unit)
{
	return (value + unit - 1) / unit * unit;
}

static inline uint64_t spw_round_down(uint64_t value, uint64_t unit)
{
	return value / unit * unit;
}

static inline bool spw_is_power_of_two(uint64_t value)
{
	return value != 0 && (value & (value - 1)) == 0;
}

#endif
