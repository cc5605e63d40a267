/* SPDX-License-Identifier: MIT */
/* drives/image.h - what libblkid is shown of a drive that has no node */
#ifndef SPW_DRIVES_IMAGE_H
#define SPW_DRIVES_IMAGE_H

#include <spillway/engine.h>

/* A file in memory with the device's first 4 and last 2 MiB. Return: a descriptor; -errno. */
int spw_drive_image(const struct spw_device *device);

#endif
