/* SPDX-License-Identifier: MIT */
/* tools/bench/lists.c - parse fio's values of several parts: "4k/10:64k/90", zones, CPUs */
#include "tools/bench/bench.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

#define PART_BYTES 4096

/* Copy @text up to the first of @ends to @part. Return: the rest after it, or NULL. */
static const char *cut(const char *text, const char *ends, char *part, size_t part_bytes)
{
	size_t len = strcspn(text, ends);

	(void)snprintf(part, part_bytes, "%.*s", (int)SPW_MIN(len, part_bytes - 1), text);
	return text[len] == '\0' ? NULL : text + len + 1;
}

/* fio allows a third value, for trims. */
int bench_parse_pair(const char *text, bench_parse_part *parse, void *context)
{
	static char part[PART_BYTES]; /* options are parsed by one thread */
	int result = 0;

	if (strlen(text) >= sizeof(part))
		return spw_error(-EINVAL, "longer than %zu bytes", sizeof(part) - 1);
	for (unsigned i = 0; text && i < 3 && result == 0; i++) {
		bool alone = i == 0 && !strchr(text, ',');

		text = cut(text, ",", part, sizeof(part));
		if (part[0] == '\0' || i == 2)
			continue;
		result = parse(context, i, part);
		/* A single value is for both directions. */
		if (alone && result == 0)
			result = parse(context, BENCH_DIR_WRITE, part);
	}
	return text && result == 0 ? spw_error(-EINVAL, "more than three values") : result;
}

/* Divide the rest of the 100 percent among shares without a percentage. */
static int share_the_rest(struct bench_share *shares, unsigned count, unsigned open)
{
	uint32_t sum = 0, first_more;

	for (unsigned i = 0; i < count; i++)
		sum += shares[i].percent == UINT32_MAX ? 0 : shares[i].percent;
	if (sum > 100 || (sum < 100 && open == 0))
		return spw_error(-EINVAL, "the shares add up to %u of 100", sum);
	if (open == 0)
		return 0;
	/* Distribute the remainder, which fio drops; some draws would then have no share. */
	first_more = (100 - sum) % open;
	for (unsigned i = 0; i < count; i++)
		if (shares[i].percent == UINT32_MAX) {
			shares[i].percent = (100 - sum) / open + (first_more > 0);
			first_more -= first_more > 0;
		}
	return 0;
}

/* Parse "VALUE/PERCENT"; or, for zones, "PERCENT/VALUE". */
static int parse_share(const char *part, bool percent_first, struct bench_share *share,
		       bool *last_open)
{
	char first[64], second[64] = "";
	const char *slash = cut(part, "/", first, sizeof(first)), *percent, *value;
	uint64_t count = UINT32_MAX;
	int result = 0;

	if (slash)
		(void)cut(slash, "", second, sizeof(second));
	percent = percent_first ? first : second;
	value = percent_first ? second : first;
	if (percent[0] != '\0')
		result = bench_parse_count(percent, &count);
	if (result == 0 && percent[0] != '\0' && count > 100)
		return spw_error(-EINVAL, "%s is more than 100 %%", percent);
	share->percent = (uint32_t)count;
	*last_open = value[0] == '\0';
	share->value = 0;
	return result == 0 && !*last_open ? bench_parse_size(value, &share->value) : result;
}

/* Return: the number of shares; or -EINVAL, -ERANGE. */
static int parse_shares(const char *text, bool percent_first, struct bench_share *shares,
			bool *rest)
{
	unsigned count = 0, open = 0;
	char part[64];
	int result = 0;

	while (text && result == 0) {
		if (count == BENCH_SHARES_MAX)
			return spw_error(-EINVAL, "more than %d shares", BENCH_SHARES_MAX);
		text = cut(text, ":", part, sizeof(part));
		result = parse_share(part, percent_first, &shares[count], rest);
		if (result == 0 && *rest && (text || !percent_first))
			return spw_error(-EINVAL, "'%s' has no size", part);
		open += shares[count++].percent == UINT32_MAX;
	}
	if (result == 0)
		result = share_the_rest(shares, count, open);
	return result == 0 ? (int)count : result;
}

static void bound(struct bench_lengths *lengths)
{
	lengths->min = UINT64_MAX;
	lengths->max = 0;
	for (unsigned i = 0; i < lengths->count; i++)
		if (lengths->shares[i].percent > 0) {
			lengths->min = SPW_MIN(lengths->min, lengths->shares[i].value);
			lengths->max = SPW_MAX(lengths->max, lengths->shares[i].value);
		}
}

int bench_parse_split(const char *text, struct bench_lengths *lengths)
{
	bool rest;
	int count = parse_shares(text, false, lengths->shares, &rest);

	if (count < 0)
		return count;
	lengths->count = (unsigned)count;
	bound(lengths);
	return 0;
}

/* Parse zones. Their sizes are replaced by their ends, the sums of all sizes so far. */
int bench_parse_zones(const char *text, bool bytes, struct bench_share *zones,
		      unsigned *zones_count)
{
	bool rest;
	int count = parse_shares(text, true, zones, &rest);
	uint64_t end = 0;

	for (int i = 0; i < count; i++) {
		if (__builtin_add_overflow(end, zones[i].value, &end))
			return spw_error(-ERANGE, "the zones are too large");
		zones[i].value = end;
	}
	if (count < 0)
		return count;
	if (!bytes && (end > 100 || (end < 100 && !rest)))
		return spw_error(-EINVAL, "the zones are %ju %% of the size, not 100",
				 (uintmax_t)end);
	if (rest)
		zones[count - 1].value = bytes ? UINT64_MAX : 100;
	*zones_count = (unsigned)count;
	return 0;
}

/* Parse "4k-64k" or, as in old job files, "4k:64k". */
int bench_parse_range(const char *text, struct bench_lengths *lengths)
{
	char least[32];
	const char *most = cut(text, "-:", least, sizeof(least));
	int result;

	if (!most || most == text + 1)
		return spw_error(-EINVAL, "write for example 4k-64k");
	*lengths = (struct bench_lengths){0};
	result = bench_parse_size(least, &lengths->min);
	return result == 0 ? bench_parse_size(most, &lengths->max) : result;
}

int bench_parse_real(const char *text, double *value)
{
	char *end;

	*value = strtod(text, &end);
	if (end == text || *end != '\0' || !isfinite(*value))
		return spw_error(-EINVAL, "'%s' is not a number", text);
	return 0;
}

/* Parse a list of CPUs: "0-3,5". */
int bench_parse_cpus(const char *text, cpu_set_t *cpus)
{
	CPU_ZERO(cpus);
	while (text) {
		char part[32], first[32];
		const char *last;
		uint64_t from, to;
		int result;

		text = cut(text, ",:", part, sizeof(part));
		last = cut(part, "-", first, sizeof(first));
		result = bench_parse_count(first, &from);
		to = from;
		if (result == 0 && last)
			result = bench_parse_count(last, &to);
		if (result != 0)
			return result;
		if (to < from || to >= CPU_SETSIZE)
			return spw_error(-EINVAL, "'%s' names no CPUs", part);
		for (uint64_t cpu = from; cpu <= to; cpu++)
			CPU_SET(cpu, cpus);
	}
	return 0;
}

/* ---- Patterns -------------------------------------------------------------------------------- */

/* Parse a hexadecimal number: bytes from left to right; an odd digit comes first. */
static int parse_hex(const char **text, struct bench_pattern *pattern)
{
	size_t digits = strspn(*text + 2, "0123456789abcdefABCDEF"), bytes = (digits + 1) / 2;

	if (digits == 0 || pattern->len + bytes > BENCH_PATTERN_BYTES)
		return spw_error(-EINVAL, "'%s' is not a number of 1 to %d bytes", *text,
				 BENCH_PATTERN_BYTES);
	for (size_t i = 0; i < digits; i++) {
		char digit[2] = {(*text)[2 + i], '\0'};
		size_t place = pattern->len + (i + digits % 2) / 2;

		pattern->bytes[place] = (unsigned char)((unsigned)pattern->bytes[place] << 4 |
							strtoul(digit, NULL, 16));
	}
	pattern->len += (unsigned)bytes;
	*text += 2 + digits;
	return 0;
}

static int parse_word(const char **text, struct bench_pattern *pattern)
{
	const char *end = strchr(*text + 1, '"');
	size_t len = end ? (size_t)(end - *text - 1) : 0;

	if (len == 0 || pattern->len + len > BENCH_PATTERN_BYTES)
		return spw_error(-EINVAL, "'%s' is not a text of 1 to %d bytes in quotes", *text,
				 BENCH_PATTERN_BYTES);
	memcpy(pattern->bytes + pattern->len, *text + 1, len);
	pattern->len += (unsigned)len;
	*text = end + 1;
	return 0;
}

/* Parse a decimal number: its bytes in this machine's order. */
static int parse_decimal(const char **text, struct bench_pattern *pattern)
{
	char digits[32];
	const char *start = *text;
	uint64_t value;
	unsigned bytes = 0;
	int result;

	(void)snprintf(digits, sizeof(digits), "%.*s", (int)strspn(start, "0123456789"), start);
	result = bench_parse_count(digits[0] == '\0' ? start : digits, &value);
	if (result != 0)
		return result;
	*text += strlen(digits);
	do {
		if (pattern->len + bytes == BENCH_PATTERN_BYTES)
			return spw_error(-EINVAL, "longer than %d bytes", BENCH_PATTERN_BYTES);
		pattern->bytes[pattern->len + bytes++] = (unsigned char)value;
		value >>= 8;
	} while (value != 0);
	pattern->len += bytes;
	return 0;
}

int bench_parse_pattern(const char *text, struct bench_pattern *pattern)
{
	int result = 0;

	*pattern = (struct bench_pattern){.len = 0};
	do {
		if (text[0] == '"')
			result = parse_word(&text, pattern);
		else if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
			result = parse_hex(&text, pattern);
		else
			result = parse_decimal(&text, pattern);
	} while (result == 0 && *text != '\0');
	return result;
}
