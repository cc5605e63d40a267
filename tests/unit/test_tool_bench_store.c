/* SPDX-License-Identifier: MIT */
/* tests/unit/test_tool_bench_store.c - the bench on a failing store: buffers, first error */
/* link: util tools/bench/timer tools/bench/offsets tools/bench/options tools/bench/values */
/* link: tools/bench/lists tools/bench/check tools/bench/fio_options tools/bench/job */
/* link: tools/bench/thread_place tools/bench/turns tools/ui/nearest tools/ui/stop */

#include "tests/case.h"

#include "tools/bench/store.c"

#define OBJECT_BYTES 4096u
#define PUTS_MAX     4u

/* ---- A store that takes puts, and ends them when and how the case says ---- */

static struct fake {
	struct spw_notify puts[PUTS_MAX]; /* in flight; done NULL: ended */
	unsigned count;
	unsigned fails;   /* how many of them fail at the first poll, the last first */
	unsigned buffers; /* allocated and not released */
	bool torn;        /* a buffer was released while a put was in flight */
	bool closed;
} fake;

void spw_store_opts_init(struct spw_store_opts *opts, size_t size)
{
	memset(opts, 0, size);
}

int spw_tune_read(const char *path, const char *const drives[], unsigned count,
		  const struct spw_log *log, struct spw_tune *tune, size_t size)
{
	(void)path;
	(void)drives;
	(void)count;
	(void)log;
	memset(tune, 0, size);
	return 0;
}

int spw_store_open(const char *const paths[], unsigned count, const struct spw_store_opts *opts,
		   struct spw_store **store)
{
	(void)paths;
	(void)count;
	assert_true(opts->inline_mode);
	*store = (struct spw_store *)&fake;
	return 0;
}

int spw_store_put(struct spw_store *store, const void *bytes, size_t len,
		  const struct spw_notify *notify, spw_object *id, struct spw_request **request)
{
	(void)store;
	(void)request;
	assert_non_null(bytes);
	assert_int_equal(len, OBJECT_BYTES);
	assert_true(fake.count < PUTS_MAX);
	id->value = fake.count + 1;
	fake.puts[fake.count++] = *notify;
	return 0;
}

static void end_put(unsigned index, int res)
{
	struct spw_notify notify = fake.puts[index];

	fake.puts[index].done = NULL;
	notify.done(notify.context, res);
}

int spw_store_poll(struct spw_store *store, bool wait)
{
	int ended = (int)fake.fails;

	(void)store;
	assert_true(wait);
	for (; fake.fails > 0; fake.fails--) {
		int error = fake.count % 2 == 0 ? -EIO : -ENOSPC;

		(void)spw_error(error, "put %u has failed", fake.count);
		end_put(--fake.count, error);
	}
	return ended;
}

void spw_store_close(struct spw_store *store)
{
	(void)store;
	for (unsigned i = 0; i < fake.count; i++) {
		(void)spw_error(-ECANCELED, "the store was closed");
		end_put(i, -ECANCELED);
	}
	fake.closed = true;
}

int spw_store_alloc(struct spw_store *store, size_t len, void **memory)
{
	static _Alignas(64) char memories[PUTS_MAX][OBJECT_BYTES];

	(void)store;
	assert_int_equal(len, OBJECT_BYTES);
	*memory = memories[fake.buffers++];
	return 0;
}

void spw_store_release(struct spw_store *store, void *memory)
{
	(void)store;
	(void)memory;
	fake.buffers--;
	fake.torn = fake.torn || fake.count > 0;
}

void spw_store_stats(struct spw_store *store, struct spw_store_stats *stats, size_t size)
{
	(void)store;
	*stats = (struct spw_store_stats){
		.size = size, .capacity_bytes = (uint64_t)PUTS_MAX * OBJECT_BYTES, .drives = 1};
}

int spw_store_drive_stats(struct spw_store *store, unsigned index, struct spw_drive_stats *stats,
			  size_t size)
{
	(void)store;
	assert_int_equal(index, 0);
	*stats = (struct spw_drive_stats){.size = size};
	return 0;
}

int spw_store_get(struct spw_store *store, spw_object id, uint64_t offset, void *bytes, size_t len,
		  enum spw_class cls, const struct spw_notify *notify, struct spw_request **request)
{
	(void)store, (void)id, (void)offset, (void)bytes, (void)len, (void)cls, (void)notify,
		(void)request;
	fail_msg("a job that writes gets nothing");
	return -EIO;
}

int spw_store_free(struct spw_store *store, spw_object id)
{
	(void)store;
	(void)id;
	return 0;
}

const char *spw_store_description(const struct spw_store *store)
{
	(void)store;
	return "a fake";
}

uint64_t spw_store_chunk_bytes(const struct spw_store *store)
{
	(void)store;
	return OBJECT_BYTES;
}

/* ---- Cases ---- */

/* A job that puts three objects at once, @fails of which fail. Return: what it ended with. */
static int run_job(unsigned fails, struct bench_worker *worker)
{
	struct bench_job job = {
		.name = "fails",
		.rw = BENCH_WRITE,
		.object_bytes = OBJECT_BYTES,
		.size_bytes = (uint64_t)PUTS_MAX * OBJECT_BYTES,
		.iodepth = 3,
		.numjobs = 1,
		.numa_node = BENCH_NUMA_ANY,
	};
	struct bench_gate gate;

	fake = (struct fake){.fails = fails};
	bench_gate_init(&gate);
	assert_int_equal(sem_post(&gate.open), 0);
	*worker = (struct bench_worker){.job = &job, .devices_count = 1, .gate = &gate};
	bench_store_worker_run(worker);
	free(worker->drives);
	return worker->stats.error;
}

/* What is in flight keeps its memory, and the words are those of the first error. */
CASE(a_failing_put_ends_the_job)
{
	static struct bench_worker worker;

	for (unsigned fails = 1; fails <= 2; fails++) {
		assert_int_equal(run_job(fails, &worker), -ENOSPC);
		assert_true(fake.closed);
		assert_false(fake.torn);
		assert_string_equal(worker.stats.error_text, "put 3 has failed");
	}
}

RUN_CASES(NULL, NULL)
