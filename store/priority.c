/* SPDX-License-Identifier: MIT */
/* store/priority.c - choose what a drive serves next, without starving low priorities */
#include "store/priority.h"

#include "store/open_store.h"

static bool priority_waits(const struct spw_store *store, const struct store_drive *drive,
			   int priority)
{
	if (priority == PRIORITY_WRITE)
		return store->writes_first &&
		       !atomic_load_explicit(&drive->retired, memory_order_relaxed);
	return drive->waiting[priority].first != NULL;
}

int spw_store__priority_choose(const struct spw_store *store, const struct store_drive *drive,
			       int lowest)
{
	int chosen = PRIORITIES;

	for (int priority = 0; priority <= lowest; priority++) {
		if (!priority_waits(store, drive, priority))
			continue;
		if (chosen == PRIORITIES || drive->bypassed[priority] >= BYPASSES_MAX)
			chosen = priority;
	}
	return chosen;
}

void spw_store__priority_served(struct spw_store *store, struct store_drive *drive, int served)
{
	drive->bypassed[served] = 0;
	for (int priority = served + 1; priority < PRIORITIES; priority++)
		if (priority_waits(store, drive, priority)) {
			drive->bypassed[priority]++;
			count_add(&store->count.bypasses, 1);
		}
}
