/* SPDX-License-Identifier: MIT */
/*
 * tools/ui/vfio_output.c - find and print NVMe controllers that a process can drive, or obstacles
 */
#include "tools/ui/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <spillway/vfio.h>

#include "util/util.h"

static json_t *controller_json(const struct spw_vfio_probe_info *controller)
{
	json_t *obstacles = json_array();
	char path[sizeof(controller->address) + 8];

	(void)snprintf(path, sizeof(path), "pci:%s/1", controller->address);
	for (uint32_t i = 0; i < controller->obstacles; i++)
		(void)json_array_append_new(obstacles,
					    json_pack("{s:o, s:i, s:b}", "text",
						      tool_json_text(controller->obstacle[i].text),
						      "errno", -controller->obstacle[i].error,
						      "of_bind", controller->obstacle[i].of_bind));
	return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:i, s:i, s:b, s:b, s:o, s:o, s:o, s:o}",
			 "address", controller->address, "path", path, "driver",
			 tool_json_text(controller->driver), "model",
			 tool_json_text(controller->model), "serial",
			 tool_json_text(controller->serial), "block_devices",
			 tool_json_text(controller->block_devices), "iommu_group",
			 (int)controller->iommu_group, "numa_node", (int)controller->numa_node,
			 "bindable", controller->bindable, "ready", controller->ready, "obstacles",
			 obstacles, "way", tool_json_text(controller->way), "not_iommufd",
			 tool_json_text(controller->not_iommufd), "device_node",
			 tool_json_text(controller->device_node));
}

json_t *tool_json_controllers(const struct spw_vfio_probe_info *controllers, int count)
{
	json_t *array = json_array();

	for (int i = 0; i < count; i++)
		(void)json_array_append_new(array, controller_json(&controllers[i]));
	return array;
}

int tool_each_controller(const struct tool_command *command, const struct tool_devices *named,
			 bool as_json,
			 int (*act)(const char *address, struct spw_vfio_probe_info *controller),
			 void (*print)(const struct spw_vfio_probe_info *controller))
{
	struct spw_vfio_probe_info controller = {.size = sizeof(controller)};
	json_t *array = json_array();
	int result = 0;

	/* Examine all controllers before acting on the first. */
	for (unsigned i = 0; i < named->count && result == 0; i++)
		result = spw_vfio_examine(named->paths[i], &controller);
	if (result == -EINVAL) {
		json_decref(array);
		return tool_usage_error(command, "%s", spw_last_error());
	}
	for (unsigned i = 0; i < named->count && result == 0; i++) {
		result = act(named->paths[i], &controller);
		if (result == 0 && as_json)
			(void)json_array_append_new(array, controller_json(&controller));
		else if (result == 0)
			print(&controller);
	}
	if (result == 0 && as_json)
		return tool_print_json(json_pack("{s:o}", "controllers", array));
	json_decref(array);
	return result == 0 ? TOOL_DONE : tool_fail(command, result, as_json);
}

/* Whether @path names a controller, by its address or a block device. */
static bool is_of(const struct spw_vfio_probe_info *controller, const char *path)
{
	const char *at = strstr(controller->block_devices, path);
	char next = at ? at[strlen(path)] : 'x';

	return strstr(path, controller->address) || next == '\0' || next == ',';
}

static bool is_wanted(const struct spw_vfio_probe_info *controller, const char *const paths[],
		      unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (is_of(controller, paths[i]))
			return true;
	return count == 0;
}

int tool_find_controllers(const char *const paths[], unsigned count,
			  struct spw_vfio_probe_info **controllers)
{
	char **addresses = NULL;
	int listed = spw_vfio_list(&addresses), found = 0;

	*controllers = listed < 0 ? NULL : calloc((size_t)listed + 1, sizeof(**controllers));
	for (int i = 0; *controllers && i < listed; i++) {
		struct spw_vfio_probe_info *controller = &(*controllers)[found];

		controller->size = sizeof(*controller);
		/* Skip a controller that has disappeared since it was listed. */
		if (spw_vfio_examine(addresses[i], controller) == 0 &&
		    is_wanted(controller, paths, count))
			found++;
	}
	spw_probe_list_free(addresses);
	return found;
}

static const char *verdict(const struct spw_vfio_probe_info *controller)
{
	if (controller->ready)
		return "ready";
	return controller->bindable ? "after bind" : "no";
}

/* Print the controllers that are reachable only by their IOMMU group. */
static void print_groups(const struct spw_vfio_probe_info *controllers, int count, FILE *out)
{
	bool headed = false;

	for (int i = 0; i < count; i++) {
		const struct spw_vfio_probe_info *c = &controllers[i];

		if (!c->not_iommufd[0] || (!c->ready && !c->bindable))
			continue;
		(void)fprintf(out, "%s%s: %s\n",
			      headed ? "" : "\nBy IOMMU group, not by iommufd:\n", c->address,
			      c->not_iommufd);
		headed = true;
	}
}

void tool_print_controllers(const struct spw_vfio_probe_info *controllers, int count, FILE *out)
{
	struct tool_table *table =
		tool_table_new("CONTROLLER|DRIVER|>IOMMU GROUP|>NUMA|VFIO|BY|MODEL|DEVICES");
	bool headed = false;

	for (int i = 0; i < count; i++) {
		const struct spw_vfio_probe_info *c = &controllers[i];
		bool bound = strcmp(c->driver, "vfio-pci") == 0;

		tool_table_row(table, c->address, tool_or_dash(c->driver),
			       c->iommu_group < 0 ? "-" : TOOL_SHORT("%d", c->iommu_group),
			       c->numa_node < 0 ? "-" : TOOL_SHORT("%d", c->numa_node), verdict(c),
			       tool_or_dash(c->way), tool_or_dash(c->model),
			       bound ? TOOL_SHORT("pci:%s/1", c->address)
				     : tool_or_dash(c->block_devices));
	}
	if (count > 0)
		(void)fputc('\n', out);
	tool_table_end(table, count > 0 ? out : NULL);
	for (int i = 0; i < count; i++) {
		for (uint32_t j = 0; j < controllers[i].obstacles; j++) {
			(void)fprintf(out, "%s%s\n", headed ? "" : "\nIn the way of vfio:\n",
				      controllers[i].obstacle[j].text);
			headed = true;
		}
	}
	print_groups(controllers, count, out);
}
