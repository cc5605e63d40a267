/* SPDX-License-Identifier: MIT */
/* tools/cmd_completion.c - spillway completion: print completion scripts for shells */
#include "tools/ui/tool.h"

#include <string.h>

#include "tools/completion/completion.h"

const struct tool_command *const *tool_completed;

static const struct tool_option no_options[] = {{NULL, TOOL_FLAG, NULL, NULL, NULL}};

static int print_script(const struct tool_command *command)
{
	const char *shell = tool_verb_name(command);

	if (strcmp(shell, "bash") == 0)
		completion_bash(tool_completed, stdout);
	else if (strcmp(shell, "zsh") == 0)
		completion_zsh(tool_completed, stdout);
	else
		completion_fish(tool_completed, stdout);
	return TOOL_DONE;
}

static const struct tool_command verbs[] = {
	{
		.name = "completion bash",
		.summary = "for bash",
		.synopsis = "",
		.description = "Prints a script for bash to read.\n",
		.examples = "  source <(spillway completion bash)\n"
			    "  spillway completion bash "
			    ">~/.local/share/bash-completion/completions/spillway\n",
		.action = print_script,
		.options = no_options,
	},
	{
		.name = "completion zsh",
		.summary = "for zsh",
		.synopsis = "",
		.description = "Prints a file for a folder that is in zsh's fpath.\n",
		.examples = "  spillway completion zsh >~/.zfunc/_spillway    # fpath+=~/.zfunc\n",
		.action = print_script,
		.options = no_options,
	},
	{
		.name = "completion fish",
		.summary = "for fish",
		.synopsis = "",
		.description = "Prints a script for fish to read.\n",
		.examples =
			"  spillway completion fish >~/.config/fish/completions/spillway.fish\n",
		.action = print_script,
		.options = no_options,
	},
	{.name = NULL},
};

const struct tool_command command_completion = {
	.name = "completion",
	.summary = "print a completion script for bash, zsh or fish",
	.synopsis = "bash|zsh|fish",
	.description = "The scripts complete commands, options and their values.\n"
		       "make install and the packages put them where the shells look.\n",
	.examples = "  source <(spillway completion bash)\n",
	.verbs = verbs,
};
