/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_safety.c - whose device it is, when the system does not answer or the answer
 * changes under one's eyes
 */
/* wrap: open pwrite opendir getline __getdelim */
#include <dirent.h>

#include "tests/unit/format_drives.h"

#include "drives/safety.h"

/* ---- A system that answers otherwise ---- */

/* this link leads elsewhere while it is opened for writing: to the drive behind */
static const char *swapped;
static const char *swapped_to;
static unsigned pwrites_until_failure; /* 0: none fails */
static const char *closed_folder;      /* its entries cannot be listed */
static bool short_of_memory;           /* for a line of a table */

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
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

ssize_t __real_pwrite(int fd, const void *buf, size_t len, off_t at);
ssize_t __wrap_pwrite(int fd, const void *buf, size_t len, off_t at);
ssize_t __wrap_pwrite(int fd, const void *buf, size_t len, off_t at)
{
	if (pwrites_until_failure > 0 && --pwrites_until_failure == 0) {
		errno = EIO;
		return -1;
	}
	return __real_pwrite(fd, buf, len, at);
}

DIR *__real_opendir(const char *path);
DIR *__wrap_opendir(const char *path);
DIR *__wrap_opendir(const char *path)
{
	if (!closed_folder || strcmp(path, closed_folder) != 0)
		return __real_opendir(path);
	errno = EMFILE;
	return NULL;
}

ssize_t __real___getdelim(char **line, size_t *len, int delimiter, FILE *file);
ssize_t __wrap___getdelim(char **line, size_t *len, int delimiter, FILE *file);
ssize_t __wrap___getdelim(char **line, size_t *len, int delimiter, FILE *file)
{
	if (!short_of_memory)
		return __real___getdelim(line, len, delimiter, file);
	errno = ENOMEM;
	return -1;
}

/* What a build without optimization calls. */
ssize_t __wrap_getline(char **line, size_t *len, FILE *file);
ssize_t __wrap_getline(char **line, size_t *len, FILE *file)
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

/* As mkswap(8) makes it, with a label. */
static void make_swap_area(const char *path, const char *label)
{
	static const uint32_t header[] = {1, 4000};

	write_at(path, 1024, header, sizeof(header));
	write_at(path, 1024 + 28, label, strlen(label));
	write_at(path, 4096 - 10, "SWAPSPACE2", 10);
}

/* ---- Tests ---- */

/*
 * udev puts a link elsewhere between the questions and the opening: what was not asked about is not
 * written to.
 */
static void test_a_name_that_changes_hands(void **state)
{
	struct spw_format_opts opts = options(false);
	char link[PATH_MAX + 16];
	const char *paths[] = {link};
	uint64_t before;

	(void)state;
	(void)snprintf(link, sizeof(link), "%s/link", folder);
	assert_int_equal(symlink(drives[0], link), 0);
	make_swap_area(drives[3], "");
	before = hash_all();
	swapped = link;
	swapped_to = drives[3];
	expect(-ESTALE, spw_format(paths, 1, &opts, NULL));
	expect_words("names another device than a moment ago");
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

/* Tables of mounts, swap and loop devices that cannot be read are no answer. */
static void test_no_answer_is_not_free(void **state)
{
	uint64_t before = hash_all();

	(void)state;
	closed_folder = "/sys/class/block";
	expect(-EMFILE, format_drives(DRIVES, true, NULL));
	expect_words("/sys/class/block");
	closed_folder = NULL;
	short_of_memory = true;
	expect(-EIO, format_drives(DRIVES, true, NULL));
	expect_words("/proc/");
	short_of_memory = false;
	assert_int_equal(hash_all(), before);
	expect(0, format_drives(DRIVES, true, NULL));
}

/* A label is anybody's bytes, and a terminal obeys some of them. */
static void test_labels_do_nothing_to_a_terminal(void **state)
{
	struct spw_probe_info info = {.size = sizeof(info)};

	(void)state;
	make_swap_area(drives[3], "a\033]0;b\007\302\233c\303\274");
	expect(0, spw_probe(drives[3], &info));
	assert_non_null(strstr(info.holds, "\"a?]0;b???c\303\274\""));
	assert_null(strchr(info.reason, '\033'));
}

/* The copy that counts goes last, whichever it is: a wipe that was interrupted can be repeated. */
static void test_interrupted_wipe(void **state)
{
	(void)state;
	for (unsigned copy = 0; copy < 2; copy++) {
		expect(0, format_drives(1, true, NULL));
		damage_copy(drives[0], copy);
		pwrites_until_failure = 2;
		expect(-EIO, spw_wipe(drives, 1, NULL));
		expect(0, spw_wipe(drives, 1, NULL));
		expect(-EMEDIUMTYPE, spw_wipe(drives, 1, NULL));
	}
}

/*
 * The device has become smaller, and no longer has the byte that tells that a process has its last
 * partition open.
 */
static void test_a_lock_behind_the_end(void **state)
{
	struct spw_probe_info info = {.size = sizeof(info)};
	struct spw_assembly assembly;

	(void)state;
	make_drive(drives[0], 64 * MIB);
	expect(0, format_drives(1, false, NULL));
	expect(0, spw_assemble(drives, 1, false, NULL, &assembly));
	expect(0, spw_assembly_lock(&assembly, 1));
	assert_int_equal(truncate(drives[0], 20 * (off_t)MIB), 0);
	expect(-EBUSY, format_drives(1, true, NULL));
	expect_words("a process has a store on it open");
	expect(0, spw_probe(drives[0], &info));
	assert_int_equal(info.error, -EBUSY);
	spw_assembly_close(&assembly);
	expect(0, format_drives(1, true, NULL));
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, make_all, remove_drives)
	const struct CMUnitTest tests[] = {
		CASE(test_a_name_that_changes_hands),       CASE(test_no_answer_is_not_free),
		CASE(test_labels_do_nothing_to_a_terminal), CASE(test_interrupted_wipe),
		CASE(test_a_lock_behind_the_end),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
