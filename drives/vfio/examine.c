/* SPDX-License-Identifier: MIT */
/* drives/vfio/examine.c - spw_vfio_examine(): obstacles to driving a controller, and remedies */
#include "drives/vfio/bind.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <spillway/format.h>

#include "drives/contents.h"
#include "drives/safety.h"
#include "drives/sysfs.h"
#include "util/util.h"

#define CLASS_BRIDGE 0x0604u

/* A store's default arena, and the memory of queues. */
#define MEMLOCK_BYTES_LEAST (288ull << 20)

struct examination {
	const struct spw_vfio_system *system;
	struct spw_vfio_probe_info *controller;
	bool bound; /* to vfio-pci */
};

/* ---- Obstacles ---- */

static void add_error(const struct examination *e, int error, bool of_bind)
{
	struct spw_vfio_probe_info *c = e->controller;

	if (error == 0 || c->obstacles == SPW_VFIO_OBSTACLES_MAX)
		return;
	c->obstacle[c->obstacles].error = error;
	c->obstacle[c->obstacles].of_bind = of_bind;
	(void)snprintf(c->obstacle[c->obstacles].text, sizeof(c->obstacle[0].text), "%s",
		       spw_last_error());
	c->obstacles++;
}

static void SPW_PRINTF(4, 5)
	add(const struct examination *e, int error, bool of_bind, const char *format, ...)
{
	char words[sizeof(e->controller->obstacle[0].text)];
	va_list args;

	va_start(args, format);
	(void)vsnprintf(words, sizeof(words), format, args);
	va_end(args);
	add_error(e, spw_error(error, "%s: %s", e->controller->address, words), of_bind);
}

/* ---- Access by iommufd or by group ---- */

static bool is_loaded(const struct spw_vfio_system *system, const char *what, const char *name)
{
	return access(SPW_PATH("%s/%s/%s", system->sysfs, what, name), F_OK) == 0;
}

/* Does vfio have nodes for single devices? Known as soon as the module is loaded. */
static bool has_device_nodes(const struct spw_vfio_system *system)
{
	FILE *file = fopen(system->char_devices, "re");
	char line[128];
	bool found = false;

	while (file && !found && fgets(line, sizeof(line), file))
		found = strstr(line, " vfio-dev\n") != NULL;
	if (file)
		(void)fclose(file);
	return found;
}

static void find_way(const struct examination *e)
{
	const char *iommu = SPW_PATH("%s/iommu", e->system->dev);
	struct spw_vfio_probe_info *c = e->controller;
	int rc = 0;

	if (!e->bound && !is_loaded(e->system, "bus/pci/drivers", spw_vfio__driver))
		return;
	if (e->bound ? !c->device_node[0] : !has_device_nodes(e->system))
		rc = spw_error(-ENODEV, "the kernel makes no nodes of vfio devices "
					"(CONFIG_VFIO_DEVICE_CDEV, 6.6 or later)");
	else if (access(iommu, F_OK) != 0)
		rc = spw_error(-ENOENT, "there is no %s; modprobe iommufd", iommu);
	else if (access(iommu, R_OK | W_OK) != 0)
		rc = spw_error(-EACCES,
			       "this user may not open %s; give the user a right to it (setfacl "
			       "-m u:NAME:rw, or a rule of udev)",
			       iommu);
	else if (e->bound && access(c->device_node, R_OK | W_OK) != 0)
		rc = spw_error(-EACCES, "this user may not open %s; give it to the user (chown)",
			       c->device_node);
	(void)snprintf(c->not_iommufd, sizeof(c->not_iommufd), "%s", rc ? spw_last_error() : "");
	(void)snprintf(c->way, sizeof(c->way), rc ? "group" : "iommufd");
}

static bool is_by_iommufd(const struct examination *e)
{
	return strcmp(e->controller->way, "iommufd") == 0;
}

/* ---- Obstacles to binding and driving ---- */

/* Other devices in the IOMMU group, except bridges. @bound: also on vfio-pci. Return: 0; -errno. */
static int list_neighbours(const struct spw_vfio_system *system,
			   const struct spw_vfio_probe_info *controller, bool bound, char *names,
			   size_t len)
{
	DIR *dir = opendir(SPW_VFIO_FILE(system, controller->address, "iommu_group/devices"));
	struct dirent *entry;
	char driver[32];
	size_t used = 0;

	names[0] = '\0';
	if (!dir)
		return spw_error_errno(-errno, "%s: its IOMMU group %d cannot be read",
				       controller->address, controller->iommu_group);
	while ((entry = readdir(dir)) != NULL) {
		if (entry->d_name[0] == '.' || strcmp(entry->d_name, controller->address) == 0)
			continue;
		if (spw_read_number(SPW_VFIO_FILE(system, entry->d_name, "class"), 0) >> 8 ==
		    CLASS_BRIDGE)
			continue;
		(void)spw_vfio__read_link(system, entry->d_name, "driver", driver, sizeof(driver));
		if (!bound && strcmp(driver, spw_vfio__driver) == 0)
			continue;
		if (used < len)
			used += (size_t)snprintf(names + used, len - used, used > 0 ? ", %s" : "%s",
						 entry->d_name);
	}
	(void)closedir(dir);
	return 0;
}

static void find_neighbours(const struct examination *e)
{
	char names[128];
	int rc = list_neighbours(e->system, e->controller, false, names, sizeof(names));

	if (rc)
		add_error(e, rc, true);
	else if (names[0])
		add(e, -EBUSY, true,
		    "shares IOMMU group %d with %s, which could be reached with it; use a slot "
		    "with a group of its own (one behind a port with ACS), or give those to "
		    "vfio-pci by other means first (driverctl set-override), if they are not "
		    "needed",
		    e->controller->iommu_group, names);
}

int spw_drives__vfio_verify_alone(const struct spw_vfio_system *system,
				  const struct spw_vfio_probe_info *controller)
{
	char names[128] = "";
	int rc = 0;

	/* Without an IOMMU group there is nothing to share; that is an obstacle of its own. */
	if (controller->iommu_group >= 0)
		rc = list_neighbours(system, controller, true, names, sizeof(names));
	if (rc || names[0] == '\0')
		return rc;
	return spw_error(
		-EBUSY,
		"%s: shares IOMMU group %d with %s, which come with the group; use "
		"a slot with a group of its own (one behind a port with ACS), or drive it as root",
		controller->address, controller->iommu_group, names);
}

static void find_isolation(const struct examination *e)
{
	char line[32];

	if (e->controller->iommu_group < 0)
		add(e, -EOPNOTSUPP, true,
		    "no IOMMU confines it; switch VT-d or AMD-Vi on in the firmware, and boot "
		    "with intel_iommu=on or amd_iommu=on");
	else if (spw_read_text(SPW_VFIO_FILE(e->system, e->controller->address, "iommu_group/name"),
			       line, sizeof(line)) &&
		 strcmp(line, "vfio-noiommu") == 0)
		add(e, -EOPNOTSUPP, true,
		    "is in no-IOMMU mode, in which a wrong address reaches any memory of the "
		    "machine; spillway does not use that: switch the IOMMU on (intel_iommu=on, "
		    "amd_iommu=on)");
	else
		find_neighbours(e);
}

static void find_modules(const struct examination *e)
{
	if (!is_loaded(e->system, "bus/pci/drivers", spw_vfio__driver))
		add(e, -ENOENT, false,
		    "the kernel's vfio-pci driver is not loaded; modprobe vfio-pci");
	if (!is_by_iommufd(e) && !is_loaded(e->system, "module", "vfio_iommu_type1"))
		add(e, -ENOENT, false,
		    "the kernel's vfio_iommu_type1 is not loaded; modprobe vfio_iommu_type1");
}

static uint64_t memlock_bytes(const struct spw_vfio_system *system)
{
	return system->memlock_bytes > 0 ? system->memlock_bytes : spw_memlock_bytes();
}

static void find_memlock(const struct examination *e)
{
	uint64_t bytes = memlock_bytes(e->system);

	if (bytes < MEMLOCK_BYTES_LEAST)
		add(e, -ENOMEM, false,
		    "this user may lock %s of memory%s, and a drive needs all that it reaches "
		    "locked: %s with the default staging memory; raise it (ulimit -l, "
		    "LimitMEMLOCK=, /etc/security/limits.conf)",
		    SPW_SIZE_TEXT(bytes), is_by_iommufd(e) ? " in all processes together" : "",
		    SPW_SIZE_TEXT(MEMLOCK_BYTES_LEAST));
}

static void find_driver(const struct examination *e)
{
	const struct spw_vfio_probe_info *c = e->controller;

	if (c->driver[0] && strcmp(c->driver, "nvme") != 0)
		add(e, -EBUSY, true, "is driven by %s; release it there first", c->driver);
	if (access(SPW_VFIO_FILE(e->system, c->address, "driver_override"), W_OK) != 0)
		add(e, -EACCES, true, "only root can bind it");
}

static void find_holder(const struct examination *e)
{
	const struct spw_vfio_probe_info *c = e->controller;
	const char *path = SPW_PATH("%s/vfio/%d", e->system->dev, c->iommu_group);
	char holder[64];

	if (!is_by_iommufd(e) && access(path, R_OK | W_OK) != 0)
		add(e, -EACCES, false,
		    "this user may not open %s; give it to the user (chown), or run as root", path);
	if (spw_drives__safety_controller_opener(e->system, c->address, holder, sizeof(holder)))
		add(e, -EBUSY, false, "%s drives it, and one process can; end that first", holder);
}

int spw_drives__vfio_find_obstacles(const struct spw_vfio_system *system,
				    struct spw_vfio_probe_info *controller)
{
	const struct examination e = {.system = system,
				      .controller = controller,
				      .bound = strcmp(controller->driver, spw_vfio__driver) == 0};

	find_way(&e);
	if (e.bound)
		find_holder(&e);
	else
		find_driver(&e);
	find_isolation(&e);
	add_error(&e, spw_drives__vfio_verify_only_path(system, controller->address), true);
	find_modules(&e);
	find_memlock(&e);
	for (uint32_t i = 0; i < controller->obstacles; i++)
		if (controller->obstacle[i].of_bind)
			return spw_error(controller->obstacle[i].error, "%s",
					 controller->obstacle[i].text);
	return 0;
}

/* ---- What its namespaces hold ---- */

int spw_drives__vfio_verify_shown(const struct spw_vfio_probe_info *controller)
{
	/* The kernel scans namespaces some time after it has bound the controller. */
	if (strcmp(controller->driver, "nvme") != 0 || controller->block_devices[0])
		return 0;
	return spw_error(-EAGAIN,
			 "%s: the kernel shows no namespace of it (yet), so it cannot be told what "
			 "it holds; wait until its block devices are there (udevadm settle)",
			 controller->address);
}

/* The checks of spw_vfio_bind(), without claiming. */
static int look_at_namespace(const char *node)
{
	struct spw_device *device = NULL;
	struct spw_contents contents;
	int rc = spw_drives__safety_in_use(node, NULL);

	if (rc == 0)
		rc = spw_drives__safety_open(node, true, false, NULL, &device);
	if (rc == 0)
		rc = spw_drives__contents_read(device, &contents);
	if (rc == 0 && contents.foreign)
		rc = spw_error(-EEXIST,
			       "%s: carries %s; binding with --force leaves that as it is, but out "
			       "of reach",
			       node, contents.text);
	if (rc == 0)
		rc = spw_drives__safety_unlocked(node);
	spw_device_close(device);
	return rc;
}

static int add_namespace(void *context, const char *node)
{
	add_error(context, look_at_namespace(node), true);
	return 0;
}

int spw_drives__vfio_examine_in(const struct spw_vfio_system *system, const char *address,
				struct spw_vfio_probe_info *controller)
{
	struct examination e = {.system = system, .controller = controller};
	int rc = spw_vfio__identify(system, address, controller);

	if (rc)
		return rc;
	e.bound = strcmp(controller->driver, spw_vfio__driver) == 0;
	(void)spw_drives__vfio_find_obstacles(system, controller);
	rc = spw_vfio__each_node(system, controller->address, add_namespace, &e);
	if (rc == 0)
		rc = spw_drives__vfio_verify_shown(controller);
	add_error(&e, rc, true);
	controller->bindable = !e.bound;
	controller->ready = e.bound && controller->obstacles == 0;
	for (uint32_t i = 0; i < controller->obstacles; i++)
		controller->bindable = controller->bindable && !controller->obstacle[i].of_bind;
	return 0;
}

int spw_vfio_examine(const char *address, struct spw_vfio_probe_info *controller)
{
	struct spw_vfio_probe_info own;
	int rc = spw_drives__vfio_examine_in(&spw_vfio__here, address, &own);

	if (rc == 0)
		spw_opts_merge(controller,
			       controller->size == 0 ? sizeof(*controller) : controller->size, &own,
			       sizeof(own));
	return rc;
}

/* ---- All of them ---- */

static bool is_controller(const char *address)
{
	return isxdigit((unsigned char)address[0]) &&
	       spw_read_number(SPW_VFIO_FILE(&spw_vfio__here, address, "class"), -1) ==
		       SPW_VFIO_CLASS_NVME;
}

int spw_vfio_list(char ***addresses)
{
	return spw_drives__list_devices("/sys/bus/pci/devices", is_controller, "", addresses);
}
