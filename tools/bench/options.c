/* SPDX-License-Identifier: MIT */
/* tools/bench/options.c - the table of a job's options, for the command line, job files and help */
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
	size_t offset;     /* offset of the field; 0: the setter gets the whole job */
	uint64_t min, max; /* limits of flags and counts; for text: max is the size of the array */
	const struct choice *choices;
	const char *argument, *help; /* argument NULL: a flag, whose value is optional */
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
static const struct choice verify_choices[] = {
	{"xxh3", BENCH_VERIFY_XXH3},
	{"crc32c", BENCH_VERIFY_CRC32C},
	{"0", BENCH_VERIFY_NONE},
	{"none", BENCH_VERIFY_NONE},
	{NULL, 0},
};
/* fio's other checksums, which xxh3 replaces; crc32c is supported. */
static const char *const other_checksums[] = {
	"md5",  "crc64",    "crc32",    "crc16",    "crc7",     "xxhash", "sha512", "sha256",
	"sha1", "sha3-224", "sha3-256", "sha3-384", "sha3-512", "meta",   NULL};
static const struct choice backend_choices[] = {
	{"auto", SPW_BACKEND_AUTO},     {"io_uring", SPW_BACKEND_IO_URING},
	{"libaio", SPW_BACKEND_LIBAIO}, {"nvme", SPW_BACKEND_NVME},
	{"vfio", SPW_BACKEND_VFIO},     {NULL, 0}};
/* fio's names of the backends. */
static const struct choice engine_choices[] = {{"io_uring", SPW_BACKEND_IO_URING},
					       {"libaio", SPW_BACKEND_LIBAIO},
					       {"io_uring_cmd", SPW_BACKEND_NVME},
					       {NULL, 0}};
/* fio's engines with one transfer at a time, whatever the depth. */
static const char *const synchronous_engines[] = {"sync",   "psync",   "vsync",
						  "pvsync", "pvsync2", NULL};
static const struct choice exit_choices[] = {{"group", BENCH_EXIT_GROUP},
					     {"stonewall", BENCH_EXIT_STONEWALL},
					     {"all", BENCH_EXIT_ALL},
					     {NULL, 0}};
static const struct choice process_choices[] = {{"linear", 0}, {"poisson", 1}, {NULL, 0}};
static const struct choice dedupe_choices[] = {{"repeat", 0}, {"working_set", 1}, {NULL, 0}};
static const struct choice zone_choices[] = {{"none", 0}, {"strided", 1}, {NULL, 0}};
static const struct choice policy_choices[] = {{"shared", 0}, {"split", 1}, {NULL, 0}};
static const struct choice level_choices[] = {
	{"engine", BENCH_LEVEL_ENGINE}, {"store", BENCH_LEVEL_STORE}, {NULL, 0}};

static const char *name_of(const struct choice *choices, uint32_t value)
{
	while (choices->name && choices->value != value)
		choices++;
	return choices->name ? choices->name : "?";
}

const char *bench_backend_name(uint32_t backend)
{
	return name_of(backend_choices, backend);
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* Add the option's name to the error of parsing its value. Return: @result. */
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

/* Set a flag for something that spillway does not do: only 0 is accepted. */
static int set_never(void *field, const struct option *option, const char *value)
{
	bool on;

	(void)field;
	return set_flag(&on, option, value);
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

static bool is_in(const char *name, const char *const list[])
{
	while (*list && strcmp(*list, name) != 0)
		list++;
	return *list != NULL;
}

static int set_bool_choice(void *field, const struct option *option, const char *value)
{
	uint32_t chosen = 0;
	int result = set_choice(&chosen, option, value);

	if (result == 0)
		*(bool *)field = chosen;
	return result;
}

/* Set rw: "read" or, for sequential kinds, "read:-2m" to skip after each transfer. */
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

/* Set a count of blocks with a unit, as in fio: "1m" is 1024 times 1024 blocks. */
static int set_backlog(void *field, const struct option *option, const char *value)
{
	uint64_t count;
	int result = bench_parse_size(value, &count);

	if (result == 0 && count > option->max)
		return spw_error(-EINVAL, "%s=%s: takes at most %ju", option->name, value,
				 (uintmax_t)option->max);
	if (result == 0)
		*(uint32_t *)field = (uint32_t)count;
	return named(option, result);
}

static int set_nice(void *field, const struct option *option, const char *value)
{
	bool negative = value[0] == '-';
	uint64_t count;
	int result = bench_parse_count(value + negative, &count);

	if (result == 0 && count > (negative ? 20 : 19))
		return spw_error(-EINVAL, "%s=%s: takes -20 to 19", option->name, value);
	if (result == 0)
		*(int32_t *)field = negative ? -(int32_t)count : (int32_t)count;
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

/* As in fio, each filename= adds to those before, of the defaults as well. */
static int add_files(void *field, const struct option *option, const char *value)
{
	char *names = field;
	size_t used = strlen(names);
	size_t bytes = used + (used > 0) + strlen(value) + 1;

	if (bytes > option->max)
		return spw_error(-EINVAL, "%s: longer than %ju bytes", option->name,
				 (uintmax_t)option->max - 1);
	(void)snprintf(names + used, option->max - used, "%s%s", used > 0 ? ":" : "", value);
	return 0;
}

/* Set null: "null", or "null=6g" with the rate of each drive. */
static int set_null(void *field, const struct option *option, const char *value)
{
	struct bench_job *job = field;

	job->null = true;
	job->null_bytes_per_second = 0;
	return value ? set_size(&job->null_bytes_per_second, option, value) : 0;
}

/* Accept the only way to stripe. Older versions had others. */
static int set_stripe(void *field, const struct option *option, const char *value)
{
	(void)field;
	if (strcmp(value, "pull") == 0)
		return 0;
	return spw_error(-EINVAL, "%s=%s is not supported; there is: pull%s", option->name, value,
			 strcmp(value, "static") == 0
				 ? ". Stores have no RAID 0 order any more; fio's engine spillway "
				   "has it, without a store: spillway_level=volume"
				 : "");
}

/* Set the sizes of one direction, and the smallest and largest of both. */
static void set_lengths(struct bench_job *job, unsigned direction,
			const struct bench_lengths *lengths)
{
	struct bench_lengths other = bench_job_lengths(job, !direction);

	/* As in fio, whatever the order: shares count before a range, and a range before a size. */
	if (job->lengths[direction].count > 0 && lengths->count == 0)
		return;
	if (job->lengths[direction].by_range && lengths->count == 0 && !lengths->by_range)
		return;
	job->lengths[!direction] = other;
	job->lengths[direction] = *lengths;
	job->block_bytes_min = SPW_MIN(lengths->min, other.min);
	job->block_bytes_max = SPW_MAX(lengths->max, other.max);
}

static int add_block(void *context, unsigned direction, const char *part)
{
	struct bench_lengths lengths = {.count = 0};
	int result = bench_parse_size(part, &lengths.min);

	lengths.max = lengths.min;
	if (result == 0 && lengths.min == 0)
		return spw_error(-EINVAL, "a block of 0 bytes makes no sense");
	if (result == 0)
		set_lengths(context, direction, &lengths);
	return result;
}

static int add_range(void *context, unsigned direction, const char *part)
{
	struct bench_lengths lengths = {.count = 0};
	int result = bench_parse_range(part, &lengths);

	lengths.by_range = true;
	if (result == 0 && (lengths.min == 0 || lengths.max < lengths.min))
		return spw_error(-EINVAL, "blocks of %ju to %ju bytes make no sense",
				 (uintmax_t)lengths.min, (uintmax_t)lengths.max);
	if (result == 0 && lengths.max % lengths.min != 0)
		return spw_error(-EINVAL,
				 "the largest block of a range must be a multiple of the smallest");
	if (result == 0)
		set_lengths(context, direction, &lengths);
	return result;
}

static int add_split(void *context, unsigned direction, const char *part)
{
	struct bench_lengths lengths = {.count = 0};
	int result = bench_parse_split(part, &lengths);

	if (result == 0 && lengths.min == 0)
		return spw_error(-EINVAL, "a block of 0 bytes makes no sense");
	for (unsigned i = 0; i < lengths.count && result == 0; i++)
		if (lengths.shares[i].value % lengths.min != 0)
			return spw_error(-EINVAL,
					 "a block of %ju bytes is not a multiple of the smallest",
					 (uintmax_t)lengths.shares[i].value);
	if (result == 0)
		set_lengths(context, direction, &lengths);
	return result;
}

static int set_block(void *field, const struct option *option, const char *value)
{
	return named(option, bench_parse_pair(value, add_block, field));
}

static int set_range(void *field, const struct option *option, const char *value)
{
	return named(option, bench_parse_pair(value, add_range, field));
}

static int set_split(void *field, const struct option *option, const char *value)
{
	return named(option, bench_parse_pair(value, add_split, field));
}

static int add_size(void *context, unsigned direction, const char *part)
{
	return bench_parse_size(part, (uint64_t *)context + direction);
}

static int add_count(void *context, unsigned direction, const char *part)
{
	return bench_parse_count(part, (uint64_t *)context + direction);
}

static int set_sizes(void *field, const struct option *option, const char *value)
{
	return named(option, bench_parse_pair(value, add_size, field));
}

static int set_counts(void *field, const struct option *option, const char *value)
{
	return named(option, bench_parse_pair(value, add_count, field));
}

static int add_percent(void *context, unsigned direction, const char *part)
{
	uint64_t count;
	int result = bench_parse_count(part, &count);

	if (result == 0 && count > 100)
		return spw_error(-EINVAL, "%s is more than 100 %%", part);
	if (result == 0)
		((uint32_t *)context)[direction] = (uint32_t)count;
	return result;
}

static int set_percents(void *field, const struct option *option, const char *value)
{
	return named(option, bench_parse_pair(value, add_percent, field));
}

static int set_mix_of_writes(void *field, const struct option *option, const char *value)
{
	uint32_t percent = 0;
	int result = set_count(&percent, option, value);

	if (result == 0)
		*(uint32_t *)field = 100 - percent;
	return result;
}

/* Set a size or "N%". The percentage is kept, as the size of the whole is not known yet. */
static int set_bytes_or_percent(uint64_t *bytes, uint32_t *percent, const struct option *option,
				const char *value)
{
	size_t len = strlen(value);
	uint64_t count = 0;
	char digits[8];

	*bytes = *percent = 0;
	if (len < 2 || len > sizeof(digits) || value[len - 1] != '%')
		return set_size(bytes, option, value);
	(void)snprintf(digits, sizeof(digits), "%.*s", (int)len - 1, value);
	if (bench_parse_count(digits, &count) != 0 || count < 1 || count > 100)
		return spw_error(-EINVAL, "%s=%s: takes 1%% to 100%%", option->name, value);
	*percent = (uint32_t)count;
	return 0;
}

static int set_total(void *field, const struct option *option, const char *value)
{
	struct bench_job *job = field;

	return set_bytes_or_percent(&job->size_bytes, &job->size_percent, option, value);
}

static int set_io_size(void *field, const struct option *option, const char *value)
{
	struct bench_job *job = field;

	return set_bytes_or_percent(&job->io_bytes, &job->io_percent, option, value);
}

/* Set the size of every file. fio would draw sizes from a range; that is refused. */
static int set_file_size(void *field, const struct option *option, const char *value)
{
	if (strchr(value, '-'))
		return spw_error(-EINVAL, "%s=%s: one size for all files", option->name, value);
	return set_size(field, option, value);
}

/* ---- Options of the whole job ----------------------------------------------------- */

static void remark(struct bench_job *job, enum bench_remark remark, bool on)
{
	job->remarks = (job->remarks & ~(1u << remark)) | (uint32_t)on << remark;
}

static int set_direct(void *field, const struct option *option, const char *value)
{
	struct bench_job *job = field;
	bool on = true;
	struct option flag = *option;
	int result;

	flag.min = 0;
	result = set_flag(&on, &flag, value);
	/* buffered=1 is direct=0. */
	if (result == 0)
		job->direct = on == (option->min == 1) ? BENCH_DIRECT_PAST : BENCH_DIRECT_THROUGH;
	return result;
}

static int set_engine(void *field, const struct option *option, const char *value)
{
	struct bench_job *job = field;
	bool synchronous = is_in(value, synchronous_engines);
	bool asynchronous = strcmp(value, "posixaio") == 0;
	bool none = strcmp(value, "null") == 0;
	bool foreign = bench_fio_engine(value);
	uint32_t backend = SPW_BACKEND_AUTO;
	int result = 0;

	if (!synchronous && !asynchronous && !none && !foreign)
		result = set_choice(&backend, option, value);
	if (result != 0)
		return result;
	job->backend = backend;
	job->synchronous = synchronous;
	job->null = job->null_engine = none;
	job->foreign_engine[0] = '\0';
	if (foreign)
		(void)snprintf(job->foreign_engine, sizeof(job->foreign_engine), "%s", value);
	remark(job, BENCH_REMARK_SYNCHRONOUS, synchronous);
	remark(job, BENCH_REMARK_ENGINE, asynchronous);
	return 0;
}

static int set_verify(void *field, const struct option *option, const char *value)
{
	struct bench_job *job = field;
	bool other = is_in(value, other_checksums);

	remark(job, BENCH_REMARK_CHECKSUM, other);
	if (strcmp(value, "crc32c-intel") == 0)
		value = "crc32c";
	return set_choice(&job->verify, option, other ? "xxh3" : value);
}

static int set_pattern(void *field, const struct option *option, const char *value)
{
	return named(option, bench_parse_pattern(value, field));
}

static int add_zones(void *context, unsigned direction, const char *part)
{
	struct bench_job *job = context;

	return bench_parse_zones(part, job->spread == BENCH_SPREAD_ZONES_BYTES,
				 job->zones[direction], &job->zones_count[direction]);
}

static const struct choice spread_choices[] = {{"random", BENCH_SPREAD_EVEN},
					       {"zipf", BENCH_SPREAD_ZIPF},
					       {"pareto", BENCH_SPREAD_PARETO},
					       {"normal", BENCH_SPREAD_NORMAL},
					       {"zoned", BENCH_SPREAD_ZONES},
					       {"zoned_abs", BENCH_SPREAD_ZONES_BYTES},
					       {NULL, 0}};

/* Parse "1.2" or "1.2:0.5": the parameter of a distribution, and its center. */
static int parse_spread_values(struct bench_job *job, const char *values)
{
	char theta[32];
	size_t len = strcspn(values, ":");
	int result;

	(void)snprintf(theta, sizeof(theta), "%.*s", (int)SPW_MIN(len, sizeof(theta) - 1), values);
	result = bench_parse_real(theta, &job->spread_theta);
	if (result == 0 && values[len] == ':')
		result = bench_parse_real(values + len + 1, &job->spread_center);
	return result;
}

static int check_spread(const struct bench_job *job)
{
	double theta = job->spread_theta;

	if (job->spread == BENCH_SPREAD_ZIPF && (theta <= 0 || theta == 1))
		return spw_error(-EINVAL, "zipf takes a theta above 0 that is not 1");
	if (job->spread == BENCH_SPREAD_PARETO && (theta <= 0 || theta >= 1))
		return spw_error(-EINVAL, "pareto takes a power between 0 and 1");
	if (job->spread == BENCH_SPREAD_NORMAL && (theta < 0 || theta >= 100))
		return spw_error(-EINVAL, "normal takes a deviation of 0 to 100 percent");
	if (job->spread_center > 1)
		return spw_error(-EINVAL, "the center lies between 0 and 1");
	return 0;
}

static int set_spread(void *field, const struct option *option, const char *value)
{
	struct bench_job *job = field;
	const char *colon = strchr(value, ':');
	char kind[16];
	int result;

	(void)snprintf(kind, sizeof(kind), "%.*s", (int)SPW_MIN(strcspn(value, ":"), 15u), value);
	result = set_choice(&job->spread, option, kind);
	if (result != 0)
		return result;
	/* fio's defaults. */
	job->spread_theta = job->spread == BENCH_SPREAD_ZIPF     ? 1.1
			    : job->spread == BENCH_SPREAD_PARETO ? 0.2
								 : 0;
	job->spread_center = -1;
	if (job->spread >= BENCH_SPREAD_ZONES)
		result = bench_parse_pair(colon ? colon + 1 : "", add_zones, job);
	else if (colon)
		result = parse_spread_values(job, colon + 1);
	if (result == 0 && job->spread >= BENCH_SPREAD_ZONES &&
	    (job->zones_count[0] == 0 || job->zones_count[1] == 0))
		return spw_error(-EINVAL, "%s=%s: names no zones", option->name, value);
	return named(option, result == 0 ? check_spread(job) : result);
}

/* Set when a rate is steady: "iops:10%", "bw_slope:1m". */
static int set_steady(void *field, const struct option *option, const char *value)
{
	struct bench_job *job = field;
	size_t len = strcspn(value, ":");
	const char *limit = value[len] == ':' ? value + len + 1 : "";
	size_t digits = strcspn(limit, "%");
	char text[32];
	uint64_t bytes;
	int result;

	job->steady_bandwidth = strncmp(value, "bw", 2) == 0;
	job->steady_slope = len > 6 && strncmp(value + len - 6, "_slope", 6) == 0;
	if (len - (job->steady_slope ? 6u : 0u) != (job->steady_bandwidth ? 2u : 4u) ||
	    (!job->steady_bandwidth && strncmp(value, "iops", 4) != 0) || limit[0] == '\0')
		return spw_error(-EINVAL, "%s=%s: write for example iops:10%% or bw_slope:1m",
				 option->name, value);
	job->steady_percent = limit[digits] == '%';
	(void)snprintf(text, sizeof(text), "%.*s", (int)SPW_MIN(digits, sizeof(text) - 1), limit);
	if (job->steady_percent || !job->steady_bandwidth)
		return named(option, bench_parse_real(text, &job->steady_limit));
	result = bench_parse_size(text, &bytes);
	if (result == 0)
		job->steady_limit = (double)bytes;
	return named(option, result);
}

static int set_duration(void *field, const struct option *option, const char *value)
{
	int result = set_time(field, option, value);
	uint64_t seconds = *(uint64_t *)field / 1000000000u;

	if (result == 0 && *(uint64_t *)field > 0 && (seconds < 2 || seconds > 1000000))
		return spw_error(-EINVAL, "%s=%s: takes 2 to 1000000 seconds", option->name, value);
	return result;
}

/* Set a delay: "5", or "5-10" for a random one between, as in fio. */
static int set_delay(void *field, const struct option *option, const char *value)
{
	struct bench_job *job = field;
	const char *dash = strchr(value, '-');
	char least[32];
	int result;

	(void)snprintf(least, sizeof(least), "%.*s", (int)SPW_MIN(strcspn(value, "-"), 31u), value);
	result = bench_parse_time(least, &job->delay_ns_min);
	job->delay_ns_max = job->delay_ns_min;
	if (result == 0 && dash)
		result = bench_parse_time(dash + 1, &job->delay_ns_max);
	if (result == 0 && job->delay_ns_max < job->delay_ns_min)
		return spw_error(-EINVAL, "%s=%s: the end comes first", option->name, value);
	return named(option, result);
}

static int set_cpus(void *field, const struct option *option, const char *value)
{
	struct bench_job *job = field;
	int result = bench_parse_cpus(value, &job->cpus);

	job->cpus_given = result == 0;
	return named(option, result);
}

/* Set the NUMA node of the buffers, or leave it to the system. */
static int set_memory_policy(void *field, const struct option *option, const char *value)
{
	struct bench_job *job = field;
	const char *colon = strchr(value, ':');
	uint64_t node = BENCH_NUMA_ANY;
	int result = 0;

	if (strncmp(value, "bind:", 5) == 0 || strncmp(value, "prefer:", 7) == 0)
		result = bench_parse_count(colon + 1, &node);
	else if (strcmp(value, "default") != 0 && strcmp(value, "local") != 0)
		return spw_error(-EINVAL,
				 "%s=%s is not supported; there is: default local bind:NODE "
				 "prefer:NODE",
				 option->name, value);
	if (result == 0 && node > 1023 && node != BENCH_NUMA_ANY)
		return spw_error(-EINVAL, "%s=%s: there is no such node", option->name, value);
	job->numa_memory = (uint32_t)node;
	return named(option, result);
}

static int set_base(void *field, const struct option *option, const char *value)
{
	(void)field;
	return strcmp(value, "1024") == 0 ? 0
					  : spw_error(-EINVAL, "%s=%s is not supported (%s)",
						      option->name, value, option->help);
}

static int set_cmd_type(void *field, const struct option *option, const char *value)
{
	(void)field;
	return strcmp(value, "nvme") == 0 ? 0
					  : spw_error(-EINVAL, "%s=%s is not supported (%s)",
						      option->name, value, option->help);
}

/* ---- The table ------------------------------------------------------------------------------- */

#define FIELD(field)           offsetof(struct bench_job, field)
#define FLAG(name)             #name, NULL, set_flag, FIELD(name), 0, 1, NULL, NULL
#define COUNT(field, min, max) set_count, FIELD(field), min, max, NULL, "N"
#define SIZE(field)            set_size, FIELD(field), 0, 0, NULL, "SIZE"
#define SIZES(field)           set_sizes, FIELD(field), 0, 0, NULL, "SIZE"
#define COUNTS(field)          set_counts, FIELD(field), 0, 0, NULL, "N"
#define TIME(field)            set_time, FIELD(field), 0, 0, NULL, "TIME"
#define CHOICE(field, choices) set_choice, FIELD(field), 0, 0, choices
#define BYTES(field)           sizeof(((struct bench_job *)0)->field)
#define TEXT(field)            set_text, FIELD(field), 0, BYTES(field), NULL
#define JOB(set)               set, 0, 0, 0, NULL

static const struct option options[] = {
	{"name", NULL, TEXT(name), "NAME",
	 "begin a job; options before the first apply to all jobs. In a job file: the name in "
	 "reports"},
	{"filename", NULL, add_files, FIELD(filename), 0, BYTES(filename), NULL, "A:B",
	 "devices or existing files, colon separated; adds to those named before, as in fio"},
	{"directory", NULL, TEXT(directory), "DIR",
	 "where these are; without names, use the files that fio made there: JOB.WORKER.FILE"},
	{"nrfiles", "nr_files", COUNT(nrfiles, 1, BENCH_FILES_MAX),
	 "number of those files (default 1)"},
	{"rw", "readwrite", set_rw, 0, 0, 0, rw_choices, "KIND",
	 "read write randread randwrite rw randrw; read:-2m skips after each transfer"},
	{"rwmixread", NULL, set_count, FIELD(read_percent), 0, 100, NULL, "PERCENT",
	 "percentage of reads in a mix (default 50)"},
	{"rwmixwrite", NULL, set_mix_of_writes, FIELD(read_percent), 0, 100, NULL, "PERCENT",
	 "percentage of writes; the last of the two counts"},
	{"bs", "blocksize", JOB(set_block), "SIZE", "block size (default 4k), or of reads,writes"},
	{"bsrange", "blocksize_range", JOB(set_range), "MIN-MAX",
	 "random block sizes, multiples of MIN; overrides bs"},
	{"bssplit", NULL, JOB(set_split), "SIZE/PERCENT:...",
	 "block sizes, each for this percentage of transfers; overrides bs and bsrange"},
	{"size", NULL, JOB(set_total), "SIZE",
	 "bytes per job over all its files, or N% of each (default: all)"},
	{"filesize", NULL, set_file_size, FIELD(file_bytes), 0, 0, NULL, "SIZE",
	 "use this much of each file"},
	{"io_size", "io_limit", JOB(set_io_size), "SIZE",
	 "bytes to transfer, less or more than one pass (default: size)"},
	{"number_ios", NULL, set_number, FIELD(number_ios), 0, 0, NULL, "N",
	 "end after this number of transfers"},
	{"loops", NULL, COUNT(loops, 1, UINT32_MAX), "passes (default 1)"},
	{"offset", "fileoffset", SIZE(offset_bytes), "where to start on each file"},
	{"offset_increment", NULL, SIZE(offset_increment_bytes),
	 "added to offset for each job of numjobs"},
	{"blockalign", "ba", SIZES(align_bytes),
	 "alignment of random offsets (default: the smallest block size)"},
	{"iodepth", NULL, COUNT(iodepth, 1, SPW_QUEUE_DEPTH_MAX),
	 "transfers in flight per job (default 1)"},
	{"iodepth_batch_submit", "iodepth_batch", COUNT(submit_batch, 1, SPW_QUEUE_DEPTH_MAX),
	 "transfers per submission (default 1)"},
	{"iodepth_batch_complete_min", "iodepth_batch_complete",
	 COUNT(complete_min, 0, SPW_QUEUE_DEPTH_MAX),
	 "minimum completions to wait for (default 1)"},
	{FLAG(serialize_overlap), "wait for overlapping transfers in flight"},
	{"numjobs", NULL, COUNT(numjobs, 1, BENCH_JOBS_MAX),
	 "number of threads that run the job (default 1)"},
	{"startdelay", NULL, JOB(set_delay), "TIME", "delay the start, or by a random time in A-B"},
	{"runtime", "timeout", TIME(runtime_ns), "stop after this time (10, 500ms, 2m)"},
	{FLAG(time_based), "repeat until the runtime is up"},
	{"ramp_time", NULL, TIME(ramp_ns), "run this long before measuring"},
	{"rate", NULL, SIZES(rate_bytes), "limit of bytes/s per job and direction"},
	{"rate_iops", NULL, COUNTS(rate_iops), "limit of transfers/s"},
	{"rate_process", NULL, set_bool_choice, FIELD(rate_poisson), 0, 0, process_choices, "KIND",
	 "linear: even intervals; poisson: random intervals with that mean"},
	{"rate_min", "ratemin", SIZES(rate_min_bytes), "fail below this many bytes/s"},
	{"rate_iops_min", NULL, COUNTS(rate_min_iops), "fail below this many transfers/s"},
	{"rate_cycle", "ratecycle", COUNT(rate_cycle_ms, 1, 3600000),
	 "milliseconds between these checks (default 1000)"},
	{"steadystate", "ss", JOB(set_steady), "KIND:LIMIT",
	 "iops, bw, iops_slope or bw_slope: end when it is within LIMIT, or N% of the mean"},
	{"steadystate_duration", "ss_dur", set_duration, FIELD(steady_ns), 0, 0, NULL, "TIME",
	 "for this long"},
	{"steadystate_ramp_time", "ss_ramp", TIME(steady_ramp_ns),
	 "wait this long before the first check"},
	{"thinktime", NULL, COUNT(think_us, 0, UINT32_MAX),
	 "microseconds to pause between transfers"},
	{"thinktime_blocks", NULL, COUNT(think_blocks, 1, UINT32_MAX),
	 "number of transfers between pauses (default 1)"},
	{"flow", NULL, COUNT(flow, 0, UINT32_MAX),
	 "weight: jobs of a flow run transfers in these proportions"},
	{"flow_id", NULL, COUNT(flow_id, 0, UINT32_MAX), "the flow (default 0)"},
	{"flow_sleep", NULL, COUNT(flow_sleep_us, 0, UINT32_MAX),
	 "microseconds to wait when ahead"},
	{"wait_for", NULL, TEXT(wait_for), "NAME", "begin when that job has ended"},
	{FLAG(exitall), "when this job ends, end the others"},
	{"exit_what", NULL, CHOICE(exit_what, exit_choices), "WHICH",
	 "which others: group, stonewall (until the next one) or all (default group)"},
	{"verify", NULL, set_verify, 0, 0, 0, verify_choices, "SUM",
	 "xxh3 crc32c: write blocks with checksums, read all back and verify"},
	{FLAG(do_verify), "read back what was written (default 1)"},
	{"verify_interval", NULL, SIZE(verify_interval_bytes),
	 "size of a block with one header (default: the smallest block size)"},
	{"verify_pattern", NULL, set_pattern, FIELD(verify_pattern), 0, 0, NULL, "PATTERN",
	 "content of the rest of the block (default: random)"},
	{"verify_backlog", NULL, set_backlog, FIELD(verify_backlog), 0, 1u << 30, NULL, "N",
	 "verify after every N writes, then continue writing"},
	{"verify_backlog_batch", NULL, COUNT(verify_backlog_batch, 0, 1u << 30),
	 "verify this many each time, the rest at the end (default: all)"},
	{"verify_state_save", NULL, set_never, 0, 0, 0, NULL, NULL,
	 "only 0: no state is kept between runs"},
	{"randseed", NULL, set_number, FIELD(randseed), 0, 0, NULL, "N",
	 "seed of offsets, sizes and contents"},
	{FLAG(norandommap), "random offsets may repeat within a pass"},
	{"random_distribution", NULL, set_spread, 0, 0, 0, spread_choices, "KIND",
	 "random, zipf:1.1, pareto:0.2, normal:5, zoned:60/10:40/90, zoned_abs:60/1g:40/9g"},
	{"percentage_random", NULL, set_percents, FIELD(random_percent), 0, 0, NULL, "PERCENT",
	 "percentage of random transfers, the others are sequential (default 100)"},
	{FLAG(scramble_buffers), "change each 512-byte sector before a write (default 1)"},
	{FLAG(zero_buffers), "write zeros"},
	{FLAG(refill_buffers), "new random bytes for each write"},
	{"buffer_pattern", NULL, set_pattern, FIELD(pattern), 0, 0, NULL, "PATTERN",
	 "repeat this pattern: 0xdead, 57005, \"text\""},
	{"buffer_compress_percentage", NULL, COUNT(compress_percent, 0, 100),
	 "percentage of zeros in new random buffers"},
	{"buffer_compress_chunk", NULL, set_size, FIELD(compress_chunk_bytes), 1, 0, NULL, "SIZE",
	 "zeros are at the end of each chunk (default 512)"},
	{"dedupe_percentage", NULL, COUNT(dedupe_percent, 0, 100),
	 "percentage of duplicate buffers"},
	{"dedupe_mode", NULL, set_bool_choice, FIELD(dedupe_set), 0, 0, dedupe_choices, "HOW",
	 "duplicates of: repeat, the last buffer; working_set, one of a set"},
	{"dedupe_working_set_percentage", NULL, COUNT(dedupe_set_percent, 1, 100),
	 "size of that set, as a percentage of size (default 5)"},
	{FLAG(dedupe_global), "share the set between jobs"},
	{"zonemode", NULL, set_bool_choice, FIELD(strided), 0, 0, zone_choices, "HOW",
	 "none, or strided (sequential jobs)"},
	{"zonesize", NULL, SIZE(zone_bytes), "bytes to transfer per zone"},
	{"zonerange", NULL, SIZE(zone_range_bytes), "size of a zone (default: zonesize)"},
	{"zoneskip", NULL, SIZE(zone_skip_bytes), "gap between zones"},
	{FLAG(hipri), "poll the drives for completions"},
	{FLAG(sqthread_poll), "a kernel thread submits"},
	{FLAG(fixedbufs), "register the buffers with the kernel"},
	{"direct", NULL, set_direct, 0, 1, 1, NULL, NULL,
	 "always 1 (O_DIRECT); 0 is accepted, and noted in the report"},
	{"buffered", NULL, set_direct, 0, 0, 1, NULL, NULL, "the opposite of direct"},
	{"cpus_allowed", NULL, JOB(set_cpus), "LIST", "CPUs to run on: 0-3,5"},
	{"cpus_allowed_policy", NULL, set_bool_choice, FIELD(cpus_split), 0, 0, policy_choices,
	 "HOW", "shared, or split among the job's threads"},
	{"numa_cpu_nodes", NULL, TEXT(numa_cpu_nodes), "LIST", "run on the CPUs of these nodes"},
	{"numa_mem_policy", NULL, JOB(set_memory_policy), "POLICY",
	 "for buffers: default, local, bind:NODE, prefer:NODE"},
	{"nice", NULL, set_nice, FIELD(nice), 0, 0, NULL, "N", "CPU priority, -20 to 19"},
	{"prio", NULL, COUNT(prio, 0, 7), "I/O priority, 0 to 7 within its class"},
	{"prioclass", NULL, COUNT(prio_class, 0, 3),
	 "I/O priority class: realtime 1, best effort 2, idle 3"},
	{FLAG(group_reporting), "report a group of jobs as one"},
	{FLAG(new_group), "begin a new reporting group"},
	{"stonewall", "wait_for_previous", set_flag, FIELD(stonewall), 0, 1, NULL, NULL,
	 "begin when all previous jobs have ended"},
	{"kb_base", NULL, JOB(set_base), "N", "only 1024: sizes are powers of 1024"},
	{"description", NULL, TEXT(description), "TEXT", "a comment in reports"},
	{"ioengine", NULL, set_engine, 0, 0, 0, engine_choices, "NAME",
	 "io_uring, libaio, io_uring_cmd for nvme: as --backend; null: as --null; sync, psync, "
	 "vsync, pvsync, pvsync2: one transfer at a time; posixaio"},
	{"cmd_type", NULL, JOB(set_cmd_type), "KIND",
	 "only nvme: the commands that ioengine=io_uring_cmd sends"},
	{"backend", NULL, CHOICE(backend, backend_choices), "NAME",
	 "auto io_uring libaio nvme vfio (default auto)"},
	{"level", NULL, CHOICE(level, level_choices), "LEVEL",
	 "engine: blocks of devices; store: objects of a store whose drives --filename names"},
	{"stripe", NULL, JOB(set_stripe), "HOW",
	 "store: pull, the only way: a drive takes the next chunk when it has a free slot"},
	{FLAG(no_checksums), "store: trust the drives"},
	{"null", NULL, JOB(set_null), "[=RATE]",
	 "use null drives, which no transfer reaches, at RATE each (default: unlimited)"},
	{"drives", NULL, COUNT(drives, 1, SPW_DRIVES_MAX), "number of null drives (default 1)"},
	{"workers", NULL, COUNT(workers, 1, SPW_WORKERS_MAX),
	 "store: threads for checksums and copies, including the job's own (default 1)"},
	{"object_size", NULL, set_size, FIELD(object_bytes), 1, 0, NULL, "SIZE",
	 "store: object size (default 16m)"},
	{"numa", NULL, set_count, FIELD(numa_node), 0, 1023, NULL, "NODE",
	 "run and allocate on this node"},
};

#define DEFAULT_SEED UINT64_C(0x89be21d6c4a53f17) /* constant, so that a run can be repeated */

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
		.loops = 1,
		.nrfiles = 1,
		.random_percent = {100, 100},
		.rate_cycle_ms = 1000,
		.compress_chunk_bytes = 512,
		.dedupe_set_percent = 5,
		.think_blocks = 1,
		.spread_center = -1,
		.do_verify = true,
		.numa_memory = BENCH_NUMA_ANY,
		.read_percent = 50,
		.drives = 1,
		.numa_node = BENCH_NUMA_ANY,
		.scramble_buffers = true,
	};
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

	return option ? !option->argument || option->argument[0] == '['
		      : bench_fio_option(name) != NULL;
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

/* Handle an option without effect, or a refused one, which may only be switched off. */
static int set_other(struct bench_job *job, const struct bench_fio_option *other, const char *name,
		     const char *value)
{
	bool off = value && (strcmp(value, "0") == 0 || strcmp(value, "none") == 0);

	if (other->verdict == BENCH_FIO_REFUSED && !off)
		return spw_error(-EINVAL, "option '%s' is not supported: %s", name, other->why);
	/* "inline" submission is the only one here. */
	if (value && strcmp(value, "inline") == 0)
		off = true;
	if (other->remark < BENCH_REMARKS)
		remark(job, other->remark, !off);
	return 0;
}

int bench_option_set(struct bench_job *job, const char *name, const char *value)
{
	const struct option *option = find_option(name);
	const struct bench_fio_option *other = option ? NULL : bench_fio_option(name);

	if (other)
		return set_other(job, other, name, value);
	if (!option)
		return unknown_option(name);
	if (option->argument && option->argument[0] != '[' && (!value || value[0] == '\0'))
		return spw_error(-EINVAL, "option '%s' needs a value: %s=%s", name, option->name,
				 option->argument);
	return option->set((char *)job + option->offset, option, value);
}

/* Write an option's name as on the command line, with dashes. */
static void write_name(const struct option *option, char *name, size_t len)
{
	(void)snprintf(name, len, "%s", option->name);
	for (char *at = name; *at != '\0'; at++)
		*at = *at == '_' ? '-' : *at;
}

static void print_rows(FILE *out)
{
	for (size_t i = 0; i < SPW_ARRAY_LEN(options); i++) {
		const struct option *option = &options[i];

		(void)fprintf(out, "| `%s%s%s`", option->name,
			      option->argument && option->argument[0] != '[' ? "=" : "",
			      option->argument ? option->argument : "");
		if (option->alias)
			(void)fprintf(out, " `%s`", option->alias);
		(void)fprintf(out, " | %s |\n", option->help);
	}
}

void bench_fio_print(FILE *out)
{
	(void)fprintf(out, "### Taken\n\n| option | |\n|---|---|\n");
	print_rows(out);
	bench_fio_print_others(out);
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
