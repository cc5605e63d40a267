/* SPDX-License-Identifier: MIT */
/*
 * drives/unknown_data.h - unknown data: bytes that are not zero on a drive without store and
 * signature, perhaps a database, an image or a key. Reads only.
 */
#ifndef SPW_DRIVES_UNKNOWN_DATA_H
#define SPW_DRIVES_UNKNOWN_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/engine.h>

#define SPW_UNKNOWN_END_BYTES   (1u << 20) /* read completely, at the beginning and at the end */
#define SPW_UNKNOWN_SHOWN_BYTES 8

/* Data in the MiB at each end, which format overwrites: all zeros if new, cleared or wiped. */
struct spw_unknown_data {
	bool found;
	uint64_t offset_bytes; /* of the first byte that is not zero */
	uint8_t bytes[SPW_UNKNOWN_SHOWN_BYTES];
	unsigned bytes_count;
	/* number of bytes that are not zero in the first and last MiB, or less on a small drive */
	uint64_t first_bytes, last_bytes;
};

/* Read both ends. Return: 0; or a negative errno: an end cannot be read, so assume data. */
int spw_drives__unknown_data_read(const struct spw_device *device,
				  struct spw_unknown_data *unknown);

/* Report what was found where, and the remedy. Return: -EEXIST. */
int spw_drives__unknown_data_error(const char *path, const struct spw_unknown_data *unknown);

/*
 * Samples of 4 KiB, spread evenly: finds any run of 1/64 of the drive, and data scattered over 10%
 * of it with a probability of 849/850.
 */
#define SPW_UNKNOWN_SAMPLES 64u

struct spw_unknown_data_samples {
	unsigned taken, not_zero, unreadable;
	uint64_t offset_bytes; /* offset of the first sample that is not zero */
};

/* Sample the drive between its ends. Unreadable samples are counted. Return: 0; -ENOMEM. */
int spw_drives__unknown_data_sample(const struct spw_device *device,
				    struct spw_unknown_data_samples *samples);

#endif
