/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/queue.h - a submission and a completion ring: commands in, completions out, nothing
 * else
 *
 * A pair belongs to one thread at a time. A command has a slot from its issue to its completion;
 * its identifier is the slot and, in the bits above, how often the slot was used, so that a
 * completion that comes twice, or for nothing, is told from a right one. So is one for a command of
 * another queue: it has that queue's number.
 *
 * Invariants
 *   INV-1  Slots in use, and completions that were taken but whose entries were not given back, are
 *          together fewer than the entries of a ring, so neither ring overflows, and the entry at
 *          the tail is free.
 *   INV-2  A slot is in use from spw_vfio_pair_begin() until spw_vfio_pair_take() gives it.
 *   INV-3  The controller is told of no command before all of it is in memory, and reads no entry
 *          that is not told of.
 */
#ifndef SPW_ENGINE_VFIO_QUEUE_H
#define SPW_ENGINE_VFIO_QUEUE_H

#include "engine/nvme/command.h"
#include "engine/vfio/link.h"

#define SPW_VFIO_SLOTS_MAX 1024u

/* Where doorbells begin among the registers. */
#define SPW_VFIO_DOORBELLS 0x1000u

/*
 * Of a command identifier: the slot, and 5 bits of its use count above. FFFFh, which means no
 * command in an error log, is none.
 */
#define SPW_VFIO_CID_SLOT  (SPW_VFIO_SLOTS_MAX - 1)
#define SPW_VFIO_CID_SHIFT 10
#define SPW_VFIO_CID_MASK  0x7fffu

/* A submission queue entry. */
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

_Static_assert(sizeof(union spw_vfio_command) == 64, "as in the specification");

/* A completion queue entry. */
struct spw_vfio_completion {
	uint32_t result; /* command specific */
	uint32_t reserved;
	uint16_t sq_head;
	uint16_t sq_id;
	uint16_t cid;
	uint16_t status; /* bit 0: phase */
};

_Static_assert(sizeof(struct spw_vfio_completion) == 16, "as in the specification");

struct spw_vfio_slot {
	uint32_t uses; /* how often it was issued */
	uint16_t cid;  /* of its last command */
	uint16_t busy;
};

struct spw_vfio_pair {
	union spw_vfio_command *commands;
	volatile const struct spw_vfio_completion *completions;
	volatile uint32_t *sq_doorbell, *cq_doorbell;
	/* as many as an identifier can name: those of no command are never busy */
	struct spw_vfio_slot *slots;
	uint32_t mask;      /* entries of each ring - 1 */
	uint32_t tail;      /* of submissions, free running */
	uint32_t tail_told; /* what the controller knows */
	uint32_t head;      /* of completions, free running */
	uint32_t head_told;
	/* so many taken completions need not be told: INV-1 holds with all slots in use */
	uint32_t head_lag_max;
	uint32_t in_flight;
	uint32_t slot_count;
	uint16_t id;
	/* what is wrong with the last completion, once spw_vfio_pair_take() has said so */
	const char *complaint;
	struct spw_vfio_memory memory;
};

/*
 * Entries of a ring for so many slots, at most @entries_max (CAP.MQES + 1): a power of two, 2 or
 * more. Where the controller allows it a page full, and twice the slots, so that most completions
 * can be given back together.
 */
uint32_t spw_vfio_pair_entries(uint32_t slots, uint32_t entries_max);

/*
 * Rings and slots in memory; the controller is not told. @extra_bytes more, page-aligned, follow
 * the rings for the owner's use. @slots may be more than the rings take at a time. Return: 0;
 * -ENOMEM.
 */
int spw_vfio_pair_init(struct spw_vfio_pair *pair, struct spw_vfio_link *link, uint16_t id,
		       uint32_t slots, uint32_t entries_max, uint32_t doorbell_bytes,
		       uint64_t extra_bytes);
void spw_vfio_pair_free(struct spw_vfio_pair *pair, struct spw_vfio_link *link);

uint64_t spw_vfio_pair_sq_iova(const struct spw_vfio_pair *pair);
uint64_t spw_vfio_pair_cq_iova(const struct spw_vfio_pair *pair);
char *spw_vfio_pair_extra(const struct spw_vfio_pair *pair);

/*
 * The pair was taken from the controller, or that is cut off: whatever was in flight is not any
 * more.
 */
void spw_vfio_pair_forget(struct spw_vfio_pair *pair, uint32_t slot);

/* Whether the rings take another command. */
static inline bool spw_vfio_pair_has_room(const struct spw_vfio_pair *pair)
{
	return pair->in_flight < pair->mask;
}

/*
 * The entry for the next command, in a slot that is not in use; there is room. The caller sets all
 * of it but the identifier, which is what it has to put there: @cid.
 */
static inline union spw_vfio_command *spw_vfio_pair_begin(struct spw_vfio_pair *pair, uint32_t slot,
							  uint16_t *cid)
{
	struct spw_vfio_slot *s = &pair->slots[slot];

	s->uses++;
	s->cid = (uint16_t)((s->uses << SPW_VFIO_CID_SHIFT & SPW_VFIO_CID_MASK) | slot);
	s->busy = 1;
	pair->in_flight++;
	*cid = s->cid;
	return &pair->commands[pair->tail++ & pair->mask];
}

/* Tell the controller of all commands begun since the last time, if there are any. */
static inline void spw_vfio_pair_submit(struct spw_vfio_pair *pair)
{
	if (pair->tail == pair->tail_told)
		return;
	/*
	 * The commands are in memory before the doorbell rings: the controller may fetch them at
	 * once.
	 */
	spw_vfio_publish();
	*pair->sq_doorbell = pair->tail & pair->mask;
	pair->tail_told = pair->tail;
}

/* Something that no working controller sends. Return: -1. */
int spw_vfio_pair_complain(struct spw_vfio_pair *pair, uint16_t cid, uint16_t sq_id);

/*
 * The next completion. @status: without the phase. @result: NULL: it is of no interest. Return: 1;
 * 0 there is none; -1 it is for no command in flight: the controller is not to be trusted with
 * memory any more (pair->complaint).
 */
static inline int spw_vfio_pair_take(struct spw_vfio_pair *pair, uint32_t *slot, uint32_t *status,
				     uint32_t *result)
{
	volatile const struct spw_vfio_completion *at = &pair->completions[pair->head & pair->mask];
	/* 1 in the first round, then 0, 1, 0... */
	uint32_t phase = (pair->head & (pair->mask + 1)) == 0;
	uint16_t said = at->status, cid, sq_id;
	struct spw_vfio_slot *s;

	if ((said & 1u) != phase)
		return 0;
	/*
	 * The phase is read before the rest of the entry, and before the data that the command has
	 * brought.
	 */
	spw_vfio_acquire();
	cid = at->cid;
	sq_id = at->sq_id;
	*slot = cid & SPW_VFIO_CID_SLOT;
	s = &pair->slots[*slot];
	if (__builtin_expect(s->cid != cid || !s->busy || sq_id != pair->id, 0))
		return spw_vfio_pair_complain(pair, cid, sq_id);
	*status = said >> 1;
	if (result)
		*result = at->result;
	s->busy = 0;
	pair->in_flight--;
	pair->head++;
	return 1;
}

/*
 * Give the entries of the completions taken back to the controller, once there are enough of them:
 * until it runs out of entries it does not care, and every doorbell is a write across the bus (an
 * exit, in a virtual machine).
 */
static inline void spw_vfio_pair_release(struct spw_vfio_pair *pair)
{
	if (pair->head - pair->head_told <= pair->head_lag_max)
		return;
	/* The entries have been read before the controller may write over them. */
	spw_vfio_acquire();
	*pair->cq_doorbell = pair->head & pair->mask;
	pair->head_told = pair->head;
}

#endif
