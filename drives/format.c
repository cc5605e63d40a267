/* SPDX-License-Identifier: MIT */
/*
 * drives/format.c - spw_format(), spw_wipe(): create and remove a store on drives
 *
 * The order of a format. Every step is done on all drives, and made durable, before the next
 * begins.
 *
 *   FORMAT-1  All drives are claimed and examined: known contents, and the MiB at each end. Nothing
 *             is written up to here; a refusal leaves every byte unchanged.
 *   FORMAT-2  Copy 1 is written, marked incomplete, with a sequence number above that of every
 *             intact copy on any of the drives.
 *   FORMAT-3  Copy 0 likewise. Now every drive is recognized as an unfinished format.
 *   FORMAT-4  The rest of both reserved areas is zeroed, and signatures that libblkid still finds
 *             are erased.
 *   FORMAT-5  Copy 0 is written, marked complete, with the next sequence number.
 *   FORMAT-6  Copy 1 likewise.
 *
 * At most one copy of a drive is being written at any time, so a power cut tears at most one. Torn
 * in FORMAT-2: copy 0 is unchanged, and the drive is what it was. After that, an intact copy is
 * marked incomplete until FORMAT-5 is durable on that drive: the set is refused while one drive is
 * incomplete. Torn in FORMAT-6: copy 0 is intact and complete on every drive. So a crash leaves the
 * old store, the new store or an unfinished format; and as the store's UUID is new, old and new
 * drives never mix.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/blkpg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "engine/device.h"
#include "engine/vfio/vfio.h"
#include "drives/committed.h"
#include "drives/format.h"
#include "drives/safety.h"
#include "drives/space.h"
#include "util/util.h"

#define CHUNK_BYTES_DEFAULT  (1u << 20)
#define ZERO_BYTES           (256u << 10) /* length of a write when zeroing areas */
#define WIPE_ROUNDS_MAX      64
#define PARTITION_NUMBER_MAX 256

int spw_drives__format_each(const struct spw_format_run *run, spw_format_step *step)
{
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < run->count; i++)
		rc = step(run, &run->targets[i]);
	return rc;
}

/* ---- Writing ---- */

static int sync_target(const struct spw_format_run *run, struct spw_candidate *target)
{
	(void)run;
	return spw_device_sync(target->device);
}

/* Write a copy of @sb, or zeros if @sb is NULL. */
static int write_copy(const struct spw_device *device, const struct spw_superblock *sb,
		      unsigned copy, uint64_t offset_bytes)
{
	struct spw_span span = spw_drives__superblock_span(device, offset_bytes);
	uint8_t *buf = spw_engine__device_buffer(device, span.len_bytes);
	int rc;

	SPW_ASSERT(span.inside_bytes + SPW_SUPERBLOCK_BYTES <= span.len_bytes);
	if (!buf)
		return -ENOMEM;
	if (sb) {
		struct spw_superblock decoded;

		spw_layout__encode(sb, copy, buf + span.inside_bytes);
		SPW_MUST(spw_layout__decode(buf + span.inside_bytes, copy, &decoded, NULL));
	}
	rc = spw_device_pwrite(spw_drives__claimed(device), buf, span.len_bytes, span.offset_bytes);
	free(buf);
	return rc;
}

/* Write and sync one copy on all drives: FORMAT-2, 3, 5 or 6. */
int spw_drives__format_write(const struct spw_format_run *run, unsigned copy)
{
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < run->count; i++) {
		const struct spw_superblock *sb = &run->targets[i].superblock;

		rc = write_copy(run->targets[i].device, sb, copy,
				spw_layout__copy_offset(sb->device_bytes, copy));
	}
	return rc != 0 ? rc : spw_drives__format_each(run, sync_target);
}

static int zero_range(const struct spw_format_run *run, const struct spw_candidate *target,
		      uint64_t from_bytes, uint64_t to_bytes)
{
	uint8_t *zeros;
	int rc;

	if (from_bytes >= to_bytes)
		return 0;
	SPW_ASSERT(to_bytes <= target->device->geometry.size_bytes);
	rc = spw_engine__device_write_zeroes(spw_drives__claimed(target->device), from_bytes,
					     to_bytes - from_bytes);
	if (rc != -EOPNOTSUPP)
		return rc;
	if (spw_device_geometry(target->device)->kind == SPW_DEVICE_VFIO)
		spw_log(run->log, SPW_LOG_INFO, "%s: zeroes are written to it: it cannot by itself",
			target->path);
	rc = 0;
	zeros = spw_engine__device_buffer(target->device, ZERO_BYTES);
	if (!zeros)
		return -ENOMEM;
	while (rc == 0 && from_bytes < to_bytes) {
		size_t len = SPW_MIN(to_bytes - from_bytes, ZERO_BYTES);

		rc = spw_device_pwrite(spw_drives__claimed(target->device), zeros, len, from_bytes);
		from_bytes += len;
	}
	free(zeros);
	return rc;
}

/* Zero a drive's reserved areas except superblocks, up to its last whole block (FORMAT-4). */
static int zero_reserved_areas(const struct spw_format_run *run, struct spw_candidate *target)
{
	const struct spw_superblock *sb = &target->superblock;
	struct spw_span first = spw_drives__superblock_span(target->device, 0);
	struct spw_span last = spw_drives__superblock_span(
		target->device, spw_layout__copy_offset(sb->device_bytes, 1));
	uint64_t size_bytes = spw_device_geometry(target->device)->size_bytes;
	int rc = zero_range(run, target, first.len_bytes, sb->data_offset_bytes);

	SPW_ASSERT(first.len_bytes <= sb->data_offset_bytes &&
		   last.offset_bytes >=
			   sb->device_bytes -
				   SPW_LAYOUT_RESERVED_BYTES); /* outside the data (FORMAT-4) */
	if (rc == 0)
		rc = zero_range(run, target, sb->device_bytes - SPW_LAYOUT_RESERVED_BYTES,
				last.offset_bytes);
	if (rc == 0)
		rc = zero_range(run, target, last.offset_bytes + last.len_bytes, size_bytes);
	return rc;
}

static int erase_signature(const struct spw_candidate *target,
			   const struct spw_signature *signature)
{
	const struct spw_geometry *geometry = spw_device_geometry(target->device);
	uint64_t unit = geometry->logical_block_bytes, start, len;
	uint8_t *buf;
	int rc;

	if (signature->len_bytes == 0 || signature->len_bytes > ZERO_BYTES ||
	    signature->offset_bytes > geometry->size_bytes - signature->len_bytes)
		return spw_error(
			-EEXIST,
			"%s: carries %s, which cannot be removed; run wipefs -a on it first",
			target->path, signature->what);
	start = spw_round_down(signature->offset_bytes, unit);
	len = spw_round_up(signature->offset_bytes + signature->len_bytes, unit) - start;
	SPW_ASSERT(start <= signature->offset_bytes &&
		   start + len >= signature->offset_bytes + signature->len_bytes);
	buf = spw_engine__device_buffer(target->device, len);
	if (!buf)
		return -ENOMEM;
	rc = spw_device_pread(target->device, buf, len, start);
	if (rc == 0) {
		memset(buf + (signature->offset_bytes - start), 0, signature->len_bytes);
		rc = spw_device_pwrite(spw_drives__claimed(target->device), buf, len, start);
	}
	free(buf);
	return rc;
}

/*
 * Erase signatures outside the reserved areas, one by one: some appear only when others are gone.
 */
static int erase_signatures(const struct spw_format_run *run, struct spw_candidate *target)
{
	struct spw_signatures signatures;

	for (unsigned round = 0; round < WIPE_ROUNDS_MAX; round++) {
		int rc = spw_drives__safety_signatures(target->path, &signatures);

		if (rc != 0 || signatures.count == 0)
			return rc;
		spw_log(run->log, SPW_LOG_INFO, "%s: removing %s", target->path,
			signatures.found[0].what);
		rc = erase_signature(target, &signatures.found[0]);
		/* libblkid reads through the page cache: sync, so that it sees the change. */
		if (rc == 0)
			rc = spw_device_sync(target->device);
		if (rc != 0)
			return rc;
	}
	return spw_error(-EEXIST, "%s: still carries %s; run wipefs -a on it first", target->path,
			 signatures.found[0].what);
}

int spw_drives__format_clear(const struct spw_format_run *run)
{
	int rc = spw_drives__format_each(run, zero_reserved_areas);

	if (rc == 0)
		rc = spw_drives__format_each(run, sync_target);
	return rc == 0 ? spw_drives__format_each(run, erase_signatures) : rc;
}

int spw_drives__format_warn(const struct spw_format_run *run, struct spw_candidate *target)
{
	const struct spw_contents *contents = &target->contents;
	const struct spw_unknown_data_samples *samples = &target->samples;

	if (contents->store || contents->foreign || contents->unknown.found)
		spw_log(run->log, SPW_LOG_WARNING, "%s: overwriting what it carries: %s",
			target->path, contents->text);
	if (samples->not_zero > 0)
		spw_log(run->log, SPW_LOG_WARNING,
			"%s: there is data between its ends, at %u of %u places looked at, first "
			"at byte %llu; the store will write over it",
			target->path, samples->not_zero, samples->taken,
			(unsigned long long)samples->offset_bytes);
	if (samples->unreadable > 0)
		spw_log(run->log, SPW_LOG_WARNING,
			"%s: of %u places between its ends %u cannot be read; check the drive",
			target->path, samples->taken, samples->unreadable);
	return 0;
}

static int write_store(const struct spw_format_run *run)
{
	int rc = spw_drives__format_each(run, spw_drives__format_warn);

	if (rc == 0)
		rc = spw_drives__format_write(run, 1); /* incomplete (FORMAT-2) */
	if (rc == 0)
		rc = spw_drives__format_write(run, 0); /* incomplete (FORMAT-3) */
	if (rc == 0)
		rc = spw_drives__format_clear(run); /* areas, signatures (FORMAT-4) */
	for (unsigned i = 0; rc == 0 && i < run->count; i++) {
		SPW_ASSERT(!run->targets[i].superblock.complete); /* until now (FORMAT-3) */
		run->targets[i].superblock.complete = true;
		run->targets[i].superblock.sequence++;
	}
	if (rc == 0)
		rc = spw_drives__format_write(run, 0); /* complete (FORMAT-5) */
	if (rc == 0)
		rc = spw_drives__format_write(run, 1); /* complete (FORMAT-6) */
	return rc;
}

/* ---- Examining ---- */

static int claim(const struct spw_format_run *run, struct spw_candidate *target)
{
	return spw_claim(target->path, run->log, &target->device);
}

int spw_drives__format_claim(const struct spw_format_run *run, struct spw_candidate *target)
{
	uint64_t size_bytes;
	int rc = claim(run, target);

	if (rc == 0)
		rc = spw_drives__safety_conventional(target->path);
	if (rc != 0)
		return rc;
	size_bytes = spw_device_geometry(target->device)->size_bytes;
	if (size_bytes < SPW_DRIVE_BYTES_MIN)
		return spw_drives__too_small_error(target->path, size_bytes);
	return 0;
}

/* Refuse if the store on the drive, if there is one, has a commit. */
static int refuse_committed(const struct spw_candidate *target)
{
	const struct spw_superblocks *superblocks = &target->contents.superblocks;

	SPW_ASSERT(target->device && superblocks->chosen < SPW_PLACES);
	if (superblocks->chosen < 0)
		return 0;
	return spw_drives__committed_refuse(target->device,
					    &superblocks->places[superblocks->chosen].superblock);
}

int spw_drives__format_examine(const struct spw_format_run *run, struct spw_candidate *target)
{
	if (!run->opts->force && (target->contents.store || target->contents.foreign))
		return spw_drives__carries_error(target->path, &target->contents);
	/* Users give --force out of habit: losing unknown data or commits needs --erase. */
	if (!run->opts->erase && target->contents.unknown.found)
		return spw_drives__unknown_data_error(target->path, &target->contents.unknown);
	return run->opts->erase ? 0 : refuse_committed(target);
}

static int open_targets(struct spw_format_run *run, const char *const paths[], unsigned count)
{
	int rc = spw_drives__candidates_new(paths, count, true, &run->targets);

	if (rc == 0)
		rc = spw_drives_distinct(paths, count);
	if (rc != 0)
		return rc;
	run->count = count;
	run->hold = spw_vfio__hold(paths, count, run->log);
	return 0;
}

static void close_targets(struct spw_format_run *run)
{
	spw_drives__candidates_close(run->targets, run->count);
	spw_vfio__let_go(run->hold);
}

/* Claim the targets by @claim_target, read the contents of all, and let @examine check each. */
static int examine_targets(const struct spw_format_run *run, spw_format_step *claim_target,
			   spw_format_step *examine)
{
	int rc = spw_drives__format_each(run, claim_target);

	if (rc == 0)
		rc = spw_drives__candidates_read(run->targets, run->count, run->log);
	return rc == 0 ? spw_drives__format_each(run, examine) : rc;
}

/* ---- Planning ---- */

int spw_drives__format_uuid(uint8_t uuid[16])
{
	ssize_t got = getrandom(uuid, 16, 0);

	if (got != 16)
		return spw_error_errno(got < 0 ? -errno : -EIO, "no random bytes for a UUID");
	uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x40); /* RFC 4122: random */
	uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
	return 0;
}

/* A number above that of every intact copy, even if that copy is not the valid one (FORMAT-2). */
int spw_drives__format_sequence(const struct spw_format_run *run, uint64_t *sequence)
{
	const struct spw_candidate *highest_on = &run->targets[0];
	uint64_t highest = 0;

	for (unsigned i = 0; i < run->count; i++)
		for (unsigned place = 0; place < SPW_PLACES; place++) {
			const struct spw_place_content *content =
				&run->targets[i].contents.superblocks.places[place];

			if (content->result == 0 && content->superblock.sequence > highest) {
				highest = content->superblock.sequence;
				highest_on = &run->targets[i];
			}
		}
	/* Formats never get there, but a superblock may have any number. */
	if (highest > SPW_LAYOUT_SEQUENCE_MAX - 2)
		return spw_error(
			-EUCLEAN,
			"%s: its superblock's sequence number is used up; run spillway wipe first",
			highest_on->path);
	*sequence = highest + 1;
	return 0;
}

static int plan_store(const struct spw_format_run *run, struct spw_superblock *store)
{
	const struct spw_format_opts *opts = run->opts;
	int rc = spw_drives__format_sequence(run, &store->sequence);

	if (rc == 0)
		rc = spw_drives__format_uuid(store->store_uuid);
	SPW_ASSERT(run->count > 0 && run->count <= SPW_DRIVES_MAX);
	store->features_incompatible = SPW_FEATURE_COMMITS;
	store->drive_count = run->count;
	store->block_bytes = SPW_LAYOUT_BLOCK_BYTES;
	store->chunk_bytes = opts->chunk_bytes != 0 ? opts->chunk_bytes : CHUNK_BYTES_DEFAULT;
	store->partition_count = opts->partitions;
	store->created_unix_s = (uint64_t)time(NULL);
	for (unsigned i = 0; rc == 0 && i < run->count; i++) {
		uint32_t logical = spw_device_geometry(run->targets[i].device)->logical_block_bytes;

		store->block_bytes = SPW_MAX(store->block_bytes, logical);
		rc = spw_drives__format_uuid(store->drive_uuids[i]);
	}
	if (rc == 0 && store->block_bytes > store->chunk_bytes)
		return spw_error(-EINVAL,
				 "a chunk of %llu bytes is smaller than a block of these drives "
				 "(%u); choose a larger --chunk",
				 (unsigned long long)store->chunk_bytes, store->block_bytes);
	return rc;
}

int spw_drives__format_plan(struct spw_candidate *target, const struct spw_superblock *store,
			    unsigned index)
{
	const struct spw_geometry *geometry = spw_device_geometry(target->device);
	int rc;

	SPW_ASSERT(index < store->drive_count && !store->complete);
	target->superblock = *store;
	target->superblock.drive_index = index;
	target->superblock.logical_block_bytes = geometry->logical_block_bytes;
	rc = spw_layout__plan(&target->superblock, geometry->size_bytes);
	if (rc == -ENOSPC)
		return spw_error(
			rc,
			"%s: %s is too small for %u partitions of at least one chunk (%s); choose "
			"fewer --partitions or a smaller --chunk, or a larger drive",
			target->path, SPW_SIZE_TEXT(geometry->size_bytes), store->partition_count,
			SPW_SIZE_TEXT(store->chunk_bytes));
	if (rc != 0)
		return spw_error(rc, "%s: blocks of %u bytes and a size of %llu are not supported",
				 target->path, geometry->logical_block_bytes,
				 (unsigned long long)geometry->size_bytes);
	return 0;
}

static int plan(const struct spw_format_run *run)
{
	struct spw_superblock store = {0};
	int rc = plan_store(run, &store);

	for (unsigned i = 0; rc == 0 && i < run->count; i++)
		rc = spw_drives__format_plan(&run->targets[i], &store, i);
	return rc;
}

static int check_opts(const struct spw_format_opts *opts)
{
	if (opts->partitions == 0 || opts->partitions > SPW_PARTITIONS_MAX)
		return spw_error(-EINVAL, "%u partitions: choose 1 to %u", opts->partitions,
				 SPW_PARTITIONS_MAX);
	if (opts->chunk_bytes != 0 &&
	    (!spw_is_power_of_two(opts->chunk_bytes) || opts->chunk_bytes < SPW_CHUNK_BYTES_MIN ||
	     opts->chunk_bytes > SPW_CHUNK_BYTES_MAX))
		return spw_error(
			-EINVAL,
			"a chunk of %llu bytes: choose a power of two from 64 KiB to 64 MiB",
			(unsigned long long)opts->chunk_bytes);
	return 0;
}

/* ---- Format ---- */

/* Remove the kernel's partition nodes, one by one: loop devices reject parallel rereads. */
static void forget_partitions(const char *path, const struct spw_log *log)
{
	char node[PATH_MAX], names[96];
	int fd;

	/* The kernel may have removed them when the device was closed. */
	if (spw_drives__safety_partitions(path, names, sizeof(names)) == 0)
		return;
	fd = spw_device_block_node(path, node, sizeof(node)) == 0 ? open(node, O_RDONLY | O_CLOEXEC)
								  : -1;
	for (int number = 1; fd >= 0 && number <= PARTITION_NUMBER_MAX; number++) {
		struct blkpg_partition partition = {.pno = number};
		struct blkpg_ioctl_arg request = {.op = BLKPG_DEL_PARTITION,
						  .datalen = sizeof(partition),
						  .data = &partition};

		/* Ignore errors, as most numbers do not exist: success is checked below. */
		(void)ioctl(fd, BLKPG, &request);
	}
	if (fd >= 0)
		(void)close(fd);
	if (spw_drives__safety_partitions(path, names, sizeof(names)) > 0)
		spw_log(log, SPW_LOG_WARNING,
			"%s: the kernel still shows its old partitions %s; run partprobe", path,
			names);
}

int spw_drives__format_release(const struct spw_format_run *run, struct spw_candidate *target)
{
	SPW_ASSERT(target->device->claimed && target->superblock.complete); /* done (FORMAT-6) */
	/* Keep a vfio device open for reading back: opening it again would reset it. */
	if (spw_device_geometry(target->device)->kind == SPW_DEVICE_VFIO) {
		(void)spw_device_unlock(target->device, 0, 0);
		return 0;
	}
	/* Close first: the kernel removes partitions only while the device is not open. */
	spw_device_close(target->device);
	target->device = NULL;
	forget_partitions(target->path, run->log);
	return 0;
}

int spw_format(const char *const paths[], unsigned count, const struct spw_format_opts *user_opts,
	       struct spw_store_info *info)
{
	struct spw_format_opts opts = {0};
	struct spw_format_run run = {.log = &opts.log, .opts = &opts};
	int rc;

	spw_format_opts_init(&opts, sizeof(opts));
	if (user_opts)
		spw_opts_merge(&opts, sizeof(opts), user_opts, user_opts->size);
	rc = check_opts(&opts);
	if (rc == 0)
		rc = open_targets(&run, paths, count);
	if (rc == 0)
		rc = examine_targets(&run, spw_drives__format_claim, spw_drives__format_examine);
	if (rc == 0)
		rc = plan(&run);
	if (rc == 0) {
		spw_drives__space_warn(run.targets, run.count, run.log);
		rc = write_store(&run);
	}
	if (rc == 0)
		rc = spw_drives__format_each(&run, spw_drives__format_release);
	/* Read the store back for the caller. */
	if (rc == 0)
		rc = spw_check(paths, count, info, NULL);
	close_targets(&run);
	return rc;
}

void spw_format_opts_init(struct spw_format_opts *opts, size_t size)
{
	struct spw_format_opts defaults = {.size = sizeof(defaults), .partitions = 1};

	spw_opts_merge(opts, size, &defaults, sizeof(defaults));
}

/* ---- Wipe ---- */

/* Wipe only a drive that surely holds a store and nothing else: its data area is discarded. */
static int examine_for_wipe(const struct spw_format_run *run, struct spw_candidate *target)
{
	const struct spw_contents *contents = &target->contents;

	if (contents->superblocks.chosen < 0 && contents->store)
		return spw_error(contents->superblocks.chosen,
				 "%s: carries a %s, whose extent is not known; format it again "
				 "with --force, or run wipefs -a and clear its first 4 KiB",
				 target->path, contents->text);
	if (!contents->store)
		return spw_error(-EMEDIUMTYPE,
				 "%s: holds no spillway store (it holds: %s); nothing to wipe",
				 target->path, contents->text);
	if (contents->foreign)
		return spw_error(
			-EEXIST,
			"%s: something else has been made of this drive of a store (it holds: %s); "
			"if that is not needed, format it with --force, then wipe it",
			target->path, contents->text);
	target->superblock = contents->superblocks.places[contents->superblocks.chosen].superblock;
	return run->erase ? 0 : refuse_committed(target);
}

/* Best effort: many devices do not support discard. */
static void discard_data(const struct spw_candidate *target, const struct spw_log *log)
{
	const struct spw_superblock *sb = &target->superblock;
	uint64_t end = SPW_MIN(sb->data_offset_bytes + sb->partition_count * sb->partition_bytes,
			       spw_device_geometry(target->device)->size_bytes);
	int rc = -EOPNOTSUPP;

	if (end > sb->data_offset_bytes)
		rc = spw_device_discard(spw_drives__claimed(target->device), sb->data_offset_bytes,
					end - sb->data_offset_bytes);
	if (rc != 0)
		spw_log(log, SPW_LOG_INFO, "%s: its data area was not discarded: %s", target->path,
			spw_strerror(rc));
}

static int wipe_place(const struct spw_candidate *target, enum spw_place place)
{
	const struct spw_place_content *content = &target->contents.superblocks.places[place];
	uint64_t copy_bytes = spw_layout__copy_offset(target->superblock.device_bytes, 1);
	bool is_copy = place == SPW_PLACE_FIRST || content->offset_bytes == copy_bytes;
	int rc;

	/* If the device has grown, its new end does not belong to the store. */
	if (!content->exists || (!is_copy && content->result == -EMEDIUMTYPE))
		return 0;
	rc = write_copy(target->device, NULL, 0, content->offset_bytes);
	return rc == 0 ? spw_device_sync(target->device) : rc;
}

/*
 * Erase both copies and a remnant at the end; the valid copy last, to keep the drive recognizable.
 */
static int wipe_target(const struct spw_format_run *run, struct spw_candidate *target)
{
	int chosen = target->contents.superblocks.chosen;
	int rc = 0;

	SPW_ASSERT(chosen >= SPW_PLACE_FIRST && chosen < SPW_PLACES);
	discard_data(target, run->log);
	for (int place = SPW_PLACE_FORMER_LAST; rc == 0 && place >= SPW_PLACE_FIRST; place--)
		if (place != chosen)
			rc = wipe_place(target, (enum spw_place)place);
	return rc == 0 ? wipe_place(target, (enum spw_place)chosen) : rc;
}

void spw_wipe_opts_init(struct spw_wipe_opts *opts, size_t size)
{
	struct spw_wipe_opts defaults = {.size = sizeof(defaults)};

	spw_opts_merge(opts, size, &defaults, sizeof(defaults));
}

int spw_wipe(const char *const paths[], unsigned count, const struct spw_wipe_opts *user_opts)
{
	struct spw_wipe_opts opts = {0};
	struct spw_format_run run = {.log = &opts.log};
	int rc;

	spw_wipe_opts_init(&opts, sizeof(opts));
	if (user_opts)
		spw_opts_merge(&opts, sizeof(opts), user_opts, user_opts->size);
	run.erase = opts.erase;
	rc = open_targets(&run, paths, count);
	if (rc == 0)
		rc = examine_targets(&run, claim, examine_for_wipe);
	if (rc == 0)
		rc = spw_drives__format_each(&run, wipe_target);
	close_targets(&run);
	return rc;
}
