/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/container.c - vfio by IOMMU groups: group nodes, and the container with the address
 * space
 *
 * When the last group leaves its container, the kernel drops all mappings: the container is then
 * discarded, and the next controller gets a new one.
 */
#include "engine/vfio/function.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/vfio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "util/util.h"

struct spw_vfio_group {
	struct spw_vfio_group *next;
	int fd;
	unsigned number;
	unsigned links; /* links that are not cut off */
	struct spw_vfio_domain *container;
};

/* Protected by spw_vfio__domains_lock. */
static struct spw_vfio_domain *current;
static struct spw_vfio_group *groups;

static int make_container(struct spw_vfio_domain *d)
{
	int version;

	d->fd = open("/dev/vfio/vfio", O_RDWR | O_CLOEXEC);
	if (d->fd < 0)
		return spw_error_errno(-errno, "/dev/vfio/vfio cannot be opened%s",
				       errno == ENOENT || errno == ENODEV ? " (modprobe vfio-pci)"
									  : "");
	version = ioctl(d->fd, VFIO_GET_API_VERSION);
	if (version != VFIO_API_VERSION ||
	    ioctl(d->fd, VFIO_CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU) != 1)
		return spw_error(-EOPNOTSUPP,
				 "/dev/vfio/vfio has version %d and not the kind of IOMMU that is "
				 "needed (modprobe vfio_iommu_type1)",
				 version);
	return 0;
}

static void read_ranges(struct spw_vfio_space *space, const char *info, uint32_t len,
			uint32_t offset)
{
	while (offset != 0 && offset + sizeof(struct vfio_iommu_type1_info_cap_iova_range) <= len) {
		const struct vfio_iommu_type1_info_cap_iova_range *cap =
			(const void *)(info + offset);
		uint32_t room =
			(uint32_t)((len - offset - sizeof(*cap)) / sizeof(cap->iova_ranges[0]));

		if (cap->header.id == VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE) {
			for (uint32_t i = 0;
			     i < cap->nr_iovas && i < room && i < SPW_VFIO_RANGES_MAX; i++)
				space->ranges[space->range_count++] = (struct spw_vfio_range){
					.first = cap->iova_ranges[i].start,
					.last = cap->iova_ranges[i].end,
				};
			return;
		}
		if (cap->header.next <= offset)
			return;
		offset = cap->header.next;
	}
}

/* Read the address ranges that all attached groups support; if unknown, all below the MSI range. */
static int ask_ranges(struct spw_vfio_domain *d)
{
	union {
		struct vfio_iommu_type1_info info;
		char bytes[4096];
	} answer = {.info.argsz = sizeof(answer)};

	if (ioctl(d->fd, VFIO_IOMMU_GET_INFO, &answer))
		return spw_error_errno(-errno, "vfio: the IOMMU does not tell its addresses");
	d->space.range_count = 0;
	if (answer.info.flags & VFIO_IOMMU_INFO_CAPS && answer.info.argsz <= sizeof(answer))
		read_ranges(&d->space, answer.bytes, answer.info.argsz, answer.info.cap_offset);
	if (d->space.range_count == 0)
		d->space.ranges[d->space.range_count++] =
			(struct spw_vfio_range){.first = 0x10000, .last = 0xfedfffff};
	return 0;
}

static int set_iommu(const struct spw_vfio_function *f)
{
	if (ioctl(f->domain->fd, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU) == 0)
		return 0;
	if (errno == EPERM)
		return spw_vfio__unsafe_interrupts(f, "vfio_iommu_type1");
	return spw_error_errno(-errno, "pci:%s: its IOMMU cannot be used", f->link.address);
}

/* Without groups the container has no mappings: the kernel has dropped them. */
static int container_map(struct spw_vfio_domain *d, const struct spw_vfio_mapping *m)
{
	struct vfio_iommu_type1_dma_map map = {
		.argsz = sizeof(map),
		.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
		.vaddr = (uintptr_t)m->memory,
		.iova = m->iova,
		.size = m->len_bytes,
	};

	return d->members > 0 && ioctl(d->fd, VFIO_IOMMU_MAP_DMA, &map) ? -errno : 0;
}

static int container_unmap(struct spw_vfio_domain *d, const struct spw_vfio_mapping *m)
{
	struct vfio_iommu_type1_dma_unmap unmap = {
		.argsz = sizeof(unmap), .iova = m->iova, .size = m->len_bytes};

	return d->members > 0 && ioctl(d->fd, VFIO_IOMMU_UNMAP_DMA, &unmap) ? -errno : 0;
}

static int open_group_node(struct spw_vfio_group *g, const char *address)
{
	struct vfio_group_status status = {.argsz = sizeof(status)};
	const char *path = SPW_PATH("/dev/vfio/%u", g->number);
	int ret;

	g->fd = open(path, O_RDWR | O_CLOEXEC);
	if (g->fd < 0) {
		ret = -errno;
		if (ret == -EBUSY)
			return spw_error(ret,
					 "pci:%s is in use by another process (see fuser %s "
					 "/dev/vfio/devices/*)",
					 address, path);
		if (ret == -ENOENT && access("/dev/vfio/noiommu-0", F_OK) == 0)
			return spw_error(-EOPNOTSUPP,
					 "pci:%s has no IOMMU, and is not driven without one",
					 address);
		return spw_error_errno(ret, "pci:%s: %s cannot be opened", address, path);
	}
	if (ioctl(g->fd, VFIO_GROUP_GET_STATUS, &status))
		return spw_error_errno(-errno, "pci:%s: %s does not tell its state", address, path);
	if (!(status.flags & VFIO_GROUP_FLAGS_VIABLE))
		return spw_error(-EBUSY,
				 "pci:%s shares its IOMMU group %u with devices that other drivers "
				 "have (see /sys/kernel/iommu_groups/%u/devices): bind all of them "
				 "to vfio-pci, or put the drive into another slot",
				 address, g->number, g->number);
	return 0;
}

static int attach_group(struct spw_vfio_group *g, struct spw_vfio_function *f)
{
	int ret = spw_vfio__domain_get(&spw_vfio__by_group, &current, f);

	if (ret)
		return ret;
	if (ioctl(g->fd, VFIO_GROUP_SET_CONTAINER, &f->domain->fd))
		return spw_error_errno(-errno, "pci:%s: its IOMMU group %u cannot be used",
				       f->link.address, g->number);
	g->container = f->domain;
	ret = g->container->members++ == 0 ? set_iommu(f) : 0;
	return ret ? ret : ask_ranges(g->container);
}

/* Open a group. After an error put_group() must be called too. */
static int open_group(struct spw_vfio_function *f)
{
	struct spw_vfio_group *g = calloc(1, sizeof(*g));
	int ret;

	if (!g)
		return spw_error(-ENOMEM, "vfio: no memory");
	*g = (struct spw_vfio_group){.next = groups, .number = f->group_number, .links = 1};
	groups = g;
	f->group = g;
	ret = open_group_node(g, f->link.address);
	return ret ? ret : attach_group(g, f);
}

/* Called with spw_vfio__domains_lock held. */
static int get_group(struct spw_vfio_function *f)
{
	for (struct spw_vfio_group *g = groups; g; g = g->next) {
		if (g->number != f->group_number)
			continue;
		g->links++;
		g->container->links++;
		f->group = g;
		f->domain = g->container;
		return 0;
	}
	return open_group(f);
}

/* Called with spw_vfio__domains_lock held. */
static void put_group(struct spw_vfio_function *f)
{
	struct spw_vfio_group *g = f->group, **at = &groups;

	f->group = NULL;
	if (!g || --g->links > 0)
		return;
	while (*at != g)
		at = &(*at)->next;
	*at = g->next;
	if (g->container) {
		/* Outside the container the device cannot access memory: the IOMMU blocks it. */
		(void)ioctl(g->fd, VFIO_GROUP_UNSET_CONTAINER);
		if (--g->container->members == 0 && current == g->container)
			current = NULL;
	}
	if (g->fd >= 0)
		(void)close(g->fd);
	free(g);
}

static int open_by_group(struct spw_vfio_function *f)
{
	int ret;

	(void)pthread_mutex_lock(&spw_vfio__domains_lock);
	ret = get_group(f);
	if (ret)
		put_group(f);
	(void)pthread_mutex_unlock(&spw_vfio__domains_lock);
	if (ret)
		return ret;
	/* Without the lock: the kernel resets the device, which takes long. */
	f->fd = ioctl(f->group->fd, VFIO_GROUP_GET_DEVICE_FD, f->link.address);
	return f->fd < 0 ? spw_error_errno(-errno, "pci:%s cannot be opened", f->link.address) : 0;
}

static void leave_group(struct spw_vfio_function *f)
{
	if (f->fd >= 0)
		(void)close(f->fd);
	f->fd = -1;
	(void)pthread_mutex_lock(&spw_vfio__domains_lock);
	put_group(f);
	(void)pthread_mutex_unlock(&spw_vfio__domains_lock);
}

const struct spw_vfio_way spw_vfio__by_group = {
	.name = "group",
	.more_memory = " (raise the limit of locked memory: ulimit -l, LimitMEMLOCK=)",
	.make = make_container,
	.open = open_by_group,
	.leave = leave_group,
	.map = container_map,
	.unmap = container_unmap,
};
