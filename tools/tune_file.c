/* SPDX-License-Identifier: MIT */
/* tools/tune_file.c - write and read the file of best settings, of spillway tune */
#include "tools/tune_file.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/ui/tool.h"
#include "util/util.h"

const char *tune_file_default(char *path, size_t len)
{
	const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
	int used;

	/* The XDG specification demands that relative paths are ignored. */
	if (config && config[0] == '/') {
		used = snprintf(path, len, "%s/spillway/tune.json", config);
	} else if (home && home[0] == '/') {
		used = snprintf(path, len, "%s/.config/spillway/tune.json", home);
	} else {
		(void)spw_error(
			-ENOENT,
			"neither XDG_CONFIG_HOME nor HOME is set: name the file with --output");
		return NULL;
	}
	if (used < 0 || (size_t)used >= len) {
		(void)spw_error(-ENAMETOOLONG, "the path of the settings file is too long");
		return NULL;
	}
	return path;
}

static int make_folders(const char *path)
{
	char folder[PATH_MAX];

	if (strlen(path) >= sizeof(folder))
		return spw_error(-ENAMETOOLONG, "%s: the path is too long", path);
	memcpy(folder, path, strlen(path) + 1);
	for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (mkdir(folder, 0755) != 0 && errno != EEXIST)
			return spw_error_errno(-errno,
					       "cannot make the folder %s for the settings; "
					       "name another place: --output FILE",
					       folder);
		*slash = '/';
	}
	return 0;
}

static int write_document(const char *path, const json_t *document)
{
	FILE *file = fopen(path, "we");
	int result = 0;

	if (!file)
		return spw_error_errno(-errno, "cannot write %s", path);
	if (json_dumpf(document, file, JSON_INDENT(2)) != 0 || fputc('\n', file) == EOF ||
	    fflush(file) != 0 || fsync(fileno(file)) != 0)
		result = spw_error_errno(errno != 0 ? -errno : -EIO, "cannot write %s", path);
	if (fclose(file) != 0 && result == 0)
		result = spw_error_errno(-errno, "cannot write %s", path);
	return result;
}

/* Name the temporary file that is written first and then renamed; make its folders. */
static int fresh_path(const char *path, char fresh[PATH_MAX])
{
	if (snprintf(fresh, PATH_MAX, "%s.new", path) >= PATH_MAX)
		return spw_error(-ENAMETOOLONG, "%s: the path is too long", path);
	return make_folders(path);
}

int tune_file_check(const char *path)
{
	char fresh[PATH_MAX];
	int result = fresh_path(path, fresh);

	return result == 0 ? tool_output_check(fresh) : result;
}

int tune_file_save(const char *path, const json_t *document)
{
	char fresh[PATH_MAX];
	int result = fresh_path(path, fresh);

	if (result == 0)
		result = write_document(fresh, document);
	if (result == 0 && rename(fresh, path) != 0)
		result = spw_error_errno(-errno, "cannot rename %s to %s", fresh, path);
	if (result != 0)
		(void)unlink(fresh);
	return result;
}

int tune_file_apply(const char *path, struct bench_job *job)
{
	struct spw_tune tune = {.size = sizeof(tune)};
	const struct spw_tune_settings *settings =
		bench_rw_writes(job->rw) ? &tune.write : &tune.read;
	char usual[PATH_MAX];
	int result;

	if (!path)
		path = tune_file_default(usual, sizeof(usual));
	if (!path)
		return -EINVAL;
	result = spw_tune_read(path, NULL, 0, NULL, &tune, sizeof(tune));
	if (result != 0)
		return result;
	if (settings->depth == 0)
		return spw_error(-EINVAL, "%s: holds no settings for rw=%s: run 'spillway tune%s'",
				 path, bench_rw_name(job->rw),
				 bench_rw_writes(job->rw) ? " --write" : "");
	job->backend = settings->backend;
	job->block_bytes_min = job->block_bytes_max = settings->block_bytes;
	job->iodepth = settings->depth;
	job->hipri = settings->wait == SPW_WAIT_POLL;
	return 0;
}
