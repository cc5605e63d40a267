/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/queue.h - a queue pair (submission and completion ring): issue commands, take
 * completions
 *
 * A pair belongs to one thread at a time. A command has a slot from its issue to its completion;
 * its identifier is the slot's number and, above it, the slot's use count, so that duplicate and
 * spurious completions are detected.
 *
 * Invariants, cited by asserts and tests
 *   PAIR-1  The number of slots in use plus completion entries that were taken but not released is
 *           less than the entries of a ring. So neither ring overflows, and the entry at the tail
 *           is free.
 *   PAIR-2  A slot is in use from spw_vfio__pair_begin() until spw_vfio__pair_take() returns it.
 *   PAIR-3  The doorbell for a command is rung after all of the command is in memory; the
 *           controller does not read the entry before that.
 */
#ifndef SPW_ENGINE_VFIO_QUEUE_H
#define SPW_ENGINE_VFIO_QUEUE_H

#include "engine/nvme/command.h"
#include "engine/vfio/link.h"
#include "util/util.h"

#define SPW_VFIO_SLOTS_MAX 1024u

#define SPW_VFIO_DOORBELLS 0x1000u

/* A command identifier: the slot, and above it 5 bits of its use count. FFFFh is never used. */
#define SPW_VFIO_CID_SLOT  (SPW_VFIO_SLOTS_MAX - 1)
#define SPW_VFIO_CID_SHIFT 10
#define SPW_VFIO_CID_MASK  0x7fffu

union spw_vfio_command {
	uint64_t words[8];
	struct {
		uint8_t opcode;
		uint8_t flags;
		uint16_t cid;
		uint32_t nsid;
		uint32_t cdw2, cdw3;
		uint64_t metadata;
		uint64_t prp[2];
		uint32_t cdw10, cdw11, cdw12, cdw13, cdw14, cdw15;
	};
};

_Static_assert(sizeof(union spw_vfio_command) == 64 && offsetof(union spw_vfio_command, cid) == 2 &&
		       offsetof(union spw_vfio_command, nsid) == 4 &&
		       offsetof(union spw_vfio_command, metadata) == 16 &&
		       offsetof(union spw_vfio_command, prp) == 24 &&
		       offsetof(union spw_vfio_command, cdw10) == 40 &&
		       offsetof(union spw_vfio_command, cdw15) == 60,
	       "as in the specification");

struct spw_vfio_completion {
	uint32_t result; /* command specific */
	uint32_t reserved;
	uint16_t sq_head;
	uint16_t sq_id;
	uint16_t cid;
	uint16_t status; /* bit 0: phase */
};

_Static_assert(sizeof(struct spw_vfio_completion) == 16 &&
		       offsetof(struct spw_vfio_completion, sq_head) == 8 &&
		       offsetof(struct spw_vfio_completion, sq_id) == 10 &&
		       offsetof(struct spw_vfio_completion, cid) == 12 &&
		       offsetof(struct spw_vfio_completion, status) == 14,
	       "as in the specification");

struct spw_vfio_slot {
	uint32_t uses; /* use count: commands issued with this slot */
	uint16_t cid;  /* identifier of its last command */
	uint16_t busy;
};

struct spw_vfio_pair {
	union spw_vfio_command *commands;
	volatile const struct spw_vfio_completion *completions;
	volatile uint32_t *sq_doorbell, *cq_doorbell;
	/* SPW_VFIO_SLOTS_MAX entries, for any identifier; unused ones are never busy */
	struct spw_vfio_slot *slots;
	uint32_t mask;      /* entries of each ring - 1 */
	uint32_t tail;      /* of the submission ring, not wrapped */
	uint32_t tail_told; /* value last written to the doorbell */
	uint32_t head;      /* of the completion ring, not wrapped */
	uint32_t head_told;
	/* how many completion entries may stay unreleased, such that PAIR-1 holds */
	uint32_t head_lag_max;
	uint32_t in_flight;
	uint32_t slot_count;
	uint16_t id;
	/* what is wrong with the last completion, after spw_vfio__pair_take() returned -1 */
	const char *complaint;
	/* submission ring, completion ring, extra memory of the owner */
	struct spw_vfio_memory memory;
	uint64_t cq_iova;
	char *extra;
};

/* Number of ring entries, 2^n up to @entries_max: if possible a full page and twice the slots. */
uint32_t spw_vfio__pair_entries(uint32_t slots, uint32_t entries_max);

/* Allocate rings and slots, and page-aligned @extra_bytes. Return: 0; -ENOMEM. */
int spw_vfio__pair_init(struct spw_vfio_pair *pair, struct spw_vfio_link *link, uint16_t id,
			uint32_t slots, uint32_t entries_max, uint32_t doorbell_bytes,
			uint64_t extra_bytes);
void spw_vfio__pair_free(struct spw_vfio_pair *pair, struct spw_vfio_link *link);

/* Drop a slot's command, when the controller no longer has the pair. */
void spw_vfio__pair_forget(struct spw_vfio_pair *pair, uint32_t slot);

static inline bool spw_vfio__pair_has_room(const struct spw_vfio_pair *pair)
{
	return pair->in_flight < pair->mask;
}

/* Get an entry for a command in a free slot; needs room. The caller writes *cid into the entry. */
static inline union spw_vfio_command *spw_vfio__pair_begin(struct spw_vfio_pair *pair,
							   uint32_t slot, uint16_t *cid)
{
	struct spw_vfio_slot *s = &pair->slots[slot];

	/* room and a free slot (PAIR-1, 2) */
	SPW_ASSERT(spw_vfio__pair_has_room(pair) && !s->busy);
	s->uses++;
	s->cid = (uint16_t)((s->uses << SPW_VFIO_CID_SHIFT & SPW_VFIO_CID_MASK) | slot);
	s->busy = 1;
	pair->in_flight++;
	*cid = s->cid;
	return &pair->commands[pair->tail++ & pair->mask];
}

/* Ring the doorbell for all commands begun since the last time, if there are any. */
static inline void spw_vfio__pair_submit(struct spw_vfio_pair *pair)
{
	if (pair->tail == pair->tail_told)
		return;
	/* Barrier: the commands must be in memory before the doorbell is rung (PAIR-3). */
	spw_vfio__publish();
	*pair->sq_doorbell = pair->tail & pair->mask;
	pair->tail_told = pair->tail;
}

/* Record a completion that no working controller sends. Return: -1. */
int spw_vfio__pair_complain(struct spw_vfio_pair *pair, uint16_t cid, uint16_t sq_id);

/* Take a completion. @result: or NULL. Return: 1; 0 none; -1 invalid: see pair->complaint. */
static inline int spw_vfio__pair_take(struct spw_vfio_pair *pair, uint32_t *slot, uint32_t *status,
				      uint32_t *result)
{
	volatile const struct spw_vfio_completion *at = &pair->completions[pair->head & pair->mask];
	/* expected phase: 1 in the first round, then 0, 1, 0... */
	uint32_t phase = (pair->head & (pair->mask + 1)) == 0;
	uint16_t said = at->status, cid, sq_id;
	struct spw_vfio_slot *s;

	if ((said & 1u) != phase)
		return 0;
	/* Barrier: read the phase before the rest of the entry and the data. */
	spw_vfio__acquire();
	cid = at->cid;
	sq_id = at->sq_id;
	*slot = cid & SPW_VFIO_CID_SLOT;
	s = &pair->slots[*slot];
	if (__builtin_expect(s->cid != cid || !s->busy || sq_id != pair->id, 0))
		return spw_vfio__pair_complain(pair, cid, sq_id);
	*status = said >> 1;
	if (result)
		*result = at->result;
	s->busy = 0;
	pair->in_flight--;
	pair->head++;
	return 1;
}

/* Release completion entries, many at a time: ringing a doorbell is slow, above all in a VM. */
static inline void spw_vfio__pair_release(struct spw_vfio_pair *pair)
{
	if (pair->head - pair->head_told <= pair->head_lag_max)
		return;
	/* Barrier: read the entries before the controller may overwrite them. */
	spw_vfio__acquire();
	*pair->cq_doorbell = pair->head & pair->mask;
	pair->head_told = pair->head;
}

#endif
