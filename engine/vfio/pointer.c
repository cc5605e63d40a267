/* SPDX-License-Identifier: MIT */
/* engine/vfio/pointer.c - data pointers of commands: lists of pages (PRP) and of runs (SGL) */
#include "engine/vfio/pointer.h"

#include "util/util.h"

#define PAGE ((uint64_t)SPW_NVME_PAGE_BYTES)

void spw_vfio__list_pages(const struct spw_vfio_list *list, uint64_t iova, uint32_t pages)
{
	uint64_t page = (iova & ~(PAGE - 1)) + PAGE;

	SPW_ASSERT(pages <= SPW_VFIO_PRP_ENTRIES);
	for (uint32_t i = 0; i < pages; i++, page += PAGE)
		list->entries[i] = page;
}

bool spw_vfio__name_pages(const struct spw_vfio_list *list, const struct iovec *iov, uint32_t count,
			  uint64_t to_iova, uint64_t words[2], uint32_t *entries)
{
	uint64_t end = 0; /* end of the memory listed so far; 0: nothing */

	*entries = 0;
	for (uint32_t i = 0; i < count; i++) {
		uint64_t iova = (uintptr_t)iov[i].iov_base + to_iova;
		uint64_t page = iova & ~(PAGE - 1);

		if (iov[i].iov_len == 0)
			continue;
		if (end == 0) {
			words[0] = iova;
			page += PAGE;
		} else if ((end & (PAGE - 1)) != 0 || page != iova) {
			return false;
		}
		for (end = iova + iov[i].iov_len; page < end; page += PAGE) {
			if (*entries == SPW_VFIO_PRP_ENTRIES)
				return false;
			list->entries[(*entries)++] = page;
		}
	}
	words[1] = *entries == 0 ? 0 : *entries == 1 ? list->entries[0] : list->iova;
	return true;
}

bool spw_vfio__name_runs(const struct spw_vfio_list *list, const struct iovec *iov, uint32_t count,
			 uint64_t to_iova, uint64_t words[2], uint32_t *entries)
{
	uint64_t end = 0, *at = list->entries;

	for (uint32_t i = 0; i < count; i++) {
		uint64_t iova = (uintptr_t)iov[i].iov_base + to_iova;

		if (iov[i].iov_len == 0)
			continue;
		/* Memory that continues the last run extends it, up to the largest length. */
		if (at > list->entries && end == iova && at[-1] + iov[i].iov_len <= UINT32_MAX) {
			at[-1] += iov[i].iov_len;
		} else if (at < list->entries + SPW_VFIO_PRP_ENTRIES) {
			*at++ = iova;
			*at++ = iov[i].iov_len;
		} else {
			return false;
		}
		end = iova + iov[i].iov_len;
	}
	*entries = (uint32_t)(at - list->entries);
	SPW_ASSERT(*entries > 0);
	words[0] = *entries == SPW_VFIO_SGL_WORDS ? list->entries[0] : list->iova;
	words[1] = *entries == SPW_VFIO_SGL_WORDS
			   ? list->entries[1]
			   : *entries * sizeof(*at) | SPW_VFIO_SGL_LAST_SEGMENT;
	return true;
}

bool spw_vfio__name_vector(const struct spw_vfio_list *list, bool takes_sgl,
			   const struct iovec *iov, uint32_t count, uint64_t to_iova,
			   struct spw_vfio_pointer *pointer)
{
	uint32_t pages, runs;
	bool in_pages = spw_vfio__name_pages(list, iov, count, to_iova, pointer->words, &pages);

	pointer->flags = 0;
	if (takes_sgl && (!in_pages || pages > 1)) {
		if (spw_vfio__name_runs(list, iov, count, to_iova, pointer->words, &runs) &&
		    (!in_pages || runs < pages)) {
			pointer->flags = SPW_VFIO_SGL_FLAG;
			return true;
		}
		/* Build the page list again: both lists use the same memory. */
		in_pages = in_pages &&
			   spw_vfio__name_pages(list, iov, count, to_iova, pointer->words, &pages);
	}
	return in_pages;
}
