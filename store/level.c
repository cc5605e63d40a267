/* SPDX-License-Identifier: MIT */
/* store/level.c - what a drive serves next: the most urgent, and in the end each */
#include "store/internal.h"

static bool level_waits(const struct spw_store *store, const struct store_drive *drive, int level)
{
	if (level == LEVEL_WRITE)
		return store->writes_first &&
		       !atomic_load_explicit(&drive->retired, memory_order_relaxed);
	return drive->waiting[level].first != NULL;
}

/* The most urgent that waits, unless one below was overtaken BYPASSES_MAX times; LEVELS: none. */
int spw_store__level_choose(const struct spw_store *store, const struct store_drive *drive,
			    int lowest)
{
	int chosen = LEVELS;

	for (int level = 0; level <= lowest; level++) {
		if (!level_waits(store, drive, level))
			continue;
		if (chosen == LEVELS || drive->bypassed[level] >= BYPASSES_MAX)
			chosen = level;
	}
	return chosen;
}

void spw_store__level_served(struct spw_store *store, struct store_drive *drive, int served)
{
	drive->bypassed[served] = 0;
	for (int level = served + 1; level < LEVELS; level++)
		if (level_waits(store, drive, level)) {
			drive->bypassed[level]++;
			count_add(&store->count.bypasses, 1);
		}
}
