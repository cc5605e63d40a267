/* SPDX-License-Identifier: MIT */
/* tools/run_deepspeed.h - what a program in Python finds that swaps by DeepSpeed */
#ifndef SPW_TOOLS_RUN_DEEPSPEED_H
#define SPW_TOOLS_RUN_DEEPSPEED_H

#include "tools/ui/tool.h"

/*
 * Check a store's drives, separated by commas, and leave them in the environment, with a folder
 * where Python looks as it starts. @own: the folder of this program, with a slash, or NULL. Return:
 * TOOL_GO_ON, else an exit code.
 */
int run_deepspeed(const struct tool_command *command, const char *devices, const char *own);

#endif
