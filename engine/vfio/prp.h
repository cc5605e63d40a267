/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/prp.h - where the memory of a command lies, as physical region pages
 *
 * A command has two addresses. The first is of any multiple of four bytes; from there the memory
 * goes on to the end of its page. The second is the next page, or, when there are more than two, a
 * list of the other pages. In between there are no gaps: all pages but the first begin at their
 * beginning, and all but the last go on to their end. The list has a page of its own per slot, so
 * that a command carries at most SPW_VFIO_PRP_BYTES_MAX.
 */
#ifndef SPW_ENGINE_VFIO_PRP_H
#define SPW_ENGINE_VFIO_PRP_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/nvme/command.h"

#define SPW_VFIO_PRP_ENTRIES   (SPW_NVME_PAGE_BYTES / (uint32_t)sizeof(uint64_t))
#define SPW_VFIO_PRP_BYTES_MAX (SPW_VFIO_PRP_ENTRIES * SPW_NVME_PAGE_BYTES)

/* The page of a slot that its list goes to. */
struct spw_vfio_prp_list {
	uint64_t *entries;
	uint64_t iova;
};

/*
 * Fill the list with the @pages pages that follow @iova's own. Out of line: a list is for larger
 * transfers.
 */
void spw_vfio_prp_fill(const struct spw_vfio_prp_list *list, uint64_t iova, uint32_t pages);

/* @len_bytes from @iova on, a multiple of four; at most SPW_VFIO_PRP_BYTES_MAX, and not 0. */
static inline void spw_vfio_prp(const struct spw_vfio_prp_list *list, uint64_t iova,
				uint32_t len_bytes, uint64_t prp[2])
{
	uint32_t offset = (uint32_t)iova & (SPW_NVME_PAGE_BYTES - 1);
	uint32_t pages = (offset + len_bytes - 1) / SPW_NVME_PAGE_BYTES; /* besides the first */

	prp[0] = iova;
	if (pages == 0) {
		prp[1] = 0;
	} else if (pages == 1) {
		prp[1] = iova - offset + SPW_NVME_PAGE_BYTES;
	} else {
		spw_vfio_prp_fill(list, iova, pages);
		prp[1] = list->iova;
	}
}

/* Several pieces of memory one after the other. */
struct spw_vfio_prp_builder {
	const struct spw_vfio_prp_list *list;
	uint64_t first;
	uint32_t count; /* pages besides the first, in the list */
	bool has_first;
	bool ends_in_page; /* the last piece stops short of its page's end: nothing can follow */
};

static inline void spw_vfio_prp_begin(struct spw_vfio_prp_builder *builder,
				      const struct spw_vfio_prp_list *list)
{
	*builder = (struct spw_vfio_prp_builder){.list = list};
}

/*
 * Return: false: there is a gap before the piece, or the list is full; the builder is of no more
 * use.
 */
bool spw_vfio_prp_add(struct spw_vfio_prp_builder *builder, uint64_t iova, uint64_t len_bytes);

void spw_vfio_prp_end(const struct spw_vfio_prp_builder *builder, uint64_t prp[2]);

#endif
