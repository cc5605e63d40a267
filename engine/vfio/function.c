/* SPDX-License-Identifier: MIT */
/* engine/vfio/function.c - spw_vfio__link_open(): a PCI function behind vfio-pci */
#include "engine/vfio/function.h"

#include <errno.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/vfio/system.h"
#include "util/util.h"

/* The kernel's default of nvme_core.io_timeout. */
#define TIMEOUT_MS 30000u

#define IDLE_MS 1000u

/* Pause instructions before yielding the core to other threads. */
#define RELAXES_PER_YIELD 16u

/* ---- What sysfs says ------------------------------------------------------------------------- */

/* Check the preconditions of vfio. *number: the IOMMU group. Return: 0; -errno with the remedy. */
static int examine(const char *address, unsigned *number)
{
	char driver[64], group[64], *end;

	if (access(SPW_VFIO_FILE(&spw_vfio__here, address, ""), F_OK))
		return spw_error(-ENODEV, "pci:%s: there is no such PCI device (see lspci -D)",
				 address);
	if (spw_read_number(SPW_VFIO_FILE(&spw_vfio__here, address, "class"), -1) !=
	    SPW_VFIO_CLASS_NVME)
		return spw_error(-ENODEV, "pci:%s is not an NVMe controller", address);
	if (!spw_vfio__read_link(&spw_vfio__here, address, "driver", driver, sizeof(driver)))
		return spw_error(-ENODEV,
				 "pci:%s has no driver; spillway bind %s gives it to vfio-pci",
				 address, address);
	if (strcmp(driver, spw_vfio__driver) != 0)
		return spw_error(-ENODEV,
				 "pci:%s belongs to the kernel's driver %s; spillway bind %s takes "
				 "it out of use there and gives it to vfio-pci",
				 address, driver, address);
	if (!spw_vfio__read_link(&spw_vfio__here, address, "iommu_group", group, sizeof(group)))
		return spw_error(-EOPNOTSUPP,
				 "pci:%s has no IOMMU: switch it on in the firmware and on the "
				 "kernel's command line (intel_iommu=on)",
				 address);
	*number = (unsigned)strtoul(group, &end, 10);
	if (end == group || *end != '\0')
		return spw_error(-EOPNOTSUPP, "pci:%s is in no IOMMU group that vfio knows (%s)",
				 address, group);
	return 0;
}

/* ---- Mapping --------------------------------------------------------------------------------- */

static int map_new(struct spw_vfio_domain *d, const char *address, void *memory, uint64_t len_bytes,
		   uint64_t *iova)
{
	struct spw_vfio_mapping *m;
	int ret;

	if (!spw_vfio__space_find(&d->space, memory, len_bytes, iova))
		return spw_error(-ENOMEM, "pci:%s: the IOMMU has no addresses left for %llu bytes",
				 address, (unsigned long long)len_bytes);
	m = calloc(1, sizeof(*m));
	if (!m)
		return spw_error(-ENOMEM, "pci:%s: no memory", address);
	*m = (struct spw_vfio_mapping){
		.memory = memory, .len_bytes = len_bytes, .iova = *iova, .users = 1};
	ret = d->way->map(d, m);
	if (ret) {
		free(m);
		return spw_error_errno(
			ret, "pci:%s: %llu bytes of memory cannot be mapped for it%s", address,
			(unsigned long long)len_bytes, ret == -ENOMEM ? d->way->more_memory : "");
	}
	spw_vfio__space_insert(&d->space, m);
	return 0;
}

static int function_map(struct spw_vfio_link *link, void *memory, uint64_t len_bytes,
			uint64_t *iova)
{
	struct spw_vfio_domain *d = ((struct spw_vfio_function *)link)->domain;
	struct spw_vfio_mapping *m;
	int ret = 0;

	(void)pthread_mutex_lock(&spw_vfio__domains_lock);
	m = spw_vfio__space_mapping(&d->space, memory, len_bytes);
	if (m) {
		m->users++;
		*iova = m->iova;
	} else {
		ret = map_new(d, link->address, memory, len_bytes, iova);
	}
	(void)pthread_mutex_unlock(&spw_vfio__domains_lock);
	return ret;
}

static void function_unmap(struct spw_vfio_link *link, void *memory, uint64_t len_bytes)
{
	struct spw_vfio_domain *d = ((struct spw_vfio_function *)link)->domain;
	struct spw_vfio_mapping *m;

	(void)pthread_mutex_lock(&spw_vfio__domains_lock);
	m = spw_vfio__space_mapping(&d->space, memory, len_bytes);
	SPW_ASSERT(m);
	if (--m->users == 0) {
		/* Memory that stays mapped must not be freed. */
		SPW_MUST(d->way->unmap(d, m));
		spw_vfio__space_remove(&d->space, m);
		free(m);
	}
	(void)pthread_mutex_unlock(&spw_vfio__domains_lock);
}

/* ---- The device ------------------------------------------------------------------------------ */

static void function_relax(struct spw_vfio_link *link)
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

static bool function_is_wanted_back(struct spw_vfio_link *link)
{
	struct pollfd event = {.fd = link->wanted_back, .events = POLLIN};

	return event.fd >= 0 && poll(&event, 1, 0) == 1;
}

/* Enable access to the registers, and DMA by the device if @dma, else disable that. Both are off
 * after open. */
static int set_pci_command(struct spw_vfio_function *f, bool dma)
{
	struct vfio_region_info info = {.argsz = sizeof(info),
					.index = VFIO_PCI_CONFIG_REGION_INDEX};
	uint16_t command = 0;
	off_t at;

	if (ioctl(f->fd, VFIO_DEVICE_GET_REGION_INFO, &info))
		return spw_error_errno(-errno, "pci:%s does not tell where its configuration is",
				       f->link.address);
	at = (off_t)info.offset + PCI_COMMAND;
	if (pread(f->fd, &command, sizeof(command), at) != sizeof(command))
		return spw_error(-EIO, "pci:%s: its configuration cannot be read", f->link.address);
	command |= PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER;
	if (!dma)
		command &= (uint16_t)~PCI_COMMAND_MASTER;
	if (pwrite(f->fd, &command, sizeof(command), at) != sizeof(command))
		return spw_error(-EIO, "pci:%s: its configuration cannot be written",
				 f->link.address);
	return 0;
}

static int function_let_transfer(struct spw_vfio_link *link)
{
	return set_pci_command((struct spw_vfio_function *)link, true);
}

static void function_cut(struct spw_vfio_link *link)
{
	struct spw_vfio_function *f = (struct spw_vfio_function *)link;
	void *registers = (void *)(uintptr_t)link->registers, *memory;

	if (f->fd < 0)
		return;
	/* Needed if a forked child keeps the descriptor. Fails if the device is gone: ignored. */
	(void)set_pci_command(f, false);
	/* Threads may still ring doorbells: replace the mapping, which keeps the device open. */
	memory = mmap(registers, link->registers_bytes, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	SPW_ASSERT(memory == registers);
	/* Closes the last descriptor: the kernel resets the function, which takes long. */
	f->way->leave(f);
}

static void function_close(struct spw_vfio_link *link)
{
	struct spw_vfio_function *f = (struct spw_vfio_function *)link;

	if (link->registers)
		function_cut(link);
	else if (f->way)
		f->way->leave(f);
	spw_vfio__domain_put(f);
	if (link->registers)
		(void)munmap((void *)(uintptr_t)link->registers, link->registers_bytes);
	if (link->wanted_back >= 0)
		(void)close(link->wanted_back);
	free(f);
}

static const struct spw_vfio_link_ops function_ops = {
	.map = function_map,
	.unmap = function_unmap,
	.relax = function_relax,
	.is_wanted_back = function_is_wanted_back,
	.let_transfer = function_let_transfer,
	.cut = function_cut,
	.close = function_close,
};

static int map_registers(struct spw_vfio_function *f)
{
	struct vfio_region_info info = {.argsz = sizeof(info), .index = VFIO_PCI_BAR0_REGION_INDEX};
	const char *address = f->link.address;
	void *registers;

	if (ioctl(f->fd, VFIO_DEVICE_GET_REGION_INFO, &info))
		return spw_error_errno(-errno, "pci:%s does not tell where its registers are",
				       address);
	if (!(info.flags & VFIO_REGION_INFO_FLAG_MMAP) || info.size < 0x2000)
		return spw_error(-EOPNOTSUPP, "pci:%s: its registers (%llu bytes) cannot be mapped",
				 address, (unsigned long long)info.size);
	registers = mmap(NULL, info.size, PROT_READ | PROT_WRITE, MAP_SHARED, f->fd,
			 (off_t)info.offset);
	if (registers == MAP_FAILED)
		return spw_error_errno(-errno, "pci:%s: its registers cannot be mapped", address);
	/* A child of fork(2) must not ring doorbells or keep the device open. */
	(void)madvise(registers, info.size, MADV_DONTFORK);
	f->link.registers = registers;
	f->link.registers_bytes = info.size;
	return 0;
}

/* Get an eventfd for the kernel's requests to return the device; older kernels just wait for it. */
static void ask_to_be_told(struct spw_vfio_function *f)
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
	if (ioctl(f->fd, VFIO_DEVICE_SET_IRQS, set) == 0)
		f->link.wanted_back = fd;
	else
		(void)close(fd);
}

static int open_by(struct spw_vfio_function *f, const struct spw_vfio_way *way)
{
	f->way = way;
	f->link.way = way->name;
	return way->open(f);
}

/*
 * Try iommufd, then the group. If both fail, report iommufd's error if there is iommufd, except
 * that only the group's error tells which process uses the device.
 */
static int open_device(struct spw_vfio_function *f)
{
	int ret = examine(f->link.address, &f->group_number), error;
	bool has_iommufd;

	if (ret)
		return ret;
	error = open_by(f, &spw_vfio__by_iommufd);
	if (error == 0)
		return 0;
	(void)snprintf(f->link.why_group, sizeof(f->link.why_group), "%s", spw_last_error());
	has_iommufd = f->domain != NULL;
	f->way->leave(f);
	spw_vfio__domain_put(f);
	ret = open_by(f, &spw_vfio__by_group);
	if (ret == 0 || !has_iommufd || (ret == -EBUSY && error == -EBUSY))
		return ret;
	return spw_error(error, "%s", f->link.why_group);
}

int spw_vfio__link_open(const char *address, struct spw_vfio_link **link)
{
	struct spw_vfio_function *f = calloc(1, sizeof(*f));
	int ret;

	if (!f)
		return spw_error(-ENOMEM, "vfio: no memory");
	f->link.ops = &function_ops;
	f->fd = -1;
	f->link.wanted_back = -1;
	f->link.timeout_ms = TIMEOUT_MS;
	f->link.idle_ms = IDLE_MS;
	(void)snprintf(f->link.address, sizeof(f->link.address), "%s", address);
	f->link.numa_node =
		(int)spw_read_number(SPW_VFIO_FILE(&spw_vfio__here, address, "numa_node"), -1);
	ret = open_device(f);
	if (ret == 0)
		ret = map_registers(f);
	/* Enables the registers. Bus mastering stays off until the controller is reset. */
	if (ret == 0)
		ret = set_pci_command(f, false);
	if (ret) {
		function_close(&f->link);
		return ret;
	}
	ask_to_be_told(f);
	*link = &f->link;
	return 0;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

int spw_vfio__memory_alloc(struct spw_vfio_link *link, uint64_t len_bytes,
			   struct spw_vfio_memory *memory)
{
	void *base;
	int ret;

	*memory = (struct spw_vfio_memory){0};
	len_bytes = spw_round_up(len_bytes, (uint64_t)sysconf(_SC_PAGESIZE));
	base = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED)
		return spw_error_errno(-errno, "pci:%s: no memory for its queues", link->address);
	/* After fork(2) copy-on-write would move the parent's pages away from the controller. */
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

void spw_vfio__memory_free(struct spw_vfio_link *link, struct spw_vfio_memory *memory)
{
	if (!memory->base)
		return;
	link->ops->unmap(link, memory->base, memory->len_bytes);
	(void)munmap(memory->base, memory->len_bytes);
	memory->base = NULL;
}
