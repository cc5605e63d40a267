/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/iommufd.c - vfio by iommufd: the devices' own nodes, and their address space in
 * /dev/iommu
 *
 * Mappings persist without a device: the address space exists until no function uses it.
 */
#include "engine/vfio/iommufd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/vfio/function.h"
#include "engine/vfio/system.h"
#include "util/util.h"

#define IOMMU_NODE   "/dev/iommu"
#define DEVICE_NODES "/dev/vfio/devices"

/* Protected by spw_vfio__domains_lock. */
static struct spw_vfio_domain *current;

/* Is @fd really the device's node? A stale or planted node may belong to another device. */
static bool is_node_of(int fd, const char *address, const char *name)
{
	const char *file = SPW_PATH("/sys/bus/pci/devices/%s/vfio-dev/%s/dev", address, name);
	struct stat st;
	dev_t number;

	return fstat(fd, &st) == 0 && spw_read_device(file, &number) && number == st.st_rdev;
}

static int open_node(struct spw_vfio_function *f)
{
	char name[64];
	const char *path;

	if (!spw_vfio__find_name(&spw_vfio__here, f->link.address, name))
		return spw_error(-ENODEV, "the kernel shows no vfio device of it");
	path = SPW_PATH(DEVICE_NODES "/%s", name);
	f->fd = open(path, O_RDWR | O_CLOEXEC);
	if (f->fd < 0)
		return spw_error_errno(-errno, "%s cannot be opened", path);
	return is_node_of(f->fd, f->link.address, name)
		       ? 0
		       : spw_error(-ENODEV, "%s is not the node of that device", path);
}

static int make_ioas(struct spw_vfio_domain *d)
{
	struct spw_iommufd_alloc alloc = {.size_bytes = sizeof(alloc)};

	d->fd = open(IOMMU_NODE, O_RDWR | O_CLOEXEC);
	if (d->fd < 0)
		return spw_error_errno(-errno, IOMMU_NODE " cannot be opened");
	if (ioctl(d->fd, SPW_IOMMUFD_ALLOC, &alloc))
		return spw_error_errno(-errno, IOMMU_NODE " gives no address space");
	d->ioas = alloc.ioas;
	return 0;
}

/* Called without the lock: the kernel resets the function, which takes long. */
static int bind_device(const struct spw_vfio_function *f)
{
	struct spw_vfio_bind bind = {.size_bytes = sizeof(bind), .iommufd = f->domain->fd};
	int ret;

	if (ioctl(f->fd, SPW_VFIO_BIND, &bind) == 0)
		return 0;
	ret = -errno;
	if (ret == -EPERM)
		return spw_vfio__unsafe_interrupts(f, "iommufd");
	/* The kernel also returns EINVAL if another process has opened the device. */
	if (ret == -EBUSY || ret == -EINVAL)
		return spw_error(-EBUSY,
				 "pci:%s cannot be bound to " IOMMU_NODE
				 ", as when another process has it (see fuser " DEVICE_NODES
				 "/*), or other drivers have devices of its IOMMU group %u: %s",
				 f->link.address, f->group_number, spw_strerror(ret));
	return spw_error_errno(ret, "pci:%s cannot be bound to " IOMMU_NODE, f->link.address);
}

_Static_assert(sizeof(struct spw_vfio_range) == sizeof(struct spw_iommufd_range) &&
		       offsetof(struct spw_vfio_range, last) ==
			       offsetof(struct spw_iommufd_range, last),
	       "the kernel fills in what a space has");

/* Read the usable address ranges, which each further device may reduce. */
static int ask_ranges(struct spw_vfio_domain *d)
{
	struct spw_iommufd_ranges ask = {
		.size_bytes = sizeof(ask),
		.ioas = d->ioas,
		.count = SPW_VFIO_RANGES_MAX,
		.ranges = (uintptr_t)d->space.ranges,
	};

	/* EMSGSIZE: there are more ranges than fit; the first ones are enough. */
	if (ioctl(d->fd, SPW_IOMMUFD_RANGES, &ask) && errno != EMSGSIZE)
		return spw_error_errno(-errno, "vfio: the IOMMU does not tell its addresses");
	d->space.range_count = ask.count < SPW_VFIO_RANGES_MAX ? ask.count : SPW_VFIO_RANGES_MAX;
	return 0;
}

/* Called with spw_vfio__domains_lock held. */
static int attach_device(struct spw_vfio_function *f)
{
	struct spw_vfio_attach attach = {.size_bytes = sizeof(attach), .ioas = f->domain->ioas};
	const char *remedy = "";
	int ret;

	if (ioctl(f->fd, SPW_VFIO_ATTACH, &attach)) {
		ret = -errno;
		if (ret == -ENOMEM)
			remedy = spw_vfio__by_iommufd.more_memory;
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
	int ret = open_node(f);

	if (ret)
		return ret;
	(void)pthread_mutex_lock(&spw_vfio__domains_lock);
	ret = spw_vfio__domain_get(&spw_vfio__by_iommufd, &current, f);
	(void)pthread_mutex_unlock(&spw_vfio__domains_lock);
	if (ret == 0)
		ret = bind_device(f);
	if (ret)
		return ret;
	(void)pthread_mutex_lock(&spw_vfio__domains_lock);
	ret = attach_device(f);
	(void)pthread_mutex_unlock(&spw_vfio__domains_lock);
	return ret;
}

static void leave_iommufd(struct spw_vfio_function *f)
{
	struct spw_vfio_detach detach = {.size_bytes = sizeof(detach)};

	/* A child of fork(2) may keep a descriptor: detach, to prevent access to memory. */
	if (f->attached)
		(void)ioctl(f->fd, SPW_VFIO_DETACH, &detach);
	if (f->fd >= 0)
		(void)close(f->fd);
	f->fd = -1;
	(void)pthread_mutex_lock(&spw_vfio__domains_lock);
	if (f->attached)
		f->domain->members--;
	f->attached = false;
	(void)pthread_mutex_unlock(&spw_vfio__domains_lock);
}

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

const struct spw_vfio_way spw_vfio__by_iommufd = {
	.name = "iommufd",
	.more_memory =
		" (raise the limit of locked memory: ulimit -l, LimitMEMLOCK=; all processes of "
		"this user share it, and so does memory that io_uring has registered)",
	.make = make_ioas,
	.open = open_by_iommufd,
	.leave = leave_iommufd,
	.map = ioas_map,
	.unmap = ioas_unmap,
};
