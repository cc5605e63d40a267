/* SPDX-License-Identifier: MIT */
/*
 * tools/bench/options.c - the options of a job: one table for the command line, for job files and
 * for the help
 */
#include "tools/bench/bench.h"

#include <errno.h>
#include <string.h>

#include "tools/ui/tool.h"
#include "util/util.h"

enum kind {
	KIND_FLAG,   /* bool: nothing, 1 or 0 */
	KIND_COUNT,  /* uint32_t */
	KIND_NUMBER, /* uint64_t */
	KIND_SIZE,   /* uint64_t, bytes */
	KIND_TIME,   /* uint64_t, nanoseconds */
	KIND_CHOICE, /* uint32_t */
	KIND_RW,     /* rw and skip_bytes */
	KIND_TEXT,   /* char[] */
	KIND_BLOCK,  /* block_bytes_min and _max, one size for both */
	KIND_RANGE,  /* block_bytes_min and _max */
	KIND_TOTAL,  /* size_bytes or size_percent */
	KIND_ALWAYS, /* what spillway does anyway: 1 is accepted, 0 cannot be had */
	KIND_NEVER,  /* what spillway never does: 0 is accepted, 1 cannot be had */
};

struct choice {
	const char *name;
	uint32_t value;
};

struct option {
	const char *name, *alias; /* with underscores, as in job files */
	enum kind kind;
	size_t offset;
	uint64_t min, max; /* counts; for text: bytes of the array */
	const struct choice *choices;
	const char *argument, *help;
};

static const struct choice rw_choices[] = {
	{"read", BENCH_READ},
	{"write", BENCH_WRITE},
	{"randread", BENCH_RANDREAD},
	{"randwrite", BENCH_RANDWRITE},
	{"rw", BENCH_RW},
	{"readwrite", BENCH_RW},
	{"randrw", BENCH_RANDRW},
	{NULL, 0},
};
static const struct choice verify_choices[] = {{"xxh3", BENCH_VERIFY_XXH3},
					       {"crc32c", BENCH_VERIFY_CRC32C},
					       {"0", BENCH_VERIFY_NONE},
					       {NULL, 0}};
static const struct choice backend_choices[] = {
	{"auto", SPW_BACKEND_AUTO},     {"io_uring", SPW_BACKEND_IO_URING},
	{"libaio", SPW_BACKEND_LIBAIO}, {"nvme", SPW_BACKEND_NVME},
	{"vfio", SPW_BACKEND_VFIO},     {NULL, 0}};
/* As fio calls them. */
static const struct choice engine_choices[] = {{"io_uring", SPW_BACKEND_IO_URING},
					       {"libaio", SPW_BACKEND_LIBAIO},
					       {"io_uring_cmd", SPW_BACKEND_NVME},
					       {NULL, 0}};
static const struct choice level_choices[] = {
	{"engine", BENCH_LEVEL_ENGINE}, {"store", BENCH_LEVEL_STORE}, {NULL, 0}};
static const struct choice stripe_choices[] = {
	{"pull", SPW_STRIPE_PULL}, {"static", SPW_STRIPE_STATIC}, {NULL, 0}};

#define FIELD(field) offsetof(struct bench_job, field)
#define TEXT(field)  FIELD(field), 0, sizeof(((struct bench_job *)0)->field)

static const struct option options[] = {
	{"name", NULL, KIND_TEXT, TEXT(name), NULL, "NAME",
	 "begin a job; options before the first are for all jobs. In a job file: what reports call "
	 "it"},
	{"filename", NULL, KIND_TEXT, TEXT(filename), NULL, "A:B",
	 "devices or existing files, colon separated"},
	{"rw", "readwrite", KIND_RW, FIELD(rw), 0, 0, rw_choices, "KIND",
	 "read write randread randwrite rw randrw; read:-2m skips after each"},
	{"rwmixread", NULL, KIND_COUNT, FIELD(read_percent), 0, 100, NULL, "PERCENT",
	 "reads of a mix (default 50)"},
	{"bs", "blocksize", KIND_BLOCK, 0, 0, 0, NULL, "SIZE", "of each transfer (default 4k)"},
	{"bsrange", "blocksize_range", KIND_RANGE, 0, 0, 0, NULL, "MIN-MAX",
	 "sizes drawn from a range, multiples of MIN"},
	{"size", NULL, KIND_TOTAL, 0, 0, 0, NULL, "SIZE",
	 "bytes per job over all its files, or N% of each (default all)"},
	{"offset", NULL, KIND_SIZE, FIELD(offset_bytes), 0, 0, NULL, "SIZE",
	 "where to start on each file"},
	{"offset_increment", NULL, KIND_SIZE, FIELD(offset_increment_bytes), 0, 0, NULL, "SIZE",
	 "and so much further for each job of numjobs"},
	{"blockalign", "ba", KIND_SIZE, FIELD(align_bytes), 0, 0, NULL, "SIZE",
	 "of random offsets: any divisor of the smallest block"},
	{"iodepth", NULL, KIND_COUNT, FIELD(iodepth), 1, SPW_QUEUE_DEPTH_MAX, NULL, "N",
	 "in flight per job (default 1)"},
	{"iodepth_batch_submit", "iodepth_batch", KIND_COUNT, FIELD(submit_batch), 1,
	 SPW_QUEUE_DEPTH_MAX, NULL, "N", "transfers per submission (default 1)"},
	{"iodepth_batch_complete_min", "iodepth_batch_complete", KIND_COUNT, FIELD(complete_min), 0,
	 SPW_QUEUE_DEPTH_MAX, NULL, "N", "completions to wait for (default 1)"},
	{"numjobs", NULL, KIND_COUNT, FIELD(numjobs), 1, BENCH_JOBS_MAX, NULL, "N",
	 "threads that run the job (default 1)"},
	{"runtime", "timeout", KIND_TIME, FIELD(runtime_ns), 0, 0, NULL, "TIME",
	 "stop after this (10, 500ms, 2m)"},
	{"time_based", NULL, KIND_FLAG, FIELD(time_based), 0, 0, NULL, NULL,
	 "start over at the end until the runtime is up"},
	{"ramp_time", NULL, KIND_TIME, FIELD(ramp_ns), 0, 0, NULL, "TIME",
	 "run so long before measuring"},
	{"rate", NULL, KIND_SIZE, FIELD(rate_bytes), 0, 0, NULL, "SIZE",
	 "at most so many bytes/s per job and direction"},
	{"verify", NULL, KIND_CHOICE, FIELD(verify), 0, 0, verify_choices, "SUM",
	 "xxh3 crc32c: write checkable blocks, read all back and check"},
	{"verify_backlog", NULL, KIND_COUNT, FIELD(verify_backlog), 0, 1u << 20, NULL, "N",
	 "read back after every N writes, while writing goes on"},
	{"verify_backlog_batch", NULL, KIND_COUNT, FIELD(verify_backlog_batch), 0, 1u << 20, NULL,
	 "N", "so many of them each time, the rest at the end (default all)"},
	{"verify_fatal", NULL, KIND_ALWAYS, FIELD(satisfied), 0, 0, NULL, NULL,
	 "the first wrong block ends the job: always so"},
	{"verify_state_save", NULL, KIND_NEVER, FIELD(satisfied), 0, 0, NULL, NULL,
	 "no state is kept between runs: 0 only"},
	{"randseed", NULL, KIND_NUMBER, FIELD(randseed), 0, 0, NULL, "N",
	 "of offsets, sizes and contents"},
	{"norandommap", NULL, KIND_FLAG, FIELD(norandommap), 0, 0, NULL, NULL,
	 "random offsets may repeat within a pass"},
	{"scramble_buffers", NULL, KIND_FLAG, FIELD(scramble_buffers), 0, 0, NULL, NULL,
	 "change every 512 bytes before each write (default 1)"},
	{"hipri", NULL, KIND_FLAG, FIELD(hipri), 0, 0, NULL, NULL,
	 "poll the drives for completions"},
	{"sqthread_poll", NULL, KIND_FLAG, FIELD(sqthread_poll), 0, 0, NULL, NULL,
	 "a kernel thread submits"},
	{"fixedbufs", NULL, KIND_FLAG, FIELD(fixedbufs), 0, 0, NULL, NULL,
	 "register the buffers with the kernel"},
	{"registerfiles", NULL, KIND_ALWAYS, FIELD(satisfied), 0, 0, NULL, NULL,
	 "files are registered where it can be done"},
	{"nonvectored", NULL, KIND_ALWAYS, FIELD(satisfied), 0, 0, NULL, NULL,
	 "one buffer per transfer: always so"},
	{"direct", NULL, KIND_ALWAYS, FIELD(satisfied), 0, 0, NULL, NULL,
	 "past the page cache: always so"},
	{"thread", NULL, KIND_ALWAYS, FIELD(satisfied), 0, 0, NULL, NULL,
	 "jobs are threads: always so"},
	{"group_reporting", NULL, KIND_FLAG, FIELD(group_reporting), 0, 0, NULL, NULL,
	 "one report for the jobs of a group"},
	{"stonewall", NULL, KIND_FLAG, FIELD(stonewall), 0, 0, NULL, NULL,
	 "begin when all jobs before have ended"},
	{"description", NULL, KIND_TEXT, TEXT(description), NULL, "TEXT", "a remark"},
	{"ioengine", NULL, KIND_CHOICE, FIELD(backend), 0, 0, engine_choices, "NAME",
	 "io_uring, libaio, or io_uring_cmd for nvme: as --backend"},
	{"backend", NULL, KIND_CHOICE, FIELD(backend), 0, 0, backend_choices, "NAME",
	 "auto io_uring libaio nvme vfio (default auto)"},
	{"level", NULL, KIND_CHOICE, FIELD(level), 0, 0, level_choices, "LEVEL",
	 "engine: blocks of devices; store: objects of a store whose drives --filename names"},
	{"stripe", NULL, KIND_CHOICE, FIELD(stripe), 0, 0, stripe_choices, "HOW",
	 "store: pull or static (default pull)"},
	{"no_checksums", NULL, KIND_FLAG, FIELD(no_checksums), 0, 0, NULL, NULL,
	 "store: trust the drives"},
	{"object_size", NULL, KIND_SIZE, FIELD(object_bytes), 1, 0, NULL, "SIZE",
	 "store: of each object (default 16m)"},
	{"numa", NULL, KIND_COUNT, FIELD(numa_node), 0, 1023, NULL, "NODE",
	 "run and allocate on this node"},
};

#define DEFAULT_SEED UINT64_C(0x89be21d6c4a53f17) /* constant: a run can be repeated */

void bench_job_init(struct bench_job *job)
{
	*job = (struct bench_job){
		.block_bytes_min = 4096,
		.block_bytes_max = 4096,
		.object_bytes = 16u << 20,
		.randseed = DEFAULT_SEED,
		.iodepth = 1,
		.submit_batch = 1,
		.complete_min = 1,
		.numjobs = 1,
		.read_percent = 50,
		.numa_node = BENCH_NUMA_ANY,
		.scramble_buffers = true,
	};
}

static bool same_name(const char *typed, const char *name)
{
	if (!name)
		return false;
	for (; *typed != '\0' && *name != '\0'; typed++, name++)
		if (*typed != *name && !(*typed == '-' && *name == '_'))
			return false;
	return *typed == *name;
}

static const struct option *find_option(const char *name)
{
	for (size_t i = 0; i < SPW_ARRAY_LEN(options); i++)
		if (same_name(name, options[i].name) || same_name(name, options[i].alias))
			return &options[i];
	return NULL;
}

bool bench_option_exists(const char *name)
{
	return find_option(name) != NULL;
}

bool bench_option_is_flag(const char *name)
{
	const struct option *option = find_option(name);

	return option && (option->kind == KIND_FLAG || option->kind == KIND_ALWAYS ||
			  option->kind == KIND_NEVER);
}

static int unknown_option(const char *name)
{
	const char *names[SPW_ARRAY_LEN(options) + 1] = {NULL};
	const char *nearest;

	for (size_t i = 0; i < SPW_ARRAY_LEN(options); i++)
		names[i] = options[i].name;
	nearest = tool_nearest(name, names);
	if (nearest)
		return spw_error(-EINVAL, "option '%s' is not supported; did you mean '%s'?", name,
				 nearest);
	return spw_error(
		-EINVAL,
		"option '%s' is not supported; 'spillway bench --help' lists those that are", name);
}

static int set_flag(bool *flag, const struct option *option, const char *value)
{
	if (value && strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
		return spw_error(-EINVAL, "%s=%s: takes 0 or 1", option->name, value);
	*flag = !value || value[0] == '1';
	if ((option->kind == KIND_ALWAYS && !*flag) || (option->kind == KIND_NEVER && *flag))
		return spw_error(-EINVAL, "%s=%d is not supported (%s)", option->name, *flag,
				 option->help);
	return 0;
}

static int set_choice(uint32_t *field, const struct option *option, const char *value)
{
	char names[128] = "";

	for (const struct choice *choice = option->choices; choice->name; choice++) {
		if (strcmp(choice->name, value) == 0) {
			*field = choice->value;
			return 0;
		}
		(void)strncat(names, " ", sizeof(names) - strlen(names) - 1);
		(void)strncat(names, choice->name, sizeof(names) - strlen(names) - 1);
	}
	return spw_error(-EINVAL, "%s=%s is not supported; there is:%s", option->name, value,
			 names);
}

/* "read" or, for sequential kinds, "read:-2m": how far to skip after each transfer. */
static int set_rw(struct bench_job *job, const struct option *option, const char *value)
{
	const char *colon = strchr(value, ':');
	char kind[16];
	uint64_t skip = 0;
	bool back;
	int result;

	job->skip_bytes = 0;
	if (!colon)
		return set_choice(&job->rw, option, value);
	(void)snprintf(kind, sizeof(kind), "%.*s", (int)(colon - value), value);
	result = set_choice(&job->rw, option, kind);
	if (result != 0)
		return result;
	if (bench_rw_is_random(job->rw))
		return spw_error(-EINVAL, "%s=%s: only sequential transfers skip", option->name,
				 value);
	back = colon[1] == '-';
	result = bench_parse_size(colon + 1 + back, &skip);
	if (result != 0)
		return spw_error(result, "%s: %s", option->name, spw_last_error());
	if (skip > INT64_MAX)
		return spw_error(-ERANGE, "%s=%s is too far", option->name, value);
	job->skip_bytes = back ? -(int64_t)skip : (int64_t)skip;
	return 0;
}

static int set_count(uint32_t *field, const struct option *option, const char *value)
{
	uint64_t count;
	int result = bench_parse_count(value, &count);

	if (result != 0)
		return spw_error(result, "%s: %s", option->name, spw_last_error());
	if (count < option->min || count > option->max)
		return spw_error(-EINVAL, "%s=%s: takes %ju to %ju", option->name, value,
				 (uintmax_t)option->min, (uintmax_t)option->max);
	*field = (uint32_t)count;
	return 0;
}

static int set_text(char *field, const struct option *option, const char *value)
{
	if (strlen(value) >= option->max)
		return spw_error(-EINVAL, "%s: longer than %ju bytes", option->name,
				 (uintmax_t)option->max - 1);
	memcpy(field, value, strlen(value) + 1);
	return 0;
}

static int set_range(struct bench_job *job, const struct option *option, const char *value)
{
	const char *dash = strchr(value, '-');
	char least[32];
	int result;

	if (!dash || (size_t)(dash - value) >= sizeof(least))
		return spw_error(-EINVAL, "%s=%s: write for example 4k-64k", option->name, value);
	memcpy(least, value, (size_t)(dash - value));
	least[dash - value] = '\0';
	result = bench_parse_size(least, &job->block_bytes_min);
	if (result == 0)
		result = bench_parse_size(dash + 1, &job->block_bytes_max);
	if (result != 0)
		return spw_error(result, "%s: %s", option->name, spw_last_error());
	return 0;
}

static int set_block(struct bench_job *job, const struct option *option, const char *value)
{
	int result;

	if (strchr(value, ','))
		return spw_error(-EINVAL, "%s=%s: one size for reads and writes", option->name,
				 value);
	result = bench_parse_size(value, &job->block_bytes_min);
	if (result != 0)
		return spw_error(result, "%s: %s", option->name, spw_last_error());
	job->block_bytes_max = job->block_bytes_min;
	return 0;
}

static int set_total(struct bench_job *job, const struct option *option, const char *value)
{
	size_t len = strlen(value);
	uint64_t percent;
	char digits[8];
	int result;

	if (len > 1 && len <= sizeof(digits) && value[len - 1] == '%') {
		memcpy(digits, value, len - 1);
		digits[len - 1] = '\0';
		if (bench_parse_count(digits, &percent) != 0 || percent < 1 || percent > 100)
			return spw_error(-EINVAL, "%s=%s: takes 1%% to 100%%", option->name, value);
		job->size_percent = (uint32_t)percent;
		job->size_bytes = 0;
		return 0;
	}
	result = bench_parse_size(value, &job->size_bytes);
	if (result != 0)
		return spw_error(result, "%s: %s", option->name, spw_last_error());
	job->size_percent = 0;
	return 0;
}

static int set_wide(uint64_t *field, const struct option *option, const char *value)
{
	int result;

	if (option->kind == KIND_TIME)
		result = bench_parse_time(value, field);
	else if (option->kind == KIND_SIZE)
		result = bench_parse_size(value, field);
	else
		result = bench_parse_count(value, field);
	if (result != 0)
		return spw_error(result, "%s: %s", option->name, spw_last_error());
	if (*field < option->min)
		return spw_error(-EINVAL, "%s=%s: too small", option->name, value);
	return 0;
}

int bench_option_set(struct bench_job *job, const char *name, const char *value)
{
	const struct option *option = find_option(name);
	void *field;

	if (!option)
		return unknown_option(name);
	field = (char *)job + option->offset;
	if (bench_option_is_flag(name))
		return set_flag(field, option, value);
	if (!value || value[0] == '\0')
		return spw_error(-EINVAL, "option '%s' needs a value: %s=%s", name, option->name,
				 option->argument);
	switch (option->kind) {
	case KIND_COUNT: return set_count(field, option, value);
	case KIND_NUMBER:
	case KIND_SIZE:
	case KIND_TIME: return set_wide(field, option, value);
	case KIND_CHOICE: return set_choice(field, option, value);
	case KIND_RW: return set_rw(job, option, value);
	case KIND_TEXT: return set_text(field, option, value);
	case KIND_BLOCK: return set_block(job, option, value);
	case KIND_RANGE: return set_range(job, option, value);
	case KIND_TOTAL: return set_total(job, option, value);
	default: return spw_error(-EINVAL, "option '%s' is not supported", name);
	}
}

static int check_verify(const struct bench_job *job)
{
	if (job->verify == BENCH_VERIFY_NONE)
		return job->verify_backlog == 0
			       ? 0
			       : spw_error(-EINVAL, "job %s: verify_backlog without verify",
					   job->name);
	if (job->rw == BENCH_RW || job->rw == BENCH_RANDRW)
		return spw_error(-EINVAL,
				 "job %s: verify does not go with rw=%s: write first, then read",
				 job->name, bench_rw_name(job->rw));
	if (job->block_bytes_min < 64)
		return spw_error(-EINVAL, "job %s: verify needs blocks of 64 bytes or more",
				 job->name);
	if (job->norandommap)
		return spw_error(-EINVAL,
				 "job %s: verify does not go with norandommap: blocks that are "
				 "written twice "
				 "cannot be told apart",
				 job->name);
	if (job->skip_bytes % (int64_t)job->block_bytes_min != 0 ||
	    (job->skip_bytes != 0 && job->time_based && bench_rw_writes(job->rw)))
		return spw_error(-EINVAL,
				 "job %s: verify with rw=%s:%jd: blocks lie over one another, or "
				 "are written twice in a "
				 "pass, and cannot be told apart: skip whole blocks, and leave "
				 "time_based out",
				 job->name, bench_rw_name(job->rw), (intmax_t)job->skip_bytes);
	if (job->numjobs > 1 && bench_rw_writes(job->rw) &&
	    (job->size_bytes == 0 || job->offset_increment_bytes < job->size_bytes))
		return spw_error(-EINVAL,
				 "job %s: verify with numjobs=%u: the jobs would overwrite each "
				 "other's blocks; "
				 "give an offset_increment of at least their size",
				 job->name, job->numjobs);
	if (job->time_based && job->rw == BENCH_RANDWRITE &&
	    job->block_bytes_min != job->block_bytes_max)
		return spw_error(-EINVAL,
				 "job %s: verify of random blocks of several sizes goes over the "
				 "file once: leave "
				 "time_based out",
				 job->name);
	if (job->level == BENCH_LEVEL_STORE)
		return spw_error(-EINVAL,
				 "job %s: a store checks every read itself: leave verify out",
				 job->name);
	return 0;
}

int bench_job_check(const struct bench_job *job)
{
	if (job->filename[0] == '\0')
		return spw_error(
			-EINVAL,
			"job %s: no filename given: filename=/dev/... or --filename=/dev/...",
			job->name);
	if (job->block_bytes_min == 0 || job->block_bytes_max < job->block_bytes_min)
		return spw_error(-EINVAL, "job %s: blocks of %ju to %ju bytes make no sense",
				 job->name, (uintmax_t)job->block_bytes_min,
				 (uintmax_t)job->block_bytes_max);
	if (job->block_bytes_max % job->block_bytes_min != 0)
		return spw_error(
			-EINVAL,
			"job %s: the largest block of a range must be a multiple of the smallest",
			job->name);
	if (job->align_bytes > 0 && job->block_bytes_min % job->align_bytes != 0)
		return spw_error(-EINVAL,
				 "job %s: blockalign=%ju: blocks start at multiples of the "
				 "smallest of them (%ju)",
				 job->name, (uintmax_t)job->align_bytes,
				 (uintmax_t)job->block_bytes_min);
	if (job->block_bytes_max > SPW_IO_BYTES_MAX)
		return spw_error(-EINVAL, "job %s: blocks are at most 1g", job->name);
	if (job->time_based && job->runtime_ns == 0)
		return spw_error(-EINVAL, "job %s: time_based needs a runtime", job->name);
	if (job->hipri && job->sqthread_poll)
		return spw_error(-EINVAL, "job %s: hipri and sqthread_poll exclude each other",
				 job->name);
	if (job->submit_batch > job->iodepth || job->complete_min > job->iodepth)
		return spw_error(-EINVAL, "job %s: a batch is larger than iodepth=%u", job->name,
				 job->iodepth);
	return check_verify(job);
}

void bench_options_print(FILE *out)
{
	char left[64], name[48];

	for (size_t i = 0; i < SPW_ARRAY_LEN(options); i++) {
		(void)snprintf(name, sizeof(name), "%s", options[i].name);
		for (char *at = name; *at != '\0'; at++)
			*at = *at == '_' ? '-' : *at;
		(void)snprintf(left, sizeof(left), "--%s%s%s", name, options[i].argument ? "=" : "",
			       options[i].argument ? options[i].argument : "");
		(void)fprintf(out, "  %-31s %s\n", left, options[i].help);
	}
}

const char *bench_rw_name(uint32_t rw)
{
	for (size_t i = 0; rw_choices[i].name; i++)
		if (rw_choices[i].value == rw)
			return rw_choices[i].name;
	return "?";
}

bool bench_rw_is_random(uint32_t rw)
{
	return rw == BENCH_RANDREAD || rw == BENCH_RANDWRITE || rw == BENCH_RANDRW;
}

bool bench_rw_reads(uint32_t rw)
{
	return rw != BENCH_WRITE && rw != BENCH_RANDWRITE;
}

bool bench_rw_writes(uint32_t rw)
{
	return rw != BENCH_READ && rw != BENCH_RANDREAD;
}
