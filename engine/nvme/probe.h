/* SPDX-License-Identifier: MIT */
/* engine/nvme/probe.h - what the kernel's NVMe passthrough can do, found by trial reads */
#ifndef SPW_ENGINE_NVME_PROBE_H
#define SPW_ENGINE_NVME_PROBE_H

#include "engine/nvme/command.h"

/* Of all devices that were tried. */
struct spw_nvme_abilities {
	bool polled; /* completions can be polled */
	bool fixed;  /* registered memory of any size can be used */
};

struct spw_nvme_probed {
	int fd; /* a character node */
	const char *path;
	const struct spw_nvme_namespace *ns;
	uint32_t segments_max; /* memory pages per command */
};

/* Trials pin no more memory than this, even where a command may have more pages. */
#define SPW_NVME_PROBE_PAGES_MAX 4096u

/* Pages to try registered memory with: more than any command may have; 0: too many to try. */
uint32_t spw_nvme_probe_pages(const struct spw_nvme_probed devices[], unsigned count);

/* @want_polled: try to poll. Return: 0; -errno, in words: no passthrough with one of @devices. */
int spw_nvme_probe(const struct spw_nvme_probed devices[], unsigned count, bool want_polled,
		   struct spw_nvme_abilities *abilities);

#endif
