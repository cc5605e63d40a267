/* SPDX-License-Identifier: MIT */
/* drives/candidates.h - open, read and compare drives that a caller named as one store */
#ifndef SPW_DRIVES_CANDIDATES_H
#define SPW_DRIVES_CANDIDATES_H

#include <spillway/format.h>

#include "drives/contents.h"

/* A drive that the caller named, as far as it could be read. */
struct spw_candidate {
	const char *path;
	struct spw_device *device;
	struct spw_contents contents;
	/* sample it between its ends too, if it has no known contents */
	bool sampled;
	struct spw_residue_samples samples; /* valid if sampled */
	struct spw_superblock superblock;   /* the valid copy; drive_count 0: there is none */
	int fault;                          /* errno of the first fault; words has the message */
	char words[512];
	bool absent; /* it cannot be opened or read, so it counts as missing */
};

/* Allocate @count candidates. Return: 0; -EINVAL no path, or too many; -ENOMEM. */
int spw_drives__candidates_new(const char *const paths[], unsigned count, bool sampled,
			       struct spw_candidate **candidates);

/* Read the contents of all open candidates in parallel. Return: 0; the first fault and message. */
int spw_drives__candidates_read(struct spw_candidate *candidates, unsigned count,
				const struct spw_log *log);

/*
 * Open and verify @paths as one store. *missing: number of missing drives, which spw_last_error()
 * names; NULL: no drive may be missing. *candidates: in the order of @paths; NULL: out of memory,
 * or too many.
 */
int spw_drives__candidates_examine(const char *const paths[], unsigned count, bool read_only,
				   unsigned *missing, const struct spw_log *log,
				   struct spw_candidate **candidates);

/* Free candidates, and close their remaining devices. @candidates may be NULL. */
void spw_drives__candidates_close(struct spw_candidate *candidates, unsigned count);

/* Close devices, vfio ones in parallel. Elements may be NULL. */
void spw_drives__candidates_close_devices(struct spw_device *const devices[], unsigned count);

#endif
