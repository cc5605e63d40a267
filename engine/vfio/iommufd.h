/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/iommufd.h - requests to /dev/iommu and to the node of a vfio device
 *
 * The parts used of include/uapi/linux/iommufd.h and vfio.h of Linux 6.6; Debian 12 has older
 * headers. Every request begins with its size; reserved fields are 0.
 */
#ifndef SPW_ENGINE_VFIO_IOMMUFD_H
#define SPW_ENGINE_VFIO_IOMMUFD_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>

#define SPW_IOMMUFD_REQUEST(number) _IO(';', 0x80 + (number))

/* Create an address space, without mappings. */
struct spw_iommufd_alloc {
	uint32_t size_bytes;
	uint32_t flags; /* always 0 */
	uint32_t ioas;  /* out: its number */
};
#define SPW_IOMMUFD_ALLOC SPW_IOMMUFD_REQUEST(1)
static_assert(sizeof(struct spw_iommufd_alloc) == 12, "as the kernel has it");

struct spw_iommufd_range {
	uint64_t first, last; /* both inclusive */
};
static_assert(sizeof(struct spw_iommufd_range) == 16, "as the kernel has it");

/* Get the addresses that all attached devices can use. -EMSGSIZE: there are more than @count. */
struct spw_iommufd_ranges {
	uint32_t size_bytes;
	uint32_t ioas;
	uint32_t count; /* in: room; out: ranges that exist */
	uint32_t reserved;
	uint64_t ranges;      /* address of an array of struct spw_iommufd_range */
	uint64_t align_bytes; /* out; a page at most */
};
#define SPW_IOMMUFD_RANGES SPW_IOMMUFD_REQUEST(4)
static_assert(sizeof(struct spw_iommufd_ranges) == 32, "as the kernel has it");
static_assert(offsetof(struct spw_iommufd_ranges, ranges) == 16, "as the kernel has it");

#define SPW_IOMMUFD_MAP_FIXED    0x1u /* at iova */
#define SPW_IOMMUFD_MAP_WRITABLE 0x2u
#define SPW_IOMMUFD_MAP_READABLE 0x4u

struct spw_iommufd_map {
	uint32_t size_bytes;
	uint32_t flags;
	uint32_t ioas;
	uint32_t reserved;
	uint64_t memory;
	uint64_t len_bytes;
	uint64_t iova;
};
#define SPW_IOMMUFD_MAP SPW_IOMMUFD_REQUEST(5)
static_assert(sizeof(struct spw_iommufd_map) == 40, "as the kernel has it");
static_assert(offsetof(struct spw_iommufd_map, memory) == 16, "as the kernel has it");

struct spw_iommufd_unmap {
	uint32_t size_bytes;
	uint32_t ioas;
	uint64_t iova;
	uint64_t len_bytes;
};
#define SPW_IOMMUFD_UNMAP SPW_IOMMUFD_REQUEST(6)
static_assert(sizeof(struct spw_iommufd_unmap) == 24, "as the kernel has it");

#define SPW_VFIO_REQUEST(number) _IO(';', 100 + (number))

/* Bind a device to an open /dev/iommu, until that is closed; required for all other requests. */
struct spw_vfio_bind {
	uint32_t size_bytes;
	uint32_t flags; /* always 0 */
	int32_t iommufd;
	uint32_t device; /* out: its number in /dev/iommu */
};
#define SPW_VFIO_BIND SPW_VFIO_REQUEST(18)
static_assert(sizeof(struct spw_vfio_bind) == 16, "as the kernel has it");

/* Attach a device to an address space of its /dev/iommu. */
struct spw_vfio_attach {
	uint32_t size_bytes;
	uint32_t flags; /* always 0 */
	uint32_t ioas;  /* in: the address space; out: number of the IOMMU's page table */
};
#define SPW_VFIO_ATTACH SPW_VFIO_REQUEST(19)
static_assert(sizeof(struct spw_vfio_attach) == 12, "as the kernel has it");

struct spw_vfio_detach {
	uint32_t size_bytes;
	uint32_t flags; /* always 0 */
};
#define SPW_VFIO_DETACH SPW_VFIO_REQUEST(20)
static_assert(sizeof(struct spw_vfio_detach) == 8, "as the kernel has it");

#endif
