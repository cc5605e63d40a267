/* SPDX-License-Identifier: MIT */
/* state/set.c - read and check what a store has committed */
#include "state/set.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

static int no_memory(void)
{
	return spw_error(-ENOMEM, "no memory for what is committed");
}

static int read_manifest(struct spw_store *store, const struct spw_state_ports *ports,
			 struct state_set *set)
{
	const char *why;
	int rc;

	set->bytes = malloc(SPW_MAX(set->info.record_bytes, 1u));
	if (!set->bytes)
		return no_memory();
	rc = ports->committed_record(store, set->bytes, set->info.record_bytes);
	if (rc)
		return rc;
	rc = spw_state__manifest_decode(set->bytes, set->info.record_bytes, &set->manifest, &why);
	if (rc == 0 && set->manifest.objects != set->info.objects) {
		why = "it has another number of objects than the commit";
		rc = -EUCLEAN;
	}
	if (rc)
		rc = spw_error(rc == -EMEDIUMTYPE ? -EUCLEAN : rc,
			       "commit %llu of the store cannot be used as a state: %s",
			       (unsigned long long)set->info.number, why);
	return rc;
}

static int used_since(void)
{
	return spw_error(-EALREADY, "what the store had when it was opened was used and given up "
				    "since: open the store again");
}

static int read_objects(struct spw_store *store, const struct spw_state_ports *ports,
			struct state_set *set)
{
	size_t count = SPW_MAX(set->info.objects, 1u);
	int rc;

	set->objects = calloc(count, sizeof(*set->objects));
	set->lens = calloc(count, sizeof(*set->lens));
	if (!set->objects || !set->lens)
		return no_memory();
	if (set->info.objects == 0)
		return 0;
	rc = ports->committed_objects(store, set->objects, set->lens, set->info.objects);
	return rc == -ERANGE ? used_since() : rc; /* a later commit has more or fewer */
}

/*
 * Check that no object was freed, by a later commit or by closing a state, since the store was
 * opened. This reads beyond an object's end, which fails without I/O: -ERANGE if the object exists.
 */
static int check_objects(struct spw_store *store, const struct spw_state_ports *ports,
			 const struct state_set *set)
{
	for (uint32_t i = 0; i < set->info.objects; i++) {
		struct spw_request *request;
		uint8_t byte;
		int rc = ports->get(store, set->objects[i], set->lens[i], &byte, 1, SPW_PREFETCH,
				    NULL, &request);

		if (rc == -ENOENT)
			return used_since();
		SPW_ASSERT(rc != 0);
		if (rc != -ERANGE)
			return rc;
	}
	return 0;
}

/* Check that each object is as long as its record. */
static int check_lens(const struct state_set *set)
{
	struct spw_state_manifest manifest = set->manifest;
	struct spw_state_entry entry;

	while (spw_state__manifest_next(&manifest, &entry))
		if (entry.object > 0 && set->lens[entry.object - 1] != entry.len_bytes)
			return spw_error(-EUCLEAN,
					 "commit %llu of the store cannot be used as a state: "
					 "record %.*s has %llu bytes, and its object %llu",
					 (unsigned long long)set->info.number, (int)entry.name_len,
					 entry.name, (unsigned long long)entry.len_bytes,
					 (unsigned long long)set->lens[entry.object - 1]);
	return 0;
}

int spw_state__set_read(struct spw_store *store, const struct spw_state_ports *ports,
			struct state_set *set)
{
	int rc;

	memset(set, 0, sizeof(*set));
	rc = ports->committed(store, &set->info, sizeof(set->info));
	if (rc == 0)
		rc = read_manifest(store, ports, set);
	if (rc == 0)
		rc = read_objects(store, ports, set);
	if (rc == 0)
		rc = check_objects(store, ports, set);
	return rc ? rc : check_lens(set);
}

void spw_state__set_free(struct state_set *set)
{
	free(set->bytes);
	free(set->objects);
	free(set->lens);
}

int spw_state__extra_copy(const void *extra, size_t extra_len, void *to, size_t *len)
{
	size_t room = *len;

	*len = extra_len;
	if (!to)
		return 0;
	if (room < extra_len)
		return spw_error(-ERANGE, "the commit's bytes are %zu, and there is room for %zu",
				 extra_len, room);
	if (extra_len > 0)
		memcpy(to, extra, extra_len);
	return 0;
}
