/* SPDX-License-Identifier: MIT */
/* engine/vfio/sgl.c - lists of runs */
#include "engine/vfio/sgl.h"

#include "util/util.h"

bool spw_vfio_sgl_add(struct spw_vfio_sgl_builder *builder, uint64_t iova, uint32_t len_bytes)
{
	uint64_t *at = &builder->list->entries[(uint64_t)builder->count * SPW_VFIO_SGL_WORDS];

	if (len_bytes == 0)
		return true;
	/* What goes on where the last run ends is part of it, as long as its length has room. */
	if (builder->count > 0 && builder->end == iova && at[-1] + len_bytes <= UINT32_MAX) {
		at[-1] += len_bytes;
	} else if (builder->count < SPW_VFIO_SGL_RUNS_MAX) {
		spw_vfio_sgl(iova, len_bytes, at);
		builder->count++;
	} else {
		return false;
	}
	builder->end = iova + len_bytes;
	return true;
}

void spw_vfio_sgl_end(const struct spw_vfio_sgl_builder *builder,
		      uint64_t descriptor[SPW_VFIO_SGL_WORDS])
{
	const struct spw_vfio_prp_list *list = builder->list;
	uint64_t bytes = (uint64_t)builder->count * SPW_VFIO_SGL_WORDS * sizeof(list->entries[0]);

	SPW_ASSERT(builder->count > 0);
	descriptor[0] = builder->count == 1 ? list->entries[0] : list->iova;
	descriptor[1] = builder->count == 1 ? list->entries[1] : bytes | SPW_VFIO_SGL_LAST_SEGMENT;
}
