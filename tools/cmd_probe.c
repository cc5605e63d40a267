/* SPDX-License-Identifier: MIT */
/* tools/cmd_probe.c - spillway probe: list devices, what they hold, and whether they are usable */
#include "tools/ui/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

/* The named devices, or else all of the machine. *@listed: to be freed if set. */
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
	return json_pack("{s:o, s:o, s:b, s:b, s:o, s:o, s:o, s:o}", "path",
			 tool_json_text(info->path), "holds", tool_json_text(info->holds), "usable",
			 info->usable, "has_store", info->has_store, "reason",
			 tool_json_text(info->reason), "geometry",
			 tool_json_geometry(&info->geometry), "address",
			 tool_json_text(info->address), "nvme", tool_json_nvme(info->path));
}

/* A device on which nothing but a store stands in the way of a new one. */
static bool is_store(const struct spw_probe_info *info)
{
	return info->has_store && info->error == -EEXIST;
}

static void print_devices(const struct spw_probe_info *infos, int count)
{
	struct tool_table *table =
		tool_table_new("PATH|MODEL|>SIZE|>BLOCK|VIA|>NUMA|POLL|CHAR|USABLE|HOLDS");

	for (int i = 0; i < count; i++) {
		const struct spw_geometry *geometry = &infos[i].geometry;

		tool_table_row(
			table, infos[i].path, tool_or_dash(geometry->model),
			geometry->size_bytes ? SPW_SIZE_TEXT(geometry->size_bytes) : "-",
			geometry->size_bytes ? TOOL_SHORT("%u", geometry->logical_block_bytes)
					     : "-",
			tool_or_dash(geometry->transport),
			geometry->numa_node < 0 || !geometry->size_bytes
				? "-"
				: TOOL_SHORT("%d", geometry->numa_node),
			geometry->polls ? "yes" : "no", tool_or_dash(geometry->nvme_char_path),
			infos[i].usable       ? "yes"
			: is_store(&infos[i]) ? "a store"
					      : "no",
			tool_or_dash(infos[i].holds));
	}
	tool_table_end(table, count > 0 ? stdout : NULL);
}

/* Print how drives of other machines (NVMe over Fabrics) are reached. */
static void print_fabrics(const struct spw_probe_info *infos, int count)
{
	bool gap = false;

	for (int i = 0; i < count; i++) {
		const char *transport = infos[i].geometry.transport;

		if (transport[0] == '\0' || strcmp(transport, "pcie") == 0)
			continue;
		(void)fputs(gap ? "" : "\nOver a fabric:\n", stdout);
		tool_print_text(infos[i].path, stdout);
		(void)printf(": %s, ", transport);
		tool_print_text(infos[i].address, stdout);
		(void)fputs("\n", stdout);
		gap = true;
	}
}

/* Print the reason, with the path unless the reason begins with it. */
static void print_reason(const struct spw_probe_info *info)
{
	size_t len = strlen(info->path);

	if (strncmp(info->reason, info->path, len) != 0 || !strchr(": ", info->reason[len])) {
		tool_print_text(info->path, stdout);
		(void)fputs(": ", stdout);
	}
	tool_print_text(info->reason, stdout);
	(void)fputs("\n", stdout);
}

static void print_text(const char *const *paths, const struct spw_probe_info *infos, int count,
		       const struct spw_vfio_probe_info *controllers, int found)
{
	bool gap = false;

	if (count == 0)
		(void)printf(
			"This machine has no block device that spillway could use.\n"
			"Plain files do as well: fallocate -l 1G a.img; spillway probe a.img\n");
	print_devices(infos, count);
	print_fabrics(infos, count);
	tool_print_nvme(paths, (unsigned)count, stdout);
	for (int i = 0; i < count; i++) {
		if (infos[i].usable || is_store(&infos[i]))
			continue;
		(void)fputs(gap ? "" : "\nNot usable:\n", stdout);
		print_reason(&infos[i]);
		gap = true;
	}
	for (int i = 0; i < count; i++)
		if (is_store(&infos[i])) {
			(void)fputs("\nA store is ready for use; 'spillway info' shows it. Before "
				    "a new "
				    "one is\nmade there, remove it: 'spillway wipe'.\n",
				    stdout);
			break;
		}
	tool_print_controllers(controllers, found, stdout);
}

static int print_json(const struct spw_probe_info *infos, int count,
		      const struct spw_vfio_probe_info *controllers, int found)
{
	json_t *array = json_array();

	for (int i = 0; i < count; i++)
		(void)json_array_append_new(array, device_json(&infos[i]));
	return tool_print_json(json_pack("{s:o, s:o}", "devices", array, "controllers",
					 tool_json_controllers(controllers, found)));
}

/* An unreadable device is a failure if it was named; a listed one may have disappeared since. */
static int exit_code(const struct spw_probe_info *infos, int count)
{
	for (int i = 0; i < count && devices.count > 0; i++) {
		if (infos[i].geometry.size_bytes != 0)
			continue;
		return TOOL_FAILED;
	}
	return TOOL_DONE;
}

static int probe(const struct tool_command *command)
{
	struct spw_vfio_probe_info *controllers = NULL;
	struct spw_probe_info *infos = NULL;
	const char *const *paths;
	char **listed;
	int count = candidates(&paths, &listed), result = count, found, code = TOOL_DONE;

	if (result >= 0) {
		infos = calloc((size_t)count + 1, sizeof(*infos));
		result = infos ? 0 : spw_error(-ENOMEM, "out of memory");
	}
	for (int i = 0; i < count && result == 0; i++) {
		infos[i].size = sizeof(infos[i]);
		result = spw_probe(paths[i], &infos[i]);
	}
	if (result < 0) {
		code = tool_fail(command, result, json);
		goto out;
	}
	found = tool_find_controllers(devices.paths, devices.count, &controllers);
	if (json)
		code = print_json(infos, count, controllers, found);
	else
		print_text(paths, infos, count, controllers, found);
	if (code == TOOL_DONE)
		code = exit_code(infos, count);
out:
	free(controllers);
	free(infos);
	spw_probe_list_free(listed);
	return code;
}

const struct tool_command command_probe = {
	.name = "probe",
	.summary = "list the drives of this machine and what they hold",
	.synopsis = "[DEVICE...] [--json]",
	.description =
		"Shows every block device (or the ones named, plain files too): size,\n"
		"logical block size, transport of an NVMe drive (pcie, tcp, rdma, fc,\n"
		"loop), NUMA node, polling support, NVMe character device, content, and\n"
		"whether 'spillway format' would accept it (USABLE). Below the table: addresses\n"
		"of network drives, wear and health of NVMe drives (as root), and why a\n"
		"device is not usable, with the remedy. Then the NVMe controllers that\n"
		"can be driven from user space (see 'spillway bind'), or what is in the\n"
		"way. Read-only.\n",
	.examples = "  spillway probe\n"
		    "  spillway probe /dev/nvme1n1 /dev/nvme2n1\n"
		    "  spillway probe --json | python3 -c 'import json,sys; print([d[\"path\"] for "
		    "d in\n"
		    "      json.load(sys.stdin)[\"devices\"] if d[\"usable\"]])'\n",
	.action = probe,
	.options = options,
};
