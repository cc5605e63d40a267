/* SPDX-License-Identifier: MIT */
/* engine/nvme_probe.h - what the kernel's NVMe passthrough can do with a device, found out by reading its first block */
#ifndef SPW_ENGINE_NVME_PROBE_H
#define SPW_ENGINE_NVME_PROBE_H

#include "engine/nvme_command.h"

struct spw_nvme_abilities {
	bool polled;      /* completions can be polled */
	bool fixed_large; /* registered memory of any size */
	bool fixed_small; /* registered memory of no more pages than one command may have; true with fixed_large */
};

/*
 * @fd:            a character node
 * @want_polled:   try to poll
 * @segments_max:  memory pages per command
 * Return: 0; a negative errno, with the reason: passthrough does not work at all.
 */
int spw_nvme_probe(int fd, const char *path, const struct spw_nvme_namespace *ns, bool want_polled,
		   uint32_t segments_max, struct spw_nvme_abilities *abilities);

#endif
