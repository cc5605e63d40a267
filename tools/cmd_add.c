/* SPDX-License-Identifier: MIT */
/* tools/cmd_add.c - spillway add: add a drive to a store */
#include "tools/ui/tool.h"

#include <errno.h>

#include "util/util.h"

static struct tool_devices drive; /* the new one */
static struct tool_devices devices;
static bool force, erase, json, verbose;

static const struct tool_option options[] = {
	{"", TOOL_DEVICES, &drive, "NEW", "the drive that the store gets"},
	{"devices", TOOL_DEVICES, &devices, "A,B,...",
	 "all drives that the store has, in any order; \\, is a comma in a name"},
	{"force", TOOL_FLAG, &force, NULL,
	 "overwrite a store or signature on NEW, but never a drive in use"},
	{"erase", TOOL_FLAG, &erase, NULL,
	 "overwrite unknown data on NEW (asked on a terminal), and commits of another store"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{"verbose", TOOL_FLAG, &verbose, NULL, "say more on standard error"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

static int report(const struct tool_command *command, const struct spw_add_info *info)
{
	struct spw_store_info store = {.size = sizeof(store)};
	const char *paths[SPW_DRIVES_MAX + 1];
	struct tool_devices now = tool_devices_with(&devices, -1, drive.paths[0], paths);
	/* Of a store that had the drive before, another may be missing. */
	int rc = spw_check(now.paths, now.count, &store, NULL);

	if (store.partitions == 0)
		return tool_fail(command, rc, json);
	if (json)
		return tool_print_json(
			json_pack("{s:i, s:s, s:b, s:s, s:i, s:I}", "drive", (int)info->drive + 1,
				  "drive_uuid", info->drive_uuid, "finished", info->finished,
				  "store_uuid", store.store_uuid, "drive_count", (int)store.drives,
				  "capacity_bytes", (json_int_t)store.capacity_bytes));
	tool_print_text(drive.paths[0], stdout);
	(void)printf(": drive %u of store %s%s", info->drive + 1, store.store_uuid,
		     info->finished ? " already; all drives know" : " now");
	if (rc == 0)
		(void)printf("; its %u drives have %s for data", store.drives,
			     SPW_SIZE_TEXT(store.capacity_bytes));
	(void)putchar('\n');
	return TOOL_DONE;
}

static int add(const struct tool_command *command)
{
	struct spw_add_info info = {.size = sizeof(info)};
	struct spw_add_opts opts;
	int code, rc;

	if (drive.count != 1)
		return tool_usage_error(command,
					"%u drives were named before --devices: add one after the "
					"other",
					drive.count);
	if (devices.count == 0)
		return tool_usage_error(command, "name the drives of the store: --devices A,B,...");
	code = tool_consent(command, drive.paths[0], &erase, json);
	if (code != TOOL_DONE)
		return code;
	spw_add_opts_init(&opts, sizeof(opts));
	opts.force = force;
	opts.erase = erase;
	opts.log = tool_log(verbose);
	rc = spw_add(devices.paths, devices.count, drive.paths[0], &opts, &info);
	return rc < 0 ? tool_fail(command, rc, json) : report(command, &info);
}

/* Errors that count as refusals: a drive is missing, or it is not one of this store. */
static const int refusals[] = {ENXIO, EMEDIUMTYPE, 0};

const struct tool_command command_add = {
	.name = "add",
	.summary = "add a drive to a store",
	.synopsis = "NEW --devices A,B,... [--force] [--erase] [--json]",
	.description =
		"Gives a store one drive more. What is committed stays where it is; what is\n"
		"written from now on is striped over NEW, too. Name NEW with the others from\n"
		"now on. The store must not be open.\n"
		"\n"
		"Refuses, with exit status 3 and the store unchanged: a store that is open,\n"
		"or of which a drive is missing; a NEW that is in use, is a drive of the\n"
		"store, or, as in format, holds data. If it is interrupted, even by a crash,\n"
		"the store has NEW or has it not; run it again. What is done already is\n"
		"said, with exit status 0.\n",
	.examples = "  spillway add /dev/nvme3n1 --devices /dev/nvme1n1,/dev/nvme2n1\n"
		    "  spillway add c.img --devices a.img,b.img\n",
	.action = add,
	.none_named = "say which drive is added: NEW",
	.options = options,
	.refusals = refusals,
	.destructive = true,
};
