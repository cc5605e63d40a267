/* SPDX-License-Identifier: MIT */
/* store/publish.c - publish the store's process and counters on its status page */
#include "store/publish.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "status/status.h"
#include "store/drive_health.h"
#include "store/open_store.h"
#include "store/stats.h"
#include "store/transfer.h"
#include "util/util.h"

#define REFRESH_INTERVAL_NS INT64_C(500000000)

static int map_page(struct spw_store *store)
{
	void *memory = mmap(NULL, sizeof(*store->page), PROT_READ | PROT_WRITE, MAP_SHARED,
			    store->page_fd, 0);

	if (memory == MAP_FAILED)
		return -errno;
	/* No child may inherit the mapping, which keeps the page's lock (PAGE-1). */
	if (madvise(memory, sizeof(*store->page), MADV_DONTFORK)) {
		int rc = -errno;

		(void)munmap(memory, sizeof(*store->page));
		return rc;
	}
	store->page = memory;
	return 0;
}

/* A store works without its page, so failures are only logged. */
int spw_store__publish_open(struct spw_store *store)
{
	struct spw_status *status;
	int rc;

	spw_status__sweep();
	rc = store->page_fd < 0 ? 0 : map_page(store);
	if (rc)
		spw_log(&store->opts.log, SPW_LOG_WARNING,
			"the store's state cannot be published: %s", spw_strerror(rc));
	if (!store->page)
		return 0;
	status = &store->page->status;
	status->size = sizeof(*status);
	memcpy(status->store_uuid, store->uuid, sizeof(status->store_uuid));
	status->partition = store->partition;
	status->pid = getpid();
	status->drives = store->drive_count;
	(void)spw_read_line("/proc/self/comm", status->command, sizeof(status->command));
	(void)snprintf(status->description, sizeof(status->description), "%s",
		       spw_store_description(store));
	store->page->version = SPW_PAGE_VERSION;
	store->page->size = sizeof(*store->page);
	store->page->opened_ns = spw_clock_ns();
	spw_store__publish(store, true);
	/* Set the magic number last: without it readers ignore the page. */
	store->page->magic = SPW_PAGE_MAGIC;
	return 0;
}

void spw_store__publish_close(struct spw_store *store)
{
	if (store->page)
		(void)munmap(store->page, sizeof(*store->page));
	store->page = NULL;
	spw_status__drop(store->uuid, store->partition, store->page_fd);
	store->page_fd = -1;
}

static void take_revives(struct spw_store *store)
{
	uint64_t wanted = atomic_exchange_explicit(&store->page->revive, 0, memory_order_relaxed);

	for (uint32_t i = 0; wanted && i < store->drive_count; i++)
		if (wanted >> i & 1 && store->drives[i].retired)
			spw_store__drive_revive(store, i);
}

int64_t spw_store__publish_timeout_ns(const struct spw_store *store)
{
	return store->page && store->published_ended != store->ended ? REFRESH_INTERVAL_NS : -1;
}

void spw_store__publish(struct spw_store *store, bool now)
{
	struct spw_status_page *page = store->page;
	uint64_t now_ns;

	if (!page || (!now && store->published_ended == store->ended))
		return;
	now_ns = spw_clock_ns();
	if (!now && now_ns < store->next_publish_ns)
		return;
	store->next_publish_ns = now_ns + (uint64_t)REFRESH_INTERVAL_NS;
	store->published_ended = store->ended;
	take_revives(store);
	for (uint32_t i = 0; i < store->drive_count; i++)
		spw_store__latency_refresh(&store->drives[i]);
	atomic_fetch_add_explicit(&page->sequence, 1, memory_order_relaxed);
	/* The sequence is odd while the page changes. TSan lacks atomic_thread_fence(). */
	__sync_synchronize();
	page->refreshed_ns = now_ns;
	spw_store_stats(store, &page->status.store, sizeof(page->status.store));
	for (uint32_t i = 0; i < store->drive_count; i++)
		(void)spw_store_drive_stats(store, i, &page->status.drive[i],
					    sizeof(page->status.drive[i]));
	spw_store__published_steps(store, &page->status.steps);
	atomic_fetch_add_explicit(&page->sequence, 1, memory_order_release);
}

/* May be called from any thread, because it only reads the pages of other processes. */
void spw_store_ranks(struct spw_store *store, uint64_t age_max_ns,
		     void (*see)(void *context, const struct spw_cache_stats *steps), void *context)
{
	uint32_t partitions = store->assembly.superblocks[0].partition_count;
	struct spw_status *status = partitions > 1 ? malloc(sizeof(*status)) : NULL;

	for (uint32_t i = 0; status && i < partitions; i++)
		if (i != store->partition &&
		    spw_status_read(store->uuid, i, status, sizeof(*status)) == 0 &&
		    status->age_ns <= age_max_ns)
			see(context, &status->steps);
	free(status);
}
