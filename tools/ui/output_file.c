/* SPDX-License-Identifier: MIT */
/* tools/ui/output_file.c - files that a command writes for its user */
#include "tools/ui/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "util/util.h"

int tool_output_check(const char *path)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	bool made = false;

	if (fd < 0 && errno == ENOENT) {
		fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		made = fd >= 0;
	}
	/* ENXIO: a pipe that has no reader yet. */
	if (fd < 0 && errno != ENXIO)
		return spw_error_errno(-errno, "cannot write %s", path);
	if (fd >= 0)
		(void)close(fd);
	if (made)
		(void)unlink(path);
	return 0;
}

int tool_output_write(const char *path, const char *what, void (*write)(void *context, FILE *out),
		      void *context)
{
	FILE *out = fopen(path, "we");
	int failed;

	if (!out)
		return spw_error_errno(-errno, "cannot create %s %s", what, path);
	write(context, out);
	failed = ferror(out);
	if (fclose(out) != 0 || failed)
		return spw_error_errno(errno ? -errno : -EIO, "cannot write %s %s", what, path);
	return 0;
}
