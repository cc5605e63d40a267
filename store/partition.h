/* SPDX-License-Identifier: MIT */
/* store/partition.h - own a partition: status page, locks, claims */
#ifndef SPW_STORE_PARTITION_H
#define SPW_STORE_PARTITION_H

struct spw_store;

/*
 * Become the owner of the partition, until spw_store__publish_close() and
 * spw_drives__assembly_close(). Return: 0; -EBUSY; -EINVAL.
 */
int spw_store__partition_take(struct spw_store *store);

#endif
