/* SPDX-License-Identifier: MIT */
/* state/call.c - the checks that each public function begins with */
#include <errno.h>
#include <unistd.h>

#include "state/internal.h"

int spw_state__enter(struct spw_state *state)
{
	if (state->process != getpid())
		return spw_error(-EPERM,
				 "this state belongs to process %d: a child of fork(2) has none of "
				 "its memory; open the child's own",
				 (int)state->process);
	state->calls++;
	return 0;
}

int spw_state__enter_attached(struct spw_state *state)
{
	int rc = spw_state__enter(state);

	if (rc == 0 && !state->attached)
		rc = spw_error(-EINVAL, "the state is not attached: call spw_state_attach() when "
					"all records are declared");
	return rc;
}

int spw_state__enter_record(struct spw_state *state, uint32_t number)
{
	int rc = spw_state__enter_attached(state);

	if (rc == 0 && number >= state->count.records)
		rc = spw_error(-EINVAL, "record %u: there are %u", number, state->count.records);
	if (rc == 0 && state->records[number].callers)
		rc = spw_error(-EINVAL, "record %s is an object of the caller's, who has its bytes",
			       state->records[number].name);
	return rc;
}
