/* SPDX-License-Identifier: MIT */
/* drives/image.h - what libblkid is shown of a drive that has no node */
#ifndef SPW_DRIVES_IMAGE_H
#define SPW_DRIVES_IMAGE_H

#include <spillway/engine.h>

/*
 * A file in memory, as large as the device: its first 4 and last 2 MiB are the device's, what lies
 * between is a hole. Return: a descriptor; a negative errno, in words.
 */
int spw_drive_image(const struct spw_device *device);

#endif
