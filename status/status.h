/* SPDX-License-Identifier: MIT */
/*
 * status/status.h - the shared status page of an open partition: format, and functions of its owner
 *
 * PAGE-1  A process that has a partition open holds an OFD lock on all of its page, by a descriptor
 *         and a mapping that children do not inherit. So a page whose first byte is not locked has
 *         no living owner in any PID namespace, and may be removed. A remover locks another byte,
 *         so that it is not mistaken for an owner.
 * PAGE-2  A page is locked before it gets its name.
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
	uint32_t size; /* sizeof(struct spw_status_page): tells apart builds */
	/* Odd while the owner writes. A reader that sees it odd, or changed, reads again. */
	_Atomic uint32_t sequence;
	/* bit per drive to revive: set by other processes, cleared by the owner */
	_Atomic uint64_t revive;
	uint64_t refreshed_ns; /* CLOCK_MONOTONIC */
	uint64_t opened_ns;    /* CLOCK_MONOTONIC */
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
 * spw_status__take - create the page of a partition, replacing a dead process's, and become its
 * owner
 * @fd:  set to a descriptor of the page, all of it zeros; for spw_status__drop()
 *
 * Return: 0; -EBUSY a living process has the partition open; the message names it if this user may
 * see it; -EACCES the page is another user's, so the caller must not rely on it; another -errno: a
 * page cannot be made.
 */
int spw_status__take(const char *store_uuid, uint32_t partition, int *fd);
/* Has a living process a partition other than @but open, or is it opening one? By their pages. */
bool spw_status__others(const char *store_uuid, uint32_t count, uint32_t but);
void spw_status__drop(const char *store_uuid, uint32_t partition, int fd);

/* Remove the pages that killed processes of this user left behind. */
void spw_status__sweep(void);

#endif
