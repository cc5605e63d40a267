/* SPDX-License-Identifier: MIT */
/* engine/file.h - a device that the kernel has a node or a file for */
#ifndef SPW_ENGINE_FILE_H
#define SPW_ENGINE_FILE_H

#include "engine/device.h"

/*
 * Open @node, a block device or a regular file, as what is behind @device, and learn its geometry.
 * The device's path, log and right to write are set. Return: as spw_device_open();
 * spw_device_close() also after a failure.
 */
int spw_file_open(struct spw_device *device, const char *node, bool exclusive);

#endif
