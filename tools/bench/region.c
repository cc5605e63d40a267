/* SPDX-License-Identifier: MIT */
/*
 * tools/bench/region.c - choose the next transfer of a file, in fio's order
 *
 * Blocks of one size that are used once are shuffled by a key, without memory. If sizes differ, a
 * bitmap has the used units: as in fio, a transfer begins at the next free unit after a random one,
 * and ends after its drawn size or at the next used unit. So the numbers of transfers of each size
 * are as in fio.
 */
#include "tools/bench/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

#define WORD_BITS 64u

/* ---- Placing --------------------------------------------------------------------------------- */

static int check_multiple(const struct bench_job *job, const char *path, const char *option,
			  uint64_t value, uint32_t block)
{
	if (value % block == 0)
		return 0;
	return spw_error(-EINVAL, "job %s: %s=%ju is not a multiple of the %u-byte blocks of %s",
			 job->name, option, (uintmax_t)value, block, path);
}

/* Limits zones, so that steps over them do not overflow 64 bits. */
#define ZONE_BYTES_MAX (UINT64_C(1) << 61)

static int check_zones(const struct bench_job *job, const char *path, uint32_t block)
{
	int result = check_multiple(job, path, "zonerange", job->zone_range_bytes, block);

	if (result == 0)
		result = check_multiple(job, path, "zoneskip", job->zone_skip_bytes, block);
	if (result == 0 &&
	    (job->zone_bytes > ZONE_BYTES_MAX || job->zone_range_bytes > ZONE_BYTES_MAX ||
	     job->zone_skip_bytes > ZONE_BYTES_MAX))
		return spw_error(-ERANGE, "job %s: no zone is so large", job->name);
	return result;
}

static int check_blocks(const struct bench_region *region, const struct bench_job *job,
			const char *path, uint32_t block)
{
	int result = check_multiple(job, path, "offset", job->offset_bytes, block);

	if (result == 0)
		result = check_zones(job, path, block);

	for (unsigned i = 0; i < BENCH_DIRECTIONS && result == 0; i++) {
		const struct bench_lengths *lengths = &region->lengths[i];

		if (!(i == BENCH_DIR_READ ? bench_rw_reads : bench_rw_writes)(job->rw))
			continue;
		result = check_multiple(job, path, "bs", lengths->min, block);
		if (result == 0)
			result = check_multiple(job, path, "bs", lengths->max, block);
		for (unsigned j = 0; j < lengths->count && result == 0; j++)
			result = check_multiple(job, path, "bssplit", lengths->shares[j].value,
						block);
		if (result == 0)
			result = check_multiple(job, path, "blockalign", region->align_bytes[i],
						block);
	}
	if (result == 0 && job->skip_bytes % (int64_t)block != 0)
		return spw_error(
			-EINVAL, "job %s: rw=%s:%jd does not skip whole %u-byte blocks of %s",
			job->name, bench_rw_name(job->rw), (intmax_t)job->skip_bytes, block, path);
	return result;
}

/* Compute how many bytes of a file a job uses. */
static int use_of(const struct bench_job *job, const char *path, uint64_t file_bytes,
		  unsigned files, uint64_t unit, uint64_t *used)
{
	uint64_t have = file_bytes > job->offset_bytes ? file_bytes - job->offset_bytes : 0;
	uint64_t len = have;

	if (job->file_bytes > 0)
		len = job->file_bytes > job->offset_bytes ? job->file_bytes - job->offset_bytes : 0;
	else if (job->size_bytes > 0)
		len = job->size_bytes / files;
	if (job->size_percent > 0)
		len = SPW_MIN(len, bench_percent_of(len + job->offset_bytes, job->size_percent));
	len = spw_round_down(len, unit);
	if (len > have)
		return spw_error(-ENOSPC,
				 "job %s: %s has %ju bytes from offset %ju on, but size asks for "
				 "%ju of it: give a smaller --size, or a larger file or device",
				 job->name, path, (uintmax_t)have, (uintmax_t)job->offset_bytes,
				 (uintmax_t)len);
	*used = len;
	return 0;
}

static uint64_t units_in(const struct bench_region *region)
{
	return region->len_bytes / region->unit_bytes;
}

/* The number of offsets at which the smallest transfer of a direction fits. */
static uint64_t blocks_of(const struct bench_region *region, unsigned direction)
{
	uint64_t align = region->align_bytes[direction], min = region->lengths[direction].min;
	uint64_t bytes = region->len_bytes - (min > align ? min - align : 0);

	return bytes / align;
}

static int make_map(struct bench_region *region)
{
	uint64_t words = (units_in(region) + WORD_BITS - 1) / WORD_BITS;

	region->used = calloc(words, sizeof(*region->used));
	return region->used ? 0
			    : spw_error(-ENOMEM,
					"no memory for a map of %ju blocks: norandommap needs none",
					(uintmax_t)units_in(region));
}

static void aim_spreads(struct bench_region *region)
{
	for (unsigned i = 0; i < BENCH_DIRECTIONS; i++)
		region->spread[i].zones = region->zones[i];
}

static bool is_one_size(const struct bench_region *region)
{
	const struct bench_lengths *reads = &region->lengths[0], *writes = &region->lengths[1];

	return reads->min == reads->max && writes->min == writes->max &&
	       reads->min == writes->min && region->align_bytes[0] == reads->min &&
	       region->align_bytes[1] == reads->min && region->random_percent[0] == 100 &&
	       region->random_percent[1] == 100;
}

/* Set up how the region's random transfers are chosen. */
static int choose_random(struct bench_region *region, const struct bench_job *job)
{
	/* A distribution repeats blocks; of these only zones keep a map of used units. */
	bool repeats = job->norandommap ||
		       (job->spread != BENCH_SPREAD_EVEN && job->spread < BENCH_SPREAD_ZONES);

	memcpy(region->zones, job->zones, sizeof(region->zones));
	for (unsigned i = 0; i < BENCH_DIRECTIONS; i++) {
		uint64_t blocks = blocks_of(region, i);

		if (blocks == 0)
			return spw_error(-ENOSPC, "job %s: blockalign leaves no block", job->name);
		bench_spread_init(&region->spread[i], job, i, blocks, region->seed);
		region->spread[i].align_bytes = region->align_bytes[i];
	}
	aim_spreads(region);
	if (repeats)
		return 0;
	region->shuffled = job->spread == BENCH_SPREAD_EVEN && is_one_size(region);
	return region->shuffled ? 0 : make_map(region);
}

int bench_region_place(struct bench_region *region, const struct bench_job *job, const char *path,
		       const struct spw_geometry *geometry, unsigned files, uint64_t seed)
{
	uint64_t longest = 0;
	int result;

	*region = (struct bench_region){.start_bytes = job->offset_bytes,
					.file_bytes = geometry->size_bytes,
					.unit_bytes = UINT64_MAX,
					.seed = seed,
					.skip_bytes = job->skip_bytes,
					.random = bench_rw_is_random(job->rw),
					.strided = job->strided,
					.zone_bytes = job->zone_bytes,
					.zone_range_bytes = job->zone_range_bytes > 0
								    ? job->zone_range_bytes
								    : job->zone_bytes,
					.zone_skip_bytes = job->zone_skip_bytes};
	for (unsigned i = 0; i < BENCH_DIRECTIONS; i++) {
		bool other = !(i == BENCH_DIR_READ ? bench_rw_reads : bench_rw_writes)(job->rw);
		struct bench_lengths lengths = bench_job_lengths(job, other ? !i : i);

		region->lengths[i] = lengths;
		region->align_bytes[i] = job->align_bytes[other ? !i : i];
		/* Without repetition blocks are adjacent. */
		if (region->align_bytes[i] == 0 ||
		    (!job->norandommap && region->align_bytes[i] < lengths.min))
			region->align_bytes[i] = lengths.min;
		region->random_percent[i] = job->random_percent[other ? !i : i];
		region->unit_bytes = SPW_MIN(region->unit_bytes, lengths.min);
		longest = SPW_MAX(longest, lengths.max);
	}
	result = check_blocks(region, job, path, geometry->logical_block_bytes);
	if (result == 0)
		result = use_of(job, path, geometry->size_bytes, files, region->unit_bytes,
				&region->len_bytes);
	if (result == 0 && region->len_bytes < longest)
		result = spw_error(
			-ENOSPC,
			"job %s: %s is too short: %ju bytes to use, less than one block of %ju",
			job->name, path, (uintmax_t)region->len_bytes, (uintmax_t)longest);
	if (result == 0 && region->random)
		result = choose_random(region, job);
	if (result == 0)
		bench_region_start_pass(region, 0);
	return result;
}

int bench_region_copy(struct bench_region *region, const struct bench_region *from)
{
	int result = 0;

	*region = *from;
	aim_spreads(region);
	region->used = NULL;
	if (from->used)
		result = make_map(region);
	if (result == 0)
		bench_region_start_pass(region, from->pass);
	return result;
}

void bench_region_remove(struct bench_region *region)
{
	free(region->used);
	region->used = NULL;
}

void bench_region_start_pass(struct bench_region *region, uint64_t pass)
{
	region->pass = pass;
	region->index = 0;
	region->issued_bytes = region->zone_issued_bytes = 0;
	region->base_bytes = region->start_bytes;
	region->last_bytes[0] = region->last_bytes[1] = region->start_bytes;
	region->draw.state = bench_mix(region->seed, pass);
	if (region->used)
		memset(region->used, 0,
		       (units_in(region) + WORD_BITS - 1) / WORD_BITS * sizeof(*region->used));
	bench_shuffle_init(&region->shuffle, units_in(region), bench_mix(region->seed, pass));
}

/* ---- Lengths --------------------------------------------------------------------------------- */

/* The drawn size of a list, or the next of the list that fits. Return: 0 if none fits. */
static uint64_t draw_share(const struct bench_lengths *lengths, uint64_t draw, uint64_t room)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < lengths->count; i++) {
		sum += lengths->shares[i].percent;
		if (lengths->shares[i].percent > 0 && draw < sum &&
		    lengths->shares[i].value <= room)
			return lengths->shares[i].value;
	}
	return 0;
}

/* Draw a size that fits into @room. Return: 0 if none fits. */
static uint64_t draw_len(struct bench_region *region, unsigned direction, uint64_t room)
{
	const struct bench_lengths *lengths = &region->lengths[direction];
	uint64_t units = lengths->max / lengths->min, len = lengths->min;

	if (room < lengths->min)
		return 0;
	if (lengths->min == lengths->max)
		return len;
	do {
		uint64_t draw = bench_random_next(&region->draw);

		len = lengths->count > 0 ? draw_share(lengths, draw % 100, room)
					 : (1 + draw % units) * lengths->min;
	} while (len == 0 || len > room);
	return len;
}

/* ---- Places ---------------------------------------------------------------------------------- */

static bool is_used(const struct bench_region *region, uint64_t unit)
{
	return region->used[unit / WORD_BITS] >> unit % WORD_BITS & 1;
}

/* Find a free unit from @unit on, wrapping at the end. Return: UINT64_MAX if there is none. */
static uint64_t next_free(const struct bench_region *region, uint64_t unit)
{
	uint64_t units = units_in(region), words = (units + WORD_BITS - 1) / WORD_BITS;
	uint64_t word = unit / WORD_BITS, before = (UINT64_C(1) << unit % WORD_BITS) - 1;

	for (uint64_t i = 0; i <= words; i++, word = word + 1 == words ? 0 : word + 1) {
		uint64_t free_bits = ~(region->used[word] | (i == 0 ? before : 0));
		uint64_t found;

		if (free_bits == 0)
			continue;
		found = word * WORD_BITS + (uint64_t)__builtin_ctzll(free_bits);
		if (found < units)
			return found;
	}
	return UINT64_MAX;
}

/* Mark up to @count units from @unit to the first used one. Return: their number. */
static uint64_t mark(struct bench_region *region, uint64_t unit, uint64_t count)
{
	uint64_t marked = 0, units = units_in(region);

	for (; marked < count && unit < units && !is_used(region, unit); marked++, unit++)
		region->used[unit / WORD_BITS] |= UINT64_C(1) << unit % WORD_BITS;
	return marked;
}

/* Draw a free place, aligned if possible. */
static bool draw_place(struct bench_region *region, unsigned direction, uint64_t *place)
{
	uint64_t align = region->align_bytes[direction], unit = region->unit_bytes, found;

	*place = bench_spread_next(&region->spread[direction], &region->draw) * align;
	if (!region->used)
		return true;
	found = next_free(region, *place / unit);
	if (found == UINT64_MAX)
		return false;
	*place = found * unit;
	return true;
}

static bool next_random(struct bench_region *region, unsigned direction, uint64_t *place,
			uint64_t *len_bytes)
{
	uint64_t len, room, unit = region->unit_bytes;

	if (region->shuffled) {
		if (region->index >= region->shuffle.slots)
			return false;
		*len_bytes = unit;
		*place = bench_shuffle_at(&region->shuffle, region->index) * unit;
		return true;
	}
	if (!draw_place(region, direction, place))
		return false;
	/* With a map, a size that does not fit is cut. */
	room = region->len_bytes - *place;
	if (region->used)
		room = SPW_MAX(room, region->lengths[direction].min);
	len = draw_len(region, direction, room);
	if (len > 0 && region->used) {
		uint64_t marked = unit * mark(region, *place / unit, (len + unit - 1) / unit);

		len = SPW_MIN(len, marked);
	}
	*len_bytes = len;
	return len > 0;
}

/* zonemode=strided: go to the next zone after zone_bytes; until then wrap in the zone's range. */
static void stride(struct bench_region *region, unsigned direction)
{
	uint64_t *last = &region->last_bytes[direction];

	if (region->zone_issued_bytes >= region->zone_bytes) {
		region->zone_issued_bytes = 0;
		region->base_bytes += region->zone_range_bytes + region->zone_skip_bytes;
		if (region->base_bytes >= region->file_bytes)
			region->base_bytes = region->start_bytes;
		*last = region->base_bytes;
	}
	if (*last >= region->base_bytes + region->zone_range_bytes)
		*last = region->base_bytes;
}

/*
 * Get the next sequential transfer: from the end of the direction's last one, plus the skip of
 * rw=...:N. Forward skips wrap at the end of the file, backward skips at its start.
 */
static bool next_sequential(struct bench_region *region, unsigned direction, uint64_t *place,
			    uint64_t *len_bytes)
{
	uint64_t start, file = region->file_bytes, at, room;
	uint64_t back_to = SPW_MIN(file, region->len_bytes), skip = (uint64_t)region->skip_bytes;
	uint64_t last;

	if (region->strided)
		stride(region, direction);
	start = region->base_bytes;
	last = region->last_bytes[direction];
	if (last == start && start > 0 && region->skip_bytes < 0)
		last = back_to;
	at = last - start;
	if (at != 0 && skip != 0) {
		at += skip;
		/* An offset before the start has wrapped to a large number, too. */
		if (at >= file)
			at = region->skip_bytes > 0 ? start : back_to + skip;
	}
	if (last >= file || at >= region->len_bytes)
		return false;
	/* Zones may cover the whole file, not only the region. */
	room = region->len_bytes - at;
	if (region->strided && room > file - SPW_MIN(file, start + at))
		room = file - SPW_MIN(file, start + at);
	*place = start - region->start_bytes + at;
	*len_bytes = draw_len(region, direction, room);
	return *len_bytes > 0;
}

bool bench_region_next(struct bench_region *region, unsigned direction, uint64_t *offset_bytes,
		       uint32_t *len_bytes)
{
	uint64_t place, len;
	bool random = region->random;

	if (region->issued_bytes >= region->len_bytes)
		return false;
	if (random && region->random_percent[direction] < 100)
		random = bench_random_next(&region->draw) % 100 < region->random_percent[direction];
	/* In a random job, go on at random if the sequential part has come to its end. */
	if (!(random ? next_random(region, direction, &place, &len)
		     : next_sequential(region, direction, &place, &len) ||
			       (region->random && next_random(region, direction, &place, &len))))
		return false;
	region->index++;
	region->issued_bytes += len;
	region->zone_issued_bytes += len;
	region->last_bytes[direction] = region->start_bytes + place + len;
	*offset_bytes = region->start_bytes + place;
	*len_bytes = (uint32_t)len;
	return true;
}
