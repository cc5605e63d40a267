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
	struct spw_superblock superblock;
	bool has_superblock;
	int fault; /* the first, and its words */
	char words[512];
};

/*
 * Open all of @paths, read them, and verify that they are one store: rules in candidates.c.
 * @candidates: in the order of @paths, also after a fault; NULL only if there was no memory, or are
 * too many Return: 0; the first fault, in words.
 */
int spw_candidates_examine(const char *const paths[], unsigned count, bool read_only,
			   const struct spw_log *log, struct spw_candidate **candidates);

/* With their devices, as far as they are still there. @candidates may be NULL. */
void spw_candidates_close(struct spw_candidate *candidates, unsigned count);

/* Devices that were theirs. Some may be NULL. What is behind vfio is shut down at the same time. */
void spw_candidates_close_devices(struct spw_device *const devices[], unsigned count);

#endif
