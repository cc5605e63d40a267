/* SPDX-License-Identifier: MIT */
/*
 * drives/check.c - read superblocks, decide what to believe, and assemble drives to a store
 *
 * Rules
 *   ASSEMBLE-1  First that no device is named twice, then every drive by itself in the order in which they were
 *               named, then the set: the first fault in this order is the one reported. What the drives hold is read
 *               from all of them at the same time.
 *   ASSEMBLE-2  An incomplete superblock makes its drive unusable, whatever the other drives say: a format that did
 *               not finish never leaves a store of mixed generations.
 *   ASSEMBLE-3  A drive that carries a foreign signature outside its data area is refused, also when both copies are
 *               intact: somebody has made something else of it since. So is one where a copy was that somebody else has written
 *               over (LAYOUT-14).
 *   ASSEMBLE-4  All drives of a store agree on everything that is not a drive's own.
 */
#include "drives/assemble.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device.h"
#include "engine/vfio/vfio.h"
#include "drives/parallel.h"
#include "drives/safety.h"
#include "drives/share.h"
#include "drives/sysfs.h"
#include "util/fork.h"
#include "util/util.h"

static_assert(SPW_DRIVES_MAX == SPW_LAYOUT_DRIVES_MAX, "drives");
static_assert(SPW_PARTITIONS_MAX == SPW_LAYOUT_PARTITIONS_MAX, "partitions");
static_assert(SPW_CHUNK_BYTES_MIN == SPW_LAYOUT_CHUNK_BYTES_MIN, "smallest chunk");
static_assert(SPW_CHUNK_BYTES_MAX == SPW_LAYOUT_CHUNK_BYTES_MAX, "largest chunk");
static_assert(SPW_DRIVE_BYTES_MIN == SPW_LAYOUT_DEVICE_BYTES_MIN, "smallest drive");
static_assert(SPW_UUID_TEXT_BYTES == SPW_LAYOUT_UUID_TEXT_BYTES, "UUID text");

/* ---- One drive's superblocks ---- */

void *spw_device_buffer(const struct spw_device *device, size_t len)
{
	const struct spw_geometry *geometry = spw_device_geometry(device);
	size_t align = SPW_SUPERBLOCK_BYTES;
	void *buf;

	if (align < geometry->logical_block_bytes)
		align = geometry->logical_block_bytes;
	if (align < geometry->memory_align_bytes)
		align = geometry->memory_align_bytes;
	len = spw_round_up(len, align);
	buf = aligned_alloc(align, len);
	if (!buf) {
		(void)spw_error(-ENOMEM, "%s: no memory for %zu bytes", spw_device_path(device), len);
		return NULL;
	}
	memset(buf, 0, len);
	return buf;
}

struct spw_span spw_superblock_span(const struct spw_device *device, uint64_t offset_bytes)
{
	uint32_t unit = spw_device_geometry(device)->logical_block_bytes;
	uint64_t start = spw_round_down(offset_bytes, unit);

	return (struct spw_span){
		.offset_bytes = start,
		.len_bytes = spw_round_up(offset_bytes + SPW_SUPERBLOCK_BYTES, unit) - start,
		.inside_bytes = offset_bytes - start,
	};
}

/* The 4096 bytes at a place, whatever they are. Return: 0; -ENOMEM; @result is that of reading. */
static int read_bytes(const struct spw_device *device, uint64_t offset_bytes, uint8_t bytes[SPW_SUPERBLOCK_BYTES],
		      int *result)
{
	struct spw_span span = spw_superblock_span(device, offset_bytes);
	uint8_t *buf = spw_device_buffer(device, span.len_bytes);

	if (!buf)
		return -ENOMEM;
	*result = spw_device_pread(device, buf, span.len_bytes, span.offset_bytes);
	if (*result == 0)
		memcpy(bytes, buf + span.inside_bytes, SPW_SUPERBLOCK_BYTES);
	free(buf);
	return 0;
}

static int read_place(const struct spw_device *device, struct spw_superblocks *superblocks, enum spw_place place,
		      uint64_t offset_bytes)
{
	struct spw_place_content *content = &superblocks->places[place];
	unsigned copy = place == SPW_PLACE_FIRST ? 0 : 1;
	uint8_t bytes[SPW_SUPERBLOCK_BYTES];

	content->exists = true;
	content->offset_bytes = offset_bytes;
	content->why = "it cannot be read";
	if (read_bytes(device, offset_bytes, bytes, &content->result) != 0)
		return -ENOMEM;
	if (content->result == 0)
		content->result = spw_layout_decode(bytes, copy, &content->superblock, &content->why);
	/* An intact copy that lies where its own device size does not put it is a remnant of another format. */
	if (content->result == 0 && copy == 1 &&
	    spw_layout_copy_offset(content->superblock.device_bytes, 1) != offset_bytes) {
		content->result = -EUCLEAN;
		content->why = "it belongs to another place";
	}
	return 0;
}

/* The better one of the two places where copy 1 can be. */
static enum spw_place last_place(const struct spw_superblocks *superblocks)
{
	const struct spw_place_content *last = &superblocks->places[SPW_PLACE_LAST];
	const struct spw_place_content *former = &superblocks->places[SPW_PLACE_FORMER_LAST];
	int results[2] = {last->result, former->result};
	struct spw_superblock copies[2];

	if (!former->exists)
		return SPW_PLACE_LAST;
	copies[0].sequence = last->superblock.sequence;
	copies[1].sequence = former->superblock.sequence;
	return spw_layout_choose(copies, results) == 1 ? SPW_PLACE_FORMER_LAST : SPW_PLACE_LAST;
}

static void choose(struct spw_superblocks *superblocks)
{
	enum spw_place last = last_place(superblocks);
	const struct spw_place_content *places[2] = {&superblocks->places[SPW_PLACE_FIRST], &superblocks->places[last]};
	struct spw_superblock copies[2] = {places[0]->superblock, places[1]->superblock};
	int results[2] = {places[0]->result, places[1]->result};
	int copy = spw_layout_choose(copies, results);

	superblocks->copies_good = 0;
	superblocks->chosen = copy == 1 ? (int)last : copy;
	for (unsigned i = 0; copy >= 0 && i < 2; i++)
		if (results[i] == 0 && copies[i].sequence == copies[copy].sequence)
			superblocks->copies_good++;
}

/* What was found when the places were read. NULL: the place does not lie inside the device. */
static const struct spw_place_content *content_at(const struct spw_superblocks *superblocks, uint64_t offset_bytes)
{
	for (unsigned i = 0; i < SPW_PLACES; i++)
		if (superblocks->places[i].exists && superblocks->places[i].offset_bytes == offset_bytes)
			return &superblocks->places[i];
	return NULL;
}

/* With one copy intact: is the place of the other one still ours? Read again, which is rare. Return: 0; -ENOMEM. */
static int look_for_foreign(const struct spw_device *device, struct spw_superblocks *superblocks)
{
	const struct spw_superblock *sb = &superblocks->places[superblocks->chosen].superblock;
	unsigned other = superblocks->chosen == SPW_PLACE_FIRST ? 1 : 0;
	uint64_t offset_bytes = spw_layout_copy_offset(sb->device_bytes, other);
	const struct spw_place_content *content = content_at(superblocks, offset_bytes);
	uint8_t bytes[SPW_SUPERBLOCK_BYTES + 3] = {0};
	size_t at = SPW_SUPERBLOCK_BYTES;
	int result;

	/* Of another format of ours, before or after. */
	if (!content || content->result == 0)
		return 0;
	if (read_bytes(device, offset_bytes, bytes, &result) != 0)
		return -ENOMEM;
	if (result == 0)
		at = spw_layout_foreign(sb, other, bytes);
	if (at < SPW_SUPERBLOCK_BYTES)
		(void)snprintf(superblocks->foreign, sizeof(superblocks->foreign),
			       "%s at byte %llu (%02x %02x %02x %02x)",
			       content->result == -EPROTONOSUPPORT ? "a newer superblock" : "unknown data",
			       (unsigned long long)(offset_bytes + at), bytes[at], bytes[at + 1], bytes[at + 2],
			       bytes[at + 3]);
	return 0;
}

int spw_superblocks_read(const struct spw_device *device, struct spw_superblocks *superblocks)
{
	uint64_t size_bytes = spw_device_geometry(device)->size_bytes;
	const struct spw_place_content *first = &superblocks->places[SPW_PLACE_FIRST];
	uint64_t last_bytes, former_bytes;
	int rc;

	memset(superblocks, 0, sizeof(*superblocks));
	for (unsigned i = 0; i < SPW_PLACES; i++)
		superblocks->places[i].result = -EMEDIUMTYPE;
	superblocks->chosen = -EMEDIUMTYPE;
	if (size_bytes < 2 * SPW_SUPERBLOCK_BYTES)
		return superblocks->chosen;
	last_bytes = spw_layout_copy_offset(size_bytes, 1);
	rc = read_place(device, superblocks, SPW_PLACE_FIRST, 0);
	if (rc == 0)
		rc = read_place(device, superblocks, SPW_PLACE_LAST, last_bytes);
	if (rc == 0 && first->result == 0) {
		former_bytes = spw_layout_copy_offset(first->superblock.device_bytes, 1);
		if (former_bytes < last_bytes)
			rc = read_place(device, superblocks, SPW_PLACE_FORMER_LAST, former_bytes);
	}
	if (rc != 0)
		return rc;
	choose(superblocks);
	if (superblocks->chosen >= 0 && superblocks->copies_good < 2 && look_for_foreign(device, superblocks) != 0)
		return -ENOMEM;
	return superblocks->chosen;
}

/* ---- One drive as a member ---- */

/* A drive that was named, as far as it could be read. */
struct candidate {
	const char *path;
	struct spw_device *device;
	struct spw_contents contents;
	struct spw_superblock superblock;
	bool has_superblock;
	int fault; /* the first, and its words */
	char words[512];
};

static void note_fault(struct candidate *candidate, int rc)
{
	if (rc == 0 || candidate->fault != 0)
		return;
	candidate->fault = rc;
	(void)snprintf(candidate->words, sizeof(candidate->words), "%s", spw_last_error());
}

/* What to say of a drive neither of whose copies can be believed. */
static int no_superblock_error(const struct candidate *candidate)
{
	const struct spw_superblocks *superblocks = &candidate->contents.superblocks;
	const char *first = superblocks->places[SPW_PLACE_FIRST].why, *last = superblocks->places[SPW_PLACE_LAST].why;
	const char *path = candidate->path;

	switch (superblocks->chosen) {
	case -EMEDIUMTYPE:
		return spw_error(
			-EMEDIUMTYPE,
			"%s: is no drive of a spillway store (it holds: %s); name the right drive, or format it", path,
			candidate->contents.text);
	case -EPROTONOSUPPORT:
		return spw_error(-EPROTONOSUPPORT,
				 "%s: was formatted by a newer version of spillway (%s, or %s); use that version", path,
				 first ? first : "intact", last ? last : "intact");
	default:
		return spw_error(-EUCLEAN,
				 "%s: both superblock copies are damaged (the first: %s; the last: %s); nothing stored "
				 "outlives a process, so format the store again with --force",
				 path, first ? first : "intact", last ? last : "intact");
	}
}

/* What a superblock promises, against the device as it is now. */
static int verify_against_device(const struct candidate *candidate)
{
	const struct spw_geometry *geometry = spw_device_geometry(candidate->device);
	const struct spw_superblock *sb = &candidate->superblock;
	char now[32], then[32];

	if (geometry->size_bytes < sb->device_bytes)
		return spw_error(-ENOSPC,
				 "%s: is smaller than when it was formatted: %s (%llu bytes), not %s (%llu); restore "
				 "its size, or format the store again with --force",
				 candidate->path, spw_size_format(geometry->size_bytes, now, sizeof(now)),
				 (unsigned long long)geometry->size_bytes,
				 spw_size_format(sb->device_bytes, then, sizeof(then)),
				 (unsigned long long)sb->device_bytes);
	if (geometry->logical_block_bytes > sb->block_bytes)
		return spw_error(-EMEDIUMTYPE,
				 "%s: has logical blocks of %u bytes, larger than the store's blocks of %u; attach it "
				 "as it was formatted (%u), or format the store again with --force",
				 candidate->path, geometry->logical_block_bytes, sb->block_bytes,
				 sb->logical_block_bytes);
	if (!sb->complete) /* ASSEMBLE-2 */
		return spw_error(-EUCLEAN, "%s: its format did not finish: run spillway format again, with --force",
				 candidate->path);
	if (candidate->contents.foreign) /* ASSEMBLE-3 */
		return spw_error(-EMEDIUMTYPE,
				 "%s: something else has been made of this drive of a store (it holds: %s); name the "
				 "right drive, or, if nobody needs that, format the store again with --force",
				 candidate->path, candidate->contents.text);
	return 0;
}

static void warn_of_damage(const struct candidate *candidate, const struct spw_log *log)
{
	const struct spw_superblocks *superblocks = &candidate->contents.superblocks;
	const struct spw_place_content *bad = &superblocks->places[SPW_PLACE_FIRST];

	if (superblocks->copies_good == 2)
		return;
	if (superblocks->chosen == SPW_PLACE_FIRST)
		bad = &superblocks->places[SPW_PLACE_LAST];
	spw_log(log, SPW_LOG_WARNING,
		"%s: the %s superblock copy is not usable (%s); the other one serves. The drive may be failing, or "
		"something has written to it: check it, and format the store again with --force",
		candidate->path, superblocks->chosen == SPW_PLACE_FIRST ? "last" : "first",
		bad->why ? bad->why : "it is older");
}

/* Of one of several, by a thread of its own. */
static void look_into(void *context, unsigned index)
{
	struct candidate *candidate = (struct candidate *)context + index;

	if (candidate->device)
		note_fault(candidate, spw_contents_read(candidate->device, &candidate->contents));
}

/* By what was read, and by who else uses the drive. */
static int judge(struct candidate *candidate, bool read_only, const struct spw_loops *loops, const struct spw_log *log)
{
	struct spw_contents *contents = &candidate->contents;
	int rc;

	if (contents->superblocks.chosen < 0)
		return no_superblock_error(candidate);
	candidate->superblock = contents->superblocks.places[contents->superblocks.chosen].superblock;
	candidate->has_superblock = true;
	rc = verify_against_device(candidate);
	if (rc != 0)
		return rc;
	if (!read_only &&
	    (candidate->superblock.features_read_only_compatible & ~SPW_FEATURES_READ_ONLY_COMPATIBLE) != 0)
		return spw_error(-EPROTONOSUPPORT,
				 "%s: uses a feature of a newer version of spillway, with which this one may read but "
				 "not write; use that version",
				 candidate->path);
	if (!read_only)
		rc = spw_safety_in_use(candidate->path, loops);
	if (rc == 0 && !read_only)
		rc = spw_safety_writable(candidate->path);
	if (rc == 0)
		warn_of_damage(candidate, log);
	return rc;
}

/* ---- The set ---- */

static bool same_store(const struct candidate *a, const struct candidate *b)
{
	return memcmp(a->superblock.store_uuid, b->superblock.store_uuid, sizeof(a->superblock.store_uuid)) == 0;
}

/*
 * The store that most of the drives belong to, so that the one drive of another store is the one that is called
 * foreign.
 */
static const struct candidate *representative(const struct candidate *candidates, unsigned count)
{
	const struct candidate *best = &candidates[0];
	unsigned best_votes = 0;

	for (unsigned i = 0; i < count; i++) {
		unsigned votes = 0;

		for (unsigned j = 0; j < count; j++)
			votes += same_store(&candidates[i], &candidates[j]);
		if (votes > best_votes) {
			best_votes = votes;
			best = &candidates[i];
		}
	}
	return best;
}

/* ASSEMBLE-4 */
static bool agree(const struct spw_superblock *a, const struct spw_superblock *b)
{
	return a->sequence == b->sequence && a->drive_count == b->drive_count && a->block_bytes == b->block_bytes &&
	       a->chunk_bytes == b->chunk_bytes && a->partition_count == b->partition_count &&
	       a->features_incompatible == b->features_incompatible &&
	       a->features_read_only_compatible == b->features_read_only_compatible &&
	       a->features_compatible == b->features_compatible && a->created_unix_s == b->created_unix_s &&
	       memcmp(a->drive_uuids, b->drive_uuids, sizeof(a->drive_uuids)) == 0;
}

static int verify_member(const struct candidate *candidate, const struct candidate *of)
{
	char own[SPW_UUID_TEXT_BYTES], other[SPW_UUID_TEXT_BYTES];

	if (!same_store(candidate, of))
		return spw_error(-EMEDIUMTYPE,
				 "%s: belongs to another store (%s) than %s (%s); name the drives of one store",
				 candidate->path, spw_layout_uuid_text(candidate->superblock.store_uuid, own), of->path,
				 spw_layout_uuid_text(of->superblock.store_uuid, other));
	if (!agree(&candidate->superblock, &of->superblock))
		return spw_error(
			-EUCLEAN,
			"%s: contradicts %s about the store both belong to; format the store again with --force",
			candidate->path, of->path);
	return 0;
}

static int missing_error(const struct candidate *member, const bool *present)
{
	const struct spw_superblock *sb = &member->superblock;
	char drive[SPW_UUID_TEXT_BYTES], store[SPW_UUID_TEXT_BYTES], more[32] = "";
	unsigned missing = 0, first = 0;

	for (unsigned i = sb->drive_count; i-- > 0;)
		if (!present[i]) {
			missing++;
			first = i;
		}
	if (missing == 0)
		return 0;
	if (missing > 1)
		(void)snprintf(more, sizeof(more), ", and %u more", missing - 1);
	return spw_error(-ENXIO, "drive %u of %u (%s)%s is missing: %s belongs to store %s; name all its drives",
			 first + 1, sb->drive_count, spw_layout_uuid_text(sb->drive_uuids[first], drive), more,
			 member->path, spw_layout_uuid_text(sb->store_uuid, store));
}

/* Every drive belongs to the store, none is there twice, none is missing. */
static int verify_set(const struct candidate *candidates, unsigned count)
{
	const struct candidate *of = representative(candidates, count);
	const struct candidate *by_index[SPW_DRIVES_MAX] = {NULL};
	bool present[SPW_DRIVES_MAX] = {false};
	int rc;

	for (unsigned i = 0; i < count; i++) {
		unsigned index = candidates[i].superblock.drive_index;

		rc = verify_member(&candidates[i], of);
		if (rc != 0)
			return rc;
		if (present[index])
			return spw_error(
				-ENOTUNIQ,
				"%s and %s are both drive %u of the store: one is a copy of the other; name one",
				by_index[index]->path, candidates[i].path, index + 1);
		present[index] = true;
		by_index[index] = &candidates[i];
	}
	return missing_error(of, present);
}

/* Some may be NULL. What is behind vfio is shut down at the same time. */
static void close_devices(struct spw_device *const devices[], unsigned count)
{
	struct spw_vfio_hold *hold = spw_vfio_hold_open(devices, count);

	for (unsigned i = 0; i < count; i++) {
		if (devices[i] && devices[i]->fd >= 0)
			spw_fork_remove(devices[i]->fd);
		spw_device_close(devices[i]);
	}
	spw_vfio_let_go(hold);
}

static void close_candidates(struct candidate *candidates, unsigned count)
{
	struct spw_device *devices[SPW_DRIVES_MAX] = {NULL};

	if (!candidates)
		return;
	for (unsigned i = 0; i < count; i++)
		devices[i] = candidates[i].device;
	close_devices(devices, count);
	free(candidates);
}

/* Also those behind the first fault, for they may be shown. */
static void examine_each(struct candidate *candidates, const char *const paths[], unsigned count, bool read_only,
			 const struct spw_log *log)
{
	struct spw_vfio_hold *hold = spw_vfio_hold(paths, count, log);
	struct spw_loops *loops = NULL;

	for (unsigned i = 0; i < count; i++) {
		struct candidate *candidate = &candidates[i];

		candidate->path = paths[i];
		note_fault(candidate, spw_safety_open(paths[i], read_only, false, log, &candidate->device));
	}
	spw_safety_prepare();
	spw_parallel(count, look_into, candidates, log);
	/* Once for all drives. What goes wrong is said where each is asked about. */
	if (!read_only)
		(void)spw_loops_read(&loops);
	for (unsigned i = 0; i < count; i++)
		if (candidates[i].fault == 0)
			note_fault(&candidates[i], judge(&candidates[i], read_only, loops, log));
	spw_loops_free(loops);
	spw_vfio_let_go(hold);
}

/* Return: the first fault, with its words in spw_last_error(). */
static int examine_all(const char *const paths[], unsigned count, bool read_only, const struct spw_log *log,
		       struct candidate **out)
{
	struct candidate *candidates;
	char words[512] = "";
	int first = 0;

	*out = NULL;
	if (count == 0 || count > SPW_DRIVES_MAX)
		return spw_error(-EINVAL, "%u drives were named; a store has 1 to %u", count, SPW_DRIVES_MAX);
	candidates = calloc(count, sizeof(*candidates));
	if (!candidates)
		return spw_error(-ENOMEM, "no memory to examine %u drives", count);
	*out = candidates;
	first = spw_safety_distinct(paths, count);
	if (first != 0)
		(void)snprintf(words, sizeof(words), "%s", spw_last_error());
	examine_each(candidates, paths, count, read_only, log);
	if (first != 0)
		return spw_error(first, "%s", words);
	for (unsigned i = 0; i < count; i++)
		if (candidates[i].fault != 0)
			return spw_error(candidates[i].fault, "%s", candidates[i].words);
	return verify_set(candidates, count);
}

/* ---- Assemble ---- */

/* What a child of fork(2) inherits, it would keep locked after its parent was killed. */
static int keep_from_children(const struct spw_device *device)
{
	return device->fd < 0 ? 0 : spw_fork_add(device->fd);
}

int spw_assemble(const char *const paths[], unsigned count, bool read_only, const struct spw_log *log,
		 struct spw_assembly *out)
{
	struct candidate *candidates;
	int rc;

	memset(out, 0, sizeof(*out));
	rc = examine_all(paths, count, read_only, log, &candidates);
	if (rc != 0)
		goto out;
	SPW_ASSERT(candidates);
	out->devices = calloc(count, sizeof(struct spw_device *));
	out->superblocks = calloc(count, sizeof(*out->superblocks));
	if (!out->devices || !out->superblocks) {
		spw_assembly_close(out);
		rc = spw_error(-ENOMEM, "no memory for %u drives", count);
		goto out;
	}
	for (unsigned i = 0; i < count; i++) {
		unsigned index = candidates[i].superblock.drive_index;

		out->devices[index] = candidates[i].device;
		out->superblocks[index] = candidates[i].superblock;
		candidates[i].device = NULL;
	}
	out->count = count;
	for (unsigned i = 0; i < count && rc == 0; i++)
		rc = keep_from_children(out->devices[i]);
	if (rc != 0)
		spw_assembly_close(out);
out:
	close_candidates(candidates, count);
	return rc;
}

void spw_assembly_close(struct spw_assembly *assembly)
{
	spw_share_close(assembly->share);
	if (assembly->devices)
		close_devices(assembly->devices, assembly->count);
	free(assembly->devices);
	free(assembly->superblocks);
	memset(assembly, 0, sizeof(*assembly));
}

bool spw_assembly_opened(const struct spw_assembly *assembly)
{
	char words[64];

	for (unsigned i = 0; i < assembly->count; i++)
		if (spw_safety_opener(spw_device_path(assembly->devices[i]), assembly->devices[i]->fd, words,
				      sizeof(words)))
			return true;
	return false;
}

/*
 * QEMU locks bytes of a machine's drives, or of the files that they are: byte 100 + n for each n that the machine may do, and 200 + n for
 * each that it lets nobody else do; and looks for the other's. 1 is to write.
 */
#define QEMU_DOES       100u
#define QEMU_SHARES_NOT 200u
#define QEMU_WRITE      1u

/* No virtual machine may have the drive, from now on. */
static int keep_from_machines(const struct spw_device *device)
{
	int rc = device->fd < 0 ? 0 : spw_device_lock_shared(device, QEMU_SHARES_NOT + QEMU_WRITE, 1);

	if (rc == 0 && device->fd >= 0)
		rc = spw_device_locked(device, QEMU_DOES, QEMU_SHARES_NOT - QEMU_DOES);
	return rc <= 0 ? rc
		       : spw_error(-EBUSY, "%s: a virtual machine has it open (see fuser %s); end that first",
				   spw_device_path(device), spw_device_path(device));
}

static void unlock_partition(const struct spw_assembly *assembly, unsigned partition, unsigned drives)
{
	while (drives-- > 0) {
		uint64_t offset = spw_layout_partition_offset(&assembly->superblocks[drives], partition);

		(void)spw_device_unlock(assembly->devices[drives], offset, 1);
		(void)spw_device_unlock(assembly->devices[drives], QEMU_SHARES_NOT + QEMU_WRITE, 1);
	}
}

/* Is what was assembled still there? Asked under the lock, which a format needs too. */
static int verify_unchanged(const struct spw_assembly *assembly, unsigned index)
{
	const struct spw_superblock *before = &assembly->superblocks[index], *now;
	const char *path = spw_device_path(assembly->devices[index]);
	struct spw_superblocks superblocks;
	int place = spw_superblocks_read(assembly->devices[index], &superblocks);

	if (place == -ENOMEM)
		return place;
	if (place < 0)
		return spw_error(place, "%s: its superblock was removed or cannot be read any more; check the store",
				 path);
	if (superblocks.foreign[0])
		return spw_error(-EMEDIUMTYPE,
				 "%s: somebody has written over its superblock just now: %s; check the store", path,
				 superblocks.foreign);
	now = &superblocks.places[place].superblock;
	if (now->sequence != before->sequence ||
	    memcmp(now->store_uuid, before->store_uuid, sizeof(now->store_uuid)) != 0)
		return spw_error(-EUCLEAN, "%s: was formatted by another process just now; open the store again", path);
	return 0;
}

int spw_assembly_lock(const struct spw_assembly *assembly, unsigned partition)
{
	int rc = 0;

	if (assembly->count == 0 || partition >= assembly->superblocks[0].partition_count)
		return spw_error(-EINVAL, "partition %u does not exist: the store has %u, counted from 0", partition,
				 assembly->count == 0 ? 0 : assembly->superblocks[0].partition_count);
	for (unsigned i = 0; i < assembly->count; i++) {
		const struct spw_device *device = assembly->devices[i];

		rc = spw_device_lock(device, spw_layout_partition_offset(&assembly->superblocks[i], partition), 1);
		if (rc == -EBUSY)
			(void)spw_error(rc,
					"%s: partition %u of the store is open in another process; use another "
					"partition, or end that process",
					spw_device_path(device), partition);
		if (rc != 0) {
			unlock_partition(assembly, partition, i);
			return rc;
		}
	}
	return 0;
}

int spw_assembly_claim(struct spw_assembly *assembly, unsigned partition, const struct spw_log *log)
{
	struct spw_share_store store = {.partition = partition,
					.partition_count = assembly->superblocks[0].partition_count};
	struct spw_loops *loops = NULL;
	int rc;

	(void)spw_layout_uuid_text(assembly->superblocks[0].store_uuid, store.uuid);
	rc = spw_share_open(assembly->devices, assembly->count, &store, log, &assembly->share);
	if (rc == 0)
		rc = spw_loops_read(&loops);
	for (unsigned i = 0; rc == 0 && i < assembly->count; i++)
		rc = keep_from_machines(assembly->devices[i]);
	/* With locks and claims of its own: whoever asks the same way meets them, or is met here. */
	for (unsigned i = 0; rc == 0 && i < assembly->count; i++)
		rc = spw_safety_relatives_locked(spw_device_path(assembly->devices[i]), loops);
	for (unsigned i = 0; rc == 0 && i < assembly->count; i++)
		rc = spw_safety_in_use(spw_device_path(assembly->devices[i]), loops);
	spw_loops_free(loops);
	for (unsigned i = 0; rc == 0 && i < assembly->count; i++)
		rc = verify_unchanged(assembly, i);
	if (rc != 0) {
		spw_share_close(assembly->share);
		assembly->share = NULL;
		unlock_partition(assembly, partition, assembly->count);
	}
	return rc;
}

/* ---- Check ---- */

static void fill_drive(const struct candidate *candidate, struct spw_drive_info *info, size_t size)
{
	const struct spw_superblock *sb = &candidate->superblock;
	struct spw_drive_info own = {
		.size = sizeof(own),
		.copies_good = candidate->contents.superblocks.copies_good,
		.error = candidate->fault,
	};

	(void)snprintf(own.path, sizeof(own.path), "%s", candidate->path);
	(void)snprintf(own.reason, sizeof(own.reason), "%.255s", candidate->words);
	if (candidate->device) {
		own.geometry = *spw_device_geometry(candidate->device);
		own.size_bytes = own.geometry.size_bytes;
	}
	if (candidate->has_superblock) {
		(void)spw_layout_uuid_text(sb->drive_uuids[sb->drive_index], own.drive_uuid);
		own.index = sb->drive_index;
		own.data_offset_bytes = sb->data_offset_bytes;
		own.partition_bytes = sb->partition_bytes;
		own.sequence = sb->sequence;
	}
	spw_opts_merge(info, size, &own, sizeof(own));
}

/* Return: how many partitions are locked on any drive, or a negative errno. */
static int partitions_in_use(const struct candidate *candidates, unsigned count)
{
	unsigned in_use = 0;

	for (unsigned partition = 0; partition < candidates[0].superblock.partition_count; partition++) {
		int locked = 0;

		for (unsigned i = 0; locked == 0 && i < count; i++)
			locked =
				spw_safety_locked(candidates[i].path,
						  spw_layout_partition_offset(&candidates[i].superblock, partition), 1);
		if (locked < 0)
			return locked;
		in_use += (unsigned)locked;
	}
	return (int)in_use;
}

static int fill_store(const struct candidate *candidates, unsigned count, struct spw_store_info *info)
{
	const struct spw_superblock *sb = &candidates[0].superblock;
	struct spw_store_info own = {
		.size = sizeof(own),
		.format_version = SPW_FORMAT_VERSION,
		.drives = count,
		.partitions = sb->partition_count,
		.block_bytes = sb->block_bytes,
		.chunk_bytes = sb->chunk_bytes,
	};
	int in_use = partitions_in_use(candidates, count);

	if (in_use < 0)
		return in_use;
	own.partitions_in_use = (uint32_t)in_use;
	(void)spw_layout_uuid_text(sb->store_uuid, own.store_uuid);
	for (unsigned i = 0; i < count; i++)
		own.partition_capacity_bytes += candidates[i].superblock.partition_bytes;
	own.capacity_bytes = own.partition_capacity_bytes * sb->partition_count;
	spw_opts_merge(info, info->size == 0 ? sizeof(*info) : info->size, &own, sizeof(own));
	return 0;
}

/* The step from one element to the next, as the caller was compiled. 0: as this library knows it. */
static int drive_info_step(const struct spw_drive_info drives[], size_t *step)
{
	*step = drives && drives[0].size != 0 ? drives[0].size : sizeof(drives[0]);
	if (*step > 16 * sizeof(drives[0]))
		return spw_error(-EINVAL,
				 "the size of the drives' info is not set: set drives[i].size = sizeof(drives[i])");
	return 0;
}

int spw_check(const char *const paths[], unsigned count, struct spw_store_info *info, struct spw_drive_info drives[])
{
	struct candidate *candidates = NULL;
	size_t drive_size;
	int rc = drive_info_step(drives, &drive_size);

	if (rc != 0)
		return rc;
	rc = examine_all(paths, count, true, NULL, &candidates);
	for (unsigned i = 0; candidates && drives && i < count; i++)
		fill_drive(&candidates[i], (struct spw_drive_info *)((char *)drives + i * drive_size), drive_size);
	SPW_ASSERT(rc != 0 || candidates);
	if (rc == 0 && info)
		rc = fill_store(candidates, count, info);
	close_candidates(candidates, count);
	return rc;
}
