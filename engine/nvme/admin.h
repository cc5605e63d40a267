/* SPDX-License-Identifier: MIT */
/* engine/nvme/admin.h - questions to a drive, and the nodes by which it is asked */
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

/* The same of a drive that may not know the question, which it is spared then. */
int spw_nvme__find_placements(spw_nvme_ioctl *ask, int fd, const char *path, uint32_t namespace_id,
			      uint16_t ids[SPW_NVME_PLACEMENTS_MAX]);

/* Everything of struct spw_nvme_info but its size. */
int spw_nvme__ask_all(spw_nvme_ioctl *ask, int fd, const char *path, struct spw_nvme_info *info);

/* ---- Nodes of a namespace: one for blocks, /dev/nvme0n1, one for commands, /dev/ng0n1 ---- */

struct spw_device;

/* Open and check a block node's character node. Return: fd; -EOPNOTSUPP none; -ESTALE; -errno. */
int spw_nvme__open_char(const struct spw_device *device);

/* Open a namespace, partition or controller to ask. Return: fd; -EOPNOTSUPP; as open(2). */
int spw_nvme__open_admin(const char *path);

#endif
