/* SPDX-License-Identifier: MIT */
/* tools/bench/values.c - parse sizes, times and numbers in fio's syntax */
#include "tools/bench/bench.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "util/util.h"

/* Parse the digits at the start of @text. *@rest: set to what follows them */
static int parse_digits(const char *text, uint64_t *value, const char **rest)
{
	char *end;

	if (!isdigit((unsigned char)text[0]))
		return spw_error(-EINVAL, "'%s' is not a number", text);
	errno = 0;
	*value = strtoull(text, &end, 10);
	if (errno == ERANGE)
		return spw_error(-ERANGE, "%s is too large", text);
	*rest = end;
	return 0;
}

int bench_parse_count(const char *text, uint64_t *count)
{
	const char *rest;
	int result = parse_digits(text, count, &rest);

	if (result == 0 && *rest != '\0')
		return spw_error(-EINVAL, "'%s' is not a number", text);
	return result;
}

int bench_parse_size(const char *text, uint64_t *bytes)
{
	static const char letters[] = "kmgtp";
	const char *rest, *letter;
	unsigned shift = 0;
	int result = parse_digits(text, bytes, &rest);

	if (result != 0)
		return result;
	if (*rest != '\0') {
		letter = strchr(letters, tolower((unsigned char)*rest));
		/* fio reads "4k" and "4kb" as 4096, but "4kib" as 4000, unlike others. */
		if (letter && strcasecmp(rest + 1, "ib") == 0)
			return spw_error(-EINVAL,
					 "'%s' is ambiguous: fio reads KiB as 1000 bytes; write k, "
					 "m, g, t or p for powers of 1024",
					 text);
		if (letter && (rest[1] == '\0' || strcasecmp(rest + 1, "b") == 0))
			shift = 10 * (unsigned)(letter - letters + 1);
		else if (strcasecmp(rest, "b") != 0)
			return spw_error(-EINVAL,
					 "'%s' is not a size; write for example 4k, 1m or 2g",
					 text);
	}
	if (*bytes > UINT64_MAX >> shift)
		return spw_error(-ERANGE, "%s is too large", text);
	*bytes <<= shift;
	return 0;
}

int bench_parse_time(const char *text, uint64_t *ns)
{
	static const struct {
		const char *suffix;
		uint64_t ns;
	} units[] = {
		{"", 1000000000u},
		{"s", 1000000000u},
		{"ms", 1000000u},
		{"us", 1000u},
		{"m", 60u * UINT64_C(1000000000)},
		{"h", 3600u * UINT64_C(1000000000)},
		{"d", 86400u * UINT64_C(1000000000)},
	};
	const char *rest;
	int result = parse_digits(text, ns, &rest);

	if (result != 0)
		return result;
	for (size_t i = 0; i < SPW_ARRAY_LEN(units); i++) {
		if (strcasecmp(units[i].suffix, rest) != 0)
			continue;
		if (*ns > UINT64_MAX / units[i].ns)
			return spw_error(-ERANGE, "%s is too long", text);
		*ns *= units[i].ns;
		return 0;
	}
	return spw_error(-EINVAL, "'%s' is not a time; write for example 10, 10s, 500ms or 2m",
			 text);
}
