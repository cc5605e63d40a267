/* SPDX-License-Identifier: MIT */
/* drives/aliases.c - visit all aliases of a drive, which are devices with the same blocks */
#include "drives/aliases.h"
#include "engine/device.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "drives/identity.h"
#include "drives/loop.h"
#include "drives/sysfs.h"
#include "engine/vfio/vfio.h"
#include "util/util.h"

#define WORDS_BYTES (PATH_MAX + 256)

struct walk {
	const struct spw_loops *loops;
	int (*visit)(const struct spw_alias *alias, void *context);
	void *context;
};

/* An alias whose own aliases are being visited. */
struct origin {
	const struct walk *walk;
	const struct spw_alias *alias;
};

/* Visit a block device, with a description such as "its partition loop3p1". */
static int visit_device(const struct origin *origin, const char *before, const char *name,
			const char *after, dev_t number)
{
	char words[WORDS_BYTES];
	const struct spw_alias alias = {
		.words = words,
		.name = name,
		.st = {.st_mode = S_IFBLK, .st_rdev = number},
		.via = origin->alias->via,
		.loops = origin->walk->loops,
	};

	(void)snprintf(words, sizeof(words), "%.*s %s%s%s", PATH_MAX, origin->alias->words, before,
		       name, after);
	return origin->walk->visit(&alias, origin->walk->context);
}

static int visit_partition(const char *name, dev_t number, void *context)
{
	return visit_device(context, "its partition ", name, "", number);
}

/* Visit another path to the drive: claims and locks on that are seen only there. */
static int visit_path(void *context, const char *name)
{
	dev_t number;

	if (!spw_drives__sysfs_number(name, &number)) /* gone since */
		return 0;
	return visit_device(context, "", name, ", another path to the same drive,", number);
}

/* Visit a device and its aliases. Loop devices may be stacked. */
static int visit_with_aliases(const struct walk *walk, struct spw_alias *alias)
{
	struct origin origin = {walk, alias};
	dev_t number = alias->st.st_rdev, whole;
	char folder[PATH_MAX], own_folder[PATH_MAX], words[WORDS_BYTES];
	struct spw_alias shown = {.words = words};
	int rc;

	SPW_ASSERT(S_ISBLK(alias->st.st_mode) || S_ISREG(alias->st.st_mode));
	alias->loops = walk->loops;
	if (S_ISBLK(alias->st.st_mode))
		alias->name = spw_drives__sysfs_folder(number, own_folder)
				      ? spw_drives__sysfs_name(own_folder)
				      : NULL;
	rc = walk->visit(alias, walk->context);
	if (rc != 0 || !S_ISBLK(alias->st.st_mode) ||
	    !spw_drives__sysfs_whole(number, folder, &whole))
		return rc;
	if (whole == number)
		rc = spw_drives__sysfs_partitions(number, visit_partition, &origin);
	else
		rc = visit_device(&origin, "its whole drive ", spw_drives__sysfs_name(folder), "",
				  whole);
	if (rc == 0 && alias->name)
		rc = spw_drives__identity_each_path("/sys", alias->name, visit_path, &origin);
	if (rc != 0)
		return rc;
	rc = spw_drives__loop_shows(walk->loops, whole, &shown.st, &shown.name);
	if (rc <= 0)
		return rc;
	shown.via = whole;
	(void)snprintf(words, sizeof(words), "%.*s what it shows", PATH_MAX, alias->words);
	return visit_with_aliases(walk, &shown);
}

int spw_drives__aliases_each(const char *path, const struct spw_loops *loops,
			     int (*visit)(const struct spw_alias *alias, void *context),
			     void *context)
{
	const struct walk walk = {.loops = loops, .visit = visit, .context = context};
	char words[PATH_MAX + 8], node[PATH_MAX];
	struct spw_alias self = {.words = words, .is_self = true};
	int rc;

	if (spw_vfio__is_name(path))
		return 0;
	rc = spw_device_block_node(path, node, sizeof(node));
	if (rc == 0 && stat(node, &self.st) != 0)
		rc = -errno;
	if (rc != 0)
		return spw_engine__device_stat_error(path, rc);
	if (!S_ISBLK(self.st.st_mode) && !S_ISREG(self.st.st_mode))
		return 0;
	(void)snprintf(words, sizeof(words), "%s:", path);
	return visit_with_aliases(&walk, &self);
}
