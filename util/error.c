/* SPDX-License-Identifier: MIT */
/* util/error.c - the thread's last error message, the log, asserts */
#include "util/util.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_BYTES_MAX SPW_LOG_TEXT_BYTES_MAX

static _Thread_local char last_error[TEXT_BYTES_MAX];
static _Thread_local char errno_text[128];

const char *spw_version(void)
{
	return SPW_VERSION;
}

const char *spw_last_error(void)
{
	return last_error;
}

static const struct {
	int error;
	const char *text;
} own_meanings[] = {
	{ENXIO, "a drive of the store is missing"},
	{ENOTUNIQ, "a drive is named twice"},
	{EMEDIUMTYPE, "not a drive of this store"},
	{EUCLEAN, "the superblock is damaged"},
	{EPROTONOSUPPORT, "a newer disk format"},
	{EBADMSG, "the drive returned other bytes than were written"},
	{ENOBUFS, "no request or memory slot is free"},
	{EEXIST, "the device carries something"},
	{ENODEV, "the device is gone or has no size"},
	{EILSEQ, "what is stored does not match its protection information: it is damaged (replace "
		 "the drive if that repeats)"},
};

/* What an errno means in this library. Return: NULL: the same as elsewhere. */
static const char *own_meaning(int positive)
{
	for (size_t i = 0; i < SPW_ARRAY_LEN(own_meanings); i++)
		if (own_meanings[i].error == positive)
			return own_meanings[i].text;
	return NULL;
}

const char *spw_strerror(int error)
{
	int positive = error < 0 ? -error : error;
	const char *own = own_meaning(positive);

	return own ? own : strerror_r(positive, errno_text, sizeof(errno_text));
}

static void set_last_error(const char *format, va_list args)
{
	/* Formatted into a buffer of its own: an argument may be the last error itself. */
	char text[TEXT_BYTES_MAX];

	(void)vsnprintf(text, sizeof(text), format, args);
	/* Paths, labels and process names must not send control codes to the terminal. */
	spw_make_printable(text);
	memcpy(last_error, text, sizeof(text));
}

int spw_error(int error, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	set_last_error(format, args);
	va_end(args);
	return error;
}

/* EILSEQ is replaced: the kernel returns it for blocks, but strerror() talks about text. */
int spw_error_errno(int error, const char *format, ...)
{
	int positive = error < 0 ? -error : error;
	char reason[128];
	va_list args;
	size_t used;

	va_start(args, format);
	set_last_error(format, args);
	va_end(args);
	used = strlen(last_error);
	(void)snprintf(last_error + used, sizeof(last_error) - used, ": %s",
		       positive == EILSEQ ? own_meaning(positive)
					  : strerror_r(positive, reason, sizeof(reason)));
	return error;
}

const char *spw_permission_advice(int error)
{
	if (error == EPERM)
		return "every process is refused, so most likely the device cgroup of this "
		       "container or service forbids it: start it with --device (docker, podman) "
		       "or DeviceAllow= (systemd)";
	if (geteuid() == 0)
		return "root has no right to it here, as in a container without CAP_DAC_OVERRIDE: "
		       "run as the user who owns it";
	return "run as root, or as a user in the group that owns it";
}

void spw_log(const struct spw_log *log, enum spw_log_level level, const char *format, ...)
{
	char text[TEXT_BYTES_MAX];
	va_list args;

	if (!log || !log->write)
		return;
	va_start(args, format);
	(void)vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	spw_make_printable(text);
	log->write(log->context, level, text);
}

/* Length of a printable UTF-8 character, else 0 (U+009B, c2 9b, is a control: it means ESC [). */
static size_t shown_bytes(const unsigned char *at)
{
	/* For each range of first bytes, the range of the second byte (RFC 3629). */
	static const struct {
		unsigned char first, last, second_min, second_max, len;
	} forms[] = {
		{0x20, 0x7e, 0x00, 0xff, 1}, {0xc2, 0xc2, 0xa0, 0xbf, 2},
		{0xc3, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
		{0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3},
		{0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
		{0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
	};

	for (size_t i = 0; i < SPW_ARRAY_LEN(forms); i++) {
		if (at[0] < forms[i].first || at[0] > forms[i].last)
			continue;
		if (at[1] < forms[i].second_min || at[1] > forms[i].second_max)
			return 0;
		for (size_t more = 2; more < forms[i].len; more++)
			if ((at[more] & 0xc0) != 0x80)
				return 0;
		return forms[i].len;
	}
	return 0;
}

void spw_make_printable(char *text)
{
	unsigned char *at = (unsigned char *)text;

	while (*at) {
		size_t len = shown_bytes(at);

		if (len == 0)
			*at = '?';
		at += len > 0 ? len : 1;
	}
}

void spw_assert_failed(const char *condition, const char *file, int line)
{
	(void)fprintf(stderr, "spillway: %s:%d: broken invariant: %s\n", file, line, condition);
	abort();
}
