/* SPDX-License-Identifier: MIT */
/* tools/cmd_unbind.c - spillway unbind: return NVMe controllers to the kernel */
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

static int unbind_one(const char *address, struct spw_vfio_probe_info *controller)
{
	struct spw_log log = tool_log(verbose);
	int result = spw_vfio_unbind(address, &log);

	return result == 0 ? spw_vfio_examine(address, controller) : result;
}

static void print_unbound(const struct spw_vfio_probe_info *controller)
{
	(void)printf("%s: with the kernel's %s again\n", controller->address, controller->driver);
}

static int unbind_all(const struct tool_command *command)
{
	return tool_each_controller(command, &controllers, json, unbind_one, print_unbound);
}

const struct tool_command command_unbind = {
	.name = "unbind",
	.summary = "return NVMe controllers to the kernel",
	.synopsis = "PCI-ADDRESS... [--json]",
	.description = "Undoes 'spillway bind': the kernel's driver gets the controllers back,\n"
		       "and their block devices reappear some time later. A controller that a\n"
		       "process is using is refused.\n",
	.examples = "  spillway unbind 0000:3d:00.0 0000:3e:00.0\n",
	.action = unbind_all,
	.none_named = tool_no_controllers,
	.options = options,
};
