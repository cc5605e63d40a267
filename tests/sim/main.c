/* SPDX-License-Identifier: MIT */
/*
 * tests/sim/main.c - run many seeds; of one that fails, find the fewest steps that still fail, and
 * write them down
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/sim/sim.h"
#include "util/util.h"

#define JOBS_MAX 64
/* of CPU: a run takes milliseconds, and one that does not end is a violation */
#define SECONDS_PER_RUN 20
#define SHRINK_RUNS     2000
#define SHRINK_SECONDS  60
#define VIOLATED        3
#define ALL_FAULTS      ((1u << SIM_FAULTS) - 1)

/* What a run says of itself: shared with the process that started it, which outlives it. */
struct report {
	_Atomic uint64_t seed; /* of the run under way */
	uint64_t runs, operations, virtual_ns;
	uint64_t injected[SIM_FAULTS];
	char text[512];
};

struct options {
	uint64_t first, seeds;
	unsigned jobs;
	uint32_t faults;
	const char *steps_path, *folder;
	bool quiet;
};

static struct report *reports; /* one per job, and one for shrinking */
static struct report *own;
static _Atomic uint64_t *next_seed;

void sim_fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)vsnprintf(own->text, sizeof(own->text), format, args);
	va_end(args);
	_exit(VIOLATED);
}

static uint64_t real_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- One run ---- */

static void limit_cpu(void)
{
	const struct itimerval limit = {.it_value = {.tv_sec = SECONDS_PER_RUN}};

	(void)setitimer(ITIMER_PROF, &limit, NULL);
}

static void run_steps(const struct sim_config *config, const struct sim_step *steps, unsigned count)
{
	limit_cpu();
	atomic_store(&own->seed, config->seed);
	sim_run(config, steps, count, &own->operations, own->injected);
	own->virtual_ns += sim_now_ns;
	own->runs++;
}

static void run_seed(uint64_t seed, uint32_t faults)
{
	struct sim_step steps[SIM_STEPS_MAX];
	struct sim_config config;

	sim_config_draw(seed, &config);
	run_steps(&config, steps, sim_steps_draw(&config, faults, steps));
}

/* A broken invariant of the library is a violation, too; its words are on the standard error. */
static bool ended_well(struct report *report, int status)
{
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return true;
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF)
		(void)snprintf(report->text, sizeof(report->text),
			       "the run did not end in %d s of CPU", SECONDS_PER_RUN);
	else if (WIFSIGNALED(status) && !report->text[0])
		(void)snprintf(report->text, sizeof(report->text), "signal %d (%s)",
			       WTERMSIG(status), strsignal(WTERMSIG(status)));
	else if (!report->text[0])
		(void)snprintf(report->text, sizeof(report->text), "exit status %d",
			       WEXITSTATUS(status));
	return false;
}

/* ---- Shrinking ---- */

/* Do these steps alone fail too? In a process of their own, whatever they do to it. */
static bool fails(const struct sim_config *config, const struct sim_step *steps, unsigned count)
{
	struct report *report = &reports[JOBS_MAX];
	int status = 0;
	pid_t pid;

	memset(report->text, 0, sizeof(report->text));
	(void)fflush(NULL);
	pid = fork();
	if (pid == 0) {
		own = report;
		if (!sim_trace)
			(void)!freopen("/dev/null", "w", stderr);
		run_steps(config, steps, count);
		exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return false;
	return !ended_well(report, status);
}

/* Delta debugging: leave out ever smaller parts while the rest fails. Return: how many are left. */
static unsigned shrink(const struct sim_config *config, struct sim_step steps[SIM_STEPS_MAX],
		       unsigned count)
{
	uint64_t deadline_ns = real_ns() + UINT64_C(1000000000) * SHRINK_SECONDS;
	struct sim_step fewer[SIM_STEPS_MAX];
	unsigned part = count / 2, runs = 0;

	while (part > 0 && count > 1) {
		bool left_out = false;

		for (unsigned at = 0;
		     at < count && runs < SHRINK_RUNS && real_ns() < deadline_ns;) {
			unsigned len = count - at < part ? count - at : part;

			memcpy(fewer, steps, at * sizeof(*steps));
			memcpy(fewer + at, steps + at + len, (count - at - len) * sizeof(*steps));
			runs++;
			if (count > len && fails(config, fewer, count - len)) {
				count -= len;
				memcpy(steps, fewer, count * sizeof(*steps));
				left_out = true;
			} else {
				at += len;
			}
		}
		if (!left_out || runs >= SHRINK_RUNS || real_ns() >= deadline_ns)
			part /= 2;
		if (part > count / 2)
			part = count / 2;
	}
	return count;
}

static void explain(const struct options *options, uint64_t seed, const char *text)
{
	struct sim_step steps[SIM_STEPS_MAX];
	struct sim_config config;
	unsigned count, left;
	char path[512];

	sim_config_draw(seed, &config);
	count = sim_steps_draw(&config, options->faults, steps);
	printf("seed %" PRIu64 ": %s\n", seed, text);
	if (options->quiet)
		return;
	if (!fails(&config, steps, count)) {
		printf("  it does not fail in a process of its own: run the seeds before it too\n");
		return;
	}
	left = shrink(&config, steps, count);
	(void)fails(&config, steps, left);
	(void)snprintf(path, sizeof(path), "%s/sim-%" PRIu64 ".steps",
		       options->folder ? options->folder : ".", seed);
	if (sim_steps_write(path, seed, reports[JOBS_MAX].text, steps, left))
		printf("  cannot write %s: %s\n", path, strerror(errno));
	printf("  %u of %u steps are enough: %s\n", left, count, reports[JOBS_MAX].text);
	printf("  %s holds them; again: make sim SEED=%" PRIu64 ", or make sim STEPS=%s\n", path,
	       seed, path);
}

/* ---- Many runs ---- */

static void work(const struct options *options)
{
	uint64_t seed;

	while ((seed = atomic_fetch_add(next_seed, 1)) < options->first + options->seeds)
		run_seed(seed, options->faults);
	exit(0);
}

static pid_t start_job(const struct options *options, unsigned job)
{
	pid_t pid;

	(void)fflush(NULL);
	pid = fork();
	if (pid == 0) {
		own = &reports[job];
		if (options->quiet)
			(void)!freopen("/dev/null", "w", stderr);
		work(options);
	}
	if (pid < 0) {
		perror("sim: fork");
		exit(2);
	}
	return pid;
}

/* Return: whether all seeds ended well. The first that does not ends them all. */
static bool run_all(const struct options *options)
{
	pid_t pids[JOBS_MAX] = {0};
	unsigned failed = 0, running = options->jobs;
	uint64_t seed = 0;
	char text[512] = "";

	atomic_store(next_seed, options->first);
	for (unsigned job = 0; job < options->jobs; job++)
		pids[job] = start_job(options, job);
	while (running > 0) {
		int status;
		pid_t pid = waitpid(-1, &status, 0);
		unsigned job = 0;

		if (pid < 0)
			break;
		while (job < options->jobs && pids[job] != pid)
			job++;
		if (job == options->jobs)
			continue;
		running--;
		if (ended_well(&reports[job], status))
			continue;
		/* Of several the lowest seed, whichever was faster: the others finish theirs. */
		atomic_store(next_seed, options->first + options->seeds);
		if (failed++ == 0 || atomic_load(&reports[job].seed) < seed) {
			seed = atomic_load(&reports[job].seed);
			memcpy(text, reports[job].text, sizeof(text));
		}
	}
	if (failed)
		explain(options, seed, text);
	return failed == 0;
}

/* For the table of docs/generated/figures.md: after seeds of which none failed. */
static void write_figures(const struct options *options, const struct report *sum)
{
	uint64_t least = UINT64_MAX;
	char path[4096];
	FILE *file;

	for (unsigned i = 0; i < SIM_FAULTS; i++)
		least = sum->injected[i] < least ? sum->injected[i] : least;
	(void)snprintf(path, sizeof(path), "%s/sim.json", options->folder);
	file = fopen(path, "w");
	if (!file) {
		(void)fprintf(stderr, "sim: cannot write %s: %s\n", path, strerror(errno));
		return;
	}
	(void)fprintf(file,
		      "{\"seeds\": %" PRIu64 ", \"operations\": %" PRIu64
		      ", \"seconds\": %.0f, \"kinds\": %u, \"least\": %" PRIu64 "}\n",
		      sum->runs, sum->operations, (double)sum->virtual_ns * 1e-9,
		      (unsigned)SIM_FAULTS, least);
	(void)fclose(file);
}

static void summarize(const struct options *options, uint64_t began_ns, bool good)
{
	struct report sum = {0};

	for (unsigned job = 0; job < options->jobs; job++) {
		sum.runs += reports[job].runs;
		sum.operations += reports[job].operations;
		sum.virtual_ns += reports[job].virtual_ns;
		for (unsigned i = 0; i < SIM_FAULTS; i++)
			sum.injected[i] += reports[job].injected[i];
	}
	for (unsigned i = 0; i < SIM_FAULTS && !options->quiet; i++)
		printf("  %-12s %10" PRIu64 "  %s\n", sim_fault_names[i], sum.injected[i],
		       sim_fault_texts[i]);
	printf("sim: %" PRIu64 " seeds from %" PRIu64 ", %" PRIu64
	       " operations, %.0f s of simulated time, in %.1f s\n",
	       sum.runs, options->first, sum.operations, (double)sum.virtual_ns * 1e-9,
	       (double)(real_ns() - began_ns) * 1e-9);
	if (good && options->folder && !options->quiet)
		write_figures(options, &sum);
}

static int replay(const struct options *options)
{
	struct sim_step steps[SIM_STEPS_MAX];
	struct sim_config config;
	unsigned count;
	uint64_t seed;
	int rc = sim_steps_read(options->steps_path, &seed, steps, &count);

	if (rc) {
		(void)fprintf(stderr, "sim: %s: %s\n", options->steps_path, strerror(-rc));
		return 2;
	}
	sim_config_draw(seed, &config);
	if (fails(&config, steps, count)) {
		printf("%s: %s\n", options->steps_path, reports[JOBS_MAX].text);
		return 1;
	}
	printf("%s: %u steps, nothing is violated\n", options->steps_path, count);
	return 0;
}

/* ---- Options ---- */

static void usage(void)
{
	printf("usage: sim [--seeds N] [--first SEED] [--seed SEED] [--faults KIND,...] [--jobs N] "
	       "[--steps FILE]\n"
	       "           [--out FOLDER] [--mutate NAME] [--quiet] [--trace] [--list]\n");
}

static void list(void)
{
	static const char *const texts[SIM_MUTATIONS] = {[SIM_MUTATION_NONE] = "",
#define SIM_MUTATION_TEXT(name, word, text) [SIM_MUTATION_##name] = text,
							 SIM_MUTATION_LIST(SIM_MUTATION_TEXT)
#undef SIM_MUTATION_TEXT
	};

	for (unsigned i = 0; i < SIM_FAULTS; i++)
		printf("fault    %-18s %s\n", sim_fault_names[i], sim_fault_texts[i]);
	for (unsigned i = 1; i < SIM_MUTATIONS; i++)
		printf("mutation %-18s %s\n", sim_mutation_names[i], texts[i]);
}

static bool parse_faults(char *text, uint32_t *faults)
{
	char *rest = NULL;

	*faults = 0;
	if (strcmp(text, "none") == 0)
		return true;
	for (char *word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
		unsigned fault = 0;

		while (fault < SIM_FAULTS && strcmp(word, sim_fault_names[fault]) != 0)
			fault++;
		if (fault == SIM_FAULTS)
			return false;
		*faults |= 1u << fault;
	}
	return *faults != 0;
}

static bool parse_mutation(const char *text)
{
	for (unsigned i = 0; i < SIM_MUTATIONS; i++)
		if (strcmp(text, sim_mutation_names[i]) == 0) {
			sim_mutation = (enum sim_mutation)i;
			return true;
		}
	return false;
}

static bool parse_number(const char *text, uint64_t *number)
{
	char *end;

	errno = 0;
	*number = strtoull(text, &end, 10);
	return errno == 0 && end != text && *end == '\0';
}

static bool take_option(struct options *options, int option)
{
	uint64_t number = 0;
	bool good = true;

	switch (option) {
	case 'n': good = parse_number(optarg, &options->seeds); break;
	case 'f': good = parse_number(optarg, &options->first); break;
	case 's':
		good = parse_number(optarg, &options->first);
		options->seeds = 1;
		break;
	case 'k': good = parse_faults(optarg, &options->faults); break;
	case 'j':
		good = parse_number(optarg, &number) && number >= 1 && number <= JOBS_MAX;
		options->jobs = (unsigned)number;
		break;
	case 'S': options->steps_path = optarg; break;
	case 'o': options->folder = optarg; break;
	case 'm': good = parse_mutation(optarg); break;
	case 'q': options->quiet = true; break;
	case 't': sim_trace = true; break;
	case 'l': list(); exit(0);
	case 'h': usage(); exit(0);
	default: good = false;
	}
	if (!good)
		usage();
	return good;
}

static bool parse(int argc, char **argv, struct options *options)
{
	static const struct option names[] = {
		{"seeds", required_argument, NULL, 'n'},
		{"first", required_argument, NULL, 'f'},
		{"seed", required_argument, NULL, 's'},
		{"faults", required_argument, NULL, 'k'},
		{"jobs", required_argument, NULL, 'j'},
		{"steps", required_argument, NULL, 'S'},
		{"out", required_argument, NULL, 'o'},
		{"mutate", required_argument, NULL, 'm'},
		{"quiet", no_argument, NULL, 'q'},
		{"trace", no_argument, NULL, 't'},
		{"list", no_argument, NULL, 'l'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	int option;

	while ((option = getopt_long(argc, argv, "", names, NULL)) != -1)
		if (!take_option(options, option))
			return false;
	return optind == argc;
}

int main(int argc, char **argv)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	struct options options = {.first = 1,
				  .seeds = 2000,
				  .jobs = cpus > 0 && cpus < JOBS_MAX ? (unsigned)cpus : 1,
				  .faults = ALL_FAULTS};
	uint64_t began_ns = real_ns();
	bool good;

	if (!parse(argc, argv, &options))
		return 2;
	reports = mmap(NULL, (JOBS_MAX + 1) * sizeof(*reports) + sizeof(*next_seed),
		       PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	SPW_ASSERT(reports != MAP_FAILED);
	next_seed = (_Atomic uint64_t *)(void *)&reports[JOBS_MAX + 1];
	if (options.steps_path)
		return replay(&options);
	good = run_all(&options);
	summarize(&options, began_ns, good);
	return good ? 0 : 1;
}
