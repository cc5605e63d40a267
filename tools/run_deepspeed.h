/* SPDX-License-Identifier: MIT */
/* tools/run_deepspeed.h - the environment that makes a Python program's DeepSpeed use a store */
#ifndef SPW_TOOLS_RUN_DEEPSPEED_H
#define SPW_TOOLS_RUN_DEEPSPEED_H

#include "tools/ui/tool.h"

/*
 * Check a store's drives, separated by commas, and export them, and a folder that Python searches
 * when it starts. @own: the folder of this program, with a slash, or NULL. Return: TOOL_GO_ON, else
 * an exit code.
 */
int run_deepspeed(const struct tool_command *command, const char *devices, const char *own);

#endif
