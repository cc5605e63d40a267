/* SPDX-License-Identifier: MIT */
/*
 * state/ports.h - the store functions that a state calls, as a table that tests can replace
 *
 * A test that opens a state with its own table may pass any handle as the store. Each function has
 * the contract of the function of spillway/store.h that is named beside it.
 */
#ifndef SPW_STATE_PORTS_H
#define SPW_STATE_PORTS_H

#include <spillway/state.h>
#include <spillway/store.h>

struct spw_state_ports {
	uint64_t (*chunk_bytes)(const struct spw_store *store); /* spw_store_chunk_bytes() */
	/* spw_store_stats() */
	void (*stats)(struct spw_store *store, struct spw_store_stats *stats, size_t size);
	int (*drive_stats)(struct spw_store *store, unsigned drive, struct spw_drive_stats *stats,
			   size_t size); /* spw_store_drive_stats() */
	int (*alloc)(struct spw_store *store, size_t len, void **memory); /* spw_store_alloc() */
	void (*release)(struct spw_store *store, void *memory);           /* spw_store_release() */
	int (*put)(struct spw_store *store, const void *bytes, size_t len, unsigned copies,
		   const struct spw_notify *notify, spw_object *object,
		   struct spw_request **request); /* spw_store_put_copies() */
	int (*get)(struct spw_store *store, spw_object object, uint64_t offset, void *bytes,
		   size_t len, enum spw_class cls, const struct spw_notify *notify,
		   struct spw_request **request);                       /* spw_store_get() */
	int (*free)(struct spw_store *store, spw_object object);        /* spw_store_free() */
	int (*test)(struct spw_request *request);                       /* spw_request_test() */
	void (*raise)(struct spw_request *request, enum spw_class cls); /* spw_request_raise() */
	int (*wait_any)(struct spw_request *const requests[], unsigned count,
			int64_t timeout_ns); /* spw_request_wait_any() */
	int (*commit)(struct spw_store *store, const spw_object objects[], uint32_t count,
		      uint64_t number, const void *record, size_t len,
		      unsigned flags);                  /* spw_store_commit() */
	int (*commit_release)(struct spw_store *store); /* spw_store_commit_release() */
	int (*committed)(struct spw_store *store, struct spw_commit_info *info,
			 size_t size); /* spw_store_committed() */
	int (*committed_record)(struct spw_store *store, void *record,
				size_t len); /* spw_store_committed_record() */
	int (*committed_objects)(struct spw_store *store, spw_object objects[], uint64_t lens[],
				 uint32_t count); /* spw_store_committed_objects() */
};

/* The table of the real store's functions. */
extern const struct spw_state_ports spw_state__ports_real;

/* spw_state_open() on another table, which must live as long as the state. */
int spw_state__open_with(struct spw_store *store, const struct spw_state_opts *opts,
			 const struct spw_state_ports *ports, struct spw_state **state);

/* spw_state_committed() on another table. */
int spw_state__committed_with(struct spw_store *store, const struct spw_state_ports *ports,
			      int (*each)(void *context, const char *name, uint64_t len,
					  const void *shape, size_t shape_len, spw_object object),
			      void *context);

#endif
