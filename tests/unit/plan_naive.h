/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/plan_naive.h - the planner's model once more: slow, and from the sentences that
 * describe it
 *
 * Everything is found by looking at all tensors; the rule for prefetching is checked at every
 * point of the forecast, in the form in which plan/plan.c states it first.
 */
#ifndef SPW_TESTS_PLAN_NAIVE_H
#define SPW_TESTS_PLAN_NAIVE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <spillway/plan.h>

#define NAIVE_TENSORS_MAX 64
#define NAIVE_CALLS_MAX   64
#define NAIVE_NEVER       1e300
#define NAIVE_TIE         1e-3 /* ns */

enum naive_where {
	NAIVE_NOT_YET,
	NAIVE_IN_MEMORY, /* and stays there */
	NAIVE_WAITS,     /* for its write */
	NAIVE_BEING_WRITTEN,
	NAIVE_ON_DRIVES,
	NAIVE_BEING_READ,
	NAIVE_DEAD,
};

struct naive_change {
	double ns, bytes; /* memory in use from there on */
	/* at one time: 1 packed, 2 used, 3 released, 4 called; after the first 0 freed */
	int kind;
	uint32_t tensor, event;
};

struct naive {
	const struct spw_plan_step *step;
	const enum spw_plan_choice *choices;
	double write, read, mixed, write_delay, read_delay, memory, staging, host;
	/* the bus: ns of a byte, each way; when it has copied what it was given */
	double write_copy, read_copy, write_copied, read_copied;
	/* forecast */
	struct naive_change events[3 * NAIVE_TENSORS_MAX + NAIVE_CALLS_MAX],
		changes[4 * NAIVE_TENSORS_MAX];
	uint32_t event_count, change_count;
	double written_ns[NAIVE_TENSORS_MAX]; /* end of the write */
	double left_ns[NAIVE_TENSORS_MAX];    /* from when on its memory can be freed */
	bool is_written[NAIVE_TENSORS_MAX];
	bool out[NAIVE_TENSORS_MAX];
	uint32_t used_at[NAIVE_TENSORS_MAX]; /* change */
	/* now */
	double now, stall;
	enum naive_where where[NAIVE_TENSORS_MAX];
	uint32_t events_done, released;
	bool use_done[NAIVE_TENSORS_MAX];
	/* until it is freed; till then, too */
	bool write_open[NAIVE_TENSORS_MAX], write_over[NAIVE_TENSORS_MAX];
	/* of a device: the copy out, until its memory is freed; and from then on */
	double copy_ends[NAIVE_TENSORS_MAX];
	bool copy_open[NAIVE_TENSORS_MAX], staged[NAIVE_TENSORS_MAX];
	double write_ends[NAIVE_TENSORS_MAX], read_ends[NAIVE_TENSORS_MAX];
	uint32_t writing, reading, awaited; /* UINT32_MAX: none */
	double write_left, read_left;
	double peak, written, bytes_read, hosted;
};

static const struct spw_plan_tensor *naive_tensor(const struct naive *naive, uint32_t i)
{
	return &naive->step->tensors[i];
}

static double naive_bytes(const struct naive *naive, uint32_t i)
{
	return (double)naive_tensor(naive, i)->bytes;
}

static double naive_wanted(const struct spw_plan_tensor *tensor)
{
	return (double)(tensor->users > 0 ? tensor->use_ns : tensor->release_ns);
}

/* The first of all in time, and of equals the one that comes first in the step. */
static bool naive_before(uint64_t a_ns, uint32_t a, uint64_t b_ns, uint32_t b)
{
	return a_ns != b_ns ? a_ns < b_ns : a < b;
}

static bool naive_packed_before(const struct naive *naive, uint32_t a, uint32_t b)
{
	return naive_before(naive_tensor(naive, a)->pack_ns, a, naive_tensor(naive, b)->pack_ns, b);
}

static bool naive_used_before(const struct naive *naive, uint32_t a, uint32_t b)
{
	return naive_before(naive_tensor(naive, a)->use_ns, a, naive_tensor(naive, b)->use_ns, b);
}

/* ---- Forecast: N(t) ---- */

static int naive_compare(const void *left, const void *right)
{
	const struct naive_change *a = left, *b = right;

	if (a->ns != b->ns)
		return a->ns < b->ns ? -1 : 1;
	if (a->kind != b->kind)
		return a->kind - b->kind;
	return a->tensor < b->tensor ? -1 : a->tensor > b->tensor;
}

static void naive_event_add(struct naive *naive, double ns, int kind, uint32_t tensor)
{
	naive->events[naive->event_count++] = (struct naive_change){ns, 0, kind, tensor, 0};
}

static void naive_forecast_events(struct naive *naive)
{
	for (uint32_t i = 0; i < naive->step->count; i++) {
		const struct spw_plan_tensor *tensor = naive_tensor(naive, i);

		naive_event_add(naive, (double)tensor->pack_ns, 1, i);
		if (tensor->users > 0)
			naive_event_add(naive, (double)tensor->use_ns, 2, i);
		naive_event_add(naive, (double)tensor->release_ns, 3, i);
	}
	for (uint32_t i = 0; i < naive->step->calls; i++)
		naive_event_add(naive, (double)naive->step->calls_ns[i], 4, UINT32_MAX);
	qsort(naive->events, naive->event_count, sizeof(naive->events[0]), naive_compare);
}

static double naive_event_from(const struct naive *naive, double ns)
{
	for (uint32_t k = 0; k < naive->event_count; k++)
		if (naive->events[k].ns >= ns)
			return naive->events[k].ns;
	return NAIVE_NEVER;
}

static double naive_staged(const struct naive *naive, double ns)
{
	double bytes = 0;

	for (uint32_t i = 0; i < naive->step->count; i++)
		if (naive->is_written[i] && naive->written_ns[i] > ns)
			bytes += naive_bytes(naive, i);
	return bytes;
}

/* One after the other, each once it is there: packed, or read. */
static double naive_copied(double before_ns, double there_ns, uint64_t bytes, double byte_ns)
{
	return (before_ns > there_ns ? before_ns : there_ns) + (double)bytes * byte_ns;
}

/* In the order of packing. */
static void naive_forecast_writes(struct naive *naive)
{
	double free_ns = 0, copied_ns = 0;

	for (uint32_t k = 0; k < naive->event_count; k++) {
		uint32_t next = naive->events[k].tensor;
		const struct spw_plan_tensor *tensor;
		double begin, copied;
		bool begins;

		if (naive->events[k].kind != 1)
			continue;
		tensor = naive_tensor(naive, next);
		copied = (double)tensor->pack_ns;
		if (naive->write_copy > 0)
			copied = naive_copied(copied_ns, copied, tensor->bytes, naive->write_copy);
		begin = copied > free_ns ? copied : free_ns;
		begins = begin < naive_wanted(tensor);
		if (naive->choices[next] == SPW_PLAN_HOST && copied < naive_wanted(tensor)) {
			copied_ns = naive->left_ns[next] = copied;
			naive->out[next] = naive_event_from(naive, copied) < naive_wanted(tensor);
			continue;
		}
		if (naive->choices[next] != SPW_PLAN_SPILL || naive->write <= 0 ||
		    (!begins && (naive->write_copy <= 0 || copied >= naive_wanted(tensor))) ||
		    naive_staged(naive, (double)tensor->pack_ns) + (double)tensor->bytes >
			    naive->staging)
			continue;
		if (begins)
			free_ns = begin + (double)tensor->bytes / naive->write;
		copied_ns = copied;
		naive->written_ns[next] = free_ns + naive->write_delay;
		naive->left_ns[next] = naive->write_copy > 0 ? copied : naive->written_ns[next];
		naive->is_written[next] = true;
		naive->out[next] =
			naive_event_from(naive, naive->left_ns[next]) < naive_wanted(tensor);
	}
}

static void naive_forecast(struct naive *naive)
{
	bool given_back[NAIVE_TENSORS_MAX] = {false};
	double bytes = 0;

	naive_forecast_events(naive);
	naive_forecast_writes(naive);
	for (uint32_t k = 0; k < naive->event_count; k++) {
		const struct naive_change *event = &naive->events[k];
		const struct spw_plan_tensor *tensor =
			event->kind == 4 ? NULL : naive_tensor(naive, event->tensor);
		bool leaves = tensor && naive->out[event->tensor];

		if (event->kind == 1 || (event->kind == 2 && leaves))
			bytes += (double)tensor->bytes;
		else if (event->kind == 3 && (tensor->users > 0 || !leaves))
			bytes -= (double)tensor->bytes;
		if (event->kind == 2 && leaves)
			naive->used_at[event->tensor] = naive->change_count;
		if (event->kind != 4 && (event->kind != 2 || leaves))
			naive->changes[naive->change_count++] = (struct naive_change){
				event->ns, bytes, event->kind, event->tensor, k};
		for (uint32_t i = 0; i < naive->step->count; i++) {
			if (!naive->out[i] || given_back[i] || naive->left_ns[i] > event->ns)
				continue;
			given_back[i] = true;
			bytes -= naive_bytes(naive, i);
			naive->changes[naive->change_count++] =
				(struct naive_change){event->ns, bytes, 0, i, k};
		}
	}
}

/* N(s) + bytes of j, j used no later than i but after s  <=  M, for all s until the use of i. */
static bool naive_fits(const struct naive *naive, uint32_t i)
{
	uint32_t from = 0;

	while (from + 1 < naive->change_count &&
	       naive->changes[from + 1].event < naive->events_done)
		from++;
	for (uint32_t k = from; k < naive->change_count; k++) {
		double bytes = naive->changes[k].bytes;

		if (k > from && naive->changes[k].ns >= (double)naive_tensor(naive, i)->use_ns)
			break;
		for (uint32_t j = 0; j < naive->step->count; j++)
			if (j == i ? !naive->out[i] || naive->used_at[i] > k
				   : naive->out[j] && naive_tensor(naive, j)->users > 0 &&
					     naive->used_at[j] > k &&
					     naive_used_before(naive, j, i))
				bytes += naive_bytes(naive, j);
		if (bytes > naive->memory)
			return false;
	}
	return true;
}

/* ---- Now ---- */

/* It waits for the drives, or is written: where are its bytes? */
static bool naive_is_staged(const struct naive *naive, uint32_t i)
{
	return (naive->where[i] == NAIVE_WAITS || naive->where[i] == NAIVE_BEING_WRITTEN) &&
	       naive->staged[i];
}

static double naive_in_use(const struct naive *naive)
{
	bool of_device = naive->write_copy > 0;
	double bytes = 0;

	for (uint32_t i = 0; i < naive->step->count; i++)
		if ((naive->where[i] != NAIVE_NOT_YET && naive->where[i] != NAIVE_ON_DRIVES &&
		     naive->where[i] != NAIVE_DEAD && !naive_is_staged(naive, i)) ||
		    (of_device ? naive->copy_open[i] : naive->write_open[i]))
			bytes += naive_bytes(naive, i);
	return bytes;
}

static void naive_begin_write(struct naive *naive)
{
	uint32_t next = UINT32_MAX;

	if (naive->writing != UINT32_MAX || naive->write <= 0)
		return;
	for (uint32_t i = 0; i < naive->step->count; i++)
		if (naive->where[i] == NAIVE_WAITS && naive->choices[i] == SPW_PLAN_SPILL &&
		    (next == UINT32_MAX || naive_packed_before(naive, i, next)))
			next = i;
	if (next == UINT32_MAX || naive->copy_ends[next] > naive->now + NAIVE_TIE)
		return;
	naive->where[next] = NAIVE_BEING_WRITTEN;
	naive->write_open[next] = true;
	naive->writing = next;
	naive->write_left = naive_bytes(naive, next);
	naive->written += naive->write_left;
}

/* Return: whether something changed. */
static bool naive_prefetch(struct naive *naive)
{
	uint32_t next = UINT32_MAX;

	if (naive->reading != UINT32_MAX)
		return false;
	for (uint32_t i = 0; i < naive->step->count; i++)
		if (naive->choices[i] != SPW_PLAN_KEEP && naive_tensor(naive, i)->users > 0 &&
		    !naive->use_done[i] && naive->where[i] != NAIVE_IN_MEMORY &&
		    naive->where[i] != NAIVE_BEING_READ &&
		    (next == UINT32_MAX || naive_used_before(naive, i, next)))
			next = i;
	if (next == UINT32_MAX || naive->where[next] == NAIVE_NOT_YET)
		return false;
	if (naive->where[next] != NAIVE_ON_DRIVES && !naive_is_staged(naive, next)) {
		if (naive->out[next] && !naive_fits(naive, next))
			return false;
		naive->where[next] = NAIVE_IN_MEMORY;
		return true;
	}
	double size = naive_bytes(naive, next);

	if (naive->awaited != next &&
	    (naive_in_use(naive) + size > naive->memory || !naive_fits(naive, next)))
		return false;
	naive->read_left = naive_is_staged(naive, next) ? 0 : size;
	naive->where[next] = NAIVE_BEING_READ;
	naive->reading = next;
	naive->bytes_read += naive->read_left;
	return true;
}

/* Bytes that wait, or are being written, whatever else became of them. */
static bool naive_fits_staging(const struct naive *naive, uint32_t which)
{
	double bytes = naive_bytes(naive, which), stay = bytes;

	for (uint32_t i = 0; i < naive->step->count; i++)
		if (naive->where[i] == NAIVE_WAITS ||
		    (naive->write_open[i] && !naive->write_over[i])) {
			bytes += naive_bytes(naive, i);
			if (naive->choices[i] == SPW_PLAN_HOST)
				stay += naive_bytes(naive, i);
		}
	return bytes <= naive->staging &&
	       (naive->choices[which] != SPW_PLAN_HOST || stay <= naive->host);
}

/* What has been written until compute does something. */
static void naive_give_back(struct naive *naive)
{
	for (uint32_t i = 0; i < naive->step->count; i++) {
		if (naive->copy_open[i] && naive->copy_ends[i] <= naive->now + NAIVE_TIE) {
			naive->copy_open[i] = false;
			naive->staged[i] = true;
		}
		if (!naive->write_over[i])
			continue;
		naive->write_over[i] = naive->write_open[i] = false;
		if (naive->where[i] == NAIVE_BEING_WRITTEN)
			naive->where[i] = NAIVE_ON_DRIVES;
	}
}

static void naive_note_peak(struct naive *naive)
{
	double bytes = naive_in_use(naive);

	if (bytes > naive->peak)
		naive->peak = bytes;
}

/* Compute does the next thing, or waits for what it uses. */
static void naive_compute(struct naive *naive)
{
	const struct naive_change *event = &naive->events[naive->events_done];
	uint32_t i = event->tensor;

	if (event->kind == 1) {
		naive->where[i] = naive->choices[i] != SPW_PLAN_KEEP && naive_fits_staging(naive, i)
					  ? NAIVE_WAITS
					  : NAIVE_IN_MEMORY;
		if (naive->where[i] == NAIVE_WAITS && naive->choices[i] == SPW_PLAN_HOST)
			naive->hosted += naive_bytes(naive, i);
		if (naive->where[i] == NAIVE_WAITS && naive->write_copy > 0) {
			naive->write_copied =
				naive_copied(naive->write_copied, naive->now,
					     naive_tensor(naive, i)->bytes, naive->write_copy);
			naive->copy_ends[i] = naive->write_copied;
			naive->copy_open[i] = true;
		}
	} else if (event->kind == 2) {
		if (naive->where[i] == NAIVE_ON_DRIVES || naive->where[i] == NAIVE_BEING_READ ||
		    naive_is_staged(naive, i)) {
			naive->awaited = i;
			return;
		}
		naive->use_done[i] = true;
		naive->where[i] = NAIVE_IN_MEMORY;
	} else if (event->kind == 3) {
		naive->released++;
		naive->where[i] = NAIVE_DEAD;
	}
	naive->events_done++;
	naive_note_peak(naive);
	naive_give_back(naive);
}

static void naive_io_end(struct naive *naive, uint32_t i, bool write)
{
	if (write) {
		naive->write_ends[i] = NAIVE_NEVER;
		naive->write_over[i] = true;
		return;
	}
	naive->read_ends[i] = NAIVE_NEVER;
	naive->where[i] = NAIVE_IN_MEMORY;
	if (naive->awaited == i) {
		naive->awaited = UINT32_MAX;
		naive->use_done[i] = true;
		naive->stall = naive->now - naive->events[naive->events_done++].ns;
		naive_give_back(naive);
	}
}

/* Of those that wait, the first is copied: its write can begin. */
static double naive_copy_ends(const struct naive *naive)
{
	double ns = NAIVE_NEVER;

	for (uint32_t i = 0; i < naive->step->count; i++)
		if (naive->where[i] == NAIVE_WAITS && naive->choices[i] == SPW_PLAN_SPILL &&
		    naive->copy_ends[i] > naive->now && naive->copy_ends[i] < ns)
			ns = naive->copy_ends[i];
	return ns;
}

/* Return: whether something happened. */
static bool naive_advance(struct naive *naive)
{
	bool both = naive->writing != UINT32_MAX && naive->reading != UINT32_MAX;
	double write_rate =
		both && naive->mixed / 2 < naive->write ? naive->mixed / 2 : naive->write;
	double read_rate = both && naive->mixed / 2 < naive->read ? naive->mixed / 2 : naive->read;
	double when[6] = {NAIVE_NEVER, NAIVE_NEVER, NAIVE_NEVER,
			  NAIVE_NEVER, NAIVE_NEVER, naive_copy_ends(naive)},
	       next = NAIVE_NEVER;
	uint32_t who[4] = {naive->writing, 0, naive->reading, 0};
	int what = 0;

	if (naive->writing != UINT32_MAX && write_rate > 0)
		when[0] = naive->now + naive->write_left / write_rate;
	if (naive->reading != UINT32_MAX && naive->read_left <= 0)
		when[2] = naive->now; /* it is only copied */
	else if (naive->reading != UINT32_MAX && read_rate > 0)
		when[2] = naive->now + naive->read_left / read_rate;
	for (uint32_t i = 0; i < naive->step->count; i++) {
		if (naive->write_ends[i] < when[1])
			when[1] = naive->write_ends[who[1] = i];
		if (naive->read_ends[i] < when[3])
			when[3] = naive->read_ends[who[3] = i];
	}
	if (naive->awaited == UINT32_MAX)
		when[4] = naive->events[naive->events_done].ns + naive->stall;
	for (int k = 0; k < 6; k++)
		next = when[k] < next ? when[k] : next;
	if (next >= NAIVE_NEVER)
		return false;
	while (when[what] > next + NAIVE_TIE)
		what++;
	next = when[what] > naive->now ? when[what] : naive->now;
	naive->write_left -= naive->writing != UINT32_MAX ? write_rate * (next - naive->now) : 0;
	naive->read_left -= naive->reading != UINT32_MAX ? read_rate * (next - naive->now) : 0;
	naive->now = next;
	if (what == 0) {
		naive->write_ends[who[0]] = next + naive->write_delay;
		naive->writing = UINT32_MAX;
	} else if (what == 2) {
		naive->read_copied =
			naive_copied(naive->read_copied, next, naive_tensor(naive, who[2])->bytes,
				     naive->read_copy);
		naive->read_ends[who[2]] = naive->read_copied;
		if (naive->choices[who[2]] != SPW_PLAN_HOST)
			naive->read_ends[who[2]] += naive->read_delay;
		/* No read ends before one that began earlier. */
		for (uint32_t i = 0; i < naive->step->count; i++)
			if (naive->read_ends[i] < NAIVE_NEVER &&
			    naive->read_ends[i] > naive->read_ends[who[2]])
				naive->read_ends[who[2]] = naive->read_ends[i];
		naive->reading = UINT32_MAX;
	} else if (what == 4) {
		naive_compute(naive);
	} else if (what < 4) {
		naive_io_end(naive, who[what], what == 1);
	}
	return true;
}

static void naive_bus(double *rate, uint64_t bus_bytes_per_second, double *byte_ns)
{
	if (bus_bytes_per_second == 0)
		return;
	*byte_ns = 1e9 / (double)bus_bytes_per_second;
	if (*rate * *byte_ns > 1)
		*rate = 1 / *byte_ns;
}

static void naive_open(struct naive *naive, const struct spw_plan_step *step,
		       const struct spw_plan_drives *drives, double memory,
		       const enum spw_plan_choice *choices)
{
	uint64_t mixed = drives->mixed_bytes_per_second;

	memset(naive, 0, sizeof(*naive));
	if (mixed == 0)
		mixed = drives->write_bytes_per_second < drives->read_bytes_per_second
				? drives->write_bytes_per_second
				: drives->read_bytes_per_second;
	naive->step = step;
	naive->choices = choices;
	naive->memory = memory;
	naive->staging = drives->staging_bytes > 0 ? (double)drives->staging_bytes : NAIVE_NEVER;
	naive->host = (double)drives->host_bytes;
	if (naive->staging < naive->host)
		naive->staging = naive->host;
	naive->write = (double)drives->write_bytes_per_second / 1e9;
	naive->read = (double)drives->read_bytes_per_second / 1e9;
	naive->mixed = (double)mixed / 1e9;
	naive->write_delay = (double)drives->latency_ns;
	naive->read_delay = (double)drives->latency_ns;
	if (naive->write > 0)
		naive->write_delay += (double)drives->chunk_bytes / naive->write;
	if (naive->read > 0)
		naive->read_delay += (double)drives->chunk_bytes / naive->read;
	if (drives->bus_out_bytes_per_second > 0)
		naive->write_copy = 1e9 / (double)drives->bus_out_bytes_per_second;
	naive_bus(&naive->read, drives->bus_in_bytes_per_second, &naive->read_copy);
	naive->writing = naive->reading = naive->awaited = UINT32_MAX;
	for (uint32_t i = 0; i < step->count; i++)
		naive->write_ends[i] = naive->read_ends[i] = NAIVE_NEVER;
}

/* Return: whether the step ended. */
static bool naive_simulate(struct naive *naive)
{
	naive_forecast(naive);
	while (naive->released < naive->step->count) {
		if (!naive_advance(naive))
			return false;
		naive_begin_write(naive);
		while (naive_prefetch(naive))
			continue;
		naive_note_peak(naive);
	}
	return true;
}

#endif
