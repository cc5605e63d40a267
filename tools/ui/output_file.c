/* SPDX-License-Identifier: MIT */
/* tools/ui/output_file.c - whether a report can be written, asked before there is one */
#include "tools/ui/output_file.h"

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
	/* ENXIO: a pipe that nobody reads from yet. */
	if (fd < 0 && errno != ENXIO)
		return spw_error_errno(-errno, "cannot write %s", path);
	if (fd >= 0)
		(void)close(fd);
	if (made)
		(void)unlink(path);
	return 0;
}
