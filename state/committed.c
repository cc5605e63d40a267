/* SPDX-License-Identifier: MIT */
/* state/committed.c - list the records of a store's commit, for tools that do not declare them */
#include <string.h>

#include <spillway/state.h>

#include "state/set.h"

int spw_state_committed_count(struct spw_store *store)
{
	struct state_set set;
	int rc = spw_state__set_read(store, &spw_state__ports_real, &set);

	if (rc == 0)
		rc = (int)set.manifest.records;
	spw_state__set_free(&set);
	return rc;
}

int spw_state__committed_with(struct spw_store *store, const struct spw_state_ports *ports,
			      int (*each)(void *context, const char *name, uint64_t len,
					  const void *shape, size_t shape_len, spw_object object),
			      void *context)
{
	struct state_set set;
	struct spw_state_entry entry;
	int rc = spw_state__set_read(store, ports, &set);

	while (rc == 0 && spw_state__manifest_next(&set.manifest, &entry)) {
		char name[SPW_STATE_NAME_BYTES_MAX + 1];
		spw_object object = {0};

		memcpy(name, entry.name, entry.name_len);
		name[entry.name_len] = '\0';
		if (entry.object > 0)
			object = set.objects[entry.object - 1];
		rc = each(context, name, entry.len_bytes, entry.shape, entry.shape_len, object);
	}
	spw_state__set_free(&set);
	return rc;
}

int spw_state_committed(struct spw_store *store,
			int (*each)(void *context, const char *name, uint64_t len,
				    const void *shape, size_t shape_len, spw_object object),
			void *context)
{
	return spw_state__committed_with(store, &spw_state__ports_real, each, context);
}

int spw_state_committed_extra(struct spw_store *store, void *extra, size_t *len)
{
	struct state_set set;
	int rc = spw_state__set_read(store, &spw_state__ports_real, &set);

	if (rc == 0)
		rc = spw_state__extra_copy(set.manifest.extra, set.manifest.extra_len, extra, len);
	spw_state__set_free(&set);
	return rc;
}
