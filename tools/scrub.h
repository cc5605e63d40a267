/* SPDX-License-Identifier: MIT */
/* tools/scrub.h - spillway check --scrub: read and repair all committed data */
#ifndef SPW_TOOLS_SCRUB_H
#define SPW_TOOLS_SCRUB_H

#include "tools/ui/tool.h"

/* Scrub all partitions of a store. Return: the exit status. */
int tool_scrub(const struct tool_command *command, const struct tool_devices *devices,
	       uint32_t partitions, bool json);

#endif
