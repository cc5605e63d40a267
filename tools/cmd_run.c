/* SPDX-License-Identifier: MIT */
/* tools/cmd_run.c - spillway run: start a program with spillway's malloc, a report, or DeepSpeed */
#include "tools/ui/tool.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/run_deepspeed.h"
#include "util/util.h"

#define LIBRARY          "libspillway_malloc.so"
#define EXIT_NOT_STARTED 127 /* as in a shell */

static uint64_t cache_bytes = UINT64_MAX, address_bytes;
static const char *library, *report, *deepspeed;

static const struct tool_option options[] = {
	{"cache-bytes", TOOL_SIZE, &cache_bytes, "SIZE",
	 "limit of free memory that stays resident (1 GiB)"},
	{"address-bytes", TOOL_SIZE, &address_bytes, "SIZE",
	 "address space for large blocks (as much as there is memory)"},
	{"report", TOOL_TEXT, &report, "FILE",
	 "report of a Python run: .html, a page for a browser, or .json, the data (see 'spillway "
	 "report')"},
	{"deepspeed", TOOL_TEXT, &deepspeed, "A,B,...",
	 "the drives of a store to which DeepSpeed swaps what its configuration gives to NVMe"},
	{"library", TOOL_TEXT, &library, "FILE",
	 "path of " LIBRARY " (default: next to this program, or in ../lib/spillway)"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

/* Find the folder of this program, with a slash at the end. */
static bool find_own(char *path, size_t size)
{
	ssize_t len = readlink("/proc/self/exe", path, size - 1);
	char *slash;

	if (len <= 0)
		return false;
	path[len] = '\0';
	slash = strrchr(path, '/');
	if (slash)
		slash[1] = '\0';
	return slash;
}

/* Find libspillway_malloc.so: beside this program (built) or in ../lib/spillway (installed). */
static bool find_library(const char *own, char *path, size_t size)
{
	static const char *const places[] = {"", "../lib/spillway/"};

	for (size_t i = 0; i < SPW_ARRAY_LEN(places); i++) {
		int written = snprintf(path, size, "%s%s" LIBRARY, own, places[i]);

		if (written > 0 && (size_t)written < size && access(path, R_OK) == 0)
			return true;
	}
	return false;
}

static int set_number(const char *name, uint64_t value)
{
	char text[32];

	(void)snprintf(text, sizeof(text), "%" PRIu64, value);
	return setenv(name, text, 1);
}

/* Export the report's absolute path: the program may change its folder. */
static int set_report(void)
{
	char path[PATH_MAX] = "";
	size_t len = 0;

	if (report[0] != '/') {
		if (!getcwd(path, sizeof(path)))
			return -1;
		len = strlen(path);
	}
	if (snprintf(path + len, sizeof(path) - len, "%s%s", len ? "/" : "", report) >=
	    (int)(sizeof(path) - len)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	return setenv("SPILLWAY_REPORT", path, 1);
}

static int check_report(const struct tool_command *command)
{
	const char *dot = strrchr(report, '.');

	if (!dot || (strcmp(dot, ".html") != 0 && strcmp(dot, ".json") != 0))
		return tool_usage_error(command, "--report=%s: it ends in .html or .json", report);
	return tool_output_check(report) < 0 ? tool_fail(command, -EIO, false) : TOOL_GO_ON;
}

/* Set LD_PRELOAD to our library, before the libraries that it has already. */
static int set_environment(const char *path)
{
	const char *before = getenv("LD_PRELOAD");
	char *value = NULL;
	int result;

	if (asprintf(&value, "%s%s%s", path, before && *before ? ":" : "", before ? before : "") <
	    0)
		return -1;
	result = setenv("LD_PRELOAD", value, 1);
	free(value);
	/* exec keeps the process number: only this process, not its children, prints warnings. */
	if (result == 0)
		result = set_number("SPILLWAY_MALLOC_PID", (uint64_t)getpid());
	if (result == 0 && cache_bytes != UINT64_MAX)
		result = set_number("SPILLWAY_MALLOC_CACHE_BYTES", cache_bytes);
	if (result == 0 && address_bytes)
		result = set_number("SPILLWAY_MALLOC_BYTES", address_bytes);
	if (result == 0 && report)
		result = set_report();
	return result;
}

static int run(const struct tool_command *command, int argc, char **argv)
{
	char own[PATH_MAX] = "", found[PATH_MAX];
	bool has_own = find_own(own, sizeof(own));
	const char *path;
	int dashes = 1, result;

	while (dashes < argc && strcmp(argv[dashes], "--") != 0)
		dashes++;
	if (dashes == argc && argc > 1 && argv[1][0] != '-')
		return tool_usage_error(command, "two dashes come before the program: -- %s",
					argv[1]);
	result = tool_options_parse(command, dashes, argv);
	if (result != TOOL_GO_ON)
		return result;
	if (dashes + 1 >= argc)
		return tool_usage_error(command, "no program given: -- PROGRAM [ARGUMENT...]");
	if (report && (result = check_report(command)) != TOOL_GO_ON)
		return result;
	path = !library && has_own && find_library(own, found, sizeof(found)) ? found : library;
	if (!path || access(path, R_OK) != 0) {
		(void)fprintf(
			stderr,
			"spillway run: %s is not there; build it (make), or name it by --library\n",
			path ? path : LIBRARY);
		return TOOL_FAILED;
	}
	if (strpbrk(path, " :")) {
		(void)fprintf(stderr,
			      "spillway run: %s: a blank or a colon ends a name in LD_PRELOAD; put "
			      "the library elsewhere\n",
			      path);
		return TOOL_FAILED;
	}
	if (deepspeed &&
	    (result = run_deepspeed(command, deepspeed, has_own ? own : NULL)) != TOOL_GO_ON)
		return result;
	if (set_environment(path) != 0) {
		(void)fprintf(stderr, "spillway run: cannot set its environment: %s\n",
			      strerror(errno));
		return TOOL_FAILED;
	}
	(void)execvp(argv[dashes + 1], argv + dashes + 1);
	(void)fprintf(stderr, "spillway run: %s cannot be started: %s\n", argv[dashes + 1],
		      strerror(errno));
	return EXIT_NOT_STARTED;
}

const struct tool_command command_run = {
	.name = "run",
	.summary = "run a program with memory that drives need not copy",
	.synopsis = "[--cache-bytes SIZE] [--report FILE] [--deepspeed A,B,...] -- PROGRAM "
		    "[ARGUMENT...]",
	.description = "Training allocates the same large blocks in every step. In this program\n"
		       "they are page-aligned, so that drives need no copies, backed by huge\n"
		       "pages, and stay resident for the next step. The program and its child\n"
		       "processes need no change; this process becomes the program. With\n"
		       "--report, each Offload leaves a report when it is closed or the program\n"
		       "ends; ranks, and further ones in a process, use files of their own:\n"
		       "FILE.rank1.html.\n"
		       "\n"
		       "With --deepspeed, what DeepSpeed's configuration swaps to NVMe goes to\n"
		       "these drives instead of files; the configured folder stays empty. Each\n"
		       "process uses the partition of its LOCAL_RANK. This works through\n"
		       "PYTHONPATH: not with python -I or -E.\n",
	.examples = "  spillway run -- python3 train.py\n"
		    "  spillway run --deepspeed /dev/nvme1n1,/dev/nvme2n1 -- deepspeed train.py\n"
		    "  spillway run --report run.html -- python3 train.py\n"
		    "  spillway run --cache-bytes 4G -- torchrun --nproc-per-node 4 train.py\n",
	.run = run,
	.options = options,
};
