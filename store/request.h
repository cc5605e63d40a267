/* SPDX-License-Identifier: MIT */
/* store/request.h - struct spw_request: take, begin, fail, end */
#ifndef SPW_STORE_REQUEST_H
#define SPW_STORE_REQUEST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include <spillway/store.h>

#include "store/inbox.h"
#include "store/priority.h"
#include "util/util.h"

struct object;

enum request_state {
	REQUEST_QUEUED,    /* no part issued: may be cancelled */
	REQUEST_ACTIVE,    /* a part was issued */
	REQUEST_CANCELLED, /* will end with -ECANCELED */
};

enum request_kind {
	REQUEST_PUT,
	REQUEST_GET,
	REQUEST_FLUSH,
	REQUEST_TRIM,
	REQUEST_REVIVE,
	REQUEST_RETIRE,
	REQUEST_LOCATE,
	REQUEST_REGISTER,
	REQUEST_UNREGISTER,
};

/*
 * Lifetimes of data, which drives with placement (FDP, streams) keep apart. Writes without a
 * placement, such as those of superblocks, use the drive's default, which is that of
 * PLACEMENT_LASTING.
 */
enum placement {
	PLACEMENT_OF_QUEUE,
	PLACEMENT_LASTING, /* training state, commits */
	PLACEMENT_STEP,    /* activations: freed within the step */
};

/* The pieces of a get on one drive, in that drive's list of reads. */
struct drive_read {
	struct spw_request *request;
	struct drive_read *next, *previous;
	uint32_t piece; /* next piece to issue */
	uint32_t left;  /* pieces */
};

struct spw_request {
	struct message message;
	struct spw_store *store;
	enum request_kind kind;
	_Atomic int state;        /* enum request_state */
	_Atomic int cls;          /* enum spw_class; only becomes more urgent */
	enum priority asked;      /* index in queued_bytes */
	enum placement placement; /* put */
	_Atomic int inbox;        /* enum inbox_state */
	_Atomic uint32_t ended;   /* futex: ENDED_NOT, ENDED_WAITED_FOR, ENDED */
	/* put, get: the caller's memory; else NULL */
	const struct iovec *vector;
	/* put, get: copy of a vector of one element; locate: pieces; register: the memory */
	struct iovec run;
	/* locate: number of pieces; retire: a positive errno; flush: retire failed drives? */
	uint64_t len_bytes;
	/* get: offset in the object; revive, retire: the drive's index; flush: a mask of drives */
	uint64_t offset_bytes;
	struct object *object;
	struct spw_notify notify;
	char error[512]; /* message of the failure */
	/* worker */
	int first_error;    /* the result; read by the caller once the request has ended */
	uint32_t in_flight; /* transfers */
	union {
		uint64_t cut_bytes; /* put: bytes cut into pieces so far */
		/* get: bit i: read the second replica of chunks i, i + 64, ... */
		uint64_t second_copies;
	};
	/* put: list of pieces whose write failed; if mirrored, the first pair with such a piece */
	uint32_t unplaced;
	enum spw_class linked_class;         /* get: class of the lists that contain drive_reads */
	uint64_t reads_left;                 /* get: pieces not yet issued */
	struct spw_request *next, *previous; /* put: in the list of writes */
	bool linked;                         /* in a list of writes or reads */
	bool ends_on_receipt;                /* ends as soon as its message is received */
	struct drive_read *drive_reads;      /* get: one per drive */
};

enum {
	ENDED_NOT,
	ENDED_WAITED_FOR,
	ENDED,
};

/* Take a request. @out: set; or NULL. Return: NULL: all in use, @object's reference is dropped. */
struct spw_request *spw_store__request_take(struct spw_store *store, enum request_kind kind,
					    struct object *object, const struct spw_notify *notify,
					    struct spw_request **out);
void spw_store__request_give(struct spw_request *request);
/* Make a request active, before its first transfer is issued. Return: false: it was cancelled. */
bool spw_store__request_begin(struct spw_request *request);
/* Record the first failure; the request ends when none of its transfers is in flight any more. */
void spw_store__request_fail(struct spw_request *request, int error, const char *format, ...)
	SPW_PRINTF(3, 4);
void spw_store__request_end(struct spw_request *request);

#endif
