/* SPDX-License-Identifier: MIT */
/* engine/vfio/system.c - reads NVMe controllers in sysfs: driver, IOMMU group, namespaces */
#include "engine/vfio/system.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/vfio/vfio.h"
#include "util/util.h"

const char spw_vfio__driver[] = "vfio-pci";

static int write_attribute(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t written;
	int rc = 0;

	if (fd < 0)
		return -errno;
	written = write(fd, text, strlen(text));
	if (written != (ssize_t)strlen(text))
		rc = written < 0 ? -errno : -EIO;
	(void)close(fd);
	return rc;
}

const struct spw_vfio_system spw_vfio__here = {
	.sysfs = "/sys",
	.dev = "/dev",
	.char_devices = "/proc/devices",
	.write = write_attribute,
};

bool spw_vfio__read_link(const struct spw_vfio_system *system, const char *address,
			 const char *link, char *name, size_t len)
{
	char target[PATH_MAX];
	const char *last;
	ssize_t got = readlink(SPW_VFIO_FILE(system, address, link), target, sizeof(target) - 1);

	name[0] = '\0';
	if (got <= 0)
		return false;
	target[got] = '\0';
	last = strrchr(target, '/');
	(void)snprintf(name, len, "%s", last ? last + 1 : target);
	return true;
}

struct walk {
	const struct spw_vfio_system *system;
	bool by_node;
	int (*visit)(void *context, const char *name);
	void *context;
};

bool spw_vfio__block_name(const char *entry, char *name, size_t len)
{
	static const char *const forms[] = {"nvme%un%u%n", "nvme%uc%*un%u%n"};

	for (size_t i = 0; i < SPW_ARRAY_LEN(forms); i++) {
		unsigned instance, number;
		int end = 0;

		if (sscanf(entry, forms[i], &instance, &number, &end) == 2 && entry[end] == '\0')
			return snprintf(name, len, "nvme%un%u", instance, number) < (int)len;
	}
	return false;
}

/* Check a namespace's node. Without it we could not see whether the namespace is in use. */
static int verify_node(const struct spw_vfio_system *system, const char *node, const char *name)
{
	struct stat st;
	dev_t number;

	if (stat(node, &st))
		return spw_error_errno(
			-errno, "%s, by which its use would be seen, cannot be examined", node);
	if (system->namespaces_are_files)
		return 0;
	if (S_ISBLK(st.st_mode) &&
	    spw_read_device(SPW_PATH("%s/class/block/%s/dev", system->sysfs, name), &number) &&
	    number == st.st_rdev)
		return 0;
	return spw_error(-ESTALE, "%s is not the block device of that name; its use cannot be seen",
			 node);
}

static int visit_namespace(void *context, const char *folder, const char *entry)
{
	const struct walk *walk = context;
	const char *node;
	char name[32];
	int rc;

	(void)folder;
	if (!spw_vfio__block_name(entry, name, sizeof(name)))
		return 0;
	if (!walk->by_node)
		return walk->visit(walk->context, name);
	node = SPW_PATH("%s/%s", walk->system->dev, name);
	rc = verify_node(walk->system, node, name);
	return rc ? rc : walk->visit(walk->context, node);
}

static int visit_controller(void *context, const char *folder, const char *entry)
{
	if (strncmp(entry, "nvme", 4) != 0 || !isdigit((unsigned char)entry[4]))
		return 0;
	return spw_each_name(SPW_PATH("%s/%s", folder, entry), visit_namespace, context);
}

static int each_namespace(const char *address, struct walk walk)
{
	return spw_each_name(SPW_VFIO_FILE(walk.system, address, "nvme"), visit_controller, &walk);
}

int spw_vfio__each_node(const struct spw_vfio_system *system, const char *address,
			int (*visit)(void *context, const char *node), void *context)
{
	return each_namespace(address, (struct walk){system, true, visit, context});
}

int spw_vfio__each_name(const struct spw_vfio_system *system, const char *address,
			int (*visit)(void *context, const char *name), void *context)
{
	return each_namespace(address, (struct walk){system, false, visit, context});
}

static int read_names(void *context, const char *folder, const char *entry)
{
	struct spw_vfio_probe_info *controller = context;

	(void)spw_read_text(SPW_PATH("%s/%s/model", folder, entry), controller->model,
			    sizeof(controller->model));
	(void)spw_read_text(SPW_PATH("%s/%s/serial", folder, entry), controller->serial,
			    sizeof(controller->serial));
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

static int normalise(const char *address, char normal[SPW_VFIO_ADDRESS_BYTES])
{
	struct spw_vfio_name name;
	char text[64];

	/* If it does not fit, it is too long for an address. */
	(void)snprintf(text, sizeof(text), "%s%.56s",
		       spw_vfio__is_name(address) ? "" : SPW_VFIO_PREFIX, address);
	if (spw_vfio__parse(text, &name))
		return spw_error(-EINVAL,
				 "%.40s: is not a PCI address, which looks like 0000:3d:00.0; "
				 "spillway probe lists them",
				 address);
	(void)snprintf(normal, SPW_VFIO_ADDRESS_BYTES, "%s", name.address);
	return 0;
}

/* Accept only "vfioN" with a device number: without an IOMMU it has another name. */
static int take_vfio_name(void *context, const char *folder, const char *entry)
{
	if (strncmp(entry, "vfio", 4) != 0 ||
	    access(SPW_PATH("%s/%s/dev", folder, entry), F_OK) != 0)
		return 0;
	(void)snprintf(context, 64, "%.63s", entry);
	return 1;
}

bool spw_vfio__find_name(const struct spw_vfio_system *system, const char *address, char name[64])
{
	return spw_each_name(SPW_VFIO_FILE(system, address, "vfio-dev"), take_vfio_name, name) == 1;
}

int spw_vfio__identify(const struct spw_vfio_system *system, const char *address,
		       struct spw_vfio_probe_info *c)
{
	char text[64];
	int64_t class;
	int rc;

	*c = (struct spw_vfio_probe_info){.size = sizeof(*c), .iommu_group = -1};
	rc = normalise(address, c->address);
	if (rc)
		return rc;
	class = spw_read_number(SPW_VFIO_FILE(system, c->address, "class"), -1);
	if (class < 0)
		return spw_error(-ENODEV,
				 "%s: there is no such PCI device; spillway probe lists the NVMe "
				 "controllers",
				 c->address);
	if (class != SPW_VFIO_CLASS_NVME)
		return spw_error(-EMEDIUMTYPE,
				 "%s: is not an NVMe controller (its PCI class is %06x)",
				 c->address, (unsigned)class);
	(void)spw_vfio__read_link(system, c->address, "driver", c->driver, sizeof(c->driver));
	c->numa_node = (int32_t)spw_read_number(SPW_VFIO_FILE(system, c->address, "numa_node"), -1);
	if (spw_vfio__read_link(system, c->address, "iommu_group", text, sizeof(text)))
		c->iommu_group = (int32_t)strtol(text, NULL, 10);
	/* The device's node for iommufd, if the kernel has it. */
	if (spw_vfio__find_name(system, c->address, text) &&
	    snprintf(c->device_node, sizeof(c->device_node), "%s/vfio/devices/%s", system->dev,
		     text) >= (int)sizeof(c->device_node))
		c->device_node[0] = '\0';
	(void)spw_each_name(SPW_VFIO_FILE(system, c->address, "nvme"), read_names, c);
	(void)spw_vfio__each_node(system, c->address, add_block_device, c);
	return 0;
}
