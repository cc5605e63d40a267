/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/tree.h - files and links in a folder of the test's own, which stands for the root: its
 * /sys, /dev and /proc
 */
#ifndef SPW_TESTS_TREE_H
#define SPW_TESTS_TREE_H

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/case.h"

#include "util/util.h"

static char folder[128];

/* A path below the folder, until three more were asked for. */
static const char *path_of(const char *format, ...) SPW_PRINTF(1, 2);
static const char *path_of(const char *format, ...)
{
	static char paths[4][PATH_MAX];
	static unsigned next;
	char *path = paths[next++ % 4];
	va_list args;
	int len = snprintf(path, PATH_MAX, "%s/", folder);

	va_start(args, format);
	(void)vsnprintf(path + len, (size_t)(PATH_MAX - len), format, args);
	va_end(args);
	return path;
}

static inline void make_folders(const char *path)
{
	char copy[PATH_MAX];

	(void)snprintf(copy, sizeof(copy), "%s", path);
	for (char *at = strchr(copy + strlen(folder) + 1, '/'); at; at = strchr(at + 1, '/')) {
		*at = '\0';
		assert_true(mkdir(copy, 0700) == 0 || errno == EEXIST);
		*at = '/';
	}
}

static inline void put_bytes(const char *path, const char *bytes, size_t len)
{
	FILE *file;

	make_folders(path);
	file = fopen(path, "we");
	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, len, file), len);
	assert_int_equal(fclose(file), 0);
}

static inline void put(const char *path, const char *text)
{
	put_bytes(path, text, strlen(text));
}

static inline void put_link(const char *path, const char *target)
{
	make_folders(path);
	(void)unlink(path);
	assert_int_equal(symlink(target, path), 0);
}

/* A file or a link, and the folder that is empty without it. */
static inline void drop(const char *path)
{
	char parent[PATH_MAX];

	assert_int_equal(unlink(path), 0);
	(void)snprintf(parent, sizeof(parent), "%s", path);
	*strrchr(parent, '/') = '\0';
	assert_true(rmdir(parent) == 0 || errno == ENOTEMPTY);
}

static inline void begin_tree(void)
{
	const char *base = getenv("TMPDIR");

	(void)snprintf(folder, sizeof(folder), "%.90s/spillway-tree.XXXXXX",
		       base ? base : "/var/tmp");
	assert_non_null(mkdtemp(folder));
}

static inline int remove_one(const char *path, const struct stat *st, int kind, struct FTW *place)
{
	(void)st;
	(void)kind;
	(void)place;
	return remove(path);
}

static inline int remove_tree(void **state)
{
	(void)state;
	return nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

#endif
