/* SPDX-License-Identifier: MIT */
/*
 * drives/status.h - the shared page of an open partition, as its owner and its readers see it
 *
 * PAGE-1  Whoever has a partition open holds an OFD lock on all of its page, by a descriptor and a
 *         mapping that no child keeps. So a page whose lock can be had belongs to nobody alive, in
 *         whatever PID namespace its process was: it may be removed, and by nobody else.
 * PAGE-2  A page gets its name when it is locked already.
 */
#ifndef SPW_DRIVES_STATUS_H
#define SPW_DRIVES_STATUS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <spillway/status.h>

#define SPW_PAGE_MAGIC   UINT64_C(0x736b6e6177777073)
#define SPW_PAGE_VERSION 2u

struct spw_status_page {
	uint64_t magic;
	uint32_t version;
	uint32_t size; /* sizeof *this: of the same build or not */
	/* Odd while the owner writes. A reader that sees it odd, or changed, reads again. */
	_Atomic uint32_t sequence;
	_Atomic uint64_t revive; /* bit per drive: set by others, taken by the owner */
	uint64_t refreshed_ns;   /* CLOCK_MONOTONIC */
	struct spw_status status;
};

/* "/spillway-UUID-PARTITION", for shm_open(3). */
#define SPW_PAGE_NAME_BYTES 64
void spw_page_name(const char *store_uuid, uint32_t partition, char name[SPW_PAGE_NAME_BYTES]);

/**
 * spw_page_take - make the page of a partition and become its owner; one that a process left behind
 * is removed
 * @fd:  set to a descriptor of the page, all of it zeros; to be given to spw_page_drop()
 *
 * Return: 0; -EBUSY a living process has the partition open, which the words name as far as this
 * user may look; -EACCES the page is another user's, which decides nothing; or another negative
 * errno: no page can be made.
 */
int spw_page_take(const char *store_uuid, uint32_t partition, int *fd);
/*
 * Has a living process a partition but @but of @count open, or is about to, as far as their pages
 * tell?
 */
bool spw_page_others(const char *store_uuid, uint32_t count, uint32_t but);
void spw_page_drop(const char *store_uuid, uint32_t partition, int fd);

/* Remove the pages that killed processes of this user left behind. */
void spw_status_sweep(void);

#endif
