/* SPDX-License-Identifier: MIT */
/* tests/sim/world.c - one run: drives, a store over them, and the steps one after the other */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "layout/superblock.h"
#include "tests/sim/sim.h"
#include "util/util.h"

#define POOL_BYTES (size_t)(160u << 20)
/* nothing is in flight: what was begun in a callback goes with the next turn */
#define IDLE_TURNS_MAX 100

struct sim_world sim_world;
uint64_t sim_worked_ns;

static uint64_t arena_bytes_used;
static uint32_t bounces;

/* ---- What the steps need ---- */

uint8_t *sim_memory(size_t len, size_t align)
{
	size_t at = (size_t)spw_round_up(sim_world.pool_used, align);

	if (at + len > POOL_BYTES)
		return NULL;
	sim_world.pool_used = at + len;
	return sim_world.pool + at;
}

void sim_fill(uint8_t *to, size_t len, uint64_t seed)
{
	uint64_t word;

	for (; len >= sizeof(word); to += sizeof(word), len -= sizeof(word)) {
		word = random_next(&seed);
		memcpy(to, &word, sizeof(word));
	}
	word = random_next(&seed);
	memcpy(to, &word, len);
}

void sim_turn(bool wait)
{
	uint64_t began_ns = sim_now_ns;
	int rc = spw_store_poll(sim_world.store, wait);

	sim_worked_ns += sim_now_ns - began_ns;
	if (rc < 0)
		sim_fail("poll: %d, %s", rc, spw_last_error());
	sim_check_inside();
}

void sim_turn_or_fail(const char *words)
{
	static uint64_t ended_before;
	static unsigned idle;

	idle = sim_inside_transfers() > 0 || sim_ios_ended != ended_before ? 0 : idle + 1;
	ended_before = sim_ios_ended;
	if (idle > IDLE_TURNS_MAX)
		sim_fail("%s", words);
	sim_turn(true);
}

void sim_others_run(void)
{
	if (sim_world.store)
		sim_turn_or_fail("a thread waits for ever");
}

/* The cache waits for the store's thread, which is not there: polling is a spurious wakeup. */
WRAP(int, pthread_cond_wait, (pthread_cond_t * condition, pthread_mutex_t *mutex))
{
	(void)condition;
	SPW_MUST(pthread_mutex_unlock(mutex));
	sim_others_run();
	SPW_MUST(pthread_mutex_lock(mutex));
	return 0;
}

/* ---- Whom to blame ---- */

static const struct sim_drive *named_drive(const char *words)
{
	const char *name = strstr(words, "sim");
	unsigned index;

	if (!name || sscanf(name, "sim%u:", &index) != 1 || index >= sim_drive_count)
		return NULL;
	return &sim_drives[index];
}

static bool named_place(const char *words, unsigned long long *byte, unsigned long long *len)
{
	const char *place = strstr(words, "(byte ");
	unsigned long long block;
	char rest[8];

	if (!place)
		return false;
	if (sscanf(place, "(byte %llu, %llu bytes", byte, len) == 2)
		return true;
	return sscanf(words, "%7[^:]: cannot read %llu bytes at block %llu (byte %llu)", rest, len,
		      &block, byte) == 4;
}

void sim_judge_read_error(int res, const char *words)
{
	const struct sim_drive *drive = named_drive(words);
	unsigned long long byte, len;

	if (!drive || !named_place(words, &byte, &len))
		sim_fail("a read failed, and the words name no drive and place: %d, %s", res,
			 words);
	if (byte + len > drive->geometry.size_bytes)
		sim_fail("a read failed at a place that does not exist: %d, %s", res, words);
	if (res == -EBADMSG) {
		/* What took too long is not read again, also if it went wrong on the way only. */
		bool once = (drive->injected[SIM_FLIP] || drive->injected[SIM_STALE]) &&
			    (drive->injected[SIM_HANG] || drive->injected[SIM_SLOW]);

		if (!once && !sim_commits_overwritten() && !sim_gave_wrong_bytes(drive, byte, len))
			sim_fail("the drive is blamed for other bytes, and has always given the "
				 "right ones: %s",
				 words);
		return;
	}
	if (!sim_reads_may_fail(drive))
		sim_fail("a read failed although the drive has not: %d, %s", res, words);
}

/* A message counts the bytes of the piece, or the blocks that were transferred. */
void sim_judge_place(int res, const char *words, spw_object object)
{
	const struct sim_drive *drive = named_drive(words);
	unsigned long long byte = 0, len = 0;

	if (!drive || !named_place(words, &byte, &len) ||
	    !sim_inside_is_at(object, drive->index, byte, len, sim_inside_block_bytes()))
		sim_fail("a read failed at a place where the object has nothing: %d, %s", res,
			 words);
}

/* ---- The store ---- */

static void paths_of(const char *paths[SIM_DRIVES_MAX])
{
	for (unsigned i = 0; i < sim_drive_count; i++)
		paths[i] = sim_drives[i].path;
}

/* What spw_format() leaves, without the zeros that it writes to the rest. */
static void write_superblocks(const struct sim_config *config)
{
	for (unsigned i = 0; i < config->drives; i++) {
		struct sim_drive *drive = &sim_drives[i];
		struct spw_superblock sb = {.sequence = 1,
					    .drive_index = i,
					    .drive_count = config->drives,
					    .block_bytes = SPW_LAYOUT_BLOCK_BYTES,
					    .logical_block_bytes = config->logical_block_bytes,
					    .chunk_bytes = config->chunk_bytes,
					    .partition_count = config->partitions,
					    .features_incompatible = SPW_FEATURE_COMMITS,
					    .complete = true,
					    .created_unix_s = 1};
		uint8_t block[SPW_SUPERBLOCK_BYTES];

		memset(sb.store_uuid, 0xab, sizeof(sb.store_uuid));
		for (unsigned j = 0; j < config->drives; j++)
			memset(sb.drive_uuids[j], (int)j + 1, sizeof(sb.drive_uuids[j]));
		if (spw_layout__plan(&sb, drive->geometry.size_bytes))
			sim_fail("the drives do not have room for all partitions");
		for (unsigned copy = 0; copy < 2; copy++) {
			spw_layout__encode(&sb, copy, block);
			sim_drive_write(drive, spw_layout__copy_offset(sb.device_bytes, copy),
					block, sizeof(block));
		}
	}
}

static void make_drives(const struct sim_config *config)
{
	struct spw_format_opts opts;
	const char *paths[SIM_DRIVES_MAX];
	uint64_t random = config->seed ^ 0xd71fe;

	sim_now_ns = 1000000000;
	sim_worked_ns = 0;
	sim_drive_count = config->drives;
	sim_chunk_bytes = config->chunk_bytes;
	for (unsigned i = 0; i < config->drives; i++)
		sim_drive_make(i, config->drive_bytes[i], config->logical_block_bytes,
			       random_next(&random));
	if (!config->formatted) {
		write_superblocks(config);
		return;
	}
	paths_of(paths);
	spw_format_opts_init(&opts, sizeof(opts));
	opts.partitions = config->partitions;
	opts.chunk_bytes = config->chunk_bytes;
	if (spw_format(paths, config->drives, &opts, NULL))
		sim_fail("format: %s", spw_last_error());
}

/* A drive that can be read, whole, with both superblocks as they were written. */
static bool is_sound(const struct sim_drive *drive)
{
	uint64_t last = spw_layout__copy_offset(drive->geometry.size_bytes, 1);
	bool readable = true;

	for (unsigned i = 0; i < SIM_BAD_RANGES; i++)
		readable &= drive->bad[i].len_bytes == 0;
	return readable && !drive->removed && !drive->dead && !drive->off &&
	       drive->size_now_bytes == drive->geometry.size_bytes &&
	       sim_range_is_true(drive, 0, SPW_SUPERBLOCK_BYTES) &&
	       sim_range_is_true(drive, last, drive->geometry.size_bytes - last);
}

/* With a mirror it goes on so: tests/unit/test_sim_mirror.c. Here drives go by their index. */
static bool is_opened_without_a_drive(void)
{
	struct spw_store_stats stats;

	spw_store_stats(sim_world.store, &stats, sizeof(stats));
	if (stats.drives_missing == 0)
		return false;
	spw_store_close(sim_world.store);
	sim_world.store = NULL;
	return true;
}

/* Return: false when there is none any more, for a reason. */
static bool open_store(const struct sim_config *config)
{
	const char *paths[SIM_DRIVES_MAX];
	bool sound = true;
	int rc;

	paths_of(paths);
	for (unsigned i = 0; i < sim_drive_count; i++) {
		sim_disarm(i);
		sim_drives[i].allowed.len_bytes = 0;
		sound &= is_sound(&sim_drives[i]);
		/* Opening may write: it gives up a commit that was kept. */
		sound &= !sim_drives[i].injected[SIM_STICKY];
	}
	sound &= !sim_commits_may_be_lost();
	rc = spw_store_open(paths, sim_drive_count, &config->store, &sim_world.store);
	if (rc && sound)
		sim_fail("the store cannot be opened although all drives are sound: %d, %s", rc,
			 spw_last_error());
	if (rc && !named_drive(spw_last_error()) && !strstr(spw_last_error(), "sim"))
		sim_fail("the store cannot be opened, and the words name no drive: %d, %s", rc,
			 spw_last_error());
	if (rc || is_opened_without_a_drive())
		return false;
	sim_inside_opened(&arena_bytes_used, &bounces);
	sim_objects_begin();
	sim_commits_opened();
	if (config->has_cache)
		sim_tensors_begin();
	return true;
}

/* With whatever is under way. */
static void close_store(void)
{
	if (sim_world.config->has_cache)
		sim_tensors_end(true);
	sim_objects_closing();
	spw_store_close(sim_world.store);
	sim_world.store = NULL;
	sim_objects_forget();
}

/* ---- Steps ---- */

static bool do_fault(const struct sim_step *step)
{
	unsigned drive = (unsigned)(step->a % sim_drive_count);

	enum sim_fault fault = (enum sim_fault)(step->b % SIM_FAULTS);
	uint32_t times = 1 + (uint32_t)(step->c / 32 % 4);

	/* Now and then nothing that the drive is given ends for a while. */
	if (fault == SIM_HANG && step->c / 128 % 8 == 0)
		times = 64;
	return sim_fault(drive, fault, (uint32_t)(step->c % 32), times);
}

static bool do_revive(const struct sim_step *step)
{
	int rc = spw_store_revive(sim_world.store, (unsigned)(step->a % sim_drive_count));

	if (rc && rc != -EALREADY && rc != -ENOBUFS)
		sim_fail("revive: %d, %s", rc, spw_last_error());
	return rc == 0;
}

static bool do_reopen(const struct sim_config *config, bool blackout)
{
	for (unsigned i = 0; blackout && i < sim_drive_count; i++) {
		sim_power_off(i);
		sim_drives[i].injected[SIM_POWER]++;
	}
	if (blackout)
		sim_commits_blackout();
	close_store();
	for (unsigned i = 0; blackout && i < sim_drive_count; i++)
		sim_power_on(i);
	return open_store(config);
}

static bool do_step(const struct sim_config *config, const struct sim_step *step)
{
	switch (step->kind) {
	case SIM_STEP_POLL:
		for (uint64_t i = 0; i <= step->a % 16; i++)
			sim_turn(step->b % 2);
		return true;
	case SIM_STEP_SETTLE: sim_objects_settle(false); return true;
	case SIM_STEP_REVIVE: return do_revive(step);
	case SIM_STEP_PASS: sim_now_ns += step->a; return true;
	case SIM_STEP_FAULT: return do_fault(step);
	case SIM_STEP_REOPEN:
	case SIM_STEP_BLACKOUT: return do_reopen(config, step->kind == SIM_STEP_BLACKOUT);
	default: break;
	}
	if (step->kind == SIM_STEP_COMMIT)
		return config->has_store && sim_commits_step(step);
	if (step->kind >= SIM_STEP_OFFER)
		return config->has_cache && sim_tensors_step(step);
	return config->has_store && sim_objects_step(step);
}

/* Everything ends, everything is released, and then nothing is left. */
static void end_run(void)
{
	bool attempted, emptied = true;

	if (sim_world.config->has_cache)
		sim_tensors_end(false);
	sim_objects_settle(true);
	attempted = sim_commits_attempted();
	if (attempted)
		emptied = sim_commits_end();
	for (unsigned i = 0; sim_inside_transfers() > 0; i++) {
		if (i > 100000)
			sim_fail("transfers do not end");
		sim_turn(true);
	}
	sim_turn(false);
	if (emptied)
		sim_check_empty(arena_bytes_used, bounces, attempted);
	sim_objects_check_stats();
	sim_objects_check_counts();
	close_store();
}

void sim_run(const struct sim_config *config, const struct sim_step *steps, unsigned count,
	     uint64_t *operations, uint64_t injected[SIM_FAULTS])
{
	if (!sim_world.pool) {
		sim_world.pool = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE,
				      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		SPW_ASSERT(sim_world.pool != MAP_FAILED);
	}
	sim_world.pool_used = 0;
	sim_world.config = config;
	make_drives(config);
	sim_commits_begin();
	if (!open_store(config))
		sim_fail("a new store cannot be opened: %s", spw_last_error());
	for (unsigned i = 0; i < count && sim_world.store; i++) {
		if (sim_trace)
			(void)fprintf(stderr, "%s %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
				      sim_step_names[steps[i].kind], steps[i].a, steps[i].b,
				      steps[i].c);
		*operations += do_step(config, &steps[i]);
		if (!sim_world.store)
			break;
		sim_check_inside();
		(void)sim_objects_look();
		if (i % 8 == 0)
			sim_objects_check_stats();
	}
	if (sim_world.store)
		end_run();
	for (unsigned i = 0; i < sim_drive_count; i++)
		for (unsigned fault = 0; fault < SIM_FAULTS; fault++)
			injected[fault] += sim_drives[i].injected[fault];
}
