/* SPDX-License-Identifier: MIT */
/* tests/unit/test_tool_jobfile.c - job files: what is understood, and bad input with its line */

#include "tests/case.h"
#include "tests/random.h"

#include <errno.h>
#include <unistd.h>

#include "tools/bench/jobfile.c"
#include "tools/bench/options.c"
#include "tools/bench/values.c"
#include "tools/ui/nearest.c"

static char path[256];
static char told[8][512]; /* the faults before the last */
static unsigned told_count;

static void tell(const char *fault)
{
	(void)snprintf(told[told_count % SPW_ARRAY_LEN(told)], sizeof(told[0]), "%s", fault);
	told_count++;
}

static int read_bytes(const char *text, size_t len, struct bench_plan *plan)
{
	struct bench_job global;
	int fd, result;

	bench_job_init(&global);
	(void)snprintf(path, sizeof(path), "%s/jobfile.XXXXXX",
		       getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, len), len);
	assert_int_equal(close(fd), 0);
	*plan = (struct bench_plan){0};
	told_count = 0;
	result = bench_jobfile_read(path, &global, plan, tell);
	assert_int_equal(unlink(path), 0);
	return result;
}

static int read_text(const char *text, struct bench_plan *plan)
{
	return read_bytes(text, strlen(text), plan);
}

CASE(sections_inherit)
{
	struct bench_plan plan;

	assert_int_equal(read_text("; a comment\n"
				   "[global]\n"
				   "filename=/dev/a:/dev/b   # two drives\n"
				   "bs=64k\n"
				   "direct=1\n"
				   "\n"
				   "[first]\n"
				   "  rw = randwrite\n"
				   "iodepth=8\n"
				   "[global]\n"
				   "bs=128k\n"
				   "[second]\n"
				   "stonewall\n"
				   "time_based\n"
				   "runtime=1500ms\n"
				   "numjobs=3\n",
				   &plan),
			 0);
	assert_int_equal(plan.count, 2);
	assert_string_equal(plan.jobs[0].name, "first");
	assert_string_equal(plan.jobs[0].filename, "/dev/a:/dev/b");
	assert_int_equal(plan.jobs[0].rw, BENCH_RANDWRITE);
	assert_int_equal(plan.jobs[0].block_bytes_min, 65536);
	assert_int_equal(plan.jobs[0].iodepth, 8);
	assert_false(plan.jobs[0].stonewall);
	assert_string_equal(plan.jobs[1].name, "second");
	assert_int_equal(plan.jobs[1].rw, BENCH_READ);
	assert_int_equal(plan.jobs[1].iodepth, 1);
	assert_int_equal(plan.jobs[1].block_bytes_max, 131072);
	assert_true(plan.jobs[1].stonewall && plan.jobs[1].time_based);
	assert_int_equal(plan.jobs[1].runtime_ns, 1500000000);
	assert_int_equal(plan.jobs[1].numjobs, 3);
	bench_plan_free(&plan);
}

CASE(every_option_is_understood)
{
	struct bench_plan plan;
	const struct bench_job *job;

	assert_int_equal(setenv("SPW_TEST_DRIVE", "/dev/c", 1), 0);
	assert_int_equal(
		read_text("[all]\nfilename=${SPW_TEST_DRIVE}\nreadwrite=randrw\nrwmixread="
			  "70\nbsrange=4k-64k\nsize=2g\n"
			  "offset=1m\niodepth=32\niodepth_batch=4\niodepth_batch_complete="
			  "2\nruntime=2m\n"
			  "ramp_time=5\nrate=10m\nrandseed=42\nhipri="
			  "1\nfixedbufs\nregisterfiles=1\nnonvectored=1\n"
			  "thread\ngroup_reporting=1\nioengine=libaio\nnorandommap="
			  "0\ndescription=words of it\n"
			  "stripe=static\nobject_size=32m\nworkers=3\nlevel=store\nnuma=0\n",
			  &plan),
		0);
	job = &plan.jobs[0];
	assert_string_equal(job->filename, "/dev/c");
	assert_int_equal(job->rw, BENCH_RANDRW);
	assert_int_equal(job->read_percent, 70);
	assert_int_equal(job->block_bytes_min, 4096);
	assert_int_equal(job->block_bytes_max, 65536);
	assert_int_equal(job->size_bytes, 2ull << 30);
	assert_int_equal(job->offset_bytes, 1 << 20);
	assert_int_equal(job->submit_batch, 4);
	assert_int_equal(job->complete_min, 2);
	assert_int_equal(job->runtime_ns, 120000000000ull);
	assert_int_equal(job->ramp_ns, 5000000000ull);
	assert_int_equal(job->rate_bytes, 10 << 20);
	assert_int_equal(job->randseed, 42);
	assert_true(job->hipri && job->fixedbufs && job->group_reporting);
	assert_false(job->norandommap);
	assert_int_equal(job->backend, SPW_BACKEND_LIBAIO);
	assert_int_equal(job->stripe, SPW_STRIPE_STATIC);
	assert_int_equal(job->level, BENCH_LEVEL_STORE);
	assert_int_equal(job->object_bytes, 32 << 20);
	assert_int_equal(job->numa_node, 0);
	assert_string_equal(job->description, "words of it");
	bench_plan_free(&plan);
}

CASE(null_drives_are_asked_for_with_or_without_a_rate)
{
	struct bench_plan plan;

	assert_int_equal(
		read_text("[at_once]\nnull\n[fast]\nnull=6g\ndrives=8\nlevel=store\n", &plan), 0);
	assert_int_equal(plan.count, 2);
	assert_true(plan.jobs[0].null && plan.jobs[1].null);
	assert_int_equal(plan.jobs[0].null_bytes_per_second, 0);
	assert_int_equal(plan.jobs[0].drives, 1);
	assert_int_equal(plan.jobs[1].null_bytes_per_second, 6ull << 30);
	assert_int_equal(plan.jobs[1].drives, 8);
	bench_plan_free(&plan);
}

/* Every bad input, the line that is blamed (0: the file as a whole), and a part of the message. */
static const struct bad {
	const char *text;
	unsigned line;
	const char *words;
} bad[] = {
	{"[a]\nnull=\n", 2, "null: "},
	{"[a]\nnull=fast\n", 2, "not a number"},
	{"[a]\nnull\nfilename=x\n", 1, "leave filename out"},
	{"[a]\nfilename=x\ndrives=2\n", 1, "drives=2 without null"},
	{"[a]\nnull\ndrives=65\n", 3, "takes 1 to 64"},
	{"[a]\nnull\nbackend=libaio\n", 1, "null is a backend"},
	{"[a]\nnull\nverify=xxh3\nrw=write\n", 1, "leave verify out"},
	{"[a]\nnull\nlevel=store\nobject_size=5000\n", 1, "multiple of 4096"},
	{"[a]\nfilename=x\nzonesize=1m\n", 3, "option 'zonesize' is not supported"},
	{"[a]\nfilename=x\niodpeth=1\n", 3, "did you mean 'iodepth'?"},
	{"[a]\nfilename=x\nbs=4x\n", 3, "'4x' is not a size"},
	{"[a]\nfilename=x\nbs=4KiB\n", 3, "ambiguous"},
	{"[a]\nfilename=x\nbs=4k,8k\n", 3, "one size for reads and writes"},
	{"[a]\nfilename=x\nbs=99999999999999999999\n", 3, "too large"},
	{"[a]\nfilename=x\nsize=17179869184g\n", 3, "too large"},
	{"[a]\nfilename=x\nsize=0%\n", 3, "1% to 100%"},
	{"[a]\nfilename=x\nsize=-1\n", 3, "not a number"},
	{"[a]\nfilename=x\nbsrange=4k\n", 3, "4k-64k"},
	{"[a]\nfilename=x\nbsrange=-4k\n", 3, "not a number"},
	{"[a]\nfilename=x\nbsrange=8k-4k\n", 1, "make no sense"},
	{"[a]\nfilename=x\nbsrange=4k-9k\n", 1, "multiple of the smallest"},
	{"[a]\nfilename=x\nbs=0\n", 1, "make no sense"},
	{"[a]\nfilename=x\nbs=2g\n", 1, "at most 1g"},
	{"[a]\nfilename=x\nrw=trim\n", 3, "rw=trim is not supported; there is: read write"},
	{"[a]\nfilename=x\nrw\n", 3, "needs a value"},
	{"[a]\nfilename=x\nrw=\n", 3, "needs a value"},
	{"[a]\nfilename=x\nrw=randread:4k\n", 3, "only sequential transfers skip"},
	{"[a]\nfilename=x\nrw=read:far\n", 3, "not a number"},
	{"[a]\nfilename=x\niodepth=0\n", 3, "takes 1 to"},
	{"[a]\nfilename=x\niodepth=4096\n", 3, "takes 1 to"},
	{"[a]\nfilename=x\niodepth=1.5\n", 3, "not a number"},
	{"[a]\nfilename=x\niodepth=4\niodepth_batch_submit=8\n", 1, "larger than iodepth=4"},
	{"[a]\nfilename=x\nrwmixread=101\n", 3, "takes 0 to 100"},
	{"[a]\nfilename=x\nruntime=10y\n", 3, "not a time"},
	{"[a]\nfilename=x\nruntime=99999999999d\n", 3, "too long"},
	{"[a]\nfilename=x\ntime_based\n", 1, "time_based needs a runtime"},
	{"[a]\nfilename=x\ntime_based=2\n", 3, "takes 0 or 1"},
	{"[a]\nfilename=x\ndirect=0\n", 3, "direct=0 is not supported"},
	{"[a]\nfilename=x\nioengine=sync\n", 3, "there is: io_uring libaio"},
	{"[a]\nfilename=x\nhipri\nsqthread_poll\n", 1, "exclude each other"},
	{"[a]\nfilename=x\nverify=md5\n", 3, "verify=md5 is not supported; there is: xxh3"},
	{"[a]\nfilename=x\nverify=xxh3\nrw=randrw\n", 1, "does not go with rw=randrw"},
	{"[a]\nfilename=x\nverify=xxh3\nrw=write\nnumjobs=2\n", 1, "overwrite each other"},
	{"[a]\nfilename=x\nverify=xxh3\nrw=randwrite\nnorandommap\n", 1, "norandommap"},
	{"[a]\nfilename=x\nverify=xxh3\nrw=write:512\n", 1, "skip whole blocks"},
	{"[a]\nfilename=x\nverify=xxh3\nrw=write:4k\ntime_based\nruntime=1\n", 1, "written twice"},
	{"[a]\nfilename=x\n\n\n[b]\nbs=q\n", 6, "not a number"},
	{"[a]\nrw=read\n[b]\nfilename=x\n", 1, "no filename given"},
	{"bs=4k\n[a]\nfilename=x\n", 1, "before the first section"},
	{"[a\nfilename=x\n", 1, "not a section"},
	{"[]\nfilename=x\n", 1, "not a section"},
	{"[a]\nfilename=${SPW_NOT_SET}\n", 2, "SPW_NOT_SET is not set"},
	{"[a]\nfilename=x\ninclude other.fio\n", 3, "is not supported"},
	{"[global]\nfilename=x\n", 0, "no job in it"},
	{"", 0, "no job in it"},
	{"# only a comment\n", 0, "no job in it"},
};

CASE(bad_input_is_refused_with_its_line)
{
	char place[sizeof(path) + 16];

	(void)unsetenv("SPW_NOT_SET");
	for (size_t i = 0; i < SPW_ARRAY_LEN(bad); i++) {
		struct bench_plan plan;
		int result = read_text(bad[i].text, &plan);

		if (bad[i].line > 0)
			(void)snprintf(place, sizeof(place), "%s:%u: ", path, bad[i].line);
		else
			(void)snprintf(place, sizeof(place), "%s: ", path);
		if ((result != -EINVAL && result != -ERANGE) ||
		    strncmp(spw_last_error(), place, strlen(place)) != 0 ||
		    !strstr(spw_last_error(), bad[i].words))
			fail_msg("%s\ngave %d: %s\ninstead of %s%s", bad[i].text, result,
				 spw_last_error(), place, bad[i].words);
		assert_int_equal(told_count, 0);
		bench_plan_free(&plan);
	}
}

/* In their order; and none that is only a consequence of another. */
CASE(all_faults_are_told_at_once)
{
	static const char text[] = "[global]\n"
				   "buffered=0\n"
				   "filename=${SPW_NOT_SET}\n"
				   "[a]\n"
				   "iodepth=0\n"
				   "time_based\n"
				   "[b\n"
				   "bs=q\n"
				   "[good]\n"
				   "filename=x\n"
				   "[c]\n"
				   "bs=2g\n";
	static const struct {
		unsigned line;
		const char *words;
	} faults[] = {{2, "'buffered'"},
		      {3, "is not set"},
		      {5, "iodepth=0"},
		      {7, "not a section"},
		      {8, "bs:"}};
	struct bench_plan plan;
	char place[sizeof(path) + 16];

	(void)unsetenv("SPW_NOT_SET");
	assert_int_equal(read_text(text, &plan), -EINVAL);
	assert_int_equal(told_count + 1, SPW_ARRAY_LEN(faults));
	for (unsigned i = 0; i < SPW_ARRAY_LEN(faults); i++) {
		const char *words = i < told_count ? told[i] : spw_last_error();

		(void)snprintf(place, sizeof(place), "%s:%u: ", path, faults[i].line);
		if (strncmp(words, place, strlen(place)) != 0 || !strstr(words, faults[i].words))
			fail_msg("fault %u is \"%s\", not %s%s", i, words, place, faults[i].words);
	}
	assert_int_equal(plan.count, 0);
	bench_plan_free(&plan);

	assert_int_equal(read_text("[a]\nflow=1\n[b]\nfilename=x\nbs=2g\n", &plan), -EINVAL);
	assert_int_equal(told_count, 2);
	assert_non_null(strstr(told[0], ":2: option 'flow'"));
	assert_non_null(strstr(told[1], ":1: job a: no filename"));
	assert_non_null(strstr(spw_last_error(), ":3: job b: blocks are at most 1g"));
	bench_plan_free(&plan);
}

CASE(a_file_of_faults_ends_the_reading)
{
	static char text[FAULTS_MAX * 16];
	struct bench_plan plan;

	for (unsigned i = 0; i < FAULTS_MAX * 2; i++)
		(void)strcat(text, "flow\n");
	assert_int_equal(read_text(text, &plan), -EINVAL);
	assert_int_equal(told_count, FAULTS_MAX - 1);
	assert_non_null(strstr(spw_last_error(), "more than 100 faults: is this a job file?"));
	bench_plan_free(&plan);
}

/* As fio: --section knows a job by its section. */
CASE(a_name_is_for_reports)
{
	struct bench_plan plan;

	assert_int_equal(read_text("[global]\nname=all\nfilename=x\n[a]\n[b]\nname=mine\n", &plan),
			 0);
	assert_int_equal(plan.count, 2);
	assert_string_equal(plan.jobs[0].name, "a");
	assert_string_equal(plan.jobs[0].section, "a");
	assert_string_equal(plan.jobs[1].name, "mine");
	assert_string_equal(plan.jobs[1].section, "b");
	bench_plan_free(&plan);
}

CASE(long_lines_names_and_zero_bytes_are_refused)
{
	static char text[3 * LINE_BYTES_MAX];
	struct bench_plan plan;
	struct bench_job global;

	memset(text, 'x', sizeof(text) - 1);
	memcpy(text, "[a]\nfilename=", 13);
	assert_int_equal(read_text(text, &plan), -EINVAL);
	assert_non_null(strstr(spw_last_error(), ":2: the line is longer"));
	memcpy(text, "[", 1);
	memset(text + 1, 'n', BENCH_NAME_BYTES);
	memcpy(text + 1 + BENCH_NAME_BYTES, "]\n", 3);
	assert_int_equal(read_text(text, &plan), -EINVAL);
	assert_non_null(strstr(spw_last_error(), ":1: the name is longer"));

	assert_int_equal(read_bytes("[a]\n\0\n", 6, &plan), -EINVAL);
	assert_non_null(strstr(spw_last_error(), ":2: the line holds a zero byte"));
	bench_job_init(&global);
	assert_int_equal(bench_jobfile_read(path, &global, &plan, tell), -ENOENT);
	assert_non_null(strstr(spw_last_error(), path));
	assert_int_equal(bench_jobfile_read("/", &global, &plan, tell), -EISDIR);
	bench_plan_free(&plan);
}

/* Whatever bytes a file holds, it is understood or refused with a message. */
CASE(random_files_never_crash)
{
	static const char pieces[][16] = {"[a]\n",
					  "[global]\n",
					  "bs=",
					  "rw=",
					  "4k\n",
					  "=",
					  "\n",
					  ";",
					  "${",
					  "}",
					  "filename=x\n",
					  "size=",
					  "-",
					  "\xff",
					  "runtime=",
					  "99999999999",
					  "[",
					  "]",
					  " ",
					  "numjobs="};
	uint64_t random = random_seed();

	for (unsigned round = 0; round < 300; round++) {
		struct bench_plan plan;
		char text[512] = "";

		for (unsigned i = (unsigned)random_below(&random, 24); i > 0; i--)
			(void)strcat(text, pieces[random_below(&random, SPW_ARRAY_LEN(pieces))]);
		if (read_text(text, &plan) != 0)
			assert_true(spw_last_error()[0] != '\0');
		for (unsigned i = 0; i < plan.count; i++)
			assert_int_equal(bench_job_check(&plan.jobs[i]), 0);
		bench_plan_free(&plan);
	}
}

CASE(names_are_the_same_with_dashes)
{
	struct bench_job job;

	bench_job_init(&job);
	assert_int_equal(bench_option_set(&job, "iodepth-batch-submit", "2"), 0);
	assert_int_equal(job.submit_batch, 2);
	assert_true(bench_option_is_flag("time-based"));
	assert_false(bench_option_is_flag("bs"));
	assert_int_equal(bench_option_set(&job, "rw", "read:-2m"), 0);
	assert_int_equal(job.skip_bytes, -(2 << 20));
	assert_int_equal(bench_option_set(&job, "rw", "write"), 0);
	assert_int_equal(job.skip_bytes, 0);
	assert_int_equal(bench_option_set(&job, "size", "50%"), 0);
	assert_int_equal(job.size_percent, 50);
}

RUN_CASES(NULL, NULL)
