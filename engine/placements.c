/* SPDX-License-Identifier: MIT */
/* engine/placements.c - data placement (FDP, write streams): identifiers for a device's writes */
#include <string.h>

#include "engine/backend.h"
#include "util/util.h"

void spw_engine__queue_place(struct spw_queue *q, unsigned index, const uint16_t ids[],
			     unsigned count)
{
	struct spw_queue_device *dev = &q->devices[index];

	if (q->placement == 0)
		return;
	if (count == 0) {
		spw_log(&q->log, SPW_LOG_INFO,
			"%s: writes to %s name no placement (FDP, write streams): there is none",
			q->ops->name, dev->device->path);
		return;
	}
	for (uint32_t i = 0; i <= SPW_PLACEMENT_MAX; i++)
		dev->placements[i] = SPW_PLACED | ids[((i ? i : q->placement) - 1) % count];
	q->stats.drives_placing++;
	spw_log(&q->log, SPW_LOG_INFO, "%s: %s has %u placement%s%s", q->ops->name,
		dev->device->path, count, count == 1 ? "" : "s",
		count == 1 ? "; nothing is kept apart" : "");
}

void spw_engine__queue_unplace(struct spw_queue *q)
{
	for (unsigned i = 0; i < q->device_count; i++)
		memset(q->devices[i].placements, 0, sizeof(q->devices[i].placements));
	q->stats.drives_placing = 0;
}
