/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_engine_device.c - opening files as devices, geometry, alignment, locks, blocking
 * transfers
 */
/* wrap: fopen realpath */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/case.h"

#include "engine/device.h"

#define SIZE (4u << 20)

static char folder[256], path[300];

/* ---- A drive that says what it likes ---- */

static const char *drive_says; /* its model and serial number, as sysfs has them; NULL: as it is */

char *__real_realpath(const char *name, char *out);
char *__wrap_realpath(const char *name, char *out);
char *__wrap_realpath(const char *name, char *out)
{
	if (!drive_says || strncmp(name, "/sys/dev/block/", 15) != 0)
		return __real_realpath(name, out);
	(void)snprintf(out, PATH_MAX, "/sys/devices/none/block/none");
	return out;
}

FILE *__real_fopen(const char *name, const char *mode);
FILE *__wrap_fopen(const char *name, const char *mode);
FILE *__wrap_fopen(const char *name, const char *mode)
{
	if (!drive_says || (!strstr(name, "device/model") && !strstr(name, "device/serial")))
		return __real_fopen(name, mode);
	return fmemopen((void *)(uintptr_t)drive_says, strlen(drive_says), "r");
}

/* ---- Cases ---- */

static void make_file(const char *name, off_t size)
{
	int fd;

	(void)snprintf(path, sizeof(path), "%s/%s", folder, name);
	fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, size), 0);
	assert_int_equal(close(fd), 0);
}

static int set_up(void **state)
{
	const char *base = getenv("TMPDIR");

	(void)state;
	(void)snprintf(folder, sizeof(folder), "%s/spillway-device.XXXXXX",
		       base ? base : "/var/tmp");
	assert_non_null(mkdtemp(folder));
	make_file("drive", SIZE);
	return 0;
}

static int tear_down(void **state)
{
	static const char *const names[] = {"drive", "empty", "odd"};

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		(void)snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
		(void)unlink(path);
	}
	return rmdir(folder);
}

static struct spw_device *open_drive(void)
{
	struct spw_device *device;

	(void)snprintf(path, sizeof(path), "%s/drive", folder);
	assert_int_equal(spw_device_open(path, NULL, &device), 0);
	return device;
}

CASE(test_what_a_drive_says_is_printable)
{
	struct spw_device *device;

	drive_says = "  A\033[2J\233Drive\302\233 \303\274  \n";
	device = open_drive();
	drive_says = NULL;
	assert_string_equal(spw_device_geometry(device)->model, "A?[2J?Drive?? \303\274");
	assert_string_equal(spw_device_geometry(device)->serial, "A?[2J?Drive?? \303\274");
	spw_device_close(device);
}

/* What a program prints that has no standard output must not go to the drive. */
CASE(test_a_drive_is_no_standard_stream)
{
	struct spw_device *device;
	pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (child == 0) {
		for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
			(void)close(fd);
		device = open_drive();
		for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
			if (write(fd, "hello", 5) >= 0 || errno != EBADF)
				_exit(1);
		_exit(device->fd > STDERR_FILENO ? 0 : 2);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

CASE(test_geometry_of_a_file)
{
	struct spw_device *device = open_drive();
	const struct spw_geometry *g = spw_device_geometry(device);

	assert_string_equal(spw_device_path(device), path);
	assert_int_equal(g->kind, SPW_DEVICE_FILE);
	assert_int_equal(g->size_bytes, SIZE);
	assert_true(g->logical_block_bytes >= 512 && g->logical_block_bytes <= 65536);
	assert_int_equal(g->logical_block_bytes & (g->logical_block_bytes - 1), 0);
	assert_int_equal(g->memory_align_bytes & (g->memory_align_bytes - 1), 0);
	assert_true(g->physical_block_bytes >= g->logical_block_bytes);
	assert_true(g->transfer_bytes_max >= g->logical_block_bytes);
	assert_false(g->polls);
	assert_string_equal(g->nvme_char_path, "");
	spw_device_close(device);
}

CASE(test_a_size_is_rounded_down_to_blocks)
{
	struct spw_device *device;

	make_file("odd", 1048576 + 17);
	assert_int_equal(spw_device_open(path, NULL, &device), 0);
	assert_int_equal(spw_device_geometry(device)->size_bytes, 1048576);
	spw_device_close(device);
}

static void assert_open_fails(const char *name, int error, const char *word)
{
	struct spw_device *device = (struct spw_device *)1;

	assert_int_equal(spw_device_open(name, NULL, &device), error);
	assert_null(device);
	expect_words(name);
	expect_words(word);
}

CASE(test_what_cannot_be_opened)
{
	assert_open_fails("/nonexistent/drive", -ENOENT, "no such file or device");
	assert_open_fails(folder, -ENOTBLK, "neither a block device nor a regular file");
	assert_open_fails("/dev/null", -ENOTBLK, "neither");
	make_file("empty", 0);
	assert_open_fails(path, -ENODEV, "size of 0");
	/* procfs has regular files without direct I/O. */
	assert_open_fails("/proc/self/limits", geteuid() ? -EACCES : -EOPNOTSUPP, "");
}

CASE(test_transfers_and_their_refusals)
{
	struct spw_device *device = open_drive();
	uint32_t block = spw_device_geometry(device)->logical_block_bytes;
	char *out = aligned_alloc(65536, 1u << 20), *in = aligned_alloc(65536, 1u << 20);

	for (unsigned i = 0; i < 1u << 20; i++)
		out[i] = (char)(i * 7 + i / 251);
	assert_int_equal(spw_device_pwrite(device, out, 1u << 20, SIZE - (1u << 20)), 0);
	assert_int_equal(spw_device_sync(device), 0);
	assert_int_equal(spw_device_pread(device, in, 1u << 20, SIZE - (1u << 20)), 0);
	assert_memory_equal(in, out, 1u << 20);
	assert_int_equal(spw_device_pread(device, in, 0, 0), -EINVAL);
	assert_int_equal(spw_device_pread(device, in, block - 1, 0), -EINVAL);
	assert_int_equal(spw_device_pread(device, in, block, 1), -EINVAL);
	assert_int_equal(spw_device_pread(device, in, block, SIZE), -EINVAL);
	expect_refusal(-EINVAL, "beyond",
		       spw_device_pread(device, in, block, UINT64_MAX - block + 1));
	if (spw_device_geometry(device)->memory_align_bytes > 1) {
		expect_refusal(-EINVAL, "aligned", spw_device_pread(device, in + 1, block, 0));
	}
	spw_device_close(device);
	free(out);
	free(in);
}

CASE(test_a_file_cut_short_is_not_success)
{
	struct spw_device *device = open_drive();
	uint32_t block = spw_device_geometry(device)->logical_block_bytes;
	char *in = aligned_alloc(65536, 65536);

	assert_int_equal(truncate(path, SIZE / 2), 0);
	assert_int_equal(spw_device_pread(device, in, block, SIZE - block), -EIO);
	assert_int_equal(spw_device_pread(device, in, 65536, SIZE / 2 - 32768), -EIO);
	spw_device_close(device);
	free(in);
	assert_int_equal(truncate(path, SIZE), 0);
}

CASE(test_read_only)
{
	struct spw_device_opts opts;
	struct spw_device *device;
	char *buf = aligned_alloc(65536, 65536);

	memset(buf, 1, 65536);
	spw_device_opts_init(&opts, sizeof(opts));
	opts.read_only = true;
	(void)snprintf(path, sizeof(path), "%s/drive", folder);
	assert_int_equal(spw_device_open(path, &opts, &device), 0);
	assert_int_equal(spw_device_pwrite(device, buf, 65536, 0), -EBADF);
	assert_int_equal(spw_device_pread(device, buf, 65536, 0), 0);
	expect_refusal(-EBADF, "read-write", spw_device_lock(device, 0, 1));
	spw_device_close(device);
	free(buf);
}

CASE(test_locks_exclude_other_openers)
{
	struct spw_device *one = open_drive(), *other = open_drive();

	assert_int_equal(spw_device_lock(one, 0, 4096), 0);
	assert_int_equal(spw_device_lock(one, 0, 4096), 0);
	assert_int_equal(spw_device_lock(other, 4095, 1), -EBUSY);
	assert_int_equal(spw_device_lock(other, 4096, 4096), 0);
	assert_int_equal(spw_device_unlock(one, 0, 4096), 0);
	assert_int_equal(spw_device_lock(other, 0, 4096), 0);
	spw_device_close(other);
	assert_int_equal(spw_device_lock(one, 0, 8192), 0);
	spw_device_close(one);
}

CASE(test_a_lock_ends_with_its_process)
{
	struct spw_device *device;
	int status;
	pid_t child = fork();

	assert_true(child >= 0);
	if (child == 0) {
		device = open_drive();
		_exit(spw_device_lock(device, 0, 4096) == 0 ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	device = open_drive();
	assert_int_equal(spw_device_lock(device, 0, 4096), 0);
	spw_device_close(device);
}

/* As a data loader does: it has everything its parent has open, and knows nothing of it. */
CASE(test_a_lock_ends_with_its_device)
{
	static struct spw_device *device; /* so that it is not lost in the child either */
	int told[2], status;
	char word;
	pid_t child;

	device = open_drive();
	assert_int_equal(spw_device_lock(device, 0, 4096), 0);
	assert_int_equal(pipe2(told, O_CLOEXEC), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		(void)close(told[1]);
		_exit(read(told[0], &word, 1) == 0 ? 0 : 1);
	}
	(void)close(told[0]);
	spw_device_close(device);
	device = open_drive();
	assert_int_equal(spw_device_lock(device, 0, 4096), 0);
	(void)close(told[1]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	spw_device_close(device);
}

CASE(test_discard_punches_a_hole)
{
	struct spw_device *device = open_drive();
	char *buf = aligned_alloc(65536, 65536);
	struct stat before, after;

	memset(buf, 0x77, 65536);
	for (uint64_t at = 0; at < SIZE; at += 65536)
		assert_int_equal(spw_device_pwrite(device, buf, 65536, at), 0);
	assert_int_equal(spw_device_sync(device), 0);
	assert_int_equal(stat(path, &before), 0);
	assert_int_equal(spw_device_discard(device, 1u << 20, 1u << 20), 0);
	assert_int_equal(spw_device_sync(device), 0);
	assert_int_equal(stat(path, &after), 0);
	assert_int_equal(after.st_size, SIZE);
	assert_true(after.st_blocks < before.st_blocks);
	assert_int_equal(spw_device_pread(device, buf, 65536, 1u << 20), 0);
	assert_int_equal(buf[0], 0);
	assert_int_equal(spw_device_pread(device, buf, 65536, 2u << 20), 0);
	assert_int_equal(buf[0], 0x77);
	spw_device_close(device);
	free(buf);
}

/*
 * A hole may begin and end anywhere: what is not whole blocks of the device would take bytes of
 * others with it.
 */
CASE(test_only_whole_blocks_are_discarded)
{
	struct spw_device *device = open_drive();
	uint32_t block = spw_device_geometry(device)->logical_block_bytes;
	char *buf = aligned_alloc(65536, 65536);

	memset(buf, 0x55, 65536);
	assert_int_equal(spw_device_pwrite(device, buf, 65536, 0), 0);
	assert_int_equal(spw_device_discard(device, block / 2, block), -EINVAL);
	assert_int_equal(spw_device_discard(device, block, block / 2), -EINVAL);
	assert_int_equal(spw_device_discard(device, 0, 0), -EINVAL);
	assert_int_equal(spw_device_discard(device, SIZE, block), -EINVAL);
	expect_refusal(-EINVAL, path, spw_device_discard(device, UINT64_MAX - block + 1, block));
	assert_int_equal(spw_device_pread(device, buf, 65536, 0), 0);
	for (unsigned i = 0; i < 65536; i++)
		assert_int_equal(buf[i], 0x55);
	spw_device_close(device);
	free(buf);
}

CASE(test_the_longest_passthrough_command)
{
	assert_int_equal(spw_engine__geometry_choose_passthrough(512, 128), 512u << 10);
	assert_int_equal(spw_engine__geometry_choose_passthrough(4194303, 1280), 4194303u << 10);
	/* No limit of the controller's, as over a network: what the block layer asks for. */
	assert_int_equal(spw_engine__geometry_choose_passthrough(2147483644, 1280), 1280u << 10);
	assert_int_equal(spw_engine__geometry_choose_passthrough(2147483644, 0), 8192);
	assert_int_equal(spw_engine__geometry_choose_passthrough(0, 1280), 8192);
	assert_int_equal(spw_engine__geometry_choose_passthrough(-1, -1), 8192);
}

RUN_CASES(set_up, tear_down)
