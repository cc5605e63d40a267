/* SPDX-License-Identifier: MIT */
/* drives/candidates.h - drives that were named as those of one store, opened, read and compared */
#ifndef SPW_DRIVES_CANDIDATES_H
#define SPW_DRIVES_CANDIDATES_H

#include <spillway/format.h>

#include "drives/contents.h"

/* A drive that was named, as far as it could be read. */
struct spw_candidate {
	const char *path;
	struct spw_device *device;
	struct spw_contents contents;
	bool sampled;                       /* between its ends, too, if nothing known is on it */
	struct spw_residue_samples samples; /* if sampled */
	struct spw_superblock superblock;   /* the one chosen; drive_count 0: none */
	int fault;                          /* the first, and its words */
	char words[512];
	bool absent; /* its fault is that nothing of it can be read, and it may be missing */
};

/* As many as there are paths. Return: 0; -EINVAL none, or too many; -ENOMEM. */
int spw_drives__candidates_new(const char *const paths[], unsigned count, bool sampled,
			       struct spw_candidate **candidates);

/* What those that are open hold, of all at once. Return: 0; the first fault, in words. */
int spw_drives__candidates_read(struct spw_candidate *candidates, unsigned count,
				const struct spw_log *log);

/*
 * Open and verify @paths as one store. @missing: set to how many of its drives are not there, whose
 * words are spw_last_error(); NULL: none may be missing. @candidates: in order; NULL: no memory, or
 * too many.
 */
int spw_drives__candidates_examine(const char *const paths[], unsigned count, bool read_only,
				   unsigned *missing, const struct spw_log *log,
				   struct spw_candidate **candidates);

/* With their devices, as far as they are still there. @candidates may be NULL. */
void spw_drives__candidates_close(struct spw_candidate *candidates, unsigned count);

/* Devices that were theirs. Some may be NULL. What is behind vfio is shut down at the same time. */
void spw_drives__candidates_close_devices(struct spw_device *const devices[], unsigned count);

#endif
