/* SPDX-License-Identifier: MIT */
/*
 * tools/bench/store.c - the loop of one job on a store
 *
 * Every worker opens a partition of its own, as a rank of a training job would, and drives it
 * inline, so all CPU time is spent in this thread. The working set is as many objects as fit the
 * job's size. A job is a sequence of phases:
 *
 *   write             put the working set (time_based: free it and put it again)
 *   read, randread    put it unmeasured, then get it in reverse or shuffled order
 *   rw                training steps: put it, then get and free each object in reverse order
 *   randrw            put it unmeasured, then replace and get objects at the same time, rwmixread
 *                     of them gets
 */
#include "tools/bench/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/ui/stop.h"
#include "util/util.h"

#define ARENA_SPARE_BYTES (UINT64_C(64) << 20)

struct transfer {
	struct state *state;
	void *buffer;
	uint64_t start_ns, issue_ns;
	unsigned direction;
	unsigned object; /* index into state->objects */
	int res;
};

struct state {
	struct bench_worker *worker;
	const struct bench_job *job;
	struct spw_store *store;
	spw_object *objects; /* the working set; 0: not put yet, or freed */
	bool *busy;          /* by object: a transfer of it is in flight */
	unsigned objects_count;
	struct transfer *transfers;
	struct transfer **idle, **completed;
	unsigned idle_count, completed_count;
	struct bench_timer timer;
	struct bench_random random;
	uint64_t now_ns;
	bool freeing; /* in the backward half of a step, which frees objects after their get */
};

static void transfer_done(void *context, int res)
{
	struct transfer *transfer = context;

	transfer->res = res;
	transfer->state->completed[transfer->state->completed_count++] = transfer;
	bench_worker_failed(transfer->state->worker, res);
}

static int issue(struct state *state, unsigned direction, unsigned object)
{
	struct transfer *transfer = state->idle[state->idle_count - 1];
	struct spw_notify notify = {.done = transfer_done, .context = transfer};
	struct bench_stats *stats = &state->worker->stats;
	size_t len = state->job->object_bytes;
	int result;

	transfer->direction = direction;
	transfer->object = object;
	transfer->start_ns = state->now_ns;
	if (direction == BENCH_DIR_WRITE)
		result = spw_store_put(state->store, transfer->buffer, len, &notify,
				       &state->objects[object], NULL);
	else
		result = spw_store_get(state->store, state->objects[object], 0, transfer->buffer,
				       len, SPW_URGENT_READ, &notify, NULL);
	if (result != 0)
		return result;
	bench_timer_pace(&state->timer, state->job, direction, len);
	state->idle_count--;
	state->busy[object] = true;
	state->now_ns = transfer->issue_ns = spw_clock_ns();
	stats->depth_levels[bench_depth_level(state->job->iodepth - state->idle_count)]++;
	stats->submit_levels[1]++;
	spw_summary_add(&stats->direction[direction].submit_ns,
			transfer->issue_ns - transfer->start_ns);
	return 0;
}

static int end_object(struct state *state, unsigned object)
{
	int result = spw_store_free(state->store, state->objects[object]);

	state->objects[object].value = 0;
	return result;
}

static void complete(struct state *state, struct transfer *transfer)
{
	struct bench_direction_stats *stats = &state->worker->stats.direction[transfer->direction];
	int result = transfer->res;

	state->busy[transfer->object] = false;
	state->idle[state->idle_count++] = transfer;
	if (result == 0 && state->freeing) {
		result = end_object(state, transfer->object);
		bench_worker_failed(state->worker, result);
	}
	if (result == 0)
		bench_account(stats, state->job->object_bytes, transfer->start_ns,
			      transfer->issue_ns, state->now_ns);
}

static int reap(struct state *state)
{
	int result = spw_store_poll(state->store, true);

	state->now_ns = spw_clock_ns();
	for (unsigned i = 0; i < state->completed_count; i++)
		complete(state, state->completed[i]);
	if (state->completed_count > 0) {
		state->worker->stats.complete_levels[bench_batch_level(state->completed_count)]++;
		bench_worker_live(state->worker);
	}
	state->completed_count = 0;
	return result < 0 ? result : state->worker->stats.error;
}

/* Reap until at least @idle transfers are idle. */
static int reap_until(struct state *state, unsigned idle)
{
	int result = 0;

	while (state->idle_count < idle && result == 0)
		result = reap(state);
	return result;
}

static bool expired(struct state *state)
{
	return bench_timer_expired(&state->timer, state->worker, state->now_ns);
}

/* Wait until a transfer is idle and the job's rate allows the next one, or the time is up. */
static int wait_for_turn(struct state *state, unsigned direction)
{
	int result = reap_until(state, 1);

	while (result == 0 && state->timer.due_ns[direction] > state->now_ns && !expired(state)) {
		if (state->idle_count < state->job->iodepth) {
			result = reap(state);
		} else {
			bench_timer_sleep(&state->timer, direction);
			state->now_ns = spw_clock_ns();
		}
	}
	return result;
}

/* ---- Phases ---------------------------------------------------------------------------------- */

enum order {
	PUTTING,
	REVERSE,
	SHUFFLED,
};

/* Transfer every object once; objects that do not exist are not read. */
static int transfer_all(struct state *state, unsigned direction, enum order order, uint64_t pass)
{
	unsigned count = state->objects_count;
	struct bench_shuffle shuffle;
	int result = 0;

	bench_shuffle_init(&shuffle, count, bench_mix(state->job->randseed, pass));
	for (unsigned i = 0; i < count && result == 0; i++) {
		unsigned object = order == SHUFFLED  ? (unsigned)bench_shuffle_at(&shuffle, i)
				  : order == REVERSE ? count - 1 - i
						     : i;

		if (direction == BENCH_DIR_READ && state->objects[object].value == 0)
			continue;
		result = wait_for_turn(state, direction);
		if (result != 0 || expired(state))
			break;
		result = issue(state, direction, object);
	}
	return result == 0 ? reap_until(state, state->job->iodepth) : result;
}

static int free_all(struct state *state)
{
	int result = 0;

	for (unsigned i = 0; i < state->objects_count && result == 0; i++)
		if (state->objects[i].value != 0)
			result = end_object(state, i);
	return result;
}

/* Run one training step. Closing the store frees objects that remain at the end of the run. */
static int step(struct state *state)
{
	int result = transfer_all(state, BENCH_DIR_WRITE, PUTTING, 0);

	state->freeing = true;
	if (result == 0)
		result = transfer_all(state, BENCH_DIR_READ, REVERSE, 0);
	state->freeing = false;
	return result;
}

/* Run puts and gets at the same time, each on a different object. */
static int mix(struct state *state)
{
	int result = 0;

	for (unsigned i = 0; i < state->objects_count && result == 0; i++) {
		bool get = bench_random_next(&state->random) % 100 < state->job->read_percent;
		unsigned direction = get ? BENCH_DIR_READ : BENCH_DIR_WRITE;
		unsigned object =
			(unsigned)(bench_random_next(&state->random) % state->objects_count);

		result = wait_for_turn(state, direction);
		if (result != 0 || expired(state))
			break;
		/* There are more objects than transfers, so one is not busy. */
		while (state->busy[object])
			object = object + 1 == state->objects_count ? 0 : object + 1;
		if (!get)
			result = end_object(state, object);
		if (result == 0)
			result = issue(state, direction, object);
	}
	return result;
}

static int one_pass(struct state *state, uint64_t pass)
{
	int result;

	switch (state->job->rw) {
	case BENCH_READ: return transfer_all(state, BENCH_DIR_READ, REVERSE, pass);
	case BENCH_RANDREAD: return transfer_all(state, BENCH_DIR_READ, SHUFFLED, pass);
	case BENCH_RW: return step(state);
	case BENCH_RANDRW: return mix(state);
	default:
		result = pass > 0 ? free_all(state) : 0;
		return result == 0 ? transfer_all(state, BENCH_DIR_WRITE, PUTTING, pass) : result;
	}
}

/* ---- Setting up ------------------------------------------------------------------------------ */

static int make_transfers(struct state *state)
{
	size_t depth = state->job->iodepth;

	state->transfers = calloc(depth, sizeof(*state->transfers));
	state->idle = calloc(depth, sizeof(struct transfer *));
	state->completed = calloc(depth, sizeof(struct transfer *));
	if (!state->transfers || !state->idle || !state->completed)
		return spw_error(-ENOMEM, "out of memory");
	for (size_t i = 0; i < depth; i++) {
		struct transfer *transfer = &state->transfers[i];
		int result =
			spw_store_alloc(state->store, state->job->object_bytes, &transfer->buffer);

		if (result != 0)
			return result;
		/* Null drives return no bytes, so all buffers and objects have the same. */
		bench_random_fill(bench_mix(state->job->randseed, state->job->null ? 0 : i),
				  transfer->buffer, state->job->object_bytes);
		transfer->state = state;
		state->idle[state->idle_count++] = transfer;
	}
	return 0;
}

/* Make as many objects as fit the size, or 3/4 of the partition, as replacing needs room. */
static int make_objects(struct state *state)
{
	const struct bench_job *job = state->job;
	struct spw_store_stats stats = {.size = sizeof(stats)};
	uint64_t bytes = job->size_bytes, count;

	spw_store_stats(state->store, &stats, sizeof(stats));
	if (job->size_percent > 0)
		bytes = bench_percent_of(stats.capacity_bytes, job->size_percent);
	else if (bytes == 0)
		bytes = stats.capacity_bytes / 4 * 3;
	if (bytes > stats.capacity_bytes)
		return spw_error(
			-ENOSPC,
			"job %s: size asks for %ju bytes, but a partition of this store has %ju",
			job->name, (uintmax_t)bytes, (uintmax_t)stats.capacity_bytes);
	count = bytes / job->object_bytes;
	if (count <= job->iodepth && job->rw == BENCH_RANDRW)
		return spw_error(-EINVAL,
				 "job %s: %ju objects are too few for iodepth=%u: give a larger "
				 "size or a smaller object-size",
				 job->name, (uintmax_t)count, job->iodepth);
	if (count == 0 || count > UINT32_MAX)
		return spw_error(-EINVAL, "job %s: size holds %ju objects of %ju bytes", job->name,
				 (uintmax_t)count, (uintmax_t)job->object_bytes);
	state->objects_count = (unsigned)count;
	state->objects = calloc(count, sizeof(*state->objects));
	state->busy = calloc(count, sizeof(*state->busy));
	if (!state->objects || !state->busy)
		return spw_error(-ENOMEM, "out of memory");
	atomic_store_explicit(&state->worker->live_total_bytes,
			      count * job->object_bytes * (job->rw == BENCH_RW ? 2 : 1),
			      memory_order_relaxed);
	return 0;
}

static int open_store(struct state *state)
{
	const struct bench_job *job = state->job;
	struct spw_store_opts opts;
	struct spw_tune tune;
	int result;

	spw_store_opts_init(&opts, sizeof(opts));
	opts.partition = job->numjobs > 1 ? SPW_PARTITION_ANY : 0;
	opts.backend = job->null ? SPW_BACKEND_NULL : job->backend;
	opts.null_bytes_per_second = job->null_bytes_per_second;
	opts.no_checksums = job->no_checksums;
	opts.workers = job->workers;
	opts.inline_mode = true;
	/* Room for all buffers, besides the quarter that a store reserves, and some spare. */
	opts.arena_bytes =
		spw_round_up(job->object_bytes, SPW_ARENA_GRANULE_BYTES) * job->iodepth / 3 * 4 +
		ARENA_SPARE_BYTES;
	opts.log = state->worker->log;
	opts.tune = &tune;
	result = spw_tune_read(job->null ? NULL : getenv("SPILLWAY_TUNE"),
			       (const char *const *)state->worker->paths,
			       state->worker->devices_count, &opts.log, &tune, sizeof(tune));
	if (result)
		return result;
	return spw_store_open((const char *const *)state->worker->paths,
			      state->worker->devices_count, &opts, &state->store);
}

static int set_up(struct state *state)
{
	int result = bench_place_thread(state->worker);

	if (result == 0)
		result = open_store(state);
	if (result == 0)
		result = make_objects(state);
	if (result == 0)
		result = make_transfers(state);
	/* Jobs that begin with reads need objects; a training step puts its own. */
	if (result == 0 && bench_rw_reads(state->job->rw) && state->job->rw != BENCH_RW)
		result = transfer_all(state, BENCH_DIR_WRITE, PUTTING, 0);
	return result;
}

static void tear_down(struct state *state)
{
	/* After an error, closing the store ends transfers in flight: only then free buffers. */
	if (state->store)
		spw_store_close(state->store);
	free(state->completed);
	free(state->idle);
	free(state->transfers);
	free(state->busy);
	free(state->objects);
}

/* ---- Results --------------------------------------------------------------------------------- */

/* Read what each drive has moved since the last call. */
static int read_drives(struct state *state, struct spw_drive_stats *drives, unsigned count)
{
	int result = 0;

	for (unsigned i = 0; i < count && result == 0; i++) {
		struct spw_drive_stats before = drives[i];

		result = spw_store_drive_stats(state->store, i, &drives[i], sizeof(drives[i]));
		drives[i].bytes_written -= before.bytes_written;
		drives[i].bytes_read -= before.bytes_read;
	}
	return result;
}

static int measure(struct state *state)
{
	struct bench_worker *worker = state->worker;
	struct bench_stats *stats = &worker->stats;
	int result = 0;

	worker->drives = calloc(worker->devices_count, sizeof(*worker->drives));
	if (!worker->drives)
		return spw_error(-ENOMEM, "out of memory");
	result = read_drives(state, worker->drives, worker->devices_count);
	/* Start measuring here: the puts for a read job do not count. */
	bench_timer_begin(&state->timer, worker);
	state->now_ns = state->timer.start_ns;
	for (uint64_t pass = 0; result == 0 && !expired(state); pass++) {
		result = one_pass(state, pass);
		if (!state->job->time_based)
			break;
	}
	if (result == 0)
		result = reap_until(state, state->job->iodepth);
	bench_timer_end(&state->timer, worker);
	for (unsigned i = 0; i < BENCH_DIRECTIONS; i++)
		stats->direction[i].runtime_ns =
			stats->direction[i].ios > 0 ? stats->runtime_ns : 0;
	if (result == 0)
		result = read_drives(state, worker->drives, worker->devices_count);
	(void)snprintf(stats->description, sizeof(stats->description),
		       "store of %u drives, chunks of %ju bytes, %s", worker->devices_count,
		       (uintmax_t)spw_store_chunk_bytes(state->store),
		       spw_store_description(state->store));
	return result;
}

void bench_store_worker_run(struct bench_worker *worker)
{
	struct state state = {
		.worker = worker, .job = worker->job, .timer = {.end_ns = UINT64_MAX}};
	int result;

	state.random.state = bench_mix(worker->job->randseed, worker->sequence);
	result = set_up(&state);
	bench_gate_wait(worker->gate);
	bench_await_turn(worker);
	if (result == 0)
		result = measure(&state);
	bench_worker_failed(worker, result);
	tear_down(&state);
}
