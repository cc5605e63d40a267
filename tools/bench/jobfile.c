/* SPDX-License-Identifier: MIT */
/*
 * tools/bench/jobfile.c - fio's job files
 *
 * Sections in brackets are jobs, [global] sections are what the jobs after them start from. A line
 * is "name=value" or, for flags, "name". A semicolon or hash begins a comment anywhere in a line.
 * ${NAME} is replaced by the environment variable.
 *
 * inih does not fit: it has no keys without a value (unless built so, and Debian's is not), takes
 * an indented line as a continuation of the one before, and a semicolon as a comment only after a
 * blank.
 */
#include "tools/bench/bench.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

#define LINE_BYTES_MAX 8192

#define FAULTS_MAX 100

struct reader {
	const char *path;
	unsigned line;
	struct bench_job *global;
	struct bench_plan *plan;
	struct bench_job job; /* of the current section */
	enum {
		NO_SECTION,
		IN_GLOBAL,
		IN_JOB,
		/* after brackets that name none: options are looked at, and go nowhere */
		IN_NO_JOB,
	} section;
	unsigned section_line;
	/* an option lacks its value: what the job is like cannot be told */
	bool global_spoilt, spoilt;
	void (*tell)(const char *fault);
	unsigned faults;
	int result;      /* of the last one */
	char words[512]; /* its */
};

/* The fault's words are in spw_last_error(). Return: 0: go on reading; or @error. */
static int complain(struct reader *reader, int error)
{
	(void)spw_error(error, "%s:%u: %s", reader->path, reader->line, spw_last_error());
	if (reader->faults++ > 0)
		reader->tell(reader->words);
	if (reader->faults == FAULTS_MAX)
		(void)spw_error(-EINVAL, "%s: more than %u faults: is this a job file?",
				reader->path, FAULTS_MAX);
	(void)snprintf(reader->words, sizeof(reader->words), "%s", spw_last_error());
	reader->result = error;
	return error == -ENOMEM || reader->faults == FAULTS_MAX ? error : 0;
}

int bench_plan_add(struct bench_plan *plan, const struct bench_job *job)
{
	struct bench_job *grown;

	if (plan->count == BENCH_JOBS_MAX)
		return spw_error(-EINVAL, "more than %u jobs", BENCH_JOBS_MAX);
	grown = realloc(plan->jobs, (plan->count + 1) * sizeof(*grown));
	if (!grown)
		return spw_error(-ENOMEM, "out of memory");
	plan->jobs = grown;
	plan->jobs[plan->count++] = *job;
	return 0;
}

void bench_plan_free(struct bench_plan *plan)
{
	free(plan->jobs);
	plan->jobs = NULL;
	plan->count = 0;
}

/* Cut the comment and the blanks at both ends. Return: the first character that counts. */
static char *trim(char *line)
{
	char *end;

	line[strcspn(line, ";#\r\n")] = '\0';
	while (isspace((unsigned char)*line))
		line++;
	end = line + strlen(line);
	while (end > line && isspace((unsigned char)end[-1]))
		end--;
	*end = '\0';
	return line;
}

/* Replace every ${NAME}. A variable that is not set is an error: an empty filename helps nobody. */
static int expand(const char *from, char *to, size_t to_bytes)
{
	size_t used = 0;

	while (*from != '\0') {
		const char *end = from[0] == '$' && from[1] == '{' ? strchr(from, '}') : NULL;
		const char *value = from;
		size_t len = 1;
		char name[128];

		if (end) {
			(void)snprintf(name, sizeof(name), "%.*s", (int)(end - from - 2), from + 2);
			value = getenv(name);
			if (!value)
				return spw_error(-EINVAL, "the environment variable %s is not set",
						 name);
			len = strlen(value);
		}
		if (used + len >= to_bytes)
			return spw_error(-EINVAL, "the line is longer than %zu bytes",
					 to_bytes - 1);
		memcpy(to + used, value, len);
		used += len;
		from = end ? end + 1 : from + 1;
	}
	to[used] = '\0';
	return 0;
}

/* The section that ends here. A job is complete only now. */
static int end_section(struct reader *reader)
{
	unsigned line = reader->line;
	int result = 0;

	if (reader->section == IN_JOB && !reader->spoilt) {
		reader->line = reader->section_line;
		result = bench_job_check(&reader->job);
		if (result == 0)
			result = bench_plan_add(reader->plan, &reader->job);
		if (result != 0)
			result = complain(reader, result);
		reader->line = line;
	}
	reader->section = NO_SECTION;
	return result;
}

static int begin_section(struct reader *reader, char *line)
{
	size_t len = strlen(line);

	reader->section = IN_NO_JOB;
	if (line[len - 1] != ']' || len < 3)
		return spw_error(-EINVAL, "'%s' is not a section; write [name]", line);
	line[len - 1] = '\0';
	if (len - 2 >= BENCH_NAME_BYTES)
		return spw_error(-EINVAL, "the name is longer than %d bytes", BENCH_NAME_BYTES - 1);
	reader->section_line = reader->line;
	if (strcmp(line + 1, "global") == 0) {
		reader->section = IN_GLOBAL;
		return 0;
	}
	reader->section = IN_JOB;
	reader->job = *reader->global;
	reader->spoilt = reader->global_spoilt;
	(void)snprintf(reader->job.section, sizeof(reader->job.section), "%s", line + 1);
	(void)snprintf(reader->job.name, sizeof(reader->job.name), "%s", line + 1);
	return 0;
}

static int set_option(struct reader *reader, const char *line)
{
	bool global = reader->section == IN_GLOBAL;
	char expanded[LINE_BYTES_MAX], *value;
	const char *name;
	int result = expand(line, expanded, sizeof(expanded));
	bool known = result != 0;

	if (result == 0 && reader->section == NO_SECTION)
		return spw_error(-EINVAL, "'%s' stands before the first section", expanded);
	if (result == 0) {
		value = strchr(expanded, '=');
		if (value) {
			*value = '\0';
			value = trim(value + 1);
		}
		name = trim(expanded);
		result = bench_option_set(global ? reader->global : &reader->job, name, value);
		known = bench_option_exists(name);
	}
	/* Its value is unknown, so the job's other faults are, too. */
	if (result != 0 && known)
		*(global ? &reader->global_spoilt : &reader->spoilt) = true;
	return result;
}

static int read_line(struct reader *reader, char *line)
{
	int result = 0;

	line = trim(line);
	if (line[0] == '\0')
		return 0;
	if (line[0] == '[')
		result = end_section(reader);
	if (result != 0)
		return result;
	result = line[0] == '[' ? begin_section(reader, line) : set_option(reader, line);
	return result == 0 ? 0 : complain(reader, result);
}

static int read_lines(struct reader *reader, FILE *file)
{
	char *line = NULL;
	size_t capacity = 0;
	ssize_t len;
	int result = 0;

	while (result == 0 && (len = getline(&line, &capacity, file)) >= 0) {
		reader->line++;
		if (strlen(line) != (size_t)len) {
			result = spw_error(-EINVAL,
					   "the line holds a zero byte: is this a job file?");
			(void)complain(reader, result);
		} else {
			result = read_line(reader, line);
		}
	}
	free(line);
	if (result == 0 && ferror(file))
		return spw_error_errno(-errno, "%s: cannot read", reader->path);
	if (result == 0)
		(void)end_section(reader);
	return reader->faults > 0 ? spw_error(reader->result, "%s", reader->words) : 0;
}

int bench_jobfile_read(const char *path, struct bench_job *global, struct bench_plan *plan,
		       void (*tell)(const char *fault))
{
	struct reader reader = {.path = path, .global = global, .plan = plan, .tell = tell};
	unsigned before = plan->count;
	FILE *file = fopen(path, "re");
	int result;

	if (!file)
		return spw_error_errno(-errno, "cannot open job file %s", path);
	result = read_lines(&reader, file);
	(void)fclose(file);
	if (result == 0 && plan->count == before)
		result = spw_error(
			-EINVAL,
			"%s: no job in it: a job is a section such as [write] with its options",
			path);
	return result;
}
