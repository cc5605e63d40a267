/* SPDX-License-Identifier: MIT */
/*
 * examples/vectors.c - one object from several pieces of memory, and back into others
 *
 *   cc vectors.c -o vectors $(pkg-config --cflags --libs spillway)
 *   ./vectors DRIVE...
 *
 * Pieces at multiples of 4096, of multiples of 4096 bytes, are not copied: the counters say so.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spillway/spillway.h>

#define WEIGHTS ((size_t)3 << 20)
#define BIAS    ((size_t)8192)
#define NAME    ((size_t)100)

/* The vector and what it describes stay as they are until the request has ended. */
static int put_layer(struct spw_store *store, struct iovec layer[3], spw_object *object)
{
	struct spw_request *request;
	int rc = spw_store_putv(store, layer, 3, NULL, object, &request);

	return rc ? rc : spw_request_wait(request);
}

/* One request for all elements: it ends well when all are filled and verified. */
static int get_layer(struct spw_store *store, spw_object object, struct iovec layer[3])
{
	struct spw_request *request;
	int rc = spw_store_getv(store, object, 0, layer, 3, SPW_URGENT_READ, NULL, &request);

	return rc ? rc : spw_request_wait(request);
}

static int make_layer(struct iovec layer[3])
{
	const size_t lens[3] = {WEIGHTS, BIAS, NAME};

	for (unsigned i = 0; i < 3; i++) {
		layer[i].iov_len = lens[i];
		/* As for malloc(), but at a multiple of 4096. */
		layer[i].iov_base = aligned_alloc(4096, (lens[i] + 4095) / 4096 * 4096);
		if (!layer[i].iov_base)
			return -1;
	}
	return 0;
}

static void free_layer(struct iovec layer[3])
{
	for (unsigned i = 0; i < 3; i++)
		free(layer[i].iov_base);
}

static int use(struct spw_store *store)
{
	struct iovec from[3] = {{0}}, to[3] = {{0}};
	struct spw_store_stats stats;
	spw_object object = {0};
	int rc = -1;

	if (make_layer(from) || make_layer(to)) {
		fprintf(stderr, "no memory\n");
		goto out;
	}
	for (unsigned i = 0; i < 3; i++)
		memset(from[i].iov_base, 'a' + (int)i, from[i].iov_len);
	if (put_layer(store, from, &object) || get_layer(store, object, to)) {
		fprintf(stderr, "%s\n", spw_last_error());
		goto out;
	}
	rc = 0;
	for (unsigned i = 0; i < 3; i++)
		if (memcmp(from[i].iov_base, to[i].iov_base, from[i].iov_len) != 0)
			rc = -1; /* never: get would have failed */
	spw_store_stats(store, &stats, sizeof(stats));
	printf("moved %zu bytes each way, of which %llu were copied\n", WEIGHTS + BIAS + NAME,
	       (unsigned long long)stats.bytes_copied);
out:
	if (object.value && spw_store_free(store, object))
		rc = -1;
	free_layer(from);
	free_layer(to);
	return rc;
}

int main(int argc, char *argv[])
{
	struct spw_store *store;
	int rc;

	if (argc < 2) {
		fprintf(stderr, "usage: %s DRIVE... (formatted by spillway format)\n", argv[0]);
		return 2;
	}
	if (spw_store_open((const char *const *)&argv[1], (unsigned)argc - 1, NULL, &store)) {
		fprintf(stderr, "%s\n", spw_last_error());
		return 1;
	}
	rc = use(store);
	spw_store_close(store);
	return rc ? 1 : 0;
}
