/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/pointer.h - data pointer of a command: two words that describe its memory, as pages
 * or runs
 *
 * Pages (PRP)   The first address, a multiple of four, and the second page, or a list of the
 *               further pages if there are more than two. No gaps: only the first page may start
 *               inside a page, and only the last may end inside one.
 * Runs (SGL)    If the controller supports scatter gather lists: runs of any length, with any gaps.
 *               A run is an address and a length, with its type, 0 for memory, in the highest byte.
 *               A single run is in the command itself; several runs are a segment of their own.
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

/* Flag of a command (PSDT): the data pointer is an SGL, and there is no metadata. */
#define SPW_VFIO_SGL_FLAG 0x40u

/* The page of a slot for its list. */
struct spw_vfio_list {
	uint64_t *entries;
	uint64_t iova;
};

struct spw_vfio_pointer {
	uint64_t words[2];
	uint32_t flags; /* for the command */
};

/* List the @pages pages after @iova's page. Not inline, as only large transfers need it. */
void spw_vfio__list_pages(const struct spw_vfio_list *list, uint64_t iova, uint32_t pages);

/*
 * Describe up to SPW_VFIO_PRP_BYTES_MAX bytes at @iova, a multiple of 4: as pages if at most two,
 * else as a run if supported, else as a list of pages.
 */
static inline void spw_vfio__name_run(const struct spw_vfio_list *list, bool takes_sgl,
				      uint64_t iova, uint32_t len_bytes,
				      struct spw_vfio_pointer *pointer)
{
	uint32_t offset = (uint32_t)iova & (SPW_NVME_PAGE_BYTES - 1);
	uint32_t pages = (offset + len_bytes - 1) / SPW_NVME_PAGE_BYTES; /* after the first */

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
 * Describe consecutive elements of a vector as pages, or as runs. @to_iova: added to their
 * addresses. *entries: number of list entries. Return: false: a gap between pages, or the list is
 * full.
 */
bool spw_vfio__name_pages(const struct spw_vfio_list *list, const struct iovec *iov, uint32_t count,
			  uint64_t to_iova, uint64_t words[2], uint32_t *entries);
bool spw_vfio__name_runs(const struct spw_vfio_list *list, const struct iovec *iov, uint32_t count,
			 uint64_t to_iova, uint64_t words[2], uint32_t *entries);

/* Describe a vector in the way that needs fewer list entries. Return: false: impossible. */
bool spw_vfio__name_vector(const struct spw_vfio_list *list, bool takes_sgl,
			   const struct iovec *iov, uint32_t count, uint64_t to_iova,
			   struct spw_vfio_pointer *pointer);

#endif
