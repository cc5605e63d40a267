/* SPDX-License-Identifier: MIT */
/* util/util.h - what every layer needs: error texts, the log, the clock, sizes in words */
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
/* Of arguments that may be computed twice. */
#define SPW_MIN(a, b) ((a) < (b) ? (a) : (b))
#define SPW_MAX(a, b) ((a) > (b) ? (a) : (b))
/* Rarely called: kept away from code that runs often, which so lies on fewer pages. */
#define SPW_COLD __attribute__((cold))
/* Runs for every transfer, and has no array to overflow: without a guard on its stack. */
#define SPW_UNGUARDED __attribute__((no_stack_protector))
#define likely(x)     __builtin_expect(!!(x), 1)
#define unlikely(x)   __builtin_expect(!!(x), 0)
#define SPW_PRINTF(format_index, first_index) \
	__attribute__((format(printf, format_index, first_index)))

/* Of our own invariants, never of a drive's bytes or of arguments; on in releases, too. */
#define SPW_ASSERT(condition) \
	((condition) ? (void)0 : spw_assert_failed(#condition, __FILE__, __LINE__))
SPW_COLD __attribute__((noreturn)) void spw_assert_failed(const char *condition, const char *file,
							  int line);

/*
 * A call that returns 0, or we used it wrongly: such as of a mutex. Unlike what SPW_ASSERT() is
 * given, which only looks, the call is wanted for what it does.
 */
#define SPW_MUST(call) \
	((call) == 0 ? (void)0 : spw_assert_failed(#call " == 0", __FILE__, __LINE__))

/* Set the thread's last error to the formatted text and return @error (negative). */
SPW_COLD int spw_error(int error, const char *format, ...) SPW_PRINTF(2, 3);

/* The same with the errno's own words appended: "...: No such file or directory". */
SPW_COLD int spw_error_errno(int error, const char *format, ...) SPW_PRINTF(2, 3);
/* What to do about EACCES or EPERM (@error) of a device, a part of a sentence. */
const char *spw_permission_advice(int error);

SPW_COLD void spw_log(const struct spw_log *log, enum spw_log_level level, const char *format, ...)
	SPW_PRINTF(3, 4);

uint64_t spw_clock_ns(void);

/* What tells this thread from all others that are alive: cheap enough for asserts. */
static inline const void *spw_thread_self(void)
{
	return __builtin_thread_pointer();
}

/* How long ago @then was; 0: it was not yet. */
static inline uint64_t spw_since_ns(uint64_t then_ns, uint64_t now_ns)
{
	return now_ns > then_ns ? now_ns - then_ns : 0;
}

/* 1610612736 -> "1.5 GiB". Return: buf. */
const char *spw_size_format(uint64_t bytes, char *buf, size_t len);

/* The same, in memory of the block that it stands in. */
#define SPW_SIZE_TEXT(bytes) spw_size_format(bytes, (char[32]){0}, 32)

/* Options structs start with their size: copy what the caller's version has over the defaults. */
void spw_opts_merge(void *to, size_t to_size, const void *from, size_t from_size);
/* Other structs end with reserved fields. @what: of which struct. Return: 0; -EINVAL not all 0. */
int spw_reserved_check(const void *reserved, size_t len, const char *what);

/* Control characters, and bytes that are not UTF-8, become question marks, as in all messages. */
void spw_make_printable(char *text);

/* A path as by printf(3); one too long for the kernel is "", which nothing has. Return: @path. */
const char *spw_path(char path[PATH_MAX], const char *format, ...) SPW_PRINTF(2, 3);

/* The same, in memory of the block that it stands in. */
#define SPW_PATH(...) spw_path((char[PATH_MAX]){0}, __VA_ARGS__)

/* The first line of a small file, without its newline. Return: false, and "": none. */
bool spw_read_line(const char *path, char *line, size_t len);

/* The same without surrounding blanks, and printable: drives and processes choose their names. */
bool spw_read_text(const char *path, char *text, size_t len);

/* What it has there is a number, and nothing else; else @otherwise. */
int64_t spw_read_number(const char *path, int64_t otherwise);

/* "8:1", in files named dev. Return: false: none. */
bool spw_read_device(const char *path, dev_t *number);

/*
 * Call @visit for each entry whose name begins with no dot, until non-zero; a folder that is not
 * there has none. Return: that; 0; or a negative errno: the folder cannot be read.
 */
int spw_each_name(const char *folder,
		  int (*visit)(void *context, const char *folder, const char *name), void *context);

/* Has another description locked a byte of the range; len 0: to the end. Return: 1; 0; -errno. */
int spw_fd_locked(int fd, uint64_t offset_bytes, uint64_t len_bytes);

/* What this process may lock in memory (RLIMIT_MEMLOCK); UINT64_MAX: any amount. */
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
