/* SPDX-License-Identifier: MIT */
/*
 * util/util.h - what every layer needs: error texts, the log, the clock, sizes in words
 *
 * Lies under all layers and knows none of them.
 */
#ifndef SPW_UTIL_H
#define SPW_UTIL_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/error.h>

#define SPW_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
/*
 * Rarely called: what leads to it is kept away from code that runs often, which so lies on fewer
 * pages.
 */
#define SPW_COLD __attribute__((cold))
/*
 * Runs for every transfer, and has no array that could overflow: without the guard that the build
 * puts on stacks.
 */
#define SPW_UNGUARDED __attribute__((no_stack_protector))
#define SPW_PRINTF(format_index, first_index) \
	__attribute__((format(printf, format_index, first_index)))

/*
 * An invariant of our own (never of bytes read from a drive, never of an argument). Stays on in
 * release builds.
 */
#define SPW_ASSERT(condition) \
	((condition) ? (void)0 : spw_assert_failed(#condition, __FILE__, __LINE__))
SPW_COLD __attribute__((noreturn)) void spw_assert_failed(const char *condition, const char *file,
							  int line);

/* Set the thread's last error to the formatted text and return @error (negative). */
SPW_COLD int spw_error(int error, const char *format, ...) SPW_PRINTF(2, 3);

/* The same with the errno's own words appended: "...: No such file or directory". */
SPW_COLD int spw_error_errno(int error, const char *format, ...) SPW_PRINTF(2, 3);

SPW_COLD void spw_log(const struct spw_log *log, enum spw_log_level level, const char *format, ...)
	SPW_PRINTF(3, 4);

/* Monotonic nanoseconds. */
uint64_t spw_clock_ns(void);

/*
 * "1536" "4k" "1.5MiB" "2G" "1EiB" -> bytes, in every locale; suffixes are powers of 1024, or of
 * 1000 with a trailing "B" alone ("4kB"). Return: 0; -EINVAL not a size; -ERANGE does not fit.
 */
int spw_size_parse(const char *text, uint64_t *bytes);

/* 1610612736 -> "1.5 GiB". Return: buf. */
const char *spw_size_format(uint64_t bytes, char *buf, size_t len);

/* Options structs start with their size: copy what the caller's version has over the defaults. */
void spw_opts_merge(void *to, size_t to_size, const void *from, size_t from_size);

/*
 * Make text that came from a device or another process fit to be shown on a terminal: control
 * characters, and bytes that are no UTF-8, become question marks. Messages and log lines are so by
 * themselves.
 */
void spw_make_printable(char *text);

/*
 * The first line of a small file (sysfs, /proc), without its newline. Return: false, and "", when
 * there is none to be read.
 */
bool spw_read_line(const char *path, char *line, size_t len);

/*
 * Call @visit for each entry of a folder whose name begins with no dot, until it returns something
 * else than 0; a folder that is not there has none. Return: that; 0; or a negative errno: the
 * folder cannot be read.
 */
int spw_each_name(const char *folder,
		  int (*visit)(void *context, const char *folder, const char *name), void *context);

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
