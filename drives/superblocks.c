/* SPDX-License-Identifier: MIT */
/* drives/superblocks.c - read the copies of a drive's superblock, and choose the valid one */
#include "drives/superblocks.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device.h"
#include "util/util.h"

struct spw_span spw_drives__superblock_span(const struct spw_device *device, uint64_t offset_bytes)
{
	uint32_t unit = spw_device_geometry(device)->logical_block_bytes;
	uint64_t start = spw_round_down(offset_bytes, unit);

	return (struct spw_span){
		.offset_bytes = start,
		.len_bytes = spw_round_up(offset_bytes + SPW_SUPERBLOCK_BYTES, unit) - start,
		.inside_bytes = offset_bytes - start,
	};
}

/* Read the 4096 bytes of a slot. *result: of reading. Return: 0; -ENOMEM. */
static int read_bytes(const struct spw_device *device, uint64_t offset_bytes,
		      uint8_t bytes[SPW_SUPERBLOCK_BYTES], int *result)
{
	struct spw_span span = spw_drives__superblock_span(device, offset_bytes);
	uint8_t *buf = spw_engine__device_buffer(device, span.len_bytes);

	if (!buf)
		return -ENOMEM;
	*result = spw_device_pread(device, buf, span.len_bytes, span.offset_bytes);
	if (*result == 0)
		memcpy(bytes, buf + span.inside_bytes, SPW_SUPERBLOCK_BYTES);
	free(buf);
	return 0;
}

static int read_place(const struct spw_device *device, struct spw_superblocks *superblocks,
		      enum spw_place place, uint64_t offset_bytes)
{
	struct spw_place_content *content = &superblocks->places[place];
	unsigned copy = place == SPW_PLACE_FIRST ? 0 : 1;
	uint8_t bytes[SPW_SUPERBLOCK_BYTES];

	SPW_ASSERT(place < SPW_PLACES && !content->exists);
	content->exists = true;
	content->offset_bytes = offset_bytes;
	content->why = "it cannot be read";
	if (read_bytes(device, offset_bytes, bytes, &content->result) != 0)
		return -ENOMEM;
	if (content->result == 0)
		content->result =
			spw_layout__decode(bytes, copy, &content->superblock, &content->why);
	/* An intact copy in a slot that does not match its size is a former format's. */
	if (content->result == 0 && copy == 1 &&
	    spw_layout__copy_offset(content->superblock.device_bytes, 1) != offset_bytes) {
		content->result = -EUCLEAN;
		content->why = "it belongs to another place";
	}
	return 0;
}

/* Choose the valid copy of two slots. Return: 0; 1; or an errno: as spw_layout__choose_copy(). */
static int choose_of(const struct spw_place_content *first, const struct spw_place_content *second)
{
	struct spw_superblock copies[2] = {first->superblock, second->superblock};
	int results[2] = {first->result, second->result};

	return spw_layout__choose_copy(copies, results);
}

static void choose(struct spw_superblocks *superblocks)
{
	const struct spw_place_content *places = superblocks->places;
	enum spw_place last = SPW_PLACE_LAST;
	int copy;

	/* Copy 1 can be in two slots. */
	if (places[SPW_PLACE_FORMER_LAST].exists &&
	    choose_of(&places[SPW_PLACE_LAST], &places[SPW_PLACE_FORMER_LAST]) == 1)
		last = SPW_PLACE_FORMER_LAST;
	copy = choose_of(&places[SPW_PLACE_FIRST], &places[last]);
	SPW_ASSERT(places[last].exists && places[SPW_PLACE_FIRST].exists);
	superblocks->copies_good = 0;
	superblocks->chosen = copy == 1 ? (int)last : copy;
	if (copy < 0)
		return;
	for (unsigned i = 0; i < 2; i++) {
		const struct spw_place_content *content = &places[i == 0 ? SPW_PLACE_FIRST : last];

		if (content->result == 0 &&
		    content->superblock.sequence == places[superblocks->chosen].superblock.sequence)
			superblocks->copies_good++;
	}
}

static const struct spw_place_content *content_at(const struct spw_superblocks *superblocks,
						  uint64_t offset_bytes)
{
	for (unsigned i = 0; i < SPW_PLACES; i++)
		if (superblocks->places[i].exists &&
		    superblocks->places[i].offset_bytes == offset_bytes)
			return &superblocks->places[i];
	return NULL;
}

/* One copy is intact: has other software overwritten the other? Reads again. Return: 0; -ENOMEM. */
static int look_for_foreign(const struct spw_device *device, struct spw_superblocks *superblocks)
{
	const struct spw_superblock *sb = &superblocks->places[superblocks->chosen].superblock;
	unsigned other = superblocks->chosen == SPW_PLACE_FIRST ? 1 : 0;
	uint64_t offset_bytes = spw_layout__copy_offset(sb->device_bytes, other);
	const struct spw_place_content *content = content_at(superblocks, offset_bytes);
	uint8_t bytes[SPW_SUPERBLOCK_BYTES + 3] = {0};
	size_t at = SPW_SUPERBLOCK_BYTES;
	int result;

	SPW_ASSERT(superblocks->chosen < SPW_PLACES && superblocks->copies_good == 1);
	/* The other slot has a copy of an earlier or later format of ours. */
	if (!content || content->result == 0)
		return 0;
	if (read_bytes(device, offset_bytes, bytes, &result) != 0)
		return -ENOMEM;
	if (result == 0)
		at = spw_layout__foreign(sb, other, bytes);
	if (at < SPW_SUPERBLOCK_BYTES)
		(void)snprintf(superblocks->foreign, sizeof(superblocks->foreign),
			       "%s at byte %llu (%02x %02x %02x %02x)",
			       content->result == -EPROTONOSUPPORT ? "a newer superblock"
								   : "unknown data",
			       (unsigned long long)(offset_bytes + at), bytes[at], bytes[at + 1],
			       bytes[at + 2], bytes[at + 3]);
	return 0;
}

static int read_once(const struct spw_device *device, struct spw_superblocks *superblocks)
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
	last_bytes = spw_layout__copy_offset(size_bytes, 1);
	rc = read_place(device, superblocks, SPW_PLACE_FIRST, 0);
	if (rc == 0)
		rc = read_place(device, superblocks, SPW_PLACE_LAST, last_bytes);
	if (rc == 0 && first->result == 0) {
		former_bytes = spw_layout__copy_offset(first->superblock.device_bytes, 1);
		if (former_bytes < last_bytes)
			rc = read_place(device, superblocks, SPW_PLACE_FORMER_LAST, former_bytes);
	}
	if (rc != 0)
		return rc;
	choose(superblocks);
	SPW_ASSERT(superblocks->chosen < 0 || superblocks->copies_good > 0);
	if (superblocks->chosen >= 0 && superblocks->copies_good < 2 &&
	    look_for_foreign(device, superblocks) != 0)
		return -ENOMEM;
	return superblocks->chosen;
}

/*
 * Read as another process writes one copy and then the other (REPLACE-5), both may be torn: then
 * the one that was written first is whole by now.
 */
int spw_drives__superblocks_read(const struct spw_device *device,
				 struct spw_superblocks *superblocks)
{
	int rc = read_once(device, superblocks);

	return rc == -EUCLEAN ? read_once(device, superblocks) : rc;
}

static bool is_all_zero(const uint8_t *bytes, size_t len)
{
	return bytes[0] == 0 && memcmp(bytes, bytes + 1, len - 1) == 0;
}

int spw_drives__check_not_truncated(const struct spw_device *device,
				    const struct spw_superblock *sb, bool had_last)
{
	uint64_t size_bytes = 0, last_bytes = spw_layout__copy_offset(sb->device_bytes, 1);
	const char *path = spw_device_path(device);
	uint8_t bytes[SPW_SUPERBLOCK_BYTES];
	int result, rc = spw_engine__device_size_now(device, &size_bytes);

	if (rc)
		return rc;
	/* Removed, not truncated: I/O errors have shown that, and the data is on other drives. */
	if (size_bytes == 0 && device->geometry.kind != SPW_DEVICE_FILE)
		return 0;
	if (size_bytes < sb->device_bytes)
		return spw_error(
			-EIO,
			"%s: was truncated while the store was open: it has %s (%llu bytes), not "
			"%s (%llu); what lay beyond is lost: close the store, restore the size, "
			"and put the objects again",
			path, SPW_SIZE_TEXT(size_bytes), (unsigned long long)size_bytes,
			SPW_SIZE_TEXT(sb->device_bytes), (unsigned long long)sb->device_bytes);
	if (!had_last || device->geometry.kind != SPW_DEVICE_FILE)
		return 0;
	rc = read_bytes(device, last_bytes, bytes, &result);
	if (rc || result || !is_all_zero(bytes, sizeof(bytes)))
		return rc;
	return spw_error(
		-EIO,
		"%s: was truncated while the store was open, and has grown again: there is "
		"a hole where its last superblock was (byte %llu), and what lay near is "
		"lost: close the store, format it again, and put the objects again",
		path, (unsigned long long)last_bytes);
}
