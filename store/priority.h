/* SPDX-License-Identifier: MIT */
/* store/priority.h - choose what a drive serves next, without starving low priorities */
#ifndef SPW_STORE_PRIORITY_H
#define SPW_STORE_PRIORITY_H

#include <spillway/store.h>

struct spw_store;
struct store_drive;

#define BYPASSES_MAX 8 /* how often a waiting priority may be overtaken on one drive */

/* A drive serves reads by the class of their request, and writes last. */
enum priority {
	PRIORITY_URGENT = SPW_URGENT_READ,
	PRIORITY_PREFETCH = SPW_PREFETCH,
	PRIORITY_BACKGROUND = SPW_BACKGROUND,
	PRIORITY_WRITE = SPW_CLASSES,
	PRIORITIES,
};

/*
 * Choose the highest waiting priority, unless a lower one was overtaken BYPASSES_MAX times.
 * @lowest: the lowest priority that can be served now. Return: PRIORITIES: nothing waits.
 */
int spw_store__priority_choose(const struct spw_store *store, const struct store_drive *drive,
			       int lowest);
void spw_store__priority_served(struct spw_store *store, struct store_drive *drive, int priority);

#endif
