/* SPDX-License-Identifier: MIT */
/* engine/geometry.h - ask the system what a device is */
#ifndef SPW_ENGINE_GEOMETRY_H
#define SPW_ENGINE_GEOMETRY_H

#include <spillway/engine.h>

/* Fill in @geometry from ioctl(2), statx(2) and sysfs. Return: 0; -ENODEV no size; -EOPNOTSUPP no direct I/O; a negative errno. */
int spw_geometry_read(int fd, const char *path, struct spw_geometry *geometry);

/*
 * The most bytes that one passthrough command to a block device may carry: what the controller takes (MDTS) and the kernel can map
 * (queue/max_hw_sectors_kb). A block request may be limited further.
 */
uint32_t spw_geometry_passthrough_bytes(int fd);

#endif
