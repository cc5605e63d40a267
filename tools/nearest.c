/* SPDX-License-Identifier: MIT */
/* tools/nearest.c - what somebody who mistyped a name most likely meant */
#include "tools/tool.h"

#include <string.h>

#define NAME_CHARS_MAX 48

static size_t smallest(size_t a, size_t b, size_t c)
{
	size_t least = a < b ? a : b;

	return least < c ? least : c;
}

/* Levenshtein's distance if it is below @limit, by one row of the table at a time. Return: @limit or more: it is not. */
static size_t edit_distance(const char *from, const char *to, size_t limit)
{
	size_t row[NAME_CHARS_MAX + 1];
	size_t from_len = strlen(from), to_len = strlen(to);

	/* It is never less than the difference of the lengths. */
	if (from_len > NAME_CHARS_MAX || to_len > NAME_CHARS_MAX || from_len >= to_len + limit ||
	    to_len >= from_len + limit)
		return limit;
	for (size_t i = 0; i <= to_len; i++)
		row[i] = i;
	for (size_t i = 1; i <= from_len; i++) {
		size_t diagonal = row[0];

		row[0] = i;
		for (size_t j = 1; j <= to_len; j++) {
			size_t above = row[j];

			row[j] = smallest(above + 1, row[j - 1] + 1, diagonal + (from[i - 1] != to[j - 1]));
			diagonal = above;
		}
	}
	return row[to_len];
}

const char *tool_nearest(const char *typed, const char *const names[])
{
	size_t best_distance = strlen(typed) / 2 < 3 ? 3 : strlen(typed) / 2;
	const char *best = NULL;

	for (size_t i = 0; names[i]; i++) {
		size_t distance = edit_distance(typed, names[i], best_distance);

		if (strlen(typed) >= 3 && strncmp(names[i], typed, strlen(typed)) == 0)
			return names[i];
		if (distance < best_distance) {
			best = names[i];
			best_distance = distance;
		}
	}
	return best;
}
