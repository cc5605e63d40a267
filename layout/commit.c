/* SPDX-License-Identifier: MIT */
/*
 * layout/commit.c - encode and decode commit blocks and manifests
 *
 * Invariants; decoding fails if one is violated, and the tests name them by number. docs/FORMAT.md
 * describes each field.
 *
 *   COMMIT-1  A block is 4096 bytes of little-endian fields of fixed width. It begins with the
 *             magic number and ends with the XXH3-64 of all bytes before it.
 *   COMMIT-2  The block names the store, the partition and the slot in which it is stored.
 *   COMMIT-3  sequence is 1 to 2^62; number is below 2^63, and above that of the previous commit.
 *   COMMIT-4  A piece is 1 to chunk_bytes long and lies on a drive of the store. Every piece of an
 *             object except the last is a whole number of blocks. The two pieces of a pair have the
 *             same length and checksum and lie on different drives; the second may be missing.
 *   COMMIT-5  The lengths of the manifest's pieces add up to that of the manifest. Reserved bytes
 *             are zero.
 *   COMMIT-6  A manifest has the store, the partition, the sequence and the number of the block
 *             that names it.
 *   COMMIT-7  The tables and the record of a manifest fill it exactly, and the pieces of each
 *             object add up to its length.
 *   COMMIT-8  Version 1 has no members and nothing mirrored; version 2 has members, all of them
 *             drives of the store. The manifest has the version of its block.
 */
#include "layout/commit.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include <xxhash.h>

#include "util/util.h"

#define VERSION_PLAIN   1u
#define VERSION_MEMBERS 2u
#define FLAG_PREVIOUS   1u
#define FLAG_MIRRORED   2u
#define NUMBER_MAX      (UINT64_MAX >> 1)

static const char block_magic[8] = {'S', 'P', 'W', 'C', 'O', 'M', 'I', 'T'};
static const char manifest_magic[8] = {'S', 'P', 'W', 'M', 'A', 'N', 'I', 'F'};

/* A commit block on the drive: little-endian, without padding (COMMIT-1). */
struct disk_block {
	char magic[8];
	uint32_t version;
	uint32_t flags;
	uint8_t store_uuid[16];
	uint32_t partition;
	uint32_t slot;
	uint64_t sequence;
	uint64_t number;
	uint64_t previous;
	uint64_t manifest_bytes;
	uint32_t piece_count;
	uint32_t reserved0;
	uint64_t members;
	uint8_t reserved1[40];
	struct spw_commit_piece pieces[SPW_COMMIT_PIECES_MAX];
	uint64_t checksum;
};

struct disk_manifest {
	char magic[8];
	uint32_t version;
	uint32_t object_count;
	uint8_t store_uuid[16];
	uint32_t partition;
	uint32_t reserved;
	uint64_t sequence;
	uint64_t number;
	uint64_t piece_count;
	uint64_t record_bytes;
};

static_assert(sizeof(struct spw_commit_piece) == 24, "a piece on the drive");
static_assert(sizeof(struct spw_commit_object) == 16, "an object on the drive");
static_assert(sizeof(struct disk_block) == SPW_COMMIT_BLOCK_BYTES, "a commit block");
static_assert(offsetof(struct disk_block, pieces) == 0x80, "pieces of a commit block");
static_assert(sizeof(struct disk_manifest) == 0x48, "the header of a manifest");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "fields are copied as they are");

/* ---- The block ---- */

void spw_layout__commit_encode(const struct spw_commit *commit,
			       const struct spw_commit_place *place,
			       uint8_t block[SPW_COMMIT_BLOCK_BYTES])
{
	struct disk_block disk = {
		.version = commit->members ? VERSION_MEMBERS : VERSION_PLAIN,
		.flags = (commit->has_previous ? FLAG_PREVIOUS : 0) |
			 (commit->mirrored ? FLAG_MIRRORED : 0),
		.partition = place->partition,
		.slot = commit->slot,
		.sequence = commit->sequence,
		.number = commit->number,
		.previous = commit->has_previous ? commit->previous : 0,
		.manifest_bytes = commit->manifest_bytes,
		.piece_count = commit->piece_count,
		.members = commit->members,
	};

	/* the slot in which the block lies */
	SPW_ASSERT(commit->slot < SPW_COMMIT_SLOTS);
	/* version 1 has no members and nothing mirrored (COMMIT-8) */
	SPW_ASSERT(commit->members != 0 || !commit->mirrored);
	SPW_ASSERT(commit->piece_count > 0 && commit->piece_count <= SPW_COMMIT_PIECES_MAX);
	memcpy(disk.magic, block_magic, sizeof(disk.magic));
	memcpy(disk.store_uuid, place->store_uuid, sizeof(disk.store_uuid));
	memcpy(disk.pieces, commit->pieces, commit->piece_count * sizeof(disk.pieces[0]));
	disk.checksum = XXH3_64bits(&disk, offsetof(struct disk_block, checksum));
	memcpy(block, &disk, sizeof(disk));
}

static const char *pair_fault(const struct spw_commit_place *place,
			      const struct spw_commit_piece pair[2])
{
	if (pair[1].len_bytes != pair[0].len_bytes || pair[1].checksum != pair[0].checksum)
		return "two copies are not of the same bytes";
	if (pair[1].drive == pair[0].drive)
		return "two copies lie on one drive";
	if (pair[1].drive == SPW_COMMIT_NO_DRIVE ? pair[1].start_block != 0
						 : pair[1].drive >= place->drive_count)
		return "a copy lies on a drive that the store has not";
	return NULL;
}

/* Check the pieces of one object, @len_bytes in all (COMMIT-4). Return: NULL, or what is wrong. */
static const char *pieces_fault(const struct spw_commit_place *place,
				const struct spw_commit_piece *pieces, uint64_t count,
				uint64_t len_bytes, bool mirrored)
{
	unsigned step = mirrored ? 2 : 1;
	uint64_t sum_bytes = 0;

	if (count % step != 0)
		return "a piece has no second copy";
	for (uint64_t i = 0; i < count; i += step) {
		const char *why = mirrored ? pair_fault(place, &pieces[i]) : NULL;

		if (why)
			return why;
		if (pieces[i].drive >= place->drive_count)
			return "a piece lies on a drive that the store has not";
		if (pieces[i].len_bytes == 0 || pieces[i].len_bytes > place->chunk_bytes)
			return "the length of a piece is out of range";
		if (i + step < count && pieces[i].len_bytes % place->block_bytes != 0)
			return "a piece ends within a block";
		sum_bytes += pieces[i].len_bytes;
	}
	return sum_bytes == len_bytes ? NULL : "the pieces of an object are not as long as it is";
}

static bool is_zero(const void *bytes, size_t len)
{
	const uint8_t *at = bytes;

	while (len > 0 && *at == 0) {
		at++;
		len--;
	}
	return len == 0;
}

/* Check members and the mirrored flag against the version (COMMIT-8). */
static const char *version_fault(const struct disk_block *disk,
				 const struct spw_commit_place *place)
{
	uint64_t drives =
		place->drive_count < 64 ? (UINT64_C(1) << place->drive_count) - 1 : UINT64_MAX;

	if (disk->version == 0)
		return "its version is 0";
	if (disk->version == VERSION_PLAIN)
		return disk->members == 0 && !(disk->flags & FLAG_MIRRORED)
			       ? NULL
			       : "a reserved byte is not zero";
	return disk->members != 0 && (disk->members & ~drives) == 0
		       ? NULL
		       : "it names drives that the store has not";
}

/* Check place, sequence, number, reserved bytes and pieces of a block (COMMIT-2, 3, 5). */
static const char *block_fault(const struct disk_block *disk, const struct spw_commit_place *place,
			       unsigned slot)
{
	size_t rest = SPW_COMMIT_PIECES_MAX - SPW_MIN(disk->piece_count, SPW_COMMIT_PIECES_MAX);

	if (disk->partition != place->partition || disk->slot != slot)
		return "it belongs to another place";
	if ((disk->flags & ~(FLAG_PREVIOUS | FLAG_MIRRORED)) != 0)
		return "an unknown flag is set";
	if (disk->sequence == 0 || disk->sequence > SPW_COMMIT_SEQUENCE_MAX)
		return "its sequence number is out of range";
	if (disk->number > NUMBER_MAX ||
	    (disk->flags & FLAG_PREVIOUS ? disk->previous >= disk->number : disk->previous != 0))
		return "its number is out of range";
	if (disk->piece_count == 0 || disk->piece_count > SPW_COMMIT_PIECES_MAX)
		return "its number of pieces is out of range";
	if (disk->reserved0 != 0 || !is_zero(disk->reserved1, sizeof(disk->reserved1)) ||
	    !is_zero(&disk->pieces[disk->piece_count], rest * sizeof(disk->pieces[0])))
		return "a reserved byte is not zero";
	return pieces_fault(place, disk->pieces, disk->piece_count, disk->manifest_bytes,
			    disk->flags & FLAG_MIRRORED);
}

int spw_layout__commit_decode(const uint8_t block[SPW_COMMIT_BLOCK_BYTES],
			      const struct spw_commit_place *place, unsigned slot,
			      struct spw_commit *commit, const char **why)
{
	struct disk_block disk;

	memset(commit, 0, sizeof(*commit));
	memcpy(&disk, block, sizeof(disk));
	*why = "there is none";
	if (memcmp(disk.magic, block_magic, sizeof(disk.magic)) != 0)
		return -EMEDIUMTYPE;
	*why = "its checksum is wrong";
	if (disk.checksum != XXH3_64bits(&disk, offsetof(struct disk_block, checksum)))
		return -EUCLEAN;
	*why = "it is of another store";
	if (memcmp(disk.store_uuid, place->store_uuid, sizeof(disk.store_uuid)) != 0)
		return -EMEDIUMTYPE;
	*why = "it is of a newer version";
	if (disk.version > VERSION_MEMBERS)
		return -EPROTONOSUPPORT;
	*why = version_fault(&disk, place);
	if (!*why)
		*why = block_fault(&disk, place, slot);
	if (*why)
		return -EUCLEAN;
	commit->slot = slot;
	commit->sequence = disk.sequence;
	commit->number = disk.number;
	commit->has_previous = (disk.flags & FLAG_PREVIOUS) != 0;
	commit->previous = disk.previous;
	commit->manifest_bytes = disk.manifest_bytes;
	commit->members = disk.members;
	commit->mirrored = (disk.flags & FLAG_MIRRORED) != 0;
	commit->piece_count = disk.piece_count;
	memcpy(commit->pieces, disk.pieces, sizeof(commit->pieces));
	return 0;
}

/* ---- The manifest ---- */

static uint64_t record_offset(const struct spw_manifest *manifest)
{
	return sizeof(struct disk_manifest) +
	       manifest->object_count * sizeof(struct spw_commit_object) +
	       manifest->piece_count * sizeof(struct spw_commit_piece);
}

uint64_t spw_layout__manifest_bytes(const struct spw_manifest *manifest)
{
	return record_offset(manifest) + manifest->record_bytes;
}

void spw_layout__manifest_encode(const struct spw_manifest *manifest,
				 const struct spw_commit_place *place, uint8_t *bytes)
{
	struct disk_manifest disk = {
		.version = manifest->mirrors ? VERSION_MEMBERS : VERSION_PLAIN,
		.object_count = manifest->object_count,
		.partition = place->partition,
		.sequence = manifest->sequence,
		.number = manifest->number,
		.piece_count = manifest->piece_count,
		.record_bytes = manifest->record_bytes,
	};
	size_t objects_bytes = manifest->object_count * sizeof(struct spw_commit_object);
	size_t pieces_bytes = manifest->piece_count * sizeof(struct spw_commit_piece);

	memcpy(disk.magic, manifest_magic, sizeof(disk.magic));
	memcpy(disk.store_uuid, place->store_uuid, sizeof(disk.store_uuid));
	memcpy(bytes, &disk, sizeof(disk));
	bytes += sizeof(disk);
	if (objects_bytes > 0)
		memcpy(bytes, manifest->objects, objects_bytes);
	if (pieces_bytes > 0)
		memcpy(bytes + objects_bytes, manifest->pieces, pieces_bytes);
	if (manifest->record_bytes > 0)
		memcpy(bytes + objects_bytes + pieces_bytes, manifest->record,
		       manifest->record_bytes);
}

/* Does the manifest belong to the block that names it (COMMIT-6)? Return: NULL, or why not. */
static const char *header_fault(const struct disk_manifest *disk,
				const struct spw_commit_place *place,
				const struct spw_commit *commit)
{
	if (memcmp(disk->magic, manifest_magic, sizeof(disk->magic)) != 0)
		return "the manifest has no magic";
	if (disk->version != (commit->members ? VERSION_MEMBERS : VERSION_PLAIN) ||
	    disk->reserved != 0)
		return "the manifest is of another version";
	if (memcmp(disk->store_uuid, place->store_uuid, sizeof(disk->store_uuid)) != 0 ||
	    disk->partition != place->partition || disk->sequence != commit->sequence ||
	    disk->number != commit->number)
		return "the manifest is of another commit";
	return NULL;
}

/* Check that the pieces of each object add up to its length, and none is left over (COMMIT-7). */
static const char *tables_fault(const struct spw_manifest *manifest,
				const struct spw_commit_place *place)
{
	const struct spw_commit_piece *piece = manifest->pieces;
	uint64_t left = manifest->piece_count;

	for (uint32_t i = 0; i < manifest->object_count; i++) {
		const struct spw_commit_object *object = &manifest->objects[i];
		const char *why;

		if (object->len_bytes == 0 || object->mirrored > manifest->mirrors)
			return "the table of objects is not valid";
		if (object->pieces > left)
			return "the objects have more pieces than there are";
		why = pieces_fault(place, piece, object->pieces, object->len_bytes,
				   object->mirrored);
		if (why)
			return why;
		piece += object->pieces;
		left -= object->pieces;
	}
	return left == 0 ? NULL : "there are pieces of no object";
}

int spw_layout__manifest_decode(const uint8_t *bytes, size_t len,
				const struct spw_commit_place *place,
				const struct spw_commit *commit, struct spw_manifest *manifest,
				const char **why)
{
	struct disk_manifest disk;
	uint64_t rest = len - sizeof(disk);

	memset(manifest, 0, sizeof(*manifest));
	SPW_ASSERT((uintptr_t)bytes % 8 == 0);
	*why = "the manifest is too short";
	if (len < sizeof(disk) || len != commit->manifest_bytes)
		return -EUCLEAN;
	memcpy(&disk, bytes, sizeof(disk));
	*why = header_fault(&disk, place, commit);
	if (*why)
		return -EUCLEAN;
	/* Each count is bounded by the rest of the bytes, so that no product below overflows. */
	*why = "the tables of the manifest do not fill it";
	if (disk.object_count > rest / sizeof(struct spw_commit_object) ||
	    disk.piece_count > rest / sizeof(struct spw_commit_piece) || disk.record_bytes > rest)
		return -EUCLEAN;
	manifest->mirrors = disk.version == VERSION_MEMBERS;
	manifest->sequence = disk.sequence;
	manifest->number = disk.number;
	manifest->object_count = disk.object_count;
	manifest->piece_count = disk.piece_count;
	manifest->record_bytes = disk.record_bytes;
	if (spw_layout__manifest_bytes(manifest) != len) {
		memset(manifest, 0, sizeof(*manifest));
		return -EUCLEAN;
	}
	bytes += sizeof(disk);
	manifest->objects = (const struct spw_commit_object *)(const void *)bytes;
	bytes += disk.object_count * sizeof(struct spw_commit_object);
	manifest->pieces = (const struct spw_commit_piece *)(const void *)bytes;
	manifest->record = bytes + disk.piece_count * sizeof(struct spw_commit_piece);
	*why = tables_fault(manifest, place);
	if (*why)
		memset(manifest, 0, sizeof(*manifest));
	return *why ? -EUCLEAN : 0;
}
