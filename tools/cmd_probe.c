/* SPDX-License-Identifier: MIT */
/*
 * tools/cmd_probe.c - spillway probe: every candidate device, what is on it, and whether it could
 * be formatted
 */
#include "tools/ui/tool.h"

#include <errno.h>
#include <stdlib.h>

#include <spillway/vfio.h>

#include "util/util.h"

static struct tool_devices devices;
static bool json;

static const struct tool_option options[] = {
	{"devices", TOOL_DEVICES, &devices, "A,B,...",
	 "only these devices (or name them without the option); \\, is a comma in a name"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

/*
 * The devices to look at: those named, else all of the machine. *@listed is to be freed if it is
 * set.
 */
static int candidates(const char *const **paths, char ***listed)
{
	int count;

	*listed = NULL;
	if (devices.count > 0) {
		*paths = devices.paths;
		return (int)devices.count;
	}
	count = spw_probe_list(listed);
	*paths = (const char *const *)*listed;
	return count;
}

static json_t *device_json(const struct spw_probe_info *info)
{
	return json_pack("{s:o, s:o, s:b, s:b, s:o, s:o, s:o}", "path", tool_json_text(info->path),
			 "holds", tool_json_text(info->holds), "usable", info->usable, "has_store",
			 info->has_store, "reason", tool_json_text(info->reason), "geometry",
			 tool_json_geometry(&info->geometry), "nvme", tool_json_nvme(info->path));
}

static void device_row(struct tool_table *table, const struct spw_probe_info *info)
{
	const struct spw_geometry *geometry = &info->geometry;
	char size[32];

	tool_table_cell(table, "%s", info->path);
	tool_table_cell(table, "%s", geometry->model[0] ? geometry->model : "-");
	tool_table_cell(table, "%s", spw_size_format(geometry->size_bytes, size, sizeof(size)));
	tool_table_cell(table, "%u", geometry->logical_block_bytes);
	tool_table_cell(table, geometry->numa_node < 0 ? "-" : "%d", geometry->numa_node);
	tool_table_cell(table, "%s", geometry->polls ? "yes" : "no");
	tool_table_cell(table, "%s", geometry->nvme_char_path[0] ? geometry->nvme_char_path : "-");
	tool_table_cell(table, "%s", info->usable ? "yes" : "no");
	tool_table_cell(table, "%s", info->holds[0] ? info->holds : "-");
}

static const struct tool_column columns[] = {
	{"PATH", false}, {"MODEL", false}, {"SIZE", true},    {"BLOCK", true},  {"NUMA", true},
	{"POLL", false}, {"CHAR", false},  {"USABLE", false}, {"HOLDS", false},
};

static int print_text(const char *const *paths, const struct spw_probe_info *infos, int count)
{
	struct tool_table *table = tool_table_new(columns, SPW_ARRAY_LEN(columns));
	struct spw_vfio_probe_info *controllers;
	int controllers_count = tool_find_controllers(devices.paths, devices.count, &controllers);
	bool gap = false;

	if (count == 0)
		(void)printf(
			"This machine has no block device that spillway could use.\n"
			"Plain files do as well: truncate -s 1G a.img; spillway probe a.img\n");
	for (int i = 0; i < count; i++)
		device_row(table, &infos[i]);
	if (count > 0)
		tool_table_print(table, stdout);
	tool_table_free(table);
	tool_print_nvme(paths, (unsigned)count, stdout);
	for (int i = 0; i < count; i++) {
		if (infos[i].usable)
			continue;
		(void)fputs(gap ? "" : "\nNot usable:\n", stdout);
		tool_print_text(infos[i].path, stdout);
		(void)printf(": %s\n", infos[i].reason);
		gap = true;
	}
	tool_print_controllers(controllers, controllers_count, stdout);
	free(controllers);
	return TOOL_DONE;
}

static int print_json(const struct spw_probe_info *infos, int count)
{
	json_t *array = json_array(), *controllers_array = json_array();
	struct spw_vfio_probe_info *controllers;
	int controllers_count = tool_find_controllers(devices.paths, devices.count, &controllers);

	for (int i = 0; i < count; i++)
		(void)json_array_append_new(array, device_json(&infos[i]));
	for (int i = 0; i < controllers_count; i++)
		(void)json_array_append_new(controllers_array,
					    tool_json_controller(&controllers[i]));
	free(controllers);
	return tool_print_json(
		json_pack("{s:o, s:o}", "devices", array, "controllers", controllers_array));
}

/*
 * A device that was named and could not even be looked at is a failure; one found by listing may
 * have gone since.
 */
static int exit_code(const struct spw_probe_info *infos, int count)
{
	for (int i = 0; i < count && devices.count > 0; i++) {
		if (infos[i].geometry.size_bytes != 0)
			continue;
		(void)fprintf(stderr, "spillway probe: %s\n", infos[i].reason);
		return TOOL_FAILED;
	}
	return TOOL_DONE;
}

static int run(const struct tool_command *command, int argc, char **argv)
{
	struct spw_probe_info *infos = NULL;
	int result = tool_options_parse(command, argc, argv);
	const char *const *paths;
	char **listed = NULL;
	int count, code;

	if (result != 0) {
		code = tool_usage_exit(result);
		goto out;
	}
	count = candidates(&paths, &listed);
	if (count < 0) {
		code = tool_fail(command, count, json);
		goto out;
	}
	infos = calloc((size_t)count + 1, sizeof(*infos));
	if (!infos) {
		code = tool_fail(command, spw_error(-ENOMEM, "out of memory"), json);
		goto out;
	}
	for (int i = 0; i < count; i++) {
		infos[i].size = sizeof(infos[i]);
		result = spw_probe(paths[i], &infos[i]);
		if (result < 0) {
			code = tool_fail(command, result, json);
			goto out;
		}
	}
	code = json ? print_json(infos, count) : print_text(paths, infos, count);
	if (code == TOOL_DONE)
		code = exit_code(infos, count);
out:
	free(infos);
	spw_probe_list_free(listed);
	tool_devices_free(&devices);
	return code;
}

const struct tool_command command_probe = {
	.name = "probe",
	.summary = "list the drives of this machine and what they hold",
	.synopsis = "[DEVICE...] [--json]",
	.description = "Shows every block device (or those named, plain files too): its size, "
		       "logical block size, NUMA "
		       "node, whether\n"
		       "completions can be polled, its NVMe character device, what is on it, and "
		       "whether 'spillway "
		       "format' would\n"
		       "take it; below the table, the wear and health of NVMe drives (as root), "
		       "why a device is not "
		       "usable, and\n"
		       "what to do about it; then which NVMe controllers a process could drive "
		       "itself (see 'spillway "
		       "bind'), and what\n"
		       "stands in the way of that. Reads only.\n",
	.examples = "  spillway probe\n"
		    "  spillway probe /dev/nvme1n1 /dev/nvme2n1\n"
		    "  spillway probe --json | python3 -c 'import json,sys; print([d[\"path\"] for "
		    "d in\n"
		    "      json.load(sys.stdin)[\"devices\"] if d[\"usable\"]])'\n",
	.run = run,
	.options = options,
};
