/* SPDX-License-Identifier: MIT */
/*
 * examples/memory.c - memory that drives write from and read into without a copy
 *
 *   cc memory.c -o memory $(pkg-config --cflags --libs spillway)
 *   ./memory DRIVE...
 *
 * The store has memory of its own for that. Memory that is somebody else's (a framework's pool, a
 * pinned buffer) can be registered: its pages are then locked once and not for each transfer.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <spillway/spillway.h>

#define LEN ((size_t)8 << 20)

static int there_and_back(struct spw_store *store, char *memory)
{
	struct spw_request *request;
	spw_object object = {0};
	int rc;

	memset(memory, 'x', LEN);
	rc = spw_store_put(store, memory, LEN, NULL, &object, &request);
	if (rc == 0)
		rc = spw_request_wait(request);
	if (rc == 0)
		rc = spw_store_get(store, object, 0, memory, LEN, SPW_URGENT_READ, NULL, &request);
	if (rc == 0)
		rc = spw_request_wait(request);
	if (object.value)
		(void)spw_store_free(store, object);
	return rc;
}

/* Of the store: aligned, registered, on the drives' NUMA node; -ENOBUFS when it is used up. */
static int use_the_stores(struct spw_store *store)
{
	void *memory;
	int rc = spw_store_alloc(store, LEN, &memory);

	if (rc)
		return rc;
	rc = there_and_back(store, memory);
	spw_store_release(store, memory);
	return rc;
}

static int use_ones_own(struct spw_store *store)
{
	char *pool = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct spw_store_stats stats;
	int rc;

	if (pool == MAP_FAILED) {
		perror("mmap");
		return -1;
	}
	/* 0 also where the system refuses, as for want of locked memory: all works the same. */
	rc = spw_store_register(store, pool, LEN);
	if (rc == 0)
		rc = there_and_back(store, pool);
	spw_store_stats(store, &stats, sizeof(stats));
	if (rc == 0)
		printf("%llu bytes registered, used by %llu transfers; refused: %llu; copied: "
		       "%llu\n",
		       (unsigned long long)stats.registered_bytes,
		       (unsigned long long)stats.transfers_registered,
		       (unsigned long long)stats.registrations_refused,
		       (unsigned long long)stats.bytes_copied);
	/* Before it is unmapped; -EBUSY would say that a request with it has not ended. */
	if (spw_store_unregister(store, pool) == 0)
		(void)munmap(pool, LEN);
	else if (rc == 0)
		rc = -1;
	return rc;
}

static void log_line(void *context, enum spw_log_level level, const char *message)
{
	(void)context;
	if (level != SPW_LOG_INFO)
		fprintf(stderr, "spillway: %s\n", message);
}

int main(int argc, char *argv[])
{
	struct spw_store_opts opts;
	struct spw_store *store;
	int rc;

	if (argc < 2) {
		fprintf(stderr, "usage: %s DRIVE... (formatted by spillway format)\n", argv[0]);
		return 2;
	}
	spw_store_opts_init(&opts, sizeof(opts));
	opts.log.write = log_line; /* hears of every fallback */
	if (spw_store_open((const char *const *)&argv[1], (unsigned)argc - 1, &opts, &store)) {
		fprintf(stderr, "%s\n", spw_last_error());
		return 1;
	}
	rc = use_the_stores(store);
	if (rc == 0)
		rc = use_ones_own(store);
	if (rc)
		fprintf(stderr, "%s\n", spw_last_error());
	spw_store_close(store);
	return rc ? 1 : 0;
}
