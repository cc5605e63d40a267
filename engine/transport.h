/* SPDX-License-Identifier: MIT */
/* engine/transport.h - how an NVMe drive is reached: over a bus of this machine, or a network */
#ifndef SPW_ENGINE_TRANSPORT_H
#define SPW_ENGINE_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

struct spw_transport {
	/* of its nearest path: "pcie", "tcp", "rdma", "fc", "loop"; "": not an NVMe drive */
	char name[16];
	/* of every path, "; " between them: "0000:3d:00.0", "traddr=10.0.0.7,trsvcid=4420" */
	char address[256];
	bool far; /* all paths lead over a network */
	/* far: how long the kernel keeps transfers while no path is there; UINT32_MAX: for ever */
	uint32_t kept_s;
	/* ", which is reached over tcp at traddr=10.0.0.7,trsvcid=4420"; "": it is near */
	char words[320];
};

/* @drive: the whole drive's folder in sysfs. What it does not say stays 0. */
void spw_engine__transport_read(const char *drive, struct spw_transport *transport);

#endif
