/* SPDX-License-Identifier: MIT */
/*
 * engine/nvme/probe.h - what the kernel's NVMe passthrough can do with devices, found out by
 * reading their first blocks
 */
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

/*
 * What is tried is pinned: no more than this is, however many pages a command may have, as over a
 * network.
 */
#define SPW_NVME_PROBE_PAGES_MAX 4096u

/*
 * How many pages registered memory is tried with: more than a command to any device may have; 0:
 * that is too much to try.
 */
uint32_t spw_nvme_probe_pages(const struct spw_nvme_probed devices[], unsigned count);

/*
 * @want_polled:   try to poll
 * Return: 0; a negative errno, with the reason: passthrough does not work at all with one of
 * @devices.
 */
int spw_nvme_probe(const struct spw_nvme_probed devices[], unsigned count, bool want_polled,
		   struct spw_nvme_abilities *abilities);

#endif
