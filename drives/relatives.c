/* SPDX-License-Identifier: MIT */
/* drives/relatives.c - walk from a drive to its whole drive, its partitions, and what it shows */
#include "drives/relatives.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "engine/vfio/vfio.h"
#include "drives/identity.h"
#include "drives/sysfs.h"
#include "util/util.h"

#define WORDS_BYTES (PATH_MAX + 256)

struct walk {
	const struct spw_loops *loops;
	int (*visit)(const struct spw_relative *relative, void *context);
	void *context;
};

/* One relative, whose own are visited. */
struct kin {
	const struct walk *walk;
	const struct spw_relative *of;
};

/* "loop3p1"; "MAJOR:MINOR" where sysfs does not know the device. */
static const char *name_in(const char *folder, bool found)
{
	return found ? strrchr(folder, '/') + 1 : NULL;
}

static int tell(const struct walk *walk, struct spw_relative *relative)
{
	relative->loops = walk->loops;
	return walk->visit(relative, walk->context);
}

static int visit_partition(const char *name, dev_t number, void *context)
{
	const struct kin *kin = context;
	char words[WORDS_BYTES];
	struct spw_relative partition = {
		.words = words,
		.name = name,
		.st = {.st_mode = S_IFBLK, .st_rdev = number},
		.via = kin->of->via,
	};

	(void)snprintf(words, sizeof(words), "%.*s its partition %s", PATH_MAX, kin->of->words,
		       name);
	return tell(kin->walk, &partition);
}

static int visit_with_kin(const struct walk *walk, struct spw_relative *relative);

/* By another path, whose claims and locks are seen there alone. */
static int visit_path(void *context, const char *name)
{
	const struct kin *kin = context;
	char words[WORDS_BYTES], folder[PATH_MAX];
	struct spw_relative path = {.words = words, .name = name, .st = {.st_mode = S_IFBLK}};

	/* Gone since. */
	if (!spw_sysfs_join(folder, sizeof(folder), "/sys/class/block", name) ||
	    !spw_sysfs_number(folder, &path.st.st_rdev))
		return 0;
	(void)snprintf(words, sizeof(words), "%.*s %s, another path to the same drive,", PATH_MAX,
		       kin->of->words, name);
	return tell(kin->walk, &path);
}

/*
 * What the loop device @whole shows, if it is one. The kernel lets loop devices show each other,
 * but not in a circle.
 */
static int visit_shown(const struct walk *walk, const struct spw_relative *relative, dev_t whole)
{
	char words[WORDS_BYTES], folder[PATH_MAX];
	struct spw_relative shown = {.words = words, .via = whole};
	int rc = spw_loop_shows(walk->loops, whole, &shown.st, &shown.name);

	if (rc <= 0)
		return rc;
	if (S_ISBLK(shown.st.st_mode))
		shown.name = name_in(folder, spw_sysfs_folder(shown.st.st_rdev, folder));
	(void)snprintf(words, sizeof(words), "%.*s what it shows", PATH_MAX, relative->words);
	return visit_with_kin(walk, &shown);
}

static int visit_whole(const struct walk *walk, const struct spw_relative *relative, dev_t number,
		       const char *name)
{
	char words[WORDS_BYTES];
	struct spw_relative whole = {
		.words = words,
		.name = name,
		.st = {.st_mode = S_IFBLK, .st_rdev = number},
		.via = relative->via,
	};

	(void)snprintf(words, sizeof(words), "%.*s its whole drive %s", PATH_MAX, relative->words,
		       name);
	return tell(walk, &whole);
}

static int visit_with_kin(const struct walk *walk, struct spw_relative *relative)
{
	struct kin kin = {walk, relative};
	dev_t number = relative->st.st_rdev, whole;
	char folder[PATH_MAX];
	int rc = tell(walk, relative);

	if (rc != 0 || !S_ISBLK(relative->st.st_mode) || !spw_sysfs_whole(number, folder, &whole))
		return rc;
	if (whole == number)
		rc = spw_sysfs_partitions(number, visit_partition, &kin);
	else
		rc = visit_whole(walk, relative, whole, strrchr(folder, '/') + 1);
	if (rc == 0 && relative->name)
		rc = spw_identity_each_path("/sys", relative->name, visit_path, &kin);
	return rc != 0 ? rc : visit_shown(walk, relative, whole);
}

int spw_relatives_each(const char *path, const struct spw_loops *loops,
		       int (*visit)(const struct spw_relative *relative, void *context),
		       void *context)
{
	const struct walk walk = {.loops = loops, .visit = visit, .context = context};
	char words[PATH_MAX + 8], folder[PATH_MAX], node[PATH_MAX];
	struct spw_relative self = {.words = words, .is_self = true};
	int rc;

	if (spw_vfio_is_name(path))
		return 0;
	rc = spw_device_block_node(path, node, sizeof(node));
	if (rc == 0 && stat(node, &self.st) != 0)
		rc = -errno;
	if (rc != 0)
		return spw_error_errno(rc, "%s cannot be examined", path);
	if (S_ISBLK(self.st.st_mode))
		self.name = name_in(folder, spw_sysfs_folder(self.st.st_rdev, folder));
	else if (!S_ISREG(self.st.st_mode))
		return 0;
	(void)snprintf(words, sizeof(words), "%s:", path);
	return visit_with_kin(&walk, &self);
}
