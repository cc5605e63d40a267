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
	struct spw_unknown_data_samples samples; /* valid if sampled */
	struct spw_superblock superblock;        /* the valid copy; drive_count 0: there is none */
	int fault; /* errno of the first fault; words has the message */
	char words[512];
	bool absent; /* it cannot be opened or read, so it counts as missing */
};

/* Note what is wrong with a drive, with spw_last_error(), unless @rc is 0 or it has a fault. */
void spw_drives__candidate_fault(struct spw_candidate *candidate, int rc);

/* Is it an error of a drive that has failed or was removed: it cannot be opened or read? */
bool spw_drives__candidates_is_gone(int fault);

/* Allocate @count candidates. Return: 0; -EINVAL no path, or too many; -ENOMEM. */
int spw_drives__candidates_new(const char *const paths[], unsigned count, bool sampled,
			       struct spw_candidate **candidates);

/* Read the contents of all open candidates in parallel. Return: 0; the first fault and message. */
int spw_drives__candidates_read(struct spw_candidate *candidates, unsigned count,
				const struct spw_log *log);

/* The same, and take over the valid superblock of each. */
int spw_drives__candidates_look(struct spw_candidate *candidates, unsigned count,
				const struct spw_log *log);

/*
 * Verify candidates that were opened and looked at as one store; *missing as below. Return: 0; the
 * first fault.
 */
int spw_drives__candidates_verify(struct spw_candidate *candidates, unsigned count, bool read_only,
				  unsigned *missing, const struct spw_log *log);

/*
 * The drive whose superblock tells which drives the store has (ASSEMBLE-5). At least one candidate
 * is not absent.
 */
const struct spw_candidate *spw_drives__candidates_newest(const struct spw_candidate *candidates,
							  unsigned count);
/* Does a drive belong to the store that @newest describes? Return: 0; -EMEDIUMTYPE; -EUCLEAN. */
int spw_drives__candidate_verify(const struct spw_candidate *candidate,
				 const struct spw_candidate *newest);
/* Does superblock @by name the drive that has superblock @sb at its index? */
bool spw_drives__candidate_is_named(const struct spw_superblock *by,
				    const struct spw_superblock *sb);

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
