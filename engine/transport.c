/* SPDX-License-Identifier: MIT */
/*
 * engine/transport.c - paths of an NVMe drive (PCIe or network), from its controllers in sysfs
 *
 * The folder "device" of a namespace with a single path is its controller. With multipath, which
 * every drive over a network has, it is the subsystem, which contains all controllers; a controller
 * with a path to the namespace "nvme0n1" has a hidden block device such as "nvme0c3n1".
 */
#include "engine/transport.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "util/util.h"

static bool is_far(const char *name)
{
	static const char *const networks[] = {"tcp", "rdma", "fc"};

	for (size_t i = 0; i < SPW_ARRAY_LEN(networks); i++)
		if (strcmp(name, networks[i]) == 0)
			return true;
	return false;
}

/* How long transfers wait for a lost path: the first of these timeouts that is set, not "off". */
static uint32_t read_kept(const char *controller)
{
	static const char *const limits[] = {"fast_io_fail_tmo", "ctrl_loss_tmo"};

	for (size_t i = 0; i < SPW_ARRAY_LEN(limits); i++) {
		int64_t seconds = spw_read_number(SPW_PATH("%s/%s", controller, limits[i]), -1);

		if (seconds >= 0 && seconds < UINT32_MAX)
			return (uint32_t)seconds;
	}
	return UINT32_MAX;
}

static void add_path(const char *controller, struct spw_transport *t)
{
	char name[sizeof(t->name)], address[sizeof(t->address)];
	size_t used = strlen(t->address);
	bool is_first = t->name[0] == '\0', far;

	if (!spw_read_text(SPW_PATH("%s/transport", controller), name, sizeof(name)))
		return;
	far = is_far(name);
	if (is_first || (t->far && !far))
		(void)snprintf(t->name, sizeof(t->name), "%s", name);
	t->far = far && (is_first || t->far);
	if (far)
		t->kept_s = SPW_MAX(t->kept_s, read_kept(controller));
	(void)spw_read_text(SPW_PATH("%s/address", controller), address, sizeof(address));
	(void)snprintf(t->address + used, sizeof(t->address) - used, "%s%s", used ? "; " : "",
		       address);
}

struct search {
	const char *name; /* name of the block device */
	struct spw_transport *transport;
};

static int visit_controller(void *context, const char *folder, const char *name)
{
	const struct search *search = context;
	const char *last = strrchr(search->name, 'n');
	const char *controller = SPW_PATH("%s/%s", folder, name);

	if (strncmp(name, "nvme", 4) == 0 &&
	    access(SPW_PATH("%s/%.*sc%s%s", controller, (int)(last - search->name), search->name,
			    name + 4, last),
		   F_OK) == 0)
		add_path(controller, search->transport);
	return 0;
}

void spw_engine__transport_read(const char *drive, struct spw_transport *t)
{
	struct search search = {.name = strrchr(drive, '/') + 1, .transport = t};

	*t = (struct spw_transport){0};
	if (strncmp(search.name, "nvme", 4) != 0)
		return;
	add_path(SPW_PATH("%s/device", drive), t);
	if (t->name[0] == '\0')
		(void)spw_each_name(SPW_PATH("%s/device", drive), visit_controller, &search);
	if (t->far)
		(void)snprintf(t->words, sizeof(t->words), ", which is reached over %s at %s",
			       t->name, t->address);
}
