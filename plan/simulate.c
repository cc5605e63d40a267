/* SPDX-License-Identifier: MIT */
/*
 * plan/simulate.c - simulate a step event by event: compute, a writer, a reader, drives that both
 * share
 *
 * The states of a tensor
 *   ABSENT -> KEPT -> GONE                                              kept
 *   ABSENT -> QUEUED -> WRITING -> STORED -> READING -> RESIDENT -> GONE  spilled
 *   QUEUED, WRITING -> RESIDENT                                         forwarded
 *   QUEUED, WRITING, STORED -> GONE                                     released without a use
 * and of a device, whose memory is free once it has been copied
 *   QUEUED -> STAGED -> STAGED_WRITING -> STORED
 *   QUEUED -> WRITING -> STAGED_WRITING                 written before compute learns of its copy
 *   STAGED, STAGED_WRITING -> READING                   forwarded: it is only copied back
 *
 * The memory of a tensor whose write or copy has ended is released by the next event of compute,
 * even if the tensor is gone before that.
 */
#include "plan/internal.h"

#include <math.h>
#include <string.h>

#include "util/util.h"

#define NO_TENSOR UINT32_MAX
/* Times closer than this differ only by rounding, and are handled in a fixed order. */
#define TIE_NS 1e-3

/* Where a tensor is in the simulated step. */
enum state {
	ABSENT,
	KEPT,
	QUEUED,
	WRITING,
	STAGED,         /* off the device: its copy in the host waits to be written */
	STAGED_WRITING, /* off the device: its copy in the host is being written */
	STORED,
	READING,
	RESIDENT,
	GONE,
};

/* A FIFO of transfers: first those whose last requests are ending, then the one being served. */
struct channel {
	uint32_t *order; /* in the order of service */
	double *end_ns;  /* ends of the transfers that have been served */
	uint32_t ended;
	uint32_t served;
	uint32_t begun;       /* as many as served, or one more */
	double alone, shared; /* rates: if only this direction runs, and if both run */
	double delay_ns;
	/* the bus: time per byte, and when it has copied everything given to it */
	double copy_ns, copied_ns;
	/* end of the current transfer's service; PLAN_NEVER_NS: never, or no transfer */
	double served_ns;
	double rate;
	double remaining; /* bytes left at since_ns */
	double since_ns;
	double begun_ns;
};

struct simulation {
	struct plan_work *work;
	const uint8_t *spill;
	struct plan_outcome *outcome;
	struct plan_profile *profile;
	uint8_t *state;
	uint8_t *in_flight; /* being written or copied out, and its memory not yet released */
	struct channel write, read;
	uint32_t *queue; /* tensors to be written, in the order of packing */
	uint32_t queue_head, queue_tail;
	uint32_t reaped;     /* of the writes that have ended: compute knows */
	uint32_t queue_left; /* of the queue: copied, and compute knows */
	bool other_rates;    /* a transfer has begun or been served */
	double staged;       /* bytes that wait to be written, are being written, or stay */
	double hosted;       /* those that stay in host memory */
	double now_ns;
	double behind_ns; /* wall time minus compute time */
	uint32_t event;
	uint32_t awaited; /* the tensor that compute waits for, or NO_TENSOR */
	double bytes;
	double least_bytes; /* sums of sizes beyond 2^53 are rounded: this far below 0 */
	/* prefetch */
	uint32_t head; /* index in the order of use: the next to be read */
	double ahead;  /* unthrottled: bytes before head that leave memory in the forecast */
	double left;   /* share of the drives' time that background traffic leaves */
	const struct plan_held *held;
	const double *most; /* held->most; throttled: held->net */
	double leaving;     /* bytes that will be released once they have been written, or copied */
	bool no_room;       /* compute waits until what it packs next fits */
	double again_ns;    /* begin of the current recomputation */
	/* a queue in held->window of events with more memory in use than all later events */
	uint32_t window_head, window_tail, window_next;
};

static struct channel channel_of(const struct plan_transfers *transfers, double alone, double mixed,
				 double delay_ns, double copy_ns)
{
	return (struct channel){.order = transfers->order,
				.end_ns = transfers->end_ns,
				.alone = alone,
				.shared = alone > mixed / 2 ? mixed / 2 : alone,
				.delay_ns = delay_ns,
				.copy_ns = copy_ns,
				.served_ns = PLAN_NEVER_NS};
}

/* ---- Invariants ---- */

/* Check an invariant. A simulation in which one fails ends at once. */
static bool holds(struct simulation *sim, bool condition)
{
	if (unlikely(!condition))
		sim->outcome->abandoned = true;
	return condition;
}

static bool is_account(const struct simulation *sim, double bytes)
{
	return bytes >= sim->least_bytes;
}

static void unstage(struct simulation *sim, uint32_t i)
{
	sim->staged -= sim->work->bytes[i];
	if (sim->work->in_host[i])
		sim->hosted -= sim->work->bytes[i];
	(void)holds(sim, PLAN_HOLDS(is_account(sim, sim->staged) && is_account(sim, sim->hosted)));
}

static void leave(struct simulation *sim, uint32_t i)
{
	sim->leaving -= sim->work->bytes[i];
	(void)holds(sim, PLAN_HOLDS(is_account(sim, sim->leaving)));
}

/* ---- The drives ---- */

static bool is_busy(const struct channel *channel)
{
	return channel->begun > channel->served;
}

/* When the drives have served the current transfer. A mere copy does not wait for them. */
static double served_ns(const struct channel *channel)
{
	if (channel->remaining <= 0)
		return channel->since_ns;
	return channel->rate > 0 ? channel->since_ns + channel->remaining / channel->rate
				 : PLAN_NEVER_NS;
}

/* Begin a transfer. @bytes: moved by the drives; 0: the tensor is only copied */
static void begin_service(struct simulation *sim, struct channel *channel, uint32_t i, double bytes)
{
	(void)holds(sim, PLAN_HOLDS(!is_busy(channel)));
	channel->order[channel->begun++] = i;
	channel->remaining = bytes;
	channel->since_ns = channel->begun_ns = sim->now_ns;
	channel->rate = 0;
	channel->served_ns = served_ns(channel);
	sim->other_rates = true;
}

static uint64_t whole_ns(double ns)
{
	return (uint64_t)(ns < PLAN_LONGEST_NS ? ns : PLAN_LONGEST_NS);
}

static void add_span(const struct simulation *sim, enum spw_plan_span_kind kind, uint32_t which,
		     double begin_ns)
{
	struct plan_spans *spans = sim->held->spans;

	if (!spans || spans->count >= spans->spans_max)
		return;
	spans->spans[spans->count++] = (struct spw_plan_span){.begin_ns = whole_ns(begin_ns),
							      .end_ns = whole_ns(sim->now_ns),
							      .kind = kind,
							      .which = which};
}

/* Give a tensor to the bus, which copies one after the other. Return: the end of the copy. */
static double copied_ns(const struct simulation *sim, struct channel *channel, uint32_t i)
{
	if (channel->copied_ns < sim->now_ns)
		channel->copied_ns = sim->now_ns;
	channel->copied_ns += sim->work->bytes[i] * channel->copy_ns;
	return channel->copied_ns;
}

static void service_ended(struct simulation *sim, struct channel *channel)
{
	bool reads = channel == &sim->read;
	uint32_t i = channel->order[channel->served];
	double ended_ns = reads ? copied_ns(sim, channel, i) : sim->now_ns;

	add_span(sim, reads ? SPW_PLAN_SPAN_READ : SPW_PLAN_SPAN_WRITE, i, channel->begun_ns);
	/* Nothing of it is on the drives. */
	if (reads && sim->work->in_host[i]) {
		if (channel->served > 0 && channel->end_ns[channel->served - 1] > ended_ns)
			ended_ns = channel->end_ns[channel->served - 1];
	} else {
		ended_ns += channel->delay_ns;
	}
	channel->end_ns[channel->served++] = ended_ns;
	channel->served_ns = PLAN_NEVER_NS;
	sim->other_rates = true;
}

static void set_rate(struct channel *channel, double rate, double now_ns)
{
	if (!is_busy(channel) || channel->rate == rate)
		return;
	channel->remaining -= channel->rate * (now_ns - channel->since_ns);
	if (channel->remaining < 0)
		channel->remaining = 0;
	channel->since_ns = now_ns;
	channel->rate = rate;
	channel->served_ns = served_ns(channel);
}

/* Set the rates. If both directions run, each gets half of the mixed bandwidth, at most its own. */
static void share_drives(struct simulation *sim)
{
	bool both = is_busy(&sim->write) && is_busy(&sim->read);
	/* Two flows may need more than the whole bandwidth. */
	double left = sim->left > 0 ? sim->left : 0;

	set_rate(&sim->write, (both ? sim->write.shared : sim->write.alone) * left, sim->now_ns);
	set_rate(&sim->read, (both ? sim->read.shared : sim->read.alone) * left, sim->now_ns);
	sim->other_rates = false;
}

/* ---- Memory ---- */

static void change_memory(struct simulation *sim, double bytes)
{
	struct plan_profile *profile = sim->profile;

	sim->bytes += bytes;
	(void)holds(sim, PLAN_HOLDS(is_account(sim, sim->bytes)));
	if (sim->bytes > sim->outcome->peak)
		sim->outcome->peak = sim->bytes;
	if (!profile || profile->count >= profile->points_max)
		return;
	profile->points[profile->count++] = (struct spw_plan_point){
		.ns = whole_ns(sim->now_ns), .bytes = sim->bytes > 0 ? (uint64_t)sim->bytes : 0};
}

/* Forward a tensor: it stays in memory. */
static void forward(struct simulation *sim, uint32_t i)
{
	(void)holds(sim, PLAN_HOLDS(sim->state[i] == QUEUED || sim->state[i] == WRITING));
	if (sim->state[i] == QUEUED)
		unstage(sim, i);
	leave(sim, i);
	sim->state[i] = RESIDENT;
	sim->outcome->forwarded += sim->work->bytes[i];
}

static bool is_staged(enum state state)
{
	return state == STAGED || state == STAGED_WRITING;
}

/* ---- Prefetch ---- */

static void next_read(struct simulation *sim, uint32_t i)
{
	sim->head++;
	if (!sim->held->throttled && sim->spill[i] && sim->work->forecast.out[i])
		sim->ahead += sim->work->bytes[i];
}

/*
 * Begin a read. A staged tensor is copied back from staging memory, and its write is cancelled if
 * it has not begun.
 */
static void begin_read(struct simulation *sim, uint32_t i)
{
	double bytes = sim->work->bytes[i];
	bool staged = is_staged(sim->state[i]);

	(void)holds(sim, PLAN_HOLDS(sim->spill[i] && (staged || sim->state[i] == STORED)));
	if (sim->state[i] == STAGED)
		unstage(sim, i);
	if (!sim->work->in_host[i])
		*(staged ? &sim->outcome->forwarded : &sim->outcome->read) += bytes;
	sim->state[i] = READING;
	begin_service(sim, &sim->read, i, staged ? 0 : bytes);
	next_read(sim, i);
	change_memory(sim, bytes);
}

static double now_of(const struct simulation *sim)
{
	return sim->event > 0 ? sim->held->net[sim->event - 1] : 0;
}

/* The maximum of held->most until event @end, and the current held->net. */
static double most_until(struct simulation *sim, uint32_t end)
{
	const struct plan_held *held = sim->held;
	double now = now_of(sim), most;

	for (; sim->window_next < end; sim->window_next++) {
		most = sim->most[sim->window_next];
		while (sim->window_tail > sim->window_head &&
		       sim->most[held->window[sim->window_tail - 1]] <= most)
			sim->window_tail--;
		held->window[sim->window_tail++] = sim->window_next;
	}
	while (sim->window_head < sim->window_tail && held->window[sim->window_head] < sim->event)
		sim->window_head++;
	if (sim->window_head == sim->window_tail)
		return now;
	most = sim->most[held->window[sim->window_head]];
	return most > now ? most : now;
}

/* Whether @bytes more fit, throttled: from now to the use of @i, without other transfers. */
static inline bool fits_throttled(struct simulation *sim, uint32_t i, double bytes)
{
	double limit = sim->held->limit + PLAN_TOLERANCE_BYTES, rise;

	/* If nothing else will make room, read the tensor that compute waits for. */
	if (sim->awaited == i)
		return sim->bytes + bytes <= limit || sim->leaving < PLAN_TOLERANCE_BYTES;
	rise = most_until(sim, sim->held->use_event[i]) - now_of(sim);
	return sim->bytes + bytes + rise <= limit;
}

/*
 * Whether @bytes more fit, if unthrottled: by the rule of plan/plan.c. A tensor that is not in
 * memory must also fit now, as writes and releases may be late. Not inlined, for the speed of the
 * throttled search.
 */
__attribute__((noinline)) static bool fits_planned(struct simulation *sim, uint32_t i, double bytes)
{
	double limit = sim->held->limit, size = sim->work->bytes[i];

	if (bytes > 0 && sim->awaited == i)
		return true;
	if (bytes == 0 && !sim->work->forecast.out[i])
		return true;
	return (bytes == 0 || sim->bytes + bytes <= limit) &&
	       most_until(sim, sim->held->use_event[i]) <= limit - sim->ahead - size;
}

static inline bool fits(struct simulation *sim, uint32_t i, double bytes)
{
	return sim->held->throttled ? fits_throttled(sim, i, bytes) : fits_planned(sim, i, bytes);
}

/* Begin reads in the order of use. A tensor still in memory at its turn stays there if it fits. */
static void prefetch(struct simulation *sim)
{
	const struct plan_work *work = sim->work;

	while (sim->head < work->count && !is_busy(&sim->read)) {
		uint32_t i = work->by_use[sim->head];
		enum state state = sim->state[i];

		if (!work->used[i] || !sim->spill[i])
			sim->head++;
		else if (state == KEPT || state == RESIDENT || state == GONE)
			next_read(sim, i);
		else if ((state == STORED || is_staged(state)) && fits(sim, i, work->bytes[i]))
			begin_read(sim, i);
		else if ((state == QUEUED || state == WRITING) && fits(sim, i, 0))
			forward(sim, i);
		else
			return;
	}
}

/* ---- Writing ---- */

/* Whether the step is a device's, whose memory is free after the copy. */
static bool is_of_device(const struct simulation *sim)
{
	return sim->write.copy_ns > 0;
}

static bool is_copied(const struct simulation *sim, uint32_t i)
{
	return sim->work->copied_ns[i] <= sim->now_ns + TIE_NS;
}

static void begin_write(struct simulation *sim)
{
	if (sim->work->alone.write <= 0)
		return;
	for (; !is_busy(&sim->write) && sim->queue_head < sim->queue_tail; sim->queue_head++) {
		uint32_t i = sim->queue[sim->queue_head];

		if (sim->state[i] != QUEUED && sim->state[i] != STAGED)
			continue; /* forwarded or released: the write is cancelled */
		if (sim->work->in_host[i])
			continue;
		if (is_of_device(sim) && !is_copied(sim, i))
			return;
		sim->state[i] = sim->state[i] == STAGED ? STAGED_WRITING : WRITING;
		if (!is_of_device(sim))
			sim->in_flight[i] = 1;
		begin_service(sim, &sim->write, i, sim->work->bytes[i]);
		sim->outcome->written += sim->work->bytes[i];
	}
}

/* When the next write can begin, if it only waits for its tensor's copy. */
static double copy_ends_ns(const struct simulation *sim)
{
	if (!is_of_device(sim) || is_busy(&sim->write) || sim->queue_head == sim->queue_tail ||
	    sim->work->alone.write <= 0)
		return PLAN_NEVER_NS;
	return sim->work->copied_ns[sim->queue[sim->queue_head]];
}

static void end_writes(struct simulation *sim)
{
	struct channel *write = &sim->write;

	for (; write->ended < write->served && write->end_ns[write->ended] <= sim->now_ns + TIE_NS;
	     write->ended++)
		unstage(sim, write->order[write->ended]);
}

/* Release tensors that have been copied from a device. */
static void reap_copied(struct simulation *sim)
{
	for (; sim->queue_left < sim->queue_tail && is_copied(sim, sim->queue[sim->queue_left]);
	     sim->queue_left++) {
		uint32_t i = sim->queue[sim->queue_left];

		sim->in_flight[i] = 0;
		if (sim->state[i] == QUEUED)
			sim->state[i] = STAGED;
		else if (sim->state[i] == WRITING)
			sim->state[i] = STAGED_WRITING;
		else if (sim->state[i] != GONE)
			continue;
		leave(sim, i);
		change_memory(sim, -sim->work->bytes[i]);
	}
}

/* At an event of compute, release the memory of tensors written by then. */
static void reap(struct simulation *sim)
{
	if (is_of_device(sim))
		reap_copied(sim);
	for (; sim->reaped < sim->write.ended; sim->reaped++) {
		uint32_t i = sim->write.order[sim->reaped];

		if (is_of_device(sim)) {
			if (sim->state[i] == STAGED_WRITING)
				sim->state[i] = STORED;
			continue;
		}
		sim->in_flight[i] = 0;
		if (sim->state[i] == WRITING)
			sim->state[i] = STORED;
		if (sim->state[i] != STORED && sim->state[i] != GONE)
			continue;
		leave(sim, i);
		change_memory(sim, -sim->work->bytes[i]);
	}
}

/* ---- Compute ---- */

static bool has_host_room(const struct simulation *sim, uint32_t i)
{
	const struct plan_work *work = sim->work;

	return !work->in_host[i] || sim->hosted + work->bytes[i] <= work->host;
}

static void stay_in_host(struct simulation *sim, uint32_t i)
{
	struct plan_outcome *outcome = sim->outcome;

	if (sim->work->in_host[i]) {
		sim->hosted += sim->work->bytes[i];
		outcome->hosted += sim->work->bytes[i];
	}
	if (sim->work->host > 0 && sim->staged > outcome->host_peak)
		outcome->host_peak = sim->staged;
}

static void pack(struct simulation *sim, uint32_t i)
{
	double bytes = sim->work->bytes[i];

	if (!holds(sim, PLAN_HOLDS(sim->state[i] == ABSENT)))
		return;
	change_memory(sim, bytes);
	if (sim->held->packed_ns)
		sim->held->packed_ns[i] = whole_ns(sim->now_ns);
	sim->state[i] = KEPT;
	if (!sim->spill[i] || sim->staged + bytes > sim->work->staging || !has_host_room(sim, i))
		return;
	sim->state[i] = QUEUED;
	sim->staged += bytes;
	stay_in_host(sim, i);
	sim->leaving += bytes;
	sim->queue[sim->queue_tail++] = i;
	if (!is_of_device(sim))
		return;
	sim->in_flight[i] = 1;
	sim->work->copied_ns[i] = copied_ns(sim, &sim->write, i);
}

/* Use a tensor. Return: false if compute has to wait for it. */
static bool use(struct simulation *sim, uint32_t i)
{
	if (!holds(sim, PLAN_HOLDS(sim->state[i] != ABSENT && sim->state[i] != GONE)))
		return true;
	if (sim->state[i] == STORED || sim->state[i] == READING || is_staged(sim->state[i])) {
		sim->awaited = i;
		return false;
	}
	if (sim->state[i] == QUEUED || sim->state[i] == WRITING)
		forward(sim, i);
	return true;
}

static void release(struct simulation *sim, uint32_t i)
{
	enum state state = sim->state[i];

	if (!holds(sim, PLAN_HOLDS(state != ABSENT && state != READING && state != GONE)))
		return;
	if (state == QUEUED || state == STAGED)
		unstage(sim, i);
	if (state == QUEUED && !sim->in_flight[i])
		leave(sim, i);
	/* A forwarded tensor did not leave memory; now it does, when its write ends. */
	if (state == RESIDENT && sim->in_flight[i])
		sim->leaving += sim->work->bytes[i];
	sim->state[i] = GONE;
	if (state != STORED && !is_staged(state) && !sim->in_flight[i])
		change_memory(sim, -sim->work->bytes[i]);
}

static void end_reads(struct simulation *sim)
{
	struct channel *read = &sim->read;

	for (; read->ended < read->served && read->end_ns[read->ended] <= sim->now_ns + TIE_NS;
	     read->ended++) {
		(void)holds(sim, PLAN_HOLDS(sim->state[read->order[read->ended]] == READING));
		sim->state[read->order[read->ended]] = RESIDENT;
	}
}

static void begin_flow(struct simulation *sim, uint32_t flow)
{
	sim->held->flow_end_ns[flow] = sim->now_ns + sim->held->flows[flow].ns;
	sim->left -= sim->held->flows[flow].share;
	sim->other_rates = true;
}

/* The time until which compute waits at most before it packs @i. */
static double held_until_ns(const struct simulation *sim, uint32_t i)
{
	return sim->held->until_ns ? (double)sim->held->until_ns[i] : PLAN_NEVER_NS;
}

/* Whether compute may pack @i; if not, it waits for what is leaving memory. */
static bool has_room(const struct simulation *sim, uint32_t i)
{
	return !sim->held->throttled || sim->leaving < PLAN_TOLERANCE_BYTES ||
	       sim->bytes + sim->work->bytes[i] <= sim->held->limit + PLAN_TOLERANCE_BYTES ||
	       sim->now_ns + TIE_NS >= held_until_ns(sim, i);
}

static void compute(struct simulation *sim)
{
	const struct plan_event *event = &sim->work->events[sim->event];

	(void)holds(sim, PLAN_HOLDS(sim->now_ns + TIE_NS >= event->ns));
	end_writes(sim);
	end_reads(sim);
	if (sim->held->throttled && event->kind == PLAN_PACK) {
		reap(sim);
		sim->no_room = !has_room(sim, event->tensor);
		if (sim->no_room)
			return;
	}
	if (event->kind == PLAN_FLOW)
		begin_flow(sim, event->tensor);
	else if (event->kind == PLAN_RECOMPUTE_BEGIN)
		sim->again_ns = sim->now_ns;
	else if (event->kind == PLAN_RECOMPUTE_END)
		add_span(sim, SPW_PLAN_SPAN_AGAIN, event->tensor, sim->again_ns);
	else if (event->kind == PLAN_PACK)
		pack(sim, event->tensor);
	else if (event->kind == PLAN_RELEASE)
		release(sim, event->tensor);
	else if (event->kind == PLAN_USE && !use(sim, event->tensor))
		return;
	sim->event++;
	reap(sim);
}

/* Compute continues after a wait. */
static void catch_up(struct simulation *sim)
{
	double planned_ns = sim->work->events[sim->event].ns;

	add_span(sim, SPW_PLAN_SPAN_WAIT, sim->work->events[sim->event].tensor,
		 planned_ns + sim->behind_ns);
	(void)holds(sim, PLAN_HOLDS(sim->now_ns - planned_ns + TIE_NS >= sim->behind_ns));
	sim->behind_ns = sim->now_ns - planned_ns;
}

/* A read has ended while compute waits. */
static void read_ended(struct simulation *sim)
{
	uint32_t i = sim->read.order[sim->read.ended++];

	(void)holds(sim, PLAN_HOLDS(sim->state[i] == READING && sim->awaited != NO_TENSOR));
	sim->state[i] = RESIDENT;
	if (sim->awaited != i)
		return;
	end_writes(sim);
	sim->awaited = NO_TENSOR;
	catch_up(sim);
	sim->event++;
	reap(sim);
}

/*
 * A transfer has ended while compute waits, within a limit: then compute also reaps writes, and
 * sees whether there is room.
 */
static void woken(struct simulation *sim)
{
	const struct channel *read = &sim->read;

	if (sim->awaited != NO_TENSOR && read->ended < read->served &&
	    read->end_ns[read->ended] <= sim->now_ns + TIE_NS) {
		read_ended(sim);
		return;
	}
	end_writes(sim);
	reap(sim);
	if (!sim->no_room)
		return;
	end_reads(sim);
	if (has_room(sim, sim->work->events[sim->event].tensor)) {
		catch_up(sim);
		compute(sim);
	}
}

/* ---- Time ---- */

static double next_end_ns(const struct channel *channel)
{
	return channel->ended < channel->served ? channel->end_ns[channel->ended] : PLAN_NEVER_NS;
}

/* The next time at which memory can be released. */
static double next_left_ns(const struct simulation *sim)
{
	if (!is_of_device(sim))
		return next_end_ns(&sim->write);
	return sim->queue_left < sim->queue_tail ? sim->work->copied_ns[sim->queue[sim->queue_left]]
						 : PLAN_NEVER_NS;
}

/* When the first of the running flows ends. */
static double flows_ns(const struct simulation *sim, uint32_t *which)
{
	double first_ns = PLAN_NEVER_NS;

	for (uint32_t k = 0; k < sim->held->flows_count; k++)
		if (sim->held->flow_end_ns[k] < first_ns) {
			first_ns = sim->held->flow_end_ns[k];
			*which = k;
		}
	return first_ns;
}

static void flow_ended(struct simulation *sim, uint32_t flow)
{
	(void)holds(sim, PLAN_HOLDS(sim->held->flow_end_ns[flow] < PLAN_NEVER_NS));
	sim->held->flow_end_ns[flow] = PLAN_NEVER_NS;
	sim->left += sim->held->flows[flow].share;
	sim->other_rates = true;
}

/* When compute continues, as far as known. */
static double compute_ns(const struct simulation *sim)
{
	double write_ns, read_ns;

	if (sim->awaited == NO_TENSOR && !sim->no_room)
		return sim->work->events[sim->event].ns + sim->behind_ns;
	read_ns = sim->awaited != NO_TENSOR ? next_end_ns(&sim->read) : PLAN_NEVER_NS;
	write_ns = sim->held->throttled ? next_left_ns(sim) : PLAN_NEVER_NS;
	if (sim->no_room)
		write_ns = fmin(write_ns, held_until_ns(sim, sim->work->events[sim->event].tensor));
	return read_ns < write_ns ? read_ns : write_ns;
}

static void move_to(struct simulation *sim, double ns)
{
	if (ns > sim->now_ns)
		sim->now_ns = ns;
}

static void compute_or_wait(struct simulation *sim)
{
	if (sim->awaited == NO_TENSOR && !sim->no_room)
		compute(sim);
	else if (sim->held->throttled)
		woken(sim);
	else
		read_ended(sim);
}

/* Advance to whatever happens next. Return: false if nothing does. */
static bool advance(struct simulation *sim)
{
	double write_ns = sim->write.served_ns, read_ns = sim->read.served_ns,
	       next_ns = compute_ns(sim), copy_ns = copy_ends_ns(sim);
	uint32_t flow = 0;

	if (sim->held->flows_count > 0) {
		double flow_ns = flows_ns(sim, &flow);

		if (flow_ns < write_ns && flow_ns < read_ns && flow_ns < next_ns &&
		    flow_ns < copy_ns) {
			move_to(sim, flow_ns);
			flow_ended(sim, flow);
			return true;
		}
	}
	if (copy_ns < write_ns && copy_ns < read_ns && copy_ns < next_ns) {
		move_to(sim, copy_ns); /* begin_write() follows */
	} else if (write_ns <= read_ns + TIE_NS && write_ns <= next_ns + TIE_NS &&
		   write_ns < PLAN_NEVER_NS) {
		move_to(sim, write_ns);
		service_ended(sim, &sim->write);
	} else if (read_ns <= next_ns + TIE_NS && read_ns < PLAN_NEVER_NS) {
		move_to(sim, read_ns);
		service_ended(sim, &sim->read);
	} else if (next_ns >= PLAN_NEVER_NS) {
		return false;
	} else {
		move_to(sim, next_ns);
		compute_or_wait(sim);
	}
	return true;
}

static bool is_abandoned(const struct simulation *sim, const struct plan_bounds *bounds)
{
	return bounds &&
	       (sim->outcome->peak > bounds->peak || sim->outcome->written > bounds->written ||
		sim->behind_ns >= bounds->stall_ns);
}

static struct simulation simulation_of(struct plan_work *work, const uint8_t *spill,
				       struct plan_profile *profile, struct plan_outcome *outcome)
{
	const struct plan_rates *alone = &work->alone;

	memset(outcome, 0, sizeof(*outcome));
	memset(work->state, ABSENT, work->count);
	memset(work->in_flight, 0, work->count);
	return (struct simulation){
		.work = work,
		.spill = spill,
		.outcome = outcome,
		.profile = profile,
		.state = work->state,
		.in_flight = work->in_flight,
		.write = channel_of(&work->writes, alone->write, work->mixed, alone->write_delay_ns,
				    alone->write_copy_ns),
		.read = channel_of(&work->reads, alone->read, work->mixed, alone->read_delay_ns,
				   alone->read_copy_ns),
		.queue = work->queue,
		.awaited = NO_TENSOR,
		.least_bytes = -PLAN_TOLERANCE_BYTES - PLAN_ROUNDED_PART * work->keep_all_peak,
		.left = 1,
	};
}

/* Run the simulation until compute ends, without waiting for writes in flight. */
static void run(struct simulation *sim, const struct plan_bounds *bounds)
{
	const struct plan_work *work = sim->work;
	struct plan_outcome *outcome = sim->outcome;

	while (sim->event < work->event_count && !outcome->abandoned && advance(sim)) {
		begin_write(sim);
		prefetch(sim);
		if (sim->other_rates)
			share_drives(sim);
		outcome->abandoned = outcome->abandoned || is_abandoned(sim, bounds);
	}
	outcome->forever = sim->event < work->event_count && !outcome->abandoned;
	outcome->stall_ns = sim->behind_ns;
	/* Released tensors are in memory only while they are being written or copied. */
	(void)holds(sim, PLAN_HOLDS(sim->event < work->event_count ||
				    is_account(sim, sim->leaving - sim->bytes)));
	(void)holds(sim, PLAN_HOLDS(is_account(sim, outcome->written - outcome->read)));
}

static void expect_memory(const struct plan_work *work, const uint8_t *spill,
			  const struct plan_held *held)
{
	double net = 0;

	for (uint32_t k = 0; k < work->event_count; k++) {
		const struct plan_event *event = &work->events[k];

		if (event->kind == PLAN_PACK)
			net += work->bytes[event->tensor];
		else if (event->kind == PLAN_RELEASE &&
			 (work->used[event->tensor] || !spill[event->tensor]))
			net -= work->bytes[event->tensor];
		held->net[k] = net;
	}
}

static void expect_planned(struct plan_work *work, const uint8_t *spill,
			   const struct plan_held *held)
{
	const uint8_t *out = work->forecast.out;
	uint32_t next = 0;
	double net = 0;

	spw_plan__forecast_out(work, spill);
	for (uint32_t k = 0; k < work->event_count; k++) {
		const struct plan_event *event = &work->events[k];

		if (event->kind == PLAN_PACK)
			net += work->bytes[event->tensor];
		else if (event->kind == PLAN_RELEASE &&
			 (work->used[event->tensor] || !out[event->tensor]))
			net -= work->bytes[event->tensor];
		held->most[k] = net;
		for (; next < work->count; next++) {
			uint32_t i = work->by_pack[next];

			if (out[i] && work->forecast.out_ns[i] > event->ns)
				break;
			net -= out[i] ? work->bytes[i] : 0;
		}
		held->net[k] = net;
	}
}

void spw_plan__simulate(struct plan_work *work, const uint8_t *spill, const struct plan_held *held,
			const struct plan_bounds *bounds, struct plan_profile *profile,
			struct plan_outcome *outcome)
{
	struct simulation sim = simulation_of(work, spill, profile, outcome);

	sim.held = held;
	sim.most = held->throttled ? held->net : held->most;
	for (uint32_t k = 0; k < held->flows_count; k++)
		held->flow_end_ns[k] = PLAN_NEVER_NS;
	if (held->throttled)
		expect_memory(work, spill, held);
	else
		expect_planned(work, spill, held);
	run(&sim, bounds);
}
