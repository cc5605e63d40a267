/* SPDX-License-Identifier: MIT */
/*
 * engine/nvme/admin.h - questions to a drive: Identify, Get Log Page, I/O Management Receive; each
 * waits for its answer
 */
#ifndef SPW_ENGINE_NVME_ADMIN_H
#define SPW_ENGINE_NVME_ADMIN_H

#include "engine/nvme/command.h"

/* ioctl(2): -1 and errno, 0, or the drive's status. */
typedef int spw_nvme_ioctl(int fd, unsigned long request, void *argument);

int spw_nvme_system_ioctl(int fd, unsigned long request, void *argument);

/* All return 0 or a negative errno; the text names @path and the drive's status. */

int spw_nvme_ask_namespace(spw_nvme_ioctl *ask, int fd, const char *path,
			   struct spw_nvme_namespace *ns);

/*
 * The placement identifiers that writes to a namespace may carry. Return: how many; 0: no FDP, or
 * not enabled.
 */
int spw_nvme_ask_placements(spw_nvme_ioctl *ask, int fd, const char *path, uint32_t namespace_id,
			    uint16_t ids[SPW_NVME_PLACEMENTS_MAX]);

/* Everything of struct spw_nvme_info but its size. */
int spw_nvme_ask_all(spw_nvme_ioctl *ask, int fd, const char *path, struct spw_nvme_info *info);

#endif
