/* SPDX-License-Identifier: MIT */
/* tests/unit/test_identity.c - which block devices are the same drive, in a made-up sysfs */
/* wrap: opendir */
#include <dirent.h>

#include "tests/unit/tree.h"
#include "tests/wrap.h"

#include "drives/identity.h"

#define WWID "eui.0025385b91b00000\n"

static unsigned folders_until_failure; /* 0: none fails */

WRAP(DIR *, opendir, (const char *path))
{
	if (folders_until_failure == 0 || --folders_until_failure > 0)
		return __real_opendir(path);
	errno = EMFILE;
	return NULL;
}

/* ---- A sysfs ---- */

/* An attribute of a drive, with what stands for the line's end in sysfs. */
static void set(const char *drive, const char *attribute, const char *text)
{
	put(path_of("devices/%s/%s", drive, attribute), text);
}

static void clear(const char *drive, const char *attribute)
{
	assert_int_equal(unlink(path_of("devices/%s/%s", drive, attribute)), 0);
}

static void put_device(const char *place, const char *name, const char *blocks)
{
	char target[PATH_MAX];

	put(path_of("devices/%s/size", place), blocks);
	put(path_of("devices/%s/dev", place), "259:0\n");
	(void)snprintf(target, sizeof(target), "../../devices/%s", place);
	put_link(path_of("class/block/%s", name), target);
}

static void put_partition(const char *drive, const char *name, const char *start,
			  const char *blocks)
{
	char place[PATH_MAX];

	(void)snprintf(place, sizeof(place), "%s/%s", drive, name);
	put_device(place, name, blocks);
	put(path_of("devices/%s/partition", place), "1\n");
	put(path_of("devices/%s/start", place), start);
}

static void put_nvme(const char *name)
{
	put_device(name, name, "8192\n");
	set(name, "wwid", WWID);
	set(name, "nsid", "1\n");
	set(name, "device/subsysnqn", "nqn.2014-08.org.nvmexpress:uuid:1\n");
	set(name, "device/serial", "S1                  \n");
	set(name, "device/model", "A Drive of Ours     \n");
}

static void put_scsi(const char *name)
{
	put_device(name, name, "8192\n");
	set(name, "device/wwid", "naa.5000c500a1b2c3d4\n");
	put_bytes(path_of("devices/%s/device/vpd_pg80", name), "\0\200\0\004S123", 8);
}

static int set_up(void **state)
{
	(void)state;
	folders_until_failure = 0;
	begin_tree();
	put_nvme("nvme0n1");
	put_nvme("nvme1n1");
	put_scsi("sda");
	put_scsi("sdb");
	return 0;
}

static void assert_same(const char *a, const char *b, bool same)
{
	if (spw_drives__identity_same(folder, a, b) != same ||
	    spw_drives__identity_same(folder, b, a) != same)
		fail_msg("%s and %s are %sthe same", a, b, same ? "not " : "");
}

#define FIXTURE_CASE(name) CASE_WITH(name, set_up, remove_tree)

/* ---- Drives ---- */

FIXTURE_CASE(test_nvme)
{
	static const struct {
		const char *attribute, *other;
	} differences[] = {
		{"wwid", "eui.0025385b91b00001\n"},
		{"nsid", "2\n"},
		{"device/subsysnqn", "nqn.2014-08.org.nvmexpress:uuid:2\n"},
	};

	assert_same("nvme0n1", "nvme1n1", true);
	assert_same("nvme0n1", "nvme0n1", false);
	assert_same("nvme0n1", "sda", false);
	assert_same("nvme0n1", "nvme9n1", false);
	/* Each of the three alone tells two drives apart, and so does one that cannot be read. */
	for (size_t i = 0; i < SPW_ARRAY_LEN(differences); i++) {
		char before[128];

		assert_true(spw_read_line(path_of("devices/nvme1n1/%s", differences[i].attribute),
					  before, sizeof(before) - 1));
		(void)strcat(before, "\n");
		set("nvme1n1", differences[i].attribute, differences[i].other);
		assert_same("nvme0n1", "nvme1n1", false);
		clear("nvme1n1", differences[i].attribute);
		assert_same("nvme0n1", "nvme1n1", false);
		set("nvme1n1", differences[i].attribute, before);
		assert_same("nvme0n1", "nvme1n1", true);
	}
}

FIXTURE_CASE(test_zeroes_identify_nothing)
{
	static const char *const zeroes[] = {"eui.00000000000000000000000000000000\n",
					     "eui.0000000000000000\n",
					     "uuid.00000000-0000-0000-0000-000000000000\n",
					     "nvme.\n",
					     "\n",
					     ""};

	for (size_t i = 0; i < SPW_ARRAY_LEN(zeroes); i++) {
		set("nvme0n1", "wwid", zeroes[i]);
		set("nvme1n1", "wwid", zeroes[i]);
		assert_same("nvme0n1", "nvme1n1", false);
		set("sda", "device/wwid", zeroes[i]);
		set("sdb", "device/wwid", zeroes[i]);
		assert_same("sda", "sdb", false);
	}
	/* The kernel's own, of a drive that has none. */
	set("nvme0n1", "wwid", "nvme.1b36-73707730-51454d55-00000001\n");
	set("nvme1n1", "wwid", "nvme.1b36-73707730-51454d55-00000001\n");
	assert_same("nvme0n1", "nvme1n1", true);
}

FIXTURE_CASE(test_scsi)
{
	assert_same("sda", "sdb", true);
	/* Of two drives behind a bridge that gives both one identifier. */
	put_bytes(path_of("devices/sdb/device/vpd_pg80"), "\0\200\0\004S124", 8);
	assert_same("sda", "sdb", false);
	put_bytes(path_of("devices/sdb/device/vpd_pg80"), "\0\200\0\005S1234", 9);
	assert_same("sda", "sdb", false);
	/* A page that is missing, or empty, says nothing. */
	put_bytes(path_of("devices/sdb/device/vpd_pg80"), "\0\200\0\0", 4);
	assert_same("sda", "sdb", true);
	clear("sdb", "device/vpd_pg80");
	assert_same("sda", "sdb", true);
	set("sdb", "size", "16384\n");
	assert_same("sda", "sdb", false);
	set("sdb", "size", "8192\n");
	set("sdb", "device/wwid", "naa.5000c500a1b2c3d5\n");
	assert_same("sda", "sdb", false);
	clear("sdb", "device/wwid");
	assert_same("sda", "sdb", false);
}

/* ---- Partitions ---- */

FIXTURE_CASE(test_partitions)
{
	put_partition("sda", "sda1", "2048\n", "1024\n");
	put_partition("sda", "sda2", "3072\n", "1024\n");
	put_partition("sdb", "sdb1", "2048\n", "1024\n");
	put_partition("sdb", "sdb2", "3072\n", "1024\n");
	assert_same("sda1", "sdb1", true);
	assert_same("sda1", "sdb", true);
	assert_same("sda", "sdb2", true);
	assert_same("sda1", "sdb2", false);
	assert_same("sda2", "sdb1", false);
	/* By one path. */
	assert_same("sda", "sda1", false);
	assert_same("sda1", "sda2", false);
	/* A table that was read again by one path only. */
	put(path_of("devices/sdb/sdb2/start"), "3071\n");
	assert_same("sda1", "sdb2", true);
	/* In doubt it has all. */
	clear("sdb", "sdb1/start");
	clear("sdb", "sdb1/size");
	assert_same("sda2", "sdb1", true);
}

/* ---- All of them ---- */

static char visited[128];

static int visit(void *context, const char *name)
{
	const char *until = context;

	(void)strcat(visited, name);
	(void)strcat(visited, " ");
	return until && strcmp(name, until) == 0 ? 7 : 0;
}

/* The kernel lists them in no order. */
static void assert_paths(const char *name, const char *const wanted[])
{
	size_t len = 0;

	visited[0] = '\0';
	assert_int_equal(spw_drives__identity_each_path(folder, name, visit, NULL), 0);
	for (; *wanted; wanted++) {
		assert_non_null(strstr(visited, *wanted));
		len += strlen(*wanted) + 1;
	}
	assert_int_equal(strlen(visited), len);
}

FIXTURE_CASE(test_each_path)
{
	char name[] = "sdb";

	put_partition("sdb", "sdb1", "2048\n", "1024\n");
	put_partition("sdb", "sdb2", "3072\n", "1024\n");
	put_partition("sda", "sda1", "2048\n", "1024\n");
	assert_paths("sda", (const char *const[]){"sdb", "sdb1", "sdb2", NULL});
	assert_paths("sda1", (const char *const[]){"sdb", "sdb1", NULL});
	assert_paths("sdb2", (const char *const[]){"sda", NULL});
	assert_paths("nvme0n1", (const char *const[]){"nvme1n1", NULL});
	visited[0] = '\0';
	assert_int_equal(spw_drives__identity_each_path(folder, "sda", visit, name), 7);
	/* One that has no number cannot be opened: the kernel has joined it to another. */
	clear("nvme1n1", "dev");
	assert_paths("nvme0n1", (const char *const[]){NULL});
}

FIXTURE_CASE(test_no_answer_is_an_error)
{
	const struct spw_identity_namespace any = {
		.serial = "", .model = "", .unique = (const uint8_t[24]){0}};
	char name[32];

	for (unsigned i = 1; i <= 2; i++) {
		visited[0] = '\0';
		folders_until_failure = i;
		expect_refusal(-EMFILE, "cannot be read",
			       spw_drives__identity_each_path(folder, "sda", visit, NULL));
	}
	folders_until_failure = 1;
	assert_int_equal(spw_drives__identity_find_namespace(folder, &any, name, sizeof(name)),
			 -EMFILE);
	/* A system without block devices, and a drive that is not there any more. */
	put(path_of("empty/nothing"), "");
	(void)snprintf(visited, sizeof(visited), "%s", path_of("empty"));
	assert_int_equal(spw_drives__identity_each_path(visited, "sda", visit, NULL), 0);
	assert_int_equal(spw_drives__identity_find_namespace(visited, &any, name, sizeof(name)), 0);
	assert_int_equal(spw_drives__identity_each_path(folder, "sdz", visit, NULL), 0);
}

/* ---- What is driven from here ---- */

static const uint8_t none[24];
static const uint8_t unique[24] = {0xee, 0xd2, 0x5b, 0,    0x25, 0x38, 0x5b, 0x91, 0xb0, 0, 0, 0,
				   0,    0,    0,    0x17, 0,    0x25, 0x38, 0x5b, 0x91, 0, 0, 1};

static void assert_found(const char *serial, const char *model, uint32_t id, const uint8_t *bytes,
			 bool found)
{
	const struct spw_identity_namespace wanted = {
		.serial = serial, .model = model, .id = id, .unique = bytes};
	char name[32] = "";

	assert_int_equal(spw_drives__identity_find_namespace(folder, &wanted, name, sizeof(name)),
			 found);
	assert_string_equal(name, found ? "nvme1n1" : "");
}

FIXTURE_CASE(test_a_namespace_that_is_driven_here)
{
	clear("nvme0n1", "dev");
	assert_found("S1", "A Drive of Ours", 1, none, true);
	assert_found("S1", "A Drive of Ours", 1, unique, true);
	assert_found("S1", "A Drive of Ours", 2, none, false);
	assert_found("S", "A Drive of Ours", 1, none, false);
	assert_found("S12", "A Drive of Ours", 1, none, false);
	assert_found("S1", "A Drive", 1, none, false);
	/* An identifier that both have decides. */
	set("nvme1n1", "nguid", "eed25b00-2538-5b91-b000-000000000017\n");
	set("nvme1n1", "eui", "00 25 38 5b 91 00 00 01\n");
	assert_found("S1", "A Drive of Ours", 1, unique, true);
	assert_found("S1", "A Drive of Ours", 1, none, true);
	set("nvme1n1", "eui", "00 25 38 5b 91 00 00 02\n");
	assert_found("S1", "A Drive of Ours", 1, unique, false);
	set("nvme1n1", "eui", "00 25 38 5b 91 00 00 01\n");
	set("nvme1n1", "nguid", "eed25b00-2538-5b91-b000-000000000018\n");
	assert_found("S1", "A Drive of Ours", 1, unique, false);
	set("nvme1n1", "nguid", "nonsense\n");
	assert_found("S1", "A Drive of Ours", 1, unique, false);
}

RUN_CASES(NULL, NULL)
