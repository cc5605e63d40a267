/* SPDX-License-Identifier: MIT */
/* engine/vfio/link.h - a controller's registers and what it reaches; in tests one in memory */
#ifndef SPW_ENGINE_VFIO_LINK_H
#define SPW_ENGINE_VFIO_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/vfio/vfio.h"

struct spw_vfio_link;

/* Vain looks at a ring per pause: a pause exits to the hypervisor, which runs the drives. */
#define SPW_VFIO_LOOKS_PER_RELAX 16u

struct spw_vfio_link_ops {
	/*
	 * Let the controller reach whole pages from *@iova on, the same each time, until they are
	 * unmapped as often as mapped. Return: 0; -ENOMEM also: the limit of locked memory; -errno.
	 */
	int (*map)(struct spw_vfio_link *link, void *memory, uint64_t len_bytes, uint64_t *iova);
	void (*unmap)(struct spw_vfio_link *link, void *memory, uint64_t len_bytes);

	/* Between two looks at something that the controller is to do. */
	void (*relax)(struct spw_vfio_link *link);

	/* Whether the kernel wants the device back: it is being removed, or unbound. */
	bool (*is_wanted_back)(struct spw_vfio_link *link);

	/*
	 * Let the controller reach memory. Not before it is known to be stopped: one that no reset
	 * has reached would go on in memory that has other users now. Return: 0; -errno.
	 */
	int (*let_transfer)(struct spw_vfio_link *link);

	/* Cut off all memory; registers then read as zeroes. Other threads may use them. Once. */
	void (*cut)(struct spw_vfio_link *link);

	/* It and the memory mapped by it are not used any more. Cuts it off if that was not
	 * done. */
	void (*close)(struct spw_vfio_link *link);
};

struct spw_vfio_link {
	const struct spw_vfio_link_ops *ops;
	volatile void *registers; /* BAR 0 */
	uint64_t registers_bytes;
	int numa_node; /* -1: unknown */
	/* eventfd that is readable once is_wanted_back(); -1: the kernel has no such message */
	int wanted_back;
	char address[SPW_VFIO_ADDRESS_BYTES];
	/* "iommufd", "group": how the kernel lets it be reached; NULL: it is in memory */
	const char *way;
	char why_group[256]; /* and not by iommufd */
	/* how long a command may take, unless its queue says otherwise */
	uint32_t timeout_ms;
	/* a queue without commands sleeps no longer until it looks at the controller */
	uint32_t idle_ms;
};

/* Take the controller at a PCI address from vfio-pci. Return: as spw_vfio__device_open(). */
int spw_vfio__link_open(const char *address, struct spw_vfio_link **link);

struct spw_vfio_memory {
	char *base; /* NULL: none */
	uint64_t len_bytes;
	uint64_t iova;
};

/* Zeroed, whole pages, not shared with children of fork(2). */
int spw_vfio__memory_alloc(struct spw_vfio_link *link, uint64_t len_bytes,
			   struct spw_vfio_memory *memory);

/* The controller does not use it any more. Nothing happens when there is none. */
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

/* Two accesses: not every controller takes one of 8 bytes. */
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

/* @kind: between which accesses, where the processor itself does not keep their order. */
#if defined(__x86_64__) || defined(__i386__)
#define SPW_VFIO_BARRIER(kind) __asm__ volatile("" ::: "memory")
#elif defined(__aarch64__)
#define SPW_VFIO_BARRIER(kind) __asm__ volatile("dmb " kind ::: "memory")
#else
#define SPW_VFIO_BARRIER(kind) __sync_synchronize()
#endif

/* Orders memory that the controller reads before the register write that announces it. */
static inline void spw_vfio__publish(void)
{
	SPW_VFIO_BARRIER("oshst");
}

/* Orders the read that shows a write before the reads of what was written earlier. */
static inline void spw_vfio__acquire(void)
{
	SPW_VFIO_BARRIER("oshld");
}

#endif
