/* SPDX-License-Identifier: MIT */
/*
 * tests/bench/store_bench.c - one measurement of a store, as one line of JSON
 *
 *   store_bench MODE OBJECT_BYTES TOTAL_BYTES OPTIONS DRIVE...
 *
 * MODE     putget   put TOTAL_BYTES as objects of OBJECT_BYTES, then get all of them back
 *          urgent   p99 of an urgent read of one object, on idle drives and while TOTAL_BYTES of
 *                   writes are queued
 *          share    put and free objects for SHARE_SECONDS from the second on that start= names,
 *                   for processes side by side
 *          memory   what the process' resident memory grows by for an object that lives in the
 *                   store
 * OPTIONS  comma separated: arena | malloc, unchecked, static, inline (no I/O thread), depth=N,
 *          partition=N, window=N (at most so many requests at once; else all),
 *          start=UNIX_SECONDS; or "-"
 *
 * The drives carry a store already. Bytes are compared after the last get, outside the time
 * measured.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <spillway/spillway.h>

#include "util/util.h"

#define OBJECTS_MAX   131072
#define URGENT_READS  400
#define SHARE_SECONDS 10
#define SHARE_PUTS    8

static struct spw_store *store;
static unsigned long long start_s;
static unsigned window = UINT_MAX;
static spw_object objects[OBJECTS_MAX];
static struct spw_request *requests[OBJECTS_MAX];

struct lap {
	uint64_t wall_ns;
	double cpu_s;
};

static double cpu_seconds(void)
{
	struct rusage usage;

	(void)getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static struct lap lap_begin(void)
{
	return (struct lap){.wall_ns = spw_clock_ns(), .cpu_s = cpu_seconds()};
}

static struct lap lap_end(struct lap begun)
{
	return (struct lap){.wall_ns = spw_clock_ns() - begun.wall_ns,
			    .cpu_s = cpu_seconds() - begun.cpu_s};
}

static void must(int rc, const char *what)
{
	if (rc >= 0)
		return;
	(void)fprintf(stderr, "store_bench: %s: %s\n", what, spw_last_error());
	exit(1);
}

static void log_to_stderr(void *context, enum spw_log_level level, const char *message)
{
	(void)context;
	if (level >= SPW_LOG_WARNING)
		(void)fprintf(stderr, "store_bench: %s\n", message);
}

static bool parse_options(char *text, struct spw_store_opts *opts)
{
	bool arena = true;

	for (char *word = strtok(text, ","); word; word = strtok(NULL, ",")) {
		if (strcmp(word, "malloc") == 0)
			arena = false;
		else if (strcmp(word, "unchecked") == 0)
			opts->no_checksums = true;
		else if (strcmp(word, "inline") == 0)
			opts->inline_mode = true;
		else if (strcmp(word, "static") == 0)
			opts->stripe = SPW_STRIPE_STATIC;
		else if (sscanf(word, "depth=%u", &opts->queue_depth) != 1 &&
			 sscanf(word, "partition=%u", &opts->partition) != 1 &&
			 sscanf(word, "window=%u", &window) != 1 &&
			 sscanf(word, "start=%llu", &start_s) != 1 && strcmp(word, "arena") != 0 &&
			 strcmp(word, "-") != 0)
			must(-1, word);
	}
	return arena;
}

static void fill(uint8_t *memory, uint64_t len)
{
	for (uint64_t i = 0; i < len / 8; i++)
		((uint64_t *)(void *)memory)[i] = i * UINT64_C(0x9e3779b97f4a7c15);
}

static bool is_filled(const uint8_t *memory, uint64_t len)
{
	for (uint64_t i = 0; i < len / 8; i++)
		if (((const uint64_t *)(const void *)memory)[i] != i * UINT64_C(0x9e3779b97f4a7c15))
			return false;
	return true;
}

static struct lap put_all(const uint8_t *memory, uint64_t object_bytes, unsigned count)
{
	struct lap begun = lap_begin();

	for (unsigned i = 0; i < count; i++) {
		if (i >= window)
			must(spw_request_wait(requests[i - window]), "put");
		must(spw_store_put(store, memory + i * object_bytes, object_bytes, NULL,
				   &objects[i], &requests[i]),
		     "put");
	}
	for (unsigned i = count > window ? count - window : 0; i < count; i++)
		must(spw_request_wait(requests[i]), "put");
	return lap_end(begun);
}

static struct lap get_all(uint8_t *memory, uint64_t object_bytes, unsigned count)
{
	struct lap begun = lap_begin();

	for (unsigned i = 0; i < count; i++) {
		if (i >= window)
			must(spw_request_wait(requests[i - window]), "get");
		must(spw_store_get(store, objects[i], 0, memory + i * object_bytes, object_bytes,
				   SPW_PREFETCH, NULL, &requests[i]),
		     "get");
	}
	for (unsigned i = count > window ? count - window : 0; i < count; i++)
		must(spw_request_wait(requests[i]), "get");
	return lap_end(begun);
}

static void print_shares(void)
{
	struct spw_store_stats stats;
	struct spw_drive_stats drive;

	spw_store_stats(store, &stats, sizeof(stats));
	(void)printf(", \"bytes_copied\": %llu, \"drives\": [",
		     (unsigned long long)stats.bytes_copied);
	for (unsigned i = 0; i < stats.drives; i++) {
		must(spw_store_drive_stats(store, i, &drive, sizeof(drive)), "stats");
		(void)printf("%s{\"bytes_written\": %llu, \"in_flight_max\": %u}", i ? ", " : "",
			     (unsigned long long)drive.bytes_written, drive.in_flight_max);
	}
	(void)printf("]}\n");
}

static void put_get(uint8_t *memory, uint64_t object_bytes, uint64_t total_bytes)
{
	unsigned count = (unsigned)(total_bytes / object_bytes);
	double gib = (double)(count * object_bytes) / (double)(1u << 30);
	struct lap put, get;

	fill(memory, total_bytes);
	/* Once unmeasured: pages are faulted in, the drives' blocks written once. */
	(void)put_all(memory, object_bytes, count);
	for (unsigned i = 0; i < count; i++)
		must(spw_store_free(store, objects[i]), "free");
	put = put_all(memory, object_bytes, count);
	get = get_all(memory, object_bytes, count);
	if (!is_filled(memory, total_bytes))
		must(-1, "other bytes came back");
	(void)printf("{\"put_bytes_per_second\": %.0f, \"get_bytes_per_second\": %.0f, "
		     "\"put_iops\": %.0f, "
		     "\"get_iops\": %.0f, \"put_cpu_s_per_gib\": %.5f, \"get_cpu_s_per_gib\": %.5f",
		     (double)(count * object_bytes) * 1e9 / (double)put.wall_ns,
		     (double)(count * object_bytes) * 1e9 / (double)get.wall_ns,
		     (double)count * 1e9 / (double)put.wall_ns,
		     (double)count * 1e9 / (double)get.wall_ns, put.cpu_s / gib, get.cpu_s / gib);
	print_shares();
}

/* Always the same number of puts under way; what ends within the time counts. */
static void share(uint8_t *memory, uint64_t object_bytes, uint64_t total_bytes)
{
	const struct timespec start = {.tv_sec = (time_t)start_s};
	uint64_t puts = 0, end_ns;

	fill(memory, total_bytes);
	if (total_bytes / object_bytes < SHARE_PUTS)
		must(-1, "TOTAL_BYTES must be at least 8 objects");
	(void)clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &start, NULL);
	end_ns = spw_clock_ns() + SHARE_SECONDS * UINT64_C(1000000000);
	for (unsigned i = 0; i < SHARE_PUTS; i++)
		must(spw_store_put(store, memory + i * object_bytes, object_bytes, NULL,
				   &objects[i], &requests[i]),
		     "put");
	for (unsigned i = 0;; i = (i + 1) % SHARE_PUTS) {
		must(spw_request_wait(requests[i]), "put");
		must(spw_store_free(store, objects[i]), "free");
		if (spw_clock_ns() >= end_ns)
			break;
		puts++;
		must(spw_store_put(store, memory + i * object_bytes, object_bytes, NULL,
				   &objects[i], &requests[i]),
		     "put");
	}
	(void)printf("{\"put_bytes_per_second\": %.0f",
		     (double)(puts * object_bytes) / SHARE_SECONDS);
	print_shares();
}

static uint64_t resident_bytes(void)
{
	unsigned long long pages = 0;
	FILE *file = fopen("/proc/self/statm", "re");

	if (!file || fscanf(file, "%*u %llu", &pages) != 1)
		must(-1, "/proc/self/statm cannot be read");
	(void)fclose(file);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/*
 * All objects from the same bytes; the first eighth of them pays for what is not theirs: stacks,
 * buffers, code.
 */
static void memory_per_object(uint8_t *memory, uint64_t object_bytes, uint64_t total_bytes)
{
	unsigned count = (unsigned)(total_bytes / object_bytes), before = count / 8;
	uint64_t resident = 0;

	fill(memory, object_bytes);
	for (unsigned i = 0; i < count; i++) {
		if (i == before)
			resident = resident_bytes();
		must(spw_store_put(store, memory, object_bytes, NULL, &objects[i], &requests[i]),
		     "put");
		must(spw_request_wait(requests[i]), "put");
	}
	(void)printf("{\"objects\": %u, \"chunk_bytes\": %llu, \"resident_bytes_per_object\": %.0f",
		     count - before, (unsigned long long)spw_store_chunk_bytes(store),
		     (double)(resident_bytes() - resident) / (count - before));
	print_shares();
}

static int compare(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

	return (left > right) - (left < right);
}

/* p99 of so many urgent reads of one object, in nanoseconds. */
static uint64_t read_urgently(uint8_t *to, uint64_t object_bytes, spw_object object, unsigned count)
{
	static uint64_t times_ns[URGENT_READS];

	for (unsigned i = 0; i < count; i++) {
		struct spw_request *request;
		uint64_t begun_ns = spw_clock_ns();

		must(spw_store_get(store, object, 0, to, object_bytes, SPW_URGENT_READ, NULL,
				   &request),
		     "get");
		must(spw_request_wait(request), "get");
		times_ns[i] = spw_clock_ns() - begun_ns;
	}
	qsort(times_ns, count, sizeof(times_ns[0]), compare);
	return times_ns[count - 1 - count / 100];
}

static void urgent(uint8_t *memory, uint64_t object_bytes, uint64_t total_bytes)
{
	unsigned count = (unsigned)(total_bytes / (16u << 20));
	uint64_t idle_ns, busy_ns, chunk_ns;
	struct lap written;
	spw_object object;

	fill(memory, total_bytes);
	must(spw_store_put(store, memory, object_bytes, NULL, &object, &requests[0]), "put");
	must(spw_request_wait(requests[0]), "put");
	idle_ns = read_urgently(memory, object_bytes, object, URGENT_READS);
	written = lap_begin();
	for (unsigned i = 0; i < count; i++)
		must(spw_store_put(store, memory, 16u << 20, NULL, &objects[i], &requests[i]),
		     "put");
	busy_ns = read_urgently(memory, object_bytes, object, 40);
	for (unsigned i = 0; i < count; i++)
		must(spw_request_wait(requests[i]), "put");
	/* One chunk on one of the drives, all of which shared the total. */
	written = lap_end(written);
	{
		struct spw_store_stats stats;

		spw_store_stats(store, &stats, sizeof(stats));
		chunk_ns = written.wall_ns * stats.drives /
			   (total_bytes / spw_store_chunk_bytes(store));
	}
	(void)printf("{\"idle_ns_p99\": %llu, \"busy_ns_p99\": %llu, \"chunk_ns\": %llu",
		     (unsigned long long)idle_ns, (unsigned long long)busy_ns,
		     (unsigned long long)chunk_ns);
	print_shares();
}

int main(int argc, char **argv)
{
	struct spw_store_opts opts;
	uint64_t object_bytes, total_bytes;
	void *memory;
	bool arena;

	if (argc < 6 || spw_size_parse(argv[2], &object_bytes) ||
	    spw_size_parse(argv[3], &total_bytes) || object_bytes == 0 ||
	    total_bytes / object_bytes > OBJECTS_MAX || total_bytes < object_bytes) {
		(void)fprintf(stderr, "usage: store_bench putget|urgent|share|memory OBJECT_BYTES "
				      "TOTAL_BYTES OPTIONS DRIVE...\n");
		return 2;
	}
	spw_store_opts_init(&opts, sizeof(opts));
	arena = parse_options(argv[4], &opts);
	opts.log.write = log_to_stderr;
	opts.arena_bytes = (arena ? total_bytes : 0) + (256u << 20);
	opts.requests_max = opts.objects_max = OBJECTS_MAX + 1024;
	must(spw_store_open((const char *const *)argv + 5, (unsigned)argc - 5, &opts, &store),
	     "open");
	if (arena)
		must(spw_store_alloc(store, total_bytes, &memory), "memory");
	else
		memory = aligned_alloc(4096, total_bytes);
	if (!memory)
		must(-1, "out of memory");
	if (strcmp(argv[1], "urgent") == 0)
		urgent(memory, object_bytes, total_bytes);
	else if (strcmp(argv[1], "share") == 0)
		share(memory, object_bytes, total_bytes);
	else if (strcmp(argv[1], "memory") == 0)
		memory_per_object(memory, object_bytes, total_bytes);
	else
		put_get(memory, object_bytes, total_bytes);
	spw_store_close(store);
	if (!arena)
		free(memory);
	return 0;
}
