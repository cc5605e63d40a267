/* SPDX-License-Identifier: MIT */
/* tests/unit/test_tool_bench.c - the bench: offsets, verified blocks, histograms, names */

#include "tests/case.h"

#include <errno.h>
#include <time.h>

#include "tools/bench/check.c"
#include "tools/bench/content.c"
#include "tools/bench/devices.c"
#include "tools/bench/fio_options.c"
#include "tools/bench/job.c"
#include "tools/bench/lists.c"
#include "tools/bench/offsets.c"
#include "tools/bench/options.c"
#include "tools/bench/region.c"
#include "tools/bench/spread.c"
#include "tools/bench/steady.c"
#include "tools/bench/values.c"
#include "tools/bench/verify.c"
#include "tools/ui/nearest.c"

/* ---- Offsets --------------------------------------------------------------------------------- */

CASE(a_shuffle_visits_every_slot_once)
{
	static const uint64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 65537};

	for (size_t i = 0; i < SPW_ARRAY_LEN(sizes); i++) {
		unsigned char *seen = calloc(1, sizes[i]);
		struct bench_shuffle shuffle;
		uint64_t moved = 0;

		assert_non_null(seen);
		bench_shuffle_init(&shuffle, sizes[i], 1234567 + i);
		for (uint64_t index = 0; index < sizes[i]; index++) {
			uint64_t slot = bench_shuffle_at(&shuffle, index);

			assert_true(slot < sizes[i]);
			assert_int_equal(seen[slot], 0);
			seen[slot] = 1;
			moved += slot != index;
		}
		/* Not a proof of randomness, but sequential order would be a mistake. */
		assert_true(sizes[i] < 64 || moved > sizes[i] / 2);
		free(seen);
	}
}

static struct bench_region region_of(const char *rw, const char *range, uint64_t file_bytes)
{
	struct spw_geometry geometry = {.size_bytes = file_bytes, .logical_block_bytes = 512};
	struct bench_region region;
	struct bench_job job;

	bench_job_init(&job);
	assert_int_equal(bench_option_set(&job, "rw", rw), 0);
	assert_int_equal(bench_option_set(&job, strchr(range, '-') ? "bsrange" : "bs", range), 0);
	assert_int_equal(bench_region_place(&region, &job, "file", &geometry, 1, 99), 0);
	return region;
}

CASE(a_random_pass_covers_every_block_once)
{
	struct bench_region region = region_of("randwrite", "4k", 1000 * 4096 + 512);
	unsigned char seen[1000];

	for (uint64_t pass = 0; pass < 3; pass++) {
		uint64_t offset;
		uint32_t len;
		unsigned count = 0;

		memset(seen, 0, sizeof(seen));
		bench_region_start_pass(&region, pass);
		while (bench_region_next(&region, 1, &offset, &len)) {
			assert_int_equal(len, 4096);
			assert_int_equal(offset % 4096, 0);
			assert_int_equal(seen[offset / 4096]++, 0);
			count++;
		}
		assert_int_equal(count, 1000);
	}
}

CASE(a_pass_can_be_gone_over_again)
{
	static const char *const kinds[][2] = {
		{"randwrite", "4k-64k"}, {"write", "4k-64k"}, {"write", "64k"}, {"randread", "8k"}};

	for (size_t i = 0; i < SPW_ARRAY_LEN(kinds); i++) {
		struct bench_region first = region_of(kinds[i][0], kinds[i][1], 4 << 20), second;
		uint64_t offsets[2];
		uint32_t lens[2];

		bench_region_start_pass(&first, 5);
		assert_int_equal(bench_region_copy(&second, &first), 0);
		while (bench_region_next(&first, 1, &offsets[0], &lens[0])) {
			assert_true(bench_region_next(&second, 1, &offsets[1], &lens[1]));
			assert_int_equal(offsets[0], offsets[1]);
			assert_int_equal(lens[0], lens[1]);
			assert_true(lens[0] >= 4096 && lens[0] % 4096 == 0);
			assert_true(offsets[0] + lens[0] <= 4 << 20);
		}
		assert_false(bench_region_next(&second, 1, &offsets[1], &lens[1]));
		bench_region_remove(&first);
		bench_region_remove(&second);
	}
}

/* All of a job's options, then its region of a file of @file_bytes. */
static struct bench_region region_with(uint64_t file_bytes, const char *const given[][2])
{
	struct spw_geometry geometry = {.size_bytes = file_bytes, .logical_block_bytes = 512};
	struct bench_region region;
	struct bench_job job;

	bench_job_init(&job);
	for (; (*given)[0]; given++)
		assert_int_equal(bench_option_set(&job, (*given)[0], (*given)[1]), 0);
	assert_int_equal(bench_region_place(&region, &job, "file", &geometry, 1, 99), 0);
	return region;
}

/* Whatever the sizes are: all bytes, each of them once. */
CASE(a_random_pass_of_several_sizes_moves_every_byte_once)
{
	static const char *const kinds[][5][2] = {
		{{"rw", "randwrite"}, {"bsrange", "4k-64k"}},
		{{"rw", "randwrite"}, {"bssplit", "512/10:4k/60:64k/30"}},
		{{"rw", "randrw"}, {"bs", "64k,4k"}},
		{{"rw", "randwrite"}, {"bs", "4k"}, {"random_distribution", "zoned:50/5:50/95"}},
		{{"rw", "randread"}, {"bsrange", "1k-8k"}, {"percentage_random", "100"}},
	};

	for (size_t i = 0; i < SPW_ARRAY_LEN(kinds); i++) {
		struct bench_region region = region_with(1 << 20, kinds[i]);
		static unsigned char seen[1 << 20];
		uint64_t offset, sum = 0;
		uint32_t len, count = 0;

		memset(seen, 0, sizeof(seen));
		while (bench_region_next(&region, count++ % 2, &offset, &len)) {
			for (uint32_t at = 0; at < len; at++)
				assert_int_equal(seen[offset + at]++, 0);
			sum += len;
		}
		assert_int_equal(sum, 1 << 20);
		bench_region_remove(&region);
	}
}

CASE(shares_are_drawn_as_often_as_they_say)
{
	struct bench_region region = region_with(
		1 << 30, (const char *const[][2]){{"rw", "randread"},
						  {"norandommap", "1"},
						  {"bssplit", "4k/25:64k/75"},
						  {"random_distribution", "zoned:60/10:40/90"},
						  {NULL}});
	unsigned small = 0, hot = 0;
	uint64_t offset;
	uint32_t len;

	for (unsigned i = 0; i < 10000; i++) {
		assert_true(bench_region_next(&region, 0, &offset, &len));
		small += len == 4096;
		hot += offset < (1 << 30) / 10;
	}
	assert_in_range(small, 2300, 2700);
	assert_in_range(hot, 5800, 6200);
}

CASE(distributions_stay_in_the_file_and_have_hot_blocks)
{
	static const char *const kinds[] = {"zipf:1.2", "pareto:0.2", "normal:5", "zipf:0.5"};

	for (size_t i = 0; i < SPW_ARRAY_LEN(kinds); i++) {
		static unsigned touched[1024];
		struct bench_region region = region_with(
			4 << 20, (const char *const[][2]){{"rw", "randread"},
							  {"random_distribution", kinds[i]},
							  {NULL}});
		unsigned most = 0, all = 0;
		uint64_t offset;
		uint32_t len;

		memset(touched, 0, sizeof(touched));
		while (bench_region_next(&region, 0, &offset, &len)) {
			assert_true(offset + len <= 4 << 20);
			touched[offset / 4096]++;
			all++;
		}
		assert_int_equal(all, 1024);
		for (unsigned j = 0; j < 1024; j++)
			most = SPW_MAX(most, touched[j]);
		/* Of an even draw with repeats no block of 1024 has ten. */
		assert_true(i == 3 || i == 2 ? most < 40 : most >= 10);
	}
}

/* As many bytes of a range, then what is skipped, and from the start at the end of the file. */
CASE(strides_lie_in_zones)
{
	struct bench_region region =
		region_with(1 << 20, (const char *const[][2]){{"rw", "read"},
							      {"bs", "4k"},
							      {"size", "64k"},
							      {"zonemode", "strided"},
							      {"zonesize", "8k"},
							      {"zoneskip", "248k"},
							      {NULL}});
	uint64_t offset;
	uint32_t len;

	for (unsigned i = 0; i < 16; i++) {
		assert_true(bench_region_next(&region, 0, &offset, &len));
		assert_int_equal(offset, (uint64_t)(i / 2 % 4 * 256 + i % 2 * 4) << 10);
	}
	assert_false(bench_region_next(&region, 0, &offset, &len));
}

/* As fio (t/jobs/t0007): what would begin behind the end does not begin. */
CASE(a_positive_skip_ends_with_the_file)
{
	struct bench_region region = region_of("read:512k", "1m", 128 << 20);
	uint64_t offset;
	unsigned count = 0;
	uint32_t len;

	while (bench_region_next(&region, 0, &offset, &len))
		assert_int_equal(offset, (uint64_t)count++ * (1536 << 10));
	assert_int_equal(count, 85);
}

CASE(sequential_transfers_follow_one_another)
{
	struct bench_region region = region_of("rw", "64k", 1 << 20);
	uint64_t offset, next[2] = {0, 0};
	unsigned count = 0;
	uint32_t len;

	while (bench_region_next(&region, count % 3 == 0, &offset, &len)) {
		assert_int_equal(offset, next[count % 3 == 0]);
		next[count % 3 == 0] += len;
		count++;
	}
	assert_int_equal(count, 16);
}

CASE(a_negative_skip_goes_backwards)
{
	struct bench_region region = region_of("read:-2m", "1m", 8 << 20);
	static const unsigned expected[] = {0, 6, 5, 4, 3, 2, 1, 0};
	uint64_t offset;
	uint32_t len;

	for (size_t i = 0; i < SPW_ARRAY_LEN(expected); i++) {
		assert_true(bench_region_next(&region, 0, &offset, &len));
		assert_int_equal(offset, (uint64_t)expected[i] << 20);
	}
	assert_false(bench_region_next(&region, 0, &offset, &len));
}

CASE(what_does_not_fit_is_refused)
{
	struct spw_geometry geometry = {.size_bytes = 1 << 20, .logical_block_bytes = 4096};
	struct bench_region region;
	struct bench_job job;

	bench_job_init(&job);
	job.block_bytes_min = job.block_bytes_max = 512;
	assert_int_equal(bench_region_place(&region, &job, "f", &geometry, 1, 0), -EINVAL);
	job.block_bytes_min = job.block_bytes_max = 4096;
	job.offset_bytes = 512;
	assert_int_equal(bench_region_place(&region, &job, "f", &geometry, 1, 0), -EINVAL);
	job.offset_bytes = 1 << 20;
	assert_int_equal(bench_region_place(&region, &job, "f", &geometry, 1, 0), -ENOSPC);
	job.offset_bytes = 0;
	job.size_bytes = 4 << 20;
	assert_int_equal(bench_region_place(&region, &job, "f", &geometry, 2, 0), -ENOSPC);
	assert_int_equal(bench_region_place(&region, &job, "f", &geometry, 4, 0), 0);
	assert_int_equal(region.len_bytes, 1 << 20);
	job.size_bytes = 0;
	job.block_bytes_min = job.block_bytes_max = 2 << 20;
	assert_int_equal(bench_region_place(&region, &job, "f", &geometry, 1, 0), -ENOSPC);
}

CASE(rates_are_steady_by_their_slope_or_their_deviation)
{
	static const double level[] = {100, 104, 98, 101}, rising[] = {100, 110, 120, 130};
	static const struct {
		const char *limit;
		bool level, rising;
	} cases[] = {{"iops:5%", true, false},       {"iops:1%", false, false},
		     {"iops_slope:2%", true, false}, {"iops:20", true, true},
		     {"bw_slope:9", true, false},    {"bw_slope:11", true, true}};

	for (size_t i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		struct bench_job job;

		bench_job_init(&job);
		assert_int_equal(bench_option_set(&job, "ss", cases[i].limit), 0);
		assert_int_equal(bench_is_steady(&job, level, 4), cases[i].level);
		assert_int_equal(bench_is_steady(&job, rising, 4), cases[i].rising);
	}
}

/* ---- Verification ---------------------------------------------------------------------------- */

#define UNIT 4096

static char buf[2 * UNIT];

static const enum bench_verify kinds[] = {BENCH_VERIFY_XXH3, BENCH_VERIFY_CRC32C};

static struct bench_units units_of(enum bench_verify checksum)
{
	return (struct bench_units){.checksum = checksum, .unit_bytes = UNIT, .seed = 7};
}

/* The first @len bytes of what was written to @offset: 0, or -EBADMSG. */
static int check_at(const struct bench_units *units, size_t len, uint64_t offset,
		    uint64_t generation)
{
	return bench_verify_check(units, buf, len, offset, generation, "d");
}

CASE(every_flipped_bit_is_found)
{
	for (size_t kind = 0; kind < SPW_ARRAY_LEN(kinds); kind++) {
		struct bench_units units = units_of(kinds[kind]);

		bench_verify_fill(&units, buf, sizeof(buf), 8 * UNIT, 3);
		assert_int_equal(check_at(&units, sizeof(buf), 8 * UNIT, 3), 0);
		for (unsigned bit = 0; bit < sizeof(buf) * 8; bit++) {
			buf[bit / 8] = (char)(buf[bit / 8] ^ 1 << bit % 8);
			assert_int_equal(check_at(&units, sizeof(buf), 8 * UNIT, 3), -EBADMSG);
			buf[bit / 8] = (char)(buf[bit / 8] ^ 1 << bit % 8);
		}
		assert_int_equal(check_at(&units, sizeof(buf), 8 * UNIT, 3), 0);
	}
}

static void is_wrong(const struct bench_units *units, uint64_t offset, uint64_t generation,
		     const char *words)
{
	expect_refusal(-EBADMSG, words, check_at(units, units->unit_bytes, offset, generation));
}

CASE(misplaced_and_older_blocks_are_found)
{
	for (size_t kind = 0; kind < SPW_ARRAY_LEN(kinds); kind++) {
		struct bench_units units = units_of(kinds[kind]), seeded = units, shorter = units,
				   other = units_of(kinds[!kind]);

		seeded.seed = 8;
		shorter.unit_bytes = 512;
		bench_verify_fill(&units, buf, UNIT, UNIT, 3);
		assert_int_equal(check_at(&units, UNIT, UNIT, BENCH_GENERATION_ANY), 0);
		is_wrong(&units, 2 * UNIT, 3, "");
		is_wrong(&units, 0, 3, "holds the block that was written to byte 4096");
		is_wrong(&units, UNIT, 4, "last write to it was lost");
		is_wrong(&seeded, UNIT, 3, "");
		is_wrong(&shorter, UNIT, 3, "");
		is_wrong(&other, UNIT, 3, "another verify=");
		memset(buf, 0, UNIT);
		is_wrong(&units, UNIT, 3, "not written by a verify job");
	}
}

CASE(crc32c_is_castagnolis)
{
	unsigned char bytes[100];

	/* The check value of the catalogue, and two of RFC 3720. */
	assert_int_equal(bench_crc32c(0, "123456789", 9), 0xe3069283);
	memset(bytes, 0, 32);
	assert_int_equal(bench_crc32c(0, bytes, 32), 0x8a9136aa);
	memset(bytes, 0xff, 32);
	assert_int_equal(bench_crc32c(0, bytes, 32), 0x62a8ab43);
	for (unsigned i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)(i * 37);
	/* However it is cut, and whichever code computes it. */
	for (unsigned cut = 0; cut <= sizeof(bytes); cut++) {
		uint32_t first = bench_crc32c(0, bytes, cut);

		assert_int_equal(bench_crc32c(first, bytes + cut, sizeof(bytes) - cut),
				 bench_crc32c(0, bytes, sizeof(bytes)));
		assert_int_equal(first, ~crc32c_by_hand(~0u, bytes, cut));
	}
}

/* ---- Histograms ------------------------------------------------------------------------------ */

CASE(buckets_are_ordered_and_narrow)
{
	unsigned last = 0;

	for (uint64_t value = 0; value < 1 << 20; value++) {
		unsigned bucket = spw_histogram_bucket(value);
		uint64_t middle = spw_histogram_bucket_value(bucket);

		assert_true(bucket == last || bucket == last + 1);
		assert_true(value < 128 ? middle == value
					: llabs((long long)(middle - value)) <=
						  (long long)(value / 64));
		last = bucket;
	}
	assert_int_equal(spw_histogram_bucket(UINT64_MAX), SPW_HISTOGRAM_BUCKETS - 1);
	assert_int_equal(spw_histogram_bucket((UINT64_C(1) << 40) - 1), SPW_HISTOGRAM_BUCKETS - 1);
}

static int ascending(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

	return left < right ? -1 : left > right;
}

/* Against sorting all values: within one bucket. */
CASE(percentiles_agree_with_sorting)
{
	static const double percents[] = {1, 50, 90, 99, 99.9, 100};
	static struct spw_histogram parts[3], all;
	static uint64_t values[30000];
	struct bench_random random = {.state = 42};

	for (size_t i = 0; i < SPW_ARRAY_LEN(values); i++) {
		values[i] = bench_random_next(&random) >> (20 + bench_random_next(&random) % 40);
		spw_histogram_add(&parts[i % 3], values[i] % (UINT64_C(1) << 39));
		values[i] %= UINT64_C(1) << 39;
	}
	for (size_t i = 0; i < 3; i++)
		spw_histogram_merge(&all, &parts[i]);
	qsort(values, SPW_ARRAY_LEN(values), sizeof(values[0]), ascending);
	for (size_t i = 0; i < SPW_ARRAY_LEN(percents); i++) {
		size_t rank =
			(size_t)(percents[i] / 100 * (double)SPW_ARRAY_LEN(values) + 0.999999) - 1;

		assert_int_equal(spw_histogram_percentile(&all, percents[i]),
				 spw_histogram_bucket_value(spw_histogram_bucket(values[rank])));
	}
	assert_int_equal(all.summary.count, SPW_ARRAY_LEN(values));
	assert_int_equal(all.summary.min, values[0]);
	assert_int_equal(all.summary.max, values[SPW_ARRAY_LEN(values) - 1]);
}

CASE(summaries_of_nothing_and_of_one)
{
	struct spw_summary none = {0}, some = {0};
	static struct spw_histogram empty;

	assert_true(spw_summary_mean(&none) == 0 && spw_summary_deviation(&none) == 0);
	assert_int_equal(spw_histogram_percentile(&empty, 50), 0);
	spw_summary_add(&some, 5);
	assert_true(spw_summary_mean(&some) == 5 && spw_summary_deviation(&some) == 0);
	spw_summary_add(&some, 7);
	assert_true(spw_summary_mean(&some) == 6);
	assert_true(spw_summary_deviation(&some) > 1.4142 && spw_summary_deviation(&some) < 1.4143);
	spw_summary_merge(&none, &some);
	assert_int_equal(none.min, 5);
	assert_int_equal(none.max, 7);
}

/* ---- Names ----------------------------------------------------------------------------------- */

CASE(typing_mistakes_find_the_name)
{
	static const char *const names[] = {"probe", "format", "info", "check",
					    "wipe",  "bench",  NULL};

	assert_string_equal(tool_nearest("formta", names), "format");
	assert_string_equal(tool_nearest("prob", names), "probe");
	assert_string_equal(tool_nearest("chek", names), "check");
	assert_string_equal(tool_nearest("checkxy", names), "check");
	/* At most a third of the letters typed may be wrong. */
	assert_null(tool_nearest("checkxyz", names));
	assert_null(tool_nearest("nope", names));
	assert_null(tool_nearest("in", names));
	assert_null(tool_nearest("quicksilver", names));
	assert_null(tool_nearest("zz", (const char *const[]){NULL}));
}

CASE(one_slip_is_a_misspelling)
{
	assert_true(tool_is_misspelt("wpie", "wipe"));
	assert_true(tool_is_misspelt("wip", "wipe"));
	assert_true(tool_is_misspelt("wipee", "wipe"));
	assert_true(tool_is_misspelt("wepe", "wipe"));
	/* Another word. */
	assert_false(tool_is_misspelt("nope", "wipe"));
	assert_false(tool_is_misspelt("pipe", "wipe"));
	assert_false(tool_is_misspelt("find", "bind"));
	assert_false(tool_is_misspelt("for", "format"));
	assert_false(tool_is_misspelt("wipe", "wipe"));
	assert_false(tool_is_misspelt("", "wipe"));
}

/* ---- File names ------------------------------------------------------------------------------ */

CASE(a_name_by_pci_address_keeps_its_colons)
{
	static const struct {
		const char *filename, *paths[4];
	} cases[] = {
		{"/dev/a:b\\:c::d", {"/dev/a", "b:c", "d"}},
		{"pci:0000:3d:00.0/1", {"pci:0000:3d:00.0/1"}},
		{"pci:0000:3d:00.0/1:pci:3E:00.1/12:a",
		 {"pci:0000:3d:00.0/1", "pci:3E:00.1/12", "a"}},
		{"a:pci:3d:00.0:pci\\:0000\\:3f\\:00.0/1",
		 {"a", "pci:3d:00.0", "pci:0000:3f:00.0/1"}},
		{"pci:b:c", {"pci", "b", "c"}},
		{"xpci:3d:00.0/1", {"xpci", "3d", "00.0/1"}},
	};

	for (size_t i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		static struct bench_worker worker;
		unsigned wanted = 0;

		worker.devices_count = 0;
		assert_int_equal(bench_split_filename(cases[i].filename, &worker), 0);

		while (wanted < 4 && cases[i].paths[wanted])
			wanted++;
		assert_int_equal(worker.devices_count, wanted);
		for (unsigned j = 0; j < wanted; j++) {
			assert_string_equal(worker.paths[j], cases[i].paths[j]);
			free(worker.paths[j]);
		}
	}
}

RUN_CASES(NULL, NULL)
