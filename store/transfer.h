/* SPDX-License-Identifier: MIT */
/* store/transfer.h - struct transfer: transfer a piece to or from a drive; bounce buffers */
#ifndef SPW_STORE_TRANSFER_H
#define SPW_STORE_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include <spillway/engine.h>

#include "alloc/alloc.h"
#include "store/checksum_job.h"
#include "store/inbox.h"

struct piece;
struct spw_request;
struct spw_store;
struct store_drive;

#define RUNS_MAX 16 /* most elements of a transfer's vector; a piece that needs more is copied */

/* The transfer of a piece to or from its drive. */
struct transfer {
	struct message message;
	struct spw_io io;
	struct checksum_job job;
	/* without bounce buffer: the caller's memory and the tail block */
	struct iovec vector[RUNS_MAX + 1];
	uint32_t elements;
	struct spw_store *store;
	struct spw_request *request;
	struct transfer *next; /* in a list: free, retries, or writes with checksum_pending */
	uint8_t *bounce;       /* chunk_bytes, or NULL */
	/* block of its own, for the last, partly filled block of an object */
	uint8_t *tail;
	uint32_t piece;
	bool retried;
	bool in_flight;
	bool posted; /* to the checksum pool (POOL-1) */
	/* writes only, see store/checksums.c */
	bool checksum_pending;     /* in its drive's list of such writes */
	uint64_t turn;             /* its number among the writes issued to its drive */
	struct transfer *previous; /* previous in that list */
	bool timed_out;
	bool switched; /* reads the other replica, because the first was bad */
	bool copied;   /* in a list of retries: it needs a bounce buffer again (STORE-4) */
	/* a write that timed out, whose chunk was passed to another transfer */
	bool abandoned;
	struct spw_extent orphan; /* the blocks that an abandoned write may still change */
	uint64_t issued_ns;
	uint64_t watched_from_ns; /* value of the store's watched_ns at issue */
};

struct transfer *spw_store__transfer_take(struct spw_store *store);
/*
 * Use the request's memory for the piece, without copying. Return: false: the drive cannot do that,
 * because of an address, a length in the middle, or too many elements.
 */
bool spw_store__transfer_lay(struct transfer *transfer, const struct piece *piece);
void spw_store__transfer_give(struct transfer *transfer);
void spw_store__transfer_issue(struct transfer *transfer, enum spw_op op,
			       void (*done)(struct spw_io *io));
void spw_store__transfer_ended(struct transfer *transfer);
void spw_store__latency_refresh(struct store_drive *drive);
/* May another transfer of the drive have a bounce buffer (STORE-4)? */
bool spw_store__bounce_allowed(const struct spw_store *store, uint32_t drive);
/* Take a bounce buffer. Return: false: all are in use; a completion will free one (STORE-4). */
bool spw_store__bounce_take(struct spw_store *store, struct transfer *transfer);
void spw_store__bounce_give(struct transfer *transfer);

#endif
