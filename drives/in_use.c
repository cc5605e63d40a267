/* SPDX-License-Identifier: MIT */
/* drives/in_use.c - spw_drives__safety_in_use(): mounts, swap, holders, loops, locks of a drive */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "drives/aliases.h"
#include "drives/identity.h"
#include "drives/loop.h"
#include "drives/opener.h"
#include "drives/safety.h"
#include "drives/sysfs.h"
#include "engine/device.h"
#include "engine/vfio/namespace.h"
#include "engine/vfio/vfio.h"
#include "util/util.h"

/* ---- Mounts, swap, holders ---- */

/* Decode escapes in the tables of /proc, such as \040 for a blank. */
static void unescape(char *text)
{
	char *to = text;

	for (const char *from = text; *from; to++) {
		if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' &&
		    from[2] <= '7' && from[3] >= '0' && from[3] <= '7') {
			*to = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
			from += 4;
		} else {
			*to = *from++;
		}
	}
	*to = '\0';
}

struct question {
	struct stat st;
	char answer[256]; /* mount point or holder */
};

static bool is_block_device(const char *path, dev_t number)
{
	struct stat st;

	return path[0] == '/' && stat(path, &st) == 0 && S_ISBLK(st.st_mode) &&
	       st.st_rdev == number;
}

/* mountinfo: "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue" */
static bool is_mount_of(char *line, struct question *question)
{
	char *save = NULL, *mount_point, *source;
	unsigned major_number, minor_number;
	char *tail = strstr(line, " - ");
	int at = 0;

	if (!tail)
		return false;
	*tail = '\0';
	if (sscanf(line, "%*s %*s %u:%u %*s %n", &major_number, &minor_number, &at) != 2 || at == 0)
		return false;
	mount_point = line + at;
	mount_point[strcspn(mount_point, " ")] = '\0';
	(void)strtok_r(tail + 3, " ", &save);
	source = strtok_r(NULL, " ", &save);
	if (source)
		unescape(source);
	/* btrfs has device numbers of its own: compare the source instead. */
	if (makedev(major_number, minor_number) != question->st.st_rdev &&
	    !(source && is_block_device(source, question->st.st_rdev)))
		return false;
	unescape(mount_point);
	(void)snprintf(question->answer, sizeof(question->answer), "%s", mount_point);
	return true;
}

/* A line of /proc/swaps: "/swap\040file file 1048572 0 -2" */
static bool is_swap_on(char *line, struct question *question)
{
	char *save = NULL, *name = strtok_r(line, " \t", &save);
	struct stat st;

	if (!name || name[0] != '/')
		return false;
	unescape(name);
	return stat(name, &st) == 0 && spw_drives__same_file(&st, &question->st);
}

/* Search a table of /proc. Return: 1 @ask returned true for a line; 0; or a negative errno. */
static int ask_table(const char *table, bool (*ask)(char *line, struct question *question),
		     struct question *question)
{
	FILE *file = fopen(table, "re");
	char *line = NULL;
	size_t room = 0;
	int found = 0;

	/* The kernel has no swap. Without /proc it is unknown, which is an error. */
	if (!file && errno == ENOENT && access("/proc/self", F_OK) == 0)
		return 0;
	if (!file)
		return spw_error_errno(
			-errno, "%s cannot be read, so it is unknown whether the device is in use",
			table);
	while (found == 0 && getline(&line, &room, file) >= 0) {
		line[strcspn(line, "\n")] = '\0';
		found = ask(line, question) ? 1 : 0;
	}
	/* getline() may also fail without an error of the file, for lack of memory. */
	if (found == 0 && !feof(file))
		found = spw_error(-EIO, "%s cannot be read to its end", table);
	free(line);
	(void)fclose(file);
	return found;
}

/* Describe a holder, such as "dm-0 (vg-root)", in the answer. */
static int take_holder(void *context, const char *folder, const char *name)
{
	const char *path = SPW_PATH("/sys/class/block/%s/dm/name", name);
	struct question *question = context;
	char mapped[64];

	(void)folder;
	if (spw_drives__sysfs_line(path, mapped, sizeof(mapped)))
		(void)snprintf(question->answer, sizeof(question->answer), "%.128s (%s)", name,
			       mapped);
	else
		(void)snprintf(question->answer, sizeof(question->answer), "%s", name);
	return 1;
}

/* Find a block device on top: device mapper, RAID, bcache. Return: 1; 0; or a negative errno. */
static int find_holder(struct question *question)
{
	char folder[PATH_MAX];

	return spw_drives__sysfs_folder(question->st.st_rdev, folder)
		       ? spw_each_name(SPW_PATH("%s/holders", folder), take_holder, question)
		       : 0;
}

static int has_users(const char *subject, const struct stat *st)
{
	struct question question = {.st = *st};
	bool is_device = S_ISBLK(st->st_mode);
	int found = is_device ? ask_table("/proc/self/mountinfo", is_mount_of, &question) : 0;

	SPW_ASSERT(is_device || S_ISREG(st->st_mode));
	if (found > 0)
		return spw_error(-EBUSY, "%s is mounted on %s; unmount it, or name another device",
				 subject, question.answer);
	if (found == 0)
		found = ask_table("/proc/swaps", is_swap_on, &question);
	if (found > 0)
		return spw_error(-EBUSY,
				 "%s is in use as swap; run swapoff first, or name another %s",
				 subject, is_device ? "device" : "file");
	if (found == 0 && is_device)
		found = find_holder(&question);
	if (found > 0)
		return spw_error(-EBUSY,
				 "%s is held by %s, a block device made on top of it; remove that "
				 "first, or name another device",
				 subject, question.answer);
	return found;
}

/* Check for loop devices over it: they do not claim their backing device. */
static int is_shown(const struct spw_alias *alias)
{
	const char *loop;
	int rc = spw_drives__loop_over(alias->loops, &alias->st, alias->via, &loop);

	return rc <= 0 ? rc
		       : spw_error(-EBUSY,
				   "%s is shown by /dev/%s, a loop device; name that, or detach it "
				   "first (losetup -d)",
				   alias->words, loop);
}

static int alias_has_users(const struct spw_alias *alias, void *context)
{
	int rc = has_users(alias->words, &alias->st);

	(void)context;
	return rc != 0 ? rc : is_shown(alias);
}

static int each_alias(const char *path, const struct spw_loops *loops,
		      int (*visit)(const struct spw_alias *alias, void *context), void *context)
{
	struct spw_loops *own = NULL;
	int rc = loops ? 0 : spw_drives__loops_read(&own);

	if (rc == 0)
		rc = spw_drives__aliases_each(path, loops ? loops : own, visit, context);
	spw_drives__loops_free(own);
	return rc;
}

/* ---- Drives behind vfio: does the kernel use another path to the drive? ---- */

static int find_other_path(const char *path)
{
	struct spw_identity_namespace wanted;
	struct spw_device *device;
	char name[64];
	int rc = spw_drives__safety_open(path, true, false, NULL, &device);

	if (rc != 0)
		return rc;
	wanted = (struct spw_identity_namespace){
		.serial = spw_device_geometry(device)->serial,
		.model = spw_device_geometry(device)->model,
		.id = spw_vfio__of(device)->nvme.id,
		.unique = spw_vfio__of(device)->unique,
	};
	rc = spw_drives__identity_find_namespace("/sys", &wanted, name, sizeof(name));
	spw_device_close(device);
	return rc <= 0 ? rc
		       : spw_error(
				 -EBUSY,
				 "%s: the kernel reaches it by another controller, as %s, where "
				 "others would not see that it is in use; name that, or take that "
				 "controller from the kernel too (its PCI address into "
				 "/sys/bus/pci/drivers/nvme/unbind)",
				 path, name);
}

int spw_drives__safety_in_use(const char *path, const struct spw_loops *loops)
{
	if (spw_vfio__is_name(path))
		return find_other_path(path);
	return each_alias(path, loops, alias_has_users, NULL);
}

/* ---- Locks ---- */

static int node_locked(const char *path, uint64_t offset_bytes, uint64_t len_bytes)
{
	int fd = spw_drives__safety_open_node(path);
	int rc = fd < 0 ? fd : spw_fd_locked(fd, offset_bytes, len_bytes);

	if (fd >= 0)
		(void)close(fd);
	return rc < 0 ? spw_error_errno(rc, "%s: cannot be asked for locks", path) : rc;
}

/* Only locks of this process are possible: no other process can have the drive. */
static int vfio_locked(const char *path, uint64_t offset_bytes, uint64_t len_bytes)
{
	struct spw_device *device;
	int rc = spw_drives__safety_open(path, false, false, NULL, &device);

	if (rc != 0)
		return rc;
	rc = spw_device_lock(device, offset_bytes, len_bytes);
	spw_device_close(device);
	return rc == -EBUSY ? 1 : rc;
}

int spw_drives__safety_locked(const char *path, uint64_t offset_bytes, uint64_t len_bytes)
{
	if (spw_vfio__is_name(path))
		return vfio_locked(path, offset_bytes, len_bytes);
	return node_locked(path, offset_bytes, len_bytes);
}

/*
 * A line of /proc/locks: "1: OFDLCK ADVISORY WRITE -1 08:01:393 0 EOF" is on inode 393. The device
 * number is not compared: btrfs has another st_dev.
 */
static bool is_lock_on(char *line, struct question *question)
{
	const struct stat *st = &question->st;
	unsigned major_number, minor_number;
	unsigned long long inode;

	if (!strstr(line, "OFDLCK") || sscanf(line, "%*s %*s %*s %*s %*s %x:%x:%llu", &major_number,
					      &minor_number, &inode) != 3)
		return false;
	return inode == st->st_ino &&
	       (major(st->st_dev) == 0 || makedev(major_number, minor_number) == st->st_dev);
}

/*
 * Is the file locked? Opens its name. Return: 1; 0; -ESTALE the name has changed or cannot be
 * opened.
 */
static int file_locked_by_name(const struct spw_alias *file)
{
	int fd = open(file->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	int rc = -ESTALE;
	struct stat st;

	if (fd < 0)
		return rc;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && spw_drives__same_file(&st, &file->st))
		rc = spw_fd_locked(fd, 0, SPW_LOCK_ALL_BYTES);
	(void)close(fd);
	return rc < 0 ? -ESTALE : rc;
}

/* Is the file locked? /proc/locks, whose reading can take 10 ms, is the fallback. */
static int file_locked(const char *path, const struct spw_alias *file)
{
	struct question question = {.st = file->st};
	int rc = file_locked_by_name(file);

	SPW_ASSERT(S_ISREG(file->st.st_mode));
	if (rc == -ESTALE)
		rc = ask_table("/proc/locks", is_lock_on, &question);
	return rc > 0 ? spw_error(-EBUSY,
				  "%s: a process has a store on the file open that this loop "
				  "device shows; end that process first, or name the file",
				  path)
		      : rc;
}

static int alias_locked(const struct spw_alias *alias, void *context)
{
	const char *path = context;
	char node[PATH_MAX];
	int rc;

	if (alias->is_self)
		return 0;
	if (!S_ISBLK(alias->st.st_mode))
		return file_locked(path, alias);
	/* Without a node no process can have it open. */
	if (!alias->name ||
	    !spw_drives__sysfs_node(alias->name, alias->st.st_rdev, node, sizeof(node)))
		return 0;
	rc = node_locked(node, 0, SPW_LOCK_ALL_BYTES);
	return rc <= 0 ? rc
		       : spw_error(-EBUSY,
				   "%s: a process has a store on %s open, which has the same "
				   "blocks; end that process first (see fuser %s)",
				   path, node, node);
}

int spw_drives__safety_aliases_locked(const char *path, const struct spw_loops *loops)
{
	return each_alias(path, loops, alias_locked, (void *)(uintptr_t)path);
}

/* ---- Openers ---- */

struct search {
	int but_fd;
	char *words;
	size_t len;
};

static int alias_opened(const struct spw_alias *alias, void *context)
{
	const struct search *search = context;

	return spw_drives__opener_find(&alias->st, alias->is_self ? search->but_fd : -1,
				       search->words, search->len);
}

bool spw_drives__safety_opener(const char *path, int but_fd, char *words, size_t len)
{
	struct search search = {.but_fd = but_fd, .words = words, .len = len};

	return each_alias(path, NULL, alias_opened, &search) > 0;
}
