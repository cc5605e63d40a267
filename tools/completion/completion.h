/* SPDX-License-Identifier: MIT */
/* tools/completion/completion.h - print scripts that complete the command's words in a shell */
#ifndef SPW_TOOLS_COMPLETION_COMPLETION_H
#define SPW_TOOLS_COMPLETION_COMPLETION_H

#include <stdio.h>

#include "tools/ui/tool.h"

/* What may follow an option, or stand alone. */
enum completion_kind {
	COMPLETION_FLAG, /* nothing follows */
	COMPLETION_ANY,  /* a value that cannot be completed */
	COMPLETION_VALUES,
	COMPLETION_FILE,
	COMPLETION_FILES, /* several, separated by commas */
	COMPLETION_FOLDER,
	COMPLETION_USER,
};

enum completion_kind completion_kind(const struct tool_shown *option);

/* Print @text with a backslash before each of @special, and @quote for each single quote. */
void completion_quote(const char *text, const char *special, const char *quote, FILE *out);

/* Print the script of a shell. @commands: ended by NULL */
void completion_bash(const struct tool_command *const commands[], FILE *out);
void completion_zsh(const struct tool_command *const commands[], FILE *out);
void completion_fish(const struct tool_command *const commands[], FILE *out);

#endif
