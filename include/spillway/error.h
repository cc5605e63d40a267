/* SPDX-License-Identifier: MIT */
/*
 * spillway/error.h - how every layer reports errors, where it writes its log, and sizes in words
 *
 * Contract
 *   Errors     Every function returns 0 or a count on success and a negative errno otherwise. The
 *              errno says what kind of failure it was; spw_last_error() says in words which device,
 *              why, and what to do about it.
 *   Threads    The last error is kept per thread. A log function may be called from any thread,
 *              several at a time.
 *   Process    The library installs no signal handler, never exits and never prints. It keeps no
 *              state beside its handles, but for a list of the descriptors that a child of fork(2)
 *              closes: those that lock or claim drives, and rings.
 */
#ifndef SPILLWAY_ERROR_H
#define SPILLWAY_ERROR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPW_EXPORT __attribute__((visibility("default")))

#define SPW_VERSION "0.1.0"

enum spw_log_level {
	SPW_LOG_DEBUG,
	SPW_LOG_INFO,    /* a decision worth knowing: the backend chosen, huge pages missing */
	SPW_LOG_WARNING, /* a fallback that costs something, a drive retired */
	SPW_LOG_ERROR,   /* a request failed */
};

/*
 * Where messages go. @write gets one line without a newline, valid during the call only; NULL means
 * silence.
 */
struct spw_log {
	void (*write)(void *context, enum spw_log_level level, const char *message);
	void *context;
};

/**
 * spw_strerror - what a negative errno means, in a few words
 *
 * Does not allocate; the text is constant or belongs to the thread until its next call.
 */
SPW_EXPORT const char *spw_strerror(int error);

/**
 * spw_last_error - the calling thread's last failure in words: device, cause, remedy
 *
 * Valid until the thread's next failing call. "" when nothing has failed yet. Does not reset
 * anything.
 */
SPW_EXPORT const char *spw_last_error(void);

#define SPW_LOG_TEXT_BYTES_MAX 512

/* A line of a log that was kept. */
struct spw_log_line {
	enum spw_log_level level;
	uint32_t lost; /* lines that found no room since the one read before */
	char text[SPW_LOG_TEXT_BYTES_MAX];
};

/*
 * A log that is kept until it is read: for who cannot be called by any thread, as an interpreter.
 * Where it is full, new lines are lost, and counted.
 */
struct spw_log_ring;

/**
 * spw_log_ring_open - make room for @lines_max lines
 *
 * Return: 0; -ENOMEM; -EINVAL for no line.
 */
SPW_EXPORT int spw_log_ring_open(unsigned lines_max, struct spw_log_ring **ring);

/* No log must write to it any more. NULL is ignored. */
SPW_EXPORT void spw_log_ring_close(struct spw_log_ring *ring);

/* For struct spw_log: with the ring as context. Any thread; waits for nothing but a copy. */
SPW_EXPORT void spw_log_ring_write(void *ring, enum spw_log_level level, const char *message);

/**
 * spw_log_ring_read - take the oldest line
 * @line: NULL: only ask whether there is one
 *
 * Any thread; does not wait for a line, takes no lock while there is none, and leaves the thread's
 * last error as it is.
 *
 * Return: 1; 0 there is none.
 */
SPW_EXPORT int spw_log_ring_read(struct spw_log_ring *ring, struct spw_log_line *line);

/**
 * spw_size_parse - a size in words: "1536" "4k" "1.5MiB" "2G" "1EiB"
 *
 * The same in every locale. Suffixes are powers of 1024; of 1000 with a "B" behind the letter
 * ("4kB").
 *
 * Return: 0; -EINVAL it is no size; -ERANGE it does not fit.
 */
SPW_EXPORT int spw_size_parse(const char *text, uint64_t *bytes);

/* The version of the library in use; SPW_VERSION is the one compiled against. */
SPW_EXPORT const char *spw_version(void);

#ifdef __cplusplus
}
#endif
#endif
