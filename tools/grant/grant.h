/* SPDX-License-Identifier: MIT */
/*
 * tools/grant/grant.h - give drives to a user: the identity of a drive, the udev rules that give it
 * at each boot, and giving it now
 *
 * @sysfs: "/sys", or a test's folder. Block devices are named as in sysfs: "nvme0n1", "sda2".
 */
#ifndef SPW_TOOLS_GRANT_GRANT_H
#define SPW_TOOLS_GRANT_GRANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define GRANT_RULES_FOLDER "/etc/udev/rules.d"
#define GRANT_RULES_FILE   "70-spillway.rules"

/* ---- The identity of a drive, which the kernel's numbering does not change ---- */

struct grant_identity {
	char attribute[32]; /* of sysfs, by udev's name: "wwid" */
	char value[256];
	unsigned partition; /* 0: the whole drive */
};

/* Find a drive's identity. Return: false: the drive has no attribute that lasts. */
bool grant_identify(const char *sysfs, const char *name, struct grant_identity *identity);

/* Call @visit for each block device of an identity, until non-zero. Return: that; -errno */
int grant_each(const char *sysfs, const struct grant_identity *identity,
	       int (*visit)(void *context, const char *name), void *context);

/* ---- The rules ---- */

struct grant_group {
	uid_t uid;
	char *identity; /* "wwid=eui.0025385b91b00000 partition=2" */
	char *lines;    /* as in the file, with the heading */
};

struct grant_rules {
	char *path;
	int lock; /* lock on the folder; -1: the folder does not exist */
	struct grant_group *groups;
	size_t count;
	bool changed;
};

/* Read and lock the rules. No file or folder: no groups. Return: 0; -errno, with a message. */
int grant_rules_open(const char *folder, struct grant_rules *rules);

/* Find the group of a drive. Return: NULL if it has none. */
const struct grant_group *grant_rules_find(const struct grant_rules *rules,
					   const struct grant_identity *identity);

/* @name, @user: for a comment in the file. Return: 0; -ENOMEM. */
int grant_rules_add(struct grant_rules *rules, const struct grant_identity *identity, uid_t uid,
		    const char *name, const char *user);
void grant_rules_remove(struct grant_rules *rules, const struct grant_group *group);

/* Write changes, or remove the file if it has no groups. Return: 0; -errno, with a message. */
int grant_rules_commit(struct grant_rules *rules);
void grant_rules_close(struct grant_rules *rules);

/* Parse a group's "wwid=...". Return: false if spillway did not write it. */
bool grant_identity_parse(const char *text, struct grant_identity *identity);

/* ---- Giving drives now ---- */

/* Find a user by name or number; a container's user may have no name here. Return: false: none. */
bool grant_user(const char *name, uid_t *uid);

/* The node of a block device, and the character node of an NVMe namespace; "": none. */
struct grant_nodes {
	char block[64], character[64];
};
void grant_nodes(const char *name, struct grant_nodes *nodes);

/* Whether udev runs here. */
bool grant_udev(void);

/* Let udev read the rules, and apply them to these nodes. Return: 0; -errno, with a message. */
int grant_trigger(const char *const nodes[], unsigned count);

/* Change the owner of a node; its group and mode stay. Return: 0; -errno, with a message. */
int grant_chown(const char *node, uid_t uid);

#endif
