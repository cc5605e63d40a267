/* SPDX-License-Identifier: MIT */
/*
 * plan/host.c - what of a device's spilled tensors stays in host memory, and what the drives write
 *
 * In the order of packing each tensor takes host memory until it is wanted. Where that is full, the
 * tensor that is wanted last of those in it, the new one included, goes to the drives instead: from
 * when it was packed, so that they have had all the time until now. A tensor for which even this
 * makes no room is not spilled. Without drives the tensors that come first stay.
 *
 * The times are of compute. The simulation checks them: there a tensor that finds no room is kept.
 */
#include "plan/internal.h"

#include <string.h>

#include "util/util.h"

struct filling {
	struct plan_work *work;
	uint32_t *heap; /* of those in host memory: the one that is wanted last comes first */
	uint32_t heap_count;
	uint32_t *out; /* taken from the heap for the new one */
	uint32_t out_count;
	double held;    /* bytes that stay */
	double free_ns; /* when all that goes to the drives has been written */
};

static bool is_wanted_later(const struct filling *filling, uint32_t a, uint32_t b)
{
	return filling->work->host_rank[a] > filling->work->host_rank[b];
}

static void push(struct filling *filling, uint32_t i)
{
	uint32_t *heap = filling->heap, k = filling->heap_count++;

	SPW_ASSERT(filling->heap_count <= filling->work->count);
	for (; k > 0 && is_wanted_later(filling, i, heap[(k - 1) / 2]); k = (k - 1) / 2)
		heap[k] = heap[(k - 1) / 2];
	heap[k] = i;
}

static uint32_t pop(struct filling *filling)
{
	uint32_t *heap = filling->heap, first = heap[0], k = 0, last, count;

	SPW_ASSERT(filling->heap_count > 0);
	count = --filling->heap_count;
	last = heap[count];
	for (;;) {
		uint32_t child = 2 * k + 1;

		if (child + 1 < count && is_wanted_later(filling, heap[child + 1], heap[child]))
			child++;
		if (child >= count || !is_wanted_later(filling, heap[child], last))
			break;
		heap[k] = heap[child];
		k = child;
	}
	heap[k] = last;
	return first;
}

/* Bytes that wait for the drives at @ns, if they have been busy without a pause. */
static double waiting(const struct filling *filling, double free_ns, double ns)
{
	return free_ns > ns ? (free_ns - ns) * filling->work->alone.write : 0;
}

/* When the drives have written @i, too. */
static double written_ns(const struct filling *filling, uint32_t i)
{
	const struct plan_work *work = filling->work;
	double copied_ns = work->pack_ns[i] + work->bytes[i] * work->alone.write_copy_ns;

	return SPW_MAX(filling->free_ns, copied_ns) + work->bytes[i] / work->alone.write;
}

/* The one in host memory at @ns that is wanted last; UINT32_MAX: none. */
static uint32_t last_wanted(struct filling *filling, double ns)
{
	const struct plan_work *work = filling->work;

	while (filling->heap_count > 0 && !work->in_host[filling->heap[0]])
		(void)pop(filling); /* there was no room for it */
	if (filling->heap_count == 0 || work->wanted_ns[filling->heap[0]] <= ns)
		return UINT32_MAX;
	return filling->heap[0];
}

/* The one that is wanted last goes to the drives. Return: false: that makes no room. */
static bool make_room(struct filling *filling, double ns)
{
	struct plan_work *work = filling->work;
	uint32_t i = last_wanted(filling, ns);
	double then_ns, more;

	if (i == UINT32_MAX || !spw_plan__drives_take(work, i))
		return false;
	then_ns = written_ns(filling, i);
	more = waiting(filling, then_ns, ns) - waiting(filling, filling->free_ns, ns);
	if (filling->held <= work->host && more >= work->bytes[i] - PLAN_TOLERANCE_BYTES)
		return false; /* it would only wait instead */
	(void)pop(filling);
	work->in_host[i] = 0;
	filling->held -= work->bytes[i];
	filling->free_ns = then_ns;
	filling->out[filling->out_count++] = i;
	return true;
}

static bool has_room(const struct filling *filling, double ns)
{
	const struct plan_work *work = filling->work;

	return filling->held <= work->host + PLAN_TOLERANCE_BYTES &&
	       filling->held + waiting(filling, filling->free_ns, ns) <=
		       work->staging + PLAN_TOLERANCE_BYTES;
}

/* Return: false: there is no room for it, and all is as before. */
static bool fill(struct filling *filling, uint32_t i)
{
	struct plan_work *work = filling->work;
	const double ns = work->pack_ns[i], held = filling->held, free_ns = filling->free_ns;

	filling->out_count = 0;
	filling->held += work->bytes[i];
	work->in_host[i] = 1;
	push(filling, i);
	while (!has_room(filling, ns)) {
		if (make_room(filling, ns))
			continue;
		for (uint32_t k = 0; k < filling->out_count; k++) {
			work->in_host[filling->out[k]] = 1;
			push(filling, filling->out[k]);
		}
		work->in_host[i] = 0;
		filling->held = held;
		filling->free_ns = free_ns;
		return false;
	}
	return true;
}

void spw_plan__host_assign(struct plan_work *work, uint8_t *spill)
{
	struct filling filling = {.work = work, .heap = work->host_heap, .out = work->host_out};
	uint32_t gone = 0;

	if (work->host <= 0)
		return;
	memset(work->in_host, 0, work->count);
	for (uint32_t k = 0; k < work->count; k++) {
		uint32_t i = work->by_pack[k];

		for (; gone < work->count; gone++) {
			uint32_t j = work->by_wanted[gone];

			if (work->wanted_ns[j] > work->pack_ns[i])
				break;
			filling.held -= work->in_host[j] ? work->bytes[j] : 0;
		}
		if (spill[i])
			spill[i] = work->wanted_ns[i] > work->pack_ns[i] && fill(&filling, i);
	}
	SPW_ASSERT(filling.held >= -PLAN_TOLERANCE_BYTES - work->keep_all_peak);
}
