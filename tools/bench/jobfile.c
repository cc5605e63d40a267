/* SPDX-License-Identifier: MIT */
/*
 * tools/bench/jobfile.c - read fio's job files
 *
 * Sections in brackets are jobs; [global] sections set the defaults of the jobs after them. A line
 * is "name=value" or, for flags, "name". A semicolon or hash begins a comment anywhere in a line.
 * ${NAME} is replaced by the environment variable. "include FILE" inserts the lines of a file
 * without sections.
 *
 * The library inih does not fit: it has no keys without a value (Debian builds it so), takes an
 * indented line as a continuation, and a semicolon as a comment only after a blank.
 */
#include "tools/bench/bench.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
		/* after brackets without a name: options are checked, then dropped */
		IN_NO_JOB,
		IN_UNWANTED, /* a section that --section excludes */
	} section;
	unsigned section_line;
	/* a value could not be read, so the job cannot be checked */
	bool global_spoilt, spoilt;
	void (*tell)(const char *fault);
	unsigned faults;
	int result;      /* error of the last fault */
	char words[512]; /* message of the last fault */
	/* faults of the section; dropped if a later line names an engine that is not spillway's */
	struct {
		int error;
		char *words;
	} pending[FAULTS_MAX];
	unsigned pending_count;
	/* set in a section that was left out: the jobs after it still begin later */
	bool stonewall, new_group;
	bool included; /* the current lines come from an included file */
};

static int complain(struct reader *reader, int error, const char *words)
{
	if (reader->faults++ > 0)
		reader->tell(reader->words);
	(void)snprintf(reader->words, sizeof(reader->words), "%s", words);
	if (reader->faults == FAULTS_MAX)
		(void)snprintf(reader->words, sizeof(reader->words),
			       "%s: more than %d faults: is this a job file?", reader->path,
			       FAULTS_MAX);
	reader->result = error;
	return error == -ENOMEM || reader->faults == FAULTS_MAX ? error : 0;
}

/* Note the fault in spw_last_error(). Return: 0 to go on reading; or an error. */
static int note(struct reader *reader, int error)
{
	(void)spw_error(error, "%s:%u: %s", reader->path, reader->line, spw_last_error());
	if (reader->section != IN_JOB || reader->pending_count == FAULTS_MAX)
		return complain(reader, error, spw_last_error());
	reader->pending[reader->pending_count].error = error;
	reader->pending[reader->pending_count].words = strdup(spw_last_error());
	if (!reader->pending[reader->pending_count++].words)
		return complain(reader, -ENOMEM, "out of memory");
	return 0;
}

/* Settle the pending faults of a section. @tell: report them, or else drop them */
static int settle_pending(struct reader *reader, bool tell)
{
	int result = 0;

	for (unsigned i = 0; i < reader->pending_count; i++) {
		if (tell && result == 0 && reader->pending[i].words)
			result = complain(reader, reader->pending[i].error,
					  reader->pending[i].words);
		free(reader->pending[i].words);
	}
	reader->pending_count = 0;
	return result;
}

/*
 * In fio, blocks of a random order run out where they are larger than those that the order is made
 * for, which are the smallest of both directions, and where some transfers are sequential.
 */
static bool fio_ends_early(const struct bench_job *job)
{
	if (!bench_rw_is_random(job->rw) || job->norandommap || job->spread != BENCH_SPREAD_EVEN)
		return false;
	for (unsigned i = 0; i < BENCH_DIRECTIONS; i++) {
		bool used = (i == BENCH_DIR_READ ? bench_rw_reads : bench_rw_writes)(job->rw);

		if (used && (bench_job_lengths(job, i).min > bench_job_lengths(job, !i).min ||
			     job->random_percent[i] < 100))
			return true;
	}
	return false;
}

/* In fio, the last sequential block goes beyond a size that is not a multiple, if the file does. */
static bool fio_goes_beyond(const struct bench_job *job)
{
	uint64_t size = job->file_bytes > 0 ? job->file_bytes : job->size_bytes;

	if (bench_rw_is_random(job->rw))
		return false;
	for (unsigned i = 0; i < BENCH_DIRECTIONS; i++)
		if ((i == BENCH_DIR_READ ? bench_rw_reads : bench_rw_writes)(job->rw) &&
		    size % bench_job_lengths(job, i).min != 0)
			return true;
	return false;
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
	grown += plan->count++;
	*grown = *job;
	if (grown->synchronous)
		grown->iodepth = grown->submit_batch = grown->complete_min = 1;
	if (!grown->null && (grown->direct == BENCH_DIRECT_THROUGH ||
			     (grown->direct == BENCH_DIRECT_UNSAID && grown->of_file)))
		grown->remarks |= 1u << BENCH_REMARK_BUFFERED;
	if (fio_ends_early(grown))
		grown->remarks |= 1u << BENCH_REMARK_WHOLE;
	if (fio_goes_beyond(grown))
		grown->remarks |= 1u << BENCH_REMARK_ROUNDED;
	if (grown->null_engine) {
		grown->filename[0] = '\0';
		grown->remarks &= ~(1u << BENCH_REMARK_CHECKSUM);
		if (grown->verify != BENCH_VERIFY_NONE)
			grown->remarks |= 1u << BENCH_REMARK_NOT_VERIFIED;
		grown->verify = BENCH_VERIFY_NONE;
		grown->verify_backlog = 0;
	}
	return 0;
}

static int leave_out(struct reader *reader)
{
	struct bench_plan *plan = reader->plan;
	struct bench_left_out *grown;

	grown = realloc(plan->left_out, (plan->left_out_count + 1) * sizeof(*grown));
	if (!grown)
		return spw_error(-ENOMEM, "out of memory");
	plan->left_out = grown;
	grown += plan->left_out_count++;
	memcpy(grown->section, reader->job.section, sizeof(grown->section));
	memcpy(grown->engine, reader->job.foreign_engine, sizeof(grown->engine));
	reader->stonewall |= reader->job.stonewall;
	reader->new_group |= reader->job.new_group;
	return 0;
}

void bench_plan_free(struct bench_plan *plan)
{
	free(plan->jobs);
	free(plan->left_out);
	plan->jobs = NULL;
	plan->left_out = NULL;
	plan->count = plan->left_out_count = 0;
}

/* Cut the comment, and blanks at both ends. Return: the first character left. */
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

/* Replace every ${NAME}. An unset variable is an error, unlike in fio. */
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

static int end_job(struct reader *reader)
{
	struct bench_job *job = &reader->job;
	unsigned line = reader->line;
	int result;

	if (job->foreign_engine[0] != '\0') {
		(void)settle_pending(reader, false);
		return leave_out(reader);
	}
	job->stonewall |= reader->stonewall;
	job->new_group |= reader->new_group;
	reader->stonewall = reader->new_group = false;
	if (reader->spoilt)
		return settle_pending(reader, true);
	reader->line = reader->section_line;
	result = bench_job_check(job);
	if (result == 0)
		result = bench_plan_add(reader->plan, job);
	if (result != 0)
		result = note(reader, result);
	reader->line = line;
	return result == 0 ? settle_pending(reader, true) : result;
}

/* End the current section. A job is complete only here. */
static int end_section(struct reader *reader)
{
	int result = reader->section == IN_JOB ? end_job(reader) : 0;

	reader->section = NO_SECTION;
	return result;
}

static bool is_wanted(const struct bench_plan *plan, const char *section)
{
	for (unsigned i = 0; i < plan->sections_count; i++)
		if (strcmp(plan->sections[i], section) == 0)
			return true;
	return plan->sections_count == 0;
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
	reader->section = is_wanted(reader->plan, line + 1) ? IN_JOB : IN_UNWANTED;
	reader->job = *reader->global;
	reader->job.of_file = true;
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
	/* The option's value is unknown, so the job cannot be checked further. */
	if (result != 0 && known)
		*(global ? &reader->global_spoilt : &reader->spoilt) = true;
	return result;
}

static int read_file(struct reader *reader, const char *path);

/* Include a file, found as in fio: in the current folder, or beside the including file. */
static int include(struct reader *reader, const char *line)
{
	char expanded[LINE_BYTES_MAX], beside[LINE_BYTES_MAX * 2];
	const char *path = reader->path, *slash = strrchr(path, '/'), *name;
	unsigned at = reader->line;
	int result = expand(line + strlen("include"), expanded, sizeof(expanded));

	if (result != 0)
		return result;
	name = trim(expanded);
	if (reader->included)
		return spw_error(-EINVAL, "an included file includes no others");
	if (name[0] == '\0')
		return spw_error(-EINVAL, "include names no file");
	if (slash && name[0] != '/' && access(name, F_OK) != 0) {
		(void)snprintf(beside, sizeof(beside), "%.*s/%s", (int)(slash - path), path, name);
		name = beside;
	}
	reader->included = true;
	reader->path = name;
	reader->line = 0;
	result = read_file(reader, name);
	reader->path = path;
	reader->line = at;
	reader->included = false;
	return result;
}

static int read_line(struct reader *reader, char *line)
{
	int result = 0;

	line = trim(line);
	if (line[0] == '\0')
		return 0;
	if (line[0] == '[' && reader->included)
		return note(reader, spw_error(-EINVAL, "an included file has no sections"));
	if (line[0] == '[')
		result = end_section(reader);
	if (result != 0)
		return result;
	if (line[0] == '[')
		result = begin_section(reader, line);
	else if (reader->section == IN_UNWANTED)
		return 0;
	else if (strncmp(line, "include", strlen("include")) == 0 &&
		 isspace((unsigned char)line[strlen("include")]))
		result = include(reader, line);
	else
		result = set_option(reader, line);
	return result == 0 ? 0 : note(reader, result);
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
			(void)note(reader, result);
		} else {
			result = read_line(reader, line);
		}
	}
	free(line);
	if (result == 0 && ferror(file))
		return spw_error_errno(-errno, "%s: cannot read", reader->path);
	return result;
}

static int read_file(struct reader *reader, const char *path)
{
	FILE *file = fopen(path, "re");
	struct stat status;
	int result;

	if (!file && reader->included)
		return spw_error(-EINVAL, "include: cannot open %s: %s", path, strerror(errno));
	if (!file)
		return spw_error_errno(-errno, "cannot open job file %s", path);
	/* Refuse devices, which have no end, and pipes. Only the job file itself may be a pipe. */
	if (reader->included && (fstat(fileno(file), &status) != 0 || !S_ISREG(status.st_mode)))
		result = spw_error(-EINVAL, "%s is not a plain file", path);
	else
		result = read_lines(reader, file);
	(void)fclose(file);
	return result;
}

static int check_has_jobs(const struct reader *reader, unsigned before)
{
	const struct bench_plan *plan = reader->plan;

	if (plan->count > before || plan->sections_count > 0)
		return 0;
	if (plan->left_out_count > 0)
		return spw_error(-EINVAL,
				 "%s: no section of it runs here: [%s] has ioengine=%s, which is "
				 "not one of spillway's",
				 reader->path, plan->left_out[0].section, plan->left_out[0].engine);
	return spw_error(-EINVAL,
			 "%s: no job in it: a job is a section such as [write] with its options",
			 reader->path);
}

int bench_jobfile_read(const char *path, struct bench_job *global, struct bench_plan *plan,
		       void (*tell)(const char *fault))
{
	struct reader *reader = calloc(1, sizeof(*reader));
	unsigned before = plan->count;
	int result;

	if (!reader)
		return spw_error(-ENOMEM, "out of memory");
	*reader = (struct reader){.path = path, .global = global, .plan = plan, .tell = tell};
	result = read_file(reader, path);
	if (result == 0)
		result = end_section(reader);
	(void)settle_pending(reader, true);
	if (reader->faults > 0)
		result = spw_error(reader->result, "%s", reader->words);
	else if (result == 0)
		result = check_has_jobs(reader, before);
	free(reader);
	return result;
}
