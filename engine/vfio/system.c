/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/system.c - NVMe controllers as sysfs shows them: driver, IOMMU group, namespaces, who
 * drives them
 */
#include "engine/vfio/system.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "engine/vfio/vfio.h"
#include "util/util.h"

#define CLASS_NVME 0x010802u

const char spw_vfio_driver[] = "vfio-pci";

/* ---- The system ---- */

static int write_attribute(void *context, const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t written;
	int rc = 0;

	(void)context;
	if (fd < 0)
		return -errno;
	written = write(fd, text, strlen(text));
	if (written != (ssize_t)strlen(text))
		rc = written < 0 ? -errno : -EIO;
	(void)close(fd);
	return rc;
}

/* Who may lock memory at will is not asked for the limit. */
static bool may_lock_all(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};

	return syscall(SYS_capget, &header, data) == 0 &&
	       (data[0].effective & 1u << CAP_IPC_LOCK) != 0;
}

void spw_vfio_system_init(struct spw_vfio_system *system)
{
	struct rlimit limit;

	*system = (struct spw_vfio_system){
		.sysfs = "/sys",
		.dev = "/dev",
		.char_devices = "/proc/devices",
		.write = write_attribute,
		.memlock_bytes = UINT64_MAX,
	};
	if (!may_lock_all() && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
	    limit.rlim_cur != RLIM_INFINITY)
		system->memlock_bytes = limit.rlim_cur;
}

/* ---- Files ---- */

void spw_vfio_folder(const struct spw_vfio_system *system, const char *address, const char *file,
		     char path[PATH_MAX])
{
	/* A path that does not fit leads nowhere, and is then found missing. */
	if (snprintf(path, PATH_MAX, "%s/bus/pci/devices/%s%s%s", system->sysfs, address,
		     file[0] ? "/" : "", file) >= PATH_MAX)
		path[0] = '\0';
}

bool spw_vfio_read_line(const char *path, char *line, size_t len)
{
	bool found = spw_read_line(path, line, len);

	/*
	 * What a drive says of itself is padded, and what it or a process calls itself may be any
	 * bytes.
	 */
	for (size_t end = strlen(line); end > 0 && line[end - 1] == ' '; end--)
		line[end - 1] = '\0';
	spw_make_printable(line);
	return found;
}

/* The last name in what a link says. */
static bool read_link_name(const char *path, char *name, size_t len)
{
	char target[PATH_MAX];
	ssize_t got = readlink(path, target, sizeof(target) - 1);
	const char *last;

	name[0] = '\0';
	if (got <= 0)
		return false;
	target[got] = '\0';
	last = strrchr(target, '/');
	(void)snprintf(name, len, "%s", last ? last + 1 : target);
	return true;
}

static int64_t read_number(const struct spw_vfio_system *system, const char *address,
			   const char *file, int64_t otherwise)
{
	char path[PATH_MAX], line[64], *end;
	int64_t value;

	spw_vfio_folder(system, address, file, path);
	if (!spw_vfio_read_line(path, line, sizeof(line)))
		return otherwise;
	value = strtoll(line, &end, 0);
	return end != line && *end == '\0' ? value : otherwise;
}

void spw_vfio_read_driver(const struct spw_vfio_system *system, const char *address, char *driver,
			  size_t len)
{
	char path[PATH_MAX];

	spw_vfio_folder(system, address, "driver", path);
	(void)read_link_name(path, driver, len);
}

/* ---- Namespaces ---- */

struct walk {
	const struct spw_vfio_system *system;
	struct spw_vfio_probe_info *controller;
	int (*visit)(void *context, const char *node);
	void *context;
};

bool spw_vfio_block_name(const char *entry, char *name, size_t len)
{
	unsigned instance, path, number;
	int end = 0;

	if (sscanf(entry, "nvme%un%u%n", &instance, &number, &end) == 2 && entry[end] == '\0')
		return snprintf(name, len, "nvme%un%u", instance, number) < (int)len;
	end = 0;
	if (sscanf(entry, "nvme%uc%un%u%n", &instance, &path, &number, &end) == 3 &&
	    entry[end] == '\0')
		return snprintf(name, len, "nvme%un%u", instance, number) < (int)len;
	return false;
}

/* In doubt nothing is taken: without its node nobody can tell whether a namespace is in use. */
static int verify_node(const struct spw_vfio_system *system, const char *node, const char *name)
{
	char path[PATH_MAX], line[32], own[32];
	struct stat st;

	if (stat(node, &st))
		return spw_error_errno(
			-errno, "%s, by which its use would be seen, cannot be examined", node);
	if (system->namespaces_are_files)
		return 0;
	(void)snprintf(own, sizeof(own), "%u:%u", major(st.st_rdev), minor(st.st_rdev));
	if (snprintf(path, sizeof(path), "%s/class/block/%s/dev", system->sysfs, name) <
		    (int)sizeof(path) &&
	    S_ISBLK(st.st_mode) && spw_vfio_read_line(path, line, sizeof(line)) &&
	    strcmp(line, own) == 0)
		return 0;
	return spw_error(-ESTALE, "%s is not the block device of that name; its use cannot be seen",
			 node);
}

static int visit_namespace(void *context, const char *folder, const char *entry)
{
	const struct walk *walk = context;
	char name[32], node[PATH_MAX];
	int rc;

	(void)folder;
	if (!spw_vfio_block_name(entry, name, sizeof(name)))
		return 0;
	if (snprintf(node, sizeof(node), "%s/%s", walk->system->dev, name) >= (int)sizeof(node))
		return spw_error(-ENAMETOOLONG, "%s: its path is too long", name);
	rc = verify_node(walk->system, node, name);
	return rc ? rc : walk->visit(walk->context, node);
}

static int visit_controller(void *context, const char *folder, const char *entry)
{
	char path[PATH_MAX];

	if (strncmp(entry, "nvme", 4) != 0 || !isdigit((unsigned char)entry[4]))
		return 0;
	if (snprintf(path, sizeof(path), "%s/%s", folder, entry) >= (int)sizeof(path))
		return spw_error(-ENAMETOOLONG, "%s: its path is too long", entry);
	return spw_each_name(path, visit_namespace, context);
}

int spw_vfio_each_namespace(const struct spw_vfio_system *system, const char *address,
			    int (*visit)(void *context, const char *node), void *context)
{
	struct walk walk = {.system = system, .visit = visit, .context = context};
	char folder[PATH_MAX];

	spw_vfio_folder(system, address, "nvme", folder);
	return spw_each_name(folder, visit_controller, &walk);
}

/* ---- Identity ---- */

static int read_names(void *context, const char *folder, const char *entry)
{
	struct spw_vfio_probe_info *controller = context;
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/%s/model", folder, entry) < (int)sizeof(path))
		(void)spw_vfio_read_line(path, controller->model, sizeof(controller->model));
	if (snprintf(path, sizeof(path), "%s/%s/serial", folder, entry) < (int)sizeof(path))
		(void)spw_vfio_read_line(path, controller->serial, sizeof(controller->serial));
	return 0;
}

static int add_block_device(void *context, const char *node)
{
	struct spw_vfio_probe_info *controller = context;
	size_t used = strlen(controller->block_devices);

	(void)snprintf(controller->block_devices + used, sizeof(controller->block_devices) - used,
		       used > 0 ? ", %s" : "%s", node);
	return 0;
}

static int normalise(const char *address, char normal[16])
{
	char text[64];
	struct spw_vfio_name name;
	int rc;

	if (snprintf(text, sizeof(text), "%s%s", spw_vfio_is_name(address) ? "" : SPW_VFIO_PREFIX,
		     address) >= (int)sizeof(text))
		rc = -EINVAL;
	else
		rc = spw_vfio_parse(text, &name);
	if (rc)
		return spw_error(-EINVAL,
				 "%.40s: is no PCI address, which looks like 0000:3d:00.0; "
				 "spillway probe lists them",
				 address);
	(void)snprintf(normal, 16, "%s", name.address);
	return 0;
}

/* Without an IOMMU it is named otherwise; without a number it has no node. */
static int take_vfio_name(void *context, const char *folder, const char *entry)
{
	char path[PATH_MAX];

	if (strncmp(entry, "vfio", 4) != 0 ||
	    snprintf(path, sizeof(path), "%s/%s/dev", folder, entry) >= (int)sizeof(path) ||
	    access(path, F_OK) != 0)
		return 0;
	(void)snprintf(context, 64, "%.63s", entry);
	return 1;
}

/* The node by which iommufd has the device, where the kernel has such. */
static void read_device_node(const struct spw_vfio_system *system, const char *address, char *node,
			     size_t len)
{
	char path[PATH_MAX], name[64];

	spw_vfio_folder(system, address, "vfio-dev", path);
	node[0] = '\0';
	if (spw_each_name(path, take_vfio_name, name) == 1 &&
	    snprintf(node, len, "%s/vfio/devices/%s", system->dev, name) >= (int)len)
		node[0] = '\0';
}

int spw_vfio_identify(const struct spw_vfio_system *system, const char *address,
		      struct spw_vfio_probe_info *controller)
{
	char path[PATH_MAX], group[32];
	int64_t class;
	int rc;

	*controller = (struct spw_vfio_probe_info){.size = sizeof(*controller), .iommu_group = -1};
	rc = normalise(address, controller->address);
	if (rc)
		return rc;
	class = read_number(system, controller->address, "class", -1);
	if (class < 0)
		return spw_error(-ENODEV,
				 "%s: there is no such PCI device; spillway probe lists the NVMe "
				 "controllers",
				 controller->address);
	if (class != CLASS_NVME)
		return spw_error(-EMEDIUMTYPE, "%s: is no NVMe controller (its PCI class is %06x)",
				 controller->address, (unsigned)class);
	spw_vfio_read_driver(system, controller->address, controller->driver,
			     sizeof(controller->driver));
	controller->numa_node = (int32_t)read_number(system, controller->address, "numa_node", -1);
	spw_vfio_folder(system, controller->address, "iommu_group", path);
	if (read_link_name(path, group, sizeof(group)))
		controller->iommu_group = (int32_t)strtol(group, NULL, 10);
	read_device_node(system, controller->address, controller->device_node,
			 sizeof(controller->device_node));
	spw_vfio_folder(system, controller->address, "nvme", path);
	(void)spw_each_name(path, read_names, controller);
	(void)spw_vfio_each_namespace(system, controller->address, add_block_device, controller);
	return 0;
}

/* ---- Who drives it ---- */

/* Does a process have one of the two nodes open? */
static bool process_has(const char *pid, const char *group_node, const char *device_node)
{
	char folder[64], link[PATH_MAX], target[PATH_MAX];
	struct dirent *entry;
	bool has = false;
	DIR *dir;

	(void)snprintf(folder, sizeof(folder), "/proc/%.20s/fd", pid);
	dir = opendir(folder);
	while (dir && !has && (entry = readdir(dir)) != NULL) {
		ssize_t len;

		if (snprintf(link, sizeof(link), "%s/%s", folder, entry->d_name) >=
		    (int)sizeof(link))
			continue;
		len = readlink(link, target, sizeof(target) - 1);
		target[len > 0 ? len : 0] = '\0';
		has = strcmp(target, group_node) == 0 ||
		      (device_node[0] && strcmp(target, device_node) == 0);
	}
	if (dir)
		(void)closedir(dir);
	return has;
}

bool spw_vfio_holder(const struct spw_vfio_system *system, const char *address, int *pid,
		     char *text, size_t len)
{
	char path[PATH_MAX], name[64] = "", group_node[PATH_MAX], device_node[PATH_MAX],
			     command[32];
	struct dirent *entry;
	bool found = false;
	DIR *proc;

	spw_vfio_folder(system, address, "iommu_group", path);
	if (!read_link_name(path, name, sizeof(name)) ||
	    snprintf(group_node, sizeof(group_node), "%s/vfio/%s", system->dev, name) >=
		    (int)sizeof(group_node))
		return false;
	read_device_node(system, address, device_node, sizeof(device_node));
	proc = opendir("/proc");
	while (proc && !found && (entry = readdir(proc)) != NULL) {
		if (!isdigit((unsigned char)entry->d_name[0]) ||
		    !process_has(entry->d_name, group_node, device_node))
			continue;
		found = true;
		(void)snprintf(path, sizeof(path), "/proc/%.20s/comm", entry->d_name);
		(void)spw_vfio_read_line(path, command, sizeof(command));
		(void)snprintf(text, len, "process %.20s (%s)", entry->d_name, command);
		if (pid)
			*pid = (int)strtol(entry->d_name, NULL, 10);
	}
	if (proc)
		(void)closedir(proc);
	return found;
}
