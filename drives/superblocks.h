/* SPDX-License-Identifier: MIT */
/* drives/superblocks.h - the copies of a drive's superblock */
#ifndef SPW_DRIVES_SUPERBLOCKS_H
#define SPW_DRIVES_SUPERBLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/engine.h>

#include "layout/layout.h"

/* Where a copy may be. The third place serves a grown device: copy 0 says where its end was. */
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
	/* the place to believe, or a negative errno as of spw_layout__choose() */
	int chosen;
	unsigned copies_good; /* intact copies that agree with the one chosen, itself included */
	/* What others wrote in place of the other copy (LAYOUT-14); "": nothing, or unreadable */
	char foreign[80];
};

/* Return: superblocks->chosen; or -ENOMEM. Says nothing in spw_last_error() about what it found. */
int spw_drives__superblocks_read(const struct spw_device *device,
				 struct spw_superblocks *superblocks);

/*
 * Is the drive as long as it was formatted, although others had time to cut it? @had_last: the copy
 * at its end was intact when it was opened; of a file it is read, as one that was cut and has grown
 * again has a hole there. Return: 0; -EIO it was cut, -ENOMEM, or another errno, in words.
 */
int spw_drives__superblock_still_whole(const struct spw_device *device,
				       const struct spw_superblock *sb, bool had_last);

/* The logical blocks of a copy at @offset_bytes: 4096 bytes, or one larger logical block. */
struct spw_span {
	uint64_t offset_bytes;
	size_t len_bytes;
	size_t inside_bytes; /* where in it the copy begins */
};
struct spw_span spw_drives__superblock_span(const struct spw_device *device, uint64_t offset_bytes);

#endif
