/* SPDX-License-Identifier: MIT */
/*
 * spillway/status.h - what a store that some process has open is doing right now
 *
 * A process that opens a partition publishes its pid and its counters in a small page of shared
 * memory (/dev/shm/spillway-UUID-PARTITION, mode 0600) and refreshes it twice a second while there
 * is traffic.
 *
 * Contract
 *   Threads    Any thread; nothing is kept between calls.
 *   Trust      A page is another process's: every field is checked before it is used, none decides
 *              about safety. Who owns a partition is decided by its lock alone, see docs/FORMAT.md.
 *   Errors     0 or a count, or a negative errno with spw_last_error().
 */
#ifndef SPILLWAY_STATUS_H
#define SPILLWAY_STATUS_H

#include <stddef.h>
#include <stdint.h>

#include <spillway/error.h>
#include <spillway/format.h>
#include <spillway/store.h>

#ifdef __cplusplus
extern "C" {
#endif

struct spw_status {
	size_t size;
	char store_uuid[SPW_UUID_TEXT_BYTES];
	uint32_t partition;
	int32_t pid;           /* of the process that has it open */
	char command[32];      /* its name */
	uint64_t age_ns;       /* since the page was refreshed; large when the store is idle */
	char description[160]; /* backend and features */
	struct spw_store_stats store;
	uint32_t drives;
	struct spw_drive_stats drive[SPW_DRIVES_MAX];
	uint64_t open_ns; /* for how long it has been open: the counters are of that time */
	struct spw_cache_stats steps; /* of a cache on it; all 0: there is none */
};

/* Which partitions of which stores are published on this machine, and may be read. */
struct spw_status_name {
	char store_uuid[SPW_UUID_TEXT_BYTES];
	uint32_t partition;
};

/**
 * spw_status_read - the state of one open partition
 *
 * Return: 0; -ENOENT no process has it open; -ESRCH the one that had it is gone, killed perhaps,
 * and has left its page behind; -EACCES another user's; -EUCLEAN the page makes no sense, or is of
 * another version of spillway.
 */
SPW_EXPORT int spw_status_read(const char *store_uuid, uint32_t partition,
			       struct spw_status *status, size_t size);

/**
 * spw_status_list - the open partitions of this machine that this user may read
 *
 * Removes the pages that killed processes left behind, as opening a store does: those that no
 * process has locked.
 *
 * Return: how many there are; at most @count of @names are set.
 */
SPW_EXPORT int spw_status_list(struct spw_status_name names[], unsigned count);

/**
 * spw_status_revive - ask the process that has the partition open to try a retired drive again, as
 * spw_store_revive()
 *
 * It does so when it next has traffic. Return: as spw_status_read(); -EINVAL no such drive.
 */
SPW_EXPORT int spw_status_revive(const char *store_uuid, uint32_t partition, uint32_t drive);

#ifdef __cplusplus
}
#endif
#endif
