/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/iommufd.c - controllers by nodes of their own, and the address space that they share
 * in /dev/iommu
 *
 * What is mapped stays so without a device: the address space lasts until no function has it.
 */
#include "engine/vfio/iommufd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "engine/vfio/function.h"
#include "util/util.h"

#define IOMMU_NODE   "/dev/iommu"
#define DEVICE_NODES "/dev/vfio/devices"

/* spw_vfio_domains_lock is held. */
static struct spw_vfio_domain *current;

/* ---- Is it there? ---------------------------------------------------------------------------- */

static bool SPW_PRINTF(2, 3) unreachable(struct spw_vfio_function *f, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)vsnprintf(f->link.why_group, sizeof(f->link.why_group), format, args);
	va_end(args);
	return false;
}

/* "vfio0". A device without an IOMMU is named otherwise. */
static bool find_name(const char *address, char *name, size_t len)
{
	char folder[PATH_MAX];
	struct dirent *entry;
	bool found = false;
	DIR *dir;

	(void)snprintf(folder, sizeof(folder), SPW_VFIO_PCI_DEVICES "/%s/vfio-dev", address);
	dir = opendir(folder);
	while (dir && !found && (entry = readdir(dir)) != NULL)
		found = strncmp(entry->d_name, "vfio", 4) == 0 &&
			snprintf(name, len, "%s", entry->d_name) < (int)len;
	if (dir)
		(void)closedir(dir);
	return found;
}

/* A node that was left there, or put there, may be another device's. */
static bool is_node_of(int fd, const char *address, const char *name)
{
	char path[PATH_MAX], line[32], own[32];
	struct stat st;

	(void)snprintf(path, sizeof(path), SPW_VFIO_PCI_DEVICES "/%s/vfio-dev/%s/dev", address,
		       name);
	if (fstat(fd, &st) || !spw_read_line(path, line, sizeof(line)))
		return false;
	(void)snprintf(own, sizeof(own), "%u:%u", major(st.st_rdev), minor(st.st_rdev));
	return strcmp(line, own) == 0;
}

static bool open_node(struct spw_vfio_function *f)
{
	char name[32], path[64];

	if (!find_name(f->link.address, name, sizeof(name)))
		return unreachable(f, "the kernel shows no vfio device of it");
	(void)snprintf(path, sizeof(path), DEVICE_NODES "/%s", name);
	f->fd = open(path, O_RDWR | O_CLOEXEC);
	if (f->fd < 0)
		return unreachable(f, "%s cannot be opened: %s", path, spw_strerror(-errno));
	if (is_node_of(f->fd, f->link.address, name))
		return true;
	(void)close(f->fd);
	f->fd = -1;
	return unreachable(f, "%s is not the node of that device", path);
}

static int make_ioas(struct spw_vfio_domain *d)
{
	struct spw_iommufd_alloc alloc = {.size_bytes = sizeof(alloc)};
	int ret;

	d->fd = open(IOMMU_NODE, O_RDWR | O_CLOEXEC);
	if (d->fd < 0)
		return spw_error_errno(-errno, IOMMU_NODE " cannot be opened");
	if (ioctl(d->fd, SPW_IOMMUFD_ALLOC, &alloc) == 0) {
		d->ioas = alloc.ioas;
		return 0;
	}
	ret = spw_error_errno(-errno, IOMMU_NODE " gives no address space");
	(void)close(d->fd);
	return ret;
}

bool spw_vfio_iommufd_reaches(struct spw_vfio_function *f)
{
	int ret;

	if (!open_node(f))
		return false;
	(void)pthread_mutex_lock(&spw_vfio_domains_lock);
	ret = spw_vfio_domain_get(&spw_vfio_by_iommufd, &current, f);
	(void)pthread_mutex_unlock(&spw_vfio_domains_lock);
	if (ret == 0)
		return true;
	(void)close(f->fd);
	f->fd = -1;
	return unreachable(f, "%s", spw_last_error());
}

/* ---- The device ------------------------------------------------------------------------------ */

/* The kernel resets the function, which takes long: others may open and close theirs meanwhile. */
static int bind_device(const struct spw_vfio_function *f)
{
	struct spw_vfio_bind bind = {.size_bytes = sizeof(bind), .iommufd = f->domain->fd};
	int ret;

	if (ioctl(f->fd, SPW_VFIO_BIND, &bind) == 0)
		return 0;
	ret = -errno;
	if (ret == -EPERM)
		return spw_vfio_unsafe_interrupts(f, "iommufd");
	/* What another process has is invalid to the kernel, not busy; its group tells. */
	if (ret == -EBUSY || ret == -EINVAL)
		return spw_error(-EBUSY,
				 "pci:%s cannot be bound to " IOMMU_NODE
				 ", as when another process has it (see fuser " DEVICE_NODES
				 "/*), or other drivers have devices of its IOMMU group %u: %s",
				 f->link.address, f->group_number, spw_strerror(ret));
	return spw_error_errno(ret, "pci:%s cannot be bound to " IOMMU_NODE, f->link.address);
}

/* Each device that comes may take addresses away from all. */
static int ask_ranges(struct spw_vfio_domain *d)
{
	struct spw_iommufd_range ranges[SPW_VFIO_RANGES_MAX] = {{0}};
	struct spw_iommufd_ranges ask = {
		.size_bytes = sizeof(ask),
		.ioas = d->ioas,
		.count = SPW_VFIO_RANGES_MAX,
		.ranges = (uintptr_t)ranges,
	};

	/* More than there is room for are as good: the first are there. */
	if (ioctl(d->fd, SPW_IOMMUFD_RANGES, &ask) && errno != EMSGSIZE)
		return spw_error_errno(-errno, "vfio: the IOMMU does not tell its addresses");
	d->space.range_count = ask.count < SPW_VFIO_RANGES_MAX ? ask.count : SPW_VFIO_RANGES_MAX;
	for (unsigned i = 0; i < d->space.range_count; i++)
		d->space.ranges[i] =
			(struct spw_vfio_range){.first = ranges[i].first, .last = ranges[i].last};
	return 0;
}

/* The lock is held. */
static int attach_device(struct spw_vfio_function *f)
{
	struct spw_vfio_attach attach = {.size_bytes = sizeof(attach), .ioas = f->domain->ioas};
	const char *remedy = "";
	int ret;

	if (ioctl(f->fd, SPW_VFIO_ATTACH, &attach)) {
		ret = -errno;
		if (ret == -ENOMEM)
			remedy = spw_vfio_by_iommufd.more_memory;
		else if (ret == -EADDRINUSE)
			remedy = " (it cannot have addresses that others use already: open it "
				 "before them)";
		return spw_error_errno(ret,
				       "pci:%s cannot share the address space of this process%s",
				       f->link.address, remedy);
	}
	f->attached = true;
	f->domain->members++;
	return ask_ranges(f->domain);
}

static int open_by_iommufd(struct spw_vfio_function *f)
{
	int ret = bind_device(f);

	if (ret)
		return ret;
	(void)pthread_mutex_lock(&spw_vfio_domains_lock);
	ret = attach_device(f);
	(void)pthread_mutex_unlock(&spw_vfio_domains_lock);
	return ret;
}

static void leave_iommufd(struct spw_vfio_function *f)
{
	struct spw_vfio_detach detach = {.size_bytes = sizeof(detach)};

	/* A child of fork(2) may have kept a descriptor: not even then may it reach memory. */
	if (f->attached)
		(void)ioctl(f->fd, SPW_VFIO_DETACH, &detach);
	if (f->fd >= 0)
		(void)close(f->fd);
	f->fd = -1;
	(void)pthread_mutex_lock(&spw_vfio_domains_lock);
	f->domain->members -= f->attached;
	f->attached = false;
	(void)pthread_mutex_unlock(&spw_vfio_domains_lock);
}

/* ---- Mapping --------------------------------------------------------------------------------- */

static int ioas_map(struct spw_vfio_domain *d, const struct spw_vfio_mapping *m)
{
	struct spw_iommufd_map map = {
		.size_bytes = sizeof(map),
		.flags =
			SPW_IOMMUFD_MAP_FIXED | SPW_IOMMUFD_MAP_WRITABLE | SPW_IOMMUFD_MAP_READABLE,
		.ioas = d->ioas,
		.memory = (uintptr_t)m->memory,
		.len_bytes = m->len_bytes,
		.iova = m->iova,
	};

	return ioctl(d->fd, SPW_IOMMUFD_MAP, &map) ? -errno : 0;
}

static int ioas_unmap(struct spw_vfio_domain *d, const struct spw_vfio_mapping *m)
{
	struct spw_iommufd_unmap unmap = {.size_bytes = sizeof(unmap),
					  .ioas = d->ioas,
					  .iova = m->iova,
					  .len_bytes = m->len_bytes};

	return ioctl(d->fd, SPW_IOMMUFD_UNMAP, &unmap) ? -errno : 0;
}

const struct spw_vfio_way spw_vfio_by_iommufd = {
	.name = "iommufd",
	.more_memory = " (raise the limit of locked memory: ulimit -l, LimitMEMLOCK=; all "
		       "processes of this user share "
		       "it, and "
		       "so does memory that io_uring has registered)",
	.make = make_ioas,
	.open = open_by_iommufd,
	.leave = leave_iommufd,
	.map = ioas_map,
	.unmap = ioas_unmap,
};
