/* SPDX-License-Identifier: MIT */
/* tools/cmd_check.c - spillway check: verify every superblock copy of a store */
#include "tools/ui/tool.h"

#include <stdlib.h>
#include <string.h>

#include "tools/scrub.h"
#include "util/util.h"

static struct tool_devices devices;
static bool json, scrub;

static const struct tool_option options[] = {
	{"devices", TOOL_DEVICES, &devices, "A,B,...", TOOL_ALL_DRIVES},
	{"scrub", TOOL_FLAG, &scrub, NULL, "read and verify all committed data, and repair it"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

static unsigned damaged_copies(const struct spw_drive_info *drives)
{
	unsigned damaged = 0;

	for (unsigned i = 0; i < devices.count; i++)
		damaged += drives[i].copies_good < 2;
	return damaged;
}

static json_t *json_drives(const struct spw_drive_info *drives)
{
	json_t *array = json_array();

	for (unsigned i = 0; drives && i < devices.count; i++)
		(void)json_array_append_new(array, tool_json_drive(&drives[i]));
	return array;
}

static int print_json(const struct spw_store_info *info, const struct spw_drive_info *drives)
{
	return tool_print_json(json_pack("{s:b, s:i, s:o, s:o}", "usable", 1,
					 "drives_with_a_damaged_copy", (int)damaged_copies(drives),
					 "store", tool_json_store(info), "drives",
					 json_drives(drives)));
}

/* Report the first fault as every command does, then the faults of the other drives. */
static int report_faults(const struct tool_command *command, int result,
			 const struct spw_drive_info *drives)
{
	int code;

	if (json)
		(void)tool_print_json(json_pack("{s:b, s:o, s:i, s:o}", "usable", 0, "error",
						tool_json_text(spw_last_error()), "errno", -result,
						"drives", json_drives(drives)));
	code = tool_fail(command, result, false);
	for (unsigned i = 0; drives && i < devices.count; i++)
		if (drives[i].error &&
		    strncmp(drives[i].reason, spw_last_error(), sizeof(drives[i].reason) - 1) != 0)
			(void)fprintf(stderr, "spillway %s: %s\n", command->name, drives[i].reason);
	return code;
}

/* Name the commits: they may be complete without the missing drives. */
static void name_commits(const struct spw_store_info *info)
{
	for (uint32_t i = 0; i < info->partitions; i++) {
		struct spw_commit_info commit = {.size = sizeof(commit)};

		if (spw_committed(devices.paths, devices.count, i, &commit, sizeof(commit)) == 0)
			(void)fprintf(stderr,
				      "partition %u holds commit %llu, which may be whole without "
				      "that, if it has a mirror: spillway check --scrub tells\n",
				      i, (unsigned long long)commit.number);
	}
}

static void print_text(const struct spw_store_info *info, const struct spw_drive_info *drives)
{
	(void)printf("store %s: usable, %u drive%s\n", info->store_uuid, info->drives,
		     info->drives == 1 ? "" : "s");
	for (unsigned i = 0; i < devices.count; i++) {
		if (drives[i].copies_good == 2)
			continue;
		tool_print_text(drives[i].path, stdout);
		(void)fputs(": one of its two superblock copies is damaged; the other is used. "
			    "Reformat the store if it is not needed.\n",
			    stdout);
	}
}

static int check(const struct tool_command *command)
{
	struct spw_store_info info = {.size = sizeof(info)};
	struct spw_drive_info *drives;
	int result = tool_check_store(&devices, &info, &drives), code = TOOL_DONE;

	/* With a mirror a drive may be missing. */
	if (scrub && info.partitions > 0)
		code = tool_scrub(command, &devices, info.partitions, json);
	else if (result < 0)
		code = report_faults(command, result, drives);
	else if (json)
		code = print_json(&info, drives);
	else
		print_text(&info, drives);
	if (result < 0 && !scrub && !json)
		name_commits(&info);
	free(drives);
	return code;
}

const struct tool_command command_check = {
	.name = "check",
	.summary = "verify a store's superblocks, and optionally its committed data",
	.synopsis = "--devices A,B,... [--scrub] [--json]",
	.description = "Verifies both superblock copies of every drive. Exits with 0 if the\n"
		       "store can be opened (and names drives with only one good copy), else\n"
		       "with 1 and what is wrong with each drive. Read-only.\n"
		       "\n"
		       "With --scrub, reads and verifies every copy of the committed data in\n"
		       "all partitions, none of which may be open. Bad copies are repaired from\n"
		       "good ones, and missing second copies are added unless a drive is\n"
		       "missing. Exits with 0 if everything is good now, 1 if data is lost or\n"
		       "cannot be repaired, 3 if a partition is open, 130 if interrupted.\n",
	.examples = "  spillway check --devices /dev/nvme1n1,/dev/nvme2n1\n"
		    "  spillway check --devices a.img,b.img --json\n"
		    "  spillway check --devices a.img,b.img --scrub\n",
	.action = check,
	.none_named = tool_no_drives,
	.options = options,
};
