/* SPDX-License-Identifier: MIT */
/*
 * engine/nvme/node.h - which device nodes belong to one NVMe namespace, as sysfs tells
 *
 * A namespace has a block node (/dev/nvme0n1) and a character node (/dev/ng0n1). Passthrough needs
 * the latter; locks, mounts and signatures are known by the former alone.
 */
#ifndef SPW_ENGINE_NVME_NODE_H
#define SPW_ENGINE_NVME_NODE_H

#include <stddef.h>

struct spw_device;

/* Open and check a block node's character node. Return: fd; -EOPNOTSUPP none; -ESTALE; -errno. */
int spw_nvme_open_char(const struct spw_device *device);

/* Open a namespace, partition or controller to ask. Return: fd; -EOPNOTSUPP; as open(2). */
int spw_nvme_open_admin(const char *path);

#endif
