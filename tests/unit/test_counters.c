/* SPDX-License-Identifier: MIT */
/* tests/unit/test_counters.c - the tables of counters describe their structs, to the last byte */
#include <errno.h>
#include <string.h>

#include "tests/case.h"

#include <spillway/counters.h>

static const size_t sizes[] = {
	[SPW_COUNTED_CACHE] = sizeof(struct spw_cache_stats),
	[SPW_COUNTED_STORE] = sizeof(struct spw_store_stats),
	[SPW_COUNTED_STATE] = sizeof(struct spw_state_stats),
};

/* Whether @name has @word between underscores. */
static bool has_word(const char *name, const char *word)
{
	size_t len = strlen(word);

	for (const char *at = strstr(name, word); at; at = strstr(at + 1, word))
		if ((at == name || at[-1] == '_') && (at[len] == '\0' || at[len] == '_'))
			return true;
	return false;
}

static void check_row(const struct spw_counter *row)
{
	size_t help_len = strlen(row->help);
	bool of_bytes = row->unit == SPW_COUNTER_BYTES ||
			row->unit == SPW_COUNTER_BYTES_PER_SECOND ||
			row->unit == SPW_COUNTER_BYTES_PER_DAY;

	if (help_len == 0 || row->help[help_len - 1] != '.' || strpbrk(row->help, "\"\\\n|"))
		fail_msg("%s: the help is a sentence without marks of JSON, OpenMetrics or tables",
			 row->name);
	if (has_word(row->name, "bytes") != of_bytes ||
	    has_word(row->name, "ns") != (row->unit == SPW_COUNTER_NS) ||
	    has_word(row->name, "second") != (row->unit == SPW_COUNTER_BYTES_PER_SECOND) ||
	    has_word(row->name, "percent") != (row->unit == SPW_COUNTER_PERCENT))
		fail_msg("%s: the name says another unit", row->name);
	if (row->kind == SPW_COUNTER_PEAK && !has_word(row->name, "max"))
		fail_msg("%s: a peak ends with _max", row->name);
}

CASE(test_tables_describe_their_structs)
{
	for (unsigned table = 0; table < sizeof(sizes) / sizeof(sizes[0]); table++) {
		struct spw_counter row;
		size_t end = sizeof(size_t);
		unsigned count = 0;

		while (spw_counter_get(table, count, &row, sizeof(row)) == 0) {
			assert_int_equal(row.size, sizeof(row));
			assert_true(row.len_bytes == 4 || row.len_bytes == 8);
			/* The next place that is aligned. */
			assert_int_equal(row.offset_bytes,
					 (end + row.len_bytes - 1) / row.len_bytes * row.len_bytes);
			end = row.offset_bytes + row.len_bytes;
			check_row(&row);
			count++;
		}
		assert_true(count > 20);
		assert_int_equal((end + 7) / 8 * 8, sizes[table]);
	}
}

CASE(test_what_there_is_not)
{
	struct spw_counter row = {.len_bytes = 77};

	assert_int_equal(spw_counter_get(SPW_COUNTED_CACHE, 10000, &row, sizeof(row)), -ENOENT);
	assert_int_equal(spw_counter_get((enum spw_counted)9, 0, &row, sizeof(row)), -EINVAL);
	/* A program that was built when there was less to say. */
	assert_int_equal(
		spw_counter_get(SPW_COUNTED_CACHE, 0, &row, offsetof(struct spw_counter, help)), 0);
	assert_string_equal(row.name, "steps");
	assert_string_equal(row.group, "steps");
	assert_int_equal(row.len_bytes, 77);
}

RUN_CASES(NULL, NULL)
