/* SPDX-License-Identifier: MIT */
/* tools/bench/options.c - the options of a job: one table for command line, job files, help */
#include "tools/bench/bench.h"

#include <errno.h>
#include <string.h>

#include "tools/ui/tool.h"
#include "util/util.h"

struct choice {
	const char *name;
	uint32_t value;
};

struct option {
	const char *name, *alias; /* with underscores, as in job files */
	int (*set)(void *field, const struct option *option, const char *value);
	size_t offset;     /* of the field; 0: the whole job */
	uint64_t min, max; /* of flags and counts; for text: bytes of the array */
	const struct choice *choices;
	const char *argument, *help; /* argument NULL: a flag, whose value may be left out */
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

static const char *name_of(const struct choice *choices, uint32_t value)
{
	while (choices->name && choices->value != value)
		choices++;
	return choices->name ? choices->name : "?";
}

const char *bench_rw_name(uint32_t rw)
{
	return name_of(rw_choices, rw);
}

const char *bench_backend_name(uint32_t backend)
{
	return name_of(backend_choices, backend);
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

/* ---- Values ---------------------------------------------------------------------------------- */

/* The words of what parsing a value gave, with the option's name. Return: @result. */
static int named(const struct option *option, int result)
{
	return result == 0 ? 0 : spw_error(result, "%s: %s", option->name, spw_last_error());
}

static int set_flag(void *field, const struct option *option, const char *value)
{
	bool on = !value || value[0] == '1';

	if (value && strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
		return spw_error(-EINVAL, "%s=%s: takes 0 or 1", option->name, value);
	if (on < option->min || on > option->max)
		return spw_error(-EINVAL, "%s=%d is not supported (%s)", option->name, on,
				 option->help);
	*(bool *)field = on;
	return 0;
}

static int set_choice(void *field, const struct option *option, const char *value)
{
	char names[128] = "";

	for (const struct choice *choice = option->choices; choice->name; choice++) {
		if (strcmp(choice->name, value) == 0) {
			*(uint32_t *)field = choice->value;
			return 0;
		}
		(void)strncat(names, " ", sizeof(names) - strlen(names) - 1);
		(void)strncat(names, choice->name, sizeof(names) - strlen(names) - 1);
	}
	return spw_error(-EINVAL, "%s=%s is not supported; there is:%s", option->name, value,
			 names);
}

/* "read" or, for sequential kinds, "read:-2m": how far to skip after each transfer. */
static int set_rw(void *field, const struct option *option, const char *value)
{
	struct bench_job *job = field;
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
	if (result == 0 && skip > INT64_MAX)
		return spw_error(-ERANGE, "%s=%s is too far", option->name, value);
	job->skip_bytes = back ? -(int64_t)skip : (int64_t)skip;
	return named(option, result);
}

static int set_count(void *field, const struct option *option, const char *value)
{
	uint64_t count;
	int result = bench_parse_count(value, &count);

	if (result == 0 && (count < option->min || count > option->max))
		return spw_error(-EINVAL, "%s=%s: takes %ju to %ju", option->name, value,
				 (uintmax_t)option->min, (uintmax_t)option->max);
	if (result == 0)
		*(uint32_t *)field = (uint32_t)count;
	return named(option, result);
}

static int set_number(void *field, const struct option *option, const char *value)
{
	return named(option, bench_parse_count(value, field));
}

static int set_time(void *field, const struct option *option, const char *value)
{
	return named(option, bench_parse_time(value, field));
}

static int set_size(void *field, const struct option *option, const char *value)
{
	int result = bench_parse_size(value, field);

	if (result == 0 && *(uint64_t *)field < option->min)
		return spw_error(-EINVAL, "%s=%s: too small", option->name, value);
	return named(option, result);
}

static int set_text(void *field, const struct option *option, const char *value)
{
	if (strlen(value) >= option->max)
		return spw_error(-EINVAL, "%s: longer than %ju bytes", option->name,
				 (uintmax_t)option->max - 1);
	memcpy(field, value, strlen(value) + 1);
	return 0;
}

/* "null" or "null=6g": how fast each of the drives is. */
static int set_null(void *field, const struct option *option, const char *value)
{
	struct bench_job *job = field;

	job->null = true;
	job->null_bytes_per_second = 0;
	return value ? set_size(&job->null_bytes_per_second, option, value) : 0;
}

static int set_range(void *field, const struct option *option, const char *value)
{
	struct bench_job *job = field;
	const char *dash = strchr(value, '-');
	char least[32];
	int result;

	if (!dash || (size_t)(dash - value) >= sizeof(least))
		return spw_error(-EINVAL, "%s=%s: write for example 4k-64k", option->name, value);
	(void)snprintf(least, sizeof(least), "%.*s", (int)(dash - value), value);
	result = bench_parse_size(least, &job->block_bytes_min);
	if (result == 0)
		result = bench_parse_size(dash + 1, &job->block_bytes_max);
	return named(option, result);
}

static int set_block(void *field, const struct option *option, const char *value)
{
	struct bench_job *job = field;
	int result;

	if (strchr(value, ','))
		return spw_error(-EINVAL, "%s=%s: one size for reads and writes", option->name,
				 value);
	result = set_size(&job->block_bytes_min, option, value);
	job->block_bytes_max = job->block_bytes_min;
	return result;
}

static int set_total(void *field, const struct option *option, const char *value)
{
	struct bench_job *job = field;
	size_t len = strlen(value);
	uint64_t percent = 0;
	char digits[8];

	job->size_bytes = job->size_percent = 0;
	if (len < 2 || len > sizeof(digits) || value[len - 1] != '%')
		return set_size(&job->size_bytes, option, value);
	(void)snprintf(digits, sizeof(digits), "%.*s", (int)len - 1, value);
	if (bench_parse_count(digits, &percent) != 0 || percent < 1 || percent > 100)
		return spw_error(-EINVAL, "%s=%s: takes 1%% to 100%%", option->name, value);
	job->size_percent = (uint32_t)percent;
	return 0;
}

/* ---- The table ------------------------------------------------------------------------------- */

#define FIELD(field)           offsetof(struct bench_job, field)
#define FLAG(name)             #name, NULL, set_flag, FIELD(name), 0, 1, NULL, NULL
#define ALWAYS(name)           #name, NULL, set_flag, FIELD(satisfied), 1, 1, NULL, NULL
#define NEVER(name)            #name, NULL, set_flag, FIELD(satisfied), 0, 0, NULL, NULL
#define COUNT(field, min, max) set_count, FIELD(field), min, max, NULL, "N"
#define SIZE(field)            set_size, FIELD(field), 0, 0, NULL, "SIZE"
#define TIME(field)            set_time, FIELD(field), 0, 0, NULL, "TIME"
#define CHOICE(field, choices) set_choice, FIELD(field), 0, 0, choices
#define BYTES(field)           sizeof(((struct bench_job *)0)->field)
#define TEXT(field)            set_text, FIELD(field), 0, BYTES(field), NULL
#define JOB(set)               set, 0, 0, 0, NULL

static const struct option options[] = {
	{"name", NULL, TEXT(name), "NAME",
	 "begin a job; options before the first are for all jobs. In a job file: what reports call "
	 "it"},
	{"filename", NULL, TEXT(filename), "A:B", "devices or existing files, colon separated"},
	{"rw", "readwrite", set_rw, 0, 0, 0, rw_choices, "KIND",
	 "read write randread randwrite rw randrw; read:-2m skips after each"},
	{"rwmixread", NULL, set_count, FIELD(read_percent), 0, 100, NULL, "PERCENT",
	 "reads of a mix (default 50)"},
	{"bs", "blocksize", JOB(set_block), "SIZE", "of each transfer (default 4k)"},
	{"bsrange", "blocksize_range", JOB(set_range), "MIN-MAX",
	 "sizes drawn from a range, multiples of MIN"},
	{"size", NULL, JOB(set_total), "SIZE",
	 "bytes per job over all its files, or N% of each (default all)"},
	{"offset", NULL, SIZE(offset_bytes), "where to start on each file"},
	{"offset_increment", NULL, SIZE(offset_increment_bytes),
	 "and so much further for each job of numjobs"},
	{"blockalign", "ba", SIZE(align_bytes),
	 "of random offsets: any divisor of the smallest block"},
	{"iodepth", NULL, COUNT(iodepth, 1, SPW_QUEUE_DEPTH_MAX), "in flight per job (default 1)"},
	{"iodepth_batch_submit", "iodepth_batch", COUNT(submit_batch, 1, SPW_QUEUE_DEPTH_MAX),
	 "transfers per submission (default 1)"},
	{"iodepth_batch_complete_min", "iodepth_batch_complete",
	 COUNT(complete_min, 0, SPW_QUEUE_DEPTH_MAX), "completions to wait for (default 1)"},
	{"numjobs", NULL, COUNT(numjobs, 1, BENCH_JOBS_MAX),
	 "threads that run the job (default 1)"},
	{"runtime", "timeout", TIME(runtime_ns), "stop after this (10, 500ms, 2m)"},
	{FLAG(time_based), "start over at the end until the runtime is up"},
	{"ramp_time", NULL, TIME(ramp_ns), "run so long before measuring"},
	{"rate", NULL, SIZE(rate_bytes), "at most so many bytes/s per job and direction"},
	{"verify", NULL, CHOICE(verify, verify_choices), "SUM",
	 "xxh3 crc32c: write checkable blocks, read all back and check"},
	{"verify_backlog", NULL, COUNT(verify_backlog, 0, 1u << 20),
	 "read back after every N writes; then writing goes on"},
	{"verify_backlog_batch", NULL, COUNT(verify_backlog_batch, 0, 1u << 20),
	 "so many of them each time, the rest at the end (default all)"},
	{ALWAYS(verify_fatal), "the first wrong block ends the job: always so"},
	{NEVER(verify_state_save), "no state is kept between runs: 0 only"},
	{"randseed", NULL, set_number, FIELD(randseed), 0, 0, NULL, "N",
	 "of offsets, sizes and contents"},
	{FLAG(norandommap), "random offsets may repeat within a pass"},
	{FLAG(scramble_buffers), "change every 512 bytes before each write (default 1)"},
	{FLAG(hipri), "poll the drives for completions"},
	{FLAG(sqthread_poll), "a kernel thread submits"},
	{FLAG(fixedbufs), "register the buffers with the kernel"},
	{ALWAYS(registerfiles), "files are registered where it can be done"},
	{ALWAYS(nonvectored), "one buffer per transfer: always so"},
	{ALWAYS(direct), "past the page cache: always so"},
	{ALWAYS(thread), "jobs are threads: always so"},
	{FLAG(group_reporting), "one report for the jobs of a group"},
	{FLAG(stonewall), "begin when all jobs before have ended"},
	{"description", NULL, TEXT(description), "TEXT", "a remark, for reports"},
	{"ioengine", NULL, CHOICE(backend, engine_choices), "NAME",
	 "io_uring, libaio, or io_uring_cmd for nvme: as --backend"},
	{"backend", NULL, CHOICE(backend, backend_choices), "NAME",
	 "auto io_uring libaio nvme vfio (default auto)"},
	{"level", NULL, CHOICE(level, level_choices), "LEVEL",
	 "engine: blocks of devices; store: objects of a store whose drives --filename names"},
	{"stripe", NULL, CHOICE(stripe, stripe_choices), "HOW",
	 "store: pull or static (default pull)"},
	{FLAG(no_checksums), "store: trust the drives"},
	{"null", NULL, JOB(set_null), "[=RATE]",
	 "on drives made for the run that no transfer touches, each so fast (default: at once)"},
	{"drives", NULL, COUNT(drives, 1, SPW_DRIVES_MAX), "null: how many (default 1)"},
	{"workers", NULL, COUNT(workers, 1, SPW_WORKERS_MAX),
	 "store: threads that sum and copy, with the job's own (default 1)"},
	{"object_size", NULL, set_size, FIELD(object_bytes), 1, 0, NULL, "SIZE",
	 "store: of each object (default 16m)"},
	{"numa", NULL, set_count, FIELD(numa_node), 0, 1023, NULL, "NODE",
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
		.workers = 1,
		.read_percent = 50,
		.drives = 1,
		.numa_node = BENCH_NUMA_ANY,
		.scramble_buffers = true,
	};
}

bool bench_option_same(const char *typed, const char *name)
{
	for (; *typed != '\0' && *name != '\0'; typed++, name++)
		if (*typed != *name && !(strchr("-_", *typed) && strchr("-_", *name)))
			return false;
	return *typed == *name;
}

static const struct option *find_option(const char *name)
{
	for (size_t i = 0; i < SPW_ARRAY_LEN(options); i++)
		if (bench_option_same(name, options[i].name) ||
		    (options[i].alias && bench_option_same(name, options[i].alias)))
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

	return option && (!option->argument || option->argument[0] == '[');
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

int bench_option_set(struct bench_job *job, const char *name, const char *value)
{
	const struct option *option = find_option(name);

	if (!option)
		return unknown_option(name);
	if (option->argument && option->argument[0] != '[' && (!value || value[0] == '\0'))
		return spw_error(-EINVAL, "option '%s' needs a value: %s=%s", name, option->name,
				 option->argument);
	return option->set((char *)job + option->offset, option, value);
}

/* ---- What cannot be said of one option alone ------------------------------------------------- */

#define wrong(job, format, ...) spw_error(-EINVAL, "job %s: " format, (job)->name, ##__VA_ARGS__)

static int check_verify(const struct bench_job *job)
{
	const char *rw = bench_rw_name(job->rw);
	bool writes = bench_rw_writes(job->rw);

	if (job->verify == BENCH_VERIFY_NONE)
		return job->verify_backlog == 0 ? 0 : wrong(job, "verify_backlog without verify");
	if (writes && bench_rw_reads(job->rw))
		return wrong(job, "verify does not go with rw=%s: write first, then read", rw);
	if (job->block_bytes_min < 64)
		return wrong(job, "verify needs blocks of 64 bytes or more");
	if (job->norandommap)
		return wrong(job, "verify does not go with norandommap: blocks that are written "
				  "twice cannot be told apart");
	if (job->skip_bytes % (int64_t)job->block_bytes_min != 0 ||
	    (job->skip_bytes != 0 && job->time_based && writes))
		return wrong(job,
			     "verify with rw=%s:%jd: blocks lie over one another, or are written "
			     "twice in a pass, and cannot be told apart: skip whole blocks, and "
			     "leave time_based out",
			     rw, (intmax_t)job->skip_bytes);
	if (job->numjobs > 1 && writes &&
	    (job->size_bytes == 0 || job->offset_increment_bytes < job->size_bytes))
		return wrong(
			job,
			"verify with numjobs=%u: the jobs would overwrite each other's blocks; "
			"give an offset_increment of at least their size",
			job->numjobs);
	if (job->time_based && job->rw == BENCH_RANDWRITE &&
	    job->block_bytes_min != job->block_bytes_max)
		return wrong(job, "verify of random blocks of several sizes goes over the file "
				  "once: leave time_based out");
	if (job->level == BENCH_LEVEL_STORE)
		return wrong(job, "a store checks every read itself: leave verify out");
	return 0;
}

/* What a read leaves in memory is what was there: of each buffer the same. */
#define NULL_UNIT_BYTES 4096u

static int check_null(const struct bench_job *job)
{
	if (!job->null)
		return job->drives == 1 ? 0 : wrong(job, "drives=%u without null", job->drives);
	if (job->filename[0] != '\0')
		return wrong(job, "null has drives of its own: leave filename out");
	if (job->backend != SPW_BACKEND_AUTO || job->hipri || job->sqthread_poll)
		return wrong(job, "null is a backend, and waits in one way: leave out what chooses "
				  "another");
	if (job->verify != BENCH_VERIFY_NONE)
		return wrong(job, "null keeps nothing that could be read back: leave verify out");
	if (job->level == BENCH_LEVEL_STORE && job->object_bytes % NULL_UNIT_BYTES != 0)
		return wrong(job, "null takes objects of whole blocks: a multiple of %u bytes",
			     NULL_UNIT_BYTES);
	return 0;
}

int bench_job_check(const struct bench_job *job)
{
	uint64_t min = job->block_bytes_min, max = job->block_bytes_max;
	int result;

	if (job->filename[0] == '\0' && !job->null)
		return wrong(job, "no filename given: filename=/dev/... or --filename=/dev/...");
	if (min == 0 || max < min)
		return wrong(job, "blocks of %ju to %ju bytes make no sense", (uintmax_t)min,
			     (uintmax_t)max);
	if (max % min != 0)
		return wrong(job,
			     "the largest block of a range must be a multiple of the smallest");
	if (job->align_bytes > 0 && min % job->align_bytes != 0)
		return wrong(job,
			     "blockalign=%ju: blocks start at multiples of the smallest of them "
			     "(%ju)",
			     (uintmax_t)job->align_bytes, (uintmax_t)min);
	if (max > SPW_IO_BYTES_MAX)
		return wrong(job, "blocks are at most 1g");
	if (job->time_based && job->runtime_ns == 0)
		return wrong(job, "time_based needs a runtime");
	if (job->hipri && job->sqthread_poll)
		return wrong(job, "hipri and sqthread_poll exclude each other");
	if (job->submit_batch > job->iodepth || job->complete_min > job->iodepth)
		return wrong(job, "a batch is larger than iodepth=%u", job->iodepth);
	result = check_null(job);
	return result ? result : check_verify(job);
}

/* As on the command line. */
static void write_name(const struct option *option, char *name, size_t len)
{
	(void)snprintf(name, len, "%s", option->name);
	for (char *at = name; *at != '\0'; at++)
		*at = *at == '_' ? '-' : *at;
}

void bench_options_each(tool_show *show, void *context)
{
	char name[48], values[128];

	for (size_t i = 0; i < SPW_ARRAY_LEN(options); i++) {
		const struct choice *choice = options[i].choices;

		write_name(&options[i], name, sizeof(name));
		values[0] = '\0';
		for (; choice && choice->name; choice++) {
			size_t used = strlen(values);

			(void)snprintf(values + used, sizeof(values) - used, "%s%s",
				       used ? " " : "", choice->name);
		}
		show(context, &(struct tool_shown){.name = name,
						   .argument = options[i].argument,
						   .help = options[i].help,
						   .values = values[0] ? values : NULL});
	}
}
