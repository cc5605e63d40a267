/* SPDX-License-Identifier: MIT */
/* tools/grant/nodes.c - find the nodes of a drive, and change their owner directly or by udev */
#include "tools/grant/grant.h"

#include <errno.h>
#include <pwd.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util/util.h"

bool grant_user(const char *name, uid_t *uid)
{
	const struct passwd *entry = getpwnam(name);
	unsigned long number;
	char *end;

	if (entry) {
		*uid = entry->pw_uid;
		return true;
	}
	number = strtoul(name, &end, 10);
	*uid = (uid_t)number;
	return name[0] >= '0' && name[0] <= '9' && *end == '\0' && number < UINT32_MAX;
}

void grant_nodes(const char *name, struct grant_nodes *nodes)
{
	*nodes = (struct grant_nodes){0};
	(void)snprintf(nodes->block, sizeof(nodes->block), "/dev/%s", name);
	for (char *at = strchr(nodes->block, '!'); at; at = strchr(at, '!'))
		*at = '/';
	if (strncmp(name, "nvme", 4) == 0 && !strchr(name, 'p'))
		(void)snprintf(nodes->character, sizeof(nodes->character), "/dev/ng%s", name + 4);
	if (access(nodes->character, F_OK) != 0)
		nodes->character[0] = '\0';
}

bool grant_udev(void)
{
	return access("/run/udev/control", F_OK) == 0;
}

static int run(char *const words[])
{
	pid_t pid;
	int status = 0, rc = posix_spawnp(&pid, words[0], NULL, NULL, words, environ);

	if (rc != 0)
		return spw_error_errno(-rc, "%s cannot be started", words[0]);
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return spw_error_errno(-errno, "%s cannot be waited for", words[0]);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0
		       ? 0
		       : spw_error(-EIO, "%s %s failed", words[0], words[1]);
}

int grant_trigger(const char *const nodes[], unsigned count)
{
	static char *const reload[] = {"udevadm", "control", "--reload", NULL};
	char **words = calloc(count + 5, sizeof(*words));
	int rc = words ? run(reload) : spw_error(-ENOMEM, "no memory for names");

	if (rc == 0 && count > 0) {
		words[0] = "udevadm";
		words[1] = "trigger";
		words[2] = "--action=change";
		words[3] = "--settle";
		for (unsigned i = 0; i < count; i++)
			words[4 + i] = (char *)(uintptr_t)nodes[i];
		rc = run(words);
	}
	free(words);
	return rc;
}

int grant_chown(const char *node, uid_t uid)
{
	return chown(node, uid, (gid_t)-1) == 0
		       ? 0
		       : spw_error_errno(-errno, "%s cannot be given to user %u", node, uid);
}
