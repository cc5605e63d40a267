/* SPDX-License-Identifier: MIT */
/* tools/cmd_revive.c - spillway revive: have an open store retry a retired drive */
#include "tools/ui/tool.h"

#include <errno.h>
#include <string.h>

#include <spillway/status.h>

#include "util/util.h"

static struct tool_devices devices;
static bool json;

static const struct tool_option options[] = {
	{"devices", TOOL_DEVICES, &devices, "A,B,...",
	 "the drives to try again; \\, is a comma in a name"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

/* Ask each open partition in which the drive is retired. Return: their number, or -errno. */
static int revive(const char *path, const struct spw_status_name *names, int count)
{
	static struct spw_status status;
	int asked = 0, holders = 0;

	for (int i = 0; i < count; i++) {
		if (spw_status_read(names[i].store_uuid, names[i].partition, &status,
				    sizeof(status)))
			continue;
		for (uint32_t drive = 0; drive < status.drives; drive++) {
			if (strcmp(status.drive[drive].path, path) != 0)
				continue;
			holders++;
			if (status.drive[drive].retired &&
			    spw_status_revive(names[i].store_uuid, names[i].partition, drive) == 0)
				asked++;
		}
	}
	if (holders == 0)
		return spw_error(-ENOENT,
				 "%s: no store that is open has this drive (named as it was when "
				 "opened: see spillway top)",
				 path);
	if (asked == 0)
		return spw_error(-EALREADY, "%s: is in service", path);
	return asked;
}

static int revive_all(const struct tool_command *command)
{
	struct spw_status_name names[256];
	int count = spw_status_list(names, SPW_ARRAY_LEN(names)), rc = count;

	if (count > (int)SPW_ARRAY_LEN(names))
		count = SPW_ARRAY_LEN(names);
	for (unsigned i = 0; rc >= 0 && i < devices.count; i++) {
		rc = revive(devices.paths[i], names, count);
		if (rc > 0 && !json)
			(void)printf("%s: will be tried again when the store next has traffic\n",
				     devices.paths[i]);
	}
	if (rc < 0)
		return tool_fail(command, rc, json);
	return json ? tool_print_json(json_pack("{s:i}", "drives", (int)devices.count)) : TOOL_DONE;
}

const struct tool_command command_revive = {
	.name = "revive",
	.summary = "have an open store retry a retired drive",
	.synopsis = "--devices A,B,... [--json]",
	.description = "A drive whose write failed or timed out gets no new chunks while the\n"
		       "store stays open. After fixing the cause, this puts it back into\n"
		       "service; the next failed write retires it again. spillway top shows\n"
		       "which drives are retired.\n",
	.examples = "  spillway revive --devices /dev/nvme2n1\n",
	.action = revive_all,
	.none_named = tool_no_drives,
	.options = options,
};
