/* SPDX-License-Identifier: MIT */
/* util/size.c - sizes as text ("1.5 GiB"), the clock, option structs of other versions */
#include "util/util.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

SPW_UNGUARDED uint64_t spw_clock_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#define FRACTION_DIGITS_MAX 18 /* fits in 64 bits; more cannot matter */

/* Unlike isdigit(), independent of the locale: a size means the same everywhere. */
static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* The number of bytes that a suffix stands for; 0: not a suffix. */
static uint64_t suffix_factor(const char *suffix)
{
	static const char letters[] = "kmgtpeKMGTPE";
	const char *letter;
	unsigned power;
	uint64_t base = 1024;

	if (suffix[0] == '\0' || strcmp(suffix, "b") == 0 || strcmp(suffix, "B") == 0)
		return 1;
	letter = strchr(letters, suffix[0]);
	if (!letter)
		return 0;
	suffix++;
	if (strcmp(suffix, "b") == 0 || strcmp(suffix, "B") == 0)
		base = 1000;
	else if (suffix[0] != '\0' && ((suffix[0] != 'i' && suffix[0] != 'I') ||
				       (suffix[1] != 'b' && suffix[1] != 'B') || suffix[2] != '\0'))
		return 0;
	power = (unsigned)(letter - letters) % 6 + 1;
	for (uint64_t factor = base;; factor *= base)
		if (--power == 0)
			return factor;
}

int spw_size_parse(const char *text, uint64_t *bytes)
{
	uint64_t whole = 0, fraction = 0, fraction_unit = 1, factor;
	bool overflow = false;
	unsigned __int128 value;

	*bytes = 0;
	if (!is_digit(*text))
		return -EINVAL;
	for (; is_digit(*text); text++)
		overflow = overflow || __builtin_mul_overflow(whole, UINT64_C(10), &whole) ||
			   __builtin_add_overflow(whole, (uint64_t)(*text - '0'), &whole);
	if (*text == '.')
		text++;
	for (unsigned digits = 0; is_digit(*text); text++, digits++)
		if (digits < FRACTION_DIGITS_MAX) {
			fraction = fraction * 10 + (uint64_t)(*text - '0');
			fraction_unit *= 10;
		}
	while (*text == ' ')
		text++;
	factor = suffix_factor(text);
	if (factor == 0)
		return -EINVAL;
	value = (unsigned __int128)whole * factor +
		(unsigned __int128)fraction * factor / fraction_unit;
	if (overflow || value > UINT64_MAX)
		return -ERANGE;
	*bytes = (uint64_t)value;
	return 0;
}

const char *spw_size_format(uint64_t bytes, char *buf, size_t len)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double value = (double)bytes;
	unsigned unit = 0;
	long long tenths, hundredths;

	/* A value that would be rounded to "1024.0" becomes 1 of the next unit. */
	while (value >= 1023.95 && unit + 1 < SPW_ARRAY_LEN(units)) {
		value /= 1024.0;
		unit++;
	}
	/* Three significant digits, no ".0" after whole numbers, and a point in every locale. */
	hundredths = llrint(value * 100);
	tenths = llrint(value * 10);
	if (unit == 0 || value == (double)(uint64_t)value)
		(void)snprintf(buf, len, "%llu %s", (unsigned long long)value, units[unit]);
	else if (value < 10)
		(void)snprintf(buf, len, "%lld.%02lld %s", hundredths / 100, hundredths % 100,
			       units[unit]);
	else
		(void)snprintf(buf, len, "%lld.%lld %s", tenths / 10, tenths % 10, units[unit]);
	return buf;
}

void spw_opts_merge(void *to, size_t to_size, const void *from, size_t from_size)
{
	memcpy(to, from, from_size < to_size ? from_size : to_size);
	memcpy(to, &to_size, sizeof(to_size));
}

int spw_reserved_check(const void *reserved, size_t len, const char *what)
{
	const uint8_t *bytes = reserved;

	for (size_t i = 0; i < len; i++)
		if (bytes[i] != 0)
			return spw_error(-EINVAL, "%s: reserved fields must be 0", what);
	return 0;
}
