/* SPDX-License-Identifier: MIT */
/* store/request.h - requests, from their submission until they end */
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
	REQUEST_QUEUED,    /* nothing issued: may be cancelled */
	REQUEST_ACTIVE,    /* something issued */
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
 * Lifetimes of data, which drives with placement (FDP, streams) keep apart. Writes that name none,
 * as those of superblocks, go to the drive's default, which is that of PLACEMENT_LASTING, too.
 */
enum placement {
	PLACEMENT_OF_QUEUE,
	PLACEMENT_LASTING, /* training state, commits */
	PLACEMENT_STEP,    /* activations: freed within the step */
};

/* A get's pieces on one drive, waiting in that drive's list. */
struct drive_read {
	struct spw_request *request;
	struct drive_read *next, *previous;
	uint32_t piece; /* the next to issue */
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
	/* put, get: the caller's memory; NULL for others */
	const struct iovec *vector;
	/* put, get: the vector, if it has one element; locate: pieces; register: the memory */
	struct iovec run;
	/* locate: pieces; retire: a positive errno; flush: whether drives that fail are retired */
	uint64_t len_bytes;
	/* in the object; revive, retire: the drive's index; flush: a mask of drives */
	uint64_t offset_bytes;
	struct object *object;
	struct spw_notify notify;
	char error[512]; /* the text of the failure */
	/* worker */
	int first_error;    /* the result; the caller's once the request has ended */
	uint32_t in_flight; /* transfers */
	union {
		uint64_t cut_bytes; /* put: cut into pieces so far */
		/* get: bit i: read the second replica of chunks i, i + 64, ... */
		uint64_t second_copies;
	};
	/* put: list of pieces whose write failed; if mirrored, the first of such a pair */
	uint32_t unplaced;
	enum spw_class linked_class;         /* get: of the lists with its drive_reads */
	uint64_t reads_left;                 /* get: pieces not yet issued */
	struct spw_request *next, *previous; /* put: list of writes */
	bool linked;                         /* in a list of writes or reads */
	bool ends_on_receipt;                /* ends as soon as its message is received */
	struct drive_read *drive_reads;      /* get: one per drive */
};

enum {
	ENDED_NOT,
	ENDED_WAITED_FOR,
	ENDED,
};

/* @out: set to it, if given. Return: NULL: all are in use; @object's reference is dropped. */
struct spw_request *spw_store__request_take(struct spw_store *store, enum request_kind kind,
					    struct object *object, const struct spw_notify *notify,
					    struct spw_request **out);
void spw_store__request_give(struct spw_request *request);
/* A transfer of it is about to be issued. False: the request was cancelled before. */
bool spw_store__request_begin(struct spw_request *request);
/* Keep the first failure; the request ends when nothing of it is in flight any more. */
void spw_store__request_fail(struct spw_request *request, int error, const char *format, ...)
	SPW_PRINTF(3, 4);
void spw_store__request_end(struct spw_request *request);

#endif
