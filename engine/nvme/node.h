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

/*
 * Open the character node of a device for passthrough and make sure that it still belongs to the
 * open block node. Return: a descriptor, or a negative errno: -EOPNOTSUPP the device has none;
 * -ESTALE it is another drive's by now.
 */
int spw_nvme_open_char(const struct spw_device *device);

/*
 * Open a namespace's, a partition's or a controller's node for questions. Return: a descriptor;
 * -EOPNOTSUPP not NVMe; as open(2).
 */
int spw_nvme_open_admin(const char *path);

#endif
