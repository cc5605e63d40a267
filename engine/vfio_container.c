/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio_container.c - controllers behind the kernel's vfio-pci: the container and its IOMMU, groups, devices
 *
 * A group is what the IOMMU can keep apart from the rest, mostly one device; it belongs to the one process that
 * opened it. The container holds the groups of this process. When its last group leaves, the kernel forgets what
 * was mapped, so the container is given up then and the next controller gets a new one.
 */
#include "engine/vfio_container.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/vfio_link.h"
#include "util/util.h"

#define PCI_DEVICES "/sys/bus/pci/devices"

/* Mass storage, non-volatile memory, NVM Express. */
#define CLASS_NVME 0x010802ul

/* So many pauses until another thread gets the core. */
#define RELAXES_PER_YIELD 16u

struct container {
	int fd;
	unsigned groups; /* attached */
	unsigned links;  /* that have it, also those that are cut */
	struct spw_vfio_space space;
};

struct group {
	struct group *next;
	int fd;
	unsigned number;
	unsigned links; /* that are not cut */
	struct container *container;
};

struct real_link {
	struct spw_vfio_link link; /* first */
	struct container *container;
	struct group *group; /* NULL: cut */
	int fd;              /* of the device */
};

/* Groups, containers, and what is mapped. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct container *current;
static struct group *groups;

/* ---- The container ---------------------------------------------------------------------------------------------------------- */

static int open_container(struct container **out)
{
	struct container *c;
	int version;

	c = calloc(1, sizeof(*c));
	if (!c)
		return spw_error(-ENOMEM, "vfio: no memory");
	c->fd = open("/dev/vfio/vfio", O_RDWR | O_CLOEXEC);
	if (c->fd < 0) {
		int ret = -errno;

		free(c);
		return spw_error_errno(ret, "/dev/vfio/vfio cannot be opened%s",
				       ret == -ENOENT || ret == -ENODEV ? " (modprobe vfio-pci)" : "");
	}
	version = ioctl(c->fd, VFIO_GET_API_VERSION);
	if (version != VFIO_API_VERSION || ioctl(c->fd, VFIO_CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU) != 1) {
		(void)close(c->fd);
		free(c);
		return spw_error(-EOPNOTSUPP,
				 "/dev/vfio/vfio has version %d and not the kind of IOMMU that is needed "
				 "(modprobe vfio_iommu_type1)",
				 version);
	}
	*out = c;
	return 0;
}

static void put_container(struct container *c)
{
	if (c->links > 0 || c->groups > 0)
		return;
	SPW_ASSERT(!c->space.mappings);
	if (current == c)
		current = NULL;
	(void)close(c->fd);
	free(c);
}

static void read_ranges(struct spw_vfio_space *space, const char *info, uint32_t len, uint32_t offset)
{
	while (offset != 0 && offset + sizeof(struct vfio_iommu_type1_info_cap_iova_range) <= len) {
		const struct vfio_iommu_type1_info_cap_iova_range *cap = (const void *)(info + offset);
		uint32_t room = (uint32_t)((len - offset - sizeof(*cap)) / sizeof(cap->iova_ranges[0]));

		if (cap->header.id == VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE) {
			for (uint32_t i = 0; i < cap->nr_iovas && i < room && i < SPW_VFIO_RANGES_MAX; i++)
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

/*
 * Which addresses the IOMMU takes, for all groups that are attached: each that comes may take some away. Without
 * being told, those that every machine has: below the window of interrupts.
 */
static int ask_ranges(struct container *c)
{
	union {
		struct vfio_iommu_type1_info info;
		char bytes[4096];
	} answer = {.info.argsz = sizeof(answer)};
	struct spw_vfio_space told = {0};

	if (ioctl(c->fd, VFIO_IOMMU_GET_INFO, &answer))
		return spw_error_errno(-errno, "vfio: the IOMMU does not tell its addresses");
	if (answer.info.flags & VFIO_IOMMU_INFO_CAPS && answer.info.argsz <= sizeof(answer))
		read_ranges(&told, answer.bytes, answer.info.argsz, answer.info.cap_offset);
	if (told.range_count == 0)
		told.ranges[told.range_count++] = (struct spw_vfio_range){.first = 0x10000, .last = 0xfedfffff};
	memcpy(c->space.ranges, told.ranges, sizeof(told.ranges));
	c->space.range_count = told.range_count;
	return 0;
}

static int set_iommu(struct container *c, const char *address)
{
	if (ioctl(c->fd, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU) == 0)
		return 0;
	if (errno == EPERM)
		return spw_error(
			-EPERM,
			"pci:%s: the IOMMU does not keep its interrupts apart (no interrupt remapping), which "
			"vfio takes only with vfio_iommu_type1.allow_unsafe_interrupts=1: any device could then "
			"raise any interrupt",
			address);
	return spw_error_errno(-errno, "pci:%s: its IOMMU cannot be used", address);
}

/* ---- Groups ----------------------------------------------------------------------------------------------------------------- */

/* The end of the link @name in the device's folder of sysfs: a driver, a group. */
static bool link_target(const char *address, const char *name, char *target, size_t len)
{
	char path[PATH_MAX], text[PATH_MAX];
	const char *slash;
	ssize_t n;

	(void)snprintf(path, sizeof(path), PCI_DEVICES "/%s/%s", address, name);
	n = readlink(path, text, sizeof(text) - 1);
	if (n < 0)
		return false;
	text[n] = '\0';
	slash = strrchr(text, '/');
	return snprintf(target, len, "%s", slash ? slash + 1 : text) < (int)len;
}

static bool sysfs_number(const char *address, const char *name, long *number)
{
	char path[PATH_MAX], line[64];

	(void)snprintf(path, sizeof(path), PCI_DEVICES "/%s/%s", address, name);
	if (!spw_read_line(path, line, sizeof(line)) || line[0] == '\0')
		return false;
	*number = strtol(line, NULL, 0);
	return true;
}

/*
 * What has to be so before vfio is asked at all, each with its remedy. Return: 0, and the group's number; a
 * negative errno.
 */
static int examine(const char *address, unsigned *number)
{
	char path[PATH_MAX], driver[64], group[64], *end;
	long class;

	(void)snprintf(path, sizeof(path), PCI_DEVICES "/%s", address);
	if (access(path, F_OK))
		return spw_error(-ENODEV, "pci:%s: there is no such PCI device (see lspci -D)", address);
	if (!sysfs_number(address, "class", &class) || (unsigned long)class != CLASS_NVME)
		return spw_error(-ENODEV, "pci:%s is not an NVMe controller", address);
	if (!link_target(address, "driver", driver, sizeof(driver)))
		return spw_error(-ENODEV, "pci:%s has no driver; spillway bind %s gives it to vfio-pci", address,
				 address);
	if (strcmp(driver, "vfio-pci") != 0)
		return spw_error(-ENODEV,
				 "pci:%s belongs to the kernel's driver %s; spillway bind %s takes it out of use there "
				 "and gives it to vfio-pci",
				 address, driver, address);
	if (!link_target(address, "iommu_group", group, sizeof(group)))
		return spw_error(-EOPNOTSUPP,
				 "pci:%s has no IOMMU: switch it on in the firmware and on the kernel's command line "
				 "(intel_iommu=on)",
				 address);
	*number = (unsigned)strtoul(group, &end, 10);
	if (end == group || *end != '\0')
		return spw_error(-EOPNOTSUPP, "pci:%s is in no IOMMU group that vfio knows (%s)", address, group);
	return 0;
}

static int open_group_fd(const char *address, unsigned number, int *fd)
{
	struct vfio_group_status status = {.argsz = sizeof(status)};
	char path[64];
	int ret;

	(void)snprintf(path, sizeof(path), "/dev/vfio/%u", number);
	*fd = open(path, O_RDWR | O_CLOEXEC);
	if (*fd < 0) {
		ret = -errno;
		if (ret == -EBUSY)
			return spw_error(ret, "pci:%s is in use by another process (see fuser %s)", address, path);
		if (ret == -ENOENT && access("/dev/vfio/noiommu-0", F_OK) == 0)
			return spw_error(-EOPNOTSUPP, "pci:%s has no IOMMU, and is not driven without one", address);
		return spw_error_errno(ret, "pci:%s: %s cannot be opened", address, path);
	}
	if (ioctl(*fd, VFIO_GROUP_GET_STATUS, &status))
		ret = spw_error_errno(-errno, "pci:%s: %s does not tell its state", address, path);
	else if (!(status.flags & VFIO_GROUP_FLAGS_VIABLE))
		ret = spw_error(-EBUSY,
				"pci:%s shares its IOMMU group %u with devices that other drivers have (see "
				"/sys/kernel/iommu_groups/%u/devices): bind all of them to vfio-pci, or put the drive "
				"into another slot",
				address, number, number);
	else
		return 0;
	(void)close(*fd);
	return ret;
}

static int attach_group(struct group *g, const char *address)
{
	int ret;

	if (!current) {
		ret = open_container(&current);
		if (ret)
			return ret;
	}
	g->container = current;
	if (ioctl(g->fd, VFIO_GROUP_SET_CONTAINER, &current->fd)) {
		ret = spw_error_errno(-errno, "pci:%s: its IOMMU group %u cannot be used", address, g->number);
		put_container(current);
		return ret;
	}
	ret = current->groups++ == 0 ? set_iommu(current, address) : 0;
	if (ret == 0)
		ret = ask_ranges(current);
	if (ret) {
		(void)ioctl(g->fd, VFIO_GROUP_UNSET_CONTAINER);
		current->groups--;
		put_container(current);
	}
	return ret;
}

/* The lock is held. */
static int get_group(const char *address, unsigned number, struct group **out)
{
	struct group *g;
	int ret;

	for (g = groups; g; g = g->next) {
		if (g->number != number)
			continue;
		g->links++;
		*out = g;
		return 0;
	}
	g = calloc(1, sizeof(*g));
	if (!g)
		return spw_error(-ENOMEM, "vfio: no memory");
	g->number = number;
	g->links = 1;
	ret = open_group_fd(address, number, &g->fd);
	if (ret)
		goto fail;
	ret = attach_group(g, address);
	if (ret) {
		(void)close(g->fd);
		goto fail;
	}
	g->next = groups;
	groups = g;
	*out = g;
	return 0;
fail:
	free(g);
	return ret;
}

/* The lock is held. */
static void put_group(struct group *g)
{
	struct container *c = g->container;

	if (--g->links > 0)
		return;
	for (struct group **at = &groups; *at; at = &(*at)->next) {
		if (*at != g)
			continue;
		*at = g->next;
		break;
	}
	/*
	 * Without its device's descriptor the group leaves the container, and with it the IOMMU lets nothing of it
	 * through.
	 */
	(void)ioctl(g->fd, VFIO_GROUP_UNSET_CONTAINER);
	(void)close(g->fd);
	free(g);
	if (--c->groups == 0 && current == c)
		current = NULL;
	put_container(c);
}

/* ---- Mapping ---------------------------------------------------------------------------------------------------------------- */

static int map_new(struct container *c, const char *address, void *memory, uint64_t len_bytes, uint64_t *iova)
{
	struct vfio_iommu_type1_dma_map map = {
		.argsz = sizeof(map),
		.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
		.vaddr = (uintptr_t)memory,
		.size = len_bytes,
	};
	struct spw_vfio_mapping *m;

	if (!spw_vfio_space_find(&c->space, memory, len_bytes, iova))
		return spw_error(-ENOMEM, "pci:%s: the IOMMU has no addresses left for %llu bytes", address,
				 (unsigned long long)len_bytes);
	m = calloc(1, sizeof(*m));
	if (!m)
		return spw_error(-ENOMEM, "vfio: no memory");
	*m = (struct spw_vfio_mapping){.memory = memory, .len_bytes = len_bytes, .iova = *iova, .users = 1};
	map.iova = *iova;
	if (c->groups > 0 && ioctl(c->fd, VFIO_IOMMU_MAP_DMA, &map)) {
		int ret = -errno;

		free(m);
		return spw_error_errno(ret, "pci:%s: %llu bytes of memory cannot be mapped for it%s", address,
				       (unsigned long long)len_bytes,
				       ret == -ENOMEM ? " (raise the limit of locked memory: ulimit -l)" : "");
	}
	spw_vfio_space_insert(&c->space, m);
	return 0;
}

static int real_map(struct spw_vfio_link *link, void *memory, uint64_t len_bytes, uint64_t *iova)
{
	struct container *c = ((struct real_link *)link)->container;
	struct spw_vfio_mapping *m;
	int ret = 0;

	(void)pthread_mutex_lock(&lock);
	m = spw_vfio_space_mapping(&c->space, memory, len_bytes);
	if (m) {
		m->users++;
		*iova = m->iova;
	} else {
		ret = map_new(c, link->address, memory, len_bytes, iova);
	}
	(void)pthread_mutex_unlock(&lock);
	return ret;
}

static void real_unmap(struct spw_vfio_link *link, void *memory, uint64_t len_bytes)
{
	struct container *c = ((struct real_link *)link)->container;
	struct vfio_iommu_type1_dma_unmap unmap = {.argsz = sizeof(unmap)};
	struct spw_vfio_mapping *m;

	(void)pthread_mutex_lock(&lock);
	m = spw_vfio_space_mapping(&c->space, memory, len_bytes);
	SPW_ASSERT(m);
	if (--m->users == 0) {
		unmap.iova = m->iova;
		unmap.size = m->len_bytes;
		/*
		 * A container without groups has forgotten it by itself. Else, memory that stays mapped must not be
		 * given away.
		 */
		SPW_ASSERT(c->groups == 0 || ioctl(c->fd, VFIO_IOMMU_UNMAP_DMA, &unmap) == 0);
		spw_vfio_space_remove(&c->space, m);
		free(m);
	}
	(void)pthread_mutex_unlock(&lock);
}

/* ---- The device ------------------------------------------------------------------------------------------------------------- */

static void real_relax(struct spw_vfio_link *link)
{
	static _Thread_local unsigned relaxes;

	(void)link;
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
	if (++relaxes % RELAXES_PER_YIELD == 0)
		(void)sched_yield();
}

static bool real_is_wanted_back(struct spw_vfio_link *link)
{
	struct pollfd event = {.fd = link->wanted_back, .events = POLLIN};

	return event.fd >= 0 && poll(&event, 1, 0) == 1;
}

/* The kernel opens a device with both off. */
static int set_bus_master(struct real_link *r, bool on)
{
	struct vfio_region_info info = {.argsz = sizeof(info), .index = VFIO_PCI_CONFIG_REGION_INDEX};
	uint16_t command = 0;
	off_t at;

	if (ioctl(r->fd, VFIO_DEVICE_GET_REGION_INFO, &info))
		return spw_error_errno(-errno, "pci:%s does not tell where its configuration is", r->link.address);
	at = (off_t)info.offset + PCI_COMMAND;
	if (pread(r->fd, &command, sizeof(command), at) != sizeof(command))
		return spw_error(-EIO, "pci:%s: its configuration cannot be read", r->link.address);
	command |= PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER;
	if (!on)
		command &= (uint16_t)~PCI_COMMAND_MASTER;
	if (pwrite(r->fd, &command, sizeof(command), at) != sizeof(command))
		return spw_error(-EIO, "pci:%s: its configuration cannot be written", r->link.address);
	return 0;
}

static int real_let_transfer(struct spw_vfio_link *link)
{
	return set_bus_master((struct real_link *)link, true);
}

static void real_cut(struct spw_vfio_link *link)
{
	struct real_link *r = (struct real_link *)link;
	void *registers = (void *)(uintptr_t)link->registers;

	if (!r->group)
		return;
	/* For a descriptor that a child of fork(2) has kept; one that is gone cannot be told, and needs not. */
	(void)set_bus_master(r, false);
	/*
	 * The mapping holds the device open; other threads may be about to ring a doorbell. So memory takes its
	 * place in one step.
	 */
	SPW_ASSERT(mmap(registers, link->registers_bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == registers);
	/* The last descriptor: the kernel clears bus master and resets the function, which takes long. */
	(void)close(r->fd);
	r->fd = -1;
	(void)pthread_mutex_lock(&lock);
	put_group(r->group);
	r->group = NULL;
	(void)pthread_mutex_unlock(&lock);
}

static void real_close(struct spw_vfio_link *link)
{
	struct real_link *r = (struct real_link *)link;

	if (link->registers)
		real_cut(link);
	(void)pthread_mutex_lock(&lock);
	if (r->fd >= 0)
		(void)close(r->fd);
	if (r->group)
		put_group(r->group);
	if (r->container) {
		r->container->links--;
		put_container(r->container);
	}
	(void)pthread_mutex_unlock(&lock);
	if (link->registers)
		(void)munmap((void *)(uintptr_t)link->registers, link->registers_bytes);
	if (link->wanted_back >= 0)
		(void)close(link->wanted_back);
	free(r);
}

static const struct spw_vfio_link_ops real_ops = {
	.map = real_map,
	.unmap = real_unmap,
	.relax = real_relax,
	.is_wanted_back = real_is_wanted_back,
	.let_transfer = real_let_transfer,
	.cut = real_cut,
	.close = real_close,
};

static int map_registers(struct real_link *r)
{
	struct vfio_region_info info = {.argsz = sizeof(info), .index = VFIO_PCI_BAR0_REGION_INDEX};
	const char *address = r->link.address;
	void *registers;

	if (ioctl(r->fd, VFIO_DEVICE_GET_REGION_INFO, &info))
		return spw_error_errno(-errno, "pci:%s does not tell where its registers are", address);
	if (!(info.flags & VFIO_REGION_INFO_FLAG_MMAP) || info.size < 0x2000)
		return spw_error(-EOPNOTSUPP, "pci:%s: its registers (%llu bytes) cannot be mapped", address,
				 (unsigned long long)info.size);
	registers = mmap(NULL, info.size, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, (off_t)info.offset);
	if (registers == MAP_FAILED)
		return spw_error_errno(-errno, "pci:%s: its registers cannot be mapped", address);
	/* A child of fork(2) must not ring doorbells, nor keep the device open. */
	(void)madvise(registers, info.size, MADV_DONTFORK);
	r->link.registers = registers;
	r->link.registers_bytes = info.size;
	return 0;
}

/* A kernel without this message lets a removal wait until the device is closed. */
static void ask_to_be_told(struct real_link *r)
{
	char bytes[sizeof(struct vfio_irq_set) + sizeof(int32_t)] __attribute__((aligned(8))) = {0};
	struct vfio_irq_set *set = (void *)bytes;
	int32_t fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	if (fd < 0)
		return;
	set->argsz = sizeof(bytes);
	set->flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
	set->index = VFIO_PCI_REQ_IRQ_INDEX;
	set->count = 1;
	memcpy(set->data, &fd, sizeof(fd));
	if (ioctl(r->fd, VFIO_DEVICE_SET_IRQS, set) == 0)
		r->link.wanted_back = fd;
	else
		(void)close(fd);
}

/* The lock is held. */
static int join_group(struct real_link *r)
{
	const char *address = r->link.address;
	unsigned number;
	int ret = examine(address, &number);

	if (ret == 0)
		ret = get_group(address, number, &r->group);
	if (ret)
		return ret;
	r->container = r->group->container;
	r->container->links++;
	return 0;
}

static int open_device(struct real_link *r)
{
	int ret;

	(void)pthread_mutex_lock(&lock);
	ret = join_group(r);
	(void)pthread_mutex_unlock(&lock);
	if (ret)
		return ret;
	/* The kernel resets the function, which takes long: others may open and close theirs meanwhile. */
	r->fd = ioctl(r->group->fd, VFIO_GROUP_GET_DEVICE_FD, r->link.address);
	return r->fd < 0 ? spw_error_errno(-errno, "pci:%s cannot be opened", r->link.address) : 0;
}

int spw_vfio_link_open(const char *address, struct spw_vfio_link **link)
{
	struct real_link *r = calloc(1, sizeof(*r));
	long node;
	int ret;

	if (!r)
		return spw_error(-ENOMEM, "vfio: no memory");
	r->link.ops = &real_ops;
	r->fd = -1;
	r->link.wanted_back = -1;
	(void)snprintf(r->link.address, sizeof(r->link.address), "%s", address);
	r->link.numa_node = sysfs_number(address, "numa_node", &node) && node >= 0 && node <= INT_MAX ? (int)node : -1;
	ret = open_device(r);
	if (ret == 0)
		ret = map_registers(r);
	/* Registers answer from now on. What the controller was at when it was left, it cannot go on with. */
	if (ret == 0)
		ret = set_bus_master(r, false);
	if (ret) {
		real_close(&r->link);
		return ret;
	}
	ask_to_be_told(r);
	*link = &r->link;
	return 0;
}

/* ---- Memory ----------------------------------------------------------------------------------------------------------------- */

int spw_vfio_memory_alloc(struct spw_vfio_link *link, uint64_t len_bytes, struct spw_vfio_memory *memory)
{
	void *base;
	int ret;

	*memory = (struct spw_vfio_memory){0};
	len_bytes = spw_round_up(len_bytes, (uint64_t)sysconf(_SC_PAGESIZE));
	base = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED)
		return spw_error_errno(-errno, "pci:%s: no memory for its queues", link->address);
	/* Else a child of fork(2) would make the parent copy pages that the controller writes to. */
	(void)madvise(base, len_bytes, MADV_DONTFORK);
	ret = link->ops->map(link, base, len_bytes, &memory->iova);
	if (ret) {
		(void)munmap(base, len_bytes);
		return ret;
	}
	memory->base = base;
	memory->len_bytes = len_bytes;
	return 0;
}

void spw_vfio_memory_free(struct spw_vfio_link *link, struct spw_vfio_memory *memory)
{
	if (!memory->base)
		return;
	link->ops->unmap(link, memory->base, memory->len_bytes);
	(void)munmap(memory->base, memory->len_bytes);
	memory->base = NULL;
}
