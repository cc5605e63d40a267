/* SPDX-License-Identifier: MIT */
/* tests/unit/test_tool_jobfile.c - job files: what is understood, and bad input with its line */

#include "tests/case.h"
#include "tests/random.h"

#include <errno.h>
#include <unistd.h>

#include "tools/bench/check.c"
#include "tools/bench/fio_options.c"
#include "tools/bench/job.c"
#include "tools/bench/jobfile.c"
#include "tools/bench/lists.c"
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
	assert_int_equal(read_text("[all]\nfilename=${SPW_TEST_DRIVE}\nreadwrite=randrw\nrwmixread="
				   "70\nbsrange=4k-64k\nsize=2g\n"
				   "offset=1m\niodepth=32\niodepth_batch=4\niodepth_batch_complete="
				   "2\nruntime=2m\n"
				   "ramp_time=5\nrate=10m\nrandseed=42\nhipri="
				   "1\nfixedbufs\nregisterfiles=1\nnonvectored=1\n"
				   "thread\ngroup_reporting=1\nioengine=libaio\nnorandommap="
				   "0\ndescription=words of it\n"
				   "stripe=pull\nobject_size=32m\nworkers=3\nlevel=store\nnuma=0\n",
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
	assert_int_equal(job->rate_bytes[0], 10 << 20);
	assert_int_equal(job->rate_bytes[1], 10 << 20);
	assert_int_equal(job->randseed, 42);
	assert_true(job->hipri && job->fixedbufs && job->group_reporting);
	assert_false(job->norandommap);
	assert_int_equal(job->backend, SPW_BACKEND_LIBAIO);
	assert_int_equal(job->level, BENCH_LEVEL_STORE);
	assert_int_equal(job->object_bytes, 32 << 20);
	assert_int_equal(job->numa_node, 0);
	assert_string_equal(job->description, "words of it");
	bench_plan_free(&plan);
}

/* What fio's job files say beyond the above. */
CASE(the_rest_of_fios_words)
{
	struct bench_plan plan;
	const struct bench_job *job;

	assert_int_equal(
		read_text("[all]\nfilename=x\nrw=randrw\nrwmixwrite=20\nbs=8k,4k\nio_size="
			  "1g\nloops=3\n"
			  "number_ios=9\nfilesize=1m\nstartdelay=1-2\nrate=1m,2m\nrate_iops=,7\n"
			  "rate_process=poisson\nratemin=3k\nthinktime=5\nthinktime_blocks=6\n"
			  "flow=2\nflow_id=3\nflow_sleep=4\nwait_for=b\nexitall\nexit_what=all\n"
			  "random_distribution=zoned:60/10:40/\npercentage_random=50\n"
			  "buffer_pattern=0xabc\"de\"255\ncpus_allowed=0,2-3\n"
			  "cpus_allowed_policy=split\nnuma_mem_policy=bind:1\nprio=3\n"
			  "prioclass=2\nnice=-5\ngroup_reporting\nnew_group\nkb_base=1024\ncmd_"
			  "type=nvme\n"
			  "invalidate=1\ndonorname=x\nzonemode=none\nend_fsync=0\n"
			  "verify_backlog=1k\nverify=md5\nserialize_overlap=1\ndo_verify=0\n",
			  &plan),
		0);
	job = &plan.jobs[0];
	assert_int_equal(job->read_percent, 80);
	assert_int_equal(bench_job_lengths(job, 0).max, 8192);
	assert_int_equal(bench_job_lengths(job, 1).max, 4096);
	assert_true(job->block_bytes_min == 4096 && job->block_bytes_max == 8192);
	assert_true(job->io_bytes == 1 << 30 && job->loops == 3 && job->number_ios == 9);
	assert_true(job->delay_ns_min == 1000000000 && job->delay_ns_max == 2000000000);
	assert_true(job->rate_bytes[0] == 1 << 20 && job->rate_bytes[1] == 2 << 20);
	assert_true(job->rate_iops[0] == 0 && job->rate_iops[1] == 7 && job->rate_poisson);
	assert_true(job->rate_min_bytes[1] == 3072 && job->think_us == 5 && job->think_blocks == 6);
	assert_true(job->flow == 2 && job->flow_id == 3 && job->flow_sleep_us == 4);
	assert_true(job->exitall && job->exit_what == BENCH_EXIT_ALL);
	assert_string_equal(job->wait_for, "b");
	assert_int_equal(job->zones_count[1], 2);
	assert_true(job->zones[0][0].value == 10 && job->zones[0][1].value == 100);
	assert_int_equal(job->random_percent[1], 50);
	assert_int_equal(job->pattern.len, 5);
	assert_memory_equal(job->pattern.bytes,
			    "\x0a\xbc"
			    "de"
			    "\xff",
			    5);
	assert_true(CPU_COUNT(&job->cpus) == 3 && job->cpus_split && CPU_ISSET(2, &job->cpus));
	assert_true(job->numa_memory == 1 && job->prio == 3 && job->prio_class == 2);
	assert_true(job->nice == -5 && job->new_group && job->verify_backlog == 1024);
	assert_true(job->verify == BENCH_VERIFY_XXH3 && !job->do_verify && job->serialize_overlap);
	/* Said in reports: md5, and that fio would go through the page cache. */
	assert_int_equal(job->remarks, 1u << BENCH_REMARK_CHECKSUM | 1u << BENCH_REMARK_BUFFERED);
	bench_plan_free(&plan);
}

CASE(engines_are_mapped_or_left_out)
{
	struct bench_plan plan;

	assert_int_equal(
		read_text("[global]\nfilename=x\ndirect=1\n[a]\nioengine=psync\niodepth=16\n"
			  "[falloc]\nrw=randtrim\nstonewall\nioengine=falloc\n"
			  "[b]\niodepth=4\nioengine=posixaio\n[c]\nioengine=null\nverify=md5\n",
			  &plan),
		0);
	assert_int_equal(plan.count, 3);
	/* fio's synchronous engines have one in flight. */
	assert_int_equal(plan.jobs[0].iodepth, 1);
	assert_int_equal(plan.jobs[0].remarks, 1u << BENCH_REMARK_SYNCHRONOUS);
	/* What stood behind a wall still does. */
	assert_true(plan.jobs[1].stonewall && plan.jobs[1].iodepth == 4);
	assert_false(plan.jobs[2].stonewall);
	assert_true(plan.jobs[2].null && plan.jobs[2].verify == BENCH_VERIFY_NONE);
	assert_int_equal(plan.jobs[2].remarks, 1u << BENCH_REMARK_NOT_VERIFIED);
	assert_string_equal(plan.jobs[2].filename, "");
	assert_int_equal(plan.left_out_count, 1);
	assert_string_equal(plan.left_out[0].section, "falloc");
	assert_string_equal(plan.left_out[0].engine, "falloc");
	bench_plan_free(&plan);
}

CASE(a_section_that_is_not_chosen_has_no_faults)
{
	struct bench_plan plan = {.sections = {"b"}, .sections_count = 1};
	struct bench_job global;
	FILE *file;

	bench_job_init(&global);
	(void)snprintf(path, sizeof(path), "%s/jobfile.chosen",
		       getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	file = fopen(path, "w");
	assert_non_null(file);
	(void)fputs("[a]\ncreate_only=1\nbs=q\n[b]\nfilename=x\n", file);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(bench_jobfile_read(path, &global, &plan, tell), 0);
	assert_int_equal(plan.count, 1);
	assert_string_equal(plan.jobs[0].section, "b");
	assert_int_equal(unlink(path), 0);
	bench_plan_free(&plan);
}

/* Beside the file that includes it; a fault has the place of the line that has it. */
CASE(a_file_is_included)
{
	const char *folder = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
	struct bench_plan plan;
	char common[300];
	FILE *file;

	(void)snprintf(common, sizeof(common), "%s/common.inc", folder);
	file = fopen(common, "w");
	assert_non_null(file);
	(void)fputs("bs=64k\nfilename=x\n", file);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(read_text("[global]\ninclude common.inc\n[a]\niodepth=2\n", &plan), 0);
	assert_int_equal(plan.jobs[0].block_bytes_min, 65536);
	bench_plan_free(&plan);
	file = fopen(common, "w");
	assert_non_null(file);
	(void)fputs("\nbs=q\ninclude common.inc\n", file);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(read_text("[a]\nfilename=x\ninclude common.inc\n", &plan), -EINVAL);
	assert_int_equal(told_count, 1);
	assert_non_null(strstr(told[0], "common.inc:2: bs: "));
	expect_words("includes no others");
	bench_plan_free(&plan);
	assert_int_equal(read_text("[a]\ninclude /dev/zero\n", &plan), -EINVAL);
	assert_non_null(strstr(told_count > 0 ? told[0] : spw_last_error(), "not a plain file"));
	bench_plan_free(&plan);
	assert_int_equal(unlink(common), 0);
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
	{"[a]\nfilename=x\nlatency_target=1\n", 3, "option 'latency_target' is not supported"},
	{"[a]\nfilename=x\nzonesize=1m\n", 1, "of zonemode=strided"},
	{"[a]\nfilename=x\nzonemode=strided\nrw=randread\nzonesize=1m\n", 1, "sequential"},
	{"[a]\nfilename=x\nzonemode=zbd\n", 3, "there is: none strided"},
	{"[a]\nfilename=x\niodpeth=1\n", 3, "did you mean 'iodepth'?"},
	{"[a]\nfilename=x\nbs=4x\n", 3, "'4x' is not a size"},
	{"[a]\nfilename=x\nbs=4KiB\n", 3, "ambiguous"},
	{"[a]\nfilename=x\nbs=4k,8k,8k,8k\n", 3, "more than three values"},
	{"[a]\nfilename=x\nbs=99999999999999999999\n", 3, "too large"},
	{"[a]\nfilename=x\nsize=17179869184g\n", 3, "too large"},
	{"[a]\nfilename=x\nsize=0%\n", 3, "1% to 100%"},
	{"[a]\nfilename=x\nsize=-1\n", 3, "not a number"},
	{"[a]\nfilename=x\nbsrange=4k\n", 3, "4k-64k"},
	{"[a]\nfilename=x\nbsrange=-4k\n", 3, "4k-64k"},
	{"[a]\nfilename=x\nbsrange=8k-4k\n", 3, "make no sense"},
	{"[a]\nfilename=x\nbsrange=4k-9k\n", 3, "multiple of the smallest"},
	{"[a]\nfilename=x\nbssplit=4k/60:64k/60\n", 3, "add up to 120 of 100"},
	{"[a]\nfilename=x\nbssplit=4k/60:64k/30\n", 3, "add up to 90 of 100"},
	{"[a]\nfilename=x\nbssplit=4k/60:5k/40\n", 3, "multiple of the smallest"},
	{"[a]\nfilename=x\nbssplit=/60:5k/40\n", 3, "has no size"},
	{"[a]\nfilename=x\nrandom_distribution=zipf:1\n", 3, "theta"},
	{"[a]\nfilename=x\nrandom_distribution=pareto:1\n", 3, "between 0 and 1"},
	{"[a]\nfilename=x\nrandom_distribution=normal:nan\n", 3, "not a number"},
	{"[a]\nfilename=x\nrandom_distribution=zoned:50/5\n", 3, "add up to 50 of 100"},
	{"[a]\nfilename=x\nrandom_distribution=zoned:50/5:50/5\n", 3, "not 100"},
	{"[a]\nfilename=x\nrandom_distribution=zoned\n", 3, "names no zones"},
	{"[a]\nfilename=x\ncpus_allowed=3-1\n", 3, "names no CPUs"},
	{"[a]\nfilename=x\nnuma_mem_policy=interleave:0-1\n", 3, "not supported"},
	{"[a]\nfilename=x\nstartdelay=5-2\n", 3, "the end comes first"},
	{"[a]\nfilename=x\nbuffer_pattern=0x\n", 3, "not a number"},
	{"[a]\nfilename=x\nss=fast:1%\n", 3, "bw_slope"},
	{"[a]\nfilename=x\nss=iops:\n", 3, "bw_slope"},
	{"[a]\nfilename=x\nss=iops:10%\n", 1, "steadystate_duration"},
	{"[a]\nfilename=x\nss_dur=1\n", 3, "takes 2 to"},
	{"[a]\nfilename=x\nnice=20\n", 3, "-20 to 19"},
	{"[a]\nfilename=x\nkb_base=1000\n", 3, "kb_base=1000"},
	{"[a]\nfilename=x\ncmd_type=scsi\n", 3, "cmd_type=scsi"},
	{"[a]\nfilename=x\nend_fsync=1\n", 3, "flushes and hints are not sent"},
	{"[a]\nioengine=cpuio\ncpuload=50\n", 0, "[a] has ioengine=cpuio"},
	{"[a]\nfilename=x\nbs=0\n", 3, "makes no sense"},
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
	{"[a]\nfilename=x\nioengine=fast\n", 3, "there is: io_uring libaio"},
	{"[a]\nfilename=x\nhipri\nsqthread_poll\n", 1, "exclude each other"},
	{"[a]\nfilename=x\nverify=md7\n", 3, "verify=md7 is not supported; there is: xxh3"},
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
	{"[a]\nfilename=x\ninclude other.fio\n", 3, "include: cannot open"},
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
				   "latency_target=1\n"
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
	} faults[] = {{2, "'latency_target'"},
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

	assert_int_equal(read_text("[a]\nopendir=x\n[b]\nfilename=x\nbs=2g\n", &plan), -EINVAL);
	assert_int_equal(told_count, 2);
	assert_non_null(strstr(told[0], ":2: option 'opendir'"));
	assert_non_null(strstr(told[1], ":1: job a: no filename"));
	expect_words(":3: job b: blocks are at most 1g");
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
	expect_words("more than 100 faults: is this a job file?");
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
	expect_refusal(-EINVAL, ":2: the line is longer", read_text(text, &plan));
	memcpy(text, "[", 1);
	memset(text + 1, 'n', BENCH_NAME_BYTES);
	memcpy(text + 1 + BENCH_NAME_BYTES, "]\n", 3);
	expect_refusal(-EINVAL, ":1: the name is longer", read_text(text, &plan));

	expect_refusal(-EINVAL, ":2: the line holds a zero byte",
		       read_bytes("[a]\n\0\n", 6, &plan));
	bench_job_init(&global);
	expect_refusal(-ENOENT, path, bench_jobfile_read(path, &global, &plan, tell));
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
