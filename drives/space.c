/* SPDX-License-Identifier: MIT */
/* drives/space.c - warn about sparse files that may outgrow their file system */
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include "drives/space.h"
#include "engine/device.h"
#include "util/util.h"

/* A target's file, and how much of its size is not allocated yet. */
struct promise {
	char file[PATH_MAX];
	dev_t file_system;
	uint64_t size_bytes, missing_bytes; /* missing_bytes 0: allocated, or not a file */
};

static void look(const struct spw_candidate *target, struct promise *promise)
{
	struct stat st;

	promise->size_bytes = target->device->geometry.size_bytes;
	promise->missing_bytes = 0;
	(void)snprintf(promise->file, sizeof(promise->file), "%s", target->path);
	if (stat(promise->file, &st) != 0)
		return;
	if (S_ISBLK(st.st_mode) &&
	    (!spw_read_line(SPW_PATH("/sys/dev/block/%u:%u/loop/backing_file", major(st.st_rdev),
				     minor(st.st_rdev)),
			    promise->file, sizeof(promise->file)) ||
	     stat(promise->file, &st) != 0))
		return;
	if (!S_ISREG(st.st_mode))
		return;
	promise->file_system = st.st_dev;
	if (promise->size_bytes > (uint64_t)st.st_blocks * 512)
		promise->missing_bytes = promise->size_bytes - (uint64_t)st.st_blocks * 512;
}

static void warn(const struct promise *first, unsigned others, uint64_t missing_bytes,
		 const struct spw_log *log)
{
	char and_others[48] = "";
	struct statvfs fs;
	uint64_t free_bytes;

	if (missing_bytes == 0 || statvfs(first->file, &fs) != 0)
		return;
	free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
	if (missing_bytes <= free_bytes)
		return;
	if (others > 0)
		(void)snprintf(and_others, sizeof(and_others), " and %u other%s", others,
			       others == 1 ? "" : "s");
	spw_log(log, SPW_LOG_WARNING,
		"%s%s: %s that the store will count on have no space yet, and the file system has "
		"%s left: once it is full, writes fail, tensors stay in memory, and the file is "
		"tried again every second; if that is not meant, make it smaller",
		first->file, and_others, SPW_SIZE_TEXT(missing_bytes), SPW_SIZE_TEXT(free_bytes));
}

void spw_drives__space_warn(const struct spw_candidate targets[], unsigned count,
			    const struct spw_log *log)
{
	struct promise promise, other;

	for (unsigned i = 0; i < count; i++) {
		bool said = false;
		uint64_t missing_bytes;
		unsigned others = 0;

		look(&targets[i], &promise);
		missing_bytes = promise.missing_bytes;
		for (unsigned j = 0; j < count && missing_bytes > 0 && !said; j++) {
			if (j == i)
				continue;
			look(&targets[j], &other);
			if (other.missing_bytes == 0 || other.file_system != promise.file_system)
				continue;
			said = j < i;
			missing_bytes += other.missing_bytes;
			others++;
		}
		if (!said)
			warn(&promise, others, missing_bytes, log);
	}
}
