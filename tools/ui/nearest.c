/* SPDX-License-Identifier: MIT */
/* tools/ui/nearest.c - find the name that a misspelled one most likely means */
#include "tools/ui/tool.h"

#include <string.h>

#define NAME_CHARS_MAX 48

static size_t smallest(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Optimal string alignment, with three rows of the table. Exchanged letters count as one edit. */
static size_t edit_distance(const char *from, const char *to)
{
	size_t rows[3][NAME_CHARS_MAX + 1];
	size_t *before = rows[0], *above = rows[1], *row = rows[2];
	size_t from_len = strlen(from), to_len = strlen(to);

	if (from_len > NAME_CHARS_MAX || to_len > NAME_CHARS_MAX)
		return SIZE_MAX;
	for (size_t j = 0; j <= to_len; j++)
		above[j] = before[j] = j;
	for (size_t i = 1; i <= from_len; i++) {
		size_t *free_row = before;

		row[0] = i;
		for (size_t j = 1; j <= to_len; j++) {
			row[j] = smallest(above[j - 1] + (from[i - 1] != to[j - 1]),
					  smallest(above[j], row[j - 1]) + 1);
			if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1])
				row[j] = smallest(row[j], before[j - 2] + 1);
		}
		before = above;
		above = row;
		row = free_row;
	}
	return above[to_len];
}

const char *tool_nearest(const char *typed, const char *const names[])
{
	size_t len = strlen(typed), best_distance = len / 3;
	const char *best = NULL;

	for (size_t i = 0; names[i]; i++) {
		size_t distance = edit_distance(typed, names[i]);

		if (len >= 3 && strncmp(names[i], typed, len) == 0)
			return names[i];
		if (distance < best_distance || (!best && distance == best_distance)) {
			best = names[i];
			best_distance = distance;
		}
	}
	return best;
}

bool tool_is_misspelt(const char *typed, const char *name)
{
	return typed[0] == name[0] && edit_distance(typed, name) == 1;
}
