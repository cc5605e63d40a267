/* SPDX-License-Identifier: MIT */
/* engine/nvme/admin.h - admin commands to a drive, and the device nodes for them */
#ifndef SPW_ENGINE_NVME_ADMIN_H
#define SPW_ENGINE_NVME_ADMIN_H

#include "engine/nvme/command.h"

/* ioctl(2): -1 and errno, 0, or the drive's status. */
typedef int spw_nvme_ioctl(int fd, unsigned long request, void *argument);

int spw_nvme__system_ioctl(int fd, unsigned long request, void *argument);

/* All return 0 or a negative errno; the text names @path and the drive's status. */

int spw_nvme__ask_namespace(spw_nvme_ioctl *ask, int fd, const char *path,
			    struct spw_nvme_namespace *ns);

/* Placement identifiers for writes to a namespace. Return: how many; 0: no FDP or not enabled. */
int spw_nvme__ask_placements(spw_nvme_ioctl *ask, int fd, const char *path, uint32_t namespace_id,
			     uint16_t ids[SPW_NVME_PLACEMENTS_MAX]);

/* The same, but does not send the command to a drive that does not support it. */
int spw_nvme__find_placements(spw_nvme_ioctl *ask, int fd, const char *path, uint32_t namespace_id,
			      uint16_t ids[SPW_NVME_PLACEMENTS_MAX]);

/* Fill in all of struct spw_nvme_info except its size. */
int spw_nvme__ask_all(spw_nvme_ioctl *ask, int fd, const char *path, struct spw_nvme_info *info);

/* ---- Nodes of a namespace: one for blocks, /dev/nvme0n1, one for commands, /dev/ng0n1 ---- */

struct spw_device;

/* Open a device's character node. Return: fd; -EOPNOTSUPP it has none; -ESTALE replaced; -errno. */
int spw_nvme__open_char(const struct spw_device *device);

/* Open a device node for admin commands. Return: fd; -EOPNOTSUPP not NVMe; as open(2). */
int spw_nvme__open_admin(const char *path);

#endif
