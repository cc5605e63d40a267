/* SPDX-License-Identifier: MIT */
/* tools/cmd_report.c - spillway report: make an HTML page from the JSON report of a run */
#include "tools/ui/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/util.h"

static struct tool_devices runs;
static const char *output;

static const struct tool_option options[] = {
	{"run", TOOL_DEVICES, &runs, "FILE",
	 "the run's report file, ending in .json; --run may be left out"},
	{"output", TOOL_TEXT, &output, "FILE", "the page to write (FILE.html for FILE.json)"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

static bool ends_with(const char *text, const char *end)
{
	size_t text_len = strlen(text), len = strlen(end);

	return text_len > len && strcmp(text + text_len - len, end) == 0;
}

static int report(const struct tool_command *command)
{
	const char *run;
	char *page = NULL;

	if (runs.count != 1)
		return tool_usage_error(command, "one run is reported: RUN.json");
	run = runs.paths[0];
	if (!output && !ends_with(run, ".json"))
		return tool_usage_error(command, "%s: it does not end in .json: --output=FILE",
					run);
	if (access(run, R_OK)) {
		(void)fprintf(stderr, "spillway report: %s: %s\n", run, strerror(errno));
		return TOOL_FAILED;
	}
	if (!output &&
	    asprintf(&page, "%.*s.html", (int)(strlen(run) - strlen(".json")), run) < 0) {
		(void)fprintf(stderr, "spillway report: out of memory\n");
		return TOOL_FAILED;
	}
	tool_python("spillway report", "spillway._report.files",
		    (const char *const[]){run, output ? output : page, NULL});
	free(page);
	return TOOL_FAILED;
}

const struct tool_command command_report = {
	.name = "report",
	.summary = "make an HTML page of a training run",
	.synopsis = "RUN.json [--output FILE]",
	.description =
		"Writes a self-contained HTML file: memory over a step, the plan and its\n"
		"reasons, the drives, and how long they last at this rate. The data comes\n"
		"from 'spillway run --report RUN.json', or off.report(json=) in Python;\n"
		"--report RUN.html and off.report(html=) write the page directly. Needs the\n"
		"Python package in python3, or in the interpreter of SPILLWAY_PYTHON.\n",
	.examples = "  spillway run --report run.json -- python3 train.py\n"
		    "  spillway report run.json                    # run.html\n"
		    "  spillway report run.json --output /tmp/page.html\n",
	.action = report,
	.options = options,
};
