/* SPDX-License-Identifier: MIT */
/* drives/opener.c - spw_drives__opener_find(): find the process that has a drive open, in /proc */
#include "drives/opener.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "drives/sysfs.h"
#include "util/util.h"

/* Read "flags: 02100002", octal, in /proc/PID/fdinfo/FD. */
static bool opened_for_writing(const char *pid, const char *fd)
{
	FILE *file = fopen(SPW_PATH("/proc/%s/fdinfo/%s", pid, fd), "re");
	unsigned flags = O_RDONLY;
	char line[64];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "flags: %o", &flags) == 1)
			break;
	if (file)
		(void)fclose(file);
	return (flags & O_ACCMODE) != O_RDONLY;
}

static bool process_has(const char *pid, const struct stat *st, int but_fd)
{
	bool own = strtol(pid, NULL, 10) == (long)getpid(), found = false;
	DIR *dir = opendir(SPW_PATH("/proc/%s/fd", pid));
	struct dirent *entry;
	struct stat other;

	while (dir && !found && (entry = readdir(dir)) != NULL) {
		if (!isdigit((unsigned char)entry->d_name[0]) ||
		    (own && atoi(entry->d_name) == but_fd))
			continue;
		found = fstatat(dirfd(dir), entry->d_name, &other, 0) == 0 &&
			spw_drives__same_file(st, &other) && opened_for_writing(pid, entry->d_name);
	}
	if (dir)
		(void)closedir(dir);
	return found;
}

bool spw_drives__opener_find(const struct stat *st, int but_fd, char *words, size_t len)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	bool found = false;
	char command[32];

	SPW_ASSERT(len > 0);
	while (proc && !found && (entry = readdir(proc)) != NULL) {
		if (!isdigit((unsigned char)entry->d_name[0]) ||
		    !process_has(entry->d_name, st, but_fd))
			continue;
		found = true;
		(void)spw_read_text(SPW_PATH("/proc/%s/comm", entry->d_name), command,
				    sizeof(command));
		(void)snprintf(words, len, "process %.20s (%s)", entry->d_name, command);
	}
	if (proc)
		(void)closedir(proc);
	return found;
}

bool spw_drives__opener_await(uint64_t *deadline_ns, const struct spw_log *log, const char *format,
			      ...)
{
	const struct timespec interval = {.tv_nsec = 10000000};
	char words[512];
	va_list args;

	if (*deadline_ns == 0) {
		*deadline_ns = spw_clock_ns() + SPW_TEARDOWN_S_MAX * UINT64_C(1000000000);
		va_start(args, format);
		(void)vsnprintf(words, sizeof(words), format, args);
		va_end(args);
		spw_log(log, SPW_LOG_WARNING, "%s", words);
	}
	if (spw_clock_ns() >= *deadline_ns)
		return false;
	(void)nanosleep(&interval, NULL);
	return true;
}
