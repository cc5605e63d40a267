/* SPDX-License-Identifier: MIT */
/* tools/run_deepspeed.c - set the environment that makes Python programs' DeepSpeed use a store */
#include "tools/run_deepspeed.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>

#include "util/names.h"
#include "util/util.h"

#define CONTROLLER "pci:"

struct drives {
	char *paths[SPW_DRIVES_MAX];
	unsigned count;
	bool controllers; /* there are drives that only one process can open, from user space */
};

/* Add a drive by its absolute path, as the program may change its folder. */
static int add_drive(void *context, const char *path)
{
	struct drives *drives = context;
	char *copy = NULL;

	if (path[0] == '\0' || strchr(path, '\n'))
		return -EINVAL;
	if (drives->count == SPW_DRIVES_MAX)
		return -E2BIG;
	if (strncmp(path, CONTROLLER, strlen(CONTROLLER)) == 0)
		drives->controllers = true;
	else
		copy = realpath(path, NULL);
	if (!copy)
		copy = strdup(path); /* if missing, tool_check_store() reports it */
	if (!copy)
		return -ENOMEM;
	drives->paths[drives->count++] = copy;
	return 0;
}

/*
 * Find the folder with sitecustomize.py: beside this program (wheel), in its source tree, or among
 * Python's packages.
 */
static char *find_folder(const char *own)
{
	static const char *const patterns[] = {
		"_startup",
		"../python/spillway/_startup",
		"../lib/python3*/*-packages/spillway/_startup",
	};
	char *found = NULL, *pattern = NULL;
	glob_t names;

	for (size_t i = 0; own && i < SPW_ARRAY_LEN(patterns) && !found; i++) {
		if (asprintf(&pattern, "%s%s/sitecustomize.py", own, patterns[i]) < 0)
			return NULL;
		if (glob(pattern, 0, NULL, &names) == 0) {
			found = strdup(names.gl_pathv[0]);
			globfree(&names);
		}
		free(pattern);
	}
	if (found)
		*strrchr(found, '/') = '\0';
	return found;
}

/* Prepend to an environment variable, with a colon between. */
static int put_first(const char *name, const char *before)
{
	const char *has = getenv(name);
	char *value = NULL;
	int result;

	if (asprintf(&value, "%s%s%s", before, has && *has ? ":" : "", has ? has : "") < 0)
		return -ENOMEM;
	result = setenv(name, value, 1) ? -errno : 0;
	free(value);
	return result;
}

/* Export the drives' names, one per line. */
static int set_drives(const struct drives *drives)
{
	char *value = strdup(drives->paths[0]);
	int result;

	for (unsigned i = 1; value && i < drives->count; i++) {
		char *shorter = value;

		if (asprintf(&value, "%s\n%s", shorter, drives->paths[i]) < 0)
			value = NULL;
		free(shorter);
	}
	if (!value)
		return -ENOMEM;
	result = setenv("SPILLWAY_DEEPSPEED", value, 1) ? -errno : 0;
	free(value);
	return result;
}

static int check_drives(const struct tool_command *command, const struct drives *drives)
{
	struct spw_store_info info = {.size = sizeof(info)};
	int result = drives->controllers ? 0
					 : spw_check((const char *const *)drives->paths,
						     drives->count, &info, NULL);

	return result < 0 ? tool_fail(command, result, false) : TOOL_GO_ON;
}

static int set_environment(const struct drives *drives, const char *own)
{
	char *folder = find_folder(own);
	int result = 0;

	if (!folder || strchr(folder, ':')) {
		(void)fprintf(stderr,
			      "spillway run: --deepspeed needs the Python package, and %s; install "
			      "it with this program (docs/INSTALL.md)\n",
			      folder ? "a colon is in the name of its folder"
				     : "it is not where this program looks");
		free(folder);
		return TOOL_FAILED;
	}
	result = set_drives(drives);
	if (result == 0)
		result = put_first("PYTHONPATH", folder);
	free(folder);
	if (result == 0)
		return TOOL_GO_ON;
	(void)fprintf(stderr, "spillway run: cannot set its environment: %s\n", strerror(-result));
	return TOOL_FAILED;
}

int run_deepspeed(const struct tool_command *command, const char *devices, const char *own)
{
	struct drives drives = {.count = 0};
	int code, result = spw_names_split(devices, ',', add_drive, &drives);

	if (result == -ENOMEM)
		code = tool_fail(command, result, false);
	else if (result < 0)
		code = tool_usage_error(command, "--deepspeed=%s: %s", devices,
					result == -E2BIG ? "too many drives" : "an empty name");
	else
		code = check_drives(command, &drives);
	if (code == TOOL_GO_ON)
		code = set_environment(&drives, own);
	for (unsigned i = 0; i < drives.count; i++)
		free(drives.paths[i]);
	return code;
}
