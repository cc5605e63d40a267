/* SPDX-License-Identifier: MIT */
/* engine/transport.h - struct spw_transport: paths of an NVMe drive, over PCIe or a network */
#ifndef SPW_ENGINE_TRANSPORT_H
#define SPW_ENGINE_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

struct spw_transport {
	/* of the nearest path: "pcie", "tcp", "rdma", "fc", "loop"; "": not an NVMe drive */
	char name[16];
	/* of all paths, "; " between them: "0000:3d:00.0", "traddr=10.0.0.7,trsvcid=4420" */
	char address[256];
	bool far; /* all paths lead over a network */
	/* far: how long the kernel keeps transfers while there is no path; UINT32_MAX: forever */
	uint32_t kept_s;
	/* text: ", which is reached over tcp at traddr=10.0.0.7,trsvcid=4420"; "": not far */
	char words[320];
};

/* Read the transport of a drive. @drive: its folder in sysfs. Unknown fields stay 0. */
void spw_engine__transport_read(const char *drive, struct spw_transport *transport);

#endif
