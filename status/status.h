/* SPDX-License-Identifier: MIT */
/*
 * status/status.h - the shared page of an open partition, as its owner and its readers see it
 *
 * PAGE-1  A process that has a partition open holds an OFD lock on all of its page, by a descriptor
 *         and a mapping that no child keeps. So a page whose first byte is not locked has no living
 *         owner, in whatever PID namespace its process was: it may be removed. To remove it,
 *         another byte is locked, so the remover is never taken for an owner.
 * PAGE-2  A page gets its name when it is locked already.
 */
#ifndef SPW_STATUS_STATUS_H
#define SPW_STATUS_STATUS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/status.h>

#define SPW_PAGE_MAGIC   UINT64_C(0x736b6e6177777073)
#define SPW_PAGE_VERSION 6u

struct spw_status_page {
	uint64_t magic;
	uint32_t version;
	uint32_t size; /* sizeof *this: of the same build or not */
	/* Odd while the owner writes. A reader that sees it odd, or changed, reads again. */
	_Atomic uint32_t sequence;
	_Atomic uint64_t revive; /* bit per drive: set by others, taken by the owner */
	uint64_t refreshed_ns;   /* CLOCK_MONOTONIC */
	uint64_t opened_ns;      /* the same */
	struct spw_status status;
};

_Static_assert(offsetof(struct spw_status_page, version) == 8 &&
		       offsetof(struct spw_status_page, size) == 12 &&
		       offsetof(struct spw_status_page, sequence) == 16 &&
		       offsetof(struct spw_status_page, revive) == 24 &&
		       offsetof(struct spw_status_page, refreshed_ns) == 32 &&
		       offsetof(struct spw_status_page, opened_ns) == 40 &&
		       offsetof(struct spw_status_page, status) == 48 &&
		       offsetof(struct spw_status_page, status.steps) == 46688,
	       "of another layout is another version; with other counters, of another size");

/**
 * spw_status__take - make the page of a partition, in place of one left behind, and become its
 * owner
 * @fd:  set to a descriptor of the page, all of it zeros; for spw_status__drop()
 *
 * Return: 0; -EBUSY a living process has the partition open, named as far as this user may look;
 * -EACCES the page is another user's, which decides nothing; another -errno: none can be made.
 */
int spw_status__take(const char *store_uuid, uint32_t partition, int *fd);
/* By their pages: has a living process a partition open, or about to be, other than @but? */
bool spw_status__others(const char *store_uuid, uint32_t count, uint32_t but);
void spw_status__drop(const char *store_uuid, uint32_t partition, int fd);

/* Remove the pages that killed processes of this user left behind. */
void spw_status__sweep(void);

#endif
