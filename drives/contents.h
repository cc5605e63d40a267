/* SPDX-License-Identifier: MIT */
/* drives/contents.h - what a drive holds: a store, foreign signatures, unknown data, nothing */
#ifndef SPW_DRIVES_CONTENTS_H
#define SPW_DRIVES_CONTENTS_H

#include "drives/unknown_data.h"
#include "drives/superblocks.h"

struct spw_contents {
	struct spw_superblocks superblocks;
	bool store;                      /* a spillway store, intact or damaged */
	bool foreign;                    /* anything else that libblkid or the kernel recognizes */
	struct spw_unknown_data unknown; /* unknown data; read if there is neither */
	/* "ext4 file system \"root\"", "unknown data", "nothing known" */
	char text[160];
};

/* Thread-safe. Return: 0; -ESTALE the path names another device now; -errno with a message. */
int spw_drives__contents_read(const struct spw_device *device, struct spw_contents *contents);

/* Report what the drive holds, and the remedy, --force or --erase. Return: -EEXIST. */
int spw_drives__carries_error(const char *path, const struct spw_contents *contents);

/* Report that a drive is smaller than SPW_DRIVE_BYTES_MIN. Return: -ENOSPC. */
int spw_drives__too_small_error(const char *path, uint64_t size_bytes);

#endif
