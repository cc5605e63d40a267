/* SPDX-License-Identifier: MIT */
/* tools/cmd_bench.c - spillway bench: run the jobs of a command line in fio's terms */
#include "tools/ui/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench/bench.h"
#include "tools/ui/stop.h"
#include "tools/tune_file.h"
#include "util/util.h"

struct command_line {
	struct bench_run run;
	struct bench_job global; /* options before the first --name */
	struct bench_job job;    /* the job of the last --name */
	bool in_job;
	const char *jobfiles[64];
	unsigned jobfiles_count;
	bool json, terse;
	bool fio_options;   /* --fio-options, allowed only without other options */
	const char *output; /* the file to write results to, or NULL */
};

static int end_job(struct command_line *line)
{
	int result;

	if (!line->in_job)
		return 0;
	line->in_job = false;
	if (line->job.foreign_engine[0] != '\0')
		return spw_error(-EINVAL, "job %s: ioengine=%s is not one of spillway's",
				 line->job.name, line->job.foreign_engine);
	result = bench_job_check(&line->job);
	return result == 0 ? bench_plan_add(&line->run.plan, &line->job) : result;
}

/* Begin a job. As in fio, options after a --name belong to that job, earlier ones to all jobs. */
static int begin_job(struct command_line *line, const char *name)
{
	int result = end_job(line);

	if (result != 0)
		return result;
	if (!name || name[0] == '\0' || strlen(name) >= BENCH_NAME_BYTES)
		return spw_error(-EINVAL, "--name needs a name of at most %d bytes",
				 BENCH_NAME_BYTES - 1);
	if (strcmp(name, "global") == 0)
		return 0;
	line->job = line->global;
	line->in_job = true;
	(void)snprintf(line->job.name, sizeof(line->job.name), "%s", name);
	(void)snprintf(line->job.section, sizeof(line->job.section), "%s", name);
	return 0;
}

static int set_format(struct command_line *line, const char *value)
{
	line->json = value && strcmp(value, "json") == 0;
	line->terse = value && strcmp(value, "terse") == 0;
	if (line->json || line->terse || (value && strcmp(value, "normal") == 0))
		return 0;
	return spw_error(-EINVAL, "--output-format=%s: there is normal, json and terse",
			 value ? value : "");
}

static int set_output(struct command_line *line, const char *value)
{
	if (!value || value[0] == '\0')
		return spw_error(-EINVAL, "--output needs the name of a file");
	line->output = value;
	return 0;
}

static int add_section(struct command_line *line, const char *value)
{
	if (!value || value[0] == '\0')
		return spw_error(-EINVAL, "--section needs the name of a section of the job file");
	if (line->run.plan.sections_count == BENCH_SECTIONS_MAX)
		return spw_error(-EINVAL, "more than %u sections", BENCH_SECTIONS_MAX);
	line->run.plan.sections[line->run.plan.sections_count++] = value;
	return 0;
}

/* ---- The options of the run ---- */

static int apply_tuned(struct command_line *line, const char *value)
{
	return tune_file_apply(value, line->in_job ? &line->job : &line->global);
}

#define LINE_FLAG(field) NULL, offsetof(struct command_line, field)

static const struct own_option {
	const char *name;
	int (*set)(struct command_line *line, const char *value); /* NULL: a flag */
	size_t flag;
	const char *argument, *help; /* help NULL: listed with the options of a job */
} own_options[] = {
	{"name", begin_job, 0, "NAME", NULL},
	{"tuned", apply_tuned, 0, "[=FILE]",
	 "take bs, iodepth, hipri and backend from 'spillway tune' for the rw before"},
	{"section", add_section, 0, "NAME",
	 "run only this section of the job files; may be repeated"},
	{"allow-destructive", LINE_FLAG(run.allow_destructive), NULL,
	 "overwrite data, but never a drive in use"},
	{"output-format", set_format, 0, "FORMAT", "normal json terse (default normal)"},
	{"output", set_output, 0, "FILE", "write the report there"},
	{"json", LINE_FLAG(json), NULL, "as --output-format=json"},
	{"fio-options", LINE_FLAG(fio_options), NULL,
	 "print which of fio's options are supported, ignored or refused, and why, and exit"},
	{"quiet", LINE_FLAG(run.quiet), NULL, "no progress line"},
	{"verbose", LINE_FLAG(run.verbose), NULL, "say more on standard error"},
};

static const struct own_option *find_own(const char *name)
{
	for (size_t i = 0; i < SPW_ARRAY_LEN(own_options); i++)
		if (bench_option_same(name, own_options[i].name))
			return &own_options[i];
	return NULL;
}

static int set_own_option(struct command_line *line, const struct own_option *own,
			  const char *value)
{
	if (own->set)
		return own->set(line, value);
	if (value)
		return spw_error(-EINVAL, "--%s takes no value", own->name);
	*(bool *)((char *)line + own->flag) = true;
	return 0;
}

/* "--name=value", "--flag" or "--name value" at argv[*index]. */
static int parse_option(struct command_line *line, int argc, char **argv, int *index)
{
	char name[64];
	const char *text = argv[*index] + 2;
	const char *value = strchr(text, '=');
	size_t len = value ? (size_t)(value - text) : strlen(text);
	const struct own_option *own;
	bool alone; /* the next argument is not its value */

	if (len >= sizeof(name))
		return spw_error(-EINVAL, "option '%s' is not supported", text);
	memcpy(name, text, len);
	name[len] = '\0';
	own = find_own(name);
	alone = own ? !own->set || own->argument[0] == '[' : bench_option_is_flag(name);
	if (value)
		value++;
	else if (!alone && *index + 1 < argc)
		value = argv[++*index];
	if (own)
		return set_own_option(line, own, value);
	return bench_option_set(line->in_job ? &line->job : &line->global, name, value);
}

static int parse_arguments(struct command_line *line, int argc, char **argv)
{
	int result = 0;

	for (int i = 1; i < argc && result == 0; i++)
		if (argv[i][0] == '-' && argv[i][1] == '-')
			result = parse_option(line, argc, argv, &i);
		else if (argv[i][0] == '-')
			result = spw_error(
				-EINVAL,
				"option '%s' is not supported; options begin with two dashes",
				argv[i]);
		else if (line->jobfiles_count == SPW_ARRAY_LEN(line->jobfiles))
			result = spw_error(-EINVAL, "more than %zu job files",
					   SPW_ARRAY_LEN(line->jobfiles));
		else
			line->jobfiles[line->jobfiles_count++] = argv[i];
	return result == 0 ? end_job(line) : result;
}

static int check_sections(const struct bench_plan *plan)
{
	if (plan->count == 0 && plan->sections_count > 0)
		return spw_error(-EINVAL, "--section=%s: there is no such section%s",
				 plan->sections[0],
				 plan->left_out_count > 0 ? " with an engine of spillway's" : "");
	return 0;
}

static void print_fault(const char *fault)
{
	(void)fprintf(stderr, "spillway bench: %s\n", fault);
}

/* Name the sections that fio would run but this command leaves out, so results are incomplete. */
static void tell_left_out(const struct bench_plan *plan)
{
	for (unsigned i = 0; i < plan->left_out_count; i++)
		(void)fprintf(stderr,
			      "spillway bench: section [%s] is left out: ioengine=%s is not one of "
			      "spillway's; the exit status will be %d\n",
			      plan->left_out[i].section, plan->left_out[i].engine, TOOL_FAILED);
}

/* Print once, for all jobs, which options are measured differently than they say. */
static void tell_remarks(const struct bench_plan *plan)
{
	uint32_t said = 0;

	for (unsigned i = 0; i < plan->count; i++)
		said |= plan->jobs[i].remarks;
	for (uint32_t i = 0; i < BENCH_REMARKS; i++)
		if (said >> i & 1)
			(void)fprintf(stderr, "spillway bench: %s\n", bench_remark_words(i));
}

/* Collect jobs of the command line and of job files; without either, the options are one job. */
static int make_plan(struct command_line *line)
{
	int result = 0;

	for (unsigned i = 0; i < line->jobfiles_count && result == 0; i++)
		result = bench_jobfile_read(line->jobfiles[i], &line->global, &line->run.plan,
					    print_fault);
	if (result == 0)
		result = check_sections(&line->run.plan);
	if (result != 0 || line->run.plan.count > 0)
		return result;
	result = begin_job(line, "bench");
	return result == 0 ? end_job(line) : result;
}

static int report(const struct command_line *line)
{
	FILE *out = line->output ? fopen(line->output, "we") : stdout;
	int result = 0;

	if (!out)
		return spw_error_errno(-errno, "cannot write %s", line->output);
	if (!line->json) {
		result = (line->terse ? bench_report_terse : bench_report_text)(&line->run, out);
	} else {
		json_t *document = bench_report_json(&line->run);

		if (!document || json_dumpf(document, out, JSON_INDENT(2)) != 0 ||
		    fputc('\n', out) == EOF)
			result = spw_error(-EIO, "the JSON report could not be written");
		json_decref(document);
	}
	if (fflush(out) != 0 && result == 0)
		result = spw_error_errno(-errno, "cannot write the report");
	if (line->output && fclose(out) != 0 && result == 0)
		result = spw_error_errno(-errno, "cannot write %s", line->output);
	return result;
}

static bool any_has_run(const struct command_line *line)
{
	for (unsigned i = 0; i < line->run.workers_count; i++) {
		const struct bench_direction_stats *done = line->run.workers[i].stats.direction;

		if (done[BENCH_DIR_READ].ios + done[BENCH_DIR_WRITE].ios > 0)
			return true;
	}
	return false;
}

static bool any_has_failed(const struct command_line *line)
{
	for (unsigned i = 0; i < line->run.workers_count; i++)
		if (line->run.workers[i].stats.error != 0)
			return true;
	return false;
}

/* A store that another process has open is a refusal; errors of running jobs are failures. */
static int exit_code(const struct tool_command *command, const struct command_line *line)
{
	bool has_run = any_has_run(line);
	int code = TOOL_DONE;

	for (unsigned i = 0; i < line->run.workers_count; i++) {
		const struct bench_worker *worker = &line->run.workers[i];

		if (worker->stats.error == 0)
			continue;
		(void)fprintf(stderr, "spillway %s: %s: %s\n", command->name, worker->job->name,
			      worker->stats.error_text);
		if (code != TOOL_FAILED)
			code = has_run ? TOOL_FAILED : tool_exit_code(command, worker->stats.error);
	}
	if (code == TOOL_DONE && line->run.interrupted)
		return TOOL_INTERRUPTED;
	return code == TOOL_DONE && line->run.plan.left_out_count > 0 ? TOOL_FAILED : code;
}

static int bench(const struct tool_command *command, struct command_line *line)
{
	bool json = line->json && !line->output;
	int result = line->output ? tool_output_check(line->output) : 0;

	tell_left_out(&line->run.plan);
	if (!line->run.quiet)
		tell_remarks(&line->run.plan);
	tool_stop_catch();
	if (result == 0)
		result = bench_run(&line->run);
	tool_stop_release();
	if (result == -ENOTUNIQ)
		return tool_usage_error(command, "%s", spw_last_error());
	if (result != 0)
		return tool_fail(command, result, json);
	/* A text report with nothing but zeros would hide the error. */
	if (line->json || line->terse || line->output || any_has_run(line) || !any_has_failed(line))
		result = report(line);
	if (result != 0)
		return tool_fail(command, result, false);
	return exit_code(command, line);
}

static int run(const struct tool_command *command, int argc, char **argv)
{
	struct command_line line = {0};
	int result, code;

	if (argc == 2 && strcmp(argv[1], "--fio-options") == 0) {
		bench_fio_print(stdout);
		return TOOL_DONE;
	}
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
			tool_print_help(command, stdout);
			return TOOL_DONE;
		}
	bench_job_init(&line.global);
	result = parse_arguments(&line, argc, argv);
	if (result == 0)
		result = make_plan(&line);
	if (result == 0)
		code = bench(command, &line);
	else if (result == -EINVAL || result == -ERANGE)
		code = tool_usage_error(command, "%s", spw_last_error());
	else
		code = tool_fail(command, result, line.json);
	bench_run_free(&line.run);
	return code;
}

static void print_option_of_a_job(void *context, const struct tool_shown *option)
{
	const char *argument = option->argument ? option->argument : "";
	char left[64];

	(void)snprintf(left, sizeof(left), "--%s%s%s", option->name,
		       argument[0] == '\0' || argument[0] == '[' ? "" : "=", argument);
	tool_print_entry(left, 31, option->help, context);
}

static void print_options(FILE *out)
{
	(void)fprintf(
		out,
		"Options of a job, on the command line and (without the dashes) in job files:\n");
	bench_options_each(print_option_of_a_job, out);
	(void)fprintf(out, "\nOptions of the run:\n");
	for (size_t i = 0; i < SPW_ARRAY_LEN(own_options); i++)
		if (own_options[i].help)
			tool_print_option(own_options[i].name, own_options[i].argument,
					  own_options[i].help, out);
}

static void each_option(tool_show *show, void *context)
{
	bench_options_each(show, context);
	for (size_t i = 0; i < SPW_ARRAY_LEN(own_options); i++)
		if (own_options[i].help)
			show(context, &(struct tool_shown){.name = own_options[i].name,
							   .argument = own_options[i].argument,
							   .help = own_options[i].help});
	show(context,
	     &(struct tool_shown){
		     .name = "", .argument = "FILE", .help = "a job file", .positional = true});
}

const struct tool_command command_bench = {
	.name = "bench",
	.summary = "measure drives or a store, in fio's terms",
	.synopsis = "[JOBFILE...] [--filename=A:B] [--rw=KIND] [--bs=SIZE] [--iodepth=N] ...",
	.description = "Runs fio jobs, from options or job files, on spillway's own engine, and\n"
		       "reports as fio does: text, JSON with fio's keys, or terse lines.\n"
		       "Unsupported options are refused; differences are noted in every report.\n"
		       "A device that holds data is written only with --allow-destructive, one\n"
		       "that is mounted or in use never. With --level=store, --filename names\n"
		       "the drives of a store and the jobs move objects: write puts, read gets\n"
		       "what was put before in reverse order (randread: in random order), rw\n"
		       "repeats training steps (put all, then get and free in reverse order),\n"
		       "randrw puts and gets at the same time.\n",
	.examples = "  spillway bench --filename=/dev/nvme1n1 --rw=randread --bs=4k --iodepth=32 "
		    "--runtime=10 --time-based\n"
		    "  spillway bench --filename=a.img --rw=write --bs=1m --iodepth=8 --size=1g "
		    "--verify=xxh3\n"
		    "  spillway bench fio-jobs/sequential.fio --output-format=json "
		    "--output=result.json\n"
		    "  spillway bench --level=store --filename=a.img:b.img --rw=rw "
		    "--object-size=16m --size=512m\n"
		    "  spillway bench --level=store --null --drives=8 --rw=rw --iodepth=16 "
		    "--time-based --runtime=5\n",
	.run = run,
	.print_options = print_options,
	.each_option = each_option,
};
