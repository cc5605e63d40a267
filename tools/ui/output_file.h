/* SPDX-License-Identifier: MIT */
/* tools/ui/output_file.h - whether a report can be written, asked before there is one */
#ifndef SPW_TOOLS_UI_OUTPUT_FILE_H
#define SPW_TOOLS_UI_OUTPUT_FILE_H

/* Can @path be written? Asked before measuring; leaves no trace. Return: 0; -errno, in words. */
int tool_output_check(const char *path);

#endif
