/* SPDX-License-Identifier: MIT */
/* store/inbox.h - messages from any thread to the worker */
#ifndef SPW_STORE_INBOX_H
#define SPW_STORE_INBOX_H

#include <stdbool.h>

#include <spillway/store.h>

enum asleep {
	AWAKE,
	ASLEEP,
	/* puts wait for a completion: a further put need not wake the worker */
	ASLEEP_WRITES_WAIT,
};

/* A message to the worker, embedded in its subject, so that pushing never fails or allocates. */
struct message {
	struct message *next;
	enum message_kind {
		MESSAGE_SUBMIT,  /* a request */
		MESSAGE_CHANGED, /* a request that was cancelled or raised */
		MESSAGE_FREE,    /* an object */
		MESSAGE_MOVED,   /* a transfer whose job a helper has run */
	} kind;
};

/*
 * State of a request's message (STORE-10). A caller changes the request, then posts the message;
 * the worker marks it as received, then reads the request. So no change is missed.
 */
enum inbox_state {
	INBOX_POSTED,   /* the request cannot end before the worker has received it */
	INBOX_RECEIVED, /* may be posted again */
	INBOX_CLOSED,   /* the request has ended */
};

/* Does this process own the store? Return: 0; -EPERM in a child of fork(2). */
int spw_store__owned(const struct spw_store *store);
void spw_store__push(struct spw_store *store, struct message *message);
/* Push, but do not wake the worker while other puts wait for a completion. */
void spw_store__push_put(struct spw_store *store, struct message *message);
void spw_store__wake(struct spw_store *store);

#endif
