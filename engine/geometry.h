/* SPDX-License-Identifier: MIT */
/* engine/geometry.h - ask the system what a device is */
#ifndef SPW_ENGINE_GEOMETRY_H
#define SPW_ENGINE_GEOMETRY_H

#include <spillway/engine.h>

/* Fill in @geometry from ioctl(2), statx(2) and sysfs. Return: 0; -ENODEV no size; -EOPNOTSUPP no direct I/O; a negative errno. */
int spw_geometry_read(int fd, const char *path, struct spw_geometry *geometry);

#endif
