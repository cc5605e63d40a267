/* SPDX-License-Identifier: MIT */
/*
 * drives/identity.h - find block devices that are paths to the same drive (multipath)
 *
 * A drive with two ports, or in a storage network, has a block device for every path unless the
 * kernel merges them. A claim or a lock on one is not seen on the others, so all have to be
 * checked.
 * @sysfs: "/sys", or a test's. Devices are named as there: "nvme0n1", "sda2".
 */
#ifndef SPW_DRIVES_IDENTITY_H
#define SPW_DRIVES_IDENTITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Are these different paths to the same blocks? A drive and its own partition are the same path. */
bool spw_drives__identity_same(const char *sysfs, const char *a, const char *b);

/* Visit each device that is another path to @name, until non-zero. Return: that; 0; -errno. */
int spw_drives__identity_each_path(const char *sysfs, const char *name,
				   int (*visit)(void *context, const char *name), void *context);

/* Identity of an NVMe namespace, as its driver reads it. */
struct spw_identity_namespace {
	const char *serial, *model; /* of the controller, without blanks at the end */
	uint32_t id;
	const uint8_t *unique; /* NGUID and EUI-64, 16 and 8 bytes; zeroes: none */
};

/* Find the kernel's block device of a namespace. Return: 1, and @name; 0: it has none; -errno. */
int spw_drives__identity_find_namespace(const char *sysfs,
					const struct spw_identity_namespace *wanted, char *name,
					size_t len);

#endif
