/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_tool_bench.c - the parts of the bench: offsets, verified blocks, histograms,
 * names
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/bench/devices.c"
#include "tools/bench/offsets.c"
#include "tools/bench/options.c"
#include "tools/bench/values.c"
#include "tools/bench/backlog.c"
#include "tools/bench/crc32c.c"
#include "tools/bench/verify.c"
#include "tools/ui/nearest.c"

/* ---- Offsets --------------------------------------------------------------------------------- */

static void a_shuffle_visits_every_slot_once(void **state)
{
	static const uint64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 65537};

	(void)state;
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

static void a_random_pass_covers_every_block_once(void **state)
{
	struct bench_region region = region_of("randwrite", "4k", 1000 * 4096 + 512);
	unsigned char seen[1000];

	(void)state;
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

static void a_pass_can_be_gone_over_again(void **state)
{
	static const char *const kinds[][2] = {
		{"randwrite", "4k-64k"}, {"write", "4k-64k"}, {"write", "64k"}, {"randread", "8k"}};

	(void)state;
	for (size_t i = 0; i < SPW_ARRAY_LEN(kinds); i++) {
		struct bench_region first = region_of(kinds[i][0], kinds[i][1], 4 << 20),
				    second = first;
		uint64_t offsets[2];
		uint32_t lens[2];

		bench_region_start_pass(&first, 5);
		bench_region_start_pass(&second, 5);
		while (bench_region_next(&first, 1, &offsets[0], &lens[0])) {
			assert_true(bench_region_next(&second, 1, &offsets[1], &lens[1]));
			assert_int_equal(offsets[0], offsets[1]);
			assert_int_equal(lens[0], lens[1]);
			assert_true(lens[0] >= 4096 && lens[0] % 4096 == 0);
			assert_true(offsets[0] + lens[0] <= 4 << 20);
		}
		assert_false(bench_region_next(&second, 1, &offsets[1], &lens[1]));
	}
}

static void sequential_transfers_follow_one_another(void **state)
{
	struct bench_region region = region_of("rw", "64k", 1 << 20);
	uint64_t offset, next[2] = {0, 0};
	unsigned count = 0;
	uint32_t len;

	(void)state;
	while (bench_region_next(&region, count % 3 == 0, &offset, &len)) {
		assert_int_equal(offset, next[count % 3 == 0]);
		next[count % 3 == 0] += len;
		count++;
	}
	assert_int_equal(count, 16);
}

static void a_negative_skip_goes_backwards(void **state)
{
	struct bench_region region = region_of("read:-2m", "1m", 8 << 20);
	static const unsigned expected[] = {0, 7, 6, 5, 4, 3, 2, 1};
	uint64_t offset;
	uint32_t len;

	(void)state;
	for (size_t i = 0; i < SPW_ARRAY_LEN(expected); i++) {
		assert_true(bench_region_next(&region, 0, &offset, &len));
		assert_int_equal(offset, (uint64_t)expected[i] << 20);
	}
	assert_false(bench_region_next(&region, 0, &offset, &len));
}

static void what_does_not_fit_is_refused(void **state)
{
	struct spw_geometry geometry = {.size_bytes = 1 << 20, .logical_block_bytes = 4096};
	struct bench_region region;
	struct bench_job job;

	(void)state;
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

/* ---- Verification ---------------------------------------------------------------------------- */

#define UNIT 4096

static const enum bench_verify kinds[] = {BENCH_VERIFY_XXH3, BENCH_VERIFY_CRC32C};

static struct bench_units units_of(enum bench_verify checksum)
{
	return (struct bench_units){.checksum = checksum, .unit_bytes = UNIT, .seed = 7};
}

static void every_flipped_bit_is_found(void **state)
{
	static char buf[2 * UNIT];

	(void)state;
	for (size_t kind = 0; kind < SPW_ARRAY_LEN(kinds); kind++) {
		struct bench_units units = units_of(kinds[kind]);

		bench_verify_fill(&units, buf, sizeof(buf), 8 * UNIT, 3);
		assert_int_equal(bench_verify_check(&units, buf, sizeof(buf), 8 * UNIT, 3, "d"), 0);
		for (unsigned bit = 0; bit < sizeof(buf) * 8; bit++) {
			buf[bit / 8] = (char)(buf[bit / 8] ^ 1 << bit % 8);
			assert_int_equal(
				bench_verify_check(&units, buf, sizeof(buf), 8 * UNIT, 3, "d"),
				-EBADMSG);
			buf[bit / 8] = (char)(buf[bit / 8] ^ 1 << bit % 8);
		}
		assert_int_equal(bench_verify_check(&units, buf, sizeof(buf), 8 * UNIT, 3, "d"), 0);
	}
}

static void misplaced_and_older_blocks_are_found(void **state)
{
	static char buf[UNIT];

	(void)state;
	for (size_t kind = 0; kind < SPW_ARRAY_LEN(kinds); kind++) {
		struct bench_units units = units_of(kinds[kind]), other = units;

		bench_verify_fill(&units, buf, sizeof(buf), UNIT, 3);
		assert_int_equal(bench_verify_check(&units, buf, sizeof(buf), 2 * UNIT, 3, "d"),
				 -EBADMSG);
		assert_int_equal(bench_verify_check(&units, buf, sizeof(buf), 0, 3, "d"), -EBADMSG);
		assert_non_null(
			strstr(spw_last_error(), "holds the block that was written to byte 4096"));
		assert_int_equal(bench_verify_check(&units, buf, sizeof(buf), UNIT, 4, "d"),
				 -EBADMSG);
		assert_non_null(strstr(spw_last_error(), "last write to it was lost"));
		other.seed = 8;
		assert_int_equal(bench_verify_check(&other, buf, sizeof(buf), UNIT, 3, "d"),
				 -EBADMSG);
		assert_int_equal(bench_verify_check(&units, buf, sizeof(buf), UNIT,
						    BENCH_GENERATION_ANY, "d"),
				 0);
		other = units;
		other.unit_bytes = 512;
		assert_int_equal(bench_verify_check(&other, buf, 512, UNIT, 3, "d"), -EBADMSG);
		other = units_of(kinds[!kind]);
		assert_int_equal(bench_verify_check(&other, buf, sizeof(buf), UNIT, 3, "d"),
				 -EBADMSG);
		assert_non_null(strstr(spw_last_error(), "another verify="));
		memset(buf, 0, sizeof(buf));
		assert_int_equal(bench_verify_check(&units, buf, sizeof(buf), UNIT, 3, "d"),
				 -EBADMSG);
		assert_non_null(strstr(spw_last_error(), "not written by a verify job"));
	}
}

static void crc32c_is_castagnolis(void **state)
{
	unsigned char bytes[100];

	(void)state;
	/* The check value of the catalogue, and two of RFC 3720. */
	assert_int_equal(bench_crc32c(0, "123456789", 9), 0xe3069283);
	memset(bytes, 0, 32);
	assert_int_equal(bench_crc32c(0, bytes, 32), 0x8a9136aa);
	memset(bytes, 0xff, 32);
	assert_int_equal(bench_crc32c(0, bytes, 32), 0x62a8ab43);
	for (unsigned i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)(i * 37);
	/* However it is cut, and whoever computes it. */
	for (unsigned cut = 0; cut <= sizeof(bytes); cut++) {
		uint32_t first = bench_crc32c(0, bytes, cut);

		assert_int_equal(bench_crc32c(first, bytes + cut, sizeof(bytes) - cut),
				 bench_crc32c(0, bytes, sizeof(bytes)));
		assert_int_equal(first, ~by_hand(~0u, bytes, cut));
	}
}

/*
 * Writes end in any order; what is due is read back in the order of writing, each once, and never
 * before it has ended.
 */
static void a_backlog_gives_back_what_was_written(void **state)
{
	struct bench_job job = {.verify_backlog = 4, .iodepth = 3};
	struct bench_backlog backlog = {0};
	struct spw_io io = {.len_bytes = 4096};

	(void)state;
	assert_int_equal(bench_backlog_init(&backlog, &job), 0);
	for (unsigned i = 0; i < 4; i++) {
		assert_false(bench_backlog_is_due(&backlog));
		io.offset_bytes = i * 4096;
		assert_int_equal(bench_backlog_add(&backlog, &io, 10 + i), i);
	}
	assert_true(bench_backlog_is_due(&backlog));
	bench_backlog_ended(&backlog, 1);
	assert_null(bench_backlog_next(&backlog));
	bench_backlog_ended(&backlog, 0);
	for (unsigned i = 0; i < 2; i++) {
		const struct bench_written *written = bench_backlog_next(&backlog);

		assert_non_null(written);
		assert_int_equal(written->offset_bytes, i * 4096);
		assert_int_equal(written->generation, 10 + i);
	}
	assert_null(bench_backlog_next(&backlog));
	bench_backlog_ended(&backlog, 2);
	bench_backlog_ended(&backlog, 3);
	assert_non_null(bench_backlog_next(&backlog));
	assert_non_null(bench_backlog_next(&backlog));
	assert_false(bench_backlog_is_due(&backlog));
	assert_false(backlog.left_out);
	bench_backlog_free(&backlog);
}

static void a_small_batch_leaves_the_rest_for_the_end(void **state)
{
	struct bench_job job = {.verify_backlog = 4, .verify_backlog_batch = 1, .iodepth = 2};
	struct bench_backlog backlog = {0};
	struct spw_io io = {.len_bytes = 4096};
	unsigned reads = 0;

	(void)state;
	assert_int_equal(bench_backlog_init(&backlog, &job), 0);
	for (unsigned i = 0; i < 8; i++) {
		assert_true(bench_backlog_takes(&backlog));
		bench_backlog_ended(&backlog, bench_backlog_add(&backlog, &io, i));
		for (; bench_backlog_is_due(&backlog); reads++)
			assert_int_equal(bench_backlog_next(&backlog)->generation, reads);
	}
	assert_int_equal(reads, 2);
	assert_false(backlog.left_out);
	bench_backlog_flush(&backlog);
	for (; bench_backlog_is_due(&backlog); reads++)
		assert_int_equal(bench_backlog_next(&backlog)->generation, reads);
	assert_int_equal(reads, 8);
	/* It holds no more than it has room for. One that has not ended is never forgotten. */
	assert_true(backlog.capacity > 7);
	backlog.capacity = 7;
	for (unsigned i = 0; i < 7; i++)
		(void)bench_backlog_add(&backlog, &io, i);
	assert_false(bench_backlog_takes(&backlog));
	bench_backlog_ended(&backlog, backlog.head);
	assert_true(bench_backlog_takes(&backlog));
	(void)bench_backlog_add(&backlog, &io, 7);
	assert_true(backlog.left_out);
	bench_backlog_free(&backlog);
}

/* ---- Histograms ------------------------------------------------------------------------------ */

static void buckets_are_ordered_and_narrow(void **state)
{
	unsigned last = 0;

	(void)state;
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
static void percentiles_agree_with_sorting(void **state)
{
	static const double percents[] = {1, 50, 90, 99, 99.9, 100};
	static struct spw_histogram parts[3], all;
	static uint64_t values[30000];
	struct bench_random random = {.state = 42};

	(void)state;
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

static void summaries_of_nothing_and_of_one(void **state)
{
	struct spw_summary none = {0}, some = {0};
	static struct spw_histogram empty;

	(void)state;
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

static void typing_mistakes_find_the_name(void **state)
{
	static const char *const names[] = {"probe", "format", "info", "check",
					    "wipe",  "bench",  NULL};

	(void)state;
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

static void one_slip_is_a_misspelling(void **state)
{
	(void)state;
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

static void a_name_by_pci_address_keeps_its_colons(void **state)
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

	(void)state;
	for (size_t i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		char *paths[BENCH_FILES_MAX];
		int count = bench_split_filename(cases[i].filename, paths), wanted = 0;

		while (wanted < 4 && cases[i].paths[wanted])
			wanted++;
		assert_int_equal(count, wanted);
		for (int j = 0; j < count; j++) {
			assert_string_equal(paths[j], cases[i].paths[j]);
			free(paths[j]);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_name_by_pci_address_keeps_its_colons),
		cmocka_unit_test(a_shuffle_visits_every_slot_once),
		cmocka_unit_test(a_random_pass_covers_every_block_once),
		cmocka_unit_test(a_pass_can_be_gone_over_again),
		cmocka_unit_test(sequential_transfers_follow_one_another),
		cmocka_unit_test(a_negative_skip_goes_backwards),
		cmocka_unit_test(what_does_not_fit_is_refused),
		cmocka_unit_test(every_flipped_bit_is_found),
		cmocka_unit_test(misplaced_and_older_blocks_are_found),
		cmocka_unit_test(crc32c_is_castagnolis),
		cmocka_unit_test(a_backlog_gives_back_what_was_written),
		cmocka_unit_test(a_small_batch_leaves_the_rest_for_the_end),
		cmocka_unit_test(buckets_are_ordered_and_narrow),
		cmocka_unit_test(percentiles_agree_with_sorting),
		cmocka_unit_test(summaries_of_nothing_and_of_one),
		cmocka_unit_test(typing_mistakes_find_the_name),
		cmocka_unit_test(one_slip_is_a_misspelling),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
