/* SPDX-License-Identifier: MIT */
/* util/counters.c - spw_counter_get(): tables that describe each public counter */
#include <errno.h>
#include <string.h>

#include <spillway/counters.h>

#include "util/util.h"

#define ROW(of, type, member, kind_of, unit_of, group_of, view_of, help_of) \
	{.name = #member,                                                   \
	 .group = #group_of,                                                \
	 .help = (help_of),                                                 \
	 .kind = SPW_COUNTER_##kind_of,                                     \
	 .unit = SPW_COUNTER_##unit_of,                                     \
	 .view = SPW_COUNTER_##view_of,                                     \
	 .offset_bytes = offsetof(of, member),                              \
	 .len_bytes = sizeof(type)},
#define CACHE_ROW(...) ROW(struct spw_cache_stats, __VA_ARGS__)
#define STORE_ROW(...) ROW(struct spw_store_stats, __VA_ARGS__)
#define STATE_ROW(...) ROW(struct spw_state_stats, __VA_ARGS__)

static const struct spw_counter of_cache[] = {SPW_CACHE_COUNTERS(CACHE_ROW)};
static const struct spw_counter of_store[] = {SPW_STORE_COUNTERS(STORE_ROW)};
static const struct spw_counter of_state[] = {SPW_STATE_COUNTERS(STATE_ROW)};

static const struct {
	const struct spw_counter *rows;
	unsigned count;
} tables[] = {
	[SPW_COUNTED_CACHE] = {of_cache, SPW_ARRAY_LEN(of_cache)},
	[SPW_COUNTED_STORE] = {of_store, SPW_ARRAY_LEN(of_store)},
	[SPW_COUNTED_STATE] = {of_state, SPW_ARRAY_LEN(of_state)},
};

int spw_counter_get(enum spw_counted counted, unsigned index, struct spw_counter *counter,
		    size_t size)
{
	struct spw_counter row;

	if ((unsigned)counted >= SPW_ARRAY_LEN(tables))
		return spw_error(-EINVAL, "there is no table %u of counters", (unsigned)counted);
	if (index >= tables[counted].count)
		return spw_error(-ENOENT, "there are %u counters, numbered from 0",
				 tables[counted].count);
	row = tables[counted].rows[index];
	row.size = SPW_MIN(size, sizeof(row));
	memcpy(counter, &row, row.size);
	return 0;
}
