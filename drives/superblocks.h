/* SPDX-License-Identifier: MIT */
/* drives/superblocks.h - read the copies of a drive's superblock */
#ifndef SPW_DRIVES_SUPERBLOCKS_H
#define SPW_DRIVES_SUPERBLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/engine.h>

#include "layout/superblock.h"

/* Superblock slots. The third is for a device that has grown: copy 0 tells where its end was. */
enum spw_place {
	SPW_PLACE_FIRST,
	SPW_PLACE_LAST,
	SPW_PLACE_FORMER_LAST,
	SPW_PLACES,
};

struct spw_superblocks {
	struct spw_place_content {
		bool exists; /* the slot lies inside the device and was read */
		uint64_t offset_bytes;
		int result;      /* of reading and decoding */
		const char *why; /* reason, if result is not 0 */
		struct spw_superblock superblock;
	} places[SPW_PLACES];
	/* the slot of the valid copy, or a negative errno, as spw_layout__choose_copy() */
	int chosen;
	/* number of intact copies that agree with the valid one, including itself */
	unsigned copies_good;
	/* data of other software in the other slot (LAYOUT-14); "": none, or unreadable */
	char foreign[80];
};

/* Read all slots. Sets no spw_last_error() for faults of copies. Return: ->chosen; or -ENOMEM. */
int spw_drives__superblocks_read(const struct spw_device *device,
				 struct spw_superblocks *superblocks);

/*
 * Was the drive truncated since it was formatted? @had_last: the copy at its end was intact when it
 * was opened; it is then read again from a file, which has a hole there if it was truncated and has
 * grown again. Return: 0; -EIO truncated; -ENOMEM; or another errno; with a message.
 */
int spw_drives__check_not_truncated(const struct spw_device *device,
				    const struct spw_superblock *sb, bool had_last);

/* The logical blocks of a copy at @offset_bytes: 4096 bytes, or one larger logical block. */
struct spw_span {
	uint64_t offset_bytes;
	size_t len_bytes;
	size_t inside_bytes; /* offset of the copy within the blocks */
};
struct spw_span spw_drives__superblock_span(const struct spw_device *device, uint64_t offset_bytes);

#endif
