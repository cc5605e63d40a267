/* SPDX-License-Identifier: MIT */
/* tools/completion/bash.c - the completion script for bash */
#include "tools/completion/completion.h"

#include <string.h>

/* The script's beginning. bash splits words at "=", so it is skipped. */
static const char head[] =
	"# spillway(1) completion for bash; made by 'spillway completion bash'\n"
	"_spillway() {\n"
	"    local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]}\n"
	"    local command=${COMP_WORDS[1]} options= values= alone= before=\n"
	"    [ \"$option\" != = ] || option=${COMP_WORDS[COMP_CWORD - 2]}\n"
	"    [ \"$word\" != = ] || word=\n";

static const char tail[] =
	"    [ -n \"$values\" ] || case $word in -*) values=$options ;; *) "
	"values=${alone:-$options} ;; "
	"esac\n"
	"    case $values in\n"
	"    @any) COMPREPLY=() ;;\n"
	"    @file) compopt -o filenames && mapfile -t COMPREPLY < <(compgen -f -- \"$word\") ;;\n"
	"    @folder) compopt -o filenames && mapfile -t COMPREPLY < <(compgen -d -- \"$word\") "
	";;\n"
	"    @user) mapfile -t COMPREPLY < <(compgen -u -- \"$word\") ;;\n"
	"    @files)\n"
	"        compopt -o nospace\n"
	"        case $word in *,*) before=${word%,*}, ;; esac\n"
	"        mapfile -t COMPREPLY < <(compgen -P \"$before\" -f -- \"${word##*,}\")\n"
	"        ;;\n"
	"    *) mapfile -t COMPREPLY < <(compgen -W \"$values\" -- \"$word\") ;;\n"
	"    esac\n"
	"}\n"
	"complete -F _spillway spillway\n";

static const char *const kinds[] = {
	[COMPLETION_ANY] = "@any",       [COMPLETION_FILE] = "@file", [COMPLETION_FILES] = "@files",
	[COMPLETION_FOLDER] = "@folder", [COMPLETION_USER] = "@user",
};

static void add_name(void *context, const struct tool_shown *option)
{
	if (option->name[0])
		(void)fprintf(context, "--%s ", option->name);
}

static void add_alone(void *context, const struct tool_shown *option)
{
	if (option->positional)
		(void)fprintf(context, " alone=%s", kinds[completion_kind(option)]);
}

static void add_values(void *context, const struct tool_shown *option)
{
	enum completion_kind kind = completion_kind(option);

	if (option->name[0] && kind != COMPLETION_FLAG)
		(void)fprintf(context, "        --%s) values='%s' ;;\n", option->name,
			      kind == COMPLETION_VALUES ? option->values : kinds[kind]);
}

static void add_command(const struct tool_command *command, FILE *out)
{
	if (command->verbs) {
		(void)fprintf(out, "    %s) values='", command->name);
		for (const struct tool_command *verb = command->verbs; verb->name; verb++)
			(void)fprintf(out, "%s ", tool_verb_name(verb));
		(void)fputs("' ;;\n", out);
		for (const struct tool_command *verb = command->verbs; verb->name; verb++)
			add_command(verb, out);
		return;
	}
	(void)fprintf(out, "    '%s')\n        options='", command->name);
	tool_each_option(command, add_name, out);
	(void)fputs("--help'", out);
	tool_each_option(command, add_alone, out);
	(void)fputs("\n        case $option in\n", out);
	tool_each_option(command, add_values, out);
	(void)fputs("        esac\n        ;;\n", out);
}

void completion_bash(const struct tool_command *const commands[], FILE *out)
{
	(void)fputs(head, out);
	(void)fputs("    if [ \"$COMP_CWORD\" -gt 2 ]; then\n        case $command in ", out);
	for (unsigned i = 0; commands[i]; i++)
		if (commands[i]->verbs)
			(void)fprintf(out, "%s) command=\"$command ${COMP_WORDS[2]}\" ;; ",
				      commands[i]->name);
	(void)fputs("esac\n    fi\n    [ \"$COMP_CWORD\" -gt 1 ] || command=help\n"
		    "    case $command in\n    help) values='",
		    out);
	for (unsigned i = 0; commands[i]; i++)
		(void)fprintf(out, "%s ", commands[i]->name);
	(void)fputs("help' ;;\n", out);
	for (unsigned i = 0; commands[i]; i++)
		add_command(commands[i], out);
	(void)fputs("    esac\n", out);
	(void)fputs(tail, out);
}
