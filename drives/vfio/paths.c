/* SPDX-License-Identifier: MIT */
/*
 * drives/vfio/paths.c - detect a namespace with paths through the kernel and through a process at
 * the same time
 *
 * The kernel and the process would not see each other's mounts and stores. So a process may drive a
 * namespace only if it has no other path.
 */
#include "drives/vfio/bind.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "drives/identity.h"
#include "util/util.h"

struct search {
	const struct spw_vfio_system *system;
	const char *address;
	const char *own; /* a block device of the controller */
	char other[32];  /* block device of another controller that is the same drive */
};

/* Is it the same drive? Multipath may have merged the paths to one block device, or not. */
static int compare_namespace(void *context, const char *folder, const char *entry)
{
	struct search *search = context;

	(void)folder;
	return spw_vfio__block_name(entry, search->other, sizeof(search->other)) &&
	       (strcmp(search->other, search->own) == 0 ||
		spw_drives__identity_same(search->system->sysfs, search->own, search->other));
}

static int other_path_error(const struct search *search, const char *folder, const char *name)
{
	char address[64];

	if (!spw_read_text(SPW_PATH("%s/address", folder), address, sizeof(address)))
		(void)snprintf(address, sizeof(address), "its address");
	return spw_error(
		-EBUSY,
		"%s: %s is reached by controller %s (%s) too, as %s, where others would "
		"not see that it is in use; take that controller from the kernel first (echo "
		"%s > /sys/bus/pci/drivers/nvme/unbind)",
		search->address, search->own, name, address, search->other, address);
}

static int compare_controller(void *context, const char *folder, const char *name)
{
	const struct search *search = context;
	const char *own = SPW_VFIO_FILE(search->system, search->address, "nvme");
	const char *path = SPW_PATH("%s/%s", folder, name);
	int rc;

	if (access(SPW_PATH("%s/%s", own, name), F_OK) == 0)
		return 0;
	rc = spw_each_name(path, compare_namespace, context);
	return rc > 0 ? other_path_error(search, path, name) : rc;
}

static int search_namespace(void *context, const char *name)
{
	struct search *search = context;

	search->own = name;
	return spw_each_name(SPW_PATH("%s/class/nvme", search->system->sysfs), compare_controller,
			     search);
}

int spw_drives__vfio_verify_only_path(const struct spw_vfio_system *system, const char *address)
{
	struct search search = {.system = system, .address = address};

	return spw_vfio__each_name(system, address, search_namespace, &search);
}
