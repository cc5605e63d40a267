/* SPDX-License-Identifier: MIT */
/*
 * tensor/plan_simulate.c - the step event by event: compute, a writer, a reader, and drives that both share
 *
 * The states of a tensor, and what moves it on
 *
 *   ABSENT -> KEPT -> GONE                                                   packed, released: marked to be kept
 *   ABSENT -> QUEUED -> WRITING -> STORED -> READING -> RESIDENT -> GONE     marked to be spilled
 *             QUEUED or WRITING -> RESIDENT                                  wanted while in memory: forwarded
 *             QUEUED, WRITING or STORED -> GONE                              released without a use
 *
 * The memory of a tensor whose write has ended is given back by the next thing that compute does: until then it is in
 * memory as if the write were still under way. So is that of one which is gone before its write has ended.
 *
 * What is packed while more waits to be written than may (staging_bytes) is kept, whatever it is marked for.
 */
#include "tensor/plan_internal.h"

#include <string.h>

#include "util/util.h"

#define NOBODY UINT32_MAX

enum state {
	ABSENT,
	KEPT,
	QUEUED,
	WRITING,
	STORED,
	READING,
	RESIDENT,
	GONE,
};

/* A FIFO of transfers: the one that the drives serve, then those whose last requests are ending. */
struct channel {
	uint32_t *order; /* in the order of service */
	double *end_ns;  /* of those that have been served */
	uint32_t ended;  /* how many */
	uint32_t served;
	uint32_t begun;   /* served or one more */
	double remaining; /* bytes of the one being served */
	double rate;
	double delay_ns;
};

struct simulation {
	struct plan_work *work;
	const uint8_t *spill;
	struct plan_outcome *outcome;
	struct plan_profile *profile;
	uint8_t *state;
	uint8_t *in_flight; /* a write; its memory has not been given back */
	struct channel write, read;
	uint32_t *queue; /* to be written, in the order of packing */
	uint32_t queue_head, queue_tail;
	uint32_t given_back; /* of the writes that have ended */
	double staged;       /* bytes that wait to be written or are */
	double now_ns;
	double behind_ns; /* wall time minus compute time */
	uint32_t event;
	uint32_t awaited; /* the tensor that compute waits for, or NOBODY */
	double bytes;
	/* reading ahead */
	double memory;
	uint32_t head;   /* in the order of use: who is read next */
	double *ahead;   /* bytes of all that leaves memory, up to and with this one, in the order of use */
	uint32_t *peaks; /* points of the forecast from now to the head's use: falling, so the first is the highest */
	uint32_t peaks_head, peaks_tail;
	uint32_t point_now, point_next;
};

size_t plan_simulation_bytes(uint32_t count)
{
	size_t n = (size_t)count + 1;

	return n * (2 * sizeof(uint8_t) + 3 * sizeof(uint32_t) + 3 * sizeof(double) + 4 * sizeof(uint32_t)) + 64;
}

static void set_up(struct simulation *sim)
{
	struct plan_work *work = sim->work;
	size_t n = (size_t)work->count + 1;
	void *at = work->simulation;

	sim->write.end_ns = at;
	sim->read.end_ns = sim->write.end_ns + n;
	sim->ahead = sim->read.end_ns + n;
	at = sim->ahead + n;
	sim->write.order = at;
	sim->read.order = sim->write.order + n;
	sim->queue = sim->read.order + n;
	sim->peaks = sim->queue + n;
	sim->state = (uint8_t *)(sim->peaks + 4 * n);
	sim->in_flight = sim->state + n;
	memset(sim->state, ABSENT, work->count);
	memset(sim->in_flight, 0, work->count);
	sim->write.delay_ns = work->alone.write_delay_ns;
	sim->read.delay_ns = work->alone.read_delay_ns;
	sim->awaited = NOBODY;
}

/* ---- Memory ---- */

static void change_memory(struct simulation *sim, double bytes)
{
	struct plan_profile *profile = sim->profile;
	uint64_t ns = (uint64_t)sim->now_ns;

	sim->bytes += bytes;
	if (sim->bytes > sim->outcome->peak)
		sim->outcome->peak = sim->bytes;
	if (!profile || profile->count >= profile->points_max)
		return;
	/* Sums beyond 2^53 are rounded, and may end below 0. */
	profile->points[profile->count++] =
		(struct spw_plan_point){.ns = ns, .bytes = sim->bytes > 0 ? (uint64_t)sim->bytes : 0};
}

static void forward(struct simulation *sim, uint32_t i)
{
	if (sim->state[i] == QUEUED)
		sim->staged -= sim->work->bytes[i];
	sim->state[i] = RESIDENT;
	sim->outcome->forwarded += sim->work->bytes[i];
}

/* ---- Reading ahead ---- */

static void set_ahead(struct simulation *sim)
{
	const struct plan_work *work = sim->work;
	double sum = 0;

	for (uint32_t k = 0; k < work->count; k++) {
		uint32_t i = work->by_use[k];
		bool leaves = work->forecast.out[i] && work->used[i];

		sim->ahead[i] = sum + work->bytes[i];
		if (leaves)
			sum = sim->ahead[i];
	}
}

/*
 * The highest point of the forecast from now to the use of tensor i. Both ends only move on, so every point enters and
 * leaves once.
 */
static double highest_until_use(struct simulation *sim, uint32_t i)
{
	const struct plan_forecast *forecast = &sim->work->forecast;
	double compute_ns = sim->awaited != NOBODY ? sim->work->events[sim->event].ns : sim->now_ns - sim->behind_ns;
	uint32_t *peaks = sim->peaks;

	compute_ns += PLAN_TOLERANCE_NS;
	while (sim->point_now + 1 < forecast->points && forecast->point_ns[sim->point_now + 1] <= compute_ns)
		sim->point_now++;
	for (; sim->point_next < forecast->points &&
	       (sim->point_next <= sim->point_now || forecast->point_ns[sim->point_next] < sim->work->use_ns[i]);
	     sim->point_next++) {
		while (sim->peaks_tail > sim->peaks_head &&
		       forecast->point_bytes[peaks[sim->peaks_tail - 1]] <= forecast->point_bytes[sim->point_next])
			sim->peaks_tail--;
		peaks[sim->peaks_tail++] = sim->point_next;
	}
	while (peaks[sim->peaks_head] < sim->point_now)
		sim->peaks_head++;
	return forecast->point_bytes[peaks[sim->peaks_head]];
}

/* What is not in memory yet must fit now, too: writes may be late, and a release that is due now to come. */
static bool fits(struct simulation *sim, uint32_t i)
{
	if (sim->state[i] == STORED && sim->bytes + sim->work->bytes[i] > sim->memory)
		return false;
	return highest_until_use(sim, i) + sim->ahead[i] <= sim->memory;
}

static void begin_read(struct simulation *sim, uint32_t i)
{
	sim->state[i] = READING;
	sim->read.remaining = sim->work->bytes[i];
	sim->read.order[sim->read.begun++] = i;
	sim->outcome->read += sim->work->bytes[i];
	sim->head++;
	change_memory(sim, sim->work->bytes[i]);
}

/* Strictly in the order of use. What is still in memory when its turn comes, and fits, stays there. */
static void read_ahead(struct simulation *sim)
{
	const struct plan_work *work = sim->work;

	while (sim->head < work->count && sim->read.begun == sim->read.served) {
		uint32_t i = work->by_use[sim->head];
		enum state state = sim->state[i];

		if (!work->used[i] || !sim->spill[i] || state == KEPT || state == RESIDENT || state == GONE) {
			sim->head++;
		} else if (state == STORED) {
			if (sim->awaited != i && !fits(sim, i))
				return;
			begin_read(sim, i);
		} else if (state != ABSENT && (!work->forecast.out[i] || fits(sim, i))) {
			forward(sim, i);
		} else {
			return;
		}
	}
}

/* ---- Writing ---- */

static void begin_write(struct simulation *sim)
{
	if (sim->work->alone.write <= 0)
		return;
	while (sim->write.begun == sim->write.served && sim->queue_head < sim->queue_tail) {
		uint32_t i = sim->queue[sim->queue_head++];

		if (sim->state[i] != QUEUED)
			continue; /* forwarded or released: the write is cancelled */
		sim->state[i] = WRITING;
		sim->in_flight[i] = 1;
		sim->write.remaining = sim->work->bytes[i];
		sim->write.order[sim->write.begun++] = i;
		sim->outcome->written += sim->work->bytes[i];
	}
}

static void write_ended(struct simulation *sim)
{
	sim->staged -= sim->work->bytes[sim->write.order[sim->write.ended++]];
}

/* Compute has done something, and learns of what was written until then. */
static void give_back(struct simulation *sim)
{
	for (; sim->given_back < sim->write.ended; sim->given_back++) {
		uint32_t i = sim->write.order[sim->given_back];

		sim->in_flight[i] = 0;
		if (sim->state[i] == WRITING)
			sim->state[i] = STORED;
		if (sim->state[i] == STORED || sim->state[i] == GONE)
			change_memory(sim, -sim->work->bytes[i]);
	}
}

/* ---- Compute ---- */

static void pack(struct simulation *sim, uint32_t i)
{
	double bytes = sim->work->bytes[i];

	change_memory(sim, bytes);
	sim->state[i] = KEPT;
	if (!sim->spill[i] || sim->staged + bytes > sim->work->staging)
		return;
	sim->state[i] = QUEUED;
	sim->staged += bytes;
	sim->queue[sim->queue_tail++] = i;
}

/* Return: whether compute goes on. */
static bool use(struct simulation *sim, uint32_t i)
{
	if (sim->state[i] == STORED || sim->state[i] == READING) {
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

	if (state == QUEUED)
		sim->staged -= sim->work->bytes[i];
	sim->state[i] = GONE;
	if (state != STORED && !sim->in_flight[i])
		change_memory(sim, -sim->work->bytes[i]);
}

static void compute(struct simulation *sim)
{
	const struct plan_event *event = &sim->work->events[sim->event];

	if (event->kind == PLAN_PACK)
		pack(sim, event->tensor);
	else if (event->kind == PLAN_RELEASE)
		release(sim, event->tensor);
	else if (event->kind == PLAN_USE && !use(sim, event->tensor))
		return;
	sim->event++;
	give_back(sim);
}

static void read_ended(struct simulation *sim)
{
	uint32_t i = sim->read.order[sim->read.ended++];

	sim->state[i] = RESIDENT;
	if (sim->awaited != i)
		return;
	sim->awaited = NOBODY;
	sim->behind_ns = sim->now_ns - sim->work->events[sim->event].ns;
	sim->event++;
	give_back(sim);
}

/* ---- Time ---- */

static bool serves(const struct channel *channel)
{
	return channel->begun > channel->served;
}

/* Both directions at once get half of the mixed bandwidth each, and never more than alone. */
static void share_drives(struct simulation *sim)
{
	const struct plan_work *work = sim->work;

	sim->write.rate = work->alone.write;
	sim->read.rate = work->alone.read;
	if (!serves(&sim->write) || !serves(&sim->read))
		return;
	if (sim->write.rate > work->mixed / 2)
		sim->write.rate = work->mixed / 2;
	if (sim->read.rate > work->mixed / 2)
		sim->read.rate = work->mixed / 2;
}

static double service_end_ns(const struct simulation *sim, const struct channel *channel)
{
	if (!serves(channel) || channel->rate <= 0)
		return PLAN_NEVER_NS;
	return sim->now_ns + channel->remaining / channel->rate;
}

static double next_end_ns(const struct channel *channel)
{
	return channel->ended < channel->served ? channel->end_ns[channel->ended] : PLAN_NEVER_NS;
}

static void serve(struct channel *channel, double ns)
{
	if (!serves(channel))
		return;
	channel->remaining -= channel->rate * ns;
	if (channel->remaining < 0)
		channel->remaining = 0;
}

static void service_ended(struct channel *channel, double now_ns)
{
	channel->remaining = 0;
	channel->end_ns[channel->served++] = now_ns + channel->delay_ns;
}

/* The next thing that happens. Return: whether there was one. */
static bool advance(struct simulation *sim)
{
	const struct plan_work *work = sim->work;
	double write_ns, read_ns, write_end_ns, read_end_ns, compute_ns, next_ns;
	bool computes = sim->awaited == NOBODY && sim->event < work->event_count;

	share_drives(sim);
	write_ns = service_end_ns(sim, &sim->write);
	read_ns = service_end_ns(sim, &sim->read);
	write_end_ns = next_end_ns(&sim->write);
	read_end_ns = next_end_ns(&sim->read);
	compute_ns = computes ? work->events[sim->event].ns + sim->behind_ns : PLAN_NEVER_NS;
	next_ns = write_ns < read_ns ? write_ns : read_ns;
	next_ns = write_end_ns < next_ns ? write_end_ns : next_ns;
	next_ns = read_end_ns < next_ns ? read_end_ns : next_ns;
	next_ns = compute_ns < next_ns ? compute_ns : next_ns;
	if (next_ns >= PLAN_NEVER_NS)
		return false;
	serve(&sim->write, next_ns - sim->now_ns);
	serve(&sim->read, next_ns - sim->now_ns);
	sim->now_ns = next_ns;
	if (write_ns <= next_ns)
		service_ended(&sim->write, next_ns);
	else if (write_end_ns <= next_ns)
		write_ended(sim);
	else if (read_ns <= next_ns)
		service_ended(&sim->read, next_ns);
	else if (read_end_ns <= next_ns)
		read_ended(sim);
	else
		compute(sim);
	return true;
}

void plan_simulate(struct plan_work *work, const uint8_t *spill, double memory, struct plan_profile *profile,
		   struct plan_outcome *outcome)
{
	struct simulation sim = {
		.work = work, .spill = spill, .outcome = outcome, .profile = profile, .memory = memory};

	memset(outcome, 0, sizeof(*outcome));
	set_up(&sim);
	plan_forecast_needs(work, spill);
	set_ahead(&sim);
	/* When compute has ended, so has the step; a write still in flight is of a tensor that nobody wants. */
	while (sim.event < work->event_count && advance(&sim)) {
		begin_write(&sim);
		read_ahead(&sim);
	}
	outcome->forever = sim.event < work->event_count;
	outcome->stall_ns = sim.behind_ns;
}
