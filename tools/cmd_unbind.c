/* SPDX-License-Identifier: MIT */
/* tools/cmd_unbind.c - spillway unbind: give NVMe controllers back to the kernel */
#include "tools/ui/tool.h"

#include <spillway/vfio.h>

#include "util/util.h"

static struct tool_devices controllers;
static bool json, verbose;

static const struct tool_option options[] = {
	{"devices", TOOL_DEVICES, &controllers, "A,B,...",
	 "PCI addresses of the controllers (or name them without the option)"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{"verbose", TOOL_FLAG, &verbose, NULL, "say more on standard error"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

static int unbind_all(const struct tool_command *command)
{
	struct spw_vfio_probe_info controller = {.size = sizeof(controller)};
	struct spw_log log = tool_log(verbose);
	int result = tool_check_controllers(command, &controllers, json);
	json_t *array;

	if (result != TOOL_DONE)
		return result;
	array = json ? json_array() : NULL;
	for (unsigned i = 0; i < controllers.count; i++) {
		result = spw_vfio_unbind(controllers.paths[i], &log);
		if (result == 0)
			result = spw_vfio_examine(controllers.paths[i], &controller);
		if (result) {
			json_decref(array);
			return tool_fail(command, result, json);
		}
		if (json)
			(void)json_array_append_new(array, tool_json_controller(&controller));
		else
			(void)printf("%s: with the kernel's %s again\n", controller.address,
				     controller.driver);
	}
	return json ? tool_print_json(json_pack("{s:o}", "controllers", array)) : TOOL_DONE;
}

static int run(const struct tool_command *command, int argc, char **argv)
{
	return tool_run_on_controllers(command, argc, argv, &controllers, unbind_all);
}

const struct tool_command command_unbind = {
	.name = "unbind",
	.summary = "give NVMe controllers back to the kernel",
	.synopsis = "PCI-ADDRESS... [--json]",
	.description = "Undoes 'spillway bind': clears what kept the kernel's driver away, and "
		       "lets it have the controllers "
		       "again. Their\n"
		       "block devices come back some time later. A controller that a process "
		       "drives at this moment is "
		       "refused.\n",
	.examples = "  spillway unbind 0000:3d:00.0 0000:3e:00.0\n",
	.run = run,
	.options = options,
};
