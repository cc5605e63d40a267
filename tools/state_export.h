/* SPDX-License-Identifier: MIT */
/* tools/state_export.h - write the records of a committed step as files */
#ifndef SPW_TOOLS_STATE_EXPORT_H
#define SPW_TOOLS_STATE_EXPORT_H

#include <spillway/state.h>

struct tool_exported {
	uint64_t step, bytes;
	uint32_t records;
};

/**
 * tool_state_export - make @folder, with a file for each record and index.json
 *
 * Shows progress on a terminal if it takes longer than two seconds. Return: 0; -EEXIST the folder
 * exists; -errno with a message: files written so far stay, without an index.
 */
int tool_state_export(struct spw_store *store, const char *folder, struct tool_exported *exported);

#endif
