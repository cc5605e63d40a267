/* SPDX-License-Identifier: MIT */
/*
 * spillway/error.h - errors and the log of every layer, and sizes as text
 *
 * Contract
 *   Errors     Every function returns 0 or a count on success and a negative errno otherwise. The
 *              errno is the kind of failure; spw_last_error() names the device, the cause and the
 *              remedy.
 *   Threads    The last error is kept per thread. A log function may be called from any thread,
 *              several at a time.
 *   Structs    They may grow in later versions, in one of two ways. Options, results and counters
 *              begin with their size as the caller's version knows it, set by an init function or
 *              the caller. Small structs that are passed for each request or tensor, or in arrays,
 *              end with reserved fields: the caller sets them to 0; functions that can fail return
 *              -EINVAL otherwise. Handles, callbacks and points of a curve never change.
 *   Process    The library installs no signal handler, never exits and never prints. Its only state
 *              outside its handles is a list of descriptors to be closed in a child of fork(2):
 *              those that lock or claim drives, and rings.
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

/* Assert the offset of a public struct's last member, and the struct's size, on 64-bit machines. */
#ifdef __cplusplus
#define SPW_ABI_ASSERT static_assert
#else
#define SPW_ABI_ASSERT _Static_assert
#endif
#define SPW_ABI(type, last, offset, bytes)                                                    \
	SPW_ABI_ASSERT(sizeof(void *) != 8 ||                                                 \
			       (offsetof(type, last) == (offset) && sizeof(type) == (bytes)), \
		       #type " has another layout: programs that were built before would break")

enum spw_log_level {
	SPW_LOG_DEBUG,
	SPW_LOG_INFO,    /* a decision worth knowing: the backend chosen, huge pages missing */
	SPW_LOG_WARNING, /* a fallback that is slower, a drive retired */
	SPW_LOG_ERROR,   /* a request failed */
};

/*
 * Receiver of log messages. @write gets one line without a newline, valid during the call only;
 * NULL: messages are dropped.
 */
struct spw_log {
	void (*write)(void *context, enum spw_log_level level, const char *message);
	void *context;
};
SPW_ABI(struct spw_log, context, 8, 16);

/**
 * spw_strerror - what an errno means, in a few words
 * @error:  an errno, negative or positive
 *
 * Does not allocate. The text is constant, or valid until the thread's next call.
 *
 * Return: the text, never NULL.
 */
SPW_EXPORT const char *spw_strerror(int error);

/**
 * spw_last_error - get the message of the calling thread's last failure: device, cause and remedy
 *
 * The message is not cleared.
 *
 * Return: the text, valid until the thread's next failing call; "" if no call has failed yet.
 */
SPW_EXPORT const char *spw_last_error(void);

#define SPW_LOG_TEXT_BYTES_MAX 512

/* A line of a struct spw_log_ring. */
struct spw_log_line {
	enum spw_log_level level;
	uint32_t lost; /* lines that were dropped since the previous line that was read */
	uint32_t reserved[2];
	char text[SPW_LOG_TEXT_BYTES_MAX];
};
SPW_ABI(struct spw_log_line, text, 16, 528);

/*
 * A log that keeps its lines until they are read, for callers such as interpreters whose code
 * cannot run in any thread. When it is full, new lines are dropped and counted.
 */
struct spw_log_ring;

/**
 * spw_log_ring_open - create a log that keeps its lines until they are read
 * @lines_max:  lines that it can hold; at least 1
 * @ring:       set on success, else NULL
 *
 * Return: 0; -EINVAL @lines_max is 0; -ENOMEM.
 */
SPW_EXPORT int spw_log_ring_open(unsigned lines_max, struct spw_log_ring **ring);

/**
 * spw_log_ring_close - free a log
 * @ring:  must not be written to any more; or NULL
 */
SPW_EXPORT void spw_log_ring_close(struct spw_log_ring *ring);

/**
 * spw_log_ring_write - add a line; the write function of struct spw_log, with the ring as context
 * @ring:     the struct spw_log_ring
 * @level:    kept with the line
 * @message:  copied, up to SPW_LOG_TEXT_BYTES_MAX - 1 bytes
 *
 * Any thread. Waits at most while another thread copies a line. Drops the line, and counts it, if
 * the ring is full.
 */
SPW_EXPORT void spw_log_ring_write(void *ring, enum spw_log_level level, const char *message);

/**
 * spw_log_ring_read - take the oldest line
 * @ring:  the ring
 * @line:  set; or NULL: only ask whether there is one, which takes nothing
 *
 * Any thread. Does not wait for a line, takes no lock while there is none, and leaves the thread's
 * last error as it is.
 *
 * Return: 1; 0 there is no line.
 */
SPW_EXPORT int spw_log_ring_read(struct spw_log_ring *ring, struct spw_log_line *line);

/**
 * spw_size_parse - parse a size: "1536" "4k" "1.5MiB" "2G" "1EiB"
 * @text:   the size. Suffixes are powers of 1024, or of 1000 with a "B" after the letter ("4kB")
 * @bytes:  set on success
 *
 * The same in every locale.
 *
 * Return: 0; -EINVAL it is not a size; -ERANGE it does not fit.
 */
SPW_EXPORT int spw_size_parse(const char *text, uint64_t *bytes);

/**
 * spw_version - the version of the library in use
 *
 * SPW_VERSION is the version that the caller was compiled with.
 *
 * Return: a constant text.
 */
SPW_EXPORT const char *spw_version(void);

#ifdef __cplusplus
}
#endif
#endif
