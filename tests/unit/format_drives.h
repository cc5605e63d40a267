/* SPDX-License-Identifier: MIT */
/* tests/unit/format_drives.h - drives that are files of the test, and what format left there */
#ifndef TESTS_UNIT_FORMAT_DRIVES_H
#define TESTS_UNIT_FORMAT_DRIVES_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/case.h"
#include "tests/random.h"
#include <xxhash.h>

#include <spillway/format.h>

#include "drives/assemble.h"
#include "drives/contents.h"
#include "util/util.h"

#define MIB        (UINT64_C(1) << 20)
#define DRIVES     3
#define DRIVE_SIZE (17 * MIB + 512) /* a last sector behind the last whole 4 KiB */

/* ---- Drives: files in a folder of the test's own ---- */

static char folder[PATH_MAX];
static char drive_names[DRIVES + 1][PATH_MAX + 16];
static const char *drives[DRIVES + 1]; /* the last one belongs to no store unless a test makes it */
static uint64_t seed, random_state;

static inline int make_folder(void **state)
{
	const char *tmp = getenv("TMPDIR");

	(void)state;
	(void)snprintf(folder, sizeof(folder), "%s/spillway-format.XXXXXX", tmp ? tmp : "/var/tmp");
	if (!mkdtemp(folder))
		return -1;
	for (unsigned i = 0; i <= DRIVES; i++) {
		(void)snprintf(drive_names[i], sizeof(drive_names[i]), "%s/drive%u", folder, i);
		drives[i] = drive_names[i];
	}
	seed = random_seed();
	return 0;
}

static inline int remove_folder(void **state)
{
	(void)state;
	return rmdir(folder);
}

static inline uint32_t draw(uint32_t below)
{
	return (uint32_t)random_below(&random_state, below);
}

static inline void make_drive(const char *path, uint64_t size)
{
	int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	assert_int_equal(close(fd), 0);
}

static inline int make_drives(void **state)
{
	(void)state;
	random_state = seed;
	for (unsigned i = 0; i <= DRIVES; i++)
		make_drive(drives[i], DRIVE_SIZE + i * MIB);
	return 0;
}

static inline int remove_drives(void **state)
{
	(void)state;
	for (unsigned i = 0; i <= DRIVES; i++)
		(void)unlink(drives[i]);
	return 0;
}

static inline void write_at(const char *path, uint64_t offset, const void *bytes, size_t len)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, bytes, len, (off_t)offset), len);
	assert_int_equal(close(fd), 0);
}

static inline void read_at(const char *path, uint64_t offset, void *bytes, size_t len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, bytes, len, (off_t)offset), len);
	assert_int_equal(close(fd), 0);
}

/* As mkswap(8) makes it, with a label. */
static inline void make_swap_area(const char *path, const char *label)
{
	static const uint32_t header[] = {1, 4000};

	write_at(path, 1024, header, sizeof(header));
	write_at(path, 1024 + 28, label, strlen(label));
	write_at(path, 4096 - 10, "SWAPSPACE2", 10);
}

static inline uint64_t size_of(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return (uint64_t)st.st_size;
}

/* Of its length and of each page that is not zero: most are in holes, which are not read. */
static inline uint64_t hash_of(const char *path)
{
	static const uint8_t zeros[4096];
	uint64_t size = size_of(path), hash = size;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	uint8_t page[4096];
	off_t at = 0;

	assert_true(fd >= 0);
	while ((at = lseek(fd, at, SEEK_DATA)) >= 0) {
		ssize_t len;

		at -= at % (off_t)sizeof(page);
		len = pread(fd, page, sizeof(page), at);
		assert_true(len > 0);
		if (memcmp(page, zeros, (size_t)len) != 0)
			hash = XXH3_64bits_withSeed(page, (size_t)len, hash ^ (uint64_t)at);
		at += len;
	}
	assert_int_equal(errno, ENXIO); /* there is no more */
	assert_int_equal(close(fd), 0);
	return hash;
}

/* All drives, as one number. */
static inline uint64_t hash_all(void)
{
	uint64_t hashes[DRIVES + 1];

	for (unsigned i = 0; i <= DRIVES; i++)
		hashes[i] = hash_of(drives[i]);
	return XXH3_64bits(hashes, sizeof(hashes));
}

#define expect(expected, call)                                                            \
	do {                                                                              \
		int result_ = (call);                                                     \
		if (result_ != (expected))                                                \
			fail_msg("%s: %d (%s), expected %d; seed %llu", #call, result_,   \
				 spw_last_error(), (expected), (unsigned long long)seed); \
	} while (0)

static inline struct spw_format_opts options(bool force)
{
	struct spw_format_opts opts;

	spw_format_opts_init(&opts, sizeof(opts));
	opts.partitions = 2;
	opts.force = force;
	return opts;
}

static inline int format_drives(unsigned count, bool force, struct spw_store_info *info)
{
	struct spw_format_opts opts = options(force);

	return spw_format(drives, count, &opts, info);
}

static inline uint64_t copy_offset(const char *path, unsigned copy)
{
	return spw_layout__copy_offset(size_of(path), copy);
}

static inline void read_copy(const char *path, unsigned copy, struct spw_superblock *sb)
{
	uint8_t block[SPW_SUPERBLOCK_BYTES];
	const char *why;

	read_at(path, copy_offset(path, copy), block, sizeof(block));
	if (spw_layout__decode(block, copy, sb, &why) != 0)
		fail_msg("%s copy %u: %s", path, copy, why);
}

static inline void write_copy(const char *path, unsigned copy, const struct spw_superblock *sb)
{
	uint8_t block[SPW_SUPERBLOCK_BYTES];

	spw_layout__encode(sb, copy, block);
	write_at(path, copy_offset(path, copy), block, sizeof(block));
}

/* Change both copies of a drive, checksums made right. */
static inline void change_copies(const char *path, void (*change)(struct spw_superblock *sb))
{
	for (unsigned copy = 0; copy < 2; copy++) {
		struct spw_superblock sb;

		read_copy(path, copy, &sb);
		change(&sb);
		write_copy(path, copy, &sb);
	}
}

/* As a write that was cut off: a part is zeros, and the checksum is that of the whole. */
static inline void damage_copy(const char *path, unsigned copy)
{
	static const uint8_t zeros[64 * 16];

	write_at(path, copy_offset(path, copy) + 0x800, zeros, sizeof(zeros));
}

/* All drives of a store: that one is missing is an error. */
static inline int assemble_all(const char *const paths[], unsigned count, const struct spw_log *log,
			       struct spw_assembly *assembly)
{
	int rc = spw_drives__assemble(paths, count, false, log, assembly);

	if (rc == 0 && assembly->missing > 0) {
		rc = spw_drives__assembly_missing_error(assembly);
		spw_drives__assembly_close(assembly);
	}
	return rc;
}

/* What open and check do, which must say the same; and neither writes. */
static inline int check_drives(const char *const paths[], unsigned count)
{
	struct spw_assembly assembly;
	uint64_t before = hash_all();
	int rc = assemble_all(paths, count, NULL, &assembly);

	spw_drives__assembly_close(&assembly);
	assert_int_equal(spw_check(paths, count, NULL, NULL), rc);
	assert_int_equal(hash_all(), before);
	return rc;
}

#endif
