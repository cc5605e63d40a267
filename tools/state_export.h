/* SPDX-License-Identifier: MIT */
/* tools/state_export.h - the records of a committed step, as files */
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
 * On a terminal it says how far it is, when it takes longer than two seconds. Return: 0; -EEXIST
 * the folder is there; -errno, in words: what was written stays, without an index.
 */
int tool_state_export(struct spw_store *store, const char *folder, struct tool_exported *exported);

#endif
