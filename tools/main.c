/* SPDX-License-Identifier: MIT */
/* tools/main.c - the spillway command: find and run the subcommand, print help */
#include "tools/ui/tool.h"

#include <errno.h>
#include <string.h>

#include "util/util.h"

static const struct tool_command *const commands[] = {
	&command_probe,   &command_format,     &command_info,  &command_check,  &command_wipe,
	&command_replace, &command_add,        &command_grant, &command_revoke, &command_bind,
	&command_unbind,  &command_bench,      &command_tune,  &command_top,    &command_export,
	&command_revive,  &command_state,      &command_plan,  &command_replay, &command_run,
	&command_report,  &command_completion, NULL,
};

static const char introduction[] =
	"spillway: a store on raw drives for the activations of a training run\n"
	"\n"
	"usage: spillway COMMAND [OPTION...]\n"
	"       spillway help COMMAND\n"
	"       spillway --version\n"
	"\n";

static const char tutorial[] =
	"\n"
	"A first store:\n"
	"  spillway probe                              list usable drives\n"
	"  spillway format /dev/nvme1n1 /dev/nvme2n1   create a store on two drives\n"
	"  spillway info /dev/nvme1n1 /dev/nvme2n1     show the store\n"
	"  spillway wipe /dev/nvme1n1 /dev/nvme2n1     remove it\n"
	"Without spare drives, use files: fallocate -l 1G a.img; fallocate -l 1G b.img\n"
	"\n"
	"Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused for safety (a device is\n"
	"in use or holds data, or consent is missing).\n";

static void print_help(FILE *out)
{
	(void)fputs(introduction, out);
	for (size_t i = 0; commands[i]; i++)
		(void)fprintf(out, "  %-11s%s\n", commands[i]->name, commands[i]->summary);
	(void)fprintf(out, "  %-11s%s\n", "help", "explain a command");
	(void)fputs(tutorial, out);
}

static const struct tool_command *find_command(const char *name)
{
	const char *names[SPW_ARRAY_LEN(commands) + 2] = {"--help", "--version"};
	const char *nearest;
	size_t count = 2; /* the options */

	for (size_t i = 0; commands[i]; i++) {
		if (strcmp(commands[i]->name, name) == 0)
			return commands[i];
		if (!commands[i]->destructive || tool_is_misspelt(name, commands[i]->name))
			names[count++] = commands[i]->name;
	}
	nearest = tool_nearest(name, names);
	(void)fprintf(stderr, "spillway: there is no command '%s'", name);
	if (nearest)
		(void)fprintf(stderr, "; did you mean '%s'?", nearest);
	(void)fprintf(stderr, "\nTry 'spillway --help'.\n");
	return NULL;
}

static int help_command(int argc, char **argv)
{
	const struct tool_command *command;

	if (argc < 2) {
		print_help(stdout);
		return TOOL_DONE;
	}
	command = find_command(argv[1]);
	if (!command)
		return TOOL_USAGE;
	tool_print_help(command, stdout);
	return TOOL_DONE;
}

/* Check standard output: a full disk or closed pipe must not look like success. */
static int finish(int code)
{
	/* With TOOL_FAILED the error has been reported. */
	if ((fflush(stdout) == 0 && !ferror(stdout)) || code == TOOL_FAILED)
		return code;
	(void)fprintf(stderr, "spillway: cannot write to standard output: %s\n", strerror(errno));
	return code == TOOL_DONE ? TOOL_FAILED : code;
}

int main(int argc, char **argv)
{
	const struct tool_command *command;

	tool_completed = commands;
	if (argc < 2) {
		print_help(stderr);
		return TOOL_USAGE;
	}
	if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0 ||
	    strcmp(argv[1], "version") == 0) {
		(void)printf("spillway %s\n", spw_version());
		return finish(TOOL_DONE);
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
		print_help(stdout);
		return finish(TOOL_DONE);
	}
	if (strcmp(argv[1], "help") == 0)
		return finish(help_command(argc - 1, argv + 1));
	command = find_command(argv[1]);
	return command ? finish(tool_run(command, argc - 1, argv + 1)) : TOOL_USAGE;
}
