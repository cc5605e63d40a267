/* SPDX-License-Identifier: MIT */
/* tools/cmd_revoke.c - spillway revoke: undo spillway grant, so that drives belong to root again */
#include "tools/ui/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "tools/grant/grant.h"
#include "util/util.h"

static struct tool_devices devices;
static const char *user, *folder = GRANT_RULES_FOLDER;
static bool dry_run, json;

static const struct tool_option options[] = {
	{"devices", TOOL_DEVICES, &devices, "A,B,...",
	 "block devices (or name them without the option)"},
	{"user", TOOL_TEXT, &user, "USER", "everything granted to this user"},
	{"rules", TOOL_TEXT, &folder, "FOLDER", "udev's rules folder (" GRANT_RULES_FOLDER ")"},
	{"dry-run", TOOL_FLAG, &dry_run, NULL, "only show what would be done"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

struct revoking {
	struct grant_rules rules;
	uid_t uid;     /* the user whose grant is revoked */
	json_t *nodes; /* nodes that belong to root again */
};

/* Give a node back to root, unless another user owns it by now. */
static int take_node(struct revoking *revoking, const char *node)
{
	struct stat st;

	if (!node[0] || stat(node, &st) != 0 || st.st_uid != revoking->uid)
		return 0;
	(void)json_array_append_new(revoking->nodes, tool_json_text(node));
	return dry_run ? 0 : grant_chown(node, 0);
}

static int take_device(void *context, const char *name)
{
	struct revoking *revoking = context;
	struct grant_nodes nodes;
	int rc;

	grant_nodes(name, &nodes);
	rc = take_node(revoking, nodes.block);
	return rc ? rc : take_node(revoking, nodes.character);
}

static int take_group(struct revoking *revoking, const struct grant_group *group)
{
	struct grant_identity identity;

	revoking->uid = group->uid;
	if (!grant_identity_parse(group->identity, &identity))
		return spw_error(-EINVAL, "%s: '%s' is not what spillway wrote there",
				 revoking->rules.path, group->identity);
	grant_rules_remove(&revoking->rules, group);
	return grant_each("/sys", &identity, take_device, revoking);
}

/* Revoke a grant that has no udev rule. */
static int take_owned(struct revoking *revoking, const char *path, const char *name)
{
	struct stat st;

	if (stat(path, &st) != 0 || st.st_uid == 0)
		return spw_error(-ENOENT, "%s belongs to root, and %s has no rule for it", path,
				 revoking->rules.path);
	revoking->uid = st.st_uid;
	return take_device(revoking, name);
}

static int take_path(struct revoking *revoking, const char *path)
{
	const struct grant_group *group = NULL;
	struct grant_identity identity;
	char target[PATH_MAX];
	const char *name;
	struct stat st;

	if (stat(path, &st) != 0)
		return spw_error_errno(-errno,
				       "%s cannot be found; for a drive that is unplugged, --user "
				       "revokes the rule",
				       path);
	if (!S_ISBLK(st.st_mode) ||
	    !realpath(SPW_PATH("/sys/dev/block/%u:%u", major(st.st_rdev), minor(st.st_rdev)),
		      target))
		return spw_error(-ENOTBLK, "%s is not a block device", path);
	name = strrchr(target, '/') + 1;
	if (grant_identify("/sys", name, &identity))
		group = grant_rules_find(&revoking->rules, &identity);
	return group ? take_group(revoking, group) : take_owned(revoking, path, name);
}

static int take_all_of(struct revoking *revoking, uid_t uid)
{
	bool found = false;
	int rc = 0;

	for (size_t i = 0; i < revoking->rules.count && rc == 0;) {
		if (revoking->rules.groups[i].uid != uid) {
			i++;
			continue;
		}
		found = true;
		rc = take_group(revoking, &revoking->rules.groups[i]);
	}
	return rc || found ? rc
			   : spw_error(-ENOENT,
				       "%s has not been given anything: %s has no rule of that",
				       user, revoking->rules.path);
}

static int print(const struct revoking *revoking)
{
	const json_t *node;
	size_t i;

	if (json)
		return tool_print_json(
			json_pack("{s:O, s:b}", "nodes", revoking->nodes, "dry_run", dry_run));
	json_array_foreach(revoking->nodes, i, node)(void)
		printf("%s %s root again; a process that has it open keeps it\n",
		       json_string_value(node), dry_run ? "would belong to" : "belongs to");
	if (json_array_size(revoking->nodes) == 0)
		(void)printf("The rule is %s; no drive that is there belonged to the user\n",
			     dry_run ? "there" : "gone");
	return TOOL_DONE;
}

static int revoke_all(const struct tool_command *command, uid_t uid)
{
	struct revoking revoking = {.nodes = json_array()};
	int rc = grant_rules_open(folder, &revoking.rules);
	int code;

	if (rc == 0 && devices.count == 0)
		rc = take_all_of(&revoking, uid);
	for (unsigned i = 0; i < devices.count && rc == 0; i++)
		rc = take_path(&revoking, devices.paths[i]);
	/* Remove the rule even if a chown failed, or the next boot would grant access again. */
	if (!dry_run && revoking.rules.lock >= 0 && revoking.rules.changed) {
		int committed = grant_rules_commit(&revoking.rules);

		if (committed == 0 && grant_udev())
			committed = grant_trigger(NULL, 0);
		rc = rc ? rc : committed;
	}
	code = rc == -ENOTBLK ? tool_usage_error(command, "%s", spw_last_error())
	       : rc           ? tool_fail(command, rc, json)
			      : print(&revoking);
	json_decref(revoking.nodes);
	grant_rules_close(&revoking.rules);
	return code;
}

static int take_back(const struct tool_command *command)
{
	uid_t uid = 0;

	if (!user == (devices.count == 0))
		return tool_usage_error(
			command, "say what: either --devices A,B,..., or --user NAME for all "
				 "that NAME was given");
	if (user && !grant_user(user, &uid))
		return tool_usage_error(command, "--user=%s: there is no such user", user);
	return revoke_all(command, uid);
}

const struct tool_command command_revoke = {
	.name = "revoke",
	.summary = "undo grant",
	.synopsis = "--devices A,B,... | --user USER [--rules FOLDER] [--dry-run] [--json]",
	.description = "Removes the rule and makes root the owner of the nodes. A process that\n"
		       "has a drive open keeps it until it ends; data on the drive stays.\n",
	.examples = "  spillway revoke --devices /dev/nvme1n1,/dev/nvme2n1\n"
		    "  spillway revoke --user trainer\n",
	.action = take_back,
	.options = options,
	.destructive = true,
};
