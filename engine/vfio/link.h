/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/link.h - how a controller is reached: its registers, and memory that it can reach
 *
 * function.c makes links to real controllers; the tests make one to a controller in memory. What a
 * controller does with it is vfio_controller.c.
 */
#ifndef SPW_ENGINE_VFIO_LINK_H
#define SPW_ENGINE_VFIO_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/vfio/vfio.h"

struct spw_vfio_link;

/*
 * So many looks at a ring in vain per pause: a look costs a read from the cache, but a pause takes
 * an emulated machine's core to its monitor, which has the drives to see to.
 */
#define SPW_VFIO_LOOKS_PER_RELAX 16u

struct spw_vfio_link_ops {
	/*
	 * Let the controller reach whole pages of memory, at the same distance from each other,
	 * from *@iova on. The same memory may be mapped several times and has one address then; it
	 * is reachable until all of them are unmapped. Return: 0; -ENOMEM also: the limit of locked
	 * memory; a negative errno.
	 */
	int (*map)(struct spw_vfio_link *link, void *memory, uint64_t len_bytes, uint64_t *iova);
	void (*unmap)(struct spw_vfio_link *link, void *memory, uint64_t len_bytes);

	/* Between two looks at something that the controller is to do. */
	void (*relax)(struct spw_vfio_link *link);

	/* Whether the kernel wants the device back: it is being removed, or unbound. */
	bool (*is_wanted_back)(struct spw_vfio_link *link);

	/*
	 * Let the controller transfer: until then it reaches no memory at all, mapped or not. Not
	 * before it is known to be stopped: one that was left in the middle of its work, and that
	 * no reset has reached, would go on with it, in memory that has other users now. Return: 0;
	 * a negative errno.
	 */
	int (*let_transfer)(struct spw_vfio_link *link);

	/*
	 * Cut the controller off: when this returns it can reach no memory any more. Registers read
	 * as zeroes from then on, and what is written to them is lost. May be called while other
	 * threads use the registers. Once.
	 */
	void (*cut)(struct spw_vfio_link *link);

	/* Nobody uses it, or memory mapped by it, any more. Cuts it off if that was not done. */
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
};

/*
 * Take the controller at a PCI address (as of struct spw_vfio_name) from vfio-pci. Return: as
 * spw_vfio_open().
 */
int spw_vfio_link_open(const char *address, struct spw_vfio_link **link);

/* ---- Memory for rings, lists and copies ---- */

struct spw_vfio_memory {
	char *base; /* NULL: none */
	uint64_t len_bytes;
	uint64_t iova;
};

/* Zeroed, whole pages, not shared with children of fork(2). */
int spw_vfio_memory_alloc(struct spw_vfio_link *link, uint64_t len_bytes,
			  struct spw_vfio_memory *memory);

/* The controller does not use it any more. Nothing happens when there is none. */
void spw_vfio_memory_free(struct spw_vfio_link *link, struct spw_vfio_memory *memory);

static inline uint64_t spw_vfio_memory_iova(const struct spw_vfio_memory *memory, const void *at)
{
	return memory->iova + (uint64_t)((const char *)at - memory->base);
}

/* ---- Registers ---- */

static inline uint32_t spw_vfio_get32(const struct spw_vfio_link *link, uint32_t offset)
{
	return *(const volatile uint32_t *)((const volatile char *)link->registers + offset);
}

static inline void spw_vfio_set32(struct spw_vfio_link *link, uint32_t offset, uint32_t value)
{
	*(volatile uint32_t *)((volatile char *)link->registers + offset) = value;
}

/* Two accesses: not every controller takes one of 8 bytes. */
static inline uint64_t spw_vfio_get64(const struct spw_vfio_link *link, uint32_t offset)
{
	uint64_t low = spw_vfio_get32(link, offset);

	return low | (uint64_t)spw_vfio_get32(link, offset + 4) << 32;
}

static inline void spw_vfio_set64(struct spw_vfio_link *link, uint32_t offset, uint64_t value)
{
	spw_vfio_set32(link, offset, (uint32_t)value);
	spw_vfio_set32(link, offset + 4, (uint32_t)(value >> 32));
}

/* ---- Order ---- */

/*
 * Between writes to memory that the controller reads and the write to a register that tells it so.
 * x86 keeps the order of writes; the compiler does not. Arm needs a barrier that reaches beyond the
 * cores.
 */
static inline void spw_vfio_publish(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__asm__ volatile("" ::: "memory");
#elif defined(__aarch64__)
	__asm__ volatile("dmb oshst" ::: "memory");
#else
	__sync_synchronize();
#endif
}

/*
 * Between the read that shows that the controller has written, and the reads of what it wrote
 * before that.
 */
static inline void spw_vfio_acquire(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__asm__ volatile("" ::: "memory");
#elif defined(__aarch64__)
	__asm__ volatile("dmb oshld" ::: "memory");
#else
	__sync_synchronize();
#endif
}

#endif
