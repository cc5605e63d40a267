/* SPDX-License-Identifier: MIT */
/* store/replicas.c - pairs of pieces of a mirrored object */
#include "store/replicas.h"

#include "store/object.h"
#include "store/open_store.h"
#include "store/request.h"

void spw_store__replicas_look(struct spw_request *request)
{
	const struct spw_store *store = request->store;
	uint32_t run = request->object->piece_first;

	while (run != PIECE_NONE && !spw_store__piece_is_wanting(&store->pieces[run]) &&
	       !spw_store__piece_is_wanting(&store->pieces[store->pieces[run].next]))
		run = spw_store__run_next(store, request->object, run);
	request->unplaced = run;
}

void spw_store__replicas_settle(struct spw_request *request)
{
	struct spw_store *store = request->store;

	for (uint32_t run = request->object->piece_first; run != PIECE_NONE;
	     run = spw_store__run_next(store, request->object, run)) {
		struct piece *first = &store->pieces[run], *second = &store->pieces[first->next];

		if (spw_store__piece_is_placed(first) || !spw_store__piece_is_placed(second))
			continue;
		first->drive = second->drive;
		first->handle = second->handle;
		first->checksum = second->checksum;
		second->drive = DRIVE_NONE;
		second->handle = HANDLE_HOLE;
	}
}
