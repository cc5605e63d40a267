/* SPDX-License-Identifier: MIT */
/* tools/ui/output_file.h - whether a report can be written, asked before there is one */
#ifndef SPW_TOOLS_UI_OUTPUT_FILE_H
#define SPW_TOOLS_UI_OUTPUT_FILE_H

/*
 * Could @path be written? Nobody shall learn only after hours of measuring that it cannot. What is
 * there is left as it is, and nothing is left behind. Return: 0; a negative errno, with the words.
 */
int tool_output_check(const char *path);

#endif
