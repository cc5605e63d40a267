/* SPDX-License-Identifier: MIT */
/* tensor/control/measure.c - bandwidths and latency of the drives from the ends of transfers */
#include "tensor/control/measure.h"

#include <string.h>

#include "util/util.h"

#define SAMPLES_MIN 2u /* fewer say nothing */

/* A line needs enough samples, of different sizes, and a slope near their plain bandwidth. */
#define SLOPE_SAMPLES_MIN  8u
#define SLOPE_VARIANCE_MIN 0.05
#define SLOPE_RATE_MAX     4

/* A higher bandwidth is believed after this many steps, at first: one may be a burst. */
#define RISE_STEPS 2u
/* It is kept if it lasts for this many times as long. */
#define RISE_HELD 4u
/* It is raised to at most this many times what it was, and then has to last again. */
#define RISE_RATIO_MAX 2.0

/* What is worse by more times is far off, as one accident is: the next step has to say so, too. */
#define FAR_RATIO 4.0

/*
 * A host that is held up between two events has the copy between them look slow. So of a step the
 * copies count that are not slower than its fastest by more times than this.
 */
#define BUS_RATIO 1.5

/* Of a transfer's time: less shared is alone, as little alone is mixed; between says nothing. */
#define SHARED_MAX 0.1

static uint64_t busy_until(const struct flow *flow, uint64_t now_ns)
{
	return flow->busy_ns + (flow->in_flight > 0 ? now_ns - flow->busy_since_ns : 0);
}

static void serve_next(struct measure *measure, enum direction direction, uint64_t now_ns)
{
	struct flow *flow = &measure->flows[direction];

	flow->since_ns = now_ns;
	flow->other_busy_ns = busy_until(&measure->flows[!direction], now_ns);
	flow->disturbed = measure->external;
}

void spw_control__measure_external(struct measure *measure, bool now, bool moved)
{
	measure->external = now;
	for (unsigned i = 0; i < DIRECTIONS; i++)
		measure->flows[i].disturbed |= now || moved;
}

static bool is_known(const struct measure *measure, enum direction direction)
{
	return (direction == DIRECTION_WRITE ? measure->drives.write_bytes_per_second
					     : measure->drives.read_bytes_per_second) > 0;
}

void spw_control__measure_began(struct measure *measure, enum direction direction, uint64_t bytes,
				uint64_t now_ns)
{
	struct flow *flow = &measure->flows[direction];

	if (flow->in_flight == 0) {
		flow->busy_since_ns = now_ns;
		flow->fresh = true;
		serve_next(measure, direction, now_ns);
	}
	flow->in_flight++;
	flow->bytes_in_flight += bytes;
}

static void add_service(struct service *service, uint64_t bytes, uint64_t ns)
{
	service->bytes += (double)bytes;
	service->ns += (double)ns;
	service->count++;
}

static void add_first(struct line *line, uint64_t bytes, uint64_t ns)
{
	add_service(&line->sum, bytes, ns);
	line->bytes_square += (double)bytes * (double)bytes;
	line->bytes_ns += (double)bytes * (double)ns;
}

/* How long before a transfer's end the drives may have been done with its bytes. */
static uint64_t tail_of(const struct flow *flow)
{
	if (flow->idle_ns == 0 ||
	    (flow->idle_ns_before > 0 && flow->idle_ns_before < flow->idle_ns))
		return flow->idle_ns_before;
	return flow->idle_ns;
}

static void count_served(struct measure *measure, enum direction direction, uint64_t bytes,
			 uint64_t began_ns, uint64_t now_ns)
{
	struct flow *flow = &measure->flows[direction];
	uint64_t ns = now_ns - flow->since_ns, tail_ns = tail_of(flow);
	uint64_t shared_ns = busy_until(&measure->flows[!direction], now_ns) - flow->other_busy_ns;
	bool queued = !flow->fresh && began_ns + tail_ns <= flow->since_ns;
	bool alone = (double)shared_ns <= SHARED_MAX * (double)ns;

	if (flow->fresh && (flow->idle_ns == 0 || ns < flow->idle_ns))
		flow->idle_ns = ns;
	if (alone && flow->fresh)
		add_first(&flow->first, bytes, ns);
	else if (alone && queued)
		add_service(&flow->alone, bytes, ns);
	else if ((double)(ns - shared_ns) <= SHARED_MAX * (double)ns && queued)
		add_service(&flow->mixed, bytes, ns);
	flow->fresh = false;
	serve_next(measure, direction, now_ns);
}

void spw_control__measure_ended(struct measure *measure, enum direction direction, uint64_t bytes,
				bool served, uint64_t began_ns, uint64_t now_ns)
{
	struct flow *flow = &measure->flows[direction];

	SPW_ASSERT(flow->in_flight > 0 && flow->bytes_in_flight >= bytes);
	if (served && flow->disturbed && is_known(measure, direction)) {
		flow->fresh = false;
		serve_next(measure, direction, now_ns);
	} else if (served) {
		count_served(measure, direction, bytes, began_ns, now_ns);
	}
	flow->in_flight--;
	flow->bytes_in_flight -= bytes;
	if (flow->in_flight == 0)
		flow->busy_ns += now_ns - flow->busy_since_ns;
}

void spw_control__measure_copied(struct measure *measure, enum direction direction, uint64_t bytes,
				 uint64_t ns)
{
	double rate = (double)bytes / (double)ns;

	if (bytes == 0 || ns == 0 || rate < measure->bus_fastest[direction] / BUS_RATIO)
		return;
	if (rate > measure->bus_fastest[direction] * BUS_RATIO)
		memset(&measure->bus[direction], 0, sizeof(measure->bus[direction]));
	measure->bus_fastest[direction] = SPW_MAX(measure->bus_fastest[direction], rate);
	add_service(&measure->bus[direction], bytes, ns);
}

/* ---- Figures ---- */

static double rate_of(const struct service *service)
{
	if (service->count < SAMPLES_MIN || service->ns <= 0)
		return 0;
	return service->bytes / service->ns * 1e9;
}

/* By the slope of the line; 0: the sizes hardly differ, or what was measured makes no sense. */
static double slope_of(const struct line *line)
{
	double count = line->sum.count, mean = line->sum.bytes / count;
	double variance = line->bytes_square / count - mean * mean;
	double covariance = line->bytes_ns / count - mean * (line->sum.ns / count);

	if (line->sum.count < SLOPE_SAMPLES_MIN || variance < SLOPE_VARIANCE_MIN * mean * mean ||
	    covariance <= 0)
		return 0;
	return variance / covariance * 1e9;
}

/* Where transfers follow each other, they tell; else those that came alone do, less the latency. */
static double bandwidth_of(const struct flow *flow, uint64_t latency_ns)
{
	struct service all = flow->first.sum;
	double waited_ns = (double)latency_ns * all.count, slope;

	if (flow->alone.count >= SAMPLES_MIN && flow->alone.bytes >= all.bytes / 4)
		return rate_of(&flow->alone);
	slope = slope_of(&flow->first);
	if (slope > 0 && slope < SLOPE_RATE_MAX * rate_of(&all))
		return slope;
	all.ns -= waited_ns < all.ns / 2 ? waited_ns : all.ns / 2;
	all.bytes += flow->alone.bytes;
	all.ns += flow->alone.ns;
	all.count += flow->alone.count;
	return rate_of(&all);
}

static uint32_t steps_needed(const struct trust *trust)
{
	return SPW_MAX(trust->needed, RISE_STEPS);
}

/* Much higher than it was. Return: whether that is believed now. */
static bool rose(struct trust *trust, double now)
{
	trust->lowest = trust->higher == 0 || now < trust->lowest ? now : trust->lowest;
	if (++trust->higher < steps_needed(trust))
		return false;
	trust->needed = steps_needed(trust);
	trust->higher = 0;
	trust->held = 1;
	return true;
}

/* Not higher. A rise that does not hold was false: the next one has to last twice as long. */
static void held(struct trust *trust, bool fell)
{
	trust->higher = 0;
	if (trust->held > 0 && fell) {
		trust->needed *= 2;
		trust->held = 0;
	} else if (trust->held > 0 && ++trust->held > RISE_HELD * steps_needed(trust)) {
		trust->needed = RISE_STEPS;
		trust->held = 0;
	}
}

/*
 * So far below what has held that the next step has to say so, too: a process that was stopped, or
 * had no CPU, measures that once. Believed, it would keep all in memory for long.
 */
static bool is_outlier(struct trust *trust, double old, double now)
{
	trust->low = !trust->low && trust->held == 0 && now < old / FAR_RATIO;
	return trust->low;
}

static void smooth(uint64_t *figure, struct trust *trust, double now)
{
	double old = (double)*figure;

	if (now < 1 || is_outlier(trust, old, now))
		return;
	if (old == 0)
		trust->held = 1; /* the first may be a burst as well */
	if (old > 0 && now >= old * (1 + RATE_DRIFT)) {
		if (rose(trust, now))
			*figure = (uint64_t)(trust->lowest < RISE_RATIO_MAX * old
						     ? trust->lowest
						     : RISE_RATIO_MAX * old);
		return;
	}
	held(trust, now <= old / (1 + RATE_DRIFT));
	*figure = (uint64_t)(old > 0 && now > old / (1 + RATE_DRIFT) ? (old + now) / 2 : now);
}

/* The mean of a whole transfer, in the direction that takes longer. 0: not known. */
static double whole_of(const struct measure *measure)
{
	double longest_ns = 0;

	for (unsigned i = 0; i < DIRECTIONS; i++) {
		const struct service *first = &measure->flows[i].first.sum;

		if (first->count > 0 && first->ns / first->count > longest_ns)
			longest_ns = first->ns / first->count;
	}
	return longest_ns;
}

/* @served_ns: what the bytes took, for comparison. */
static void believe_latency(struct measure *measure, double now, double served_ns)
{
	double old = (double)measure->drives.latency_ns;
	bool late = old > 0 && now > FAR_RATIO * (old + served_ns);

	if (!late || measure->late)
		measure->drives.latency_ns = (uint64_t)(old > 0 ? (old + now) / 2 : now);
	measure->late = late;
}

static void smooth_latency(struct measure *measure)
{
	double ns = 0, served_ns = 0, whole_ns = whole_of(measure);
	uint32_t count = 0;

	for (unsigned i = 0; i < DIRECTIONS; i++) {
		const struct flow *flow = &measure->flows[i];
		const struct service *first = &flow->first.sum;
		double rate = flow->alone.count >= SAMPLES_MIN ? rate_of(&flow->alone)
							       : slope_of(&flow->first);
		double late_ns = rate > 0 ? first->ns - first->bytes / rate * 1e9 : -1;

		if (first->count == 0 || late_ns < 0)
			continue;
		ns += late_ns;
		served_ns += first->ns - late_ns;
		count += first->count;
	}
	if (count > 0)
		believe_latency(measure, ns / count, served_ns / count);
	if (whole_ns > 0 && (double)measure->drives.latency_ns > FAR_RATIO * whole_ns)
		measure->drives.latency_ns = (uint64_t)whole_ns;
}

static void smooth_bus(struct measure *measure)
{
	uint64_t *const figures[DIRECTIONS] = {
		[DIRECTION_WRITE] = &measure->drives.bus_out_bytes_per_second,
		[DIRECTION_READ] = &measure->drives.bus_in_bytes_per_second,
	};

	for (unsigned i = 0; i < DIRECTIONS; i++) {
		smooth(figures[i], &measure->trust_bus[i], rate_of(&measure->bus[i]));
		if (measure->bus[i].count < SAMPLES_MIN)
			continue;
		memset(&measure->bus[i], 0, sizeof(measure->bus[i]));
		measure->bus_fastest[i] = 0;
	}
}

void spw_control__measure_step(struct measure *measure)
{
	struct flow *write = &measure->flows[DIRECTION_WRITE],
		    *read = &measure->flows[DIRECTION_READ];
	struct spw_plan_drives *drives = &measure->drives;
	double mixed_write = rate_of(&write->mixed), mixed_read = rate_of(&read->mixed);

	smooth_latency(measure);
	smooth_bus(measure);
	smooth(&drives->write_bytes_per_second, &measure->trust[DIRECTION_WRITE],
	       bandwidth_of(write, drives->latency_ns));
	smooth(&drives->read_bytes_per_second, &measure->trust[DIRECTION_READ],
	       bandwidth_of(read, drives->latency_ns));
	if (mixed_write > 0 && mixed_read > 0)
		smooth(&drives->mixed_bytes_per_second, &measure->trust_mixed,
		       mixed_write + mixed_read);
	for (unsigned i = 0; i < DIRECTIONS; i++) {
		struct flow *flow = &measure->flows[i];

		/* Too few say nothing yet: more may come in the next step. */
		if (flow->alone.count + flow->first.sum.count >= SAMPLES_MIN) {
			memset(&flow->alone, 0, sizeof(flow->alone));
			memset(&flow->first, 0, sizeof(flow->first));
			flow->idle_ns_before = flow->idle_ns;
			flow->idle_ns = 0;
		}
		if (flow->mixed.count >= SAMPLES_MIN)
			memset(&flow->mixed, 0, sizeof(flow->mixed));
	}
}
