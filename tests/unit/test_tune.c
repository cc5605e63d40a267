/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_tune.c - settings files: used for the drives that they name, refused when
 * they are bad
 */
#include <errno.h>

#include <spillway/format.h>

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

#define SETTINGS(direction, block_bytes, iodepth, wait, backend)                        \
	"\"" direction "\": {\"block_bytes\": " #block_bytes ", \"iodepth\": " #iodepth \
	", \"wait\": \"" wait "\", \"backend\": \"" backend "\"}"
#define READ(block_bytes, iodepth, wait, backend) \
	"{" SETTINGS("read", block_bytes, iodepth, wait, backend) "}"
#define WRITE SETTINGS("write", 4096, 9, "interrupt", "io_uring")
#define BEST  "\"best\": {" SETTINGS("read", 1048576, 5, "interrupt", "libaio") ", " WRITE "}"
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
	const char *drives[] = {drive_path};
	struct spw_queue_opts opts;
	struct spw_tune tune;
	int ret;

	drive_log[0] = '\0';
	spw_queue_opts_init(&opts, sizeof(opts));
	opts.log.write = collect;
	opts.tune = &tune;
	ret = spw_tune_read(path, drives, 1, &opts.log, &tune, sizeof(tune));
	if (ret)
		return ret;
	return spw_queue_open(&drive, 1, &opts, &drive_queue);
}

static int close_all(void **state)
{
	(void)state;
	spw_queue_close(drive_queue);
	drive_queue = NULL;
	return 0;
}

#define TUNE_TEST(name) CASE_WITH(name, NULL, close_all)

TUNE_TEST(test_settings_for_this_drive_are_used)
{
	write_file("{\"format\": 1, " DRIVES ", " BEST "}", drive_path, DRIVE_BYTES);
	assert_int_equal(open_tuned(tune_path), 0);
	assert_int_equal(drive_queue->depth, 9);
	assert_int_equal(spw_queue_backend(drive_queue), SPW_BACKEND_LIBAIO);
	assert_logged("depth 9");
}

TUNE_TEST(test_large_blocks_mean_many_transfers)
{
	write_file("{\"format\": 1, " DRIVES
		   ", \"best\": {" SETTINGS("read", 16777216, 3, "interrupt", "libaio") ", " WRITE
											"}}",
		   drive_path, DRIVE_BYTES);
	assert_int_equal(open_tuned(tune_path), 0);
	assert_int_equal(drive_queue->depth, 48);
	spw_queue_close(drive_queue);
	write_file("{\"format\": 1, " DRIVES
		   ", \"best\": " READ(1073741824, 1024, "interrupt", "libaio") "}",
		   drive_path, DRIVE_BYTES);
	assert_int_equal(open_tuned(tune_path), 0);
	assert_int_equal(drive_queue->depth, SPW_QUEUE_DEPTH_MAX);
}

/* Measured by root, or on another kernel: what worked then need not work now. */
TUNE_TEST(test_a_backend_that_is_refused_today_is_done_without)
{
	write_file("{\"format\": 1, " DRIVES ", \"best\": " READ(4096, 7, "interrupt", "nvme") "}",
		   drive_path, DRIVE_BYTES);
	assert_int_equal(open_tuned(tune_path), 0);
	assert_int_not_equal(spw_queue_backend(drive_queue), SPW_BACKEND_NVME);
	assert_int_equal(drive_queue->depth, 7);
	assert_logged("is not a whole NVMe namespace");
}

TUNE_TEST(test_without_a_file_there_are_no_settings)
{
	assert_int_equal(open_tuned(NULL), 0);
	assert_int_equal(drive_queue->depth, 32);
	spw_queue_close(drive_queue);
	assert_int_equal(open_tuned(""), 0);
	assert_int_equal(drive_queue->depth, 32);
	assert_null(strstr(drive_log, "depth"));
}

/* That is up to the program's user, not to a library within it. */
TUNE_TEST(test_the_environment_is_not_read)
{
	assert_int_equal(setenv("SPILLWAY_TUNE", drive_folder, 1), 0);
	assert_int_equal(open_tuned(NULL), 0);
	assert_int_equal(unsetenv("SPILLWAY_TUNE"), 0);
	assert_int_equal(drive_queue->depth, 32);
}

TUNE_TEST(test_settings_for_another_drive_are_left)
{
	write_file("{\"format\": 1, " DRIVES ", " BEST "}", drive_path, DRIVE_BYTES + 512);
	assert_int_equal(open_tuned(tune_path), 0);
	assert_int_equal(drive_queue->depth, 32);
	assert_logged("is not among the drives that were measured");
	spw_queue_close(drive_queue);
	write_file("{\"format\": 1, " DRIVES ", " BEST "}", "/dev/null", DRIVE_BYTES);
	assert_int_equal(open_tuned(tune_path), 0);
	assert_logged("is not among the drives that were measured");
}

static void assert_refused(const char *words)
{
	expect_refusal(-EINVAL, words, open_tuned(tune_path));
	assert_null(drive_queue);
}

TUNE_TEST(test_bad_files_are_refused)
{
	static const struct {
		const char *best, *words;
	} bad[] = {
		{"{}", "holds no settings"},
		{"[]", "holds no settings"},
		{"{\"read\": 1}", "incomplete"},
		{"{\"read\": {\"block_bytes\": 4096}}", "incomplete"},
		{READ(-1, 1, "poll", "libaio"), "no sense"},
		{READ(4096, 0, "poll", "libaio"), "no sense"},
		{READ(4096, 1025, "poll", "libaio"), "no sense"},
		{READ(4096, 1, "pol", "libaio"), "poll or interrupt"},
		{READ(4096, 1, "poll", "spdk"), "no backend spdk"},
	};
	char words[400];

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

RUN_CASES(make_files, remove_files)
