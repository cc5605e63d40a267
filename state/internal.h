/* SPDX-License-Identifier: MIT */
/*
 * state/internal.h - the state's own structures: records, where their bytes are, transfers under
 * way
 *
 * What is true of a record (record.c has the table of what is allowed):
 *
 * STORED     Its bytes are on the drives alone, or are all zero. It has no buffer.
 * LOADING    They are being read into its buffer.
 * CLEAN      They are in its buffer and on the drives, or in its buffer and all zero.
 * CHANGED    They are in its buffer alone; the drives have what they were before.
 * STORING    They are in its buffer, from which a put is under way.
 * TAKEN      The caller has its buffer.
 *
 * Rules, cited by asserts
 *   STATE-1    A record has a buffer if and only if it is not STORED; a buffer has one record, or
 *              is among the free ones.
 *   STATE-2    From or into a buffer at most one transfer is under way: that of its LOADING or
 *              STORING record. So it is the caller's memory or the drive's, never both.
 *   STATE-3    Only what is CLEAN loses its buffer, but for a read that failed, and for what is
 *              cleared: the bytes are on the drives, or zero.
 *   STATE-4    The object before is freed when the put of the new one has ended well, not earlier.
 *   STATE-5    What is wanted is not moved out to make room. Wanted are the records that are used
 *              next, as many as there are buffers that the caller does not have (ahead.c).
 *   STATE-6    At a commit each record is STORED, LOADING or CLEAN, but for transient ones.
 */
#ifndef SPW_STATE_INTERNAL_H
#define SPW_STATE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <spillway/state.h>
#include <spillway/store.h>

#include "state/ports.h"
#include "state/share.h"
#include "util/probes.h"
#include "util/util.h"

#define BUFFERS_MIN   4u
#define BUFFER_ALIGN  4096u
#define TRANSFERS_MAX 64u        /* in each direction */
#define NONE          UINT32_MAX /* of records, buffers and places */

enum record_state {
	RECORD_STORED,
	RECORD_LOADING,
	RECORD_CLEAN,
	RECORD_CHANGED,
	RECORD_STORING,
	RECORD_TAKEN,
	RECORD_STATES,
};

/* Which update a record is taken by, until it is released there. */
enum record_update {
	UPDATE_NONE,
	UPDATE_HOST,
	UPDATE_DEVICE,
};

struct record {
	char *name;
	void *shape;
	uint32_t name_len, shape_len;
	uint64_t len_bytes;
	spw_object object;        /* that has its bytes, or had before it was changed; 0: zeros */
	spw_object object_coming; /* of the put that is under way */
	enum record_state state;
	enum record_update update;
	uint32_t buffer;
	uint32_t place;        /* in the order of the pass, or NONE */
	uint64_t named;        /* number of the pass whose order has named it last */
	uint64_t wanted;       /* number of the look ahead that has found it last */
	uint64_t taken_last;   /* number of that take, or 0 */
	uint64_t taken_ns;     /* when, of what the host updates */
	uint64_t read_failed;  /* number of the call in which reading it failed last, or 0 */
	uint64_t write_failed; /* the same; 0 once it has been written */
	bool transient;        /* of no commit */
	bool callers; /* its object is the caller's, who alone moves its bytes: always STORED */
	bool used;    /* in this pass */
	bool changed; /* TAKEN: it was CHANGED */
	bool ahead;   /* it came into memory after its last use */
};

/* A failure in words, to be told by the call that suffers from it. */
struct failure {
	uint64_t call; /* its number */
	int error;
	char words[512];
};

struct spw_state {
	struct spw_store *store;
	const struct spw_state_ports *ports; /* that know the store */
	struct spw_state_opts opts;
	pid_t process; /* whose it is: a child of fork(2) has no part in it */
	bool attached;

	struct record *records;
	uint32_t records_max;   /* capacity */
	uint32_t *name_slots;   /* record numbers by the hash of their name, or NONE */
	uint32_t name_mask;     /* slots less one */
	uint64_t entries_bytes; /* of the manifest */
	uint32_t transients;

	void **buffers;
	uint32_t *buffer_records; /* whose it is, or NONE */
	uint32_t *buffers_free;   /* a stack */
	uint32_t buffers_free_count;

	/* the pass */
	uint32_t *order;
	uint32_t order_count;
	uint32_t position;     /* of the first that is not used yet */
	bool departed;         /* another order than was said */
	uint64_t passes_named; /* so far, refused ones too */

	struct share share; /* of the updates */

	/* transfers under way, in no order */
	struct spw_request *requests[2 * TRANSFERS_MAX];
	uint32_t request_records[2 * TRANSFERS_MAX];
	uint32_t request_count;
	uint32_t transfers_max; /* in each direction */
	uint32_t few;           /* buffers that keep drives and caller busy (ahead.c) */
	uint32_t loading, storing, taken;

	uint64_t calls;   /* so far; the number of the one that runs */
	uint64_t looks;   /* ahead, so far */
	uint32_t *wanted; /* found by the last look; room for twice as many as buffers */
	uint32_t wanted_count;
	struct failure read_failure, write_failure;

	/* of what was attached */
	bool has_commit;
	uint64_t commit_number;
	void *extra;
	size_t extra_len;

	struct spw_state_stats count;
};

/* ---- record.c ---- */

/* The only one that changes a record's state. */
void spw_state__record_become(struct spw_state *state, uint32_t number, enum record_state next);
/* STATE-1; one must be free. */
void spw_state__record_get_buffer(struct spw_state *state, uint32_t number);
void spw_state__record_put_buffer(struct spw_state *state, uint32_t number);

static inline void *record_memory(const struct spw_state *state, const struct record *record)
{
	return state->buffers[record->buffer];
}

/* Its bytes are in memory, and no drive has a part in that memory. */
static inline bool record_is_ready(const struct record *record)
{
	return record->state == RECORD_CLEAN || record->state == RECORD_CHANGED;
}

/* Number of the record of this name, or NONE. */
uint32_t spw_state__record_find(const struct spw_state *state, const char *name, size_t len);
/* Make the last record known by its name. Return: 0; -ENOMEM. */
int spw_state__record_name(struct spw_state *state);

/* ---- order.c ---- */

/* Where a walk over the records that are used next has come to. */
struct walk {
	uint32_t place;
	bool back; /* in the pass that is assumed to follow */
};

struct walk spw_state__order_walk(const struct spw_state *state);
/* Return: false: the order says no more. */
bool spw_state__order_next(const struct spw_state *state, struct walk *walk, uint32_t *number);
/* When it is used next: a larger number is later. */
uint64_t spw_state__order_use(const struct spw_state *state, const struct record *record);
/* It is used now. */
void spw_state__order_used(struct spw_state *state, uint32_t number);

/* ---- transfer.c ---- */

/* Begin to read a STORED record into its buffer, or to put a CHANGED one. Return: false: it
 * failed, which is noted. */
bool spw_state__transfer_load(struct spw_state *state, uint32_t number, enum spw_class cls);
bool spw_state__transfer_store(struct spw_state *state, uint32_t number);
/* A record does not have it any more (STATE-4). */
void spw_state__transfer_free_object(struct spw_state *state, spw_object object);
/* A caller waits for a LOADING record. */
void spw_state__transfer_raise(struct spw_state *state, uint32_t number);
/* See what has ended. */
void spw_state__transfer_reap(struct spw_state *state);
/* Wait until at least one has ended, and see. Return: 0 or a negative errno. */
int spw_state__transfer_wait(struct spw_state *state);

/* ---- ahead.c ---- */

/* Begin what can be begun now: read what is used next, first of all @first, and make room. */
void spw_state__ahead(struct spw_state *state, uint32_t first);

/* ---- update.c ---- */

/* A record of an update was taken, or is released. */
void spw_state__update_taken(struct record *record);
void spw_state__update_given(struct spw_state *state, struct record *record);

/* ---- call.c ---- */

/* Each call begins with it. Return: 0; -EPERM in a child of fork(2); -EINVAL not attached. */
int spw_state__enter(struct spw_state *state);
int spw_state__enter_attached(struct spw_state *state);
/* Of one record: -EINVAL there is none of this number, too. */
int spw_state__enter_record(struct spw_state *state, uint32_t number);

#endif
