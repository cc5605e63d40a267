/* SPDX-License-Identifier: MIT */
/* tools/ui/snapshot.c - read the status of this machine's open stores at one moment */
#include "tools/ui/tool.h"

#include "util/util.h"

int tool_snapshot_take(struct tool_snapshot *snapshot)
{
	struct spw_status_name names[TOOL_PARTITIONS_MAX];
	int found = spw_status_list(names, TOOL_PARTITIONS_MAX);

	snapshot->count = 0;
	snapshot->time_ns = spw_clock_ns();
	if (found > TOOL_PARTITIONS_MAX)
		(void)fprintf(stderr, "spillway: %d partitions are open, the first %d are shown\n",
			      found, TOOL_PARTITIONS_MAX);
	for (int i = 0; i < found && i < TOOL_PARTITIONS_MAX; i++) {
		struct spw_status *status = &snapshot->partitions[snapshot->count];

		/* The store may have been closed since it was listed. */
		if (spw_status_read(names[i].store_uuid, names[i].partition, status,
				    sizeof(*status)) == 0)
			snapshot->count++;
	}
	return found < 0 ? found : 0;
}
