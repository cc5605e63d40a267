/* SPDX-License-Identifier: MIT */
/* util/file.c - reads small files of /sys and /proc, folders, and record locks */
#include "util/util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

const char *spw_path(char path[PATH_MAX], const char *format, ...)
{
	va_list args;

	va_start(args, format);
	if (vsnprintf(path, PATH_MAX, format, args) >= PATH_MAX)
		path[0] = '\0';
	va_end(args);
	return path;
}

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

bool spw_read_text(const char *path, char *text, size_t len)
{
	bool found = spw_read_line(path, text, len);
	size_t begin = strspn(text, " \t"), end = strlen(text);

	while (end > begin && text[end - 1] == ' ')
		end--;
	memmove(text, text + begin, end - begin);
	text[end - begin] = '\0';
	spw_make_printable(text);
	return found;
}

int64_t spw_read_number(const char *path, int64_t otherwise)
{
	char text[64], *end;
	int64_t number;

	(void)spw_read_text(path, text, sizeof(text));
	errno = 0;
	number = strtoll(text, &end, 0);
	return end != text && *end == '\0' && errno == 0 ? number : otherwise;
}

bool spw_read_device(const char *path, dev_t *number)
{
	unsigned major_number, minor_number;
	char line[32];

	if (!spw_read_line(path, line, sizeof(line)) ||
	    sscanf(line, "%u:%u", &major_number, &minor_number) != 2)
		return false;
	*number = makedev(major_number, minor_number);
	return true;
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

int spw_fd_locked(int fd, uint64_t offset_bytes, uint64_t len_bytes)
{
	struct flock lock = {
		.l_type = F_WRLCK,
		.l_whence = SEEK_SET,
		.l_start = (off_t)offset_bytes,
		.l_len = (off_t)len_bytes,
	};

	return fcntl(fd, F_OFD_GETLK, &lock) != 0 ? -errno : lock.l_type != F_UNLCK;
}
