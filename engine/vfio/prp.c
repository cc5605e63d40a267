/* SPDX-License-Identifier: MIT */
/* engine/vfio/prp.c - lists of pages */
#include "engine/vfio/prp.h"

#include "util/util.h"

#define PAGE ((uint64_t)SPW_NVME_PAGE_BYTES)

void spw_vfio_prp_fill(const struct spw_vfio_prp_list *list, uint64_t iova, uint32_t pages)
{
	uint64_t page = (iova & ~(PAGE - 1)) + PAGE;

	SPW_ASSERT(pages <= SPW_VFIO_PRP_ENTRIES);
	for (uint32_t i = 0; i < pages; i++, page += PAGE)
		list->entries[i] = page;
}

bool spw_vfio_prp_add(struct spw_vfio_prp_builder *builder, uint64_t iova, uint64_t len_bytes)
{
	uint64_t end = iova + len_bytes;
	uint64_t page = iova & ~(PAGE - 1);

	if (len_bytes == 0)
		return true;
	if (!builder->has_first) {
		builder->first = iova;
		builder->has_first = true;
		page += PAGE;
	} else if (builder->ends_in_page || page != iova) {
		return false;
	}
	for (; page < end; page += PAGE) {
		if (builder->count == SPW_VFIO_PRP_ENTRIES)
			return false;
		builder->list->entries[builder->count++] = page;
	}
	builder->ends_in_page = (end & (PAGE - 1)) != 0;
	return true;
}

void spw_vfio_prp_end(const struct spw_vfio_prp_builder *builder, uint64_t prp[2])
{
	prp[0] = builder->first;
	prp[1] = builder->count == 0   ? 0
		 : builder->count == 1 ? builder->list->entries[0]
				       : builder->list->iova;
}
