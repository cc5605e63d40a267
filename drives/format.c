/* SPDX-License-Identifier: MIT */
/*
 * drives/format.c - make a store on drives, and remove one
 *
 * The order of a format. Every step is done on all drives, and made durable, before the next
 * begins.
 *
 *   FORMAT-1  All drives are locked and examined: what is known to be on them, and the MiB at each
 *             end. Up to here nothing is written; any refusal leaves every byte as it was.
 *   FORMAT-2  Copy 1 is written, not complete, with a sequence number above that of every intact
 *             copy on any of the drives.
 *   FORMAT-3  Copy 0 likewise. Now no drive can be believed to be anything but an unfinished
 *             format.
 *   FORMAT-4  The rest of both reserved areas is zeroed, and what libblkid still finds.
 *   FORMAT-5  Copy 0 is written complete, with the next sequence number.
 *   FORMAT-6  Copy 1 likewise.
 *
 * At any moment at most one copy of a drive is being written, so at most one is torn by a power
 * cut. Torn in FORMAT-2: copy 0 still holds what was before, and the drive is what it was. After
 * that, one intact copy says "not complete" until FORMAT-5 is durable on that drive: the set is
 * refused as long as one drive says so. Torn in FORMAT-6: copy 0 is intact and complete on every
 * drive. So what a crash leaves is the old store, or the new one, or a format that did not finish;
 * and the UUID of the store is new, so old and new drives never mix.
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
#include "drives/format.h"
#include "drives/contents.h"
#include "drives/parallel.h"
#include "drives/safety.h"
#include "util/util.h"

#define CHUNK_BYTES_DEFAULT  (1u << 20)
#define ZERO_BYTES           (256u << 10) /* written at once when areas are zeroed */
#define WIPE_ROUNDS_MAX      64
#define PARTITION_NUMBER_MAX 256

struct target {
	const char *path;
	struct spw_device *device;
	struct spw_contents contents; /* as found */
	struct spw_superblock superblock;
	bool had_partitions;
	struct spw_residue_samples samples;
	int result; /* of reading what it holds, and its words */
	char words[512];
};

struct format_run {
	struct target *targets;
	unsigned count;
	struct spw_vfio_hold *hold;
	const struct spw_log *log;
	const struct spw_format_io *io;
};

static int plain_pwrite(void *context, const struct spw_device *device, const void *buf, size_t len,
			uint64_t offset_bytes)
{
	(void)context;
	return spw_device_pwrite(device, buf, len, offset_bytes);
}

static int plain_sync(void *context, const struct spw_device *device)
{
	(void)context;
	return spw_device_sync(device);
}

static int plain_zero(void *context, const struct spw_device *device, uint64_t len_bytes,
		      uint64_t offset_bytes)
{
	(void)context;
	return spw_device_write_zeroes(device, offset_bytes, len_bytes);
}

static const struct spw_format_io plain_io = {
	.pwrite = plain_pwrite, .sync = plain_sync, .zero = plain_zero};

/* ---- Writing ---- */

static int run_write(const struct format_run *run, const struct target *target, const void *buf,
		     size_t len, uint64_t offset_bytes)
{
	return run->io->pwrite(run->io->context, target->device, buf, len, offset_bytes);
}

static int sync_all(const struct format_run *run)
{
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < run->count; i++)
		rc = run->io->sync(run->io->context, run->targets[i].device);
	return rc;
}

/* @sb NULL: zeros */
static int write_copy(const struct format_run *run, const struct target *target,
		      const struct spw_superblock *sb, unsigned copy, uint64_t offset_bytes)
{
	struct spw_span span = spw_superblock_span(target->device, offset_bytes);
	uint8_t *buf = spw_device_buffer(target->device, span.len_bytes);
	int rc;

	if (!buf)
		return -ENOMEM;
	if (sb) {
		struct spw_superblock decoded;

		spw_layout_encode(sb, copy, buf + span.inside_bytes);
		SPW_ASSERT(spw_layout_decode(buf + span.inside_bytes, copy, &decoded, NULL) == 0);
	}
	rc = run_write(run, target, buf, span.len_bytes, span.offset_bytes);
	free(buf);
	return rc;
}

/* One of FORMAT-2, 3, 5, 6. */
static int write_copies(const struct format_run *run, unsigned copy)
{
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < run->count; i++) {
		const struct spw_superblock *sb = &run->targets[i].superblock;

		rc = write_copy(run, &run->targets[i], sb, copy,
				spw_layout_copy_offset(sb->device_bytes, copy));
	}
	return rc != 0 ? rc : sync_all(run);
}

/* By the drive itself. Return: -EOPNOTSUPP: it does not. */
static int ask_for_zeros(const struct format_run *run, const struct target *target,
			 uint64_t from_bytes, uint64_t to_bytes)
{
	int rc = -EOPNOTSUPP;

	if (run->io->zero)
		rc = run->io->zero(run->io->context, target->device, to_bytes - from_bytes,
				   from_bytes);
	if (rc == -EOPNOTSUPP && spw_device_geometry(target->device)->kind == SPW_DEVICE_VFIO)
		spw_log(run->log, SPW_LOG_INFO, "%s: zeroes are written to it: it cannot by itself",
			target->path);
	return rc;
}

static int zero_range(const struct format_run *run, const struct target *target,
		      uint64_t from_bytes, uint64_t to_bytes)
{
	uint8_t *zeros;
	int rc;

	if (from_bytes >= to_bytes)
		return 0;
	rc = ask_for_zeros(run, target, from_bytes, to_bytes);
	if (rc != -EOPNOTSUPP)
		return rc;
	rc = 0;
	zeros = spw_device_buffer(target->device, ZERO_BYTES);
	if (!zeros)
		return -ENOMEM;
	while (rc == 0 && from_bytes < to_bytes) {
		size_t len =
			to_bytes - from_bytes < ZERO_BYTES ? to_bytes - from_bytes : ZERO_BYTES;

		rc = run_write(run, target, zeros, len, from_bytes);
		from_bytes += len;
	}
	free(zeros);
	return rc;
}

/*
 * FORMAT-4 on one drive: all but the superblocks themselves, up to the last whole block of the
 * device.
 */
static int zero_reserved_areas(const struct format_run *run, const struct target *target)
{
	const struct spw_superblock *sb = &target->superblock;
	struct spw_span first = spw_superblock_span(target->device, 0);
	struct spw_span last =
		spw_superblock_span(target->device, spw_layout_copy_offset(sb->device_bytes, 1));
	uint64_t size_bytes = spw_device_geometry(target->device)->size_bytes;
	int rc = zero_range(run, target, first.len_bytes, sb->data_offset_bytes);

	if (rc == 0)
		rc = zero_range(run, target, sb->device_bytes - SPW_LAYOUT_RESERVED_BYTES,
				last.offset_bytes);
	if (rc == 0)
		rc = zero_range(run, target, last.offset_bytes + last.len_bytes, size_bytes);
	return rc;
}

/* Zero the bytes of a magic and leave those around it. */
static int erase_signature(const struct format_run *run, const struct target *target,
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
	buf = spw_device_buffer(target->device, len);
	if (!buf)
		return -ENOMEM;
	rc = spw_device_pread(target->device, buf, len, start);
	if (rc == 0) {
		memset(buf + (signature->offset_bytes - start), 0, signature->len_bytes);
		rc = run_write(run, target, buf, len, start);
	}
	free(buf);
	return rc;
}

/*
 * What lies outside the reserved areas. One after the other: some show only when the one before is
 * gone.
 */
static int erase_signatures(const struct format_run *run, const struct target *target)
{
	struct spw_signatures signatures;

	for (unsigned round = 0; round < WIPE_ROUNDS_MAX; round++) {
		int rc = spw_safety_signatures(target->path, &signatures);

		if (rc != 0 || signatures.count == 0)
			return rc;
		spw_log(run->log, SPW_LOG_INFO, "%s: removing %s", target->path,
			signatures.found[0].what);
		rc = erase_signature(run, target, &signatures.found[0]);
		/* libblkid reads past O_DIRECT, through the page cache. */
		if (rc == 0)
			rc = run->io->sync(run->io->context, target->device);
		if (rc != 0)
			return rc;
	}
	return spw_error(-EEXIST, "%s: still carries %s; run wipefs -a on it first", target->path,
			 signatures.found[0].what);
}

static int clear_all(const struct format_run *run)
{
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < run->count; i++)
		rc = zero_reserved_areas(run, &run->targets[i]);
	if (rc == 0)
		rc = sync_all(run);
	for (unsigned i = 0; rc == 0 && i < run->count; i++)
		rc = erase_signatures(run, &run->targets[i]);
	return rc;
}

static void warn_of_data(const struct format_run *run, const struct target *target)
{
	const struct spw_residue_samples *samples = &target->samples;

	if (samples->not_zero > 0)
		spw_log(run->log, SPW_LOG_WARNING,
			"%s: there is data between its ends, at %u of %u places looked at, first "
			"at byte %llu; "
			"the store will write over it",
			target->path, samples->not_zero, samples->taken,
			(unsigned long long)samples->offset_bytes);
	if (samples->unreadable > 0)
		spw_log(run->log, SPW_LOG_WARNING,
			"%s: of %u places between its ends %u cannot be read; check the drive",
			target->path, samples->taken, samples->unreadable);
}

static void warn_of_losses(const struct format_run *run)
{
	for (unsigned i = 0; i < run->count; i++) {
		const struct spw_contents *contents = &run->targets[i].contents;

		if (contents->store || contents->foreign || contents->residue.found)
			spw_log(run->log, SPW_LOG_WARNING, "%s: overwriting what it carries: %s",
				run->targets[i].path, contents->text);
		warn_of_data(run, &run->targets[i]);
	}
}

static int write_store(const struct format_run *run)
{
	int rc;

	warn_of_losses(run);
	rc = write_copies(run, 1); /* FORMAT-2 */
	if (rc == 0)
		rc = write_copies(run, 0); /* FORMAT-3 */
	if (rc == 0)
		rc = clear_all(run); /* FORMAT-4 */
	for (unsigned i = 0; rc == 0 && i < run->count; i++) {
		run->targets[i].superblock.complete = true;
		run->targets[i].superblock.sequence++;
	}
	if (rc == 0)
		rc = write_copies(run, 0); /* FORMAT-5 */
	if (rc == 0)
		rc = write_copies(run, 1); /* FORMAT-6 */
	return rc;
}

/* ---- Examining ---- */

static int claim_for_format(struct target *target, const struct spw_log *log)
{
	uint64_t size_bytes;
	int rc = spw_claim(target->path, log, &target->device);

	if (rc == 0)
		rc = spw_safety_conventional(target->path);
	if (rc != 0)
		return rc;
	size_bytes = spw_device_geometry(target->device)->size_bytes;
	if (size_bytes < SPW_DRIVE_BYTES_MIN)
		return spw_too_small_error(target->path, size_bytes);
	return 0;
}

static void read_target(void *context, unsigned index)
{
	struct target *target = (struct target *)context + index;

	target->result = spw_contents_read(target->device, &target->contents);
	/* What is known explains what lies between the ends, too. */
	if (target->result == 0 && !target->contents.store && !target->contents.foreign)
		target->result = spw_residue_sample(target->device, &target->samples);
	if (target->result != 0)
		(void)snprintf(target->words, sizeof(target->words), "%s", spw_last_error());
}

/*
 * What they hold, of all at the same time. Return: 0, or the fault of the first that cannot be
 * read.
 */
static int read_targets(const struct format_run *run)
{
	spw_safety_prepare();
	spw_parallel(run->count, read_target, run->targets, run->log);
	for (unsigned i = 0; i < run->count; i++)
		if (run->targets[i].result != 0)
			return spw_error(run->targets[i].result, "%s", run->targets[i].words);
	return 0;
}

static int examine_for_format(struct target *target, const struct spw_format_opts *opts)
{
	char names[8];

	target->had_partitions = spw_safety_partitions(target->path, names, sizeof(names)) > 0;
	if (!opts->force && (target->contents.store || target->contents.foreign))
		return spw_carries_error(target->path, &target->contents);
	/* A question of its own: whoever always forces must not have answered it. */
	if (!opts->erase && target->contents.residue.found)
		return spw_residue_error(target->path, &target->contents.residue);
	return 0;
}

static int open_targets(struct format_run *run, const char *const paths[], unsigned count)
{
	int rc;

	if (count == 0 || count > SPW_DRIVES_MAX)
		return spw_error(-EINVAL, "%u drives were named; a store has 1 to %u", count,
				 SPW_DRIVES_MAX);
	rc = spw_safety_distinct(paths, count);
	if (rc != 0)
		return rc;
	run->targets = calloc(count, sizeof(*run->targets));
	if (!run->targets)
		return spw_error(-ENOMEM, "no memory for %u drives", count);
	run->count = count;
	for (unsigned i = 0; i < count; i++)
		run->targets[i].path = paths[i];
	run->hold = spw_vfio_hold(paths, count, run->log);
	return 0;
}

/* Locks go with the devices. */
static void close_targets(struct format_run *run)
{
	for (unsigned i = 0; i < run->count; i++)
		spw_device_close(run->targets[i].device);
	spw_vfio_let_go(run->hold);
	run->hold = NULL;
	free(run->targets);
	run->targets = NULL;
	run->count = 0;
}

/* ---- Planning ---- */

static int random_uuid(uint8_t uuid[16])
{
	ssize_t got = getrandom(uuid, 16, 0);

	if (got != 16)
		return spw_error_errno(got < 0 ? -errno : -EIO, "no random bytes for a UUID");
	uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x40); /* RFC 4122: random */
	uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
	return 0;
}

/* FORMAT-2: above every intact copy, also one that is not chosen. */
static int next_sequence(const struct format_run *run, uint64_t *sequence)
{
	const struct target *highest_on = &run->targets[0];
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
	/* Not in a lifetime of formats; but a superblock may come from anybody. */
	if (highest > SPW_LAYOUT_SEQUENCE_MAX - 2)
		return spw_error(
			-EUCLEAN,
			"%s: its superblock's sequence number is used up; run spillway wipe first",
			highest_on->path);
	*sequence = highest + 1;
	return 0;
}

/* What all drives have in common. */
static int plan_store(const struct format_run *run, const struct spw_format_opts *opts,
		      struct spw_superblock *store)
{
	int rc = next_sequence(run, &store->sequence);

	if (rc == 0)
		rc = random_uuid(store->store_uuid);
	store->drive_count = run->count;
	store->block_bytes = SPW_LAYOUT_BLOCK_BYTES;
	store->chunk_bytes = opts->chunk_bytes != 0 ? opts->chunk_bytes : CHUNK_BYTES_DEFAULT;
	store->partition_count = opts->partitions;
	store->created_unix_s = (uint64_t)time(NULL);
	for (unsigned i = 0; rc == 0 && i < run->count; i++) {
		uint32_t logical = spw_device_geometry(run->targets[i].device)->logical_block_bytes;

		if (logical > store->block_bytes)
			store->block_bytes = logical;
		rc = random_uuid(store->drive_uuids[i]);
	}
	if (rc == 0 && store->block_bytes > store->chunk_bytes)
		return spw_error(-EINVAL,
				 "a chunk of %llu bytes is smaller than a block of these drives "
				 "(%u); choose a larger --chunk",
				 (unsigned long long)store->chunk_bytes, store->block_bytes);
	return rc;
}

static int plan_drive(struct target *target, const struct spw_superblock *store, unsigned index)
{
	const struct spw_geometry *geometry = spw_device_geometry(target->device);
	char size[32], chunk[32];
	int rc;

	target->superblock = *store;
	target->superblock.drive_index = index;
	target->superblock.logical_block_bytes = geometry->logical_block_bytes;
	rc = spw_layout_plan(&target->superblock, geometry->size_bytes);
	if (rc == -ENOSPC)
		return spw_error(rc,
				 "%s: %s is too small for %u partitions of at least one chunk "
				 "(%s); choose fewer "
				 "--partitions or a smaller --chunk, or a larger drive",
				 target->path,
				 spw_size_format(geometry->size_bytes, size, sizeof(size)),
				 store->partition_count,
				 spw_size_format(store->chunk_bytes, chunk, sizeof(chunk)));
	if (rc != 0)
		return spw_error(rc, "%s: blocks of %u bytes and a size of %llu are not supported",
				 target->path, geometry->logical_block_bytes,
				 (unsigned long long)geometry->size_bytes);
	return 0;
}

static int plan(const struct format_run *run, const struct spw_format_opts *opts)
{
	struct spw_superblock store = {0};
	int rc = plan_store(run, opts, &store);

	for (unsigned i = 0; rc == 0 && i < run->count; i++)
		rc = plan_drive(&run->targets[i], &store, i);
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

/*
 * The table that the kernel's partitions came from is gone: without this their device nodes would
 * stay. One by one, because loop devices refuse to have their table read again.
 */
static void forget_partitions(const char *path, const struct spw_log *log)
{
	char node[PATH_MAX], names[96];
	int fd = spw_device_block_node(path, node, sizeof(node)) == 0
			 ? open(node, O_RDONLY | O_CLOEXEC)
			 : -1;

	for (int number = 1; fd >= 0 && number <= PARTITION_NUMBER_MAX; number++) {
		struct blkpg_partition partition = {.pno = number};
		struct blkpg_ioctl_arg request = {.op = BLKPG_DEL_PARTITION,
						  .datalen = sizeof(partition),
						  .data = &partition};

		/* Most numbers do not exist; whether all is gone is seen below. */
		(void)ioctl(fd, BLKPG, &request);
	}
	if (fd >= 0)
		(void)close(fd);
	if (spw_safety_partitions(path, names, sizeof(names)) > 0)
		spw_log(log, SPW_LOG_WARNING,
			"%s: the kernel still shows its old partitions %s; run partprobe", path,
			names);
}

static int format_targets(struct format_run *run, const struct spw_format_opts *opts)
{
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < run->count; i++)
		rc = claim_for_format(&run->targets[i], run->log);
	if (rc == 0)
		rc = read_targets(run);
	for (unsigned i = 0; rc == 0 && i < run->count; i++)
		rc = examine_for_format(&run->targets[i], opts);
	if (rc == 0)
		rc = plan(run, opts);
	return rc == 0 ? write_store(run) : rc;
}

int spw_format_with(const char *const paths[], unsigned count,
		    const struct spw_format_opts *user_opts, struct spw_store_info *info,
		    const struct spw_format_io *io)
{
	struct spw_format_opts opts = {0};
	struct format_run run = {.io = io, .log = &opts.log};
	int rc;

	spw_format_opts_init(&opts, sizeof(opts));
	if (user_opts)
		spw_opts_merge(&opts, sizeof(opts), user_opts, user_opts->size);
	rc = check_opts(&opts);
	if (rc == 0)
		rc = open_targets(&run, paths, count);
	if (rc == 0)
		rc = format_targets(&run, &opts);
	for (unsigned i = 0; rc == 0 && i < run.count; i++) {
		/*
		 * Kept open until it has been read back: nobody else could have it, and opening
		 * resets it.
		 */
		if (spw_device_geometry(run.targets[i].device)->kind == SPW_DEVICE_VFIO) {
			(void)spw_device_unlock(run.targets[i].device, 0, 0);
			continue;
		}
		/*
		 * Closed first: the kernel removes partitions only when nobody holds the device
		 * exclusively.
		 */
		spw_device_close(run.targets[i].device);
		run.targets[i].device = NULL;
		if (run.targets[i].had_partitions)
			forget_partitions(run.targets[i].path, &opts.log);
	}
	/* Read back what was written, and report that. */
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

int spw_format(const char *const paths[], unsigned count, const struct spw_format_opts *opts,
	       struct spw_store_info *info)
{
	return spw_format_with(paths, count, opts, info, &plain_io);
}

/* ---- Wipe ---- */

/* Only what is surely a store, and nothing else, is wiped: its data area is discarded. */
static int examine_for_wipe(struct target *target)
{
	const struct spw_contents *contents = &target->contents;

	if (contents->superblocks.chosen < 0 && contents->store)
		return spw_error(contents->superblocks.chosen,
				 "%s: carries a %s, whose extent is not known; format it again "
				 "with --force, or run "
				 "wipefs -a and clear its first 4 KiB",
				 target->path, contents->text);
	if (!contents->store)
		return spw_error(-EMEDIUMTYPE,
				 "%s: holds no spillway store (it holds: %s); nothing to wipe",
				 target->path, contents->text);
	if (contents->foreign)
		return spw_error(-EEXIST,
				 "%s: something else has been made of this drive of a store (it "
				 "holds: %s); if nobody needs "
				 "that, format it with --force, then wipe it",
				 target->path, contents->text);
	target->superblock = contents->superblocks.places[contents->superblocks.chosen].superblock;
	return 0;
}

/* Best effort: many devices cannot. */
static void discard_data(const struct target *target, const struct spw_log *log)
{
	const struct spw_superblock *sb = &target->superblock;
	uint64_t size_bytes = spw_device_geometry(target->device)->size_bytes;
	uint64_t end = sb->data_offset_bytes + sb->partition_count * sb->partition_bytes;
	int rc = -EOPNOTSUPP;

	if (end > size_bytes)
		end = spw_round_down(size_bytes,
				     spw_device_geometry(target->device)->logical_block_bytes);
	if (end > sb->data_offset_bytes)
		rc = spw_device_discard(target->device, sb->data_offset_bytes,
					end - sb->data_offset_bytes);
	if (rc != 0)
		spw_log(log, SPW_LOG_INFO, "%s: its data area was not discarded: %s", target->path,
			spw_strerror(rc));
}

static int wipe_place(const struct format_run *run, const struct target *target,
		      enum spw_place place)
{
	const struct spw_place_content *content = &target->contents.superblocks.places[place];
	uint64_t copy_bytes = spw_layout_copy_offset(target->superblock.device_bytes, 1);
	bool is_copy = place == SPW_PLACE_FIRST || content->offset_bytes == copy_bytes;
	int rc;

	/* The end of a device that has grown since is not the store's. */
	if (!content->exists || (!is_copy && content->result == -EMEDIUMTYPE))
		return 0;
	rc = write_copy(run, target, NULL, 0, content->offset_bytes);
	return rc == 0 ? run->io->sync(run->io->context, target->device) : rc;
}

/*
 * Both copies, and a remnant at the end. As long as the one that counts is there, the drive is
 * known for what it is.
 */
static int wipe_copies(const struct format_run *run, const struct target *target)
{
	int chosen = target->contents.superblocks.chosen;
	int rc = 0;

	for (int place = SPW_PLACE_FORMER_LAST; rc == 0 && place >= SPW_PLACE_FIRST; place--)
		if (place != chosen)
			rc = wipe_place(run, target, (enum spw_place)place);
	return rc == 0 ? wipe_place(run, target, (enum spw_place)chosen) : rc;
}

int spw_wipe(const char *const paths[], unsigned count, const struct spw_log *log)
{
	struct format_run run = {.io = &plain_io, .log = log};
	int rc = open_targets(&run, paths, count);

	for (unsigned i = 0; rc == 0 && i < run.count; i++)
		rc = spw_claim(run.targets[i].path, log, &run.targets[i].device);
	if (rc == 0)
		rc = read_targets(&run);
	for (unsigned i = 0; rc == 0 && i < run.count; i++)
		rc = examine_for_wipe(&run.targets[i]);
	for (unsigned i = 0; rc == 0 && i < run.count; i++) {
		discard_data(&run.targets[i], log);
		rc = wipe_copies(&run, &run.targets[i]);
	}
	close_targets(&run);
	return rc;
}
