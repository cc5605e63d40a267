/* SPDX-License-Identifier: MIT */
/* tools/ui/python.c - run a module of the Python package for a subcommand */
#include "tools/ui/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Import nothing from the current folder: anything may lie there. */
static const char program[] =
	"import sys\n"
	"from importlib import import_module\n"
	"sys.path[:] = filter(None, sys.path)\n"
	"command, module, *words = sys.argv[1:]\n"
	"try:\n"
	"    main = import_module(module).main\n"
	"except ImportError as error:\n"
	"    sys.exit(f'{command}: {sys.executable} has no package spillway that works '\n"
	"             f'({error}); install it (python3-spillway, or pip install; '\n"
	"             'docs/INSTALL.md), or name the Python that has it: SPILLWAY_PYTHON=')\n"
	"sys.exit(main(words))\n";

void tool_python(const char *command, const char *module, const char *const words[])
{
	const char *named = getenv("SPILLWAY_PYTHON");
	const char *python = named && *named ? named : "python3";
	size_t count = 0;
	const char **arguments;

	while (words[count])
		count++;
	arguments = calloc(count + 6, sizeof(*arguments));
	if (!arguments) {
		(void)fprintf(stderr, "%s: out of memory\n", command);
		return;
	}
	arguments[0] = python;
	arguments[1] = "-c";
	arguments[2] = program;
	arguments[3] = command;
	arguments[4] = module;
	memcpy(&arguments[5], words, count * sizeof(*words));
	(void)execvp(python, (char *const *)(uintptr_t)arguments);
	(void)fprintf(stderr,
		      "%s: this is done in Python, and %s cannot be started: %s; SPILLWAY_PYTHON "
		      "names another\n",
		      command, python, strerror(errno));
	free(arguments);
}
