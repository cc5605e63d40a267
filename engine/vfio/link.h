/* SPDX-License-Identifier: MIT */
/* engine/vfio/link.h - struct spw_vfio_link: a controller's registers and DMA, or a test's */
#ifndef SPW_ENGINE_VFIO_LINK_H
#define SPW_ENGINE_VFIO_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/vfio/vfio.h"

struct spw_vfio_link;

/* Unsuccessful polls of a ring per pause: in a VM each pause may exit to the hypervisor. */
#define SPW_VFIO_LOOKS_PER_RELAX 16u

struct spw_vfio_link_ops {
	/*
	 * Map whole pages for the controller at *@iova. The same memory may be mapped several
	 * times, at the same address, and must be unmapped as often. Return: 0; -ENOMEM: or the
	 * limit of locked memory is reached; -errno.
	 */
	int (*map)(struct spw_vfio_link *link, void *memory, uint64_t len_bytes, uint64_t *iova);
	void (*unmap)(struct spw_vfio_link *link, void *memory, uint64_t len_bytes);

	/* Pause between two polls of something that the controller will write. */
	void (*relax)(struct spw_vfio_link *link);

	/* Does the kernel want the device back, because it is being removed or unbound? */
	bool (*is_wanted_back)(struct spw_vfio_link *link);

	/*
	 * Enable the controller's access to memory, only once it is known to be stopped: if a reset
	 * had failed, it might go on with transfers to memory that is used otherwise now. Return:
	 * 0; -errno.
	 */
	int (*let_transfer)(struct spw_vfio_link *link);

	/* Cut off from all memory; registers then read as zeroes in all threads. Called once. */
	void (*cut)(struct spw_vfio_link *link);

	/* Close the link, whose memory must not be in use any more. Cuts it off if needed. */
	void (*close)(struct spw_vfio_link *link);
};

struct spw_vfio_link {
	const struct spw_vfio_link_ops *ops;
	volatile void *registers; /* BAR 0 */
	uint64_t registers_bytes;
	int numa_node; /* -1: unknown */
	/* eventfd, readable once is_wanted_back() is true; -1: not supported by the kernel */
	int wanted_back;
	char address[SPW_VFIO_ADDRESS_BYTES];
	/* how the kernel gives access: "iommufd", "group"; NULL: simulated in memory */
	const char *way;
	char why_group[256]; /* why "group", not "iommufd" */
	/* time limit of a command, unless its queue has another */
	uint32_t timeout_ms;
	/* longest sleep of a queue without commands between checks of the controller */
	uint32_t idle_ms;
};

/* Open the controller at a PCI address, bound to vfio-pci. Return: as spw_vfio__device_open(). */
int spw_vfio__link_open(const char *address, struct spw_vfio_link **link);

struct spw_vfio_memory {
	char *base; /* NULL: not allocated */
	uint64_t len_bytes;
	uint64_t iova;
};

/* Allocate and map zeroed whole pages, not inherited by children of fork(2). */
int spw_vfio__memory_alloc(struct spw_vfio_link *link, uint64_t len_bytes,
			   struct spw_vfio_memory *memory);

/* Free memory, which the controller must not use any more. base may be NULL. */
void spw_vfio__memory_free(struct spw_vfio_link *link, struct spw_vfio_memory *memory);

static inline uint64_t spw_vfio__memory_iova(const struct spw_vfio_memory *memory, const void *at)
{
	return memory->iova + (uint64_t)((const char *)at - memory->base);
}

static inline uint32_t spw_vfio__get32(const struct spw_vfio_link *link, uint32_t offset)
{
	return *(const volatile uint32_t *)((const volatile char *)link->registers + offset);
}

static inline void spw_vfio__set32(struct spw_vfio_link *link, uint32_t offset, uint32_t value)
{
	*(volatile uint32_t *)((volatile char *)link->registers + offset) = value;
}

/* Two accesses: not every controller supports one of 8 bytes. */
static inline uint64_t spw_vfio__get64(const struct spw_vfio_link *link, uint32_t offset)
{
	uint64_t low = spw_vfio__get32(link, offset);

	return low | (uint64_t)spw_vfio__get32(link, offset + 4) << 32;
}

static inline void spw_vfio__set64(struct spw_vfio_link *link, uint32_t offset, uint64_t value)
{
	spw_vfio__set32(link, offset, (uint32_t)value);
	spw_vfio__set32(link, offset + 4, (uint32_t)(value >> 32));
}

/* Memory barrier; @kind: the accesses to order, for processors that reorder them. */
#if defined(__x86_64__) || defined(__i386__)
#define SPW_VFIO_BARRIER(kind) __asm__ volatile("" ::: "memory")
#elif defined(__aarch64__)
#define SPW_VFIO_BARRIER(kind) __asm__ volatile("dmb " kind ::: "memory")
#else
#define SPW_VFIO_BARRIER(kind) __sync_synchronize()
#endif

/* Order writes to memory that the controller reads before the write to its register. */
static inline void spw_vfio__publish(void)
{
	SPW_VFIO_BARRIER("oshst");
}

/* Order the read that shows a completion before reads of the data that was written earlier. */
static inline void spw_vfio__acquire(void)
{
	SPW_VFIO_BARRIER("oshld");
}

#endif
