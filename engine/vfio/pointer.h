/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/pointer.h - where the memory of a command lies: its data pointer, of two words
 *
 * Pages (PRP)   A first address, a multiple of four, and the next page, or a list of the others
 *               when there are more than two. No gaps: pages but the first begin at their
 *               beginning, and all but the last go on to their end.
 * Runs (SGL)    If the controller takes scatter gather lists: runs of any length, with any gaps,
 *               each an address and a length, with its type, 0 for memory, in the highest byte. One
 *               run is in the command itself; several are a segment of their own.
 *
 * A list has one page: at most SPW_VFIO_PRP_BYTES_MAX, or SPW_VFIO_SGL_RUNS_MAX runs, per command.
 */
#ifndef SPW_ENGINE_VFIO_POINTER_H
#define SPW_ENGINE_VFIO_POINTER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "engine/nvme/command.h"

#define SPW_VFIO_PRP_ENTRIES      (SPW_NVME_PAGE_BYTES / (uint32_t)sizeof(uint64_t))
#define SPW_VFIO_PRP_BYTES_MAX    (SPW_VFIO_PRP_ENTRIES * SPW_NVME_PAGE_BYTES)
#define SPW_VFIO_SGL_WORDS        2u
#define SPW_VFIO_SGL_RUNS_MAX     (SPW_VFIO_PRP_ENTRIES / SPW_VFIO_SGL_WORDS)
#define SPW_VFIO_SGL_LAST_SEGMENT (UINT64_C(0x30) << 56)

/* Of a command's flags (PSDT): its memory is named by descriptors, and there is no metadata. */
#define SPW_VFIO_SGL_FLAG 0x40u

/* The page of a slot that its list goes to. */
struct spw_vfio_list {
	uint64_t *entries;
	uint64_t iova;
};

struct spw_vfio_pointer {
	uint64_t words[2];
	uint32_t flags; /* of the command */
};

/* Fill the list with the @pages pages after @iova's. Out of line: only large transfers. */
void spw_vfio__list_pages(const struct spw_vfio_list *list, uint64_t iova, uint32_t pages);

/* 1 to SPW_VFIO_PRP_BYTES_MAX bytes from @iova on, a multiple of 4; pages are shorter up to two. */
static inline void spw_vfio__name_run(const struct spw_vfio_list *list, bool takes_sgl,
				      uint64_t iova, uint32_t len_bytes,
				      struct spw_vfio_pointer *pointer)
{
	uint32_t offset = (uint32_t)iova & (SPW_NVME_PAGE_BYTES - 1);
	uint32_t pages = (offset + len_bytes - 1) / SPW_NVME_PAGE_BYTES; /* besides the first */

	pointer->words[0] = iova;
	pointer->flags = 0;
	if (pages == 0) {
		pointer->words[1] = 0;
	} else if (pages == 1) {
		pointer->words[1] = iova - offset + SPW_NVME_PAGE_BYTES;
	} else if (takes_sgl) {
		pointer->words[1] = len_bytes;
		pointer->flags = SPW_VFIO_SGL_FLAG;
	} else {
		spw_vfio__list_pages(list, iova, pages);
		pointer->words[1] = list->iova;
	}
}

/*
 * Elements one after the other, whose addresses are those of memory and @to_iova, as pages or as
 * runs. @entries: how many are in the list. Return: false: a gap between pages, or a full list.
 */
bool spw_vfio__name_pages(const struct spw_vfio_list *list, const struct iovec *iov, uint32_t count,
			  uint64_t to_iova, uint64_t words[2], uint32_t *entries);
bool spw_vfio__name_runs(const struct spw_vfio_list *list, const struct iovec *iov, uint32_t count,
			 uint64_t to_iova, uint64_t words[2], uint32_t *entries);

/* As whichever takes less of the list. Return: false: as neither. */
bool spw_vfio__name_vector(const struct spw_vfio_list *list, bool takes_sgl,
			   const struct iovec *iov, uint32_t count, uint64_t to_iova,
			   struct spw_vfio_pointer *pointer);

#endif
