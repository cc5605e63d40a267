/* SPDX-License-Identifier: MIT */
/* util/error.c - the thread's last error in words, the log, asserts */
#include "util/util.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES_MAX 512

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

/* What the errnos mean that spillway gives a meaning of its own. */
static const struct {
	int error;
	const char *text;
} own_meanings[] = {
	{ENXIO, "a drive of the store is missing"},     {ENOTUNIQ, "a drive is named twice"},
	{EMEDIUMTYPE, "not a drive of this store"},     {EUCLEAN, "the superblock is damaged"},
	{EPROTONOSUPPORT, "a newer disk format"},       {EBADMSG, "the drive returned other bytes than were written"},
	{ENOBUFS, "no request or memory slot is free"}, {EEXIST, "the device carries something"},
	{ENODEV, "the device is gone or has no size"},
};

const char *spw_strerror(int error)
{
	int positive = error < 0 ? -error : error;

	for (size_t i = 0; i < SPW_ARRAY_LEN(own_meanings); i++)
		if (own_meanings[i].error == positive)
			return own_meanings[i].text;
	return strerror_r(positive, errno_text, sizeof(errno_text));
}

static void set_last_error(const char *format, va_list args)
{
	/* Formatted apart first: an argument may be the last error itself. */
	char text[TEXT_BYTES_MAX];

	(void)vsnprintf(text, sizeof(text), format, args);
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

int spw_error_errno(int error, const char *format, ...)
{
	char reason[128];
	va_list args;
	size_t used;

	va_start(args, format);
	set_last_error(format, args);
	va_end(args);
	used = strlen(last_error);
	(void)snprintf(last_error + used, sizeof(last_error) - used, ": %s",
		       strerror_r(error < 0 ? -error : error, reason, sizeof(reason)));
	return error;
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
	log->write(log->context, level, text);
}

void spw_make_printable(char *text)
{
	for (unsigned char *at = (unsigned char *)text; *at; at++) {
		if (*at < 0x20 || *at == 0x7f)
			*at = '?';
		/* Those of ISO 6429 above 127, as UTF-8 has them: 9b begins a terminal's command like ESC [. */
		if (at[0] == 0xc2 && at[1] >= 0x80 && at[1] <= 0x9f)
			at[0] = at[1] = '?';
	}
}

void spw_assert_failed(const char *condition, const char *file, int line)
{
	(void)fprintf(stderr, "spillway: %s:%d: broken invariant: %s\n", file, line, condition);
	abort();
}
