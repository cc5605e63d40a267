/* SPDX-License-Identifier: MIT */
/* tools/scrub.h - spillway check --scrub: all that is committed is read, and mended */
#ifndef SPW_TOOLS_SCRUB_H
#define SPW_TOOLS_SCRUB_H

#include "tools/ui/tool.h"

/* All partitions of a store. Return: the exit status. */
int tool_scrub(const struct tool_command *command, const struct tool_devices *devices,
	       uint32_t partitions, bool json);

#endif
