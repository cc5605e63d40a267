/* SPDX-License-Identifier: MIT */
/*
 * tests/sim/sim.h - the parts of the simulation: configuration, steps, the world that they act on,
 * mutations
 */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/cache.h>
#include <spillway/store.h>

#include "tests/sim/drive.h"
#include "tests/wrap.h"

#define SIM_STEPS_MAX 512
#define SIM_OBJECTS   96

/* ---- steps.c: what a run does ---- */

#define SIM_STEP_LIST(X)      \
	X(PUT, put)           \
	X(GET, get)           \
	X(FREE, free)         \
	X(CANCEL, cancel)     \
	X(RAISE, raise)       \
	X(COMMIT, commit)     \
	X(WAIT, wait)         \
	X(POLL, poll)         \
	X(SETTLE, settle)     \
	X(FLUSH, flush)       \
	X(TRIM, trim)         \
	X(REVIVE, revive)     \
	X(PASS, pass)         \
	X(REOPEN, reopen)     \
	X(BLACKOUT, blackout) \
	X(FAULT, fault)       \
	X(OFFER, offer)       \
	X(TAKE, take)         \
	X(RETURN, return )    \
	X(RELEASE, release)   \
	X(DRAIN, drain)       \
	X(STEP, step)         \
	X(STAGE, stage)       \
	X(ENTER, enter)       \
	X(LEAVE, leave)

enum sim_step_kind {
#define SIM_STEP_ENUM(name, word) SIM_STEP_##name,
	SIM_STEP_LIST(SIM_STEP_ENUM)
#undef SIM_STEP_ENUM
		SIM_STEPS
};

/* All that a step decides is in its numbers: others can be left out, and it stays what it is. */
struct sim_step {
	enum sim_step_kind kind;
	uint64_t a, b, c;
};

struct sim_config {
	uint64_t seed;
	unsigned drives;
	uint32_t partitions, partition;
	uint64_t drive_bytes[SIM_DRIVES_MAX];
	uint32_t logical_block_bytes;
	uint64_t chunk_bytes;
	bool formatted; /* by spw_format(), not by hand */
	bool has_store, has_cache;
	struct spw_store_opts store;
	struct spw_cache_opts cache;
};

extern const char *const sim_step_names[SIM_STEPS];

void sim_config_draw(uint64_t seed, struct sim_config *config);
/* @faults: a bit for each enum sim_fault. Return: how many. */
unsigned sim_steps_draw(const struct sim_config *config, uint32_t faults,
			struct sim_step steps[SIM_STEPS_MAX]);
int sim_steps_write(const char *path, uint64_t seed, const char *why, const struct sim_step *steps,
		    unsigned count);
int sim_steps_read(const char *path, uint64_t *seed, struct sim_step steps[SIM_STEPS_MAX],
		   unsigned *count);

/* ---- world.c: a run ---- */

/* Return only if nothing was violated. Adds to @operations what was done, to @injected faults. */
void sim_run(const struct sim_config *config, const struct sim_step *steps, unsigned count,
	     uint64_t *operations, uint64_t injected[SIM_FAULTS]);

/* The only thread waits for another: let the store work. */
void sim_others_run(void);

/* The store of the run, and the memory that is its callers'. */
struct sim_world {
	const struct sim_config *config;
	struct spw_store *store;
	uint8_t *pool;
	size_t pool_used;
};

extern struct sim_world sim_world;
extern uint64_t sim_worked_ns; /* time in which the store was polled */

/* Memory until the end of the run. NULL: none is left, and the step is left out. */
uint8_t *sim_memory(size_t len, size_t align);
void sim_fill(uint8_t *to, size_t len, uint64_t seed);
/* A get or take failed: fails if @words name no drive, or one that cannot have caused @res. */
void sim_judge_read_error(int res, const char *words);
/* And the place: one of the object's. */
void sim_judge_place(int res, const char *words, spw_object object);
/* Poll once, and see whether all of it fits together inside. */
void sim_turn(bool wait);
/* The same, in a loop that waits: when nothing happens again and again, nothing ever will. */
void sim_turn_or_fail(const char *words);

/* ---- objects.c: puts, gets, frees against a model ---- */

void sim_objects_begin(void);
/* Return: whether there was anything to do it to. */
bool sim_objects_step(const struct sim_step *step);
/* Take note of requests that have ended. Return: how many have not. */
unsigned sim_objects_look(void);
/* Wait for all requests; @free_all: and free all objects. */
void sim_objects_settle(bool free_all);
void sim_objects_closing(void);
void sim_objects_forget(void);
unsigned sim_objects_alive(void);
void sim_objects_check_stats(void);
void sim_objects_check_counts(void);

/* What an object must give. */
struct sim_kept {
	const uint8_t *expected;
	uint64_t len;
	unsigned copies;
};
/* Up to @most objects that are stored. Return: how many. */
unsigned sim_objects_committable(spw_object ids[], struct sim_kept kept[], unsigned most);
void sim_objects_restored(spw_object id, const struct sim_kept *kept);

/* ---- commits.c: what is durable, against a model ---- */

void sim_commits_begin(void);
bool sim_commits_step(const struct sim_step *step);
bool sim_commits_attempted(void);
void sim_commits_blackout(void);
bool sim_commits_may_be_lost(void);
bool sim_commits_overwritten(void);
uint64_t sim_commits_bytes(void);
void sim_commits_opened(void);
bool sim_commits_end(void);

/* ---- inside.c: what the store's own structures say ---- */

void sim_check_inside(void);
/* But for @manifests: descriptions of sets of nothing, of a block each. */
void sim_check_empty(uint64_t arena_bytes_used, uint32_t bounces, uint32_t manifests);
void sim_inside_opened(uint64_t *arena_bytes_used, uint32_t *bounces);
uint32_t sim_inside_transfers(void);
bool sim_inside_no_requests(void);
bool sim_inside_no_objects(void);
bool sim_inside_has_space(uint64_t blocks);
bool sim_inside_is_at(spw_object id, unsigned drive, uint64_t byte, uint64_t len, uint64_t block);
uint32_t sim_inside_block_bytes(void);
/* Of the store's part of those drives whose writes do not fail. */
uint64_t sim_inside_sound_bytes(void);

/* ---- threads.c: threads that there are not ---- */

/*
 * What others do whenever they get to run. NULL: there are none. @sleeps: the store would, until
 * something ends. Return: whether they have woken it.
 */
extern bool (*sim_others_turn)(bool sleeps);
/* The open store has helpers, until it is closed. */
void sim_helpers_begin(struct spw_store *store, uint64_t seed);

/* ---- tensors.c: the cache against a model ---- */

void sim_tensors_begin(void);
bool sim_tensors_step(const struct sim_step *step);
/* @abruptly: with whatever is in flight; else everything is released and checked first. */
void sim_tensors_end(bool abruptly);

/* ---- mutate.c: errors that are put in on purpose ---- */

#define SIM_MUTATION_LIST(X)                                                                     \
	X(NO_CHECKSUMS, "no-checksums", "no checksum differs from another")                      \
	X(PARTIAL_CHECKSUMS, "partial-checksums", "the last sector of a chunk is not checked")   \
	X(EARLY_ORPHANS, "early-orphans",                                                        \
	  "blocks of a write that timed out are freed before it ends")                           \
	X(EARLY_EXTENTS, "early-extents", "blocks are freed while they are written")             \
	X(LEAKED_EXTENT, "leaked-extent", "one extent in 50 is not freed")                       \
	X(LEAKED_BOUNCE, "leaked-bounce", "one copy buffer in 50 is not returned")               \
	X(COMPLETION_IS_LOST, "lost-completion", "one completion in 50 is dropped")              \
	X(SHORT_IS_WHOLE, "short-is-whole", "a short transfer counts as a whole one")            \
	X(WRONG_DRIVE, "wrong-drive", "errors name the drive beside the one that failed")        \
	X(ENDED_TWICE, "ended-twice", "one request in 50 is reported twice")                     \
	X(NO_FLUSH, "no-flush", "drives are not asked to flush")                                 \
	X(EARLY_TOKENS, "early-tokens",                                                          \
	  "the cache gives memory back as soon as a write was accepted")                         \
	X(ERROR_IS_LOST, "lost-error", "an error counts as a whole transfer")                    \
	X(AGAIN_IS_ERROR, "again-is-error", "EAGAIN and EINTR are errors")                       \
	X(FULL_TAKES_ALL, "full-takes-all", "what a full backend refuses is taken all the same") \
	X(LATE_IS_LOST, "late-is-lost", "what takes a drive longer than a second is dropped")    \
	X(NO_CLAIM, "no-claim", "an open store does not claim its drives")

enum sim_mutation {
	SIM_MUTATION_NONE,
#define SIM_MUTATION_ENUM(name, word, text) SIM_MUTATION_##name,
	SIM_MUTATION_LIST(SIM_MUTATION_ENUM)
#undef SIM_MUTATION_ENUM
		SIM_MUTATIONS
};

extern enum sim_mutation sim_mutation;
extern const char *const sim_mutation_names[SIM_MUTATIONS];

#endif
