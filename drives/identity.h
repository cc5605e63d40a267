/* SPDX-License-Identifier: MIT */
/*
 * drives/identity.h - one drive behind several block devices: which of them are paths to the same
 * blocks
 *
 * A drive with two ports, or one in a storage network, has a block device for every path to it
 * unless the kernel joins them. A claim or a lock on one of them is not seen on the others, so they
 * have to be found to be asked.
 *
 * Reads sysfs alone: @sysfs is "/sys", or a test's. Block devices are named as there: "nvme0n1",
 * "sda2".
 */
#ifndef SPW_DRIVES_IDENTITY_H
#define SPW_DRIVES_IDENTITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Do two block devices, drives or partitions, lead to the same blocks by two paths? A drive and its
 * own partition do not: that is one path.
 */
bool spw_identity_same(const char *sysfs, const char *a, const char *b);

/*
 * Call @visit for each block device by which another path leads to blocks of @name, until it
 * returns something else than 0. Return: that; 0; or a negative errno: nobody can tell which there
 * are.
 */
int spw_identity_each_path(const char *sysfs, const char *name,
			   int (*visit)(void *context, const char *name), void *context);

/* What an NVMe namespace says of itself to who drives its controller. */
struct spw_identity_namespace {
	const char *serial, *model; /* of the controller, without blanks at the end */
	uint32_t id;
	const uint8_t *unique; /* NGUID and EUI-64, 16 and 8 bytes; zeroes: it has none */
};

/*
 * The block device by which the kernel has such a namespace too. Return: 1, and its name; 0: there
 * is none; or a negative errno: nobody can tell.
 */
int spw_identity_find_namespace(const char *sysfs, const struct spw_identity_namespace *wanted,
				char *name, size_t len);

#endif
