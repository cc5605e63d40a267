/* SPDX-License-Identifier: MIT */
/* store/status.c - reading the shared pages of partitions that other processes have open */
#include "store/status.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/util.h"

#define SWEEP_AGE_NS UINT64_C(10000000000) /* an opener waits no longer for a killed process' rings */
#define READS_MAX    1000                  /* of a page that changes under our eyes each time */

void spw_page_name(const char *store_uuid, uint32_t partition, char name[SPW_PAGE_NAME_BYTES])
{
	(void)snprintf(name, SPW_PAGE_NAME_BYTES, "/spillway-%.36s-%u", store_uuid, partition);
}

uint64_t spw_process_start(int32_t pid)
{
	char path[32], text[512];
	unsigned long long start = 0;
	const char *after_name;
	size_t len;
	FILE *file;

	(void)snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	file = fopen(path, "re");
	if (!file)
		return 0;
	len = fread(text, 1, sizeof(text) - 1, file);
	(void)fclose(file);
	text[len] = '\0';
	/*
	 * The name, in parentheses, may itself contain anything. The start time is the 20th field behind it (proc(5),
	 * field 22).
	 */
	after_name = strrchr(text, ')');
	for (int field = 0; after_name && field < 20; field++)
		after_name = strchr(after_name + 1, ' ');
	if (after_name)
		start = strtoull(after_name, NULL, 10);
	return start;
}

static int no_page_error(const char *name)
{
	return spw_error(-EUCLEAN, "/dev/shm%s is no status page of this version of spillway", name);
}

/*
 * Open the page of a partition. Anybody may put anything there: nothing of it is waited for, and only its size is
 * known.
 */
static int open_page(const char *store_uuid, uint32_t partition, int flags, int *out)
{
	char name[SPW_PAGE_NAME_BYTES];
	struct stat st;
	int fd;

	spw_page_name(store_uuid, partition, name);
	fd = shm_open(name, flags | O_NONBLOCK, 0);
	if (fd < 0 && errno == ENOENT)
		return spw_error(-ENOENT, "partition %u of store %s is not open in any process", partition, store_uuid);
	if (fd < 0)
		return spw_error_errno(-errno, "cannot read /dev/shm%s (its owner and root can)", name);
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size != (off_t)sizeof(struct spw_status_page)) {
		(void)close(fd);
		return no_page_error(name);
	}
	*out = fd;
	return 0;
}

static bool read_exactly(int fd, void *bytes, size_t len, size_t offset)
{
	ssize_t got;

	do
		got = pread(fd, bytes, len, (off_t)offset);
	while (got < 0 && errno == EINTR);
	return got == (ssize_t)len;
}

/* All of the page as it is at one moment. Return: 0; -EIO it cannot be read; -EAGAIN it changes each time. */
static int read_page(int fd, struct spw_status_page *copy)
{
	uint32_t before, after;

	for (unsigned i = 0; i < READS_MAX; i++) {
		if (!read_exactly(fd, &before, sizeof(before), offsetof(struct spw_status_page, sequence)))
			return -EIO;
		if (before % 2)
			continue;
		if (!read_exactly(fd, copy, sizeof(*copy), 0) ||
		    !read_exactly(fd, &after, sizeof(after), offsetof(struct spw_status_page, sequence)))
			return -EIO;
		if (after == before)
			return 0;
	}
	return -EAGAIN;
}

/*
 * Copy the page of a partition: by reading, not by mapping it, for its owner could cut the file off at any moment,
 * and who then looks at the mapping ends by SIGBUS. Nothing in it has been checked but its size, magic and version.
 */
static int copy_page(const char *store_uuid, uint32_t partition, struct spw_status_page *copy)
{
	char name[SPW_PAGE_NAME_BYTES];
	int fd, rc = open_page(store_uuid, partition, O_RDONLY, &fd);

	if (rc)
		return rc;
	rc = read_page(fd, copy);
	(void)close(fd);
	if (rc == -EAGAIN)
		return spw_error(-EUCLEAN, "the status page of partition %u never comes to rest", partition);
	spw_page_name(store_uuid, partition, name);
	if (rc || copy->magic != SPW_PAGE_MAGIC || copy->version != SPW_PAGE_VERSION || copy->size != sizeof(*copy))
		return no_page_error(name);
	return 0;
}

/* Text from elsewhere ends where its array ends, and does nothing to a terminal. */
static void clean(char *text, size_t size)
{
	text[size - 1] = '\0';
	spw_make_printable(text);
}

#define CLEAN(text) clean(text, sizeof(text))

static int check_copy(struct spw_status_page *copy, const char *store_uuid, uint32_t partition)
{
	struct spw_status *status = &copy->status;
	uint64_t start = spw_process_start(status->pid);

	if (start == 0 || start != copy->owner_start)
		return spw_error(-ESRCH, "partition %u of store %s is not open: process %d left its page behind",
				 partition, store_uuid, status->pid);
	CLEAN(status->store_uuid);
	CLEAN(status->command);
	CLEAN(status->description);
	if (status->drives > SPW_DRIVES_MAX || status->partition != partition ||
	    strcmp(status->store_uuid, store_uuid) != 0)
		return spw_error(-EUCLEAN, "the status page of partition %u of store %s makes no sense", partition,
				 store_uuid);
	for (uint32_t i = 0; i < status->drives; i++)
		CLEAN(status->drive[i].path);
	return 0;
}

int spw_status_read(const char *store_uuid, uint32_t partition, struct spw_status *status, size_t size)
{
	struct spw_status_page *copy = malloc(sizeof(*copy));
	uint64_t now_ns;
	int rc;

	if (!copy)
		return spw_error(-ENOMEM, "out of memory");
	rc = copy_page(store_uuid, partition, copy);
	if (rc == 0)
		rc = check_copy(copy, store_uuid, partition);
	if (rc == 0) {
		now_ns = spw_clock_ns();
		copy->status.age_ns = now_ns > copy->refreshed_ns ? now_ns - copy->refreshed_ns : 0;
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
	int fd, rc;

	if (!status)
		return spw_error(-ENOMEM, "out of memory");
	rc = spw_status_read(store_uuid, partition, status, sizeof(*status));
	if (rc == 0 && drive >= status->drives)
		rc = spw_error(-EINVAL, "the store has %u drives, numbered from 0", status->drives);
	free(status);
	if (rc == 0)
		rc = open_page(store_uuid, partition, O_RDWR, &fd);
	if (rc)
		return rc;
	page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		rc = spw_error_errno(-errno, "cannot map the status page of partition %u of store %s", partition,
				     store_uuid);
	(void)close(fd);
	if (rc)
		return rc;
	atomic_fetch_or(&page->revive, UINT64_C(1) << drive);
	(void)munmap(page, sizeof(*page));
	return 0;
}

/* The next entry of /dev/shm that is named like a page. */
static bool next_name(DIR *dir, struct spw_status_name *name)
{
	struct dirent *entry;

	while ((entry = readdir(dir)) != NULL)
		if (sscanf(entry->d_name, "spillway-%36[0-9a-f-]-%u", name->store_uuid, &name->partition) == 2)
			return true;
	return false;
}

/*
 * Remove the pages that killed processes of this user left behind, once they are of no use as evidence any more. Who
 * opens a store does it, and who lists them: nothing else would remove the page of a store that is not opened again.
 */
void spw_status_sweep(void)
{
	struct spw_status_page *page = malloc(sizeof(*page));
	DIR *dir = page ? opendir("/dev/shm") : NULL;
	struct spw_status_name name;

	while (dir && next_name(dir, &name)) {
		char path[SPW_PAGE_NAME_BYTES];
		uint64_t start;

		if (copy_page(name.store_uuid, name.partition, page))
			continue;
		start = spw_process_start(page->status.pid);
		if ((start != 0 && start == page->owner_start) || page->refreshed_ns + SWEEP_AGE_NS > spw_clock_ns())
			continue;
		spw_page_name(name.store_uuid, name.partition, path);
		(void)shm_unlink(path);
	}
	if (dir)
		(void)closedir(dir);
	free(page);
}

int spw_status_list(struct spw_status_name names[], unsigned count)
{
	struct spw_status_name name;
	struct spw_status *status;
	int found = 0;
	DIR *dir;

	spw_status_sweep();
	dir = opendir("/dev/shm");
	if (!dir)
		return errno == ENOENT ? 0 : spw_error_errno(-errno, "cannot list /dev/shm");
	status = malloc(sizeof(*status));
	while (status && next_name(dir, &name)) {
		if (spw_status_read(name.store_uuid, name.partition, status, sizeof(*status)))
			continue;
		if ((unsigned)found < count)
			names[found] = name;
		found++;
	}
	(void)closedir(dir);
	if (!status)
		return spw_error(-ENOMEM, "out of memory");
	free(status);
	return found;
}
