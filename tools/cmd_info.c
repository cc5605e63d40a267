/* SPDX-License-Identifier: MIT */
/* tools/cmd_info.c - spillway info: properties of a store and its drives, and who has it open */
#include "tools/ui/tool.h"

#include <stdlib.h>
#include <string.h>

#include <spillway/status.h>
#include <spillway/vfio.h>

#include "util/util.h"

static struct tool_devices devices;
static bool json;
static struct spw_status status; /* of the partition being examined */

static const struct tool_option options[] = {
	{"devices", TOOL_DEVICES, &devices, "A,B,...", TOOL_ALL_DRIVES},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

/* Print which processes have partitions open, as far as this user may read their status pages. */
static void print_holders(const struct spw_store_info *info)
{
	for (uint32_t i = 0; i < info->partitions; i++)
		if (spw_status_read(info->store_uuid, i, &status, sizeof(status)) == 0)
			(void)printf("open         partition %u, in process %d (%s); drives "
				     "retired: %u; %s\n",
				     i, status.pid, status.command, status.store.drives_retired,
				     status.description);
}

static json_t *json_holders(const struct spw_store_info *info)
{
	json_t *holders = json_array();

	for (uint32_t i = 0; i < info->partitions; i++)
		if (spw_status_read(info->store_uuid, i, &status, sizeof(status)) == 0)
			(void)json_array_append_new(
				holders, json_pack("{s:i, s:i, s:o, s:i, s:o}", "partition", (int)i,
						   "pid", (int)status.pid, "command",
						   tool_json_text(status.command), "drives_retired",
						   (int)status.store.drives_retired, "description",
						   tool_json_text(status.description)));
	return holders;
}

/* Find the controllers of drives that are driven from user space. Return: their number. */
static int find_controllers(struct spw_vfio_probe_info **controllers)
{
	const char **paths = calloc(devices.count, sizeof(*paths));
	unsigned count = 0;
	int found = 0;

	*controllers = NULL;
	for (unsigned i = 0; paths && i < devices.count; i++)
		if (strncmp(devices.paths[i], "pci:", 4) == 0)
			paths[count++] = devices.paths[i];
	if (count > 0)
		found = tool_find_controllers(paths, count, controllers);
	free(paths);
	return found;
}

static int print_json(const struct spw_store_info *info, const struct spw_drive_info *drives,
		      const struct spw_vfio_probe_info *controllers, int count)
{
	json_t *array = json_array();

	for (unsigned i = 0; i < devices.count; i++) {
		json_t *drive = tool_json_drive(&drives[i]);

		(void)json_object_set_new(drive, "nvme", tool_json_nvme(devices.paths[i]));
		(void)json_array_append_new(array, drive);
	}
	return tool_print_json(json_pack("{s:o, s:o, s:o, s:o}", "store", tool_json_store(info),
					 "open", json_holders(info), "drives", array, "controllers",
					 tool_json_controllers(controllers, count)));
}

static void print_text(const struct spw_store_info *info, const struct spw_drive_info *drives,
		       const struct spw_vfio_probe_info *controllers, int count)
{
	tool_print_store(info, stdout);
	print_holders(info);
	(void)putchar('\n');
	tool_print_drives(drives, devices.count, stdout);
	tool_print_nvme(devices.paths, devices.count, stdout);
	tool_print_controllers(controllers, count, stdout);
}

static int show(const struct tool_command *command)
{
	struct spw_store_info info = {.size = sizeof(info)};
	struct spw_vfio_probe_info *controllers = NULL;
	struct spw_drive_info *drives;
	int result = tool_check_store(&devices, &info, &drives), code = TOOL_DONE;
	int count = result < 0 ? 0 : find_controllers(&controllers);

	if (result < 0)
		code = tool_fail(command, result, json);
	else if (json)
		code = print_json(&info, drives, controllers, count);
	else
		print_text(&info, drives, controllers, count);
	free(controllers);
	free(drives);
	return code;
}

const struct tool_command command_info = {
	.name = "info",
	.summary = "show a store and its drives",
	.synopsis = "--devices A,B,... [--json]",
	.description = "Reads the superblocks and shows the store (UUID, capacity, partitions\n"
		       "and how many are open, chunk and block size) and each drive; as root\n"
		       "also wear and health of NVMe drives, and for vfio drives how they are\n"
		       "reached. Read-only; works while the store is in use.\n",
	.examples = "  spillway info --devices /dev/nvme1n1,/dev/nvme2n1\n"
		    "  spillway info --devices a.img,b.img --json\n",
	.action = show,
	.none_named = tool_no_drives,
	.options = options,
};
