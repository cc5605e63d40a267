/* SPDX-License-Identifier: MIT */
/*
 * state/update.c - spw_state_update(): a pass in which a device updates some of the records, and
 * the times that host and device need
 */
#include <errno.h>

#include "state/internal.h"

int spw_state_update(struct spw_state *state, const uint32_t order[], uint32_t count, bool device[])
{
	int rc = spw_state_pass(state, order, count);

	if (rc)
		return rc;
	spw_state__share_begin(&state->share, order, count, device, state->count.wait_ns);
	for (uint32_t i = 0; i < count; i++)
		state->records[order[i]].update = device[i] ? UPDATE_DEVICE : UPDATE_HOST;
	return 0;
}

int spw_state_device_took(struct spw_state *state, uint32_t number, uint64_t ns)
{
	const struct record *record;
	int rc = spw_state__enter_record(state, number);

	if (rc)
		return rc;
	record = &state->records[number];
	if (record->state != RECORD_TAKEN || record->update != UPDATE_DEVICE)
		return spw_error(-EINVAL, "record %s is not on the device", record->name);
	state->share.device.bytes += record->len_bytes;
	state->share.device.ns += ns;
	state->count.device_records++;
	state->count.device_bytes += record->len_bytes;
	state->count.device_ns += ns;
	return 0;
}

void spw_state__update_taken(struct record *record)
{
	if (record->update == UPDATE_HOST)
		record->taken_ns = spw_clock_ns();
}

static void host_did(struct spw_state *state, const struct record *record)
{
	uint64_t ns = spw_clock_ns() - record->taken_ns;

	state->share.host.bytes += record->len_bytes;
	state->share.host.ns += ns;
	state->count.host_bytes += record->len_bytes;
	state->count.host_ns += ns;
}

/* Decide how the next updates are shared. Log the decision if it has changed. */
static void end(struct spw_state *state)
{
	static const char *const reasons[] = {
		[SHARE_OFF_SLOW] = "it takes longer than the host takes for all others",
		[SHARE_OFF_DRIVES] = "drives are waited for, so that it saves nothing",
	};
	uint32_t before = state->share.stride;
	enum share_off off = spw_state__share_end(&state->share, state->count.wait_ns);

	state->count.updates++;
	if (off != SHARE_ON)
		spw_log(&state->opts.log, SPW_LOG_INFO, "the device updates no records: %s",
			reasons[off]);
	else if (state->share.stride != before)
		spw_log(&state->opts.log, SPW_LOG_INFO, "the device updates one of %u records",
			state->share.stride);
}

void spw_state__update_given(struct spw_state *state, struct record *record)
{
	if (record->update == UPDATE_NONE)
		return;
	if (record->update == UPDATE_HOST)
		host_did(state, record);
	record->update = UPDATE_NONE;
	if (spw_state__share_given(&state->share))
		end(state);
}
