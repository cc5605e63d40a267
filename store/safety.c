/* SPDX-License-Identifier: MIT */
/* store/safety.c - who uses a device, and what it carries: mounts, swap, holders, locks, signatures */
#include "store/safety.h"

#include <blkid/blkid.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "engine/device.h"
#include "engine/vfio.h"
#include "store/vfio_image.h"
#include "store/vfio_system.h"
#include "util/util.h"

/* ---- Signatures ---- */

static const char *probe_value(blkid_probe probe, const char *name)
{
	const char *value;

	return blkid_probe_lookup_value(probe, name, &value, NULL) == 0 ? value : NULL;
}

/* What a signature is, from libblkid's USAGE. */
static const char *usage_words(const char *usage, const char *type)
{
	if (strcmp(type, "swap") == 0)
		return "area";
	if (!usage)
		return "signature";
	if (strcmp(usage, "filesystem") == 0)
		return "file system";
	if (strcmp(usage, "crypto") == 0)
		return "encrypted volume";
	return strcmp(usage, "raid") == 0 ? "RAID or LVM member" : "signature";
}

static void describe(blkid_probe probe, struct spw_signature *signature)
{
	const char *type = probe_value(probe, "TYPE"), *table = probe_value(probe, "PTTYPE");
	const char *label = probe_value(probe, "LABEL"),
		   *magic = probe_value(probe, type ? "SBMAGIC_OFFSET" : "PTMAGIC_OFFSET");
	size_t len;

	if (type)
		(void)snprintf(signature->what, sizeof(signature->what), label ? "%s %s \"%s\"" : "%s %s", type,
			       usage_words(probe_value(probe, "USAGE"), type), label);
	else
		(void)snprintf(signature->what, sizeof(signature->what), "%s partition table",
			       table ? table : "unknown");
	/* A label is anybody's bytes, and this is shown on terminals. */
	spw_make_printable(signature->what);
	signature->offset_bytes = magic ? strtoull(magic, NULL, 10) : 0;
	if (magic && blkid_probe_lookup_value(probe, type ? "SBMAGIC" : "PTMAGIC", NULL, &len) == 0)
		signature->len_bytes = len;
}

/* Settings as of wipefs(8): whatever has a magic, a wrong checksum and a lone backup table included. */
static int configure(blkid_probe probe, int fd, unsigned sector_bytes)
{
	if (blkid_probe_set_device(probe, fd, 0, 0) != 0 ||
	    (sector_bytes && blkid_probe_set_sectorsize(probe, sector_bytes) != 0))
		return -EIO;
	blkid_probe_enable_superblocks(probe, 1);
	blkid_probe_set_superblocks_flags(probe, BLKID_SUBLKS_TYPE | BLKID_SUBLKS_LABEL | BLKID_SUBLKS_USAGE |
							 BLKID_SUBLKS_MAGIC | BLKID_SUBLKS_BADCSUM);
	blkid_probe_enable_partitions(probe, 1);
	blkid_probe_set_partitions_flags(probe, BLKID_PARTS_MAGIC | BLKID_PARTS_FORCE_GPT);
	return 0;
}

static int collect(blkid_probe probe, struct spw_signatures *signatures)
{
	int more = 0;

	while (signatures->count < SPW_SIGNATURES_MAX && (more = blkid_do_probe(probe)) == 0) {
		struct spw_signature *signature = &signatures->found[signatures->count];

		describe(probe, signature);
		signatures->count++;
	}
	return more < 0 ? -EIO : 0;
}

/* Open the node by which others know @path, to look only. Return: a descriptor or a negative errno. */
static int open_node(const char *path)
{
	char node[PATH_MAX];
	int rc = spw_device_block_node(path, node, sizeof(node));
	int fd = rc == 0 ? open(node, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : rc;

	if (rc == 0 && fd < 0)
		return -errno;
	return fd;
}

/* stat(2) of the node by which others know @path. */
static int stat_node(const char *path, struct stat *st)
{
	char node[PATH_MAX];
	int rc = spw_device_block_node(path, node, sizeof(node));

	return rc != 0 ? rc : stat(node, st) != 0 ? -errno : 0;
}

/*
 * The same, for who needs to know. Return: 1; 0: it has none, being a controller behind vfio-pci, which nobody else could use; or
 * a negative errno, with the words.
 */
static int examine_node(const char *path, struct stat *st)
{
	int rc;

	if (spw_vfio_is_name(path))
		return 0;
	rc = stat_node(path, st);
	return rc != 0 ? spw_error_errno(rc, "%s cannot be examined", path) : 1;
}

void spw_safety_prepare(void)
{
	blkid_init_debug(0);
}

/* @sector_bytes: 0: as the descriptor says */
static int search(const char *path, int fd, unsigned sector_bytes, struct spw_signatures *signatures)
{
	blkid_probe probe = blkid_new_probe();
	int rc;

	if (!probe)
		return spw_error(-ENOMEM, "%s: no memory to search for file systems", path);
	rc = configure(probe, fd, sector_bytes);
	if (rc == 0)
		rc = collect(probe, signatures);
	blkid_free_probe(probe);
	return rc == 0 ? 0
		       : spw_error(rc, "%s: libblkid could not read it to search for file systems; check the drive",
				   path);
}

/*
 * libblkid follows what a boot sector of NTFS and others says to the middle of the drive, where the image has nothing.
 * In doubt it is somebody's.
 */
static void add_boot_sector(int fd, struct spw_signatures *signatures)
{
	uint8_t mark[2];

	if (signatures->count > 0 || pread(fd, mark, sizeof(mark), 510) != sizeof(mark) || mark[0] != 0x55 ||
	    mark[1] != 0xaa)
		return;
	(void)snprintf(signatures->found[0].what, sizeof(signatures->found[0].what), "boot sector");
	signatures->found[0].offset_bytes = 510;
	signatures->found[0].len_bytes = sizeof(mark);
	signatures->count = 1;
}

int spw_safety_image_signatures(const struct spw_device *device, struct spw_signatures *signatures)
{
	int fd = spw_vfio_image(device);
	int rc;

	memset(signatures, 0, sizeof(*signatures));
	if (fd < 0)
		return fd;
	rc = search(spw_device_path(device), fd, spw_device_geometry(device)->logical_block_bytes, signatures);
	if (rc == 0)
		add_boot_sector(fd, signatures);
	(void)close(fd);
	return rc;
}

static int vfio_signatures(const char *path, struct spw_signatures *signatures)
{
	struct spw_device *device;
	int rc = spw_safety_open(path, true, false, NULL, &device);

	if (rc == 0)
		rc = spw_safety_image_signatures(device, signatures);
	spw_device_close(device);
	return rc;
}

int spw_safety_signatures(const char *path, struct spw_signatures *signatures)
{
	int fd, rc;

	memset(signatures, 0, sizeof(*signatures));
	if (spw_vfio_is_name(path))
		return vfio_signatures(path, signatures);
	fd = open_node(path);
	if (fd < 0)
		return spw_error_errno(fd, "%s: cannot be searched for file systems", path);
	rc = search(path, fd, 0, signatures);
	(void)close(fd);
	return rc;
}

/* ---- sysfs ---- */

/* The sysfs folder of a block device. Return: false when there is none. */
static bool sysfs_folder(dev_t number, char folder[PATH_MAX])
{
	char link[64];

	(void)snprintf(link, sizeof(link), "/sys/dev/block/%u:%u", major(number), minor(number));
	return realpath(link, folder) != NULL;
}

static bool join(char *out, size_t len, const char *folder, const char *name)
{
	return snprintf(out, len, "%s/%s", folder, name) < (int)len;
}

static bool read_device_number(const char *folder, dev_t *number)
{
	char path[PATH_MAX], line[32];
	unsigned major_number, minor_number;

	if (!join(path, sizeof(path), folder, "dev") || !spw_read_line(path, line, sizeof(line)) ||
	    sscanf(line, "%u:%u", &major_number, &minor_number) != 2)
		return false;
	*number = makedev(major_number, minor_number);
	return true;
}

/* A folder of sysfs. Return: 1; 0: there is none; a negative errno: what is in it cannot be told. */
static int open_folder(const char *folder, DIR **dir)
{
	*dir = opendir(folder);
	if (*dir)
		return 1;
	return errno == ENOENT ? 0 : spw_error_errno(-errno, "%s cannot be read", folder);
}

/*
 * Call @visit for every partition that the kernel has of a whole device, until it returns something else than 0.
 * Return: that, or 0; or a negative errno: nobody can tell.
 */
static int each_partition(dev_t number, int (*visit)(const char *name, dev_t number, void *context), void *context)
{
	char folder[PATH_MAX], child[PATH_MAX], mark[PATH_MAX];
	struct dirent *entry;
	dev_t partition;
	DIR *dir;
	int rc;

	if (!sysfs_folder(number, folder))
		return 0;
	rc = open_folder(folder, &dir);
	if (rc <= 0)
		return rc;
	rc = 0;
	while (rc == 0 && (entry = readdir(dir)) != NULL) {
		if (entry->d_name[0] == '.' || !join(child, sizeof(child), folder, entry->d_name) ||
		    !join(mark, sizeof(mark), child, "partition"))
			continue;
		if (access(mark, F_OK) == 0 && read_device_number(child, &partition))
			rc = visit(entry->d_name, partition, context);
	}
	(void)closedir(dir);
	return rc;
}

struct name_list {
	char *text;
	size_t len, used;
	unsigned count;
};

static int add_name(const char *name, dev_t number, void *context)
{
	struct name_list *list = context;
	int written = snprintf(list->text + list->used, list->len - list->used, list->count > 0 ? ", %s" : "%s", name);

	(void)number;
	list->count++;
	if (written > 0 && list->used + (size_t)written < list->len)
		list->used += (size_t)written;
	return 0;
}

unsigned spw_safety_partitions(const char *path, char *names, size_t len)
{
	struct name_list list = {.text = names, .len = len};
	struct stat st;

	names[0] = '\0';
	if (stat_node(path, &st) == 0 && S_ISBLK(st.st_mode))
		(void)each_partition(st.st_rdev, add_name, &list);
	return list.count;
}

/* ---- In use ---- */

/* Blanks in the tables of /proc are written as \040. */
static void unescape(char *text)
{
	char *to = text;

	for (const char *from = text; *from; to++) {
		if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' && from[2] <= '7' &&
		    from[3] >= '0' && from[3] <= '7') {
			*to = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
			from += 4;
		} else {
			*to = *from++;
		}
	}
	*to = '\0';
}

/* What is asked of each line of a table: the device (or file) and a place for the answer. */
struct question {
	struct stat st;
	dev_t number;     /* of the block device, a partition perhaps */
	char answer[256]; /* the mount point, the swap file's name */
};

static bool is_block_device(const char *path, dev_t number)
{
	struct stat st;

	return path[0] == '/' && stat(path, &st) == 0 && S_ISBLK(st.st_mode) && st.st_rdev == number;
}

/* "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue" */
static bool is_mount_of(char *line, struct question *question)
{
	char *save = NULL, *fields[5], *source;
	unsigned major_number, minor_number;
	char *tail = strstr(line, " - ");

	if (!tail)
		return false;
	*tail = '\0';
	tail += 3;
	fields[0] = strtok_r(line, " ", &save);
	for (unsigned i = 1; i < SPW_ARRAY_LEN(fields); i++)
		fields[i] = strtok_r(NULL, " ", &save);
	if (!fields[4] || sscanf(fields[2], "%u:%u", &major_number, &minor_number) != 2)
		return false;
	save = NULL;
	(void)strtok_r(tail, " ", &save);
	source = strtok_r(NULL, " ", &save);
	if (source)
		unescape(source);
	/* btrfs has device numbers of its own: there, only the source tells. */
	if (makedev(major_number, minor_number) != question->number &&
	    !(source && is_block_device(source, question->number)))
		return false;
	unescape(fields[4]);
	(void)snprintf(question->answer, sizeof(question->answer), "%s", fields[4]);
	return true;
}

/* "/swap\040file  file  1048572  0  -2" under a headline */
static bool is_swap_on(char *line, struct question *question)
{
	char *save = NULL, *name = strtok_r(line, " \t", &save);
	struct stat st;

	if (!name || name[0] != '/')
		return false;
	unescape(name);
	if (stat(name, &st) != 0)
		return false;
	if (S_ISBLK(st.st_mode) ? st.st_rdev != question->number
				: st.st_dev != question->st.st_dev || st.st_ino != question->st.st_ino)
		return false;
	(void)snprintf(question->answer, sizeof(question->answer), "%s", name);
	return true;
}

/* Return: 1 when a line of the table answers the question, 0, or a negative errno. */
static int ask_table(const char *table, bool (*ask)(char *line, struct question *question), struct question *question)
{
	FILE *file = fopen(table, "re");
	char *line = NULL;
	size_t room = 0;
	int found = 0;

	/* A kernel without swap. Without mounts there is none: then /proc itself is missing, and nobody can tell. */
	if (!file && errno == ENOENT && access("/proc/self", F_OK) == 0)
		return 0;
	if (!file)
		return spw_error_errno(-errno, "%s cannot be read, so nobody can tell whether the device is in use",
				       table);
	while (found == 0 && getline(&line, &room, file) >= 0) {
		line[strcspn(line, "\n")] = '\0';
		found = ask(line, question) ? 1 : 0;
	}
	/* No memory for a line is no error of the file. */
	if (found == 0 && !feof(file))
		found = spw_error(-EIO, "%s cannot be read to its end", table);
	free(line);
	(void)fclose(file);
	return found;
}

/* The block devices on top: device mapper, RAID, bcache. Return: 1, 0 or a negative errno. */
static int find_holder(dev_t number, char *answer, size_t len)
{
	char folder[PATH_MAX], path[PATH_MAX], name[64];
	struct dirent *entry = NULL;
	DIR *dir;
	int rc;

	if (!sysfs_folder(number, folder) || !join(path, sizeof(path), folder, "holders"))
		return 0;
	rc = open_folder(path, &dir);
	if (rc <= 0)
		return rc;
	while ((entry = readdir(dir)) != NULL && entry->d_name[0] == '.')
		continue;
	if (entry) {
		(void)snprintf(answer, len, "%s", entry->d_name);
		if (snprintf(path, sizeof(path), "/sys/class/block/%s/dm/name", entry->d_name) < (int)sizeof(path) &&
		    spw_read_line(path, name, sizeof(name)))
			(void)snprintf(answer, len, "%.128s (%s)", entry->d_name, name);
	}
	rc = entry != NULL;
	(void)closedir(dir);
	return rc;
}

static int has_users(const char *subject, dev_t number)
{
	struct question question = {.number = number};
	int found = ask_table("/proc/self/mountinfo", is_mount_of, &question);

	if (found > 0)
		return spw_error(-EBUSY, "%s is mounted on %s; unmount it, or name another device", subject,
				 question.answer);
	if (found == 0)
		found = ask_table("/proc/swaps", is_swap_on, &question);
	if (found > 0)
		return spw_error(-EBUSY, "%s is in use as swap; run swapoff first, or name another device", subject);
	if (found == 0)
		found = find_holder(number, question.answer, sizeof(question.answer));
	if (found > 0)
		return spw_error(
			-EBUSY,
			"%s is held by %s, a block device made on top of it; remove that first, or name another device",
			subject, question.answer);
	return found;
}

/* ---- Loop devices, which claim nothing of what they show ---- */

static bool same_device(const struct stat *a, const struct stat *b)
{
	if (S_ISBLK(a->st_mode) && S_ISBLK(b->st_mode))
		return a->st_rdev == b->st_rdev;
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* What the loop device with that sysfs folder shows: a file, or a block device. */
static bool read_backing(const char *folder, struct stat *st)
{
	char path[PATH_MAX], backing[PATH_MAX];

	return join(path, sizeof(path), folder, "loop/backing_file") && spw_read_line(path, backing, sizeof(backing)) &&
	       stat(backing, st) == 0;
}

/*
 * The name of a loop device over @shown, other than the one with number @but (0: any). Return: 1, 0 or a negative
 * errno.
 */
static int find_loop_over(const struct stat *shown, dev_t but, char *name, size_t len)
{
	static const char all[] = "/sys/class/block";
	char folder[PATH_MAX];
	struct dirent *entry;
	struct stat st;
	dev_t number;
	DIR *dir;
	int rc = open_folder(all, &dir);

	if (rc <= 0)
		return rc;
	rc = 0;
	while (rc == 0 && (entry = readdir(dir)) != NULL) {
		if (strncmp(entry->d_name, "loop", 4) != 0 || !join(folder, sizeof(folder), all, entry->d_name) ||
		    !read_backing(folder, &st) || !same_device(&st, shown) || !read_device_number(folder, &number) ||
		    number == but)
			continue;
		rc = 1;
		(void)snprintf(name, len, "%s", entry->d_name);
	}
	(void)closedir(dir);
	return rc;
}

/* The sysfs folder of the whole drive, and its number: of a partition, the folder above. */
static bool whole_drive(dev_t number, char folder[PATH_MAX], dev_t *whole)
{
	char mark[PATH_MAX];

	if (!sysfs_folder(number, folder) || !join(mark, sizeof(mark), folder, "partition"))
		return false;
	if (access(mark, F_OK) == 0)
		*strrchr(folder, '/') = '\0';
	return read_device_number(folder, whole);
}

/*
 * Who is asked about, in words that begin a message; and the number of a loop device over it that does not count, or
 * 0.
 */
struct subject {
	const char *words;
	dev_t but;
};

static int is_shown(const struct subject *subject, const struct stat *st)
{
	char loop[256];
	int rc = find_loop_over(st, subject->but, loop, sizeof(loop));

	return rc <= 0 ? rc
		       : spw_error(-EBUSY,
				   "%s is shown by /dev/%s, a loop device; name that, or detach it first (losetup -d)",
				   subject->words, loop);
}

static int file_has_users(const struct subject *subject, const struct stat *st)
{
	struct question question = {.st = *st};
	int rc = ask_table("/proc/swaps", is_swap_on, &question);

	if (rc > 0)
		return spw_error(-EBUSY, "%s is in use as swap; run swapoff first, or name another file",
				 subject->words);
	return rc == 0 ? is_shown(subject, st) : rc;
}

static int shown_has_users(const struct subject *subject, const struct stat *shown);

/* A whole device or a partition; and, if it is a loop device, what it shows. */
static int block_device_has_users(const struct subject *subject, dev_t number)
{
	struct stat st = {.st_mode = S_IFBLK, .st_rdev = number};
	char folder[PATH_MAX], words[PATH_MAX + 160];
	struct subject inner = {.words = words};
	int rc = has_users(subject->words, number);

	if (rc == 0)
		rc = is_shown(subject, &st);
	if (rc != 0 || !whole_drive(number, folder, &inner.but))
		return rc;
	st.st_rdev = inner.but;
	if (inner.but != number)
		rc = is_shown(subject, &st);
	if (rc != 0 || !read_backing(folder, &st))
		return rc;
	(void)snprintf(words, sizeof(words), "%s what it shows", subject->words);
	return shown_has_users(&inner, &st);
}

static int partition_has_users(const char *name, dev_t number, void *context)
{
	const struct subject *whole = context;
	char words[PATH_MAX + 256];
	struct subject subject = {.words = words, .but = whole->but};

	(void)snprintf(words, sizeof(words), "%s its partition %s", whole->words, name);
	return block_device_has_users(&subject, number);
}

/* The kernel lets loop devices show each other, but not in a circle. */
static int shown_has_users(const struct subject *subject, const struct stat *shown)
{
	struct subject whole = *subject;
	int rc;

	if (!S_ISBLK(shown->st_mode))
		return file_has_users(subject, shown);
	rc = block_device_has_users(subject, shown->st_rdev);
	return rc != 0 ? rc : each_partition(shown->st_rdev, partition_has_users, &whole);
}

int spw_safety_in_use(const char *path)
{
	char words[PATH_MAX + 8];
	struct subject subject = {.words = words};
	struct stat st;
	int rc = examine_node(path, &st);

	if (rc <= 0 || (!S_ISBLK(st.st_mode) && !S_ISREG(st.st_mode)))
		return rc < 0 ? rc : 0;
	(void)snprintf(words, sizeof(words), "%s:", path);
	return shown_has_users(&subject, &st);
}

/* ---- Names, locks, opening ---- */

static bool are_same(const char *a, const char *b)
{
	struct spw_vfio_name names[2];
	struct stat stats[2];

	if (spw_vfio_is_name(a) || spw_vfio_is_name(b))
		return spw_vfio_is_name(a) && spw_vfio_is_name(b) && spw_vfio_parse(a, &names[0]) == 0 &&
		       spw_vfio_parse(b, &names[1]) == 0 && strcmp(names[0].address, names[1].address) == 0 &&
		       names[0].namespace_id == names[1].namespace_id;
	return stat_node(a, &stats[0]) == 0 && stat_node(b, &stats[1]) == 0 && same_device(&stats[0], &stats[1]);
}

int spw_safety_distinct(const char *const paths[], unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		for (unsigned j = 0; j < i; j++)
			if (are_same(paths[i], paths[j]))
				return spw_error(-ENOTUNIQ, "%s and %s are the same device; name each drive once",
						 paths[j], paths[i]);
	return 0;
}

static int read_only_error(const char *path)
{
	return spw_error(-EROFS, "%s: is read-only; remove the write protection, or name another device", path);
}

static int node_locked(const char *path, uint64_t offset_bytes, uint64_t len_bytes)
{
	struct flock lock = {
		.l_type = F_WRLCK,
		.l_whence = SEEK_SET,
		.l_start = (off_t)offset_bytes,
		.l_len = (off_t)len_bytes,
	};
	int fd = open_node(path);
	int rc;

	if (fd < 0)
		return spw_error_errno(fd, "%s: cannot be asked for locks", path);
	if (fcntl(fd, F_OFD_GETLK, &lock) != 0)
		rc = spw_error_errno(-errno, "%s: cannot be asked for locks", path);
	else
		rc = lock.l_type == F_UNLCK ? 0 : 1;
	(void)close(fd);
	return rc;
}

/* Other processes have no locks there: they cannot have the drive. */
static int vfio_locked(const char *path, uint64_t offset_bytes, uint64_t len_bytes)
{
	struct spw_device *device;
	int rc = spw_safety_open(path, false, false, NULL, &device);

	if (rc != 0)
		return rc;
	rc = spw_device_lock(device, offset_bytes, len_bytes);
	spw_device_close(device);
	return rc == -EBUSY ? 1 : rc;
}

int spw_safety_locked(const char *path, uint64_t offset_bytes, uint64_t len_bytes)
{
	if (spw_vfio_is_name(path))
		return vfio_locked(path, offset_bytes, len_bytes);
	return node_locked(path, offset_bytes, len_bytes);
}

/* The node of the block device of that name in sysfs. Return: false: /dev has none. */
static bool node_of(const char *name, dev_t number, char *node, size_t len)
{
	struct stat st;

	if (snprintf(node, len, "/dev/%s", name) >= (int)len)
		return false;
	for (char *at = strchr(node, '!'); at; at = strchr(at, '!'))
		*at = '/';
	return stat(node, &st) == 0 && S_ISBLK(st.st_mode) && st.st_rdev == number;
}

static int relative_locked(const char *path, const char *name, dev_t number)
{
	char node[PATH_MAX];
	int rc;

	/* Without a node nobody has it open by that. */
	if (!node_of(name, number, node, sizeof(node)))
		return 0;
	rc = node_locked(node, 0, SPW_LOCK_ALL_BYTES);
	return rc <= 0 ? rc
		       : spw_error(-EBUSY,
				   "%s: a process has a store on %s open, which has the same blocks; end that process "
				   "first (see fuser %s)",
				   path, node, node);
}

static int partition_locked(const char *name, dev_t number, void *context)
{
	return relative_locked(context, name, number);
}

int spw_safety_relatives_locked(const char *path)
{
	char folder[PATH_MAX], *context = (char *)(uintptr_t)path;
	struct stat st;
	dev_t whole;
	int rc = examine_node(path, &st);

	if (rc <= 0 || !S_ISBLK(st.st_mode) || !whole_drive(st.st_rdev, folder, &whole))
		return rc < 0 ? rc : 0;
	if (whole != st.st_rdev)
		return relative_locked(path, strrchr(folder, '/') + 1, whole);
	return each_partition(whole, partition_locked, context);
}

int spw_safety_still(const struct spw_device *device)
{
	const char *path = spw_device_path(device);
	struct stat named, opened;

	if (spw_vfio_is_name(path))
		return 0;
	if (fstat(device->fd, &opened) != 0)
		return spw_error_errno(-errno, "%s cannot be examined", path);
	if (stat_node(path, &named) != 0 || !same_device(&named, &opened))
		return spw_error(-ESTALE, "%s: names another device than a moment ago; look what it is, and try again",
				 path);
	return 0;
}

int spw_safety_writable(const char *path)
{
	int protected = 0;
	struct stat st;
	int fd;

	/* Its driver, which is us, finds write protection in the status of a write. */
	if (spw_vfio_is_name(path))
		return 0;
	fd = open_node(path);
	if (fd < 0)
		return spw_error_errno(fd, "%s: cannot be asked whether it is write-protected", path);
	if (fstat(fd, &st) != 0 || (S_ISBLK(st.st_mode) && ioctl(fd, BLKROGET, &protected) != 0)) {
		int rc = spw_error_errno(-errno, "%s: cannot be asked whether it is write-protected", path);

		(void)close(fd);
		return rc;
	}
	(void)close(fd);
	return protected ? read_only_error(path) : 0;
}

int spw_safety_conventional(const char *path)
{
	char folder[PATH_MAX], queue[PATH_MAX], zoned[32];
	struct stat st;
	dev_t whole;
	int rc = examine_node(path, &st);

	if (rc <= 0 || !S_ISBLK(st.st_mode))
		return rc < 0 ? rc : 0;
	/* A kernel that knows no zones has no such file. */
	if (!whole_drive(st.st_rdev, folder, &whole) || !join(queue, sizeof(queue), folder, "queue/zoned") ||
	    !spw_read_line(queue, zoned, sizeof(zoned)) || strcmp(zoned, "none") == 0)
		return 0;
	return spw_error(-ESPIPE,
			 "%s: is a zoned drive (%s), which has to be written in order, zone by zone; name a "
			 "conventional drive",
			 path, zoned);
}

int spw_safety_open(const char *path, bool read_only, bool exclusive, const struct spw_log *log,
		    struct spw_device **device)
{
	struct spw_device_opts opts;
	int rc;

	spw_device_opts_init(&opts, sizeof(opts));
	opts.read_only = read_only;
	opts.exclusive = exclusive;
	if (log)
		opts.log = *log;
	rc = spw_device_open(path, &opts, device);
	if (spw_vfio_is_name(path))
		return rc == -EBUSY ? spw_vfio_busy_error(path) : rc;
	if (rc == -EACCES || rc == -EPERM)
		return spw_error(rc, "%s: no permission to %s it; run as root, or as a user in the group that owns it",
				 path, read_only ? "read" : "write");
	if (rc == -EROFS)
		return read_only_error(path);
	if (rc == -EBUSY)
		return spw_error(rc, "%s: is in use by another program (see fuser %s); end that first", path, path);
	return rc;
}
