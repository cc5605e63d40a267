/* SPDX-License-Identifier: MIT */
/* util/file.c - small files, as the kernel shows itself in them */
#include "util/util.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

bool spw_read_line(const char *path, char *line, size_t len)
{
	FILE *file = fopen(path, "re");
	bool found = false;

	line[0] = '\0';
	if (!file)
		return false;
	if (fgets(line, (int)len, file)) {
		line[strcspn(line, "\n")] = '\0';
		found = true;
	}
	(void)fclose(file);
	return found;
}

int spw_each_name(const char *folder,
		  int (*visit)(void *context, const char *folder, const char *name), void *context)
{
	struct dirent *entry;
	DIR *dir = opendir(folder);
	int rc = 0;

	if (!dir)
		return errno == ENOENT ? 0 : spw_error_errno(-errno, "%s cannot be read", folder);
	while (rc == 0 && (entry = readdir(dir)) != NULL)
		if (entry->d_name[0] != '.')
			rc = visit(context, folder, entry->d_name);
	(void)closedir(dir);
	return rc;
}
