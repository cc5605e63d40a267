/* SPDX-License-Identifier: MIT */
/*
 * drives/contents.h - what a drive holds: a store, something that others know, data that nobody
 * knows, or nothing
 */
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

/*
 * Return: 0; -ESTALE its path names another device by now; or an error of reading, as words in
 * spw_last_error(): then nothing may be assumed. Several drives may be read at the same time, by
 * threads.
 */
int spw_contents_read(const struct spw_device *device, struct spw_contents *contents);

/*
 * "/dev/loop3: carries an ext4 file system "root"; use --force to overwrite it, or name another
 * device", as -EEXIST.
 */
int spw_carries_error(const char *path, const struct spw_contents *contents);

/* Of a drive below SPW_DRIVE_BYTES_MIN, as -ENOSPC. */
int spw_too_small_error(const char *path, uint64_t size_bytes);

#endif
