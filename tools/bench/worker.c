/* SPDX-License-Identifier: MIT */
/*
 * tools/bench/worker.c - the loop of one job on devices
 *
 * Reads the clock where fio does, so that latencies compare: one when a submission returns (which
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

struct slot {
	struct spw_io io;
	struct state *state;
	uint64_t start_ns, issue_ns;
	uint64_t generation;
	unsigned direction;
	bool checked; /* this read is verified */
	bool flying;
};

struct state {
	struct bench_worker *worker;
	const struct bench_job *job;
	struct spw_queue *queue;
	struct spw_arena *arena;
	struct slot *slots;
	struct slot **idle, **prepared, **completed; /* stacks of iodepth elements */
	unsigned idle_count, prepared_count, completed_count, writes_in_flight;
	unsigned device_in_flight[BENCH_FILES_MAX];
	struct bench_units units;
	struct bench_content content;
	/*
	 * Readers go through the same regions and read back what was written, as the next transfer
	 * depends only on the seed. They pause while writes are in flight.
	 */
	struct bench_region *readers;
	uint64_t unread; /* written transfers that were not read back yet, if there is a backlog */
	uint64_t batch;  /* of them to read back before more gather */
	uint64_t due;    /* reads to do before the next write */
	unsigned device_next;
	struct bench_timer timer;
	struct bench_random random, reader_random; /* for drawing directions */
	uint64_t issued_bytes, pass_bytes, issued_ios;
	uint32_t passes;      /* passes that have ended */
	uint32_t thought;     /* transfers since the last pause */
	bool pausing;         /* no transfer is issued until those in flight have ended */
	struct slot *waiting; /* a prepared transfer that overlaps one in flight; the top of idle */
	bool held;            /* delayed by the flow, or by an overlapping transfer */
	unsigned direction;   /* of the next transfer, which may wait for the job's rate */
	uint64_t now_ns;
	uint64_t generation; /* generation of pass 0 */
	bool exhausted;
	bool ending; /* everything is written, the rest is read back */
};

static unsigned in_flight(const struct state *state)
{
	return state->job->iodepth - state->idle_count;
}

/* ---- What comes next ------------------------------------------------------------------------- */

static unsigned draw_direction(struct state *state, struct bench_random *random)
{
	uint32_t rw = state->job->rw;

	if (!bench_rw_writes(rw))
		return BENCH_DIR_READ;
	if (!bench_rw_reads(rw))
		return BENCH_DIR_WRITE;
	return bench_random_next(random) % 100 < state->job->read_percent ? BENCH_DIR_READ
									  : BENCH_DIR_WRITE;
}

static bool reads_back(const struct state *state)
{
	return state->job->verify != BENCH_VERIFY_NONE && state->job->do_verify &&
	       bench_rw_writes(state->job->rw);
}

/* Find the next written transfer that was not read back yet. Reads of a mixed job are skipped. */
static bool next_written(struct state *state, unsigned index, struct slot *slot)
{
	struct bench_region *region = &state->worker->regions[index];
	struct bench_region *reader = &state->readers[index];
	unsigned direction = BENCH_DIR_READ;

	while (direction == BENCH_DIR_READ && reader->index < region->index) {
		direction = draw_direction(state, &state->reader_random);
		if (!bench_region_next(reader, direction, &slot->io.offset_bytes,
				       &slot->io.len_bytes))
			return false;
	}
	return direction == BENCH_DIR_WRITE;
}

/* @due: choose a written transfer to read back */
static bool next_of_region(struct state *state, unsigned index, unsigned direction, bool due,
			   struct slot *slot)
{
	struct bench_region *region = &state->worker->regions[index];

	slot->generation = state->generation + region->pass;
	slot->checked = due || !bench_rw_writes(state->job->rw);
	return due ? next_written(state, index, slot)
		   : bench_region_next(region, direction, &slot->io.offset_bytes,
				       &slot->io.len_bytes);
}

/* Whether blocks must be read back before the next pass overwrites them. */
static bool must_read_back_first(struct state *state)
{
	if (!reads_back(state))
		return false;
	for (unsigned i = 0; i < state->worker->devices_count; i++)
		if (state->readers[i].index < state->worker->regions[i].index)
			state->due = UINT64_MAX;
	return state->due > 0 || in_flight(state) > 0;
}

/* Whether another pass follows: by loops, or until io_size is moved if a transfer still fits. */
static bool has_another_pass(const struct state *state)
{
	const struct bench_job *job = state->job;
	uint64_t wanted = state->worker->limit_bytes / job->loops;

	if (state->ending || state->issued_bytes == 0)
		return false;
	if (job->time_based || state->passes + 1 < job->loops)
		return true;
	return (job->io_bytes > 0 || job->io_percent > 0) && wanted > state->issued_bytes &&
	       wanted - state->issued_bytes >= job->block_bytes_max;
}

static void start_pass(struct state *state, unsigned index)
{
	uint64_t pass = state->worker->regions[index].pass + 1;

	bench_region_start_pass(&state->worker->regions[index], pass);
	if (reads_back(state))
		bench_region_start_pass(&state->readers[index], pass);
}

/* Whether the job has reached fio's limits of bytes or transfers over all passes. */
static bool is_at_limit(const struct state *state)
{
	const struct bench_job *job = state->job;

	if (job->time_based)
		return false;
	return state->issued_bytes >= state->worker->limit_bytes ||
	       (job->number_ios > 0 && state->issued_ios >= job->number_ios * job->loops);
}

/*
 * Choose a device in turn, the one with fewest transfers in flight first: otherwise a slow drive
 * would gather all transfers.
 */
static unsigned choose_device(const struct state *state)
{
	unsigned count = state->worker->devices_count, chosen = state->device_next;

	for (unsigned i = 1; i < count; i++) {
		unsigned index = state->device_next + i < count ? state->device_next + i
								: state->device_next + i - count;

		if (state->device_in_flight[index] < state->device_in_flight[chosen])
			chosen = index;
	}
	return chosen;
}

/* Get the next transfer of any file. */
static bool next_of_files(struct state *state, unsigned direction, bool due, struct slot *slot)
{
	unsigned count = state->worker->devices_count;

	state->device_next = choose_device(state);
	for (unsigned tried = 0; tried < count; tried++) {
		unsigned index = state->device_next;
		bool found = next_of_region(state, index, direction, due, slot);

		if (!found && state->job->time_based && !due && !state->ending) {
			if (must_read_back_first(state))
				return false;
			start_pass(state, index);
			found = next_of_region(state, index, direction, due, slot);
		}
		state->device_next = index + 1 == count ? 0 : index + 1;
		if (found) {
			slot->io.device = index;
			return true;
		}
	}
	return false;
}

/* Choose the next transfer. Return: false if there is none now, or no more. */
static bool next_transfer(struct state *state, unsigned direction, struct slot *slot)
{
	bool over = state->pass_bytes >= state->worker->pass_bytes && !state->job->time_based;

	if (is_at_limit(state))
		return false;
	if (over || !next_of_files(state, direction, false, slot)) {
		if (!has_another_pass(state) || state->job->time_based ||
		    must_read_back_first(state))
			return false;
		for (unsigned i = 0; i < state->worker->devices_count; i++)
			start_pass(state, i);
		state->passes++;
		state->pass_bytes = 0;
		if (!next_of_files(state, direction, false, slot))
			return false;
	}
	state->pass_bytes += slot->io.len_bytes;
	state->issued_bytes += slot->io.len_bytes;
	state->issued_ios++;
	return true;
}

/* Whether a transfer overlaps one in flight. */
static bool overlaps(const struct state *state, const struct slot *slot)
{
	for (unsigned i = 0; i < state->job->iodepth; i++) {
		const struct slot *other = &state->slots[i];

		if (other->flying && other != slot && other->io.device == slot->io.device &&
		    other->io.offset_bytes < slot->io.offset_bytes + slot->io.len_bytes &&
		    slot->io.offset_bytes < other->io.offset_bytes + other->io.len_bytes)
			return true;
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

static void fill(struct state *state, const struct slot *slot)
{
	if (state->job->verify != BENCH_VERIFY_NONE)
		bench_verify_fill(&state->units, slot->io.buf, slot->io.len_bytes,
				  slot->io.offset_bytes, slot->generation);
	else
		bench_content_next(&state->content, slot->io.buf, slot->io.len_bytes,
				   slot->io.offset_bytes, slot->start_ns);
}

/*
 * Note a write. As in fio, a batch begins when a whole backlog is unread, also where the last batch
 * left some of it; what a batch larger than that lacks is read as it is written.
 */
static void gather(struct state *state)
{
	const struct bench_job *job = state->job;

	state->unread++;
	if (state->batch == 0 && state->unread % job->verify_backlog == 0)
		state->batch = job->verify_backlog_batch > 0 ? job->verify_backlog_batch
							     : job->verify_backlog;
	state->due = SPW_MIN(state->batch, state->unread);
}

static void note_read_back(struct state *state)
{
	state->due--;
	state->batch -= state->batch > 0;
	state->unread -= state->unread > 0;
}

static int prepare(struct state *state, struct slot *slot, unsigned direction)
{
	slot->direction = direction;
	slot->io.op = slot->direction == BENCH_DIR_READ ? SPW_READ : SPW_WRITE;
	slot->start_ns = state->now_ns;
	slot->flying = true;
	state->waiting = NULL;
	if (slot->direction == BENCH_DIR_WRITE) {
		fill(state, slot);
		state->writes_in_flight++;
		if (state->job->verify_backlog > 0)
			gather(state);
	}
	state->idle_count--;
	state->prepared[state->prepared_count++] = slot;
	state->device_in_flight[slot->io.device]++;
	state->worker->stats.depth_levels[bench_depth_level(in_flight(state))]++;
	return spw_queue_prepare(state->queue, &slot->io);
}

/* Whether the worker must pause, or wait for other jobs of its flow. */
static bool is_held(struct state *state)
{
	if (state->pausing ||
	    (!state->ending && state->worker->flow && !bench_flow_take(state->worker)))
		state->held = true;
	return state->held;
}

/* Choose a new transfer, if rate and limits allow. Return: 1 @slot has it; 0 there is none now. */
static int choose_next(struct state *state, struct slot *slot)
{
	unsigned direction = state->direction;

	if (!state->ending && state->timer.due_ns[direction] > state->now_ns)
		return 0;
	if (!state->waiting && is_held(state))
		return 0;
	if (!state->waiting && (state->ending || !next_transfer(state, direction, slot))) {
		/* The next pass begins when nothing of the last one is in flight. */
		state->exhausted = state->ending || is_at_limit(state) ||
				   !has_another_pass(state) ||
				   (in_flight(state) == 0 && state->due == 0);
		return 0;
	}
	if (state->job->serialize_overlap && overlaps(state, slot)) {
		state->waiting = slot;
		state->held = true;
		return 0;
	}
	bench_timer_pace(&state->timer, state->job, direction, slot->io.len_bytes);
	state->direction = draw_direction(state, &state->random);
	if (state->job->think_us > 0 && ++state->thought >= state->job->think_blocks)
		state->pausing = true;
	return 1;
}

/* Return: 1 the next transfer was prepared; 0 there is none now. */
static int prepare_next(struct state *state, struct slot *slot)
{
	unsigned direction = BENCH_DIR_READ;
	int result;

	if (state->due > 0 && state->writes_in_flight > 0)
		return 0;
	if (state->due > 0 && !state->waiting && next_of_files(state, BENCH_DIR_READ, true, slot)) {
		note_read_back(state);
	} else {
		state->due = 0;
		direction = state->direction;
		if (choose_next(state, slot) == 0)
			return 0;
	}
	result = prepare(state, slot, direction);
	return result < 0 ? result : 1;
}

/* Issue until the depth is reached, the job is exhausted, or its rate or backlog demands a wait. */
static int issue(struct state *state)
{
	int result = 1;

	state->held = false;
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
	if (state->job->verify == BENCH_VERIFY_NONE || slot->direction == BENCH_DIR_WRITE ||
	    !slot->checked)
		return 0;
	state->worker->stats.blocks_verified += slot->io.len_bytes / state->units.unit_bytes;
	return bench_verify_check(
		&state->units, slot->io.buf, slot->io.len_bytes, slot->io.offset_bytes,
		bench_rw_writes(state->job->rw) ? slot->generation : BENCH_GENERATION_ANY, path);
}

/* Return a slot to the idle ones. A waiting transfer stays on top. */
static void give_back(struct state *state, struct slot *slot)
{
	if (state->waiting) {
		state->idle[state->idle_count] = state->waiting;
		state->idle[state->idle_count - 1] = slot;
	} else {
		state->idle[state->idle_count] = slot;
	}
	state->idle_count++;
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
		slot->flying = false;
		state->device_in_flight[slot->io.device]--;
		state->writes_in_flight -= slot->direction == BENCH_DIR_WRITE;
		give_back(state, slot);
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

/* With nothing in flight: pause for thinktime, or until the flow is checked again. */
static void rest(struct state *state)
{
	uint64_t us = state->pausing ? state->job->think_us : state->job->flow_sleep_us;
	struct bench_timer until = state->timer;

	if (us == 0)
		(void)sched_yield();
	until.due_ns[0] = spw_clock_ns() + us * 1000;
	while (us > 0 && spw_clock_ns() < until.due_ns[0] &&
	       !bench_timer_expired(&state->timer, state->worker, spw_clock_ns()))
		bench_timer_sleep(&until, 0);
	if (state->pausing)
		state->thought = 0;
	state->pausing = false;
	state->now_ns = spw_clock_ns();
}

/* Wait for completions, but no longer than until the rate allows the next transfer. */
static int wait_for_room(struct state *state)
{
	unsigned flying = in_flight(state), min = state->job->complete_min;
	uint64_t due_ns = state->timer.due_ns[state->direction];

	if (state->held && flying == 0) {
		rest(state);
		return 0;
	}
	if (state->idle_count == 0 || due_ns <= state->now_ns || state->pausing)
		return reap(state, min < flying ? min : flying, -1);
	if (flying > 0)
		return reap(state, 1, (int64_t)(due_ns - state->now_ns));
	bench_timer_sleep(&state->timer, state->direction);
	state->now_ns = spw_clock_ns();
	return 0;
}

/* Transfer until the time is up, all is transferred or something fails; then drain. */
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
	/* Runtime and ramp apply only to the writes. */
	state->timer.end_ns = UINT64_MAX;
	state->timer.ramp_end_ns = 0;
	result = transfer_all(state);
	reads->runtime_ns = spw_clock_ns() -
			    (state->job->verify_backlog > 0 ? state->timer.start_ns : begin_ns);
	return result;
}

/* ---- Setting up ------------------------------------------------------------------------------ */

/* The queue depth in kernel requests: large transfers are split, but iodepth counts transfers. */
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

/* Allocate all buffers in one piece, filled with bytes that a drive cannot compress. */
static int make_buffers(struct state *state)
{
	uint64_t slice = spw_round_up(state->job->block_bytes_max, BUFFER_ALIGN_BYTES);
	uint64_t bytes = slice * state->job->iodepth;
	struct spw_arena_opts opts;
	void *memory;
	int result;

	spw_arena_opts_init(&opts, sizeof(opts));
	opts.bytes = bytes;
	opts.numa_node = bench_memory_node(state->job) < 0
				 ? spw_device_geometry(state->worker->devices[0])->numa_node
				 : bench_memory_node(state->job);
	opts.log = state->worker->log;
	result = spw_arena_open(&opts, &state->arena);
	if (result == 0)
		result = spw_arena_alloc(state->arena, bytes, &memory);
	if (result != 0)
		return result;
	bench_content_begin(state->job, memory, bytes);
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

static int make_readers(struct state *state)
{
	unsigned count = state->worker->devices_count;
	int result = 0;

	state->readers = calloc(count, sizeof(*state->readers));
	if (!state->readers)
		return spw_error(-ENOMEM, "out of memory");
	for (unsigned i = 0; reads_back(state) && i < count && result == 0; i++)
		result = bench_region_copy(&state->readers[i], &state->worker->regions[i]);
	return result;
}

static int set_up(struct state *state)
{
	int result = bench_place_thread(state->worker);

	if (result == 0)
		result = make_slots(state);
	if (result == 0)
		result = make_readers(state);
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
	for (unsigned i = 0; state->readers && i < state->worker->devices_count; i++)
		bench_region_remove(&state->readers[i]);
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

	state->reader_random = state->random;
	state->direction = draw_direction(state, &state->random);
	bench_timer_begin(&state->timer, worker);
	result = transfer_all(state);
	transfer_ns = spw_clock_ns() - state->timer.start_ns;
	worker->stats.direction[BENCH_DIR_READ].runtime_ns =
		bench_rw_reads(state->job->rw) ? transfer_ns : 0;
	worker->stats.direction[BENCH_DIR_WRITE].runtime_ns =
		bench_rw_writes(state->job->rw) ? transfer_ns : 0;
	if (result == 0 && reads_back(state) && !tool_stopped())
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
			  .unit_bytes = bench_job_unit(worker->job),
			  .seed = worker->job->randseed,
			  .pattern = worker->job->verify_pattern.len > 0
					     ? &worker->job->verify_pattern
					     : NULL},
		.random = {.state = bench_mix(worker->job->randseed, ~(uint64_t)worker->sequence)},
		.content = {.job = worker->job,
			    .random = {.state = bench_mix(worker->job->randseed, worker->sequence)},
			    .set = worker->job->dedupe_set
					   ? bench_percent_of(worker->pass_bytes,
							      worker->job->dedupe_set_percent) /
							     worker->job->block_bytes_max +
						     1
					   : 0},
		/* Blocks of an earlier run with the same seed must not verify as this run's. */
		.generation = spw_clock_ns(),
	};
	int result;

	if (spw_queue_short_slice() != 0)
		spw_log(&worker->log, SPW_LOG_INFO, "job %s: %s", worker->job->name,
			spw_last_error());
	result = set_up(&state);
	bench_gate_wait(worker->gate);
	bench_await_turn(worker);
	if (result == 0)
		result = measure(&state);
	bench_worker_failed(worker, result);
	tear_down(&state);
}
