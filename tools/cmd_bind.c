/* SPDX-License-Identifier: MIT */
/* tools/cmd_bind.c - spillway bind: bind NVMe controllers to vfio-pci, for use from user space */
#include "tools/ui/tool.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <spillway/vfio.h>

#include "util/util.h"

#define IOMMU_NODE "/dev/iommu"

static struct tool_devices controllers;
static const char *user;
static uid_t owner;       /* uid of the user, */
static gid_t owner_group; /* and gid of the user's primary group */
static bool force, dry_run, json, verbose;

static const struct tool_option options[] = {
	{"devices", TOOL_DEVICES, &controllers, "A,B,...",
	 "PCI addresses of the controllers (or name them without the option)"},
	{"user", TOOL_TEXT, &user, "NAME",
	 "user who may drive them: becomes the owner of their nodes below /dev/vfio, including the "
	 "group's (default: root)"},
	{"force", TOOL_FLAG, &force, NULL,
	 "also if a namespace holds data, but never if it is in use"},
	{"dry-run", TOOL_FLAG, &dry_run, NULL, "only check"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{"verbose", TOOL_FLAG, &verbose, NULL, "say more on standard error"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

/* On a terminal, say which controller is about to be bound. */
static void announce(const struct spw_vfio_probe_info *controller)
{
	if (!isatty(STDERR_FILENO))
		return;
	if (strcmp(controller->driver, "vfio-pci") == 0)
		(void)fprintf(stderr, "%s is bound already\n", controller->address);
	else
		(void)fprintf(
			stderr,
			"Taking %s%s%s from the kernel; going away, with their contents kept: %s\n",
			controller->address, controller->model[0] ? ", " : "", controller->model,
			controller->block_devices[0] ? controller->block_devices
						     : "no block device");
}

/* vfio-pci is rarely loaded at boot. A failure to load it shows when binding. */
static void load_modules(void)
{
	static char *const words[] = {"modprobe", "-qa", "vfio-pci", "vfio_iommu_type1", NULL};
	pid_t pid;

	if (access("/sys/bus/pci/drivers/vfio-pci", F_OK) == 0 &&
	    access("/sys/module/vfio_iommu_type1", F_OK) == 0)
		return;
	if (posix_spawnp(&pid, words[0], NULL, NULL, words, environ) == 0)
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			continue;
}

static int find_user(const struct tool_command *command)
{
	const struct passwd *entry = user ? getpwnam(user) : NULL;

	if (user && !entry)
		return tool_usage_error(command, "--user=%s: there is no such user", user);
	if (entry) {
		owner = entry->pw_uid;
		owner_group = entry->pw_gid;
	}
	return TOOL_DONE;
}

/* Check access as the user, with all its groups. Return: false also if the check fails. */
static bool user_may_open(const char *path)
{
	pid_t pid = fork();
	int status = 1;

	if (pid == 0)
		_exit(initgroups(user, owner_group) || setgid(owner_group) || setuid(owner) ||
		      access(path, R_OK | W_OK));
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		continue;
	return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int give_node(const struct spw_vfio_probe_info *controller, const char *path)
{
	if (path[0] && chown(path, owner, (gid_t)-1) != 0)
		return spw_error_errno(-errno, "%s is bound, but %s cannot be given to %s",
				       controller->address, path, user);
	return 0;
}

static int give_to_user(const struct spw_vfio_probe_info *controller)
{
	char path[64];
	int result;

	if (!user)
		return 0;
	(void)snprintf(path, sizeof(path), "/dev/vfio/%d", controller->iommu_group);
	result = give_node(controller, path);
	if (result == 0)
		result = give_node(controller, controller->device_node);
	/* /dev/iommu is shared by all users, so it is not given to this user. */
	if (result == 0 && controller->device_node[0] && access(IOMMU_NODE, F_OK) == 0 &&
	    !user_may_open(IOMMU_NODE))
		(void)fprintf(stderr,
			      "spillway bind: %s may not open " IOMMU_NODE
			      ", so %s will be reached by its IOMMU group; for iommufd: setfacl -m "
			      "u:%s:rw " IOMMU_NODE " (or a rule of udev, to last)\n",
			      user, controller->address, user);
	return result;
}

static int bind_one(const char *address, struct spw_vfio_probe_info *controller)
{
	struct spw_vfio_bind_opts opts;
	int result;

	if (!dry_run)
		load_modules();
	result = spw_vfio_examine(address, controller);
	if (result)
		return result;
	announce(controller);
	spw_vfio_bind_opts_init(&opts, sizeof(opts));
	opts.force = force;
	opts.dry_run = dry_run;
	opts.alone = user != NULL;
	opts.log = tool_log(verbose);
	result = spw_vfio_bind(address, &opts);
	if (result || dry_run)
		return result;
	/* Binding has created the controller's node; find it. */
	result = spw_vfio_examine(address, controller);
	return result ? result : give_to_user(controller);
}

static void print_bound(const struct spw_vfio_probe_info *controller)
{
	(void)printf(dry_run ? "%s: nothing stands in the way\n"
			     : "%s: bound; its first namespace is pci:%s/1\n",
		     controller->address, controller->address);
	for (uint32_t i = 0; i < controller->obstacles; i++)
		(void)fprintf(stderr, "spillway bind: %s\n", controller->obstacle[i].text);
}

static int bind_all(const struct tool_command *command)
{
	int code = find_user(command);

	return code == TOOL_DONE
		       ? tool_each_controller(command, &controllers, json, bind_one, print_bound)
		       : code;
}

/* Errors that count as refusals: no IOMMU, or an IOMMU group shared with other devices. */
static const int refusals[] = {EOPNOTSUPP, 0};

const struct tool_command command_bind = {
	.name = "bind",
	.summary = "take NVMe controllers from the kernel, for use from user space",
	.synopsis = "PCI-ADDRESS... [--user NAME] [--force] [--dry-run] [--json]",
	.description = "Binds the controllers to the kernel's vfio-pci driver. Their block\n"
		       "devices disappear, their content stays, and their namespaces are then\n"
		       "named pci:ADDRESS/1. A controller with a namespace that is mounted, held,\n"
		       "swapped on or in use by a store (partitions included), or that can be\n"
		       "reached through another controller, is always refused; one with a file\n"
		       "system or other known signature without --force. --user is refused if\n"
		       "the controller shares its IOMMU group, since it would hand over the other\n"
		       "devices as well. The binding lasts until 'spillway unbind' or a reboot.\n"
		       "'spillway probe' shows what is in the way; see docs/VFIO.md.\n",
	.examples = "  spillway probe                                    # which controllers there "
		    "are\n"
		    "  spillway bind 0000:3d:00.0 0000:3e:00.0\n"
		    "  spillway format --devices pci:0000:3d:00.0/1,pci:0000:3e:00.0/1\n"
		    "  spillway bind 3d:00.0 --user trainer              # for a process that is "
		    "not root\n",
	.action = bind_all,
	.none_named = tool_no_controllers,
	.options = options,
	.refusals = refusals,
	.destructive = true,
};
