/* SPDX-License-Identifier: MIT */
/* tools/cmd_replace.c - spillway replace: replace a drive of a store by a new one */
#include "tools/ui/tool.h"

#include <errno.h>

#include "tools/scrub.h"
#include "tools/ui/stop.h"
#include "util/util.h"

#define PATIENCE_NS UINT64_C(1000000000)
#define INTERVAL_NS UINT64_C(500000000)

static struct tool_devices drives; /* the replaced one, the new one */
static struct tool_devices devices;
static bool force, erase, json, verbose;

static const struct tool_option options[] = {
	{"", TOOL_DEVICES, &drives, "OLD NEW",
	 "OLD: the drive to replace, by its path, number or UUID; NEW: the drive that takes its "
	 "place"},
	{"devices", TOOL_DEVICES, &devices, "A,B,...",
	 "the other drives of the store, in any order; OLD may be named, too; \\, is a comma in a "
	 "name"},
	{"force", TOOL_FLAG, &force, NULL,
	 "overwrite a store or signature on NEW, but never a drive in use"},
	{"erase", TOOL_FLAG, &erase, NULL,
	 "overwrite unknown data on NEW (asked on a terminal), and commits of another store"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{"verbose", TOOL_FLAG, &verbose, NULL, "say more on standard error"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

static bool go_on(void *context, uint64_t done_bytes, uint64_t all_bytes)
{
	uint64_t *next_ns = context, now_ns = spw_clock_ns();

	if (tool_stopped())
		return false;
	if (now_ns < *next_ns)
		return true;
	*next_ns = now_ns + INTERVAL_NS;
	tool_progress("copying what is committed: %s of %s", SPW_SIZE_TEXT(done_bytes),
		      SPW_SIZE_TEXT(all_bytes));
	return true;
}

static void print_text(const struct spw_replace_info *info, const struct spw_store_info *store)
{
	tool_print_text(drives.paths[1], stdout);
	(void)printf(": drive %u of store %s%s", info->drive + 1, store->store_uuid,
		     info->finished ? " already; all drives know" : " now");
	if (!info->finished)
		(void)printf("; %s of committed data copied to it",
			     SPW_SIZE_TEXT(info->copied_bytes));
	(void)putchar('\n');
}

static int report(const struct tool_command *command, const struct spw_replace_info *info)
{
	struct spw_store_info store = {.size = sizeof(store)};
	const char *paths[SPW_DRIVES_MAX + 1];
	struct tool_devices now = tool_devices_with(&devices, info->named, drives.paths[1], paths);
	json_t *partitions = json ? json_array() : NULL;
	/* Another drive may still be missing. */
	int code, rc = spw_check(now.paths, now.count, &store, NULL);

	if (store.partitions == 0)
		return tool_fail(command, rc, json);
	if (!json)
		print_text(info, &store);
	code = tool_second_copies(command, &now, store.partitions, partitions);
	if (!json)
		return code;
	(void)tool_print_json(json_pack(
		"{s:i, s:s, s:b, s:b, s:I, s:s, s:o}", "drive", (int)info->drive + 1, "drive_uuid",
		info->drive_uuid, "finished", info->finished, "old_was_read", info->old_was_read,
		"copied_bytes", (json_int_t)info->copied_bytes, "store_uuid", store.store_uuid,
		"partitions", partitions));
	return code;
}

static int replace(const struct tool_command *command)
{
	struct spw_replace_info info = {.size = sizeof(info)};
	uint64_t next_ns = spw_clock_ns() + PATIENCE_NS;
	struct spw_replace_opts opts;
	int code, rc;

	if (drives.count != 2)
		return tool_usage_error(command,
					"%u drives were named before --devices: name OLD "
					"and NEW",
					drives.count);
	if (devices.count == 0)
		return tool_usage_error(command, "name the other drives of the store: --devices "
						 "A,B,...");
	code = tool_consent(command, drives.paths[1], &erase, json);
	if (code != TOOL_DONE)
		return code;
	spw_replace_opts_init(&opts, sizeof(opts));
	opts.force = force;
	opts.erase = erase;
	opts.log = tool_log(verbose);
	opts.go_on = go_on;
	opts.context = &next_ns;
	tool_stop_catch();
	rc = spw_replace(devices.paths, devices.count, drives.paths[0], drives.paths[1], &opts,
			 &info);
	tool_progress_end();
	code = rc < 0 ? tool_fail(command, rc, json) : report(command, &info);
	tool_stop_release();
	return rc == -ECANCELED ? TOOL_INTERRUPTED : code;
}

/* Errors that count as refusals: committed data would be lost, or it is not the drive meant. */
static const int refusals[] = {ENXIO, EMEDIUMTYPE, 0};

const struct tool_command command_replace = {
	.name = "replace",
	.summary = "replace a dead or failing drive of a store by a new one",
	.synopsis = "OLD NEW --devices A,B,... [--force] [--erase] [--json]",
	.description =
		"Copies what is committed on drive OLD of a store to NEW, which takes its\n"
		"place: from the other copies (copies=2), and from OLD if it can be read.\n"
		"Then gives a second copy to committed data that has only one. OLD need not\n"
		"be there: name it by the path that it had, or, if several drives are\n"
		"missing, by its number or UUID (spillway info). It is not written to, and\n"
		"the store refuses it from now on. The store must not be open.\n"
		"\n"
		"Refuses, with exit status 3 and the store unchanged: a store that is open;\n"
		"committed data that only OLD has, if it cannot be read; a NEW that is in\n"
		"use, is a drive of the store, or, as in format, holds data. If it is\n"
		"interrupted, even by a crash, the store has either drive; run it again.\n"
		"What is done already is said, with exit status 0.\n",
	.examples = "  spillway replace /dev/nvme2n1 /dev/nvme5n1 --devices "
		    "/dev/nvme1n1,/dev/nvme3n1\n"
		    "  spillway replace 2 /dev/nvme2n1 --devices /dev/nvme1n1,/dev/nvme3n1  # the "
		    "path is the new drive's\n"
		    "  spillway replace b.img new.img --devices a.img,c.img\n",
	.action = replace,
	.none_named = "say which drive is replaced, and by which: OLD NEW",
	.options = options,
	.refusals = refusals,
	.destructive = true,
};
