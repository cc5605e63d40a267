/* SPDX-License-Identifier: MIT */
/* tests/integration/test_cache.c - the tensor cache on real drives: steps, bad drives, threads */
#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <spillway/cache.h>

#include "tests/integration/test_store.h"

#define LAYERS        6
#define LAYER_TENSORS 4
#define TENSORS       (LAYERS * LAYER_TENSORS)

/* One tensor of a step. Its content follows from the key; the token is the slot plus 1. */
struct saved {
	uint64_t key;
	size_t len, skew; /* the memory begins that far behind an aligned address */
	uint8_t *memory;
	spw_tensor tensor;
};

static struct trainer {
	struct spw_store *store;
	struct spw_cache *cache;
	struct saved saved[TENSORS];
	uint64_t next_key;
	uint64_t forward_bytes;
} trainer;

static void trainer_open(const struct spw_store_opts *store_opts, enum spw_cache_mode mode)
{
	struct spw_cache_opts opts;

	trainer = (struct trainer){.store = open_drives(4, store_opts)};
	spw_cache_opts_init(&opts, sizeof(opts));
	opts.mode = mode;
	opts.memory_bytes = 4 * MIB;
	assert_ok(spw_cache_open(trainer.store, &opts, &trainer.cache));
}

/* On a new store, by the fixed rule, which does the same in every step. */
static void trainer_begin(void)
{
	struct spw_store_opts opts = default_opts();

	(void)format_drives(4, 1, 0);
	trainer_open(&opts, SPW_CACHE_SPILL);
}

static struct spw_cache_stats trainer_stats(void)
{
	struct spw_cache_stats stats;

	spw_cache_stats(trainer.cache, &stats, sizeof(stats));
	return stats;
}

static unsigned trainer_drain(void)
{
	uint64_t tokens[16];
	int count = spw_cache_drain(trainer.cache, tokens, 16);

	for (int i = 0; i < count; i++) {
		struct saved *saved = &trainer.saved[tokens[i] - 1];

		assert_true(tokens[i] >= 1 && tokens[i] <= TENSORS && saved->memory);
		memset(saved->memory, 0xdd, saved->len + saved->skew);
		free(saved->memory);
		saved->memory = NULL;
	}
	return (unsigned)count;
}

/* There is no event for the end of background work: poll for it. */
static void pause_shortly(void)
{
	const struct timespec pause = {.tv_nsec = 200000};

	(void)nanosleep(&pause, NULL);
}

static void trainer_drain_slot(unsigned slot)
{
	while (trainer.saved[slot].memory)
		if (trainer_drain() == 0)
			pause_shortly();
}

/* The I/O thread frees objects later than asked. If one is left, the runner ends this. */
static void wait_for_no_objects(struct spw_store *store)
{
	while (stats_of(store).objects > 0)
		pause_shortly();
}

static void trainer_drain_all(void)
{
	for (unsigned slot = 0; slot < TENSORS; slot++)
		trainer_drain_slot(slot);
}

static void save(unsigned slot, size_t len)
{
	struct saved *saved = &trainer.saved[slot];
	struct spw_offer offer;

	/* In the step before, its write may have been on the way when it was forwarded. */
	trainer_drain_slot(slot);
	*saved = (struct saved){.key = ++trainer.next_key, .len = len, .skew = slot % 3 * 64};
	assert_int_equal(posix_memalign((void **)&saved->memory, 4096, len + saved->skew), 0);
	content_fill(saved->memory + saved->skew, len, saved->key);
	offer = (struct spw_offer){
		.storage_key = saved->key,
		.storage_bytes = saved->memory + saved->skew,
		.storage_len_bytes = len,
		.len_bytes = len,
		.owner = slot + 1,
	};
	assert_in_range(spw_cache_offer(trainer.cache, &offer, &saved->tensor), SPW_OFFER_KEEP,
			SPW_OFFER_SPILL);
	trainer.forward_bytes += len;
}

/* Sizes of all kinds: whole chunks, odd ones, and one that is too small to spill. */
static const size_t layer_lens[LAYER_TENSORS] = {2 * MIB, MIB + 12345, 777777, 4000};

static void forward(void)
{
	trainer.forward_bytes = 0;
	spw_cache_step(trainer.cache);
	spw_cache_scope_enter(trainer.cache, 1);
	for (unsigned layer = 0; layer < LAYERS; layer++) {
		spw_cache_scope_enter(trainer.cache, 2 + layer);
		for (unsigned i = 0; i < LAYER_TENSORS; i++) {
			save(layer * LAYER_TENSORS + i, layer_lens[i]);
			(void)trainer_drain();
		}
		spw_cache_scope_leave(trainer.cache);
	}
	spw_cache_scope_leave(trainer.cache);
}

static void use(unsigned slot)
{
	struct saved *saved = &trainer.saved[slot];
	size_t offset = slot % 2 ? saved->len / 3 : 0;
	struct spw_taken taken;
	const uint8_t *bytes;

	assert_ok(
		spw_cache_take(trainer.cache, saved->tensor, offset, saved->len - offset, &taken));
	bytes = taken.bytes ? taken.bytes : saved->memory + saved->skew + offset;
	assert_true(taken.bytes || taken.owner == slot + 1);
	assert_content(bytes, saved->len - offset, saved->key, offset);
	assert_ok(spw_cache_release(trainer.cache, saved->tensor));
	if (taken.lease) {
		assert_content(bytes, saved->len - offset, saved->key, offset);
		spw_cache_return(trainer.cache, taken.lease);
	}
}

static void backward(void)
{
	spw_cache_stage(trainer.cache, 0, SPW_STAGE_BACKWARD);
	for (unsigned slot = TENSORS; slot-- > 0;) {
		use(slot);
		(void)trainer_drain();
	}
}

static void steps(unsigned count)
{
	while (count-- > 0) {
		forward();
		backward();
	}
}

/* Nothing is left in memory or on the drives. */
static void trainer_close(void)
{
	struct spw_cache_stats stats;

	trainer_drain_all();
	stats = trainer_stats();
	assert_int_equal(stats.entries, 0);
	assert_int_equal(stats.activation_bytes, 0);
	spw_cache_close(trainer.cache);
	wait_for_no_objects(trainer.store);
	close_store(trainer.store);
}

STORE_CASE(test_training_steps)
{
	struct spw_cache_stats stats;

	trainer_begin();
	steps(4);
	stats = trainer_stats();
	assert_int_equal(stats.steps, 4);
	assert_int_equal(stats.takes, 4 * TENSORS);
	assert_int_equal(stats.writes_failed + stats.reads_failed + stats.prefetches_failed, 0);
	assert_int_equal(stats.tensors_kept_small, 4 * LAYERS);
	assert_int_equal(stats.tensors_kept_last_scope, 3 * (LAYER_TENSORS - 1));
	/* However fast the drives are: what was forwarded was not read. */
	assert_true(stats.bytes_spilled + stats.bytes_forwarded >= stats.bytes_read);
	assert_int_equal(stats.tensors_forwarded + stats.misses + stats.prefetch_hits +
				 stats.prefetch_late,
			 4 * LAYERS * (LAYER_TENSORS - 1) - stats.tensors_kept_last_scope);
	trainer_close();
}

/* Whatever the plan: the bytes are right, and equal steps follow it. */
STORE_CASE(test_planned_steps)
{
	static const enum spw_cache_mode modes[] = {SPW_CACHE_FASTEST, SPW_CACHE_BUDGET};
	struct spw_store_opts opts = default_opts();
	struct spw_cache_stats stats;

	(void)format_drives(4, 1, 0);
	for (unsigned i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		trainer_open(&opts, modes[i]);
		for (unsigned step = 0; step < 5; step++) {
			forward();
			/* Otherwise all may be forwarded, and nothing is known of the drives. */
			while (step < 2 && trainer_stats().staging_bytes > 0)
				pause_shortly();
			backward();
		}
		spw_cache_step(trainer.cache);
		stats = trainer_stats();
		assert_true(stats.write_bytes_per_second > 0);
		assert_true(stats.plans > 0);
		assert_int_equal(stats.plan_mismatches, 0);
		assert_int_equal(stats.steps_fixed + stats.steps_planned, 5);
		assert_true(stats.steps_planned >= 2);
		assert_int_equal(stats.plan_tensors, TENSORS);
		assert_true(stats.plan_peak_bytes <= stats.plan_keep_all_bytes);
		assert_int_equal(stats.writes_failed + stats.reads_failed + stats.prefetches_failed,
				 0);
		trainer_close();
	}
}

/* The drives have all the time they want: everything goes there and comes back. */
STORE_CASE(test_memory_falls_to_what_is_kept)
{
	struct spw_cache_stats stats;

	trainer_begin();
	for (unsigned slot = 0; slot < TENSORS; slot++) {
		save(slot, MIB + slot);
		trainer_drain_all();
	}
	stats = trainer_stats();
	assert_int_equal(stats.activation_bytes, 0);
	assert_int_equal(stats.bytes_spilled, trainer.forward_bytes);
	assert_int_equal(stats.activation_bytes_max, MIB + TENSORS - 1);
	backward();
	stats = trainer_stats();
	assert_int_equal(stats.bytes_read, trainer.forward_bytes);
	assert_int_equal(stats.bytes_forwarded, 0);
	assert_int_equal(stats.misses, 0);
	/* One in use, and the window. */
	assert_true(stats.activation_bytes_max <=
		    stats.prefetch_budget_bytes + 2 * (MIB + TENSORS));
	trainer_close();
}

/* Not everything fits on the drives, and less into the arena: the step goes on. */
STORE_CASE(test_full_drives)
{
	struct spw_store_opts opts = default_opts();
	struct spw_cache_stats stats;

	(void)format_small(8 * MIB, 0);
	opts.arena_bytes = 2 * MIB;
	trainer_open(&opts, SPW_CACHE_SPILL);
	steps(2);
	stats = trainer_stats();
	assert_true(stats.bytes_kept_no_space > 0);
	assert_true(stats.bytes_kept_no_space < 2 * trainer.forward_bytes);
	trainer_close();
}

/* So few requests that takes, writes and prefetches fight for them. */
STORE_CASE(test_few_requests)
{
	struct spw_store_opts opts = default_opts();

	(void)format_drives(4, 1, 0);
	opts.requests_max = 2;
	trainer_open(&opts, SPW_CACHE_SPILL);
	steps(3);
	assert_int_equal(trainer_stats().reads_failed, 0);
	trainer_close();
}

/* The front of a drive behind its superblock: the store fills drives from there. */
static void damage(const char *path)
{
	static uint8_t junk[MIB];
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	off_t end = lseek(fd, 0, SEEK_END);

	assert_true(fd >= 0 && end > 0);
	memset(junk, 0xee, sizeof(junk));
	for (off_t at = MIB; at < 24 * (off_t)MIB && at + 2 * (off_t)MIB <= end; at += MIB)
		assert_int_equal(pwrite(fd, junk, sizeof(junk), at), sizeof(junk));
	assert_int_equal(fsync(fd), 0);
	assert_int_equal(close(fd), 0);
}

STORE_CASE(test_damaged_drive)
{
	struct spw_taken taken;
	spw_tensor tensor;

	trainer_begin();
	save(0, 8 * MIB);
	tensor = trainer.saved[0].tensor;
	trainer_drain_all();
	for (unsigned i = 0; i < 4; i++)
		damage(drive_paths[i]);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(spw_cache_take(trainer.cache, tensor, 0, 8 * MIB, &taken),
				 -EBADMSG);
		assert_null(taken.bytes);
		assert_int_equal(taken.owner, 0);
		assert_int_equal(taken.lease, 0);
		assert_non_null(strstr(spw_last_error(), drive_paths[0]) ?:
				strstr(spw_last_error(), drive_paths[1]) ?:
				strstr(spw_last_error(), drive_paths[2]) ?:
				strstr(spw_last_error(), drive_paths[3]));
	}
	assert_int_equal(trainer_stats().reads_failed, 2);
	assert_ok(spw_cache_release(trainer.cache, tensor));
	trainer_close();
}

/* As autograd does: threads that want the same tensors at the same time. */
struct taker {
	unsigned wrong;
	pthread_t thread;
};

static void *taker_run(void *context)
{
	struct taker *taker = context;

	for (unsigned slot = TENSORS; slot-- > 0;) {
		struct saved *saved = &trainer.saved[slot];
		struct spw_taken taken;

		if (spw_cache_take(trainer.cache, saved->tensor, 0, saved->len, &taken)) {
			taker->wrong++;
			continue;
		}
		if (content_differs(taken.bytes ? taken.bytes : saved->memory + saved->skew,
				    saved->len, saved->key, 0) < saved->len)
			taker->wrong++;
		if (taken.lease)
			spw_cache_return(trainer.cache, taken.lease);
	}
	return NULL;
}

STORE_CASE(test_backward_on_several_threads)
{
	struct taker takers[3];

	trainer_begin();
	for (unsigned step = 0; step < 3; step++) {
		forward();
		for (unsigned i = 0; i < 3; i++) {
			takers[i].wrong = 0;
			assert_int_equal(
				pthread_create(&takers[i].thread, NULL, taker_run, &takers[i]), 0);
		}
		for (unsigned i = 0; i < 3; i++) {
			assert_int_equal(pthread_join(takers[i].thread, NULL), 0);
			assert_int_equal(takers[i].wrong, 0);
		}
		for (unsigned slot = 0; slot < TENSORS; slot++)
			assert_ok(spw_cache_release(trainer.cache, trainer.saved[slot].tensor));
		trainer_drain_all();
	}
	assert_int_equal(trainer_stats().takes, 3 * 3 * TENSORS);
	trainer_close();
}

STORE_CASE(test_close_in_the_middle_of_a_step)
{
	trainer_begin();
	forward();
	spw_cache_stage(trainer.cache, 0, SPW_STAGE_BACKWARD);
	use(TENSORS - 1);
	spw_cache_close(trainer.cache);
	for (unsigned slot = 0; slot < TENSORS; slot++)
		free(trainer.saved[slot].memory);
	wait_for_no_objects(trainer.store);
	close_store(trainer.store);
}

RUN_CASES(drives_from_environment, NULL)
