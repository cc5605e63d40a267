/* SPDX-License-Identifier: MIT */
/*
 * drives/vfio/examine.c - what stands in the way of driving an NVMe controller from a process, each
 * with its remedy
 */
#include "drives/vfio/bind.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <spillway/format.h>

#include "drives/contents.h"
#include "drives/safety.h"
#include "util/util.h"

#define CLASS_BRIDGE 0x0604u

/* The arena that a store has by default, and what queues need. */
#define MEMLOCK_BYTES_LEAST (288ull << 20)

/* ---- Obstacles ---- */

static void SPW_PRINTF(4, 5) add(struct spw_vfio_probe_info *controller, int error, bool of_bind,
				 const char *format, ...)
{
	struct spw_vfio_obstacle *obstacle = &controller->obstacle[controller->obstacles];
	va_list args;

	if (controller->obstacles == SPW_VFIO_OBSTACLES_MAX)
		return;
	controller->obstacles++;
	obstacle->error = error;
	obstacle->of_bind = of_bind;
	va_start(args, format);
	(void)vsnprintf(obstacle->text, sizeof(obstacle->text), format, args);
	va_end(args);
}

/* ---- How it would be reached ---- */

static void SPW_PRINTF(2, 3)
	not_iommufd(struct spw_vfio_probe_info *controller, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)vsnprintf(controller->not_iommufd, sizeof(controller->not_iommufd), format, args);
	va_end(args);
}

static bool is_loaded(const struct spw_vfio_system *system, const char *what, const char *name)
{
	char path[PATH_MAX];

	return snprintf(path, sizeof(path), "%s/%s/%s", system->sysfs, what, name) <
		       (int)sizeof(path) &&
	       access(path, F_OK) == 0;
}

/* Does vfio make nodes of devices? It says so as soon as it is loaded. */
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

static void find_way(const struct spw_vfio_system *system, struct spw_vfio_probe_info *controller)
{
	bool bound = strcmp(controller->driver, spw_vfio_driver) == 0;
	char iommu[PATH_MAX];

	if (!bound && !is_loaded(system, "bus/pci/drivers", spw_vfio_driver))
		return;
	(void)snprintf(iommu, sizeof(iommu), "%s/iommu", system->dev);
	if (bound ? !controller->device_node[0] : !has_device_nodes(system))
		not_iommufd(controller, "the kernel makes no nodes of vfio devices "
					"(CONFIG_VFIO_DEVICE_CDEV, from 6.6 on)");
	else if (access(iommu, F_OK) != 0)
		not_iommufd(controller, "there is no %s; modprobe iommufd", iommu);
	else if (access(iommu, R_OK | W_OK) != 0)
		not_iommufd(controller,
			    "this user may not open %s; give the user a right to it (setfacl -m "
			    "u:NAME:rw, or a rule "
			    "of udev)",
			    iommu);
	else if (bound && access(controller->device_node, R_OK | W_OK) != 0)
		not_iommufd(controller, "this user may not open %s; give it to the user (chown)",
			    controller->device_node);
	(void)snprintf(controller->way, sizeof(controller->way),
		       controller->not_iommufd[0] ? "group" : "iommufd");
}

static bool is_by_iommufd(const struct spw_vfio_probe_info *controller)
{
	return strcmp(controller->way, "iommufd") == 0;
}

/* ---- What stands in the way ---- */

/*
 * The devices in the IOMMU group besides the controller. A bridge does nothing by itself, and vfio
 * takes none. @bound:
 * also those that vfio-pci has, which nobody else uses. Return: 0, and @names, "" if there is none;
 * a negative errno.
 */
static int list_neighbours(const struct spw_vfio_system *system,
			   const struct spw_vfio_probe_info *controller, bool bound, char *names,
			   size_t len)
{
	char folder[PATH_MAX], path[PATH_MAX], line[32], driver[32];
	struct dirent *entry;
	size_t used = 0;
	DIR *dir;

	names[0] = '\0';
	spw_vfio_folder(system, controller->address, "iommu_group/devices", folder);
	dir = opendir(folder);
	if (!dir)
		return spw_error_errno(-errno, "%s: its IOMMU group %d cannot be read",
				       controller->address, controller->iommu_group);
	while ((entry = readdir(dir)) != NULL) {
		if (entry->d_name[0] == '.' || strcmp(entry->d_name, controller->address) == 0)
			continue;
		spw_vfio_folder(system, entry->d_name, "class", path);
		if (spw_vfio_read_line(path, line, sizeof(line)) &&
		    strtoul(line, NULL, 16) >> 8 == CLASS_BRIDGE)
			continue;
		spw_vfio_read_driver(system, entry->d_name, driver, sizeof(driver));
		if (!bound && strcmp(driver, spw_vfio_driver) == 0)
			continue;
		if (used < len)
			used += (size_t)snprintf(names + used, len - used, used > 0 ? ", %s" : "%s",
						 entry->d_name);
	}
	(void)closedir(dir);
	return 0;
}

/* What others in the same IOMMU group could do to us, and we to them. */
static void find_neighbours(const struct spw_vfio_system *system,
			    struct spw_vfio_probe_info *controller)
{
	char names[128];
	int rc = list_neighbours(system, controller, false, names, sizeof(names));

	if (rc)
		add(controller, rc, true, "%s", spw_last_error());
	else if (names[0])
		add(controller, -EBUSY, true,
		    "%s: shares IOMMU group %d with %s, which could be reached with it; use a slot "
		    "with a group of its "
		    "own "
		    "(one behind a port with ACS), or give those to vfio-pci by other means first "
		    "(driverctl "
		    "set-override), if nobody needs them",
		    controller->address, controller->iommu_group, names);
}

int spw_vfio_verify_alone(const struct spw_vfio_system *system,
			  const struct spw_vfio_probe_info *controller)
{
	char names[128] = "";
	int rc = 0;

	/* Without a group there is none to share, which is another obstacle. */
	if (controller->iommu_group >= 0)
		rc = list_neighbours(system, controller, true, names, sizeof(names));
	if (rc || names[0] == '\0')
		return rc;
	return spw_error(-EBUSY,
			 "%s: shares IOMMU group %d with %s, which whoever is given the group gets "
			 "too; use a slot with a "
			 "group of its own (one behind a port with ACS), or drive it as root",
			 controller->address, controller->iommu_group, names);
}

static void find_isolation(const struct spw_vfio_system *system,
			   struct spw_vfio_probe_info *controller)
{
	char path[PATH_MAX], line[32];

	if (controller->iommu_group < 0) {
		add(controller, -EOPNOTSUPP, true,
		    "%s: no IOMMU confines it; switch VT-d or AMD-Vi on in the firmware, and boot "
		    "with intel_iommu=on "
		    "or "
		    "amd_iommu=on",
		    controller->address);
		return;
	}
	spw_vfio_folder(system, controller->address, "iommu_group/name", path);
	if (spw_vfio_read_line(path, line, sizeof(line)) && strcmp(line, "vfio-noiommu") == 0)
		add(controller, -EOPNOTSUPP, true,
		    "%s: is in no-IOMMU mode, in which a wrong address reaches any memory of the "
		    "machine; spillway "
		    "does not "
		    "use that: switch the IOMMU on (intel_iommu=on, amd_iommu=on)",
		    controller->address);
	else
		find_neighbours(system, controller);
}

static void find_module(const struct spw_vfio_system *system,
			struct spw_vfio_probe_info *controller)
{
	if (!is_loaded(system, "bus/pci/drivers", spw_vfio_driver))
		add(controller, -ENOENT, false,
		    "%s: the kernel's vfio-pci driver is not loaded; modprobe vfio-pci",
		    controller->address);
	if (!is_by_iommufd(controller) && !is_loaded(system, "module", "vfio_iommu_type1"))
		add(controller, -ENOENT, false,
		    "%s: the kernel's vfio_iommu_type1 is not loaded; modprobe vfio_iommu_type1",
		    controller->address);
}

static void find_memlock(const struct spw_vfio_system *system,
			 struct spw_vfio_probe_info *controller)
{
	char limit[32], least[32];

	if (system->memlock_bytes < MEMLOCK_BYTES_LEAST)
		add(controller, -ENOMEM, false,
		    "%s: this user may lock %s of memory%s, and a drive needs all that it reaches "
		    "locked: %s with the "
		    "default "
		    "staging memory; raise it (ulimit -l, LimitMEMLOCK=, "
		    "/etc/security/limits.conf)",
		    controller->address,
		    spw_size_format(system->memlock_bytes, limit, sizeof(limit)),
		    is_by_iommufd(controller) ? " in all processes together" : "",
		    spw_size_format(MEMLOCK_BYTES_LEAST, least, sizeof(least)));
}

static void find_driver(const struct spw_vfio_system *system,
			struct spw_vfio_probe_info *controller)
{
	char path[PATH_MAX], holder[64];
	bool bound = strcmp(controller->driver, spw_vfio_driver) == 0;

	if (!bound && controller->driver[0] && strcmp(controller->driver, "nvme") != 0)
		add(controller, -EBUSY, true, "%s: is driven by %s; release it there first",
		    controller->address, controller->driver);
	spw_vfio_folder(system, controller->address, "driver_override", path);
	if (!bound && access(path, W_OK) != 0)
		add(controller, -EACCES, true, "%s: only root can bind it", controller->address);
	if (!bound)
		return;
	if (!is_by_iommufd(controller) &&
	    snprintf(path, sizeof(path), "%s/vfio/%d", system->dev, controller->iommu_group) <
		    (int)sizeof(path) &&
	    access(path, R_OK | W_OK) != 0)
		add(controller, -EACCES, false,
		    "%s: this user may not open %s; give it to the user (chown), or run as root",
		    controller->address, path);
	if (spw_vfio_holder(system, controller->address, NULL, holder, sizeof(holder)))
		add(controller, -EBUSY, false,
		    "%s: %s drives it, and one process can; end that first", controller->address,
		    holder);
}

static void find_paths(const struct spw_vfio_system *system, struct spw_vfio_probe_info *controller)
{
	int rc = spw_vfio_verify_only_path(system, controller->address);

	if (rc)
		add(controller, rc, true, "%s", spw_last_error());
}

int spw_vfio_find_obstacles(const struct spw_vfio_system *system,
			    struct spw_vfio_probe_info *controller)
{
	find_way(system, controller);
	find_driver(system, controller);
	find_isolation(system, controller);
	find_paths(system, controller);
	find_module(system, controller);
	find_memlock(system, controller);
	for (uint32_t i = 0; i < controller->obstacles; i++)
		if (controller->obstacle[i].of_bind)
			return spw_error(controller->obstacle[i].error, "%s",
					 controller->obstacle[i].text);
	return 0;
}

/* ---- What its namespaces hold ---- */

int spw_vfio_verify_shown(const struct spw_vfio_probe_info *controller)
{
	/* The kernel looks for them some time after it has taken the controller. */
	if (strcmp(controller->driver, "nvme") != 0 || controller->block_devices[0])
		return 0;
	return spw_error(-EAGAIN,
			 "%s: the kernel shows no namespace of it (yet), so nobody can tell what "
			 "it holds; wait until its "
			 "block devices are there (udevadm settle)",
			 controller->address);
}

/* As spw_vfio_bind() asks, without claiming anything. */
static int look_at_namespace(const char *node)
{
	struct spw_device *device = NULL;
	struct spw_contents contents;
	int rc = spw_safety_in_use(node, NULL);

	if (rc == 0)
		rc = spw_safety_open(node, true, false, NULL, &device);
	if (rc == 0)
		rc = spw_contents_read(device, &contents);
	if (rc == 0 && contents.foreign)
		rc = spw_error(-EEXIST,
			       "%s: carries %s; binding with --force leaves that as it is, but out "
			       "of reach",
			       node, contents.text);
	if (rc == 0) {
		rc = spw_safety_locked(node, 0, SPW_LOCK_ALL_BYTES);
		if (rc > 0)
			rc = spw_error(-EBUSY,
				       "%s: a process has a store on it open, or writes to it; end "
				       "that first (see fuser %s)",
				       node, node);
	}
	if (rc == 0)
		rc = spw_safety_relatives_locked(node, NULL);
	spw_device_close(device);
	return rc;
}

static int add_namespace(void *context, const char *node)
{
	struct spw_vfio_probe_info *controller = context;
	int rc = look_at_namespace(node);

	if (rc)
		add(controller, rc, true, "%s", spw_last_error());
	return 0;
}

int spw_vfio_examine_in(const struct spw_vfio_system *system, const char *address,
			struct spw_vfio_probe_info *controller)
{
	bool bound;
	int rc = spw_vfio_identify(system, address, controller);

	if (rc)
		return rc;
	bound = strcmp(controller->driver, spw_vfio_driver) == 0;
	(void)spw_vfio_find_obstacles(system, controller);
	rc = spw_vfio_each_namespace(system, controller->address, add_namespace, controller);
	if (rc == 0)
		rc = spw_vfio_verify_shown(controller);
	if (rc)
		add(controller, rc, true, "%s", spw_last_error());
	controller->bindable = !bound;
	controller->ready = bound && controller->obstacles == 0;
	for (uint32_t i = 0; i < controller->obstacles; i++)
		controller->bindable = controller->bindable && !controller->obstacle[i].of_bind;
	return 0;
}

int spw_vfio_examine(const char *address, struct spw_vfio_probe_info *controller)
{
	struct spw_vfio_probe_info own;
	struct spw_vfio_system system;
	int rc;

	spw_vfio_system_init(&system);
	rc = spw_vfio_examine_in(&system, address, &own);
	if (rc == 0)
		spw_opts_merge(controller,
			       controller->size == 0 ? sizeof(*controller) : controller->size, &own,
			       sizeof(own));
	return rc;
}

/* ---- All of them ---- */

static int by_address(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool is_controller(const char *address)
{
	char path[PATH_MAX], line[32];

	return snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/class", address) <
		       (int)sizeof(path) &&
	       spw_vfio_read_line(path, line, sizeof(line)) && strcmp(line, "0x010802") == 0;
}

int spw_vfio_list(char ***addresses)
{
	char **found = calloc(1, sizeof(*found)), **larger;
	struct dirent *entry;
	size_t count = 0;
	int rc = found ? 0 : -ENOMEM;
	DIR *dir = opendir("/sys/bus/pci/devices");

	*addresses = NULL;
	while (rc == 0 && dir && (entry = readdir(dir)) != NULL) {
		if (!isxdigit((unsigned char)entry->d_name[0]) || !is_controller(entry->d_name))
			continue;
		larger = reallocarray(found, count + 2, sizeof(*found));
		if (larger) {
			found = larger;
			found[count] = strdup(entry->d_name);
			found[count + 1] = NULL;
		}
		rc = larger && found[count] ? 0 : -ENOMEM;
		count += rc == 0;
	}
	if (dir)
		(void)closedir(dir);
	if (rc) {
		spw_probe_list_free(found);
		return spw_error(rc, "no memory for the list of NVMe controllers");
	}
	qsort(found, count, sizeof(*found), by_address);
	*addresses = found;
	return (int)count;
}
