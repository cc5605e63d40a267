/* SPDX-License-Identifier: MIT */
/* drives/superblocks.h - the copies of a drive's superblock */
#ifndef SPW_DRIVES_SUPERBLOCKS_H
#define SPW_DRIVES_SUPERBLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/engine.h>

#include "layout/layout.h"

/*
 * Where a copy may be. The third place is for a device that has grown since it was formatted: copy
 * 1 is where copy 0 says that the end was.
 */
enum spw_place {
	SPW_PLACE_FIRST,
	SPW_PLACE_LAST,
	SPW_PLACE_FORMER_LAST,
	SPW_PLACES,
};

struct spw_superblocks {
	struct spw_place_content {
		bool exists; /* the place lies inside the device and was looked at */
		uint64_t offset_bytes;
		int result;      /* of reading and decoding */
		const char *why; /* in words, when result is not 0 */
		struct spw_superblock superblock;
	} places[SPW_PLACES];
	/* the place to believe, or a negative errno as of spw_layout_choose() */
	int chosen;
	unsigned copies_good; /* intact copies that agree with the one chosen, itself included */
	/*
	 * What somebody else has written where the other copy was (LAYOUT-14), in words; "":
	 * nothing. A place that cannot be read is the drive's fault: what is written over it can be
	 * read again.
	 */
	char foreign[80];
};

/* Return: superblocks->chosen; or -ENOMEM. Says nothing in spw_last_error() about what it found. */
int spw_superblocks_read(const struct spw_device *device, struct spw_superblocks *superblocks);

/*
 * The logical blocks that a superblock copy at @offset_bytes lies in: exactly its own 4096 bytes,
 * except on devices with larger logical blocks.
 */
struct spw_span {
	uint64_t offset_bytes;
	size_t len_bytes;
	size_t inside_bytes; /* where in it the copy begins */
};
struct spw_span spw_superblock_span(const struct spw_device *device, uint64_t offset_bytes);

#endif
