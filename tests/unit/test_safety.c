/* SPDX-License-Identifier: MIT */
/* tests/unit/test_safety.c - whose device it is, when answers are missing or change */
/* wrap: open pwrite opendir getline __getdelim */
#include <dirent.h>

#include "tests/unit/format_drives.h"
#include "tests/wrap.h"

#include "drives/safety.h"

/* ---- A system that answers otherwise ---- */

/* this link leads elsewhere while it is opened for writing: to the drive behind */
static const char *swapped;
static const char *swapped_to;
static unsigned pwrites_until_failure; /* 0: none fails */
static const char *closed_folder;      /* its entries cannot be listed */
static bool short_of_memory;           /* for a line of a table */

WRAP(int, open, (const char *path, int flags, ...))
{
	char target[PATH_MAX];
	ssize_t len;
	int fd;

	if (!swapped || strcmp(path, swapped) != 0 || (flags & O_ACCMODE) != O_RDWR)
		return __real_open(path, flags);
	len = readlink(path, target, sizeof(target) - 1);
	assert_true(len > 0);
	target[len] = '\0';
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink(swapped_to, path), 0);
	fd = __real_open(path, flags);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink(target, path), 0);
	return fd;
}

WRAP(ssize_t, pwrite, (int fd, const void *buf, size_t len, off_t at))
{
	if (pwrites_until_failure > 0 && --pwrites_until_failure == 0) {
		errno = EIO;
		return -1;
	}
	return __real_pwrite(fd, buf, len, at);
}

WRAP(DIR *, opendir, (const char *path))
{
	if (!closed_folder || strcmp(path, closed_folder) != 0)
		return __real_opendir(path);
	errno = EMFILE;
	return NULL;
}

WRAP(ssize_t, __getdelim, (char **line, size_t *len, int delimiter, FILE *file))
{
	if (!short_of_memory)
		return __real___getdelim(line, len, delimiter, file);
	errno = ENOMEM;
	return -1;
}

/* What a build without optimization calls. */
WRAP(ssize_t, getline, (char **line, size_t *len, FILE *file))
{
	return __wrap___getdelim(line, len, '\n', file);
}

static int make_all(void **state)
{
	swapped = swapped_to = closed_folder = NULL;
	short_of_memory = false;
	pwrites_until_failure = 0;
	return make_drives(state);
}

/* ---- Tests ---- */

#define DRIVE_CASE(name) CASE_WITH(name, make_all, remove_drives)

/* udev moves a link between the checks and the open: what was not checked is not written to. */
DRIVE_CASE(test_a_name_that_changes_hands)
{
	struct spw_format_opts opts = options(false);
	char link[PATH_MAX + 16];
	const char *paths[] = {link};
	uint64_t before;

	(void)snprintf(link, sizeof(link), "%s/link", folder);
	assert_int_equal(symlink(drives[0], link), 0);
	make_swap_area(drives[3], "");
	before = hash_all();
	swapped = link;
	swapped_to = drives[3];
	expect_refusal(-ESTALE, "names another device than a moment ago",
		       spw_format(paths, 1, &opts, NULL));
	assert_int_equal(hash_all(), before);
	/* A store that was asked about, and another one that would be wiped. */
	make_drive(drives[3], DRIVE_SIZE);
	swapped = NULL;
	expect(0, spw_format(paths, 1, &opts, NULL));
	expect(0, spw_format(&drives[3], 1, &opts, NULL));
	before = hash_all();
	swapped = link;
	expect(-ESTALE, spw_wipe(paths, 1, NULL));
	assert_int_equal(hash_all(), before);
	assert_int_equal(unlink(link), 0);
}

/* Unreadable tables of mounts, swap and loop devices do not mean that nothing is there. */
DRIVE_CASE(test_no_answer_is_not_free)
{
	uint64_t before = hash_all();

	closed_folder = "/sys/class/block";
	expect_refusal(-EMFILE, "/sys/class/block", format_drives(DRIVES, true, NULL));
	closed_folder = NULL;
	short_of_memory = true;
	expect_refusal(-EIO, "/proc/", format_drives(DRIVES, true, NULL));
	short_of_memory = false;
	assert_int_equal(hash_all(), before);
	expect(0, format_drives(DRIVES, true, NULL));
}

/* A label may hold any bytes, and a terminal obeys some of them. */
DRIVE_CASE(test_labels_do_nothing_to_a_terminal)
{
	struct spw_probe_info info = {.size = sizeof(info)};

	make_swap_area(drives[3], "a\033]0;b\007\302\233c\303\274");
	expect(0, spw_probe(drives[3], &info));
	assert_non_null(strstr(info.holds, "\"a?]0;b???c\303\274\""));
	assert_null(strchr(info.reason, '\033'));
}

/* The copy that counts goes last, whichever it is: a wipe that was interrupted can be repeated. */
DRIVE_CASE(test_interrupted_wipe)
{
	for (unsigned copy = 0; copy < 2; copy++) {
		expect(0, format_drives(1, true, NULL));
		damage_copy(drives[0], copy);
		pwrites_until_failure = 2;
		expect(-EIO, spw_wipe(drives, 1, NULL));
		expect(0, spw_wipe(drives, 1, NULL));
		expect(-EMEDIUMTYPE, spw_wipe(drives, 1, NULL));
	}
}

/* The device has shrunk: the byte whose lock shows that its last partition is open is gone. */
DRIVE_CASE(test_a_lock_behind_the_end)
{
	struct spw_probe_info info = {.size = sizeof(info)};
	struct spw_assembly assembly;

	make_drive(drives[0], 64 * MIB);
	expect(0, format_drives(1, false, NULL));
	expect(0, assemble_all(drives, 1, NULL, &assembly));
	expect(0, spw_drives__assembly_lock(&assembly, 1));
	assert_int_equal(truncate(drives[0], 20 * (off_t)MIB), 0);
	expect_refusal(-EBUSY, "a process has a store on it open", format_drives(1, true, NULL));
	expect(0, spw_probe(drives[0], &info));
	assert_int_equal(info.error, -EBUSY);
	spw_drives__assembly_close(&assembly);
	expect(0, format_drives(1, true, NULL));
}

RUN_CASES(make_folder, remove_folder)
