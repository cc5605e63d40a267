/* SPDX-License-Identifier: MIT */
/* engine/geometry.h - ask the system what a device is */
#ifndef SPW_ENGINE_GEOMETRY_H
#define SPW_ENGINE_GEOMETRY_H

#include <spillway/engine.h>

/*
 * Fill in @geometry from ioctl(2), statx(2) and sysfs. Return: 0; -ENODEV no size; -EOPNOTSUPP no
 * direct I/O; a negative errno.
 */
int spw_geometry_read(int fd, const char *path, struct spw_geometry *geometry);

/*
 * The most bytes that one passthrough command to a block device may carry: what the controller
 * takes (MDTS) and the kernel can map (queue/max_hw_sectors_kb). A block request may be limited
 * further. Where neither sets a limit, as over a network: what a block request may carry
 * (queue/max_sectors_kb).
 */
uint32_t spw_geometry_passthrough_bytes(int fd);

/* The same of max_hw_sectors_kb and max_sectors_kb; 0: unknown. */
uint32_t spw_geometry_choose_passthrough(long long hardware_kib, long long block_kib);

/*
 * Where the block layer splits every transfer that goes over it, whatever its length: at the
 * multiples of *@boundary_bytes of the drive (queue/chunk_sectors), on which the device begins at
 * *@start_bytes. *@boundary_bytes is 0 when there is no such place.
 */
void spw_geometry_boundary(int fd, uint64_t *boundary_bytes, uint64_t *start_bytes);

#endif
