/* SPDX-License-Identifier: MIT */
/* tools/tune_file.h - the file with the best settings of drives, of spillway tune */
#ifndef SPW_TUNE_FILE_H
#define SPW_TUNE_FILE_H

#include <stdint.h>

#include <jansson.h>

#include "tools/bench/bench.h"

/*
 * $XDG_CONFIG_HOME/spillway/tune.json, else ~/.config/spillway/tune.json. Return: path, or NULL
 * with spw_last_error().
 */
const char *tune_file_default(char *path, size_t len);

/* Check that the file can be written, and make its folders. Return: 0; -errno with a message. */
int tune_file_check(const char *path);

/* Write @document, and make its folders. A crash leaves the old file or the new one. */
int tune_file_save(const char *path, const json_t *document);

/**
 * tune_file_apply - set block size, depth, polling and backend of @job to the best ones found for
 * its direction @path: NULL for the default file
 */
int tune_file_apply(const char *path, struct bench_job *job);

#endif
