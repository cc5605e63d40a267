/* SPDX-License-Identifier: MIT */
/*
 * drives/identity.h - which block devices are paths to the same drive
 *
 * One with two ports, or in a storage network, has a block device for every path that the kernel
 * does not join. A claim or a lock on one is not seen on the others, so they have to be asked.
 * @sysfs: "/sys", or a test's. Devices are named as there: "nvme0n1", "sda2".
 */
#ifndef SPW_DRIVES_IDENTITY_H
#define SPW_DRIVES_IDENTITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Two paths to the same blocks? A drive and its own partition are one path. */
bool spw_drives__identity_same(const char *sysfs, const char *a, const char *b);

/* Call @visit for each device on another path to @name, until non-zero. Return: that; -errno. */
int spw_drives__identity_each_path(const char *sysfs, const char *name,
				   int (*visit)(void *context, const char *name), void *context);

/* What an NVMe namespace tells the driver of its controller. */
struct spw_identity_namespace {
	const char *serial, *model; /* of the controller, without blanks at the end */
	uint32_t id;
	const uint8_t *unique; /* NGUID and EUI-64, 16 and 8 bytes; zeroes: it has none */
};

/* The kernel's block device for this namespace. Return: 1, and its name; 0: none; -errno. */
int spw_drives__identity_find_namespace(const char *sysfs,
					const struct spw_identity_namespace *wanted, char *name,
					size_t len);

#endif
