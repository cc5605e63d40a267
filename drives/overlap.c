/* SPDX-License-Identifier: MIT */
/* drives/overlap.c - is a device made of blocks that a drive of a store has? */
#include "drives/overlap.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drives/aliases.h"
#include "drives/loop.h"
#include "drives/safety.h"
#include "drives/superblocks.h"
#include "drives/sysfs.h"
#include "engine/device.h"
#include "util/util.h"

struct question {
	const char *path;
	const struct spw_superblock *store;
};

/* A node or file that leads to an alias. Return: false: none does. */
static bool name_of(const struct spw_alias *alias, char *name, size_t len)
{
	struct stat st;

	if (!alias->name)
		return false;
	if (S_ISBLK(alias->st.st_mode))
		return spw_drives__sysfs_node(alias->name, alias->st.st_rdev, name, len);
	(void)snprintf(name, len, "%s", alias->name);
	return stat(name, &st) == 0 && spw_drives__same_file(&st, &alias->st);
}

/* Does the loop device begin where its file begins? Then its own first block tells. */
static bool begins_with(dev_t loop)
{
	char folder[PATH_MAX], offset[32];

	return spw_drives__sysfs_folder(loop, folder) &&
	       spw_drives__sysfs_line(SPW_PATH("%s/loop/offset", folder), offset, sizeof(offset)) &&
	       strcmp(offset, "0") == 0;
}

static int verify_alias(const char *name, const struct question *question)
{
	const struct spw_superblock *store = question->store, *sb;
	struct spw_superblocks superblocks;
	struct spw_device *device;
	int place, rc = spw_drives__safety_open(name, true, false, NULL, &device);

	if (rc != 0)
		return rc;
	place = spw_drives__superblocks_read(device, &superblocks);
	spw_device_close(device);
	if (place == -ENOMEM)
		return place;
	if (place < 0)
		return 0;
	sb = &superblocks.places[place].superblock;
	if (memcmp(sb->store_uuid, store->store_uuid, sizeof(sb->store_uuid)) != 0 ||
	    memcmp(sb->drive_uuids[sb->drive_index], store->drive_uuids[sb->drive_index],
		   sizeof(sb->drive_uuids[0])) != 0)
		return 0;
	return spw_error(-EEXIST,
			 "%s: shows blocks of %s, which is drive %u of this store; name a drive "
			 "that is not in it",
			 question->path, name, sb->drive_index + 1);
}

static int look_at(const struct spw_alias *alias, void *context)
{
	const struct question *question = context;
	char name[PATH_MAX];

	if (alias->is_self)
		return 0;
	if (name_of(alias, name, sizeof(name)))
		return verify_alias(name, question);
	/* Its node or file is not to be seen from here, as in a container. */
	if (S_ISBLK(alias->st.st_mode) || begins_with(alias->via))
		return 0;
	return spw_error(-ESTALE,
			 "%s: shows a part of a file that cannot be opened by its name (%s), so it "
			 "is not known whether that is a drive of this store; name another device",
			 question->path, alias->name ? alias->name : "it has none");
}

int spw_drives__overlap_refuse(const char *path, const struct spw_superblock *store)
{
	struct question question = {.path = path, .store = store};
	struct spw_loops *loops = NULL;
	int rc = spw_drives__loops_read(&loops);

	if (rc == 0)
		rc = spw_drives__aliases_each(path, loops, look_at, &question);
	spw_drives__loops_free(loops);
	return rc;
}
