/* SPDX-License-Identifier: MIT */
/* status/status.c - status pages in /dev/shm: create, name and remove ours, read those of others */
#include "status/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/fork.h"
#include "util/util.h"

#define READS_MAX 1000 /* tries to read a page that keeps changing */
#define TAKES_MAX 100  /* tries to take a name that other processes take and leave */
#define FOLDER    "/dev/shm"

#define PAGE_PATH(store_uuid, partition) \
	SPW_PATH(FOLDER "/spillway-%.36s-%u", store_uuid, partition)

static int no_page_error(const char *path)
{
	return spw_error(-EUCLEAN, "%s is not a status page of this version of spillway", path);
}

/* ---- Whose a page is ---- */

/* An owner locks the whole page; readers test the first byte. A remover locks another byte. */
#define OWNER_BYTE   0
#define REMOVER_BYTE 1

static int lock_page(int fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

	return fcntl(fd, F_OFD_SETLK, &lock) ? -errno : 0;
}

/* Has a page an owner? Return: 1; 0 it has none, and never will; -errno. */
static int owner_of(int fd)
{
	return spw_fd_locked(fd, OWNER_BYTE, 1);
}

/*
 * Lock the right to remove a page without an owner. @waits: until another process has removed it.
 * Return: 0; -EACCES: the lock is another user's, who could keep us waiting.
 */
static int lock_removal(int fd, bool waits)
{
	struct flock lock = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = REMOVER_BYTE, .l_len = 1};
	int rc;

	do
		rc = fcntl(fd, waits ? F_OFD_SETLKW : F_OFD_SETLK, &lock) ? -errno : 0;
	while (rc == -EINTR);
	return rc == -EAGAIN ? -EACCES : rc;
}

static bool is_named(int fd, const char *path)
{
	struct stat opened, named;

	return fstat(fd, &opened) == 0 && lstat(path, &named) == 0 &&
	       opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

/*
 * Remove any file that has the name of a page and no owner (PAGE-1), under the remover's lock: no
 * process may remove the page that another has just made. Return: 0 the name is free; -EBUSY it is
 * owned; -EACCES it is another user's, whose lock must not keep us from our drives; another -errno.
 */
static int remove_unowned(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	bool trusted;
	struct stat st;
	int rc;

	if (fd < 0 && errno == ENOENT)
		return 0;
	/* A symlink or a folder is not a page. A file that we may not open is another user's. */
	if (fd < 0)
		return errno == ELOOP || errno == EISDIR ? (unlink(path) ? -errno : 0) : -errno;
	rc = fstat(fd, &st) ? -errno : S_ISREG(st.st_mode) ? owner_of(fd) : 0;
	trusted = rc >= 0 && (st.st_uid == geteuid() || st.st_uid == 0);
	if (rc > 0)
		rc = trusted ? -EBUSY : -EACCES;
	if (rc == 0 && S_ISREG(st.st_mode))
		rc = lock_removal(fd, trusted);
	if (rc == 0 && is_named(fd, path) && unlink(path))
		rc = -errno;
	(void)close(fd);
	return rc;
}

/* Allocate the file now: a later write to a mapping of a full /dev/shm would raise SIGBUS. */
static int reserve(int fd)
{
	off_t len = (off_t)sizeof(struct spw_status_page);

	if (ftruncate(fd, len))
		return -errno;
	while (fallocate(fd, 0, 0, len)) {
		if (errno == EOPNOTSUPP) /* file system without a size limit */
			return 0;
		if (errno != EINTR)
			return -errno;
	}
	return 0;
}

/* Create a page without a name, and lock it before it gets one (PAGE-2). @fd: set to the page. */
static int make_page(int *fd)
{
	int rc;

	*fd = open(FOLDER, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (*fd < 0)
		return -errno;
	rc = reserve(*fd);
	if (rc == 0)
		rc = lock_page(*fd);
	if (rc == 0)
		rc = spw_fork_add(*fd);
	if (rc)
		(void)close(*fd);
	return rc;
}

static int busy_error(const char *store_uuid, uint32_t partition)
{
	struct spw_status *status = malloc(sizeof(*status));
	char owner[64] = "another process";

	if (status && spw_status_read(store_uuid, partition, status, sizeof(*status)) == 0)
		(void)snprintf(owner, sizeof(owner), "process %d (%s)", status->pid,
			       status->command);
	free(status);
	return spw_error(-EBUSY,
			 "partition %u of the store is open in %s; use another partition, or end "
			 "that process",
			 partition, owner);
}

/* Give a page its name. Of several processes the first gets the name; the others find it owned. */
static int name_page(const char *path, int fd)
{
	const char *link = SPW_PATH("/proc/self/fd/%d", fd);
	int rc = 0;

	for (unsigned i = 0; i < TAKES_MAX; i++) {
		if (linkat(AT_FDCWD, link, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0)
			return 0;
		if (errno != EEXIST)
			return -errno;
		rc = remove_unowned(path);
		if (rc)
			return rc;
	}
	return -EEXIST;
}

int spw_status__take(const char *store_uuid, uint32_t partition, int *fd)
{
	const char *path = PAGE_PATH(store_uuid, partition);
	int rc;

	spw_fork_hold();
	rc = make_page(fd);
	spw_fork_release();
	if (rc == 0) {
		rc = name_page(path, *fd);
		if (rc)
			spw_fork_close(*fd);
	}
	if (rc)
		*fd = -1;
	if (rc == -EBUSY)
		return busy_error(store_uuid, partition);
	return rc ? spw_error_errno(rc, "%s cannot be made", path) : 0;
}

static bool is_owned(const char *store_uuid, uint32_t partition)
{
	const char *path = PAGE_PATH(store_uuid, partition);
	int fd, owner;

	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return false;
	owner = owner_of(fd);
	(void)close(fd);
	return owner > 0;
}

bool spw_status__others(const char *store_uuid, uint32_t count, uint32_t but)
{
	for (uint32_t i = 0; i < count; i++)
		if (i != but && is_owned(store_uuid, i))
			return true;
	return false;
}

void spw_status__drop(const char *store_uuid, uint32_t partition, int fd)
{
	const char *path = PAGE_PATH(store_uuid, partition);

	if (fd < 0)
		return;
	if (is_named(fd, path))
		(void)unlink(path);
	spw_fork_close(fd);
}

/* ---- Reading a page ---- */

/* Open a page and check its size, not its content. Return: a descriptor or a negative errno. */
static int open_page(const char *store_uuid, uint32_t partition, int flags)
{
	const char *path = PAGE_PATH(store_uuid, partition);
	struct stat st;
	int fd;

	fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0 && errno == ENOENT)
		return spw_error(-ENOENT, "partition %u of store %s is not open in any process",
				 partition, store_uuid);
	if (fd < 0)
		return spw_error_errno(-errno, "cannot read %s (its owner and root can)", path);
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) ||
	    st.st_size != (off_t)sizeof(struct spw_status_page)) {
		(void)close(fd);
		return no_page_error(path);
	}
	return fd;
}

static bool read_exactly(int fd, void *bytes, size_t len, size_t offset)
{
	ssize_t got;

	do
		got = pread(fd, bytes, len, (off_t)offset);
	while (got < 0 && errno == EINTR);
	return got == (ssize_t)len;
}

/* Read a consistent copy of a page. Return: 0; -EIO cannot be read; -EAGAIN it keeps changing. */
static int read_page(int fd, struct spw_status_page *copy)
{
	uint32_t before, after;

	for (unsigned i = 0; i < READS_MAX; i++) {
		if (!read_exactly(fd, &before, sizeof(before),
				  offsetof(struct spw_status_page, sequence)))
			return -EIO;
		if (before % 2)
			continue;
		if (!read_exactly(fd, copy, sizeof(*copy), 0) ||
		    !read_exactly(fd, &after, sizeof(after),
				  offsetof(struct spw_status_page, sequence)))
			return -EIO;
		if (after == before)
			return 0;
	}
	return -EAGAIN;
}

/* Terminate text of another process, and make it harmless for terminals. */
static void clean(char *text, size_t size)
{
	text[size - 1] = '\0';
	spw_make_printable(text);
}

#define CLEAN(text) clean(text, sizeof(text))

static int check_copy(struct spw_status_page *copy, int owner, const char *store_uuid,
		      uint32_t partition)
{
	struct spw_status *status = &copy->status;

	if (owner == 0)
		return spw_error(
			-ESRCH,
			"partition %u of store %s is not open: process %d left its page behind",
			partition, store_uuid, status->pid);
	CLEAN(status->store_uuid);
	CLEAN(status->command);
	CLEAN(status->description);
	if (status->drives > SPW_DRIVES_MAX || status->partition != partition ||
	    strcmp(status->store_uuid, store_uuid) != 0)
		return spw_error(-EUCLEAN,
				 "the status page of partition %u of store %s makes no sense",
				 partition, store_uuid);
	for (uint32_t i = 0; i < status->drives; i++)
		CLEAN(status->drive[i].path);
	return 0;
}

/* Copy a page by read(2): access to a mapping raises SIGBUS when the owner truncates the file. */
static int copy_page(const char *store_uuid, uint32_t partition, struct spw_status_page *copy)
{
	const char *path = PAGE_PATH(store_uuid, partition);
	int fd = open_page(store_uuid, partition, O_RDONLY), rc, owner;

	if (fd < 0)
		return fd;
	/*
	 * A page without an owner does not change, even if the owner died in the middle of a write.
	 */
	owner = owner_of(fd);
	if (owner == 0)
		rc = read_exactly(fd, copy, sizeof(*copy), 0) ? 0 : -EIO;
	else
		rc = read_page(fd, copy);
	(void)close(fd);
	if (rc == -EAGAIN)
		return spw_error(-EUCLEAN, "the status page of partition %u never comes to rest",
				 partition);
	if (rc == 0 && copy->magic == 0)
		return spw_error(-ENOENT, "partition %u of store %s is being opened", partition,
				 store_uuid);
	if (rc || copy->magic != SPW_PAGE_MAGIC || copy->version != SPW_PAGE_VERSION ||
	    copy->size != sizeof(*copy))
		return no_page_error(path);
	return check_copy(copy, owner, store_uuid, partition);
}

int spw_status_read(const char *store_uuid, uint32_t partition, struct spw_status *status,
		    size_t size)
{
	struct spw_status_page *copy = malloc(sizeof(*copy));
	uint64_t now_ns;
	int rc;

	if (!copy)
		return spw_error(-ENOMEM, "out of memory");
	rc = copy_page(store_uuid, partition, copy);
	if (rc == 0) {
		now_ns = spw_clock_ns();
		copy->status.age_ns = spw_since_ns(copy->refreshed_ns, now_ns);
		copy->status.open_ns = spw_since_ns(copy->opened_ns, now_ns);
		copy->status.size = size < sizeof(*status) ? size : sizeof(*status);
		memcpy(status, &copy->status, copy->status.size);
	}
	free(copy);
	return rc;
}

int spw_status_revive(const char *store_uuid, uint32_t partition, uint32_t drive)
{
	struct spw_status *status = malloc(sizeof(*status));
	struct spw_status_page *page;
	int fd = -1, rc;

	if (!status)
		return spw_error(-ENOMEM, "out of memory");
	rc = spw_status_read(store_uuid, partition, status, sizeof(*status));
	if (rc == 0 && drive >= status->drives)
		rc = spw_error(-EINVAL, "the store has %u drives, numbered from 0", status->drives);
	free(status);
	if (rc == 0)
		fd = open_page(store_uuid, partition, O_RDWR);
	if (fd < 0)
		return rc ? rc : fd;
	page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		rc = spw_error_errno(-errno,
				     "cannot map the status page of partition %u of store %s",
				     partition, store_uuid);
	(void)close(fd);
	if (rc)
		return rc;
	atomic_fetch_or(&page->revive, UINT64_C(1) << drive);
	(void)munmap(page, sizeof(*page));
	return 0;
}

/* ---- All pages ---- */

struct list {
	struct spw_status_page *page;
	struct spw_status_name *names;
	unsigned count, found;
};

/* List a page, or remove it if unowned: opening removes only the pages of the same store. */
static int visit_page(void *context, const char *folder, const char *entry)
{
	struct list *list = context;
	struct spw_status_name name;
	const char *path;
	struct stat st;

	(void)folder;
	if (sscanf(entry, "spillway-%36[0-9a-f-]-%u", name.store_uuid, &name.partition) != 2)
		return 0;
	path = PAGE_PATH(name.store_uuid, name.partition);
	/* Remove it before reading it: its process may have died in the middle of a write. */
	if (lstat(path, &st) || !S_ISREG(st.st_mode) || remove_unowned(path) == 0 ||
	    copy_page(name.store_uuid, name.partition, list->page))
		return 0;
	if (list->found < list->count)
		list->names[list->found] = name;
	list->found++;
	return 0;
}

int spw_status_list(struct spw_status_name names[], unsigned count)
{
	struct list list = {.page = malloc(sizeof(*list.page)), .names = names, .count = count};
	int rc = list.page ? spw_each_name(FOLDER, visit_page, &list)
			   : spw_error(-ENOMEM, "out of memory");

	free(list.page);
	return rc ? rc : (int)list.found;
}

void spw_status__sweep(void)
{
	(void)spw_status_list(NULL, 0);
}
