/* SPDX-License-Identifier: MIT */
/*
 * examples/objects.c - store an object on the drives of a store, read a part of it back, free it
 *
 *   cc objects.c -o objects $(pkg-config --cflags --libs spillway)
 *   ./objects DRIVE...
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spillway/spillway.h>

#define LEN ((size_t)10 << 20)

/* Puts and gets only begin: their end, and what went wrong, is told to who waits for them. */
static int put(struct spw_store *store, const void *bytes, size_t len, spw_object *object)
{
	struct spw_request *request;
	int rc = spw_store_put(store, bytes, len, NULL, object, &request);

	return rc ? rc : spw_request_wait(request);
}

static int get(struct spw_store *store, spw_object object, uint64_t offset, void *bytes, size_t len)
{
	struct spw_request *request;
	int rc = spw_store_get(store, object, offset, bytes, len, SPW_URGENT_READ, NULL, &request);

	return rc ? rc : spw_request_wait(request);
}

static int use(struct spw_store *store)
{
	char *bytes = malloc(LEN), part[1000];
	spw_object object = {0};
	int rc = -1;

	if (!bytes) {
		fprintf(stderr, "no memory for %zu bytes\n", LEN);
		return -1;
	}
	for (size_t i = 0; i < LEN; i++)
		bytes[i] = (char)(i % 251);
	if (put(store, bytes, LEN, &object) || get(store, object, 12345, part, sizeof(part)))
		fprintf(stderr, "%s\n", spw_last_error());
	else if (memcmp(part, bytes + 12345, sizeof(part)) != 0)
		fprintf(stderr, "other bytes came back\n"); /* never: get would have failed */
	else
		rc = 0;
	/* An object exists from the moment put gives it a name, even if the put fails. */
	if (object.value && spw_store_free(store, object))
		rc = -1;
	free(bytes);
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
	if (rc == 0)
		printf("stored %zu bytes, and read 1000 of them back\n", LEN);
	return rc ? 1 : 0;
}
