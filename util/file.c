/* SPDX-License-Identifier: MIT */
/* util/file.c - small files, as the kernel shows itself in them */
#include "util/util.h"

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
