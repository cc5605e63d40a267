/* SPDX-License-Identifier: MIT */
/* tests/unit/test_format.c - format, check, open, wipe, probe on files: refusals, damage, locks */
#include <sys/wait.h>

#include "drives/committed.h"
#include "drives/safety.h"
#include "tests/unit/format_drives.h"

#define DRIVE_CASE(name) CASE_WITH(name, make_drives, remove_drives)

static void fill(const char *path, uint64_t offset, uint64_t len, uint8_t byte)
{
	uint8_t *bytes = malloc(len);

	assert_non_null(bytes);
	memset(bytes, byte, len);
	write_at(path, offset, bytes, len);
	free(bytes);
}

static bool holds_only(const char *path, uint64_t offset, uint64_t len, uint8_t byte)
{
	uint8_t *bytes = malloc(len);
	uint64_t at = 0;

	assert_non_null(bytes);
	read_at(path, offset, bytes, len);
	while (at < len && bytes[at] == byte)
		at++;
	free(bytes);
	return at == len;
}

/* ---- What is written to is claimed ---- */

DRIVE_CASE(test_a_write_without_a_claim_ends_the_process)
{
	struct spw_device *claimed, *other;
	int status;
	pid_t child;

	expect(0, spw_claim(drives[0], NULL, &claimed));
	assert_ptr_equal(spw_drives__claimed(claimed), claimed);
	spw_device_close(claimed);
	expect(0, spw_device_open(drives[0], NULL, &other));
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		(void)close(STDERR_FILENO);
		(void)spw_drives__claimed(other);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	spw_device_close(other);
}

/* ---- Format and check ---- */

DRIVE_CASE(test_format_and_check)
{
	const char *shuffled[DRIVES] = {drives[2], drives[0], drives[1]};
	struct spw_store_info info = {.size = sizeof(info)}, checked = {.size = sizeof(checked)};
	struct spw_drive_info drive_info[DRIVES] = {{.size = sizeof(drive_info[0])}};
	uint64_t partition_bytes = 0;

	expect(0, format_drives(DRIVES, false, &info));
	expect(0, spw_check(shuffled, DRIVES, &checked, drive_info));
	assert_memory_equal(&info, &checked, sizeof(info));
	assert_int_equal(info.drives, DRIVES);
	assert_int_equal(info.partitions, 2);
	assert_int_equal(info.block_bytes, 4096);
	assert_int_equal(info.chunk_bytes, MIB);
	assert_int_equal(info.partitions_in_use, 0);
	for (unsigned i = 0; i < DRIVES; i++) {
		assert_string_equal(drive_info[i].path, shuffled[i]);
		assert_int_equal(drive_info[i].index, (i + 2) % DRIVES);
		assert_int_equal(drive_info[i].copies_good, 2);
		assert_int_equal(drive_info[i].sequence, 2);
		assert_int_equal(strlen(drive_info[i].drive_uuid), 36);
		partition_bytes += drive_info[i].partition_bytes - SPW_COMMIT_SLOTS * 4096;
	}
	assert_int_equal(info.partition_capacity_bytes, partition_bytes);
	assert_int_equal(info.capacity_bytes, 2 * partition_bytes);
	expect(0, check_drives(shuffled, DRIVES));
}

DRIVE_CASE(test_assembled_in_order)
{
	const char *shuffled[DRIVES] = {drives[1], drives[2], drives[0]};
	struct spw_assembly assembly;

	expect(0, format_drives(DRIVES, false, NULL));
	expect(0, assemble_all(shuffled, DRIVES, NULL, &assembly));
	assert_int_equal(assembly.count, DRIVES);
	for (unsigned i = 0; i < DRIVES; i++) {
		assert_int_equal(assembly.superblocks[i].drive_index, i);
		assert_string_equal(spw_device_path(assembly.devices[i]), drives[i]);
	}
	spw_drives__assembly_close(&assembly);
	spw_drives__assembly_close(&assembly); /* an empty one is fine */
}

DRIVE_CASE(test_infos_of_other_versions)
{
	struct spw_store_info info = {.size = offsetof(struct spw_store_info, block_bytes),
				      .block_bytes = 77};
	struct spw_drive_info unset[2] = {{.size = 0}}, wild = {.size = SIZE_MAX / 2};
	struct {
		struct spw_drive_info info;
		char newer[64];
	} larger[DRIVES] = {{.info.size = sizeof(larger[0])}};

	expect(0, format_drives(DRIVES, false, &info));
	assert_int_equal(info.partitions, 2);
	assert_int_equal(info.block_bytes, 77); /* beyond what the caller knows of */
	expect(0, spw_check(drives, DRIVES, NULL, &larger[0].info));
	assert_string_equal(larger[2].info.path, drives[2]);
	expect(-EMEDIUMTYPE, spw_check(drives + 2, 2, NULL, unset));
	assert_string_equal(unset[0].path, drives[2]);
	assert_int_equal(unset[0].index, 2);
	assert_string_equal(unset[1].drive_uuid, "");
	assert_int_equal(unset[1].size_bytes, size_of(drives[3]));
	expect(-EINVAL, spw_check(drives, 1, NULL, &wild));
}

DRIVE_CASE(test_options_are_checked)
{
	uint64_t before = hash_all();
	struct spw_format_opts opts = options(false);
	static const uint64_t bad_chunks[] = {1,         4096,      32768,
					      3 * 65536, 128 * MIB, UINT64_C(1) << 63};

	for (size_t i = 0; i < SPW_ARRAY_LEN(bad_chunks); i++) {
		opts.chunk_bytes = bad_chunks[i];
		expect(-EINVAL, spw_format(drives, DRIVES, &opts, NULL));
	}
	opts = options(false);
	opts.partitions = 0;
	expect(-EINVAL, spw_format(drives, DRIVES, &opts, NULL));
	opts.partitions = SPW_PARTITIONS_MAX + 1;
	expect(-EINVAL, spw_format(drives, DRIVES, &opts, NULL));
	opts = options(false);
	expect(-EINVAL, spw_format(drives, 0, &opts, NULL));
	expect(-EINVAL, spw_format(drives, SPW_DRIVES_MAX + 1, &opts, NULL));
	expect(-EINVAL, spw_check(drives, 0, NULL, NULL));
	expect(-EINVAL, spw_wipe(drives, 0, NULL));
	opts.partitions = 16; /* of 15 MiB, in chunks of 1 MiB */
	expect_refusal(-ENOSPC, "fewer --partitions", spw_format(drives, DRIVES, &opts, NULL));
	assert_int_equal(hash_all(), before);
	/* As an old caller passes them: nothing behind the size. */
	opts.size = offsetof(struct spw_format_opts, partitions);
	expect(0, spw_format(drives, DRIVES, &opts, NULL));
}

DRIVE_CASE(test_format_again_needs_force)
{
	struct spw_store_info first = {.size = sizeof(first)}, second = {.size = sizeof(second)};
	uint64_t before;

	expect(0, format_drives(DRIVES, false, &first));
	before = hash_all();
	expect_refusal(-EEXIST, first.store_uuid, format_drives(DRIVES, false, NULL));
	expect_words("--force");
	/* A damaged store is a store. */
	damage_copy(drives[1], 0);
	damage_copy(drives[1], 1);
	before = hash_all();
	expect(-EEXIST, format_drives(DRIVES, false, NULL));
	assert_int_equal(hash_all(), before);
	expect(0, format_drives(DRIVES, true, &second));
	assert_string_not_equal(first.store_uuid, second.store_uuid);
	expect(0, check_drives(drives, DRIVES));
}

DRIVE_CASE(test_sequence_rises)
{
	struct spw_superblock sb;

	expect(0, format_drives(DRIVES, false, NULL));
	read_copy(drives[2], 1, &sb);
	sb.sequence = 1000;
	write_copy(drives[2], 1, &sb); /* one copy of one drive is ahead of all */
	expect(0, format_drives(DRIVES, true, NULL));
	read_copy(drives[0], 0, &sb);
	assert_int_equal(sb.sequence, 1002);
	read_copy(drives[1], 0, &sb);
	sb.sequence = SPW_LAYOUT_SEQUENCE_MAX - 1;
	write_copy(drives[1], 0, &sb);
	expect_refusal(-EUCLEAN, "drive1: its superblock", format_drives(DRIVES, true, NULL));
	expect_words("spillway wipe");
	expect(0, spw_wipe(drives, 1, NULL));
	expect(0, spw_wipe(drives + 1, 2, NULL));
	expect(0, format_drives(DRIVES, false, NULL));
}

/* ---- Refusals of format: not one byte is written to any of the drives ---- */

static void refuse_format(int expected, const char *words, const char *path)
{
	const char *paths[DRIVES] = {drives[0], drives[1], path};
	struct spw_format_opts opts = options(false);
	uint64_t before = hash_all();

	expect_refusal(expected, words, spw_format(paths, DRIVES, &opts, NULL));
	assert_int_equal(hash_all(), before);
}

DRIVE_CASE(test_refuses_bad_drives)
{
	char link[PATH_MAX + 16];

	(void)snprintf(link, sizeof(link), "%s/link", folder);
	assert_int_equal(symlink(drives[0], link), 0);
	refuse_format(-ENOTUNIQ, "same device", link);
	assert_int_equal(unlink(link), 0);
	refuse_format(-ENOTUNIQ, "same device", drives[1]);
	refuse_format(-ENOENT, "/no/such/drive", "/no/such/drive");
	refuse_format(-ENOTBLK, folder, folder);
	refuse_format(-ENOTBLK, "/dev/null", "/dev/null");
	make_drive(drives[3], SPW_DRIVE_BYTES_MIN - 512);
	refuse_format(-ENOSPC, "at least 16 MiB", drives[3]);
	make_drive(drives[3], 0);
	refuse_format(-ENODEV, drives[3], drives[3]);
	make_drive(drives[3], 512);
	refuse_format(-ENOSPC, drives[3], drives[3]);
}

DRIVE_CASE(test_refuses_signatures)
{
	struct spw_format_opts opts = options(true);
	uint8_t magic[10];

	make_swap_area(drives[3], "");
	refuse_format(-EEXIST, "swap area", drives[3]);
	expect(0, spw_format(&drives[3], 1, &opts, NULL));
	read_at(drives[3], 4096 - 10, magic, sizeof(magic));
	assert_memory_not_equal(magic, "SWAPSPACE2", sizeof(magic));
}

/* VMFS has its magic at 2 MiB, in the data area, where zeroing the ends does not reach. */
DRIVE_CASE(test_removes_signatures_in_the_data_area)
{
	static const uint8_t vmfs[] = {0x5e, 0xf1, 0xab, 0x2f, 0x01};
	uint8_t around[] = {1, 2, 3, 4, 5}, found[5];
	struct spw_format_opts opts = options(true);

	write_at(drives[3], 2 * MIB - 5, around, sizeof(around));
	write_at(drives[3], 2 * MIB, vmfs, sizeof(vmfs));
	refuse_format(-EEXIST, "VMFS", drives[3]);
	expect(0, spw_format(&drives[3], 1, &opts, NULL));
	read_at(drives[3], 2 * MIB, found, sizeof(found));
	assert_memory_not_equal(found, vmfs, 4);
	read_at(drives[3], 2 * MIB - 5, found, sizeof(found));
	assert_memory_equal(found, around, sizeof(around));
	/* What a store's user has written there is no reason to refuse the store. */
	write_at(drives[3], 2 * MIB, vmfs, sizeof(vmfs));
	expect(0, spw_check(&drives[3], 1, NULL, NULL));
	expect(0, spw_wipe(&drives[3], 1, NULL));
}

/* ---- Data of which nothing is known ---- */

static char said[1024]; /* what format logs */

static void collect(void *context, enum spw_log_level level, const char *message)
{
	(void)context;
	if (level >= SPW_LOG_WARNING && strlen(said) + strlen(message) + 2 < sizeof(said))
		(void)strcat(strcat(said, message), "\n");
}

static int format_last(bool force, bool erase)
{
	struct spw_format_opts opts = options(force);

	opts.erase = erase;
	opts.log.write = collect;
	said[0] = '\0';
	return spw_format(&drives[3], 1, &opts, NULL);
}

static void expect_said(const char *words)
{
	if (!strstr(said, words))
		fail_msg("\"%s\" does not say \"%s\"", said, words);
}

/* One byte at either border of either end, and just beyond. */
DRIVE_CASE(test_unknown_data_at_the_ends)
{
	uint64_t size = size_of(drives[3]), before;
	const struct {
		uint64_t offset;
		bool refused;
		const char *words;
	} places[] = {
		{0, true, "from byte 0 on "},
		{MIB - 1, true, "1 B of its first MiB and 0 B of its last are not zero"},
		{MIB, false, ""},
		{size - MIB - 1, false, ""},
		{size - MIB, true, "0 B of its first MiB and 1 B of its last are not zero"},
		{size - 1, true, "5a (\"Z\")"},
	};

	for (size_t i = 0; i < SPW_ARRAY_LEN(places); i++) {
		make_drive(drives[3], size);
		write_at(drives[3], places[i].offset, "Z", 1);
		before = hash_all();
		expect(places[i].refused ? -EEXIST : 0, format_last(false, false));
		if (!places[i].refused)
			continue;
		expect_words("use --erase");
		expect_words(places[i].words);
		expect_refusal(-EEXIST, "use --erase", format_last(true, false));
		assert_int_equal(hash_all(), before);
		expect(0, format_last(false, true));
		expect_said("overwriting what it carries: unknown data");
		expect(0, spw_check(&drives[3], 1, NULL, NULL));
	}
}

/* Neither of force and erase stands for the other; what is known explains the rest. */
DRIVE_CASE(test_erase_is_not_force)
{
	struct spw_format_opts opts = options(false);
	uint64_t before;

	write_at(drives[3], MIB / 2, "a dump", 6);
	make_swap_area(drives[3], "");
	before = hash_all();
	expect_refusal(-EEXIST, "--force", format_last(false, true));
	assert_int_equal(hash_all(), before);
	expect(0, format_last(true, false));
	/* What the store's users have written explains itself, too, until the store is wiped. */
	write_at(drives[3], 2 * MIB, "data", 4);
	expect_refusal(-EEXIST, "--force", format_last(false, true));
	expect(0, format_last(true, false));
	assert_null(strstr(said, "between its ends"));
	expect(0, spw_wipe(&drives[3], 1, NULL));
	expect(0, format_last(false, false));
	expect(0, spw_wipe(&drives[3], 1, NULL));
	/* As an old caller passes them: no such field, whatever lies there. */
	write_at(drives[3], MIB / 2, "a dump", 6);
	opts.erase = true;
	opts.size = offsetof(struct spw_format_opts, erase);
	expect(-EEXIST, spw_format(&drives[3], 1, &opts, NULL));
}

/* A 64th of what lies between the ends cannot be missed, wherever it is. */
DRIVE_CASE(test_data_between_the_ends_is_told)
{
	uint64_t size = size_of(drives[3]), run = (size - 2 * MIB) / SPW_UNKNOWN_SAMPLES + 2 * 4096;

	expect(0, format_last(false, false));
	assert_string_equal(said, "");
	for (unsigned i = 0; i < 50; i++) {
		make_drive(drives[3], size);
		fill(drives[3], MIB + draw((uint32_t)(size - 2 * MIB - run)), run, 0x42);
		expect(0, format_last(false, false));
		expect_said("there is data between its ends, at ");
		expect_said(" of 64 places looked at, first at byte ");
	}
}

/* Format leaves nothing in the reserved areas, nor in the sector behind the last 4 KiB. */
DRIVE_CASE(test_reserved_areas_are_zeroed)
{
	uint64_t size = size_of(drives[0]), copy = copy_offset(drives[0], 1);
	struct spw_format_opts opts = options(false);

	fill(drives[0], 0, size, 0x5a);
	opts.erase = true;
	expect(0, spw_format(drives, 1, &opts, NULL));
	assert_true(holds_only(drives[0], 4096, MIB - 4096, 0));
	assert_true(holds_only(drives[0], copy + 4096 - MIB, MIB - 4096, 0));
	assert_true(holds_only(drives[0], copy + 4096, 512, 0));
	/* And nothing else: the data is as it was. */
	assert_true(holds_only(drives[0], MIB, copy + 4096 - 2 * MIB, 0x5a));
}

/* ---- Faults of drives and of the set ---- */

DRIVE_CASE(test_set_faults)
{
	const char *twice[DRIVES] = {drives[0], drives[1], drives[1]};
	const char *foreign[DRIVES] = {drives[0], drives[3], drives[2]};
	struct spw_format_opts opts = options(false);

	expect(0, format_drives(DRIVES, false, NULL));
	expect_refusal(-EMEDIUMTYPE, "is not a drive of a spillway store",
		       check_drives(foreign, DRIVES));
	expect(0, spw_format(&drives[3], 1, &opts, NULL));
	expect_refusal(-EMEDIUMTYPE, "drive3: belongs to another store",
		       check_drives(foreign, DRIVES));
	expect_refusal(-EMEDIUMTYPE, "drive3: belongs to another store",
		       check_drives(drives, DRIVES + 1));
	expect_refusal(-ENXIO, "drive 3 of 3", check_drives(drives, 2));
	expect_refusal(-ENXIO, "drive 1 of 3", check_drives(drives + 2, 1));
	expect_words("and 1 more");
	expect_refusal(-ENOTUNIQ, "same device", check_drives(twice, DRIVES));
	expect(-ENOENT, spw_check((const char *[]){"/no/such/drive"}, 1, NULL, NULL));
	expect(0, check_drives(drives, DRIVES));
}

/* dd from one drive to another: two devices, one identity. */
DRIVE_CASE(test_cloned_drive)
{
	const char *paths[DRIVES] = {drives[0], drives[1], drives[3]};
	uint8_t block[SPW_SUPERBLOCK_BYTES];

	make_drive(drives[3], size_of(drives[1]));
	expect(0, format_drives(DRIVES, false, NULL));
	for (unsigned copy = 0; copy < 2; copy++) {
		read_at(drives[1], copy_offset(drives[1], copy), block, sizeof(block));
		write_at(drives[3], copy_offset(drives[3], copy), block, sizeof(block));
	}
	expect_refusal(-ENOTUNIQ, "one is a copy of the other", check_drives(paths, DRIVES));
}

static void make_incomplete(struct spw_superblock *sb)
{
	sb->complete = false;
}

/* As FORMAT-4 leaves it, while others have gone on to FORMAT-5. */
static void make_unfinished(struct spw_superblock *sb)
{
	sb->complete = false;
	sb->sequence--;
}

static void contradict(struct spw_superblock *sb)
{
	sb->chunk_bytes /= 2;
}

static void set_read_only_feature(struct spw_superblock *sb)
{
	sb->features_read_only_compatible = 4;
}

static void set_incompatible_feature(struct spw_superblock *sb)
{
	sb->features_incompatible |= 2;
}

static void make_earlier(struct spw_superblock *sb)
{
	sb->features_incompatible = 0;
}

DRIVE_CASE(test_store_of_an_earlier_version)
{
	expect(0, format_drives(DRIVES, false, NULL));
	for (unsigned i = 0; i < DRIVES; i++)
		change_copies(drives[i], make_earlier);
	expect_refusal(-EPROTONOSUPPORT, "was formatted by an earlier version",
		       check_drives(drives, DRIVES));
	expect(-EEXIST, format_drives(DRIVES, false, NULL));
	expect(0, format_drives(DRIVES, true, NULL));
	expect(0, check_drives(drives, DRIVES));
	for (unsigned i = 0; i < DRIVES; i++)
		change_copies(drives[i], make_earlier);
	expect(0, spw_wipe(drives, DRIVES, NULL));
}

/* Of one drive of two partitions: its block says that step 12 is durable. */
static void commit_something(const char *path)
{
	struct spw_commit_place place;
	struct spw_commit commit = {.slot = 1,
				    .sequence = 3,
				    .number = 12,
				    .manifest_bytes = 100,
				    .piece_count = 1,
				    .pieces = {{.len_bytes = 100}}};
	uint8_t block[SPW_COMMIT_BLOCK_BYTES];
	struct spw_superblock sb;

	read_copy(path, 0, &sb);
	spw_drives__commit_place(&sb, 1, &place);
	spw_layout__commit_encode(&commit, &place, block);
	write_at(path, spw_layout__commit_offset(&sb, 1, 1), block, sizeof(block));
}

DRIVE_CASE(test_what_is_committed_is_not_overwritten)
{
	struct spw_format_opts format = options(true);
	struct spw_wipe_opts wipe;
	struct spw_commit_info info;

	expect(0, format_drives(DRIVES, false, NULL));
	expect(-ENODATA, spw_committed(drives, DRIVES, 1, &info, sizeof(info)));
	commit_something(drives[2]);
	expect(0, spw_committed(drives, DRIVES, 1, &info, sizeof(info)));
	assert_true(info.number == 12 && !info.has_previous);
	expect(-ENODATA, spw_committed(drives, DRIVES, 0, &info, sizeof(info)));
	expect(-EINVAL, spw_committed(drives, DRIVES, 2, &info, sizeof(info)));
	expect_refusal(-EEXIST, "drive2: partition 1 holds commit 12",
		       spw_format(drives, DRIVES, &format, NULL));
	expect_refusal(-EEXIST, "--erase", spw_wipe(drives, DRIVES, NULL));
	format.erase = true;
	expect(0, spw_format(drives, DRIVES, &format, NULL));
	/* Of the store that was there before: it is none of this one. */
	expect(-ENODATA, spw_committed(drives, DRIVES, 1, &info, sizeof(info)));
	expect(0, format_drives(DRIVES, true, NULL));
	commit_something(drives[0]);
	spw_wipe_opts_init(&wipe, sizeof(wipe));
	wipe.erase = true;
	expect(0, spw_wipe(drives, DRIVES, &wipe));
}

DRIVE_CASE(test_drive_faults)
{
	struct spw_assembly assembly;

	expect(0, format_drives(DRIVES, false, NULL));
	change_copies(drives[1], contradict);
	expect_refusal(-EUCLEAN, "contradicts", check_drives(drives, DRIVES));
	expect(0, format_drives(DRIVES, true, NULL));
	change_copies(drives[2], make_unfinished);
	expect_refusal(-EUCLEAN, "drive2: its format did not finish", check_drives(drives, DRIVES));
	expect(0, format_drives(DRIVES, true, NULL));
	for (unsigned i = 0; i < DRIVES; i++)
		change_copies(drives[i], set_read_only_feature);
	expect(0, spw_check(drives, DRIVES, NULL, NULL));
	expect(0, spw_drives__assemble(drives, DRIVES, true, NULL, &assembly));
	spw_drives__assembly_close(&assembly);
	expect_refusal(-EPROTONOSUPPORT, "newer version",
		       assemble_all(drives, DRIVES, NULL, &assembly));
	change_copies(drives[0], set_incompatible_feature);
	expect_refusal(-EPROTONOSUPPORT, "drive0: was formatted by a newer version",
		       check_drives(drives, DRIVES));
	expect_refusal(-EEXIST, "newer format", format_drives(DRIVES, false, NULL));
	expect(-EPROTONOSUPPORT, spw_wipe(drives, 1, NULL));
	expect(0, format_drives(DRIVES, true, NULL));
}

DRIVE_CASE(test_resized_drives)
{
	struct spw_drive_info info[DRIVES] = {{.size = sizeof(info[0])}};
	uint64_t size = size_of(drives[1]);

	expect(0, format_drives(DRIVES, false, NULL));
	assert_int_equal(truncate(drives[1], (off_t)(size - MIB)), 0);
	expect_refusal(-ENOSPC, "drive1: is smaller than when it was formatted",
		       check_drives(drives, DRIVES));
	assert_int_equal(truncate(drives[1], (off_t)size), 0); /* copy 1 has become zeros */
	expect(0, spw_check(drives, DRIVES, NULL, info));
	assert_int_equal(info[1].copies_good, 1);
	expect(0, format_drives(DRIVES, true, NULL));
	/* A device that has grown keeps both its copies. */
	assert_int_equal(truncate(drives[1], (off_t)(size + MIB)), 0);
	expect(0, spw_check(drives, DRIVES, NULL, info));
	assert_int_equal(info[1].copies_good, 2);
	expect(0, format_drives(DRIVES, true, NULL));
	expect(0, spw_check(drives, DRIVES, NULL, info));
	/* Formatted larger, then cut to the first size, whose old copy 1 is still there. */
	assert_int_equal(truncate(drives[1], (off_t)size), 0);
	expect(-ENOSPC, check_drives(drives, DRIVES));
	assert_int_equal(truncate(drives[1], 4096), 0);
	expect(-EMEDIUMTYPE, check_drives(drives, DRIVES));
}

/* mkfs over a drive of a store: whichever copies survive, the drive is not ours any more. */
DRIVE_CASE(test_overgrown_drive)
{
	static const uint32_t md_magic[] = {0xa92b4efc, 1}, md_sector[] = {8, 0};

	expect(0, format_drives(DRIVES, false, NULL));
	make_swap_area(drives[1], "");
	expect_refusal(-EMEDIUMTYPE, "swap area", check_drives(drives, DRIVES));
	expect(-EEXIST, spw_wipe(&drives[1], 1, NULL));
	/* mdadm with metadata 1.2 writes 4 KiB behind the begin: both copies survive. */
	expect(0, format_drives(DRIVES, true, NULL));
	write_at(drives[1], 4096, md_magic, sizeof(md_magic));
	write_at(drives[1], 4096 + 144, md_sector, sizeof(md_sector));
	expect_refusal(-EMEDIUMTYPE, "linux_raid_member", check_drives(drives, DRIVES));
	expect_refusal(-EEXIST, "linux_raid_member", spw_wipe(&drives[1], 1, NULL));
	expect(0, format_drives(DRIVES, true, NULL));
}

static void count_warning(void *context, enum spw_log_level level, const char *message)
{
	unsigned *warnings = context;

	if (level == SPW_LOG_WARNING && strstr(message, "drive1: the"))
		(*warnings)++;
}

DRIVE_CASE(test_one_damaged_copy_serves)
{
	unsigned warnings = 0;
	struct spw_log log = {.write = count_warning, .context = &warnings};
	struct spw_drive_info info[DRIVES] = {{.size = sizeof(info[0])}};
	struct spw_assembly assembly;

	for (unsigned copy = 0; copy < 2; copy++) {
		expect(0, format_drives(DRIVES, true, NULL));
		damage_copy(drives[1], copy);
		expect(0, spw_check(drives, DRIVES, NULL, info));
		assert_int_equal(info[0].copies_good, 2);
		assert_int_equal(info[1].copies_good, 1);
		expect(0, assemble_all(drives, DRIVES, &log, &assembly));
		spw_drives__assembly_close(&assembly);
		assert_int_equal(warnings, copy + 1);
	}
	damage_copy(drives[1], 0);
	expect_refusal(-EUCLEAN, "both superblock copies are damaged",
		       check_drives(drives, DRIVES));
}

/* Exchanged, and each in both places. */
DRIVE_CASE(test_misplaced_copies)
{
	uint8_t first[SPW_SUPERBLOCK_BYTES], last[SPW_SUPERBLOCK_BYTES];
	struct spw_drive_info info = {.size = sizeof(info)};
	uint64_t end = copy_offset(drives[0], 1);

	expect(0, format_drives(1, false, NULL));
	read_at(drives[0], 0, first, sizeof(first));
	read_at(drives[0], end, last, sizeof(last));
	write_at(drives[0], 0, last, sizeof(last));
	expect(0, spw_check(drives, 1, NULL, &info));
	assert_int_equal(info.copies_good, 1);
	write_at(drives[0], end, first, sizeof(first));
	expect(-EUCLEAN, check_drives(drives, 1));
	write_at(drives[0], 0, first, sizeof(first));
	expect(0, spw_check(drives, 1, NULL, &info));
	assert_int_equal(info.copies_good, 1);
}

/*
 * copy_index, flags, sequence, drive_count, UUIDs of the one drive and of one more, checksum: what
 * two copies of a drive may differ in (LAYOUT-14).
 */
static bool may_differ(unsigned at)
{
	return (at >= 0x10 && at < 0x20) || (at >= 0x54 && at < 0x58) ||
	       (at >= 0x800 && at < 0x820) || at >= 0xff8;
}

/* A bit of each byte of a copy: not ours, unless copies may differ there; of both: damaged. */
DRIVE_CASE(test_flipped_bits)
{
	uint64_t end = copy_offset(drives[0], 1);
	uint8_t first[SPW_SUPERBLOCK_BYTES], last[SPW_SUPERBLOCK_BYTES];
	struct spw_drive_info info = {.size = sizeof(info)};

	expect(0, format_drives(1, false, NULL));
	read_at(drives[0], 0, first, sizeof(first));
	read_at(drives[0], end, last, sizeof(last));
	for (unsigned at = 0; at < SPW_SUPERBLOCK_BYTES; at += 1 + draw(16)) {
		uint8_t bad_first = (uint8_t)(first[at] ^ (1u << draw(8))),
			bad_last = (uint8_t)(last[at] ^ (1u << draw(8)));

		write_at(drives[0], at, &bad_first, 1);
		expect(may_differ(at) || bad_first == 0 ? 0 : -EMEDIUMTYPE,
		       spw_check(drives, 1, NULL, &info));
		assert_int_equal(info.copies_good, 1);
		write_at(drives[0], end + at, &bad_last, 1);
		expect(at < 8 ? -EMEDIUMTYPE : -EUCLEAN, spw_check(drives, 1, NULL, NULL));
		write_at(drives[0], at, &first[at], 1);
		expect(may_differ(at) || bad_last == 0 ? 0 : -EMEDIUMTYPE,
		       spw_check(drives, 1, NULL, &info));
		assert_int_equal(info.copies_good, 1);
		write_at(drives[0], end + at, &last[at], 1);
	}
	expect(0, spw_check(drives, 1, NULL, &info));
	assert_int_equal(info.copies_good, 2);
}

/*
 * The drive has come into use in a way that libblkid does not know, plain dm-crypt or a
 * database, from its beginning or up to its end, and the other copy survives: it opens nothing and
 * wipes nothing.
 */
DRIVE_CASE(test_a_place_that_somebody_else_has_written)
{
	struct spw_probe_info probe = {.size = sizeof(probe)};
	uint8_t noise[65536];
	uint64_t before;

	for (unsigned copy = 0; copy < 2; copy++) {
		expect(0, format_drives(DRIVES, true, NULL));
		for (size_t i = 0; i < sizeof(noise); i++)
			noise[i] = (uint8_t)draw(256);
		/* Not by chance something that libblkid knows. */
		memset(noise + 510, 0, 2);
		write_at(drives[1], copy == 0 ? 0 : size_of(drives[1]) - sizeof(noise), noise,
			 sizeof(noise));
		before = hash_all();
		expect_refusal(-EMEDIUMTYPE, "drive1: something else has been made of this drive",
			       check_drives(drives, DRIVES));
		expect_words("unknown data at byte");
		expect_refusal(-EEXIST, "unknown data at byte", spw_wipe(drives, DRIVES, NULL));
		expect(-EEXIST, format_drives(DRIVES, false, NULL));
		expect(0, spw_probe(drives[1], &probe));
		assert_int_equal(probe.error, -EEXIST);
		assert_non_null(strstr(probe.holds, "unknown data at byte"));
		assert_int_equal(hash_all(), before);
	}
	expect(0, format_drives(DRIVES, true, NULL));
	expect(0, check_drives(drives, DRIVES));
}

/* Between assembling and claiming, too. */
DRIVE_CASE(test_written_over_just_now)
{
	struct spw_assembly assembly;

	expect(0, format_drives(DRIVES, false, NULL));
	expect(0, assemble_all(drives, DRIVES, NULL, &assembly));
	fill(drives[2], 0, SPW_SUPERBLOCK_BYTES, 0x5a);
	expect(0, spw_drives__assembly_lock(&assembly, 0));
	expect_refusal(-EMEDIUMTYPE, "unknown data at byte 0 (5a 5a 5a 5a)",
		       spw_drives__assembly_claim(&assembly, 0, NULL));
	spw_drives__assembly_close(&assembly);
}

/* ---- Locks ---- */

static uint32_t partitions_in_use(void)
{
	struct spw_store_info info = {.size = sizeof(info)};

	expect(0, spw_check(drives, DRIVES, &info, NULL));
	return info.partitions_in_use;
}

DRIVE_CASE(test_partitions_have_one_owner)
{
	struct spw_assembly a, b;
	uint64_t before;

	expect(0, format_drives(DRIVES, false, NULL));
	expect(0, assemble_all(drives, DRIVES, NULL, &a));
	expect(0, assemble_all(drives, DRIVES, NULL, &b));
	expect(0, spw_drives__assembly_lock(&a, 1));
	assert_int_equal(partitions_in_use(), 1);
	expect_refusal(-EBUSY, "partition 1", spw_drives__assembly_lock(&b, 1));
	expect(0, spw_drives__assembly_lock(&b, 0));
	assert_int_equal(partitions_in_use(), 2);
	before = hash_all();
	expect_refusal(-EBUSY, "a process has a store on it open",
		       format_drives(DRIVES, true, NULL));
	expect(-EBUSY, spw_wipe(drives, DRIVES, NULL));
	assert_int_equal(hash_all(), before);
	spw_drives__assembly_close(&a);
	assert_int_equal(partitions_in_use(), 1);
	spw_drives__assembly_close(&b);
	assert_int_equal(partitions_in_use(), 0);
	expect(0, format_drives(DRIVES, true, NULL));
}

/* A lock on one drive alone, as of another store's process: all locks are released. */
DRIVE_CASE(test_failed_lock_leaves_nothing_locked)
{
	struct spw_assembly a, b;

	expect(0, format_drives(DRIVES, false, NULL));
	expect(0, assemble_all(drives, DRIVES, NULL, &a));
	expect(0, assemble_all(drives, DRIVES, NULL, &b));
	expect(0, spw_device_lock(a.devices[2], spw_layout__partition_offset(&a.superblocks[2], 0),
				  1));
	expect(-EBUSY, spw_drives__assembly_lock(&b, 0));
	expect(0, spw_device_unlock(a.devices[2],
				    spw_layout__partition_offset(&a.superblocks[2], 0), 1));
	assert_int_equal(partitions_in_use(), 0);
	spw_drives__assembly_close(&a);
	spw_drives__assembly_close(&b);
}

DRIVE_CASE(test_format_between_assembling_and_locking)
{
	struct spw_assembly assembly;

	expect(0, format_drives(DRIVES, false, NULL));
	expect(0, assemble_all(drives, DRIVES, NULL, &assembly));
	expect(0, format_drives(DRIVES, true, NULL));
	expect(0, spw_drives__assembly_lock(&assembly, 0));
	expect_refusal(-EUCLEAN, "formatted by another process just now",
		       spw_drives__assembly_claim(&assembly, 0, NULL));
	expect(0, spw_wipe(drives, DRIVES, NULL));
	expect(0, spw_drives__assembly_lock(&assembly, 0));
	expect(-EMEDIUMTYPE, spw_drives__assembly_claim(&assembly, 0, NULL));
	spw_drives__assembly_close(&assembly);
}

/* ---- Wipe ---- */

DRIVE_CASE(test_wipe)
{
	const char *mixed[2] = {drives[0], drives[3]};
	uint64_t before;

	expect(0, format_drives(DRIVES, false, NULL));
	before = hash_all();
	/* one holds a store, the other does not: neither is touched */
	expect_refusal(-EMEDIUMTYPE, "drive3: holds no spillway store", spw_wipe(mixed, 2, NULL));
	assert_int_equal(hash_all(), before);
	expect(0, spw_wipe(&drives[1], 1, NULL)); /* the others of its store missing */
	expect(-EMEDIUMTYPE, check_drives(drives, DRIVES));
	damage_copy(drives[0], 0); /* a damaged copy beside an intact one */
	expect(0, spw_wipe(drives, 1, NULL));
	damage_copy(drives[2], 0);
	damage_copy(drives[2], 1);
	before = hash_all();
	expect(-EUCLEAN, spw_wipe(&drives[2], 1, NULL));
	assert_int_equal(hash_all(), before);
	for (unsigned i = 0; i < 2; i++)
		for (unsigned copy = 0; copy < 2; copy++)
			assert_true(holds_only(drives[i], copy_offset(drives[i], copy),
					       SPW_SUPERBLOCK_BYTES, 0));
	expect(0, format_drives(2, false, NULL)); /* free again, without force */
}

DRIVE_CASE(test_wipe_of_grown_drive)
{
	uint64_t size = size_of(drives[0]), copy = copy_offset(drives[0], 1);

	expect(0, format_drives(1, false, NULL));
	assert_int_equal(truncate(drives[0], (off_t)(size + MIB)), 0);
	fill(drives[0], copy_offset(drives[0], 1), SPW_SUPERBLOCK_BYTES, 0x33);
	expect(0, spw_wipe(drives, 1, NULL));
	assert_true(holds_only(drives[0], copy, SPW_SUPERBLOCK_BYTES, 0));
	/* The new end is not the store's. */
	assert_true(holds_only(drives[0], copy_offset(drives[0], 1), SPW_SUPERBLOCK_BYTES, 0x33));
}

DRIVE_CASE(test_wipe_discards)
{
	expect(0, format_drives(1, false, NULL));
	fill(drives[0], 5 * MIB, 4096, 0x44);
	expect(0, spw_wipe(drives, 1, NULL));
	/* As it was if the file system cannot punch holes. */
	assert_true(holds_only(drives[0], 5 * MIB, 4096, 0) ||
		    holds_only(drives[0], 5 * MIB, 4096, 0x44));
}

/* ---- Probe ---- */

static void expect_probe(const char *path, int error, const char *holds, const char *reason)
{
	struct spw_probe_info info = {.size = sizeof(info)};
	uint64_t before = hash_all();

	expect(0, spw_probe(path, &info));
	assert_int_equal(hash_all(), before);
	assert_string_equal(info.path, path);
	assert_int_equal(info.error, error);
	assert_int_equal(info.usable, error == 0);
	if (!strstr(info.holds, holds) || !strstr(info.reason, reason))
		fail_msg("%s: holds \"%s\", reason \"%s\"; expected \"%s\", \"%s\"", path,
			 info.holds, info.reason, holds, reason);
	assert_int_equal(info.reason[0] == '\0', error == 0);
}

DRIVE_CASE(test_probe)
{
	struct spw_assembly assembly;

	expect_probe(drives[0], 0, "nothing known", "");
	expect_probe("/no/such/drive", -ENOENT, "", "/no/such/drive");
	expect_probe("/dev/null", -ENOTBLK, "", "/dev/null");
	expect_probe(folder, -ENOTBLK, "", folder);
	make_swap_area(drives[3], "");
	expect_probe(drives[3], -EEXIST, "swap area", "--force");
	make_drive(drives[3], DRIVE_SIZE);
	write_at(drives[3], 4000, "SECRET", 6);
	expect_probe(drives[3], -EEXIST, "unknown data", "use --erase if that may be lost");
	make_drive(drives[3], 8 * MIB);
	expect_probe(drives[3], -ENOSPC, "nothing known", "at least 16 MiB");
	expect(0, format_drives(DRIVES, false, NULL));
	expect_probe(drives[1], -EEXIST, "drive 2 of 3", "carries a spillway store");
	expect(0, assemble_all(drives, DRIVES, NULL, &assembly));
	expect(0, spw_drives__assembly_lock(&assembly, 0));
	expect_probe(drives[1], -EBUSY, "drive 2 of 3", "a process has a store on it open");
	spw_drives__assembly_close(&assembly);
	change_copies(drives[1], make_incomplete);
	expect_probe(drives[1], -EEXIST, "unfinished spillway store", "--force");
	damage_copy(drives[1], 0);
	damage_copy(drives[1], 1);
	expect_probe(drives[1], -EEXIST, "damaged spillway store", "--force");
}

DRIVE_CASE(test_probe_list)
{
	char **paths = NULL;
	int count = spw_probe_list(&paths);

	assert_true(count >= 0);
	for (int i = 0; i < count; i++) {
		assert_int_equal(strncmp(paths[i], "/dev/", 5), 0);
		for (int j = 0; j < i; j++)
			assert_string_not_equal(paths[i], paths[j]);
	}
	assert_null(paths[count]);
	spw_probe_list_free(paths);
	spw_probe_list_free(NULL);
}

RUN_CASES(make_folder, remove_folder)
