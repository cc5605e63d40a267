/* SPDX-License-Identifier: MIT */
/*
 * spillway/error.h - how every layer reports errors, and where it writes its log
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

/* The version of the library in use; SPW_VERSION is the one compiled against. */
SPW_EXPORT const char *spw_version(void);

#ifdef __cplusplus
}
#endif
#endif
