/* SPDX-License-Identifier: MIT */
/* util/size.c - sizes in words, the clock, option structs of other versions */
#include "util/util.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

uint64_t spw_clock_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The factor of a suffix, 0 when it is none. */
static uint64_t suffix_factor(const char *suffix)
{
	static const char letters[] = "kmgtp";
	const char *letter;
	unsigned power;
	uint64_t base = 1024;

	if (suffix[0] == '\0' || strcasecmp(suffix, "b") == 0)
		return 1;
	letter = strchr(letters, tolower((unsigned char)suffix[0]));
	if (!letter)
		return 0;
	if (strcasecmp(suffix + 1, "b") == 0)
		base = 1000;
	else if (suffix[1] != '\0' && strcasecmp(suffix + 1, "ib") != 0)
		return 0;
	power = (unsigned)(letter - letters) + 1;
	for (uint64_t factor = base;; factor *= base)
		if (--power == 0)
			return factor;
}

int spw_size_parse(const char *text, uint64_t *bytes)
{
	long double value;
	uint64_t factor;
	char *end;

	*bytes = 0;
	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	errno = 0;
	value = strtold(text, &end);
	if (errno == ERANGE || !isfinite(value))
		return -ERANGE;
	/* strtold also reads "0x10" and "1e3", which nobody means as a size. */
	if (strspn(text, "0123456789.") != (size_t)(end - text))
		return -EINVAL;
	while (*end == ' ')
		end++;
	factor = suffix_factor(end);
	if (factor == 0)
		return -EINVAL;
	value *= (long double)factor;
	if (value >= 0x1p64L)
		return -ERANGE;
	*bytes = (uint64_t)value;
	return 0;
}

const char *spw_size_format(uint64_t bytes, char *buf, size_t len)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double value = (double)bytes;
	unsigned unit = 0;

	while (value >= 1024.0 && unit + 1 < SPW_ARRAY_LEN(units)) {
		value /= 1024.0;
		unit++;
	}
	/* Three digits that matter, and no ".0" behind whole numbers. */
	if (unit == 0 || value == (double)(uint64_t)value)
		(void)snprintf(buf, len, "%.0f %s", value, units[unit]);
	else
		(void)snprintf(buf, len, value < 10 ? "%.2f %s" : "%.1f %s", value, units[unit]);
	return buf;
}

void spw_opts_merge(void *to, size_t to_size, const void *from, size_t from_size)
{
	memcpy(to, from, from_size < to_size ? from_size : to_size);
	memcpy(to, &to_size, sizeof(to_size));
}
