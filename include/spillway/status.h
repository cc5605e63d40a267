/* SPDX-License-Identifier: MIT */
/*
 * spillway/status.h - the counters of stores that other processes have open: read, list, revive
 * drives
 *
 * A process that opens a partition publishes its pid and its counters in a small page of shared
 * memory (/dev/shm/spillway-UUID-PARTITION, mode 0600) and refreshes it twice a second while there
 * is traffic.
 *
 * Contract
 *   Threads    Any thread; no state is kept between calls.
 *   Trust      A page is written by another process: every field is checked before it is used, and
 *              no field decides about safety. Only its lock says which process owns a partition,
 *              see docs/FORMAT.md.
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
	int32_t pid;           /* of the process that has the partition open */
	char command[32];      /* name of the process */
	uint64_t age_ns;       /* time since the page was refreshed; large when the store is idle */
	char description[160]; /* backend and features */
	struct spw_store_stats store;
	uint32_t drives;
	struct spw_drive_stats drive[SPW_DRIVES_MAX];
	/* how long the partition has been open; the counters cover this time */
	uint64_t open_ns;
	struct spw_cache_stats steps; /* of a cache on the store; all 0: there is no cache */
};
SPW_ABI(struct spw_status, steps, 46640, 46640 + sizeof(struct spw_cache_stats));

/* An open partition whose status page this user may read. */
struct spw_status_name {
	char store_uuid[SPW_UUID_TEXT_BYTES];
	uint32_t partition;
};
SPW_ABI(struct spw_status_name, partition, 40, 44);

/**
 * spw_status_read - read the status page of one open partition
 * @store_uuid:  of the store, as text
 * @partition:   the partition
 * @status:      set on success
 * @size:        sizeof *@status
 *
 * Return: 0; -ENOENT no process has the partition open; -ESRCH the process that had it open is gone
 * and has left its page behind; -EACCES another user's page; -EUCLEAN the page is invalid, or of
 * another version of spillway.
 */
SPW_EXPORT int spw_status_read(const char *store_uuid, uint32_t partition,
			       struct spw_status *status, size_t size);

/**
 * spw_status_list - list the open partitions on this machine that this user may read
 * @names:  the first @count of them are set
 * @count:  room in @names
 *
 * Removes the pages of killed processes: those that are not locked.
 *
 * Return: how many there are, which may be more than @count; or a negative errno.
 */
SPW_EXPORT int spw_status_list(struct spw_status_name names[], unsigned count);

/**
 * spw_status_revive - ask the process that has a partition open to revive a retired drive
 * @store_uuid:  of the store, as text
 * @partition:   the partition
 * @drive:       index of the drive in the store
 *
 * The process calls spw_store_revive() when it next has traffic; this does not wait for it.
 *
 * Return: 0; -EINVAL no such drive; or as spw_status_read().
 */
SPW_EXPORT int spw_status_revive(const char *store_uuid, uint32_t partition, uint32_t drive);

#ifdef __cplusplus
}
#endif
#endif
