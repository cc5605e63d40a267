/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_engine_tune.c - settings files: used for the drives that they name, refused when
 * they are bad
 */
#include <errno.h>

#include "tests/unit/engine_file.h"
#include "util/util.h"

static char tune_path[320];

static void write_file(const char *format, ...)
{
	FILE *file = fopen(tune_path, "we");
	va_list args;

	assert_non_null(file);
	va_start(args, format);
	assert_true(vfprintf(file, format, args) >= 0);
	va_end(args);
	assert_int_equal(fclose(file), 0);
}

#define READ                                                                             \
	"\"read\": {\"block_bytes\": 1048576, \"iodepth\": 5, \"wait\": \"interrupt\", " \
	"\"backend\": \"libaio\"}"
#define WRITE                                                                          \
	"\"write\": {\"block_bytes\": 4096, \"iodepth\": 9, \"wait\": \"interrupt\", " \
	"\"backend\": \"io_uring\"}"
#define BEST "\"best\": {" READ ", " WRITE "}"
#define DRIVES \
	"\"drives\": [{\"path\": \"%s\", \"model\": \"\", \"serial\": \"\", \"size_bytes\": %u}]"

static int make_files(void **state)
{
	int ret = make_drive(state);

	(void)snprintf(tune_path, sizeof(tune_path), "%s/tune.json", drive_folder);
	return ret;
}

static int remove_files(void **state)
{
	(void)unlink(tune_path);
	return remove_drive(state);
}

static int open_tuned(const char *path)
{
	struct spw_queue_opts opts;

	drive_log[0] = '\0';
	spw_queue_opts_init(&opts, sizeof(opts));
	opts.log.write = collect;
	opts.tune_path = path;
	return spw_queue_open(&drive, 1, &opts, &drive_queue);
}

static int close_all(void **state)
{
	(void)state;
	spw_queue_close(drive_queue);
	drive_queue = NULL;
	return unsetenv("SPILLWAY_TUNE");
}

static void test_settings_for_this_drive_are_used(void **state)
{
	(void)state;
	write_file("{\"format\": 1, " DRIVES ", " BEST "}", drive_path, DRIVE_BYTES);
	assert_int_equal(open_tuned(tune_path), 0);
	assert_int_equal(spw_queue_room(drive_queue, 0), 9);
	assert_int_equal(spw_queue_backend(drive_queue), SPW_BACKEND_LIBAIO);
	assert_logged(tune_path);
	assert_logged("depth 9");
}

static void test_large_blocks_mean_many_transfers(void **state)
{
	(void)state;
	write_file("{\"format\": 1, " DRIVES
		   ", \"best\": {\"read\": {\"block_bytes\": 16777216, \"iodepth\": 3, "
		   "\"wait\": \"interrupt\", \"backend\": \"libaio\"}, " WRITE "}}",
		   drive_path, DRIVE_BYTES);
	assert_int_equal(open_tuned(tune_path), 0);
	assert_int_equal(spw_queue_room(drive_queue, 0), 48);
	spw_queue_close(drive_queue);
	write_file("{\"format\": 1, " DRIVES
		   ", \"best\": {\"read\": {\"block_bytes\": 1073741824, \"iodepth\": 1024, "
		   "\"wait\": \"interrupt\", \"backend\": \"libaio\"}}}",
		   drive_path, DRIVE_BYTES);
	assert_int_equal(open_tuned(tune_path), 0);
	assert_int_equal(spw_queue_room(drive_queue, 0), SPW_QUEUE_DEPTH_MAX);
}

/* Measured by root, or on another kernel: what worked then is no reason to fail now. */
static void test_a_backend_that_is_refused_today_is_done_without(void **state)
{
	(void)state;
	write_file("{\"format\": 1, " DRIVES
		   ", \"best\": {\"read\": {\"block_bytes\": 4096, \"iodepth\": 7, "
		   "\"wait\": \"interrupt\", \"backend\": \"nvme\"}}}",
		   drive_path, DRIVE_BYTES);
	assert_int_equal(open_tuned(tune_path), 0);
	assert_int_not_equal(spw_queue_backend(drive_queue), SPW_BACKEND_NVME);
	assert_int_equal(spw_queue_room(drive_queue, 0), 7);
	assert_logged("is not a whole NVMe namespace");
}

static void test_the_environment_names_a_file_unless_the_caller_does(void **state)
{
	(void)state;
	write_file("{\"format\": 1, " DRIVES ", \"best\": {" WRITE "}}", drive_path, DRIVE_BYTES);
	assert_int_equal(setenv("SPILLWAY_TUNE", tune_path, 1), 0);
	assert_int_equal(open_tuned(NULL), 0);
	assert_int_equal(spw_queue_room(drive_queue, 0), 9);
	spw_queue_close(drive_queue);
	assert_int_equal(open_tuned(""), 0);
	assert_int_equal(spw_queue_room(drive_queue, 0), 32);
	assert_null(strstr(drive_log, tune_path));
	spw_queue_close(drive_queue);
	assert_int_equal(setenv("SPILLWAY_TUNE", "", 1), 0);
	assert_int_equal(open_tuned(NULL), 0);
	assert_int_equal(spw_queue_room(drive_queue, 0), 32);
}

static void test_settings_for_another_drive_are_left(void **state)
{
	(void)state;
	write_file("{\"format\": 1, " DRIVES ", " BEST "}", drive_path, DRIVE_BYTES + 512);
	assert_int_equal(open_tuned(tune_path), 0);
	assert_int_equal(spw_queue_room(drive_queue, 0), 32);
	assert_logged("is not among the drives that were measured");
	spw_queue_close(drive_queue);
	write_file("{\"format\": 1, " DRIVES ", " BEST "}", "/dev/null", DRIVE_BYTES);
	assert_int_equal(open_tuned(tune_path), 0);
	assert_logged("is not among the drives that were measured");
}

static void assert_refused(const char *words)
{
	struct spw_tune tune = {.size = sizeof(tune)};

	assert_int_equal(spw_tune_read(tune_path, &drive, 1, &tune, sizeof(tune)), -EINVAL);
	if (!strstr(spw_last_error(), words))
		fail_msg("no \"%s\" in: %s", words, spw_last_error());
	assert_int_equal(open_tuned(tune_path), -EINVAL);
	assert_null(drive_queue);
}

static void test_bad_files_are_refused(void **state)
{
	static const struct {
		const char *best, *words;
	} bad[] = {
		{"{}", "holds no settings"},
		{"[]", "holds no settings"},
		{"{\"read\": 1}", "incomplete"},
		{"{\"read\": {\"block_bytes\": 4096}}", "incomplete"},
		{"{\"read\": {\"block_bytes\": -1, \"iodepth\": 1, \"wait\": \"poll\", "
		 "\"backend\": \"libaio\"}}",
		 "no sense"},
		{"{\"read\": {\"block_bytes\": 4096, \"iodepth\": 0, \"wait\": \"poll\", "
		 "\"backend\": \"libaio\"}}",
		 "no sense"},
		{"{\"read\": {\"block_bytes\": 4096, \"iodepth\": 1025, \"wait\": \"poll\", "
		 "\"backend\": \"libaio\"}}",
		 "no sense"},
		{"{\"read\": {\"block_bytes\": 4096, \"iodepth\": 1, \"wait\": \"pol\", "
		 "\"backend\": \"libaio\"}}",
		 "poll or interrupt"},
		{"{\"read\": {\"block_bytes\": 4096, \"iodepth\": 1, \"wait\": \"poll\", "
		 "\"backend\": \"spdk\"}}",
		 "no backend spdk"},
	};
	char words[400];

	(void)state;
	for (size_t i = 0; i < SPW_ARRAY_LEN(bad); i++) {
		write_file("{\"format\": 1, " DRIVES ", \"best\": %s}", drive_path, DRIVE_BYTES,
			   bad[i].best);
		assert_refused(bad[i].words);
	}
	write_file("{\"format\": 1,\n \"best\": nonsense}");
	(void)snprintf(words, sizeof(words), "%s:2:", tune_path);
	assert_refused(words);
	write_file("{\"format\": 2, " BEST "}");
	assert_refused("not settings of this version");
	write_file("{\"format\": 1, " BEST "}");
	assert_refused("does not say which drives");
	assert_int_equal(open_tuned(drive_folder), -EINVAL);
	assert_int_equal(unlink(tune_path), 0);
	assert_int_equal(open_tuned(tune_path), -ENOENT);
}

#define TUNE_TEST(function) cmocka_unit_test_teardown(function, close_all)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TUNE_TEST(test_settings_for_this_drive_are_used),
		TUNE_TEST(test_large_blocks_mean_many_transfers),
		TUNE_TEST(test_a_backend_that_is_refused_today_is_done_without),
		TUNE_TEST(test_the_environment_names_a_file_unless_the_caller_does),
		TUNE_TEST(test_settings_for_another_drive_are_left),
		TUNE_TEST(test_bad_files_are_refused),
	};

	return cmocka_run_group_tests(tests, make_files, remove_files);
}
