/* SPDX-License-Identifier: MIT */
/*
 * tests/bench/store_bench.c - one measurement of a store, as one line of JSON
 *
 *   store_bench MODE OBJECT_BYTES TOTAL_BYTES OPTIONS DRIVE...
 *
 * MODE     putget   put TOTAL_BYTES as objects of OBJECT_BYTES, then get all of them back
 *          urgent   p99 of urgent reads of single objects that lie on all drives, on idle drives
 *                   and while TOTAL_BYTES of writes are queued, all the time
 *          share    put and free objects for SHARE_SECONDS from the second on that start= names,
 *                   for processes side by side
 *          memory   what the process' resident memory grows by for an object that lives in the
 *                   store
 * OPTIONS  comma separated: arena | malloc, unchecked, static, inline (no I/O thread), depth=N,
 *          workers=N, partition=N, window=N (at most N requests at once; else all),
 *          start=UNIX_SECONDS; or "-"
 *
 * The drives carry a store already. Bytes are compared after the last get, outside the time
 * measured.
 */
#include <errno.h>
#include <limits.h>
#include <time.h>
#include <unistd.h>

#include <spillway/spillway.h>

#include "tests/bench/rows.h"
#include "util/util.h"

#define OBJECTS_MAX      131072
#define READ_EVERY_NS    UINT64_C(5300000)    /* beside puts: see scale.py */
#define URGENT_NS        UINT64_C(8000000000) /* how long is read beside puts */
#define URGENT_READS_MIN 400
#define URGENT_READS_MAX 100000
#define URGENT_PUT       (16u << 20)
#define TARGETS          16 /* objects that are read */
#define SHARE_SECONDS    10
#define SHARE_PUTS       8

static struct spw_store *store;
static uint8_t *memory;
static uint64_t object_bytes, total_bytes;
static unsigned long long start_s;
static unsigned window = UINT_MAX;
static spw_object objects[OBJECTS_MAX];
static struct spw_request *requests[OBJECTS_MAX];

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
		else if (sscanf(word, "depth=%u", &opts->queue_depth) != 1 &&
			 sscanf(word, "workers=%u", &opts->workers) != 1 &&
			 sscanf(word, "partition=%u", &opts->partition) != 1 &&
			 sscanf(word, "window=%u", &window) != 1 &&
			 sscanf(word, "start=%llu", &start_s) != 1 && strcmp(word, "arena") != 0 &&
			 strcmp(word, "-") != 0)
			must(-EINVAL, word);
	}
	return arena;
}

static void fill(uint64_t len)
{
	for (uint64_t i = 0; i < len / 8; i++)
		((uint64_t *)(void *)memory)[i] = i * UINT64_C(0x9e3779b97f4a7c15);
}

static bool is_filled(void)
{
	for (uint64_t i = 0; i < total_bytes / 8; i++)
		if (((const uint64_t *)(const void *)memory)[i] != i * UINT64_C(0x9e3779b97f4a7c15))
			return false;
	return true;
}

static void put_bytes(uint64_t offset, uint64_t len, unsigned i)
{
	must(spw_store_put(store, memory + offset, len, NULL, &objects[i], &requests[i]), "put");
}

/* The i-th object, from its place in memory. */
static void put(unsigned i)
{
	put_bytes(i * object_bytes, object_bytes, i);
}

static void get(unsigned i)
{
	must(spw_store_get(store, objects[i], 0, memory + i * object_bytes, object_bytes,
			   SPW_PREFETCH, NULL, &requests[i]),
	     "get");
}

/* All objects, with at most @window requests at once. Return: ns. */
static uint64_t move_all(void (*move)(unsigned), unsigned count)
{
	uint64_t begun_ns = spw_clock_ns();

	for (unsigned i = 0; i < count; i++) {
		if (i >= window)
			must(spw_request_wait(requests[i - window]), "transfer");
		move(i);
	}
	for (unsigned i = count > window ? count - window : 0; i < count; i++)
		must(spw_request_wait(requests[i]), "transfer");
	return spw_clock_ns() - begun_ns;
}

static void put_get(void)
{
	unsigned count = (unsigned)(total_bytes / object_bytes);
	double put_s, get_s;

	fill(total_bytes);
	/* Once unmeasured: pages are faulted in, the drives' blocks written once. */
	(void)move_all(put, count);
	for (unsigned i = 0; i < count; i++)
		must(spw_store_free(store, objects[i]), "free");
	put_s = (double)move_all(put, count) / 1e9;
	get_s = (double)move_all(get, count) / 1e9;
	if (!is_filled())
		must(-EBADMSG, "other bytes came back");
	(void)printf("{\"put_bytes_per_second\": %.0f, \"get_bytes_per_second\": %.0f, "
		     "\"put_iops\": %.0f, \"get_iops\": %.0f}\n",
		     (double)(count * object_bytes) / put_s, (double)(count * object_bytes) / get_s,
		     count / put_s, count / get_s);
}

/* Always the same number of puts under way; what ends within the time counts. */
static void share(void)
{
	const struct timespec start = {.tv_sec = (time_t)start_s};
	uint64_t puts = 0, end_ns;

	fill(total_bytes);
	if (total_bytes / object_bytes < SHARE_PUTS)
		must(-EINVAL, "TOTAL_BYTES must be at least 8 objects");
	(void)clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &start, NULL);
	end_ns = spw_clock_ns() + SHARE_SECONDS * UINT64_C(1000000000);
	for (unsigned i = 0; i < SHARE_PUTS; i++)
		put(i);
	for (unsigned i = 0;; i = (i + 1) % SHARE_PUTS) {
		must(spw_request_wait(requests[i]), "put");
		must(spw_store_free(store, objects[i]), "free");
		if (spw_clock_ns() >= end_ns)
			break;
		puts++;
		put(i);
	}
	(void)printf("{\"put_bytes_per_second\": %.0f}\n",
		     (double)(puts * object_bytes) / SHARE_SECONDS);
}

static uint64_t resident_bytes(void)
{
	unsigned long long pages = 0;
	FILE *file = fopen("/proc/self/statm", "re");

	if (!file || fscanf(file, "%*u %llu", &pages) != 1)
		must(-EIO, "/proc/self/statm");
	(void)fclose(file);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The first eighth of the objects pays for stacks, buffers and code. */
static void memory_per_object(void)
{
	unsigned count = (unsigned)(total_bytes / object_bytes), before = count / 8;
	uint64_t resident = 0;

	fill(object_bytes);
	for (unsigned i = 0; i < count; i++) {
		if (i == before)
			resident = resident_bytes();
		put_bytes(0, object_bytes, i); /* all from the same */
		must(spw_request_wait(requests[i]), "put");
	}
	(void)printf("{\"resident_bytes_per_object\": %.0f}\n",
		     (double)(resident_bytes() - resident) / (count - before));
}

static spw_object targets[TARGETS];
static unsigned put_count, put_oldest;

/* Each put that has ended, in their order, makes room for the next. */
static void keep_putting(void)
{
	int rc;

	while ((rc = spw_request_test(requests[put_oldest])) != -EINPROGRESS) {
		must(rc, "put");
		must(spw_store_free(store, objects[put_oldest]), "free");
		put_bytes(put_oldest * (uint64_t)URGENT_PUT, URGENT_PUT, put_oldest);
		put_oldest = (put_oldest + 1) % put_count;
	}
}

static void sleep_until(uint64_t ns)
{
	const struct timespec at = {.tv_sec = (time_t)(ns / 1000000000),
				    .tv_nsec = (long)(ns % 1000000000)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
		;
}

/*
 * p99 of urgent reads, one at a time, in nanoseconds; as many as end within @ns. A drive that is
 * throttled serves in bursts, so it has to be many of these; and beside puts each at its time, or
 * few would come while a burst is served.
 */
static uint64_t read_urgently(uint64_t ns)
{
	static uint64_t times_ns[URGENT_READS_MAX];
	uint64_t end_ns = spw_clock_ns() + ns;
	unsigned count = 0;

	while (count < URGENT_READS_MAX && (count < URGENT_READS_MIN || spw_clock_ns() < end_ns)) {
		struct spw_request *request;
		uint64_t begun_ns;

		if (put_count > 0) {
			keep_putting();
			sleep_until(end_ns - ns + count * READ_EVERY_NS);
		}
		begun_ns = spw_clock_ns();
		must(spw_store_get(store, targets[count % TARGETS], 0, memory + total_bytes,
				   object_bytes, SPW_URGENT_READ, NULL, &request),
		     "get");
		must(spw_request_wait(request), "get");
		times_ns[count++] = spw_clock_ns() - begun_ns;
	}
	qsort(times_ns, count, sizeof(times_ns[0]), compare_ns);
	return times_ns[count - 1 - count / 100];
}

static void urgent(void)
{
	unsigned count = (unsigned)(total_bytes / URGENT_PUT);
	uint64_t idle_ns, busy_ns, begun_ns, written_before;
	struct spw_store_stats stats;
	double seconds, written;

	fill(total_bytes);
	for (unsigned i = 0; i < TARGETS; i++) {
		put_bytes(0, object_bytes, 0);
		must(spw_request_wait(requests[0]), "put");
		targets[i] = objects[0];
	}
	idle_ns = read_urgently(0);
	spw_store_stats(store, &stats, sizeof(stats));
	written_before = stats.bytes_written;
	begun_ns = spw_clock_ns();
	for (unsigned i = 0; i < count; i++)
		put_bytes(i * (uint64_t)URGENT_PUT, URGENT_PUT, i);
	put_count = count;
	busy_ns = read_urgently(URGENT_NS);
	spw_store_stats(store, &stats, sizeof(stats));
	seconds = (double)(spw_clock_ns() - begun_ns) / 1e9;
	written = (double)(stats.bytes_written - written_before);
	for (unsigned i = 0; i < count; i++)
		must(spw_request_wait(requests[i]), "put");
	/* A chunk's time is that on one of the drives, all of which shared what was written. */
	(void)printf("{\"idle_ns_p99\": %llu, \"busy_ns_p99\": %llu, \"chunk_ns\": %.0f, "
		     "\"busy_write_bytes_per_second\": %.0f}\n",
		     (unsigned long long)idle_ns, (unsigned long long)busy_ns,
		     seconds * 1e9 * stats.drives * (double)spw_store_chunk_bytes(store) / written,
		     written / seconds);
}

int main(int argc, char **argv)
{
	struct spw_store_opts opts;
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
	opts.arena_bytes = (arena ? total_bytes + object_bytes : 0) + (256u << 20);
	opts.requests_max = opts.objects_max = OBJECTS_MAX + 1024;
	must(spw_store_open((const char *const *)argv + 5, (unsigned)argc - 5, &opts, &store),
	     "open");
	/* Behind it: what urgent reads are read into, which no put reads. */
	if (arena)
		must(spw_store_alloc(store, total_bytes + object_bytes, (void **)&memory),
		     "memory");
	else
		memory = aligned_alloc(4096, total_bytes + object_bytes);
	if (!memory)
		must(-ENOMEM, "memory");
	if (strcmp(argv[1], "urgent") == 0)
		urgent();
	else if (strcmp(argv[1], "share") == 0)
		share();
	else if (strcmp(argv[1], "memory") == 0)
		memory_per_object();
	else
		put_get();
	spw_store_close(store);
	if (!arena)
		free(memory);
	return 0;
}
