/* SPDX-License-Identifier: MIT */
/* tests/unit/test_grant.c - what tells a drive, in a made-up sysfs, and the rules made of it */
/* link: util tools/grant */
#include "tests/unit/tree.h"

#include "tools/grant/grant.h"

static int set_up(void **state)
{
	(void)state;
	begin_tree();
	return 0;
}

#define TREE_CASE(name) CASE_WITH(name, set_up, remove_tree)

static void put_drive(const char *name, const char *attribute, const char *value)
{
	put(path_of("devices/%s/%s", name, attribute), value);
	put_link(path_of("class/block/%s", name), SPW_PATH("../../devices/%s", name));
}

static void put_partition(const char *drive, const char *name, const char *number)
{
	put(path_of("devices/%s/%s/partition", drive, name), number);
	put_link(path_of("class/block/%s", name), SPW_PATH("../../devices/%s/%s", drive, name));
}

static void expect_identity(const char *name, const char *attribute, const char *value,
			    unsigned partition)
{
	struct grant_identity identity;

	assert_true(grant_identify(folder, name, &identity));
	assert_string_equal(identity.attribute, attribute);
	assert_string_equal(identity.value, value);
	assert_int_equal(identity.partition, partition);
}

TREE_CASE(every_kind_of_drive_has_an_identity)
{
	struct grant_identity identity;

	put_drive("nvme0n1", "wwid", "eui.0025385b91b00000\n");
	put_drive("sda", "device/wwid", "t10.ATA     Samsung SSD 870    S5\n");
	put_drive("vda", "serial", "disk-7\n");
	put_drive("dm-0", "dm/uuid", "LVM-abc\n");
	put_drive("loop0", "loop/backing_file", "/srv/a drive.img\n");
	put_drive("zram0", "size", "8\n");
	put_partition("nvme0n1", "nvme0n1p2", "2\n");
	expect_identity("nvme0n1", "wwid", "eui.0025385b91b00000", 0);
	expect_identity("nvme0n1p2", "wwid", "eui.0025385b91b00000", 2);
	expect_identity("sda", "wwid", "t10.ATA     Samsung SSD 870    S5", 0);
	expect_identity("vda", "serial", "disk-7", 0);
	expect_identity("dm-0", "dm/uuid", "LVM-abc", 0);
	expect_identity("loop0", "loop/backing_file", "/srv/a drive.img", 0);
	assert_false(grant_identify(folder, "zram0", &identity));
	assert_false(grant_identify(folder, "nvme9n1", &identity));
}

static int count_device(void *context, const char *name)
{
	(void)name;
	++*(unsigned *)context;
	return 0;
}

TREE_CASE(drives_that_say_the_same_are_found)
{
	struct grant_identity identity;
	unsigned count = 0;

	put_drive("nvme0n1", "wwid", "eui.0000000000000000\n");
	put_drive("nvme1n1", "wwid", "eui.0000000000000000\n");
	put_drive("nvme2n1", "wwid", "eui.0000000000000001\n");
	put_partition("nvme1n1", "nvme1n1p1", "1\n");
	assert_true(grant_identify(folder, "nvme0n1", &identity));
	assert_int_equal(grant_each(folder, &identity, count_device, &count), 0);
	assert_int_equal(count, 2);
}

TREE_CASE(headings_are_read_back)
{
	static const char *const good[] = {"wwid=eui.0", "wwid=a partition=b partition=3",
					   "loop/backing_file=/a=b c"};
	struct grant_identity identity;

	assert_true(grant_identity_parse(good[0], &identity));
	assert_string_equal(identity.value, "eui.0");
	assert_int_equal(identity.partition, 0);
	assert_true(grant_identity_parse(good[1], &identity));
	assert_string_equal(identity.value, "a partition=b");
	assert_int_equal(identity.partition, 3);
	assert_true(grant_identity_parse(good[2], &identity));
	assert_string_equal(identity.attribute, "loop/backing_file");
	assert_string_equal(identity.value, "/a=b c");
	assert_false(grant_identity_parse("eui.0", &identity));
}

/* ---- Rules ---- */

static const struct grant_identity nvme = {.attribute = "wwid", .value = "eui.00253"};
static const struct grant_identity part = {
	.attribute = "wwid", .value = "eui.00253", .partition = 2};
static const struct grant_identity odd = {.attribute = "serial", .value = "a\"|b*[c] $"};

static char *read_rules(void)
{
	static char text[4096];
	FILE *file = fopen(path_of(GRANT_RULES_FILE), "r");

	text[file ? fread(text, 1, sizeof(text) - 1, file) : 0] = '\0';
	if (file)
		(void)fclose(file);
	return file ? text : NULL;
}

static void add(const struct grant_identity *identity, uid_t uid, const char *name)
{
	struct grant_rules rules;

	assert_int_equal(grant_rules_open(folder, &rules), 0);
	assert_int_equal(grant_rules_add(&rules, identity, uid, name, "trainer"), 0);
	assert_int_equal(grant_rules_commit(&rules), 0);
	grant_rules_close(&rules);
}

TREE_CASE(rules_tell_both_nodes_of_a_namespace)
{
	add(&nvme, 1000, "/dev/nvme0n1");
	assert_string_equal(
		read_rules(),
		"# Made by 'spillway grant', and changed by it and by 'spillway revoke': not by "
		"hand.\n"
		"# spillway grant 1000 wwid=eui.00253\n"
		"# was /dev/nvme0n1 when it was given to trainer\n"
		"SUBSYSTEM==\"block\", ENV{DEVTYPE}==\"disk\", ATTRS{wwid}==\"eui.00253\", "
		"OWNER=\"1000\"\n"
		"SUBSYSTEM==\"nvme-generic\", KERNEL==\"ng*\", PROGRAM==\"/bin/sh -c 'read -r id "
		"</sys/class/block/nvme$${1#ng}/wwid && echo $$id' - %k\", RESULT==\"eui.00253\", "
		"OWNER=\"1000\"\n");
}

TREE_CASE(a_partition_is_given_alone)
{
	add(&part, 1000, "/dev/nvme0n1p2");
	assert_non_null(strstr(read_rules(), "ENV{DEVTYPE}==\"partition\", ATTR{partition}==\"2\", "
					     "ATTRS{wwid}==\"eui.00253\", OWNER=\"1000\"\n"));
	assert_null(strstr(read_rules(), "nvme-generic"));
}

/* Nothing that a drive says of itself ends the pattern, or begins another. */
TREE_CASE(what_means_something_to_udev_does_not_get_there)
{
	add(&odd, 1000, "/dev/vda");
	assert_non_null(strstr(read_rules(), "ATTRS{serial}==\"a??b??c? $\", OWNER"));
}

TREE_CASE(groups_are_kept_found_and_removed_alone)
{
	struct grant_rules rules;
	const struct grant_group *group;

	add(&nvme, 1000, "/dev/nvme0n1");
	add(&part, 1001, "/dev/nvme0n1p2");
	add(&odd, 1002, "/dev/vda");
	assert_int_equal(grant_rules_open(folder, &rules), 0);
	assert_int_equal(rules.count, 3);
	assert_null(grant_rules_find(&rules, &(struct grant_identity){"wwid", "eui.0025", 0}));
	group = grant_rules_find(&rules, &part);
	assert_non_null(group);
	assert_int_equal(group->uid, 1001);
	grant_rules_remove(&rules, group);
	assert_int_equal(grant_rules_commit(&rules), 0);
	grant_rules_close(&rules);
	assert_null(strstr(read_rules(), "1001"));
	assert_int_equal(grant_rules_open(folder, &rules), 0);
	assert_int_equal(rules.count, 2);
	grant_rules_remove(&rules, grant_rules_find(&rules, &nvme));
	grant_rules_remove(&rules, grant_rules_find(&rules, &odd));
	assert_int_equal(grant_rules_commit(&rules), 0);
	grant_rules_close(&rules);
	assert_null(read_rules());
}

TREE_CASE(a_file_of_others_is_not_overwritten)
{
	struct grant_rules rules;

	put(path_of(GRANT_RULES_FILE), "# spillway grant someone\n");
	expect_refusal(-EINVAL, "not what spillway wrote", grant_rules_open(folder, &rules));
	grant_rules_close(&rules);
}

TREE_CASE(without_a_folder_there_are_no_rules)
{
	struct grant_rules rules;

	assert_int_equal(grant_rules_open(path_of("none"), &rules), 0);
	assert_int_equal(rules.lock, -1);
	assert_int_equal(rules.count, 0);
	grant_rules_close(&rules);
}

RUN_CASES(NULL, NULL)
