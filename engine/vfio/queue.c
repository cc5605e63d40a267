/* SPDX-License-Identifier: MIT */
/* engine/vfio/queue.c - set up and free a queue pair's rings; report impossible completions */
#include "engine/vfio/queue.h"

#include <errno.h>
#include <stdlib.h>

#include "util/util.h"

uint32_t spw_vfio__pair_entries(uint32_t slots, uint32_t entries_max)
{
	uint32_t entries = SPW_NVME_PAGE_BYTES / sizeof(union spw_vfio_command);

	/* A full ring looks like an empty one: it needs more entries than slots. */
	while (entries < 2 * slots)
		entries *= 2;
	while (entries > entries_max && entries > 2)
		entries /= 2;
	return entries;
}

static uint64_t ring_bytes(const struct spw_vfio_pair *pair, size_t entry_bytes)
{
	return spw_round_up((pair->mask + 1ull) * entry_bytes, SPW_NVME_PAGE_BYTES);
}

int spw_vfio__pair_init(struct spw_vfio_pair *pair, struct spw_vfio_link *link, uint16_t id,
			uint32_t slots, uint32_t entries_max, uint32_t doorbell_bytes,
			uint64_t extra_bytes)
{
	uint64_t doorbells = SPW_VFIO_DOORBELLS + 2ull * id * doorbell_bytes;
	volatile char *registers = link->registers;
	uint64_t sq_bytes, cq_bytes;
	int ret;

	*pair = (struct spw_vfio_pair){.id = id, .slot_count = slots};
	SPW_ASSERT(slots > 0 && slots <= SPW_VFIO_SLOTS_MAX);
	if (doorbells + doorbell_bytes + sizeof(uint32_t) > link->registers_bytes)
		return spw_error(
			-EPROTO,
			"pci:%s: queue %u has its doorbells beyond the %llu bytes of registers",
			link->address, id, (unsigned long long)link->registers_bytes);
	pair->mask = spw_vfio__pair_entries(slots, entries_max) - 1;
	pair->head_lag_max = slots < pair->mask ? pair->mask - slots : 0;
	pair->sq_doorbell = (volatile uint32_t *)(registers + doorbells);
	pair->cq_doorbell = (volatile uint32_t *)(registers + doorbells + doorbell_bytes);
	pair->slots = calloc(SPW_VFIO_SLOTS_MAX, sizeof(*pair->slots));
	if (!pair->slots)
		return spw_error(-ENOMEM, "pci:%s: no memory for a queue of %u commands",
				 link->address, slots);
	sq_bytes = ring_bytes(pair, sizeof(pair->commands[0]));
	cq_bytes = ring_bytes(pair, sizeof(pair->completions[0]));
	ret = spw_vfio__memory_alloc(link, sq_bytes + cq_bytes + extra_bytes, &pair->memory);
	if (ret) {
		spw_vfio__pair_free(pair, link);
		return ret;
	}
	pair->commands = (union spw_vfio_command *)(void *)pair->memory.base;
	pair->completions =
		(const struct spw_vfio_completion *)(void *)(pair->memory.base + sq_bytes);
	pair->cq_iova = pair->memory.iova + sq_bytes;
	pair->extra = pair->memory.base + sq_bytes + cq_bytes;
	return 0;
}

void spw_vfio__pair_free(struct spw_vfio_pair *pair, struct spw_vfio_link *link)
{
	spw_vfio__memory_free(link, &pair->memory);
	free(pair->slots);
	pair->slots = NULL;
}

void spw_vfio__pair_forget(struct spw_vfio_pair *pair, uint32_t slot)
{
	if (!pair->slots[slot].busy)
		return;
	pair->slots[slot].busy = 0;
	pair->in_flight--;
}

__attribute__((cold)) int spw_vfio__pair_complain(struct spw_vfio_pair *pair, uint16_t cid,
						  uint16_t sq_id)
{
	uint32_t slot = cid & SPW_VFIO_CID_SLOT;

	if (sq_id != pair->id)
		pair->complaint = "a completion for a command of another queue";
	else if (cid > SPW_VFIO_CID_MASK || slot >= pair->slot_count)
		pair->complaint = "a completion for a command that never was";
	else if (cid == pair->slots[slot].cid)
		pair->complaint = "a second completion for one command";
	else
		pair->complaint = "a completion for a command that had ended before";
	return -1;
}
