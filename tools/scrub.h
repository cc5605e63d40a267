/* SPDX-License-Identifier: MIT */
/* tools/scrub.h - read and repair all committed data; give it second copies */
#ifndef SPW_TOOLS_SCRUB_H
#define SPW_TOOLS_SCRUB_H

#include "tools/ui/tool.h"

/* Scrub all partitions of a store. Return: the exit status. */
int tool_scrub(const struct tool_command *command, const struct tool_devices *devices,
	       uint32_t partitions, bool json);

/*
 * Give second copies to mirrored commits that lack some, in all partitions. @array: gets an object
 * for each commit; NULL: print. Return: the exit status.
 */
int tool_second_copies(const struct tool_command *command, const struct tool_devices *devices,
		       uint32_t partitions, json_t *array);

#endif
