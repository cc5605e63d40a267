/* SPDX-License-Identifier: MIT */
/*
 * tools/grant/grant.h - drives that belong to a user: what tells a drive, the rules of udev that
 * give it at each boot, and giving it now
 *
 * @sysfs: "/sys", or a test's. Block devices are named as there: "nvme0n1", "sda2".
 */
#ifndef SPW_TOOLS_GRANT_GRANT_H
#define SPW_TOOLS_GRANT_GRANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define GRANT_RULES_FOLDER "/etc/udev/rules.d"
#define GRANT_RULES_FILE   "70-spillway.rules"

/* ---- What tells a drive, whatever the kernel numbers it ---- */

struct grant_identity {
	char attribute[32]; /* of sysfs: "wwid" */
	char value[256];
	unsigned partition; /* 0: the whole drive */
};

/* Return: false: nothing of it lasts. */
bool grant_identify(const char *sysfs, const char *name, struct grant_identity *identity);

/* Call @visit for each block device of that identity, until non-zero. Return: that; -errno. */
int grant_each(const char *sysfs, const struct grant_identity *identity,
	       int (*visit)(void *context, const char *name), void *context);

/* ---- The rules ---- */

struct grant_group {
	uid_t uid;
	char *identity; /* "wwid=eui.0025385b91b00000 partition=2" */
	char *lines;    /* as they are in the file, the heading too */
};

struct grant_rules {
	char *path;
	int lock; /* on the folder; -1: there is none */
	struct grant_group *groups;
	size_t count;
	bool changed;
};

/* Locks them for others of these. No file, or no folder: no groups. Return: 0; -errno, in words. */
int grant_rules_open(const char *folder, struct grant_rules *rules);

/* The one of a drive; NULL: none. */
const struct grant_group *grant_rules_find(const struct grant_rules *rules,
					   const struct grant_identity *identity);

/* @name, @user: for a comment in the file. Return: 0; -ENOMEM. */
int grant_rules_add(struct grant_rules *rules, const struct grant_identity *identity, uid_t uid,
		    const char *name, const char *user);
void grant_rules_remove(struct grant_rules *rules, const struct grant_group *group);

/* Write what has changed, or remove the file that has no groups. Return: 0; -errno, in words. */
int grant_rules_commit(struct grant_rules *rules);
void grant_rules_close(struct grant_rules *rules);

/* "wwid=..." of a group as it was found. Return: false: it is not ours. */
bool grant_identity_parse(const char *text, struct grant_identity *identity);

/* ---- Now ---- */

/* A user's name, or number: a container's need not have a name here. Return: false: neither. */
bool grant_user(const char *name, uid_t *uid);

/* The node of a block device, and of an NVMe namespace its character node; "": none. */
struct grant_nodes {
	char block[64], character[64];
};
void grant_nodes(const char *name, struct grant_nodes *nodes);

/* Does udev run here? */
bool grant_udev(void);

/* Let udev read the rules, and apply them to nodes that are named. Return: 0; -errno, in words. */
int grant_trigger(const char *const nodes[], unsigned count);

/* Give a node that exists; its group and rights stay. Return: 0; -errno, in words. */
int grant_chown(const char *node, uid_t uid);

#endif
