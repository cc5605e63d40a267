/* SPDX-License-Identifier: MIT */
/* drives/loop.c - spw_drives__loops_read(): list loop devices and their backing files */
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "drives/loop.h"
#include "drives/sysfs.h"
#include "util/util.h"

#define ALL_BLOCK_DEVICES "/sys/class/block"

struct loop {
	char name[64];
	dev_t number;
	int asked; /* 0: shown is valid; a negative errno: this user may not query it */
	struct stat shown;
	char backing[PATH_MAX]; /* name of the backing file, if it has one */
};

struct spw_loops {
	unsigned count;
	struct loop *list; /* loop devices with a backing file */
};

/* ---- Reading ---- */

/* Query a loop device. Return: 0; -ENXIO it was detached; another negative errno: not permitted. */
static int ask(const struct loop *loop, struct stat *shown)
{
	struct loop_info64 info = {0};
	char node[PATH_MAX];
	int fd, rc = 0;

	if (!spw_drives__sysfs_node(loop->name, loop->number, node, sizeof(node)))
		return -ENODEV;
	fd = open(node, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	if (ioctl(fd, LOOP_GET_STATUS64, &info))
		rc = -errno;
	(void)close(fd);
	*shown = (struct stat){
		.st_mode = info.lo_rdevice ? S_IFBLK : S_IFREG,
		.st_dev = (dev_t)info.lo_device,
		.st_ino = (ino_t)info.lo_inode,
		.st_rdev = (dev_t)info.lo_rdevice,
	};
	return rc;
}

static bool read_loop(const char *name, struct loop *loop)
{
	/* Skip other devices, and unused loop devices. */
	if (strncmp(name, "loop", 4) != 0 || strlen(name) >= sizeof(loop->name) ||
	    !spw_drives__sysfs_line(SPW_PATH(ALL_BLOCK_DEVICES "/%s/loop/backing_file", name),
				    loop->backing, sizeof(loop->backing)) ||
	    !spw_drives__sysfs_number(name, &loop->number))
		return false;
	memcpy(loop->name, name, strlen(name) + 1);
	loop->asked = ask(loop, &loop->shown);
	return loop->asked != -ENXIO;
}

static int add(void *context, const char *folder, const char *name)
{
	struct spw_loops *loops = context;
	struct loop loop, *larger;

	(void)folder;
	if (!read_loop(name, &loop))
		return 0;
	larger = reallocarray(loops->list, loops->count + 1, sizeof(*larger));
	if (!larger)
		return spw_error(-ENOMEM, "no memory for the list of loop devices");
	loops->list = larger;
	larger[loops->count++] = loop;
	return 0;
}

/* Without sysfs the list is empty. */
int spw_drives__loops_read(struct spw_loops **out)
{
	struct spw_loops *loops = calloc(1, sizeof(*loops));
	int rc = loops ? spw_each_name(ALL_BLOCK_DEVICES, add, loops)
		       : spw_error(-ENOMEM, "no memory for the list of loop devices");

	if (rc) {
		spw_drives__loops_free(loops);
		loops = NULL;
	}
	*out = loops;
	return rc;
}

void spw_drives__loops_free(struct spw_loops *loops)
{
	if (loops)
		free(loops->list);
	free(loops);
}

/* ---- Asking ---- */

int spw_drives__loop_shows(const struct spw_loops *loops, dev_t number, struct stat *shown,
			   const char **backing)
{
	for (unsigned i = 0; i < loops->count; i++) {
		const struct loop *loop = &loops->list[i];

		if (loop->number != number)
			continue;
		*shown = loop->shown;
		*backing = loop->backing;
		if (loop->asked == -EACCES || loop->asked == -EPERM)
			return spw_error(loop->asked,
					 "/dev/%s: no permission to ask it what it shows; %s",
					 loop->name, spw_permission_advice(-loop->asked));
		return loop->asked ? spw_error_errno(loop->asked,
						     "/dev/%s cannot be asked what it shows (%s)",
						     loop->name, loop->backing)
				   : 1;
	}
	return 0;
}

/* Without permission to query, compare names: misses deleted files and other names of a file. */
static int shows_by_name(const struct loop *loop, const struct stat *wanted)
{
	static const char deleted[] = " (deleted)";
	size_t len = strlen(loop->backing);
	struct stat st;

	if (stat(loop->backing, &st) == 0)
		return spw_drives__same_file(&st, wanted);
	if (S_ISREG(wanted->st_mode) &&
	    (wanted->st_nlink > 1 || (len >= strlen(deleted) &&
				      strcmp(loop->backing + len - strlen(deleted), deleted) == 0)))
		return spw_error(-EACCES,
				 "/dev/%s shows %s, which may be the same file; run as root, or "
				 "detach it (losetup -d)",
				 loop->name, loop->backing);
	return 0;
}

int spw_drives__loop_over(const struct spw_loops *loops, const struct stat *shown, dev_t but,
			  const char **name)
{
	for (unsigned i = 0; i < loops->count; i++) {
		const struct loop *loop = &loops->list[i];
		int rc;

		if (loop->number == but)
			continue;
		rc = loop->asked == 0 ? spw_drives__same_file(&loop->shown, shown)
				      : shows_by_name(loop, shown);
		*name = loop->name;
		if (rc)
			return rc;
	}
	return 0;
}
