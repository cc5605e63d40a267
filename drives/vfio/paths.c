/* SPDX-License-Identifier: MIT */
/*
 * drives/vfio/paths.c - a namespace that the kernel reaches by a controller, and a process by
 * another one
 *
 * What the kernel's driver does by the one controller, be it a mount or a store of another process,
 * who drives the other does not see, nor is seen by it. So a namespace is driven from a process by
 * its only path, or not at all.
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
	char own[32];   /* a block device of the controller */
	char other[32]; /* the one of another controller that is the same drive */
};

/*
 * The kernel has joined the paths to one block device (nvme_core.multipath), or each has one of its
 * own, which are then the same drive.
 */
static int compare_namespace(void *context, const char *folder, const char *entry)
{
	struct search *search = context;

	(void)folder;
	return spw_vfio_block_name(entry, search->other, sizeof(search->other)) &&
	       (strcmp(search->other, search->own) == 0 ||
		spw_identity_same(search->system->sysfs, search->own, search->other));
}

static int other_path_error(const struct search *search, const char *folder, const char *name)
{
	char path[PATH_MAX], address[64];

	if (snprintf(path, sizeof(path), "%s/address", folder) >= (int)sizeof(path) ||
	    !spw_vfio_read_line(path, address, sizeof(address)))
		(void)snprintf(address, sizeof(address), "its address");
	return spw_error(-EBUSY,
			 "%s: %s is reached by controller %s (%s) too, as %s, where nobody would "
			 "see that it is in use; take "
			 "that controller from the kernel first (echo %s > "
			 "/sys/bus/pci/drivers/nvme/unbind)",
			 search->address, search->own, name, address, search->other, address);
}

static int compare_controller(void *context, const char *folder, const char *name)
{
	const struct search *search = context;
	char path[PATH_MAX], own[PATH_MAX];
	int rc;

	spw_vfio_folder(search->system, search->address, "nvme", own);
	if (snprintf(path, sizeof(path), "%s/%s", own, name) >= (int)sizeof(path) ||
	    access(path, F_OK) == 0 ||
	    snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path))
		return 0;
	rc = spw_each_name(path, compare_namespace, context);
	return rc > 0 ? other_path_error(search, path, name) : rc;
}

static int search_namespace(void *context, const char *folder, const char *entry)
{
	struct search *search = context;
	char path[PATH_MAX];

	(void)folder;
	if (!spw_vfio_block_name(entry, search->own, sizeof(search->own)))
		return 0;
	if (snprintf(path, sizeof(path), "%s/class/nvme", search->system->sysfs) >=
	    (int)sizeof(path))
		return spw_error(-ENAMETOOLONG, "%s: the path is too long", search->system->sysfs);
	return spw_each_name(path, compare_controller, search);
}

static int search_controller(void *context, const char *folder, const char *name)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path))
		return spw_error(-ENAMETOOLONG, "%s: its path is too long", name);
	return spw_each_name(path, search_namespace, context);
}

int spw_vfio_verify_only_path(const struct spw_vfio_system *system, const char *address)
{
	struct search search = {.system = system, .address = address};
	char folder[PATH_MAX];

	spw_vfio_folder(system, address, "nvme", folder);
	return spw_each_name(folder, search_controller, &search);
}
