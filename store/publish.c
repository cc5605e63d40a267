/* SPDX-License-Identifier: MIT */
/* store/publish.c - this process's page: who has the partition open, and its counters, for everyone who may look */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/internal.h"
#include "store/status.h"

#define REFRESH_INTERVAL_NS INT64_C(500000000)

static void publish_name(const struct spw_store *store, char name[SPW_PAGE_NAME_BYTES])
{
	char uuid[SPW_UUID_TEXT_BYTES];

	spw_layout_uuid_text(store->assembly.superblocks[0].store_uuid, uuid);
	spw_page_name(uuid, store->partition, name);
}

/*
 * All of its memory, now or not at all: writing to a page for which /dev/shm has no room left would end the process
 * by SIGBUS. In containers /dev/shm is small, and full of what data loaders share.
 */
static int reserve(int fd, off_t len)
{
	if (ftruncate(fd, len))
		return -errno;
	while (fallocate(fd, 0, 0, len)) {
		if (errno == EOPNOTSUPP) /* a file system that has no limit */
			return 0;
		if (errno != EINTR)
			return -errno;
	}
	return 0;
}

static int make_page(struct spw_store *store, const char *name)
{
	void *memory;
	int fd, rc;

	/*
	 * A killed process may have left one. Nobody else's: this process holds the partition's lock. Another user's
	 * stays.
	 */
	if (shm_unlink(name) && errno != ENOENT)
		return -errno;
	fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
	if (fd < 0)
		return -errno;
	rc = reserve(fd, sizeof(*store->page));
	memory = rc ? MAP_FAILED : mmap(NULL, sizeof(*store->page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (rc == 0 && memory == MAP_FAILED)
		rc = -errno;
	(void)close(fd);
	if (rc)
		(void)shm_unlink(name);
	else
		store->page = memory;
	return rc;
}

/* A store works without its page: what goes wrong here is only logged. */
int spw_publish_open(struct spw_store *store)
{
	char name[SPW_PAGE_NAME_BYTES];
	struct spw_status *status;
	FILE *comm;
	int rc;

	spw_status_sweep();
	publish_name(store, name);
	rc = make_page(store, name);
	if (rc) {
		spw_log(&store->opts.log, SPW_LOG_WARNING, "cannot publish the store's state in /dev/shm%s: %s", name,
			spw_strerror(rc));
		return 0;
	}
	status = &store->page->status;
	status->size = sizeof(*status);
	spw_layout_uuid_text(store->assembly.superblocks[0].store_uuid, status->store_uuid);
	status->partition = store->partition;
	status->pid = getpid();
	status->drives = store->drive_count;
	comm = fopen("/proc/self/comm", "re");
	if (comm && fgets(status->command, sizeof(status->command), comm))
		status->command[strcspn(status->command, "\n")] = '\0';
	if (comm)
		(void)fclose(comm);
	(void)snprintf(status->description, sizeof(status->description), "%s", spw_store_description(store));
	store->page->owner_start = spw_process_start(status->pid);
	store->page->version = SPW_PAGE_VERSION;
	store->page->size = sizeof(*store->page);
	spw_publish(store, true);
	/* Last: a reader that came before saw no page. */
	store->page->magic = SPW_PAGE_MAGIC;
	return 0;
}

void spw_publish_close(struct spw_store *store)
{
	char name[SPW_PAGE_NAME_BYTES];

	if (!store->page)
		return;
	publish_name(store, name);
	(void)shm_unlink(name);
	(void)munmap(store->page, sizeof(*store->page));
	store->page = NULL;
}

static void take_revives(struct spw_store *store)
{
	uint64_t wanted = atomic_exchange_explicit(&store->page->revive, 0, memory_order_relaxed);

	for (uint32_t i = 0; wanted && i < store->drive_count; i++)
		if (wanted >> i & 1 && store->drives[i].retired)
			spw_drive_revive(store, i);
}

/* How long the page may stay as it is: for ever while nothing changes. */
int64_t spw_publish_timeout_ns(const struct spw_store *store)
{
	return store->page && store->published_ended != store->ended ? REFRESH_INTERVAL_NS : -1;
}

/* Refresh the page if it is time, or @now. Worker only. */
void spw_publish(struct spw_store *store, bool now)
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
		spw_latency_refresh(&store->drives[i]);
	atomic_fetch_add_explicit(&page->sequence, 1, memory_order_relaxed);
	/*
	 * The sequence is odd before anything changes, and even only after everything has. A full barrier: TSan knows
	 * no fences.
	 */
	__sync_synchronize();
	page->refreshed_ns = now_ns;
	spw_store_stats(store, &page->status.store, sizeof(page->status.store));
	for (uint32_t i = 0; i < store->drive_count; i++)
		(void)spw_store_drive_stats(store, i, &page->status.drive[i], sizeof(page->status.drive[i]));
	atomic_fetch_add_explicit(&page->sequence, 1, memory_order_release);
}
