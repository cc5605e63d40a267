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
#include <numa.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/bench/backlog.h"
#include "util/util.h"

#define BUFFER_ALIGN_BYTES 4096u
#define SECTOR_BYTES       512u
/* how long a job that waits for its rate may be deaf to an interrupt */
#define NAP_NS_MAX 100000000

struct slot {
	struct spw_io io;
	struct state *state;
	uint64_t start_ns, issue_ns;
	uint64_t generation;
	uint64_t number; /* of a write, in the backlog */
	unsigned direction;
};

struct state {
	struct bench_worker *worker;
	const struct bench_job *job;
	struct spw_queue *queue;
	struct spw_arena *arena;
	struct slot *slots;
	struct slot **idle, **prepared, **completed; /* stacks of iodepth */
	unsigned idle_count, prepared_count, completed_count, in_flight;
	struct bench_region regions[BENCH_FILES_MAX];
	unsigned device_in_flight[BENCH_FILES_MAX];
	/* verify: transfers of that pass which were written */
	uint64_t region_written[BENCH_FILES_MAX];
	struct bench_units units;
	struct bench_backlog backlog;
	unsigned region_next;
	struct bench_timer timer;
	struct bench_random random;
	unsigned direction;
	bool direction_drawn; /* for a transfer that had to wait for its rate */
	uint64_t due_ns[BENCH_DIRECTIONS];
	uint64_t wait_until_ns; /* 0: not waiting for a rate */
	uint64_t now_ns;
	uint64_t generation; /* of pass 0 */
	bool exhausted, verifying;
	bool reading_backlog; /* at the end: what the backlog still holds, and nothing else */
	int error;
};

/* ---- What comes next ------------------------------------------------------------------------- */

static unsigned draw_direction(struct state *state)
{
	uint32_t rw = state->job->rw;

	if (state->verifying || !bench_rw_writes(rw))
		return BENCH_DIR_READ;
	if (!bench_rw_reads(rw))
		return BENCH_DIR_WRITE;
	return bench_random_next(&state->random) % 100 < state->job->read_percent ? BENCH_DIR_READ
										  : BENCH_DIR_WRITE;
}

/*
 * A rate lets transfers start one after another at its pace. Return: false when it is not time yet.
 */
static bool rate_allows(struct state *state)
{
	if (state->job->rate_bytes == 0 || state->verifying)
		return true;
	if (state->now_ns >= state->due_ns[state->direction])
		return true;
	state->wait_until_ns = state->due_ns[state->direction];
	return false;
}

static void rate_account(struct state *state, uint32_t len_bytes)
{
	if (state->job->rate_bytes > 0)
		state->due_ns[state->direction] +=
			(uint64_t)((double)len_bytes * 1e9 / (double)state->job->rate_bytes);
}

/* Verifying goes over the last pass: first what it wrote, then what it left of the pass before. */
static bool next_of_region(struct state *state, unsigned index, struct slot *slot)
{
	struct bench_region *region = &state->regions[index];
	bool written = !state->verifying || region->index < state->region_written[index];

	if (!written && region->pass == 0)
		return false;
	slot->generation = state->generation + region->pass - (written ? 0 : 1);
	return bench_region_next(region, state->direction, &slot->io.offset_bytes,
				 &slot->io.len_bytes);
}

/*
 * The next pass overwrites what the last one has written, which may wait to be read back, or be
 * read just now.
 */
static bool must_read_back_first(struct state *state)
{
	if (state->backlog.every == 0)
		return false;
	bench_backlog_flush(&state->backlog);
	return bench_backlog_is_due(&state->backlog) || state->in_flight > 0;
}

/*
 * By turns; but what fewer transfers are in flight to comes first, else a drive that is slow for a
 * while would gather them all.
 */
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

static bool next_transfer(struct state *state, struct slot *slot)
{
	unsigned count = state->worker->devices_count;

	state->region_next = choose_device(state);
	for (unsigned tried = 0; tried < count; tried++) {
		unsigned index = state->region_next;
		bool found = next_of_region(state, index, slot);

		if (!found && state->job->time_based && !state->verifying) {
			if (must_read_back_first(state))
				return false;
			bench_region_start_pass(&state->regions[index],
						state->regions[index].pass + 1);
			found = next_of_region(state, index, slot);
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

/*
 * Every sector gets two words of its own, so that a drive that finds equal data cannot skip it. As
 * fio does unless told otherwise.
 */
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
	if (slot->direction == BENCH_DIR_WRITE)
		fill(state, slot);
	if (slot->direction == BENCH_DIR_WRITE && state->backlog.every > 0)
		slot->number = bench_backlog_add(&state->backlog, &slot->io, slot->generation);
	state->idle_count--;
	state->prepared[state->prepared_count++] = slot;
	state->in_flight++;
	state->device_in_flight[slot->io.device]++;
	state->worker->stats.depth_levels[bench_depth_level(state->in_flight)]++;
	return spw_queue_prepare(state->queue, &slot->io);
}

/* Return: 1 a read of what is to be read back was prepared; 0 its write has not ended. */
static int prepare_read_back(struct state *state, struct slot *slot)
{
	const struct bench_written *written = bench_backlog_next(&state->backlog);
	int result;

	if (!written)
		return 0;
	slot->io.device = written->device;
	slot->io.offset_bytes = written->offset_bytes;
	slot->io.len_bytes = written->len_bytes;
	slot->generation = written->generation;
	result = prepare(state, slot, BENCH_DIR_READ);
	return result < 0 ? result : 1;
}

/* Return: 1 the next transfer was prepared; 0 there is none now. */
static int prepare_next(struct state *state, struct slot *slot)
{
	int result;

	if (bench_backlog_is_due(&state->backlog))
		return prepare_read_back(state, slot);
	if (state->backlog.every > 0 && !bench_backlog_takes(&state->backlog))
		return 0;
	if (!state->direction_drawn)
		state->direction = draw_direction(state);
	state->direction_drawn = true;
	if (!rate_allows(state))
		return 0;
	if (state->reading_backlog || !next_transfer(state, slot)) {
		if (bench_backlog_is_due(&state->backlog))
			return prepare_read_back(state, slot);
		/* A pass that is over begins anew when nothing of it is in flight. */
		state->exhausted =
			!(state->job->time_based && !state->verifying && state->in_flight > 0);
		return 0;
	}
	state->direction_drawn = false;
	rate_account(state, slot->io.len_bytes);
	result = prepare(state, slot, state->direction);
	return result < 0 ? result : 1;
}

/* Issue until the depth is reached, the job is exhausted, or its rate or its backlog says wait. */
static int issue(struct state *state)
{
	int result = 1;

	state->wait_until_ns = 0;
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
	if (slot->direction == BENCH_DIR_WRITE && state->backlog.every > 0)
		bench_backlog_ended(&state->backlog, slot->number);
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
		struct bench_direction_stats *direction = &stats->direction[slot->direction];
		int result = check_transfer(state, slot);

		if (result == 0) {
			direction->ios++;
			direction->bytes += slot->io.len_bytes;
			spw_histogram_add(&direction->complete_ns, state->now_ns - slot->issue_ns);
			spw_summary_add(&direction->total_ns, state->now_ns - slot->start_ns);
		} else if (state->error == 0) {
			state->error = result;
			(void)snprintf(stats->error_text, sizeof(stats->error_text), "%s",
				       spw_last_error());
		}
		state->device_in_flight[slot->io.device]--;
		state->idle[state->idle_count++] = slot;
	}
	stats->complete_levels[bench_batch_level(state->completed_count)]++;
	state->in_flight -= state->completed_count;
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

static void nap(const struct state *state)
{
	uint64_t wait_ns =
		state->wait_until_ns > state->now_ns ? state->wait_until_ns - state->now_ns : 0;
	struct timespec time = {.tv_nsec = wait_ns < NAP_NS_MAX ? (long)wait_ns : NAP_NS_MAX};

	(void)nanosleep(&time, NULL);
}

/*
 * Wait for what has to be waited for: completions, or the time that a rate allows the next
 * transfer.
 */
static int wait_for_room(struct state *state)
{
	unsigned min = state->job->complete_min < state->in_flight ? state->job->complete_min
								   : state->in_flight;

	if (state->in_flight == 0) {
		if (state->wait_until_ns > 0)
			nap(state);
		state->now_ns = spw_clock_ns();
		return 0;
	}
	if (state->wait_until_ns > state->now_ns)
		return reap(state, 1, (int64_t)(state->wait_until_ns - state->now_ns));
	return reap(state, min, -1);
}

/* Until the time is up, everything was transferred, or something failed; then what is in flight. */
static int transfer_all(struct state *state)
{
	int result = 0;

	state->now_ns = spw_clock_ns();
	while (result == 0 && state->error == 0 &&
	       !bench_timer_expired(&state->timer, state->worker, state->now_ns)) {
		result = issue(state);
		if (result == 0 && state->in_flight == 0 && state->exhausted)
			break;
		if (result == 0)
			result = wait_for_room(state);
	}
	while (result == 0 && state->in_flight > 0)
		result = reap(state, 1, -1);
	return result == 0 ? state->error : result;
}

/* ---- Verifying ------------------------------------------------------------------------------- */

static int read_back(struct state *state)
{
	struct bench_direction_stats *reads = &state->worker->stats.direction[BENCH_DIR_READ];
	uint64_t begin_ns = spw_clock_ns();
	uint64_t end_ns = state->timer.end_ns;
	int result;

	/* Whatever is in the backlog is all that was not read back yet, unless some did not fit. */
	state->reading_backlog = state->backlog.every > 0 && !state->backlog.left_out;
	bench_backlog_flush(&state->backlog);
	if (!state->reading_backlog)
		state->backlog.due = 0;
	for (unsigned i = 0; i < state->worker->devices_count; i++) {
		state->region_written[i] = state->regions[i].index;
		bench_region_start_pass(&state->regions[i], state->regions[i].pass);
	}
	state->verifying = true;
	state->exhausted = false;
	state->direction_drawn = false;
	state->timer.end_ns = UINT64_MAX; /* the runtime limits the writing */
	result = transfer_all(state);
	state->timer.end_ns = end_ns;
	reads->runtime_ns =
		spw_clock_ns() - (state->backlog.every > 0 ? state->timer.start_ns : begin_ns);
	return result;
}

/* ---- Setting up ------------------------------------------------------------------------------ */

/*
 * Kernel requests per transfer: what is larger than the kernel takes at once is split, and iodepth
 * counts transfers.
 */
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
	opts.tune_path = ""; /* the job says it all */
	opts.backend = job->backend;
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
	struct bench_random random = {.state = state->job->randseed};
	struct spw_arena_opts opts;
	uint64_t *words;
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
	words = memory;
	for (uint64_t i = 0; i < bytes / sizeof(*words); i++)
		words[i] = bench_random_next(&random);
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

static int place_regions(struct state *state)
{
	struct bench_worker *worker = state->worker;
	struct bench_job job = *state->job;
	uint64_t seed = bench_mix(state->job->randseed, worker->sequence);
	uint64_t total = 0;
	int result = 0;

	if (__builtin_mul_overflow(job.offset_increment_bytes, worker->index,
				   &job.offset_increment_bytes) ||
	    __builtin_add_overflow(job.offset_bytes, job.offset_increment_bytes, &job.offset_bytes))
		return spw_error(-EINVAL, "job %s: offset_increment: too large for numjobs=%u",
				 job.name, job.numjobs);
	for (unsigned i = 0; i < worker->devices_count && result == 0; i++) {
		result = bench_region_place(&state->regions[i], &job, worker->paths[i],
					    spw_device_geometry(worker->devices[i]),
					    worker->devices_count, bench_mix(seed, i));
		total += state->regions[i].len_bytes;
	}
	if (state->job->verify != BENCH_VERIFY_NONE && bench_rw_writes(state->job->rw))
		total *= 2;
	atomic_store_explicit(&worker->live_total_bytes, total, memory_order_relaxed);
	return result;
}

static int bind_to_node(const struct bench_job *job)
{
	if (job->numa_node == BENCH_NUMA_ANY)
		return 0;
	if (numa_available() < 0 || (int)job->numa_node > numa_max_node())
		return spw_error(-EINVAL, "job %s: numa=%u: this machine has no such node",
				 job->name, job->numa_node);
	if (numa_run_on_node((int)job->numa_node) != 0)
		return spw_error_errno(-errno, "job %s: numa=%u", job->name, job->numa_node);
	return 0;
}

static int set_up(struct state *state)
{
	int result = bind_to_node(state->job);

	if (result == 0)
		result = place_regions(state);
	if (result == 0)
		result = make_slots(state);
	if (result == 0)
		result = bench_backlog_init(&state->backlog, state->job);
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
	bench_backlog_free(&state->backlog);
	free(state->completed);
	free(state->prepared);
	free(state->idle);
	free(state->slots);
}

/* From the gate to the last completion. */
static int measure(struct state *state)
{
	struct bench_worker *worker = state->worker;
	uint64_t transfer_ns;
	int result;

	bench_timer_begin(&state->timer, worker);
	state->due_ns[0] = state->due_ns[1] = state->timer.begin_ns;
	result = transfer_all(state);
	transfer_ns = spw_clock_ns() - state->timer.start_ns;
	worker->stats.direction[BENCH_DIR_READ].runtime_ns =
		bench_rw_reads(state->job->rw) ? transfer_ns : 0;
	worker->stats.direction[BENCH_DIR_WRITE].runtime_ns =
		bench_rw_writes(state->job->rw) ? transfer_ns : 0;
	if (result == 0 && state->job->verify != BENCH_VERIFY_NONE &&
	    bench_rw_writes(state->job->rw) &&
	    !atomic_load_explicit(worker->stop, memory_order_relaxed))
		result = read_back(state);
	bench_timer_end(&state->timer, worker);
	spw_queue_stats(state->queue, &worker->stats.queue, sizeof(worker->stats.queue));
	(void)snprintf(worker->stats.description, sizeof(worker->stats.description), "%s",
		       spw_queue_description(state->queue));
	return result;
}

int bench_worker_run(struct bench_worker *worker)
{
	struct state state = {
		.worker = worker,
		.job = worker->job,
		.units = {.checksum = worker->job->verify,
			  .unit_bytes = worker->job->block_bytes_min,
			  .seed = worker->job->randseed},
		.random = {.state = bench_mix(worker->job->randseed, ~(uint64_t)worker->sequence)},
		/*
		 * Blocks of an earlier run with the same seed must not pass for those of this one.
		 */
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
	result = bench_worker_ended(worker, result);
	tear_down(&state);
	return result;
}
