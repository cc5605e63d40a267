/* SPDX-License-Identifier: MIT */
/* engine/nvme/node.c - finds the block and character node of an NVMe namespace in sysfs */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "engine/device.h"
#include "engine/nvme/admin.h"
#include "util/util.h"

#ifndef SPW_SYSFS
#define SPW_SYSFS "/sys"
#endif

/* The sysfs folder of a device: ".../nvme/nvme0/ng0n1". Return: false: not a device node. */
static bool sysfs_folder(const struct stat *st, char folder[PATH_MAX])
{
	if (!S_ISBLK(st->st_mode) && !S_ISCHR(st->st_mode))
		return false;
	return realpath(SPW_PATH(SPW_SYSFS "/dev/%s/%u:%u", S_ISBLK(st->st_mode) ? "block" : "char",
				 major(st->st_rdev), minor(st->st_rdev)),
			folder);
}

static const char *name_of(const char *folder)
{
	return strrchr(folder, '/') + 1;
}

static bool is_numbered(const char *name, const char *word)
{
	size_t len = strlen(word);

	return strncmp(name, word, len) == 0 && isdigit((unsigned char)name[len]);
}

static bool subsystem_is(const char *folder, const char *name)
{
	char subsystem[PATH_MAX];

	return realpath(SPW_PATH("%s/subsystem", folder), subsystem) &&
	       strcmp(name_of(subsystem), name) == 0;
}

static bool is_char_of_namespace(const struct stat *st, char folder[PATH_MAX])
{
	return S_ISCHR(st->st_mode) && sysfs_folder(st, folder) &&
	       is_numbered(name_of(folder), "ng") && subsystem_is(folder, "nvme-generic");
}

static bool is_block_node(const char *path, const char *folder)
{
	struct stat st;
	dev_t number;

	return stat(path, &st) == 0 && S_ISBLK(st.st_mode) &&
	       spw_read_device(SPW_PATH("%s/dev", folder), &number) && number == st.st_rdev;
}

/* Find the block node of the character node at @path: in the same folder, then in /dev. */
static int find_block_node(const char *path, const char *char_folder, char *node, size_t len)
{
	char real[PATH_MAX], folder[PATH_MAX], name[NAME_MAX];
	const char *directories[] = {real, "/dev"};

	(void)snprintf(name, sizeof(name), "nvme%s", name_of(char_folder) + 2);
	if (snprintf(folder, sizeof(folder), "%.*s%s", (int)(name_of(char_folder) - char_folder),
		     char_folder, name) >= (int)sizeof(folder))
		return spw_error(-ENAMETOOLONG, "%s: its name in sysfs is too long", path);
	if (access(folder, F_OK))
		return spw_error(-ENODEV,
				 "%s: this namespace has no block device, by which others would "
				 "see that it is in use",
				 path);
	if (!realpath(path, real))
		return spw_error_errno(-errno, "%s cannot be examined", path);
	*strrchr(real, '/') = '\0';
	for (size_t i = 0; i < SPW_ARRAY_LEN(directories); i++)
		if (snprintf(node, len, "%s/%s", directories[i], name) < (int)len &&
		    is_block_node(node, folder))
			return 0;
	return spw_error(-ENODEV,
			 "%s: its block node /dev/%s is missing, by which others see that it is in "
			 "use; make that node available too",
			 path, name);
}

int spw_device_block_node(const char *path, char *node, size_t len)
{
	char folder[PATH_MAX];
	struct stat st;

	if (stat(path, &st) == 0 && is_char_of_namespace(&st, folder))
		return find_block_node(path, folder, node, len);
	if (snprintf(node, len, "%s", path) >= (int)len)
		return spw_error(-ENAMETOOLONG, "%s: the path is too long", path);
	return 0;
}

/* Are these the nodes of one namespace: ".../nvme0/nvme0n1" and ".../nvme0/ng0n1"? */
static bool are_siblings(const char *block, const char *character)
{
	size_t parent = (size_t)(name_of(block) - block);

	return strncmp(block, character, parent) == 0 && is_numbered(block + parent, "nvme") &&
	       is_numbered(character + parent, "ng") &&
	       strcmp(block + parent + 4, character + parent + 2) == 0;
}

int spw_nvme__open_char(const struct spw_device *device)
{
	const char *path = device->geometry.nvme_char_path;
	char block[PATH_MAX], character[PATH_MAX];
	struct stat st;
	int fd;

	if (path[0] == '\0')
		return spw_error(
			-EOPNOTSUPP,
			"%s is not a whole NVMe namespace with a character node (/dev/ngXnY)",
			device->path);
	fd = open(path, (device->read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
	if (fd < 0)
		return spw_error_errno(-errno, "%s, the character node of %s, cannot be opened",
				       path, device->path);
	if (fstat(fd, &st) == 0 && is_char_of_namespace(&st, character) &&
	    fstat(device->fd, &st) == 0 && sysfs_folder(&st, block) &&
	    are_siblings(block, character))
		return fd;
	(void)close(fd);
	return spw_error(-ESTALE, "%s is not the character node of %s (any more)", path,
			 device->path);
}

static bool is_nvme(const struct stat *st)
{
	char folder[PATH_MAX];

	if (is_char_of_namespace(st, folder))
		return true;
	return sysfs_folder(st, folder) && is_numbered(name_of(folder), "nvme") &&
	       subsystem_is(folder, S_ISBLK(st->st_mode) ? "block" : "nvme");
}

int spw_nvme__open_admin(const char *path)
{
	struct stat st;
	int fd;

	if (stat(path, &st))
		return spw_error_errno(-errno, "%s cannot be examined", path);
	if (!is_nvme(&st))
		return spw_error(-EOPNOTSUPP, "%s is not an NVMe device", path);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return spw_error_errno(-errno, "%s cannot be opened", path);
	/* The node may have been replaced in between. */
	if (fstat(fd, &st) == 0 && is_nvme(&st))
		return fd;
	(void)close(fd);
	return spw_error(-EOPNOTSUPP, "%s is not an NVMe device (any more)", path);
}
