/* SPDX-License-Identifier: MIT */
/*
 * state/internal.h - struct spw_state and struct record: where each record's bytes are, which
 * transfers are in flight, and the functions that the files of this folder share
 *
 * The states of a record (record.c has the table of allowed transitions):
 *
 * STORED     The record's bytes are only on the drives, or all zero. It has no buffer.
 * LOADING    The bytes are being read into the record's buffer.
 * CLEAN      The buffer and the drives have the same bytes, or the buffer is all zero.
 * CHANGED    The buffer has newer bytes than the drives.
 * STORING    A put from the buffer is in flight.
 * TAKEN      The caller is using the buffer.
 *
 * Rules, cited by asserts
 *   STATE-1    A record has a buffer if and only if it is not STORED; a buffer belongs to one
 *              record or to the free list.
 *   STATE-2    A buffer has at most one transfer in flight: that of its LOADING or STORING record.
 *              So either the caller or the drives use a buffer, never both.
 *   STATE-3    Only a CLEAN record loses its buffer, as its bytes are on the drives, or zero.
 *              Exceptions: its read failed, or the caller clears the record.
 *   STATE-4    A record's old object is freed only after the put of its new object has succeeded.
 *   STATE-5    A wanted record does not lose its buffer to another. Wanted are the records that are
 *              used next, as many as there are buffers that the caller is not using (ahead.c).
 *   STATE-6    At a commit each record that is not transient is STORED, LOADING or CLEAN.
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
#include "state/device_share.h"
#include "util/probes.h"
#include "util/util.h"

#define BUFFERS_MIN   4u
#define BUFFER_ALIGN  4096u
#define TRANSFERS_MAX 64u        /* in each direction */
#define NONE          UINT32_MAX /* no record, buffer or place */

enum record_state {
	RECORD_STORED,
	RECORD_LOADING,
	RECORD_CLEAN,
	RECORD_CHANGED,
	RECORD_STORING,
	RECORD_TAKEN,
	RECORD_STATES,
};

/* Who updates a record, from spw_state_update() until the record is released. */
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
	spw_object object; /* the last one written, older than the buffer if CHANGED; 0: all zero */
	spw_object object_coming; /* of the put in flight */
	enum record_state state;
	enum record_update update;
	uint32_t buffer;
	uint32_t place;        /* index in the order of the pass, or NONE */
	uint64_t named;        /* the last pass whose order has the record */
	uint64_t wanted;       /* the last look() that wanted the record */
	uint64_t taken_last;   /* number of its last take, or 0 */
	uint64_t taken_ns;     /* when the host took it to update it */
	uint64_t read_failed;  /* the last call in which its read failed, or 0 */
	uint64_t write_failed; /* the last call in which its write failed; 0 after a success */
	bool transient;        /* not part of commits */
	bool former;           /* of these: restored from a commit that has it */
	bool callers;          /* the caller owns its object and moves its bytes: always STORED */
	bool used;             /* in this pass */
	bool changed;          /* if TAKEN: it was CHANGED before */
	bool ahead;            /* its buffer was filled since its last use */
};

/* The last failed transfer, for the message of the call that fails because of it. */
struct failure {
	uint64_t call; /* number of the call that saw it */
	int error;
	char words[512];
};

struct spw_state {
	struct spw_store *store;
	const struct spw_state_ports *ports; /* functions to use the store with */
	struct spw_state_opts opts;
	pid_t process; /* that opened it; a child of fork(2) is refused */
	bool attached;

	struct record *records;
	uint32_t records_max;   /* capacity */
	uint32_t *name_slots;   /* record numbers by the hash of their name, or NONE */
	uint32_t name_mask;     /* slots less one */
	uint64_t entries_bytes; /* of all records, in the manifest */
	uint32_t transients, formers;

	void **buffers;
	uint32_t *buffer_records; /* the record that has each buffer, or NONE */
	uint32_t *buffers_free;   /* a stack */
	uint32_t buffers_free_count;

	/* the pass */
	uint32_t *order;
	uint32_t order_count;
	uint32_t position;     /* in the order: of the first record not used yet */
	bool departed;         /* the caller has taken records in another order */
	uint64_t passes_named; /* so far, including refused orders */

	struct share share; /* between host and device, in updates */

	/* transfers in flight, unordered */
	struct spw_request *requests[2 * TRANSFERS_MAX];
	uint32_t request_records[2 * TRANSFERS_MAX];
	uint32_t request_count;
	uint32_t transfers_max; /* in each direction */
	uint32_t few;           /* minimum of buffers that keeps drives and caller busy (ahead.c) */
	uint32_t loading, storing, taken;

	uint64_t calls;   /* so far; also the number of the current call */
	uint64_t looks;   /* calls of look() so far */
	uint32_t *wanted; /* found by the last look(); room for 2 * buffers */
	uint32_t wanted_count;
	struct failure read_failure, write_failure;

	/* the commit that was attached */
	bool has_commit;
	uint64_t commit_number;
	void *extra;
	size_t extra_len;

	struct spw_state_stats count;
};

/* ---- record.c ---- */

/* Change a record's state. Nothing else may write it. */
void spw_state__record_become(struct spw_state *state, uint32_t number, enum record_state next);
/* Give a record a free buffer, which must exist; and release a record's buffer. */
void spw_state__record_get_buffer(struct spw_state *state, uint32_t number);
void spw_state__record_put_buffer(struct spw_state *state, uint32_t number);

static inline void *record_memory(const struct spw_state *state, const struct record *record)
{
	return state->buffers[record->buffer];
}

/* The record is in memory, without a transfer in flight. */
static inline bool record_is_ready(const struct record *record)
{
	return record->state == RECORD_CLEAN || record->state == RECORD_CHANGED;
}

/* Number of the record of this name, or NONE. */
uint32_t spw_state__record_find(const struct spw_state *state, const char *name, size_t len);
/* Enter the record added last in the table of names. Return: 0; -ENOMEM. */
int spw_state__record_name(struct spw_state *state);

/* ---- order.c ---- */

/* The position of a walk over the records in the order of their next use. */
struct walk {
	uint32_t place;
	bool back; /* in the following pass, which is assumed to be the reverse */
};

struct walk spw_state__order_walk(const struct spw_state *state);
/* Get the next record of the walk. Return: false at the end of the known order. */
bool spw_state__order_next(const struct spw_state *state, struct walk *walk, uint32_t *number);
/* The time of the record's next use, as a number to compare. */
uint64_t spw_state__order_use(const struct spw_state *state, const struct record *record);
/* Note that the caller takes the record now. */
void spw_state__order_used(struct spw_state *state, uint32_t number);

/* ---- transfer.c ---- */

/* Begin to read a STORED record into its buffer, or to put a CHANGED one. Return: false: it
 * failed, and the record has the failure. */
bool spw_state__transfer_load(struct spw_state *state, uint32_t number, enum spw_class cls);
bool spw_state__transfer_store(struct spw_state *state, uint32_t number);
/* Free an object that no record refers to any more (STATE-4); an empty one is ignored. */
void spw_state__transfer_free_object(struct spw_state *state, spw_object object);
/* Raise the priority of the read of a LOADING record, for which a caller waits. */
void spw_state__transfer_raise(struct spw_state *state, uint32_t number);
/* Handle the transfers that have completed. */
void spw_state__transfer_reap(struct spw_state *state);
/* Wait until at least one transfer has completed, and handle all that have. */
int spw_state__transfer_wait(struct spw_state *state);

/* ---- ahead.c ---- */

/*
 * Start the transfers that can start now: prefetch the next records, @first (or NONE) before all
 * others, and write changed ones to make room.
 */
void spw_state__ahead(struct spw_state *state, uint32_t first);

/* ---- update.c ---- */

/* Measure how long the host uses a record of an update: from take to release. */
void spw_state__update_taken(struct record *record);
void spw_state__update_given(struct spw_state *state, struct record *record);

/* ---- call.c ---- */

/*
 * Check that the state may be used; each public function begins with this. Return: 0; -EPERM in a
 * child of fork(2); -EINVAL not attached.
 */
int spw_state__enter(struct spw_state *state);
int spw_state__enter_attached(struct spw_state *state);
/* The same for one record; also -EINVAL if the number is wrong or the caller owns its object. */
int spw_state__enter_record(struct spw_state *state, uint32_t number);

#endif
