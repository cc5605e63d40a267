/* SPDX-License-Identifier: MIT */
/*
 * tools/bench/worker.c - the loop of one job on devices
 *
 * Clock reads as fio does them, so that latencies compare: one when a submission returns (which
 * also starts the next transfer), one when a reap returns. Nothing is allocated and nothing but the
 * queue makes system calls while the job runs, unless a rate makes it wait with nothing in flight.
 */
#include "tools/bench/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/ui/stop.h"
#include "util/util.h"

#define BUFFER_ALIGN_BYTES 4096u
#define SECTOR_BYTES       512u

struct slot {
	struct spw_io io;
	struct state *state;
	uint64_t start_ns, issue_ns;
	uint64_t generation;
	unsigned direction;
};

struct state {
	struct bench_worker *worker;
	const struct bench_job *job;
	struct spw_queue *queue;
	struct spw_arena *arena;
	struct slot *slots;
	struct slot **idle, **prepared, **completed; /* stacks of iodepth */
	unsigned idle_count, prepared_count, completed_count, writes_in_flight;
	unsigned device_in_flight[BENCH_FILES_MAX];
	struct bench_units units;
	/*
	 * What was written is read back by readers that follow through the same regions: which
	 * transfer comes next depends on nothing but the seed. Not while writes are in flight.
	 */
	struct bench_region *readers;
	uint64_t since; /* writes since a batch of them was due */
	uint64_t due;   /* reads, before the next write */
	unsigned region_next;
	struct bench_timer timer;
	struct bench_random random;
	unsigned direction; /* of the next transfer, which may have to wait for the job's rate */
	uint64_t now_ns;
	uint64_t generation; /* of pass 0 */
	bool exhausted;
	bool ending; /* all is written, what is left is read back */
};

static unsigned in_flight(const struct state *state)
{
	return state->job->iodepth - state->idle_count;
}

/* ---- What comes next ------------------------------------------------------------------------- */

static unsigned draw_direction(struct state *state)
{
	uint32_t rw = state->job->rw;

	if (!bench_rw_writes(rw))
		return BENCH_DIR_READ;
	if (!bench_rw_reads(rw))
		return BENCH_DIR_WRITE;
	return bench_random_next(&state->random) % 100 < state->job->read_percent ? BENCH_DIR_READ
										  : BENCH_DIR_WRITE;
}

/* @due: read back what was written; at the end also what the last pass left of the one before. */
static bool next_of_region(struct state *state, unsigned index, unsigned direction, bool due,
			   struct slot *slot)
{
	struct bench_region *region = &state->worker->regions[index];
	struct bench_region *reader = &state->readers[index];
	bool written = !due || reader->index < region->index;

	if (!written && (!state->ending || state->job->verify_backlog > 0 || region->pass == 0))
		return false;
	slot->generation = state->generation + region->pass - !written;
	return bench_region_next(due ? reader : region, direction, &slot->io.offset_bytes,
				 &slot->io.len_bytes);
}

/* The next pass overwrites the last one's blocks, which may wait for being read back. */
static bool must_read_back_first(struct state *state)
{
	if (state->job->verify_backlog == 0)
		return false;
	for (unsigned i = 0; i < state->worker->devices_count; i++)
		if (state->readers[i].index < state->worker->regions[i].index)
			state->due = UINT64_MAX;
	return state->due > 0 || in_flight(state) > 0;
}

/* By turns, fewest in flight first: else a slow drive would gather them all. */
static unsigned choose_device(const struct state *state)
{
	unsigned count = state->worker->devices_count, chosen = state->region_next;

	for (unsigned i = 1; i < count; i++) {
		unsigned index = state->region_next + i < count ? state->region_next + i
								: state->region_next + i - count;

		if (state->device_in_flight[index] < state->device_in_flight[chosen])
			chosen = index;
	}
	return chosen;
}

static bool next_transfer(struct state *state, unsigned direction, bool due, struct slot *slot)
{
	unsigned count = state->worker->devices_count;

	state->region_next = choose_device(state);
	for (unsigned tried = 0; tried < count; tried++) {
		unsigned index = state->region_next;
		bool found = next_of_region(state, index, direction, due, slot);

		if (!found && state->job->time_based && !due && !state->ending) {
			uint64_t pass = state->worker->regions[index].pass + 1;

			if (must_read_back_first(state))
				return false;
			bench_region_start_pass(&state->worker->regions[index], pass);
			bench_region_start_pass(&state->readers[index], pass);
			found = next_of_region(state, index, direction, due, slot);
		}
		state->region_next = index + 1 == count ? 0 : index + 1;
		if (found) {
			slot->io.device = index;
			return true;
		}
	}
	return false;
}

/* ---- Issuing --------------------------------------------------------------------------------- */

static void slot_done(struct spw_io *io)
{
	struct slot *slot = io->context;

	slot->state->completed[slot->state->completed_count++] = slot;
}

static int submit_prepared(struct state *state)
{
	struct bench_stats *stats = &state->worker->stats;
	int result = spw_queue_submit(state->queue);

	state->now_ns = spw_clock_ns();
	for (unsigned i = 0; i < state->prepared_count; i++) {
		struct slot *slot = state->prepared[i];

		slot->issue_ns = state->now_ns;
		spw_summary_add(&stats->direction[slot->direction].submit_ns,
				state->now_ns - slot->start_ns);
	}
	stats->submit_levels[bench_batch_level(state->prepared_count)]++;
	state->prepared_count = 0;
	return result;
}

/* Two distinct words per sector, as fio: a drive that finds equal data cannot skip it. */
static void scramble(const struct slot *slot)
{
	char *sector = slot->io.buf;

	for (uint64_t at = 0; at < slot->io.len_bytes; at += SECTOR_BYTES, sector += SECTOR_BYTES) {
		uint64_t words[2] = {slot->start_ns, slot->io.offset_bytes + at};

		memcpy(sector + (slot->start_ns % (SECTOR_BYTES / sizeof(words))) * sizeof(words),
		       words, sizeof(words));
	}
}

static void fill(const struct state *state, const struct slot *slot)
{
	if (state->job->verify != BENCH_VERIFY_NONE)
		bench_verify_fill(&state->units, slot->io.buf, slot->io.len_bytes,
				  slot->io.offset_bytes, slot->generation);
	else if (state->job->scramble_buffers)
		scramble(slot);
}

static int prepare(struct state *state, struct slot *slot, unsigned direction)
{
	slot->direction = direction;
	slot->io.op = slot->direction == BENCH_DIR_READ ? SPW_READ : SPW_WRITE;
	slot->start_ns = state->now_ns;
	if (slot->direction == BENCH_DIR_WRITE) {
		fill(state, slot);
		state->writes_in_flight++;
		if (++state->since == state->job->verify_backlog) {
			state->since = 0;
			state->due = state->job->verify_backlog_batch > 0
					     ? state->job->verify_backlog_batch
					     : state->job->verify_backlog;
		}
	}
	state->idle_count--;
	state->prepared[state->prepared_count++] = slot;
	state->device_in_flight[slot->io.device]++;
	state->worker->stats.depth_levels[bench_depth_level(in_flight(state))]++;
	return spw_queue_prepare(state->queue, &slot->io);
}

/* Return: 1 the next transfer was prepared; 0 there is none now. */
static int prepare_next(struct state *state, struct slot *slot)
{
	unsigned direction = BENCH_DIR_READ;
	int result;

	if (state->due > 0 && state->writes_in_flight > 0)
		return 0;
	if (state->due > 0 && next_transfer(state, direction, true, slot)) {
		state->due--;
	} else {
		state->due = 0;
		direction = state->direction;
		if (!state->ending && state->timer.due_ns[direction] > state->now_ns)
			return 0;
		if (state->ending || !next_transfer(state, direction, false, slot)) {
			/* A pass that is over begins anew when nothing of it is in flight. */
			state->exhausted = state->ending || !state->job->time_based ||
					   (in_flight(state) == 0 && state->due == 0);
			return 0;
		}
		bench_timer_pace(&state->timer, direction, slot->io.len_bytes);
		state->direction = draw_direction(state);
	}
	result = prepare(state, slot, direction);
	return result < 0 ? result : 1;
}

/* Issue until the depth is reached, the job is exhausted, or its rate or its backlog says wait. */
static int issue(struct state *state)
{
	int result = 1;

	while (result > 0 && state->idle_count > 0 && !state->exhausted) {
		result = prepare_next(state, state->idle[state->idle_count - 1]);
		if (result > 0 && state->prepared_count == state->job->submit_batch) {
			int submitted = submit_prepared(state);

			result = submitted < 0 ? submitted : 1;
		}
	}
	if (result >= 0 && state->prepared_count > 0)
		result = submit_prepared(state);
	return result < 0 ? result : 0;
}

/* ---- Completing ------------------------------------------------------------------------------ */

static int check_transfer(struct state *state, const struct slot *slot)
{
	const char *path = state->worker->paths[slot->io.device];

	if (slot->io.res < 0)
		return spw_error_errno(slot->io.res, "%s: %s of %u bytes at byte %ju failed", path,
				       slot->direction == BENCH_DIR_READ ? "read" : "write",
				       slot->io.len_bytes, (uintmax_t)slot->io.offset_bytes);
	if (state->job->verify == BENCH_VERIFY_NONE || slot->direction == BENCH_DIR_WRITE)
		return 0;
	state->worker->stats.blocks_verified += slot->io.len_bytes / state->job->block_bytes_min;
	return bench_verify_check(
		&state->units, slot->io.buf, slot->io.len_bytes, slot->io.offset_bytes,
		bench_rw_writes(state->job->rw) ? slot->generation : BENCH_GENERATION_ANY, path);
}

static void account(struct state *state)
{
	struct bench_stats *stats = &state->worker->stats;

	for (unsigned i = 0; i < state->completed_count; i++) {
		struct slot *slot = state->completed[i];
		int result = check_transfer(state, slot);

		if (result == 0)
			bench_account(&stats->direction[slot->direction], slot->io.len_bytes,
				      slot->start_ns, slot->issue_ns, state->now_ns);
		else
			bench_worker_failed(state->worker, result);
		state->device_in_flight[slot->io.device]--;
		state->writes_in_flight -= slot->direction == BENCH_DIR_WRITE;
		state->idle[state->idle_count++] = slot;
	}
	stats->complete_levels[bench_batch_level(state->completed_count)]++;
	state->completed_count = 0;
	bench_worker_live(state->worker);
}

static int reap(struct state *state, unsigned min, int64_t timeout_ns)
{
	int result = spw_queue_reap(state->queue, min, timeout_ns);

	state->now_ns = spw_clock_ns();
	if (state->completed_count > 0)
		account(state);
	return result < 0 ? result : 0;
}

/* Wait for completions, but no longer than until the rate allows the next transfer. */
static int wait_for_room(struct state *state)
{
	unsigned flying = in_flight(state), min = state->job->complete_min;
	uint64_t due_ns = state->timer.due_ns[state->direction];

	if (state->idle_count == 0 || due_ns <= state->now_ns)
		return reap(state, min < flying ? min : flying, -1);
	if (flying > 0)
		return reap(state, 1, (int64_t)(due_ns - state->now_ns));
	bench_timer_sleep(&state->timer, state->direction);
	state->now_ns = spw_clock_ns();
	return 0;
}

/* Until the time is up, everything was transferred, or something failed; then what is in flight. */
static int transfer_all(struct state *state)
{
	int result = 0;

	state->now_ns = spw_clock_ns();
	while (result == 0 && state->worker->stats.error == 0 &&
	       !bench_timer_expired(&state->timer, state->worker, state->now_ns)) {
		result = issue(state);
		if (result == 0 && in_flight(state) == 0 && state->exhausted)
			break;
		if (result == 0)
			result = wait_for_room(state);
	}
	while (result == 0 && in_flight(state) > 0)
		result = reap(state, 1, -1);
	return result == 0 ? state->worker->stats.error : result;
}

/* ---- Verifying ------------------------------------------------------------------------------- */

static int read_back(struct state *state)
{
	struct bench_direction_stats *reads = &state->worker->stats.direction[BENCH_DIR_READ];
	uint64_t begin_ns = spw_clock_ns();
	int result;

	state->ending = true;
	state->due = UINT64_MAX;
	state->exhausted = false;
	/* Runtime and ramp are of the writing. */
	state->timer.end_ns = UINT64_MAX;
	state->timer.ramp_end_ns = 0;
	result = transfer_all(state);
	reads->runtime_ns = spw_clock_ns() -
			    (state->job->verify_backlog > 0 ? state->timer.start_ns : begin_ns);
	return result;
}

/* ---- Setting up ------------------------------------------------------------------------------ */

/* Kernel requests per transfer: large ones are split, but iodepth counts transfers. */
static uint32_t queue_depth(const struct bench_worker *worker)
{
	uint64_t depth = worker->job->iodepth, most = 1;

	for (unsigned i = 0; i < worker->devices_count; i++) {
		const struct spw_geometry *geometry = spw_device_geometry(worker->devices[i]);
		uint64_t parts = geometry->transfer_bytes_max == 0
					 ? 1
					 : (worker->job->block_bytes_max - 1) /
							   geometry->transfer_bytes_max +
						   1;

		most = parts > most ? parts : most;
	}
	return (uint32_t)(depth * most < SPW_QUEUE_DEPTH_MAX ? depth * most : SPW_QUEUE_DEPTH_MAX);
}

static int open_queue(struct state *state)
{
	const struct bench_job *job = state->job;
	struct spw_queue_opts opts;

	spw_queue_opts_init(&opts, sizeof(opts));
	opts.backend = job->null ? SPW_BACKEND_NULL : job->backend;
	opts.null_bytes_per_second = job->null_bytes_per_second;
	opts.wait = job->hipri           ? SPW_WAIT_POLL
		    : job->sqthread_poll ? SPW_WAIT_SQPOLL
					 : SPW_WAIT_INTERRUPT;
	opts.depth = queue_depth(state->worker);
	opts.arena = job->fixedbufs ? state->arena : NULL;
	opts.log = state->worker->log;
	return spw_queue_open(state->worker->devices, state->worker->devices_count, &opts,
			      &state->queue);
}

/* One piece of memory for all buffers, filled with bytes that no drive can compress. */
static int make_buffers(struct state *state)
{
	uint64_t slice = spw_round_up(state->job->block_bytes_max, BUFFER_ALIGN_BYTES);
	uint64_t bytes = slice * state->job->iodepth;
	struct spw_arena_opts opts;
	void *memory;
	int result;

	spw_arena_opts_init(&opts, sizeof(opts));
	opts.bytes = bytes;
	opts.numa_node = state->job->numa_node == BENCH_NUMA_ANY
				 ? spw_device_geometry(state->worker->devices[0])->numa_node
				 : (int)state->job->numa_node;
	opts.log = state->worker->log;
	result = spw_arena_open(&opts, &state->arena);
	if (result == 0)
		result = spw_arena_alloc(state->arena, bytes, &memory);
	if (result != 0)
		return result;
	bench_random_fill(state->job->randseed, memory, bytes);
	for (unsigned i = 0; i < state->job->iodepth; i++)
		state->slots[i].io.buf = (char *)memory + i * slice;
	return 0;
}

static int make_slots(struct state *state)
{
	size_t depth = state->job->iodepth;

	state->slots = calloc(depth, sizeof(*state->slots));
	state->idle = calloc(depth, sizeof(struct slot *));
	state->prepared = calloc(depth, sizeof(struct slot *));
	state->completed = calloc(depth, sizeof(struct slot *));
	if (!state->slots || !state->idle || !state->prepared || !state->completed)
		return spw_error(-ENOMEM, "out of memory");
	for (size_t i = 0; i < depth; i++) {
		state->slots[i].state = state;
		state->slots[i].io.context = &state->slots[i];
		state->slots[i].io.done = slot_done;
		state->idle[i] = &state->slots[depth - 1 - i];
	}
	state->idle_count = (unsigned)depth;
	return 0;
}

static int set_up(struct state *state)
{
	size_t regions_bytes = state->worker->devices_count * sizeof(*state->readers);
	int result = bench_bind_to_node(state->job);

	if (result == 0)
		result = make_slots(state);
	state->readers = malloc(regions_bytes);
	if (state->readers)
		memcpy(state->readers, state->worker->regions, regions_bytes);
	else if (result == 0)
		result = spw_error(-ENOMEM, "out of memory");
	if (result == 0)
		result = make_buffers(state);
	if (result == 0)
		result = open_queue(state);
	return result;
}

static void tear_down(struct state *state)
{
	if (state->queue)
		spw_queue_close(state->queue);
	if (state->arena)
		spw_arena_close(state->arena);
	free(state->readers);
	free(state->completed);
	free(state->prepared);
	free(state->idle);
	free(state->slots);
}

static int measure(struct state *state)
{
	struct bench_worker *worker = state->worker;
	uint64_t transfer_ns;
	int result;

	state->direction = draw_direction(state);
	bench_timer_begin(&state->timer, worker);
	result = transfer_all(state);
	transfer_ns = spw_clock_ns() - state->timer.start_ns;
	worker->stats.direction[BENCH_DIR_READ].runtime_ns =
		bench_rw_reads(state->job->rw) ? transfer_ns : 0;
	worker->stats.direction[BENCH_DIR_WRITE].runtime_ns =
		bench_rw_writes(state->job->rw) ? transfer_ns : 0;
	if (result == 0 && state->job->verify != BENCH_VERIFY_NONE &&
	    bench_rw_writes(state->job->rw) && !tool_stopped())
		result = read_back(state);
	bench_timer_end(&state->timer, worker);
	spw_queue_stats(state->queue, &worker->stats.queue, sizeof(worker->stats.queue));
	(void)snprintf(worker->stats.description, sizeof(worker->stats.description), "%s",
		       spw_queue_description(state->queue));
	return result;
}

void bench_worker_run(struct bench_worker *worker)
{
	struct state state = {
		.worker = worker,
		.job = worker->job,
		.units = {.checksum = worker->job->verify,
			  .unit_bytes = worker->job->block_bytes_min,
			  .seed = worker->job->randseed},
		.random = {.state = bench_mix(worker->job->randseed, ~(uint64_t)worker->sequence)},
		/* Blocks of an earlier run with the same seed must not pass for these. */
		.generation = spw_clock_ns(),
	};
	int result;

	if (spw_queue_short_slice() != 0)
		spw_log(&worker->log, SPW_LOG_INFO, "job %s: %s", worker->job->name,
			spw_last_error());
	result = set_up(&state);
	bench_gate_wait(worker->gate);
	if (result == 0)
		result = measure(&state);
	bench_worker_failed(worker, result);
	tear_down(&state);
}
