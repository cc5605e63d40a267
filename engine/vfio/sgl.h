/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/sgl.h - where the memory of a command lies, as a scatter gather list: runs of any
 * length, with any gaps
 *
 * For controllers that take such lists (SGLS of Identify Controller). One run is told in the
 * command itself, and nothing else has to be filled in or fetched. Several are a segment of their
 * own, in the page that the slot has for its list, whichever kind of list that is; so a command
 * carries at most SPW_VFIO_SGL_RUNS_MAX of them.
 */
#ifndef SPW_ENGINE_VFIO_SGL_H
#define SPW_ENGINE_VFIO_SGL_H

#include "engine/vfio/prp.h"

/* Of a command's flags (PSDT): its memory is named by descriptors, and there is no metadata. */
#define SPW_VFIO_SGL_FLAG 0x40u

/*
 * A descriptor is two words: the address; the length in bytes, and in the highest byte the type, 0
 * for memory.
 */
#define SPW_VFIO_SGL_WORDS        2u
#define SPW_VFIO_SGL_RUNS_MAX     (SPW_VFIO_PRP_ENTRIES / SPW_VFIO_SGL_WORDS)
#define SPW_VFIO_SGL_LAST_SEGMENT (UINT64_C(0x30) << 56)

/* One run. */
static inline void spw_vfio_sgl(uint64_t iova, uint32_t len_bytes,
				uint64_t descriptor[SPW_VFIO_SGL_WORDS])
{
	descriptor[0] = iova;
	descriptor[1] = len_bytes;
}

/* Several pieces of memory one after the other. */
struct spw_vfio_sgl_builder {
	const struct spw_vfio_prp_list *list;
	uint32_t count; /* runs */
	uint64_t end;   /* of the last */
};

static inline void spw_vfio_sgl_begin(struct spw_vfio_sgl_builder *builder,
				      const struct spw_vfio_prp_list *list)
{
	*builder = (struct spw_vfio_sgl_builder){.list = list};
}

/* Return: false: the list is full; the builder is of no more use. */
bool spw_vfio_sgl_add(struct spw_vfio_sgl_builder *builder, uint64_t iova, uint32_t len_bytes);

/* At least one piece was added. */
void spw_vfio_sgl_end(const struct spw_vfio_sgl_builder *builder,
		      uint64_t descriptor[SPW_VFIO_SGL_WORDS]);

#endif
