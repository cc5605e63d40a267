/* SPDX-License-Identifier: MIT */
/* drives/contents.h - what a drive holds: a store, what others know, unknown data, or nothing */
#ifndef SPW_DRIVES_CONTENTS_H
#define SPW_DRIVES_CONTENTS_H

#include "drives/residue.h"
#include "drives/superblocks.h"

struct spw_contents {
	struct spw_superblocks superblocks;
	bool store;                 /* a spillway store, whole or damaged */
	bool foreign;               /* anything else that libblkid or the kernel knows */
	struct spw_residue residue; /* looked for where there is neither */
	/* "ext4 file system \"root\"", "unknown data", "nothing known" */
	char text[160];
};

/* Return: 0; -ESTALE the path names another device; -errno, in words. Threads may call it. */
int spw_drives__contents_read(const struct spw_device *device, struct spw_contents *contents);

/* Fails with -EEXIST, says what the drive carries and names the remedy, --force or --erase. */
int spw_drives__carries_error(const char *path, const struct spw_contents *contents);

/* Of a drive below SPW_DRIVE_BYTES_MIN, as -ENOSPC. */
int spw_drives__too_small_error(const char *path, uint64_t size_bytes);

#endif
