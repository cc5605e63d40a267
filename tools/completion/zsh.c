/* SPDX-License-Identifier: MIT */
/* tools/completion/zsh.c - the completion script for zsh */
#include "tools/completion/completion.h"

#include <string.h>

#define SPECIAL ":[]\\"
#define QUOTE   "'\\''"

static const char *const actions[] = {
	[COMPLETION_ANY] = " ",
	[COMPLETION_FILE] = "_files",
	[COMPLETION_FILES] = "_sequence _files",
	[COMPLETION_FOLDER] = "_files -/",
	[COMPLETION_USER] = "_users",
};

static void add_action(const struct tool_shown *option, FILE *out)
{
	enum completion_kind kind = completion_kind(option);

	if (kind == COMPLETION_FLAG)
		return;
	(void)fputc(':', out);
	completion_quote(option->argument, SPECIAL, QUOTE, out);
	if (kind == COMPLETION_VALUES)
		(void)fprintf(out, ":(%s)", option->values);
	else
		(void)fprintf(out, ":%s", actions[kind]);
}

static void add_option(void *context, const struct tool_shown *option)
{
	FILE *out = context;

	if (option->name[0]) {
		(void)fprintf(out, " \\\n            '--%s%s[", option->name,
			      option->argument ? "=" : "");
		completion_quote(option->help, SPECIAL, QUOTE, out);
		(void)fputc(']', out);
		add_action(option, out);
		(void)fputc('\'', out);
	}
	if (option->positional) {
		(void)fputs(" \\\n            '*", out);
		add_action(option, out);
		(void)fputc('\'', out);
	}
}

/* Print 'name:summary'. */
static void add_word(const char *name, const char *summary, FILE *out)
{
	(void)fprintf(out, "            '%s:", name);
	completion_quote(summary, SPECIAL, QUOTE, out);
	(void)fputs("'\n", out);
}

static void add_command(const struct tool_command *command, FILE *out)
{
	if (command->verbs) {
		(void)fprintf(out, "    (%s)\n        choices=(\n", command->name);
		for (const struct tool_command *verb = command->verbs; verb->name; verb++)
			add_word(tool_verb_name(verb), verb->summary, out);
		(void)fputs("        )\n        _describe verb choices ;;\n", out);
		for (const struct tool_command *verb = command->verbs; verb->name; verb++)
			add_command(verb, out);
		return;
	}
	(void)fprintf(out, "    ('%s')\n        _arguments", command->name);
	tool_each_option(command, add_option, out);
	(void)fputs(" \\\n            '--help[show this help]' ;;\n", out);
}

void completion_zsh(const struct tool_command *const commands[], FILE *out)
{
	(void)fputs("#compdef spillway\n"
		    "# spillway(1) completion for zsh; made by 'spillway completion zsh'\n"
		    "_spillway() {\n"
		    "    local command=$words[2]\n"
		    "    local -a choices\n"
		    "    (( CURRENT > 2 )) || command=help\n"
		    "    shift words && (( CURRENT-- ))\n"
		    "    case $command in\n    (",
		    out);
	for (unsigned i = 0; commands[i]; i++)
		if (commands[i]->verbs)
			(void)fprintf(out, "%s|", commands[i]->name);
	(void)fputs(")\n        if (( CURRENT > 2 )); then\n"
		    "            command+=\" $words[2]\"\n"
		    "            shift words && (( CURRENT-- ))\n"
		    "        fi ;;\n"
		    "    esac\n"
		    "    case $command in\n"
		    "    (help)\n        choices=(\n",
		    out);
	for (unsigned i = 0; commands[i]; i++)
		add_word(commands[i]->name, commands[i]->summary, out);
	add_word("help", "explain a command", out);
	(void)fputs("        )\n        _describe command choices ;;\n", out);
	for (unsigned i = 0; commands[i]; i++)
		add_command(commands[i], out);
	(void)fputs("    esac\n}\n_spillway \"$@\"\n", out);
}
