/* SPDX-License-Identifier: MIT */
/* tests/unit/test_cache_trace.c - the tensor cache writes every call to a trace, in order */
/* link: simstore libspillway */
#include <unistd.h>

#include <spillway/trace.h>

#include "tests/unit/cache_rig.h"

static void one_step(void)
{
	struct piece pieces[3];
	struct spw_taken taken;
	spw_tensor again;
	uint64_t lease;

	spw_cache_step(rig.cache);
	spw_cache_stage_next(rig.cache, 3, SPW_STAGE_FORWARD, 4, SPW_STAGE_BACKWARD);
	spw_cache_scope_enter(rig.cache, 70);
	pieces[0] = stored(1, 4096);
	pieces[1] = piece_make(2, 4096);
	assert_int_equal(spw_cache_offer_hint(rig.cache,
					      &(struct spw_offer){.storage_key = 2,
								  .storage_version = 9,
								  .storage_bytes = pieces[1].bytes,
								  .storage_len_bytes = 4096,
								  .offset_bytes = 100,
								  .len_bytes = 200,
								  .owner = 2},
					      SPW_HINT_PIN, &pieces[1].tensor),
			 SPW_OFFER_KEEP);
	assert_int_equal(offer_range(&pieces[1], 9, 100, 200, 7, &again), SPW_OFFER_DEDUP);
	spw_cache_scope_leave(rig.cache);
	spw_cache_stage(rig.cache, 3, SPW_STAGE_BACKWARD);
	fake_end_all(rig.store);
	lease = taken_from_lease(&pieces[0]);
	released(&pieces[0]);
	returned(lease);
	assert_int_equal(spw_cache_take(rig.cache, again, 110, 20, &taken), 0);
	tensor_released(again);
	assert_int_equal(spw_cache_release(rig.cache, again), 0);
	/* What failed is not recorded. */
	assert_int_equal(spw_cache_take(rig.cache, again, 110, 20, &taken), -ENOENT);
	assert_int_equal(spw_cache_release(rig.cache, again), -ENOENT);
	assert_int_equal(spw_cache_drain(rig.cache, (uint64_t[1]){0}, 1), 1);
}

CASE(test_every_call_is_told)
{
	static const enum spw_trace_kind kinds[] = {
		SPW_TRACE_STEP,    SPW_TRACE_STAGE,   SPW_TRACE_SCOPE_ENTER, SPW_TRACE_OFFER,
		SPW_TRACE_OFFER,   SPW_TRACE_OFFER,   SPW_TRACE_SCOPE_LEAVE, SPW_TRACE_STAGE,
		SPW_TRACE_TAKE,    SPW_TRACE_RELEASE, SPW_TRACE_RETURN,      SPW_TRACE_TAKE,
		SPW_TRACE_RELEASE, SPW_TRACE_RELEASE,
	};
	const char *folder = getenv("TMPDIR");
	const struct spw_trace_event *events;
	struct spw_trace *trace;
	char path[4096];

	(void)snprintf(path, sizeof(path), "%s/cache-trace-%d.jsonl", folder ? folder : "/tmp",
		       (int)getpid());
	rig_begin();
	assert_int_equal(spw_trace_create(path, NULL, &rig.opts.trace), 0);
	rig_open();
	one_step();
	rig_end();
	assert_int_equal(spw_trace_finish(rig.opts.trace), 0);
	assert_int_equal(spw_trace_read(path, &trace), 0);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(trace->count, SPW_ARRAY_LEN(kinds));
	events = trace->events;
	for (unsigned i = 0; i < SPW_ARRAY_LEN(kinds); i++)
		assert_int_equal(events[i].kind, kinds[i]);
	assert_int_equal(events[1].micro_batch, 3);
	assert_true(!events[1].backward && events[1].has_next && events[1].next_backward);
	assert_int_equal(events[1].next_micro_batch, 4);
	assert_true(events[7].backward && !events[7].has_next);
	assert_int_equal(events[3].result, SPW_TRACE_RESULT_SPILL);
	assert_int_equal(events[4].result, SPW_TRACE_RESULT_KEEP);
	assert_int_equal(events[4].hint, SPW_TRACE_HINT_PIN);
	assert_int_equal(events[4].storage_version, 9);
	assert_int_equal(events[4].offset_bytes, 100);
	assert_int_equal(events[4].len_bytes, 200);
	assert_int_equal(events[4].storage_len_bytes, 4096);
	assert_int_equal(events[5].result, SPW_TRACE_RESULT_DEDUP);
	assert_int_equal(events[5].tensor, events[4].tensor);
	assert_int_equal(events[8].tensor, events[3].tensor);
	assert_int_equal(events[8].len_bytes, 4096);
	assert_int_equal(events[10].tensor, events[3].tensor);
	assert_int_equal(events[11].offset_bytes, 110);
	spw_trace_free(trace);
}

RUN_CASES(NULL, NULL)
