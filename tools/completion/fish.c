/* SPDX-License-Identifier: MIT */
/* tools/completion/fish.c - the completion script for fish */
#include "tools/completion/completion.h"

#define SPECIAL "\\"
#define QUOTE   "\\'"

struct where {
	const struct tool_command *command;
	const char *above; /* for a verb its command, such as "state"; or NULL */
	FILE *out;
};

/* Begin a rule. Only the first word is the command: a verb may have another command's name. */
static void begin(const struct where *where)
{
	(void)fprintf(where->out, "complete -c spillway -n 'contains -- %s (commandline -opc)[2]",
		      where->above ? where->above : where->command->name);
	if (where->above)
		(void)fprintf(where->out, "; and __fish_seen_subcommand_from %s",
			      tool_verb_name(where->command));
	(void)fputc('\'', where->out);
}

static void add_text(const char *flag, const char *text, FILE *out)
{
	(void)fprintf(out, " %s '", flag);
	completion_quote(text, SPECIAL, QUOTE, out);
	(void)fputc('\'', out);
}

static void add_action(const struct tool_shown *option, FILE *out)
{
	static const char *const actions[] = {
		[COMPLETION_FLAG] = "",
		[COMPLETION_ANY] = " -x",
		[COMPLETION_FILE] = " -r -F",
		[COMPLETION_FILES] = " -x -a '(__fish_complete_list , __fish_complete_path)'",
		[COMPLETION_FOLDER] = " -x -a '(__fish_complete_directories)'",
		[COMPLETION_USER] = " -x -a '(__fish_complete_users)'",
	};
	enum completion_kind kind = completion_kind(option);

	if (kind == COMPLETION_VALUES)
		(void)fprintf(out, " -x -a '%s'", option->values);
	else
		(void)fputs(actions[kind], out);
}

static void add_option(void *context, const struct tool_shown *option)
{
	const struct where *where = context;

	if (option->name[0]) {
		begin(where);
		(void)fprintf(where->out, " -l %s", option->name);
		add_action(option, where->out);
		add_text("-d", option->help, where->out);
		(void)fputc('\n', where->out);
	}
	if (option->positional) {
		begin(where);
		(void)fputs(" -F\n", where->out);
	}
}

static void add_command(const struct where *where)
{
	const struct tool_command *verb = where->command->verbs;

	for (; verb && verb->name; verb++) {
		struct where below = {verb, where->command->name, where->out};

		begin(where);
		add_text("-a", tool_verb_name(verb), where->out);
		add_text("-d", verb->summary, where->out);
		(void)fputc('\n', where->out);
		add_command(&below);
	}
	tool_each_option(where->command, add_option, (void *)(uintptr_t)where);
}

void completion_fish(const struct tool_command *const commands[], FILE *out)
{
	(void)fputs("# spillway(1) completion for fish; made by 'spillway completion fish'\n"
		    "complete -c spillway -f\n"
		    "complete -c spillway -l help -d 'show this help'\n",
		    out);
	for (unsigned i = 0; commands[i]; i++) {
		struct where where = {commands[i], NULL, out};

		(void)fprintf(out, "complete -c spillway -n __fish_use_subcommand -a %s",
			      commands[i]->name);
		add_text("-d", commands[i]->summary, out);
		(void)fputc('\n', out);
		add_command(&where);
	}
}
