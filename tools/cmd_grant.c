/* SPDX-License-Identifier: MIT */
/* tools/cmd_grant.c - spillway grant: let a user open drives without being root */
#include "tools/ui/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <spillway/store.h>

#include "tools/grant/grant.h"
#include "util/util.h"

#define NEEDS_MAX 4

static struct tool_devices devices;
static const char *user, *folder = GRANT_RULES_FOLDER;
static bool force, dry_run, json;

static const struct tool_option options[] = {
	{"user", TOOL_TEXT, &user, "USER", "the new owner: a name or a number"},
	{"devices", TOOL_DEVICES, &devices, "A,B,...",
	 "block devices or NVMe character devices (or name them without the option)"},
	{"rules", TOOL_TEXT, &folder, "FOLDER",
	 "udev's rules folder (" GRANT_RULES_FOLDER "); /run/udev/rules.d: until the next boot"},
	{"force", TOOL_FLAG, &force, NULL, "also drives that hold data, but never drives in use"},
	{"dry-run", TOOL_FLAG, &dry_run, NULL, "only check"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

struct drive {
	const char *path; /* as named on the command line */
	char name[64];    /* the block device's */
	struct grant_identity identity;
	bool lasts; /* the identity survives a reboot, so a udev rule can name it */
	struct grant_nodes nodes;
};

/* ---- Examine the drives ---- */

/* Find the kernel's name of a block device, also for the character node of an NVMe namespace. */
static int find_name(const char *path, struct drive *drive)
{
	char target[PATH_MAX];
	struct stat st;

	if (stat(path, &st) != 0)
		return spw_error_errno(-errno, "%s cannot be found", path);
	if (S_ISREG(st.st_mode))
		return spw_error(-ENOTBLK, "%s is a file: its owner may use it; chown %s %s", path,
				 user, path);
	if (!S_ISBLK(st.st_mode) && !S_ISCHR(st.st_mode))
		return spw_error(-ENOTBLK,
				 "%s is neither a block device nor an NVMe namespace's "
				 "character device",
				 path);
	if (!realpath(SPW_PATH("/sys/dev/%s/%u:%u", S_ISBLK(st.st_mode) ? "block" : "char",
			       major(st.st_rdev), minor(st.st_rdev)),
		      target))
		return spw_error_errno(-errno, "%s: there is no such device", path);
	if (S_ISBLK(st.st_mode))
		(void)snprintf(drive->name, sizeof(drive->name), "%s", strrchr(target, '/') + 1);
	else if (strncmp(strrchr(target, '/'), "/ng", 3) == 0)
		(void)snprintf(drive->name, sizeof(drive->name), "nvme%s",
			       strrchr(target, '/') + 3);
	else
		return spw_error(-ENOTBLK, "%s is not a character device of an NVMe namespace",
				 path);
	return 0;
}

/* Refuse a drive with data to which the user must not get access. */
static int find_obstacle(const struct drive *drive)
{
	struct spw_probe_info info = {.size = sizeof(info)};

	(void)spw_probe(drive->nodes.block, &info);
	if (info.error == 0 || (info.error == -EEXIST && (info.has_store || force)))
		return 0;
	return spw_error(info.error, "%s%s", info.reason,
			 info.error == -EEXIST ? " (grant takes --force, too)" : "");
}

/* For grant_each(): refuse an identity that a drive not named by the user has. Return: 0; -errno */
static int find_stranger(void *context, const char *name)
{
	const struct drive *drives = context;

	for (unsigned i = 0; i < devices.count; i++)
		if (strcmp(drives[i].name, name) == 0)
			return 0;
	return spw_error(
		-ENOTUNIQ,
		"%s cannot be told from it by what they say of themselves, so that the rule "
		"would give both; name both, or give this one by a rule of your own",
		name);
}

static int examine(const struct grant_rules *rules, struct drive *drive, uid_t uid)
{
	const struct grant_group *group;
	int rc = find_name(drive->path, drive);

	if (rc)
		return rc;
	grant_nodes(drive->name, &drive->nodes);
	rc = find_obstacle(drive);
	if (rc)
		return rc;
	drive->lasts = grant_identify("/sys", drive->name, &drive->identity);
	if (!drive->lasts)
		return spw_error(-ENODATA,
				 "%s has nothing by which a rule could tell it after the next boot "
				 "(wwid, serial number, UUID); chown %s %s gives it until then",
				 drive->path, user, drive->nodes.block);
	group = grant_rules_find(rules, &drive->identity);
	if (group && group->uid != uid)
		return spw_error(-EBUSY, "%s belongs to user %u by %s; first: spillway revoke %s",
				 drive->path, group->uid, rules->path, drive->path);
	return 0;
}

static int examine_all(const struct grant_rules *rules, struct drive *drives, uid_t uid)
{
	int rc = 0;

	for (unsigned i = 0; i < devices.count && rc == 0; i++) {
		drives[i].path = devices.paths[i];
		rc = examine(rules, &drives[i], uid);
	}
	for (unsigned i = 0; i < devices.count && rc == 0; i++)
		rc = grant_each("/sys", &drives[i].identity, find_stranger, drives);
	return rc;
}

/* ---- Grant access ---- */

static int write_rules(struct grant_rules *rules, const struct drive *drives, uid_t uid)
{
	int rc = 0;

	for (unsigned i = 0; i < devices.count && rc == 0; i++)
		if (!grant_rules_find(rules, &drives[i].identity))
			rc = grant_rules_add(rules, &drives[i].identity, uid, drives[i].nodes.block,
					     user);
	return rc ? rc : grant_rules_commit(rules);
}

static bool owns(const char *node, uid_t uid)
{
	struct stat st;

	return stat(node, &st) == 0 && st.st_uid == uid;
}

/* Grant access now: through udev if it runs, else by chown as udev would. @by: set to which. */
static int give_now(const struct drive *drives, uid_t uid, bool by_udev, const char **by)
{
	const char **nodes = calloc(2 * (size_t)devices.count, sizeof(*nodes));
	unsigned count = 0;
	int rc = nodes ? 0 : spw_error(-ENOMEM, "no memory for names");

	for (unsigned i = 0; i < devices.count && nodes; i++) {
		nodes[count++] = drives[i].nodes.block;
		if (drives[i].nodes.character[0])
			nodes[count++] = drives[i].nodes.character;
	}
	*by = by_udev ? "udev" : "chown";
	if (rc == 0 && by_udev)
		rc = grant_trigger(nodes, count);
	for (unsigned i = 0; i < count && rc == 0; i++) {
		if (owns(nodes[i], uid))
			continue;
		if (by_udev)
			(void)fprintf(
				stderr,
				"spillway grant: udev has read the rule, but not given %s: is "
				"%s where it looks? Given by chown\n",
				nodes[i], folder);
		*by = "chown";
		rc = grant_chown(nodes[i], uid);
	}
	free(nodes);
	return rc;
}

/* ---- Report ---- */

/* Find what the user needs in addition to the nodes. Return: number of @needs. */
static unsigned find_needs(const struct drive *drives, char needs[NEEDS_MAX][256])
{
	struct rlimit locked = {0};
	struct spw_store_opts opts;
	bool passthrough = false;
	unsigned count = 0;

	for (unsigned i = 0; i < devices.count; i++)
		passthrough = passthrough || drives[i].nodes.character[0];
	(void)snprintf(needs[count++], sizeof(needs[0]),
		       "wear and health of NVMe drives (probe, info): their log pages");
	if (passthrough)
		(void)snprintf(needs[count++], sizeof(needs[0]),
			       "NVMe passthrough before Linux 6.2");
	(void)snprintf(needs[count++], sizeof(needs[0]),
		       "drives from user space: spillway bind --user %.64s takes them", user);
	spw_store_opts_init(&opts, sizeof(opts));
	if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur < opts.arena_bytes)
		(void)snprintf(needs[count++], sizeof(needs[0]),
			       "more locked memory: the limit here is %s, a store registers %s; as "
			       "long as "
			       "%.64s has less (ulimit -l), each transfer pins its own pages; "
			       "docs/INSTALL.md, Permissions",
			       SPW_SIZE_TEXT(locked.rlim_cur), SPW_SIZE_TEXT(opts.arena_bytes),
			       user);
	return count;
}

static json_t *text_or_null(const char *text)
{
	return text && text[0] ? tool_json_text(text) : json_null();
}

static int print_json(const struct drive *drives, uid_t uid, const char *rule, const char *by)
{
	char needs[NEEDS_MAX][256];
	unsigned count = find_needs(drives, needs);
	json_t *list = json_array(), *needed = json_array();

	for (unsigned i = 0; i < devices.count; i++)
		(void)json_array_append_new(
			list, json_pack("{s:o, s:o, s:o, s:s, s:o}", "path",
					tool_json_text(drives[i].path), "node",
					tool_json_text(drives[i].nodes.block), "character_node",
					text_or_null(drives[i].nodes.character), "attribute",
					drives[i].identity.attribute, "value",
					tool_json_text(drives[i].identity.value)));
	for (unsigned i = 0; i < count; i++)
		(void)json_array_append_new(needed, tool_json_text(needs[i]));
	return tool_print_json(json_pack("{s:o, s:I, s:o, s:o, s:o, s:o}", "user",
					 tool_json_text(user), "uid", (json_int_t)uid, "rules",
					 text_or_null(rule), "given_by", text_or_null(by), "drives",
					 list, "needs_root", needed));
}

static void print_text(const struct drive *drives, const char *rule, const char *by)
{
	char needs[NEEDS_MAX][256];
	unsigned count = find_needs(drives, needs);

	for (unsigned i = 0; i < devices.count; i++) {
		const struct grant_nodes *nodes = &drives[i].nodes;

		(void)printf("%s%s%s: %s %s%s%s; told by its %s, ", nodes->block,
			     nodes->character[0] ? " and " : "", nodes->character,
			     by ? "given to" : "nothing stands in the way of giving it to", user,
			     by ? " by " : "", by ? by : "", drives[i].identity.attribute);
		tool_print_text(drives[i].identity.value, stdout);
		(void)putchar('\n');
	}
	if (rule)
		(void)printf("%s gives %s again at each boot\n", rule,
			     devices.count > 1 ? "them" : "it");
	else if (by)
		(void)printf("There is no %s, so no rule was written: after the next boot, or when "
			     "a drive was away, it has to be given again\n",
			     folder);
	(void)printf("What still needs root:\n");
	for (unsigned i = 0; i < count; i++)
		(void)printf("  - %s\n", needs[i]);
}

static int grant_all(const struct tool_command *command, uid_t uid)
{
	struct drive *drives = calloc(devices.count, sizeof(*drives));
	const char *rule = NULL, *by = NULL;
	struct grant_rules rules;
	int code = TOOL_DONE;
	int rc = grant_rules_open(folder, &rules);

	if (rc == 0)
		rc = drives ? examine_all(&rules, drives, uid)
			    : spw_error(-ENOMEM, "no memory for %u drives", devices.count);
	if (rc == 0 && rules.lock >= 0)
		rule = rules.path;
	if (rc == 0 && !dry_run && rule)
		rc = write_rules(&rules, drives, uid);
	if (rc == 0 && !dry_run)
		rc = give_now(drives, uid, rule && grant_udev(), &by);
	if (rc)
		code = rc == -ENOTBLK ? tool_usage_error(command, "%s", spw_last_error())
				      : tool_fail(command, rc, json);
	else if (json)
		code = print_json(drives, uid, rule, by);
	else
		print_text(drives, dry_run ? NULL : rule, by);
	grant_rules_close(&rules);
	free(drives);
	return code;
}

static int grant(const struct tool_command *command)
{
	uid_t uid;

	if (!user)
		return tool_usage_error(command, "say to whom: --user NAME");
	if (!grant_user(user, &uid))
		return tool_usage_error(command, "--user=%s: there is no such user", user);
	if (uid == 0)
		return tool_usage_error(command, "--user=%s: may use every drive as it is", user);
	return grant_all(command, uid);
}

const struct tool_command command_grant = {
	.name = "grant",
	.summary = "let a user train on drives without being root",
	.synopsis = "--user USER --devices A,B,... [--rules FOLDER] [--force] [--dry-run] [--json]",
	.description = "Makes the user the owner of the drives' nodes (block and NVMe character\n"
		       "devices), now and, by a udev rule, at each boot. The rule identifies a\n"
		       "drive by its wwid, serial number or UUID. The user can then read and\n"
		       "write everything on the drive. Refused are drives that are mounted,\n"
		       "held, swapped on or in use by a store, even in part, including the one\n"
		       "with the root file system; drives that hold anything but a store,\n"
		       "unless --force is given; and drives that cannot be told apart. Prints\n"
		       "what still needs root. 'spillway revoke' undoes it.\n",
	.examples = "  spillway grant --user trainer --devices /dev/nvme1n1,/dev/nvme2n1\n"
		    "  spillway grant --user trainer --devices /dev/nvme1n1 --dry-run\n",
	.action = grant,
	.none_named = tool_no_drives,
	.options = options,
	.destructive = true,
};
