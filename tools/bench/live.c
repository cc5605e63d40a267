/* SPDX-License-Identifier: MIT */
/* tools/bench/live.c - the progress line on a terminal, and the samples of bandwidth over time */
#include "tools/bench/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/util.h"

#define SAMPLE_NS 500000000u

/* What one worker had moved when last looked at. */
struct sample {
	uint64_t bytes[BENCH_DIRECTIONS], ios[BENCH_DIRECTIONS];
	uint64_t time_ns, start_ns;
};

struct bench_live {
	const struct bench_run *run;
	struct sample *samples; /* one per worker of the run */
	struct spw_summary (*bandwidth)[BENCH_DIRECTIONS], (*iops)[BENCH_DIRECTIONS];
	uint64_t read_rate, write_rate, read_iops, write_iops; /* of the last sample, all workers */
	bool drawn;
};

struct bench_live *bench_live_new(const struct bench_run *run)
{
	struct bench_live *live = calloc(1, sizeof(*live));

	if (!live)
		return NULL;
	live->run = run;
	live->samples = calloc(run->workers_count + 1, sizeof(*live->samples));
	live->bandwidth = calloc(run->workers_count + 1, sizeof(*live->bandwidth));
	live->iops = calloc(run->workers_count + 1, sizeof(*live->iops));
	if (!live->samples || !live->bandwidth || !live->iops) {
		bench_live_free(live);
		return NULL;
	}
	return live;
}

void bench_live_free(struct bench_live *live)
{
	if (!live)
		return;
	free(live->samples);
	free(live->bandwidth);
	free(live->iops);
	free(live);
}

static uint64_t load(const _Atomic uint64_t *value)
{
	return atomic_load_explicit(value, memory_order_relaxed);
}

/* One worker's rates since the last look. Rates of the ramp are shown, but are no samples. */
static void sample_worker(struct bench_live *live, struct bench_worker *worker, uint64_t now_ns)
{
	size_t index = (size_t)(worker - live->run->workers);
	struct sample *last = &live->samples[index];
	uint64_t start_ns = load(&worker->live_start_ns);
	struct sample now = {.time_ns = now_ns, .start_ns = start_ns};
	double seconds = (double)(now_ns - last->time_ns) / 1e9;
	uint64_t rates[2], iops[2];

	for (unsigned i = 0; i < BENCH_DIRECTIONS; i++) {
		now.bytes[i] = load(&worker->live_bytes[i]);
		now.ios[i] = load(&worker->live_ios[i]);
		rates[i] = now.bytes[i] < last->bytes[i]
				   ? 0
				   : (uint64_t)((double)(now.bytes[i] - last->bytes[i]) / seconds);
		iops[i] = now.ios[i] < last->ios[i]
				  ? 0
				  : (uint64_t)((double)(now.ios[i] - last->ios[i]) / seconds);
		if (start_ns == 0 || last->start_ns != start_ns ||
		    atomic_load(&worker->live_ended) || rates[i] == 0)
			continue;
		spw_summary_add(&live->bandwidth[index][i], rates[i] / 1024);
		spw_summary_add(&live->iops[index][i], iops[i]);
	}
	*last = now;
	live->read_rate += rates[BENCH_DIR_READ];
	live->write_rate += rates[BENCH_DIR_WRITE];
	live->read_iops += iops[BENCH_DIR_READ];
	live->write_iops += iops[BENCH_DIR_WRITE];
}

/* The least finished of the workers decides. *@left_ns: 0 when it cannot be told. */
static double progress(struct bench_worker *workers, unsigned count, uint64_t now_ns,
		       uint64_t *left_ns)
{
	double least = 1;
	uint64_t elapsed = 0;

	for (unsigned i = 0; i < count; i++) {
		struct bench_worker *worker = &workers[i];
		uint64_t start_ns = load(&worker->live_start_ns);
		uint64_t total = load(&worker->live_total_bytes);
		uint64_t moved = load(&worker->live_bytes[0]) + load(&worker->live_bytes[1]);
		double by_bytes = total == 0 ? 0 : (double)moved / (double)total;
		double by_time = 0, part;

		if (start_ns != 0 && worker->job->runtime_ns > 0)
			by_time = (double)(now_ns - start_ns) / (double)worker->job->runtime_ns;
		part = worker->job->time_based || by_time > by_bytes ? by_time : by_bytes;
		if (atomic_load(&worker->live_ended))
			part = 1;
		if (part <= least) {
			least = part;
			elapsed = start_ns == 0 ? 0 : now_ns - start_ns;
		}
	}
	*left_ns = least > 0.001 ? (uint64_t)((double)elapsed / least * (1 - least)) : 0;
	return least;
}

static void draw(struct bench_live *live, struct bench_worker *workers, unsigned count,
		 uint64_t now_ns)
{
	unsigned running = 0, ramping = 0;
	char read[32], write[32], left[32] = "";
	uint64_t left_ns;
	double part = progress(workers, count, now_ns, &left_ns);

	for (unsigned i = 0; i < count; i++) {
		running += !atomic_load(&workers[i].live_ended);
		ramping += load(&workers[i].live_start_ns) == 0;
	}
	if (left_ns > 0)
		(void)snprintf(left, sizeof(left), ", %ju s left",
			       (uintmax_t)((left_ns + 999999999u) / 1000000000u));
	(void)fprintf(stderr,
		      "\r%s: %u job%s%s %3.0f %%  read %s/s %ju IOPS  write %s/s %ju IOPS%s\033[K",
		      workers[0].job->name, running, running == 1 ? "" : "s",
		      ramping > 0 ? " ramping up," : ",", part * 100,
		      spw_size_format(live->read_rate, read, sizeof(read)),
		      (uintmax_t)live->read_iops,
		      spw_size_format(live->write_rate, write, sizeof(write)),
		      (uintmax_t)live->write_iops, left);
	(void)fflush(stderr);
	live->drawn = true;
}

static void take_samples(struct bench_live *live, struct bench_worker *workers, unsigned count,
			 uint64_t now_ns)
{
	live->read_rate = live->write_rate = live->read_iops = live->write_iops = 0;
	for (unsigned i = 0; i < count; i++)
		sample_worker(live, &workers[i], now_ns);
}

/* The workers' own statistics are theirs until they have ended. */
static void hand_over(struct bench_live *live, struct bench_worker *workers, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		size_t index = (size_t)(&workers[i] - live->run->workers);

		for (unsigned j = 0; j < BENCH_DIRECTIONS; j++) {
			workers[i].stats.direction[j].bandwidth_kib = live->bandwidth[index][j];
			workers[i].stats.direction[j].iops = live->iops[index][j];
		}
	}
}

void bench_live_watch(struct bench_live *live, struct bench_gate *gate,
		      struct bench_worker *workers, unsigned count)
{
	bool show = !live->run->quiet && isatty(STDERR_FILENO);
	uint64_t sample_ns = spw_clock_ns();

	for (unsigned i = 0; i < count; i++)
		live->samples[&workers[i] - live->run->workers].time_ns = sample_ns;
	while (bench_gate_watch(gate, count, sample_ns + SAMPLE_NS) < count) {
		sample_ns = spw_clock_ns();
		take_samples(live, workers, count, sample_ns);
		if (show)
			draw(live, workers, count, sample_ns);
	}
	if (live->drawn)
		(void)fprintf(stderr, "\r\033[K");
	live->drawn = false;
	hand_over(live, workers, count);
}
