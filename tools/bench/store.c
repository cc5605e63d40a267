/* SPDX-License-Identifier: MIT */
/*
 * tools/bench/store.c - the loop of one job on a store
 *
 * Every worker opens one partition of its own, as a rank of a training job would, and drives it
 * inline: what it costs is on this thread. The working set is as many objects as fit the job's
 * size. A job is a sequence of phases:
 *
 *   write             put the working set (time_based: free it and put it again)
 *   read, randread    put it unmeasured, then get it in reverse or shuffled order
 *   rw                training steps: put it, then get and free each object in reverse order
 *   randrw            put it unmeasured, then replace and get objects at the same time, rwmixread
 *                     of them gets
 */
#include "tools/bench/bench.h"

#include <errno.h>
#include <numa.h>
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

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
	spw_object *objects; /* the working set; 0: not there */
	bool *busy;          /* a transfer of it is in flight */
	unsigned objects_count;
	struct transfer *transfers;
	struct transfer **idle, **completed;
	unsigned idle_count, completed_count, in_flight;
	struct bench_timer timer;
	struct bench_random random;
	uint64_t now_ns;
	bool measuring; /* what fills a store for a read job is not measured */
	bool freeing;   /* the backward half of a step: objects die after their get */
	int error;
};

/*
 * The first failure is what the job ends with. Called while its words are those of the last error.
 */
static void note_error(struct state *state, int error)
{
	char *text = state->worker->stats.error_text;

	if (state->error != 0)
		return;
	state->error = error;
	(void)snprintf(text, sizeof(state->worker->stats.error_text), "%s",
		       spw_last_error()[0] != '\0' ? spw_last_error() : spw_strerror(error));
}

static void transfer_done(void *context, int res)
{
	struct transfer *transfer = context;

	transfer->res = res;
	transfer->state->completed[transfer->state->completed_count++] = transfer;
	if (res != 0)
		note_error(transfer->state, res);
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
	state->idle_count--;
	state->in_flight++;
	state->busy[object] = true;
	state->now_ns = transfer->issue_ns = spw_clock_ns();
	if (state->measuring) {
		stats->depth_levels[bench_depth_level(state->in_flight)]++;
		stats->submit_levels[1]++;
		spw_summary_add(&stats->direction[direction].submit_ns,
				transfer->issue_ns - transfer->start_ns);
	}
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
		if (result != 0)
			note_error(state, result);
	}
	if (result != 0 || !state->measuring)
		return;
	stats->ios++;
	stats->bytes += state->job->object_bytes;
	spw_histogram_add(&stats->complete_ns, state->now_ns - transfer->issue_ns);
	spw_summary_add(&stats->total_ns, state->now_ns - transfer->start_ns);
}

static int reap(struct state *state)
{
	int result = spw_store_poll(state->store, true);

	state->now_ns = spw_clock_ns();
	for (unsigned i = 0; i < state->completed_count; i++)
		complete(state, state->completed[i]);
	if (state->measuring && state->completed_count > 0) {
		state->worker->stats.complete_levels[bench_batch_level(state->completed_count)]++;
		bench_worker_live(state->worker);
	}
	state->in_flight -= state->completed_count;
	state->completed_count = 0;
	return result < 0 ? result : state->error;
}

static int drain(struct state *state)
{
	int result = 0;

	while (state->in_flight > 0 && result == 0)
		result = reap(state);
	return result;
}

static bool expired(struct state *state)
{
	if (!state->measuring)
		return atomic_load_explicit(state->worker->stop, memory_order_relaxed);
	return bench_timer_expired(&state->timer, state->worker, state->now_ns);
}

static int wait_for_slot(struct state *state)
{
	int result = 0;

	while (state->idle_count == 0 && result == 0)
		result = reap(state);
	return result;
}

/* ---- Phases ---------------------------------------------------------------------------------- */

static int put_all(struct state *state)
{
	int result = 0;

	for (unsigned i = 0; i < state->objects_count && result == 0 && !expired(state); i++) {
		result = wait_for_slot(state);
		if (result == 0)
			result = issue(state, BENCH_DIR_WRITE, i);
	}
	return result == 0 ? drain(state) : result;
}

/*
 * @shuffle: NULL for the reverse of the order in which they were put. Objects that are not there
 * are passed over.
 */
static int get_all(struct state *state, const struct bench_shuffle *shuffle)
{
	int result = 0;

	for (unsigned i = 0; i < state->objects_count && result == 0 && !expired(state); i++) {
		unsigned object = shuffle ? (unsigned)bench_shuffle_at(shuffle, i)
					  : state->objects_count - 1 - i;

		if (state->objects[object].value == 0)
			continue;
		result = wait_for_slot(state);
		if (result == 0)
			result = issue(state, BENCH_DIR_READ, object);
	}
	return result == 0 ? drain(state) : result;
}

static int free_all(struct state *state)
{
	int result = 0;

	for (unsigned i = 0; i < state->objects_count && result == 0; i++)
		if (state->objects[i].value != 0)
			result = end_object(state, i);
	return result;
}

/* One training step. What the end of the run leaves behind is freed by closing the store. */
static int step(struct state *state)
{
	int result = put_all(state);

	state->freeing = true;
	if (result == 0)
		result = get_all(state, NULL);
	state->freeing = false;
	return result;
}

/* Puts and gets side by side, each on an object of its own. */
static int mix(struct state *state)
{
	int result = 0;

	for (unsigned i = 0; i < state->objects_count && result == 0 && !expired(state); i++) {
		bool get = bench_random_next(&state->random) % 100 < state->job->read_percent;
		unsigned object =
			(unsigned)(bench_random_next(&state->random) % state->objects_count);

		result = wait_for_slot(state);
		/* More objects than slots: there is always one that is not busy. */
		while (state->busy[object])
			object = object + 1 == state->objects_count ? 0 : object + 1;
		if (result == 0 && !get)
			result = end_object(state, object);
		if (result == 0)
			result = issue(state, get ? BENCH_DIR_READ : BENCH_DIR_WRITE, object);
	}
	return result;
}

static int one_pass(struct state *state, uint64_t pass)
{
	struct bench_shuffle shuffle;
	int result;

	switch (state->job->rw) {
	case BENCH_READ: return get_all(state, NULL);
	case BENCH_RANDREAD:
		bench_shuffle_init(&shuffle, state->objects_count,
				   bench_mix(state->job->randseed, pass));
		return get_all(state, &shuffle);
	case BENCH_RW: return step(state);
	case BENCH_RANDRW: return mix(state);
	default:
		result = pass > 0 ? free_all(state) : 0;
		return result == 0 ? put_all(state) : result;
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
		struct bench_random random = {.state = bench_mix(state->job->randseed, i)};
		int result =
			spw_store_alloc(state->store, state->job->object_bytes, &transfer->buffer);

		if (result != 0)
			return result;
		for (uint64_t at = 0; at + sizeof(uint64_t) <= state->job->object_bytes;
		     at += sizeof(uint64_t)) {
			uint64_t word = bench_random_next(&random);

			memcpy((char *)transfer->buffer + at, &word, sizeof(word));
		}
		transfer->state = state;
		state->idle[state->idle_count++] = transfer;
	}
	return 0;
}

/*
 * As many objects as the job's size holds, or three quarters of the partition: replacing needs
 * room.
 */
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
				 "size or a smaller "
				 "object-size",
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

	if (job->numa_node != BENCH_NUMA_ANY &&
	    (numa_available() < 0 || (int)job->numa_node > numa_max_node() ||
	     numa_run_on_node((int)job->numa_node) != 0))
		return spw_error(-EINVAL, "job %s: numa=%u: this machine has no such node",
				 job->name, job->numa_node);
	spw_store_opts_init(&opts, sizeof(opts));
	opts.partition = job->numjobs > 1 ? SPW_PARTITION_ANY : 0;
	opts.backend = job->backend;
	opts.stripe = job->stripe;
	opts.no_checksums = job->no_checksums;
	opts.inline_mode = true;
	/* Buffers of all transfers, and what the store wants for itself. */
	opts.arena_bytes = (spw_round_up(job->object_bytes, SPW_ARENA_GRANULE_BYTES) +
			    SPW_ARENA_GRANULE_BYTES) *
				   job->iodepth +
			   (64u << 20);
	opts.log = state->worker->log;
	return spw_store_open((const char *const *)state->worker->paths,
			      state->worker->devices_count, &opts, &state->store);
}

static int set_up(struct state *state)
{
	int result = open_store(state);

	if (result == 0)
		result = make_objects(state);
	if (result == 0)
		result = make_transfers(state);
	if (result == 0 && state->job->rw != BENCH_WRITE && state->job->rw != BENCH_RANDWRITE &&
	    state->job->rw != BENCH_RW)
		result = put_all(state);
	return result;
}

static void tear_down(struct state *state)
{
	/*
	 * After an error transfers are in flight: they end with the store, and only then go their
	 * buffers, which are its.
	 */
	if (state->store)
		spw_store_close(state->store);
	free(state->completed);
	free(state->idle);
	free(state->transfers);
	free(state->busy);
	free(state->objects);
}

/* ---- Results --------------------------------------------------------------------------------- */

static int read_shares(struct state *state, struct bench_drive_share *shares, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		struct spw_drive_stats drive = {.size = sizeof(drive)};
		int result = spw_store_drive_stats(state->store, i, &drive, sizeof(drive));

		if (result != 0)
			return result;
		memcpy(shares[i].path, drive.path, sizeof(shares[i].path));
		shares[i].bytes_written = drive.bytes_written - shares[i].bytes_written;
		shares[i].bytes_read = drive.bytes_read - shares[i].bytes_read;
		shares[i].in_flight_max = drive.in_flight_max;
		shares[i].depth = drive.depth;
	}
	return 0;
}

static int measure(struct state *state)
{
	struct bench_worker *worker = state->worker;
	struct bench_stats *stats = &worker->stats;
	int result = 0;

	worker->shares = calloc(worker->devices_count, sizeof(*worker->shares));
	if (!worker->shares)
		return spw_error(-ENOMEM, "out of memory");
	worker->shares_count = worker->devices_count;
	result = read_shares(state, worker->shares, worker->shares_count);
	state->measuring = true;
	bench_timer_begin(&state->timer, worker);
	state->now_ns = state->timer.begin_ns;
	for (uint64_t pass = 0; result == 0 && !expired(state); pass++) {
		result = one_pass(state, pass);
		if (!state->job->time_based)
			break;
	}
	if (result == 0)
		result = drain(state);
	bench_timer_end(&state->timer, worker);
	for (unsigned i = 0; i < BENCH_DIRECTIONS; i++)
		stats->direction[i].runtime_ns =
			stats->direction[i].ios > 0 ? stats->runtime_ns : 0;
	if (result == 0)
		result = read_shares(state, worker->shares, worker->shares_count);
	stats->store.size = sizeof(stats->store);
	spw_store_stats(state->store, &stats->store, sizeof(stats->store));
	(void)snprintf(stats->description, sizeof(stats->description),
		       "store of %u drives, chunks of %ju bytes, %s", stats->store.drives,
		       (uintmax_t)spw_store_chunk_bytes(state->store),
		       spw_store_description(state->store));
	return result;
}

int bench_store_worker_run(struct bench_worker *worker)
{
	struct state state = {.worker = worker, .job = worker->job};
	int result;

	state.random.state = bench_mix(worker->job->randseed, worker->sequence);
	result = set_up(&state);
	bench_gate_wait(worker->gate);
	if (result == 0)
		result = measure(&state);
	result = bench_worker_ended(worker, result);
	tear_down(&state);
	return result;
}
