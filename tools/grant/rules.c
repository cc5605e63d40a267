/* SPDX-License-Identifier: MIT */
/* tools/grant/rules.c - read, change and rewrite the udev rules file */
#include "tools/grant/grant.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/util.h"

#define HEADING "# spillway grant "

static const char head[] =
	"# Made by 'spillway grant', and changed by it and by 'spillway revoke': not by hand.\n";

/* The text of an identity in the headings of groups. */
static char *identity_text(const struct grant_identity *identity)
{
	char partition[32] = "", *text;

	if (identity->partition)
		(void)snprintf(partition, sizeof(partition), " partition=%u", identity->partition);
	return asprintf(&text, "%s=%s%s", identity->attribute, identity->value, partition) < 0
		       ? NULL
		       : text;
}

static struct grant_group *new_group(struct grant_rules *rules)
{
	struct grant_group *grown =
		reallocarray(rules->groups, rules->count + 1, sizeof(*rules->groups));

	if (!grown)
		return NULL;
	rules->groups = grown;
	grown[rules->count] = (struct grant_group){0};
	return &grown[rules->count++];
}

/* Read a line: a heading, "# spillway grant 1000 wwid=eui.0", begins a group; others join it. */
static int take_line(struct grant_rules *rules, const char *line)
{
	struct grant_group *group = rules->count ? &rules->groups[rules->count - 1] : NULL;
	char *identity, *lines;
	unsigned long uid;

	if (strncmp(line, HEADING, strlen(HEADING)) == 0) {
		uid = strtoul(line + strlen(HEADING), &identity, 10);
		group = new_group(rules);
		if (!group || *identity != ' ')
			return group ? -EINVAL : -ENOMEM;
		group->uid = (uid_t)uid;
		group->identity = strndup(identity + 1, strcspn(identity + 1, "\n"));
		if (!group->identity)
			return -ENOMEM;
	}
	if (!group)
		return 0;
	if (asprintf(&lines, "%s%s", group->lines ? group->lines : "", line) < 0)
		return -ENOMEM;
	free(group->lines);
	group->lines = lines;
	return 0;
}

static int read_file(struct grant_rules *rules)
{
	FILE *file = fopen(rules->path, "re");
	char *line = NULL;
	size_t room = 0;
	int rc = 0;

	if (!file)
		return errno == ENOENT ? 0
				       : spw_error_errno(-errno, "%s cannot be read", rules->path);
	while (rc == 0 && getline(&line, &room, file) >= 0)
		rc = take_line(rules, line);
	if (rc == -EINVAL)
		rc = spw_error(rc,
			       "%s: '%.60s' is not what spillway wrote there; mend or remove it",
			       rules->path, line);
	else if (rc)
		rc = spw_error(rc, "no memory for what is in %s", rules->path);
	else if (ferror(file))
		rc = spw_error(-EIO, "%s cannot be read to its end", rules->path);
	free(line);
	(void)fclose(file);
	return rc;
}

int grant_rules_open(const char *folder, struct grant_rules *rules)
{
	*rules = (struct grant_rules){.lock = -1};
	if (asprintf(&rules->path, "%s/" GRANT_RULES_FILE, folder) < 0) {
		rules->path = NULL;
		return spw_error(-ENOMEM, "no memory for a path");
	}
	rules->lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (rules->lock < 0)
		return errno == ENOENT ? 0 : spw_error_errno(-errno, "%s cannot be opened", folder);
	if (flock(rules->lock, LOCK_EX) != 0)
		return spw_error_errno(-errno, "%s cannot be locked", folder);
	return read_file(rules);
}

const struct grant_group *grant_rules_find(const struct grant_rules *rules,
					   const struct grant_identity *identity)
{
	const struct grant_group *found = NULL;
	char *text = identity_text(identity);

	for (size_t i = 0; text && i < rules->count && !found; i++)
		if (strcmp(rules->groups[i].identity, text) == 0)
			found = &rules->groups[i];
	free(text);
	return found;
}

/* Make a udev pattern: characters with a meaning in it, or unprintable, match any character. */
static const char *pattern_of(const char *value, char *pattern, size_t len)
{
	size_t i = 0;

	for (; value[i] && i + 1 < len; i++)
		pattern[i] =
			(char)(isprint((unsigned char)value[i]) && !strchr("\"\\*?[]|", value[i])
				       ? value[i]
				       : '?');
	pattern[i] = '\0';
	return pattern;
}

/* A character node has no identity of its own: its rule looks for the block device of its name. */
static int add_character_rule(const struct grant_identity *identity, const char *pattern, uid_t uid,
			      char **rule)
{
	bool has_one = identity->partition == 0 && strcmp(identity->attribute, "wwid") == 0;

	if (!has_one) {
		*rule = strdup("");
		return *rule ? 0 : -ENOMEM;
	}
	return asprintf(rule,
			"SUBSYSTEM==\"nvme-generic\", KERNEL==\"ng*\", PROGRAM==\"/bin/sh -c 'read "
			"-r id </sys/class/block/nvme$${1#ng}/wwid && echo $$id' - %%k\", "
			"RESULT==\"%s\", OWNER=\"%u\"\n",
			pattern, uid) < 0
		       ? -ENOMEM
		       : 0;
}

int grant_rules_add(struct grant_rules *rules, const struct grant_identity *identity, uid_t uid,
		    const char *name, const char *user)
{
	char pattern[sizeof(identity->value)], part[32] = "", *character = NULL;
	struct grant_group *group;
	int rc;

	(void)pattern_of(identity->value, pattern, sizeof(pattern));
	if (identity->partition)
		(void)snprintf(part, sizeof(part), "ATTR{partition}==\"%u\", ",
			       identity->partition);
	rc = add_character_rule(identity, pattern, uid, &character);
	group = rc == 0 ? new_group(rules) : NULL;
	if (!group)
		goto out;
	group->uid = uid;
	group->identity = identity_text(identity);
	if (!group->identity ||
	    asprintf(&group->lines,
		     HEADING "%u %s\n# was %s when it was given to %s\n"
			     "SUBSYSTEM==\"block\", ENV{DEVTYPE}==\"%s\", %sATTRS{%s}==\"%s\", "
			     "OWNER=\"%u\"\n%s",
		     uid, group->identity, name, user, identity->partition ? "partition" : "disk",
		     part, identity->attribute, pattern, uid, character) < 0)
		group->lines = NULL;
	rules->changed = true;
out:
	free(character);
	return group && group->identity && group->lines
		       ? 0
		       : spw_error(-ENOMEM, "no memory for a rule");
}

static void free_group(struct grant_group *group)
{
	free(group->identity);
	free(group->lines);
}

void grant_rules_remove(struct grant_rules *rules, const struct grant_group *group)
{
	size_t at = (size_t)(group - rules->groups);

	free_group(&rules->groups[at]);
	memmove(&rules->groups[at], &rules->groups[at + 1],
		(--rules->count - at) * sizeof(*rules->groups));
	rules->changed = true;
}

static int write_file(const struct grant_rules *rules, const char *temporary)
{
	FILE *file = fopen(temporary, "we");
	bool good;

	if (!file)
		return spw_error_errno(-errno, "%s cannot be written", temporary);
	(void)fputs(head, file);
	for (size_t i = 0; i < rules->count; i++)
		(void)fputs(rules->groups[i].lines, file);
	good = fflush(file) == 0 && !ferror(file) && fchmod(fileno(file), 0644) == 0 &&
	       fsync(fileno(file)) == 0;
	if (fclose(file) != 0 || !good || rename(temporary, rules->path) != 0) {
		int error = -errno;

		(void)unlink(temporary);
		return spw_error_errno(error, "%s cannot be written", rules->path);
	}
	return 0;
}

int grant_rules_commit(struct grant_rules *rules)
{
	if (!rules->changed)
		return 0;
	if (rules->count == 0)
		return unlink(rules->path) == 0 || errno == ENOENT
			       ? 0
			       : spw_error_errno(-errno, "%s cannot be removed", rules->path);
	return write_file(rules, SPW_PATH("%s.new", rules->path));
}

void grant_rules_close(struct grant_rules *rules)
{
	for (size_t i = 0; i < rules->count; i++)
		free_group(&rules->groups[i]);
	free(rules->groups);
	free(rules->path);
	if (rules->lock >= 0)
		(void)close(rules->lock);
	*rules = (struct grant_rules){.lock = -1};
}
