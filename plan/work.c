/* SPDX-License-Identifier: MIT */
/* plan/work.c - struct plan_work: check a step, put it into arrays, sort these once */
#include "plan/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

/* 13 days: exact in a double to less than PLAN_TOLERANCE_NS. Sums of sizes fit an int64_t. */
#define NS_MAX                (UINT64_C(1) << 50)
#define BYTES_MAX             (UINT64_C(1) << 62)
#define BYTES_PER_SECOND_MAX  (UINT64_C(1) << 60)
#define POINTS_MAX_PER_TENSOR 4u /* pack, out, in, release */
#define ALIGN_BYTES           16u
#define DIGIT_BITS            11u
#define DIGIT_VALUES          (1u << DIGIT_BITS)

/* ---- Checks ---- */

static int check_tensor(const struct spw_plan_tensor *tensor, uint32_t which)
{
	if (tensor->release_ns > NS_MAX || tensor->bytes > BYTES_MAX)
		return spw_error(-EINVAL, "plan: tensor %u: its size or its times are too large",
				 which);
	if (spw_reserved_check(tensor->reserved, sizeof(tensor->reserved), "plan: a tensor"))
		return -EINVAL;
	if (tensor->pack_ns > tensor->release_ns)
		return spw_error(-EINVAL, "plan: tensor %u: pack_ns must not be after release_ns",
				 which);
	if (tensor->users > 0 &&
	    (tensor->use_ns < tensor->pack_ns || tensor->use_ns > tensor->release_ns))
		return spw_error(-EINVAL,
				 "plan: tensor %u: use_ns must lie between pack_ns and release_ns",
				 which);
	return 0;
}

static int check_step(const struct spw_plan_step *step)
{
	uint64_t total = 0;

	if (step->count > SPW_PLAN_TENSORS_MAX)
		return spw_error(-EINVAL, "plan: %u tensors are more than %u", step->count,
				 SPW_PLAN_TENSORS_MAX);
	if (spw_reserved_check(step->reserved, sizeof(step->reserved), "plan: the step"))
		return -EINVAL;
	if (step->count > 0 && !step->tensors)
		return spw_error(-EINVAL, "plan: %u tensors, but no array of them", step->count);
	if (step->forward_ns > NS_MAX || step->backward_ns > NS_MAX)
		return spw_error(-EINVAL, "plan: forward_ns or backward_ns is too large");
	if (step->calls > SPW_PLAN_CALLS_MAX || (step->calls > 0 && !step->calls_ns))
		return spw_error(-EINVAL, "plan: %u calls, but no array of them, or more than %u",
				 step->calls, SPW_PLAN_CALLS_MAX);
	for (uint32_t i = 0; i < step->calls; i++)
		if (step->calls_ns[i] > NS_MAX ||
		    (i > 0 && step->calls_ns[i] < step->calls_ns[i - 1]))
			return spw_error(
				-EINVAL,
				"plan: call %u: its time is too large, or before that of the last",
				i);
	for (uint32_t i = 0; i < step->count; i++) {
		int rc = check_tensor(&step->tensors[i], i);

		if (rc)
			return rc;
		total += step->tensors[i].bytes;
		if (total > BYTES_MAX)
			return spw_error(-EINVAL,
					 "plan: tensor %u: all sizes together are too large", i);
	}
	return 0;
}

static int check_drives(const struct spw_plan_drives *drives)
{
	if (drives->write_bytes_per_second > BYTES_PER_SECOND_MAX ||
	    drives->read_bytes_per_second > BYTES_PER_SECOND_MAX ||
	    drives->mixed_bytes_per_second > BYTES_PER_SECOND_MAX || drives->latency_ns > NS_MAX ||
	    drives->chunk_bytes > BYTES_MAX ||
	    drives->bus_out_bytes_per_second > BYTES_PER_SECOND_MAX ||
	    drives->bus_in_bytes_per_second > BYTES_PER_SECOND_MAX)
		return spw_error(-EINVAL, "plan: a bandwidth, the latency or the chunk size of the "
					  "drives is too large");
	if (drives->host_bytes > BYTES_MAX)
		return spw_error(-EINVAL, "plan: host_bytes is too large");
	if (drives->host_bytes > 0 &&
	    (drives->bus_out_bytes_per_second == 0 || drives->bus_in_bytes_per_second == 0))
		return spw_error(-EINVAL,
				 "plan: host_bytes is for tensors of a device: set the bandwidth "
				 "of its bus, both ways");
	return spw_reserved_check(drives->reserved, sizeof(drives->reserved), "plan: the drives");
}

/* ---- Sorting ---- */

struct range {
	uint64_t low, high;
	bool sorted;
};

static struct range range_of(const uint64_t *keys, uint32_t count)
{
	struct range range = {.low = keys[0], .high = keys[0], .sorted = true};

	for (uint32_t i = 1; i < count; i++) {
		range.sorted &= keys[i - 1] <= keys[i];
		range.low = keys[i] < range.low ? keys[i] : range.low;
		range.high = keys[i] > range.high ? keys[i] : range.high;
	}
	return range;
}

/* A pass of radix sort: by the digit of (key - @low) at @shift, into the other arrays. */
static void sort_by_digit(const uint64_t *keys, const uint32_t *order, uint64_t *keys_to,
			  uint32_t *order_to, uint32_t count, uint64_t low, unsigned shift)
{
	uint32_t starts[DIGIT_VALUES] = {0}, next = 0;

	for (uint32_t i = 0; i < count; i++)
		starts[(keys[i] - low) >> shift & (DIGIT_VALUES - 1)]++;
	for (unsigned value = 0; value < DIGIT_VALUES; value++) {
		uint32_t length = starts[value];

		starts[value] = next;
		next += length;
	}
	for (uint32_t i = 0; i < count; i++) {
		uint32_t to = starts[(keys[i] - low) >> shift & (DIGIT_VALUES - 1)]++;

		keys_to[to] = keys[i];
		order_to[to] = order[i];
	}
}

void spw_plan__sort(struct plan_work *work, uint32_t *order)
{
	uint64_t *keys[2] = {work->keys, work->keys_other};
	uint32_t *orders[2] = {order, work->order_other};
	unsigned now = 0;
	struct range range;

	if (work->count < 2)
		return;
	range = range_of(work->keys, work->count);
	for (unsigned shift = 0;
	     !range.sorted && shift < 64 && (range.high - range.low) >> shift > 0;
	     shift += DIGIT_BITS) {
		sort_by_digit(keys[now], orders[now], keys[!now], orders[!now], work->count,
			      range.low, shift);
		now = !now;
	}
	SPW_ASSERT(range.low <= range.high);
	if (now == 1)
		memcpy(order, work->order_other, work->count * sizeof(*order));
}

/* Sort tensors by the time at @offset of struct spw_plan_tensor, stable. @order: set */
static void sort_tensors(struct plan_work *work, const struct spw_plan_step *step, size_t offset,
			 uint32_t *order)
{
	for (uint32_t i = 0; i < work->count; i++) {
		memcpy(&work->keys[i], (const char *)&step->tensors[i] + offset,
		       sizeof(work->keys[i]));
		order[i] = i;
	}
	spw_plan__sort(work, order);
}

static void sort_by_gap(struct plan_work *work)
{
	for (uint32_t i = 0; i < work->count; i++) {
		work->by_gap[i] = i;
		work->keys[i] = (uint64_t)(work->wanted_ns[i] - work->pack_ns[i]);
	}
	spw_plan__sort(work, work->by_gap);
}

static void sort_by_wanted(struct plan_work *work)
{
	for (uint32_t i = 0; i < work->count; i++) {
		work->by_wanted[i] = i;
		work->keys[i] = (uint64_t)work->wanted_ns[i];
	}
	spw_plan__sort(work, work->by_wanted);
	for (uint32_t k = 0; k < work->count; k++)
		work->host_rank[work->by_wanted[k]] = k;
}

/* ---- Events ---- */

static void merge_events(struct plan_work *work, const struct spw_plan_step *step,
			 const uint32_t *by_release)
{
	uint32_t pack = 0, use = 0, release = 0, call = 0, count = work->count;
	const uint32_t *by_pack = work->by_pack, *by_use = work->by_use;
	struct plan_event *event = work->events;
	double bytes = 0;

	while (release < count) {
		while (use < count && !work->used[by_use[use]])
			use++;
		double release_ns = work->release_ns[by_release[release]];
		double use_ns = use < count ? work->use_ns[by_use[use]] : PLAN_NEVER_NS;
		double pack_ns = pack < count ? work->pack_ns[by_pack[pack]] : PLAN_NEVER_NS;
		double call_ns = call < step->calls ? (double)step->calls_ns[call] : PLAN_NEVER_NS;

		if (call_ns < pack_ns && call_ns < use_ns && call_ns < release_ns) {
			*event++ = (struct plan_event){call_ns, UINT32_MAX, PLAN_CALL};
			call++;
		} else if (pack_ns <= use_ns && pack_ns <= release_ns) {
			bytes += work->bytes[by_pack[pack]];
			if (bytes > work->keep_all_peak)
				work->keep_all_peak = bytes;
			*event++ = (struct plan_event){pack_ns, by_pack[pack++], PLAN_PACK};
		} else if (use_ns <= release_ns) {
			*event++ = (struct plan_event){use_ns, by_use[use++], PLAN_USE};
		} else {
			bytes -= work->bytes[by_release[release]];
			*event++ = (struct plan_event){release_ns, by_release[release++],
						       PLAN_RELEASE};
		}
	}
	work->event_count = (uint32_t)(event - work->events);
	SPW_ASSERT(pack == count && work->event_count <= 3 * count + step->calls);
}

/* ---- Open and close ---- */

void *spw_plan__allocate(const struct plan_piece pieces[], size_t count)
{
	size_t total = 0;
	char *memory;

	for (size_t i = 0; i < count; i++)
		total += spw_round_up(pieces[i].bytes, ALIGN_BYTES);
	memory = calloc(1, total);
	if (!memory)
		return NULL;
	total = 0;
	for (size_t i = 0; i < count; i++) {
		void *at = memory + total;

		memcpy(pieces[i].pointer, &at, sizeof(at));
		total += spw_round_up(pieces[i].bytes, ALIGN_BYTES);
	}
	return memory;
}

static int allocate(struct plan_work *work, uint32_t calls)
{
	struct plan_forecast *forecast = &work->forecast;
	size_t count = work->count + 1, points = POINTS_MAX_PER_TENSOR * count;
	size_t host = work->host > 0 ? count : 1;
	const struct plan_piece pieces[] = {
		{&work->bytes, count * sizeof(double)},
		{&work->pack_ns, count * sizeof(double)},
		{&work->use_ns, count * sizeof(double)},
		{&work->release_ns, count * sizeof(double)},
		{&work->wanted_ns, count * sizeof(double)},
		{&work->by_gap, count * sizeof(uint32_t)},
		{&work->by_wanted, host * sizeof(uint32_t)},
		{&work->host_rank, host * sizeof(uint32_t)},
		{&work->host_heap, host * sizeof(uint32_t)},
		{&work->host_out, host * sizeof(uint32_t)},
		{&work->in_host, count},
		{&work->used, count},
		{&work->eligible, count},
		{&work->by_pack, count * sizeof(uint32_t)},
		{&work->by_use, count * sizeof(uint32_t)},
		{&work->events, (3 * count + calls) * sizeof(struct plan_event)},
		{&work->order, count * sizeof(uint32_t)},
		{&work->order_other, count * sizeof(uint32_t)},
		{&work->keys, count * sizeof(uint64_t)},
		{&work->keys_other, count * sizeof(uint64_t)},
		{&work->tree, 2 * points * sizeof(double)},
		{&work->tree_added, 2 * points * sizeof(double)},
		{&work->spill, count},
		{&work->trial, count},
		{&work->state, count},
		{&work->in_flight, count},
		{&work->copied_ns, count * sizeof(double)},
		{&work->queue, count * sizeof(uint32_t)},
		{&work->writes.order, count * sizeof(uint32_t)},
		{&work->writes.end_ns, count * sizeof(double)},
		{&work->reads.order, count * sizeof(uint32_t)},
		{&work->reads.end_ns, count * sizeof(double)},
		{&forecast->point_ns, points * sizeof(double)},
		{&forecast->point_bytes, points * sizeof(double)},
		{&forecast->out, count},
		{&forecast->written, count},
		{&forecast->written_ns, count * sizeof(double)},
		{&forecast->out_ns, count * sizeof(double)},
		{&forecast->read_begin_ns, count * sizeof(double)},
		{&forecast->point_out, count * sizeof(uint32_t)},
		{&forecast->point_in, count * sizeof(uint32_t)},
	};

	work->memory = spw_plan__allocate(pieces, SPW_ARRAY_LEN(pieces));
	if (!work->memory)
		return spw_error(-ENOMEM, "plan: no memory for %u tensors", work->count);
	return 0;
}

/* The bus's time per byte; 0: there are no copies. */
static double copy_ns_of(uint64_t bus_bytes_per_second)
{
	return bus_bytes_per_second > 0 ? 1e9 / (double)bus_bytes_per_second : 0;
}

static void set_drives(struct plan_work *work, const struct spw_plan_drives *drives)
{
	uint64_t write = drives->write_bytes_per_second, read = drives->read_bytes_per_second;
	uint64_t mixed = drives->mixed_bytes_per_second;

	if (mixed == 0)
		mixed = write < read ? write : read;
	work->mixed = (double)mixed / 1e9;
	work->staging = drives->staging_bytes > 0 ? (double)drives->staging_bytes : PLAN_NEVER_NS;
	if (work->staging < work->host)
		work->staging = work->host;
	work->alone = (struct plan_rates){.write = (double)write / 1e9, .read = (double)read / 1e9};
	work->alone.write_delay_ns = work->alone.read_delay_ns = (double)drives->latency_ns;
	if (write > 0)
		work->alone.write_delay_ns += (double)drives->chunk_bytes / work->alone.write;
	if (read > 0)
		work->alone.read_delay_ns += (double)drives->chunk_bytes / work->alone.read;
	work->alone.write_copy_ns = copy_ns_of(drives->bus_out_bytes_per_second);
	work->alone.read_copy_ns = copy_ns_of(drives->bus_in_bytes_per_second);
	/* Limit reads to the rate of copies, so that staging memory is free for the next read. */
	if (work->alone.read * work->alone.read_copy_ns > 1)
		work->alone.read = 1 / work->alone.read_copy_ns;
}

static void set_tensors(struct plan_work *work, const struct spw_plan_step *step)
{
	for (uint32_t i = 0; i < work->count; i++) {
		const struct spw_plan_tensor *tensor = &step->tensors[i];

		work->bytes[i] = (double)tensor->bytes;
		work->pack_ns[i] = (double)tensor->pack_ns;
		work->use_ns[i] = (double)tensor->use_ns;
		work->release_ns[i] = (double)tensor->release_ns;
		work->used[i] = tensor->users > 0;
		work->wanted_ns[i] = work->used[i] ? work->use_ns[i] : work->release_ns[i];
		work->eligible[i] = !tensor->must_keep && tensor->bytes > 0 &&
				    (work->host > 0 || spw_plan__drives_take(work, i));
	}
}

int spw_plan__work_open(struct plan_work *work, const struct spw_plan_step *step,
			const struct spw_plan_drives *drives)
{
	int rc = check_step(step);

	memset(work, 0, sizeof(*work));
	if (!rc)
		rc = check_drives(drives);
	if (rc)
		return rc;
	work->count = step->count;
	work->host = (double)drives->host_bytes;
	rc = allocate(work, step->calls);
	if (rc)
		return rc;
	set_drives(work, drives);
	set_tensors(work, step);
	sort_tensors(work, step, offsetof(struct spw_plan_tensor, pack_ns), work->by_pack);
	sort_tensors(work, step, offsetof(struct spw_plan_tensor, use_ns), work->by_use);
	sort_tensors(work, step, offsetof(struct spw_plan_tensor, release_ns), work->order);
	merge_events(work, step, work->order);
	sort_by_gap(work);
	if (work->host > 0)
		sort_by_wanted(work);
	SPW_ASSERT(work->event_count == 0 || work->keep_all_peak >= 0);
	return 0;
}

void spw_plan__work_close(struct plan_work *work)
{
	free(work->memory);
	work->memory = NULL;
}
