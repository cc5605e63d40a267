/* SPDX-License-Identifier: MIT */
/* tools/tune_file.c - writing and reading the file of best settings */
#include "tools/tune_file.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/util.h"

const char *tune_file_default(char *path, size_t len)
{
	const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
	int used;

	/* The XDG rules say that a relative path there is to be ignored. */
	if (config && config[0] == '/') {
		used = snprintf(path, len, "%s/spillway/tune.json", config);
	} else if (home && home[0] == '/') {
		used = snprintf(path, len, "%s/.config/spillway/tune.json", home);
	} else {
		(void)spw_error(-ENOENT, "neither XDG_CONFIG_HOME nor HOME is set: name the file with --output");
		return NULL;
	}
	if (used < 0 || (size_t)used >= len) {
		(void)spw_error(-ENAMETOOLONG, "the path of the settings file is too long");
		return NULL;
	}
	return path;
}

/* All folders above @path. */
static int make_folders(const char *path)
{
	char folder[PATH_MAX];

	if (strlen(path) >= sizeof(folder))
		return spw_error(-ENAMETOOLONG, "%s: the path is too long", path);
	memcpy(folder, path, strlen(path) + 1);
	for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (mkdir(folder, 0755) != 0 && errno != EEXIST)
			return spw_error_errno(-errno, "cannot make the folder %s", folder);
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
	if (json_dumpf(document, file, JSON_INDENT(2)) != 0 || fputc('\n', file) == EOF || fflush(file) != 0 ||
	    fsync(fileno(file)) != 0)
		result = spw_error_errno(errno != 0 ? -errno : -EIO, "cannot write %s", path);
	if (fclose(file) != 0 && result == 0)
		result = spw_error_errno(-errno, "cannot write %s", path);
	return result;
}

int tune_file_save(const char *path, const json_t *document)
{
	char fresh[PATH_MAX];
	int result = make_folders(path);

	if (result != 0)
		return result;
	if (snprintf(fresh, sizeof(fresh), "%s.new", path) >= (int)sizeof(fresh))
		return spw_error(-ENAMETOOLONG, "%s: the path is too long", path);
	result = write_document(fresh, document);
	if (result == 0 && rename(fresh, path) != 0)
		result = spw_error_errno(-errno, "cannot rename %s to %s", fresh, path);
	if (result != 0)
		(void)unlink(fresh);
	return result;
}

static int apply_settings(const char *path, const json_t *settings, struct bench_job *job)
{
	json_int_t block_bytes, depth;
	const char *wait, *backend;
	int result;

	if (json_unpack((json_t *)(uintptr_t)settings, "{s:I, s:I, s:s, s:s}", "block_bytes", &block_bytes, "iodepth",
			&depth, "wait", &wait, "backend", &backend) != 0)
		return spw_error(-EINVAL, "%s: the settings for rw=%s are incomplete: run 'spillway tune' again", path,
				 bench_rw_name(job->rw));
	if (block_bytes <= 0 || block_bytes > SPW_IO_BYTES_MAX || depth <= 0 || depth > SPW_QUEUE_DEPTH_MAX)
		return spw_error(-EINVAL, "%s: blocks of %jd bytes at depth %jd make no sense", path,
				 (intmax_t)block_bytes, (intmax_t)depth);
	result = bench_option_set(job, "backend", backend);
	if (result != 0)
		return spw_error(result, "%s: %s", path, spw_last_error());
	job->block_bytes_min = job->block_bytes_max = (uint64_t)block_bytes;
	job->iodepth = (uint32_t)depth;
	job->hipri = strcmp(wait, "poll") == 0;
	return 0;
}

int tune_file_apply(const char *path, struct bench_job *job)
{
	const char *direction = bench_rw_writes(job->rw) ? "write" : "read";
	char usual[PATH_MAX];
	const json_t *settings;
	json_error_t error;
	json_t *document;
	int result;

	if (!path)
		path = tune_file_default(usual, sizeof(usual));
	if (!path)
		return -EINVAL;
	document = json_load_file(path, 0, &error);
	if (!document)
		return spw_error(-EINVAL, "%s:%d: %s; 'spillway tune' writes this file", path, error.line, error.text);
	settings = json_object_get(json_object_get(document, "best"), direction);
	if (json_integer_value(json_object_get(document, "format")) != TUNE_FILE_FORMAT)
		result = spw_error(-EINVAL, "%s: not a settings file of this version: run 'spillway tune' again", path);
	else if (!json_is_object(settings))
		result = spw_error(-EINVAL, "%s: holds no settings for rw=%s: run 'spillway tune%s'", path,
				   bench_rw_name(job->rw), bench_rw_writes(job->rw) ? " --write" : "");
	else
		result = apply_settings(path, settings, job);
	json_decref(document);
	return result;
}
