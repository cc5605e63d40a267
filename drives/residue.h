/* SPDX-License-Identifier: MIT */
/*
 * drives/residue.h - bytes that nothing known accounts for, on a drive without store and signature:
 * perhaps a database, an image, a tape or a key. Reads only.
 */
#ifndef SPW_DRIVES_RESIDUE_H
#define SPW_DRIVES_RESIDUE_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/engine.h>

#define SPW_RESIDUE_END_BYTES   (1u << 20) /* looked at in full, at the beginning and at the end */
#define SPW_RESIDUE_SHOWN_BYTES 8

/* The MiB at each end, which format overwrites: zeros if cleared, new, or wiped of a store. */
struct spw_residue {
	bool found;
	uint64_t offset_bytes; /* of the first byte that is not zero */
	uint8_t bytes[SPW_RESIDUE_SHOWN_BYTES];
	unsigned bytes_count;
	/* not zero in the first MiB, in the last; on a small drive in part of it */
	uint64_t first_bytes, last_bytes;
};

/* Return: 0; or a negative errno: an end cannot be read, and nothing may be assumed. */
int spw_drives__residue_read(const struct spw_device *device, struct spw_residue *residue);

/* What was found where, and what to do about it, as -EEXIST. */
int spw_drives__residue_error(const char *path, const struct spw_residue *residue);

/* Places of 4 KiB, spread evenly: meets any run of 1/64 of the drive; 10% scatter in 849 of 850. */
#define SPW_RESIDUE_SAMPLES 64u

struct spw_residue_samples {
	unsigned taken, not_zero, unreadable;
	uint64_t offset_bytes; /* of the first that is not zero */
};

/* Return: 0; -ENOMEM. A place that cannot be read is counted. */
int spw_drives__residue_sample(const struct spw_device *device,
			       struct spw_residue_samples *samples);

#endif
