/* SPDX-License-Identifier: MIT */
/* state/clear.c - spw_state_clear(): drop a record's bytes, which are then all zero */
#include <errno.h>

#include "state/internal.h"

int spw_state_clear(struct spw_state *state, uint32_t number)
{
	struct record *record;
	int rc = spw_state__enter_record(state, number);

	if (rc)
		return rc;
	record = &state->records[number];
	if (record->state == RECORD_TAKEN)
		return spw_error(-EBUSY, "record %s is taken: give it back before it is cleared",
				 record->name);
	while (record->state == RECORD_LOADING || record->state == RECORD_STORING) { /* STATE-2 */
		rc = spw_state__transfer_wait(state);
		if (rc)
			return rc;
	}
	SPW_ASSERT(record->state != RECORD_TAKEN && record->state != RECORD_LOADING &&
		   record->state != RECORD_STORING);
	if (record->buffer != NONE)
		spw_state__record_put_buffer(state, number);
	spw_state__transfer_free_object(state, record->object);
	record->object = (spw_object){0};
	record->read_failed = record->write_failed = 0;
	return 0;
}
