/* SPDX-License-Identifier: MIT */
/*
 * tools/bench/bench.h - spillway bench: jobs, workers and results, and who does what with them
 *
 *   bench_options.c   one table of options, for the command line and for job files
 *   bench_values.c    sizes, times, ranges as fio writes them
 *   bench_jobfile.c   fio's job files
 *   bench_offsets.c   which block comes next
 *   bench_verify.c    blocks that prove where and when they were written
 *   bench_crc32c.c    one of the checksums that they carry
 *   bench_backlog.c   what is to be read back while writing goes on
 *   bench_worker.c    the loop of one job on devices
 *   bench_store.c     the loop of one job on a store
 *   bench_timer.c     when measuring begins and ends, and what CPU time it took
 *   bench_devices.c   every device once: refused for safety, or opened
 *   bench_run.c       threads, and the order of jobs
 *   bench_live.c      the progress line, and the samples of bandwidth over time
 *   bench_report.c    results as text
 *   bench_json.c      results as JSON and terse lines, with fio's keys
 */
#ifndef SPW_BENCH_H
#define SPW_BENCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include <spillway/engine.h>
#include <spillway/store.h>

#include "util/histogram.h"

#define BENCH_NAME_BYTES     64
#define BENCH_FILENAME_BYTES 4096
#define BENCH_FILES_MAX      SPW_QUEUE_DEVICES_MAX
#define BENCH_JOBS_MAX       1024u

/* ---- Options --------------------------------------------------------------------------------- */

enum bench_rw {
	BENCH_READ,
	BENCH_WRITE,
	BENCH_RANDREAD,
	BENCH_RANDWRITE,
	BENCH_RW,
	BENCH_RANDRW,
};

enum bench_level {
	BENCH_LEVEL_ENGINE,
	BENCH_LEVEL_STORE,
};

enum bench_verify {
	BENCH_VERIFY_NONE,
	BENCH_VERIFY_XXH3,
	BENCH_VERIFY_CRC32C,
};

#define BENCH_NUMA_ANY UINT32_MAX

/* One job as its section describes it; numjobs workers run it. Copied to inherit. */
struct bench_job {
	char name[BENCH_NAME_BYTES];
	/* by which --section chooses it: in a job file, name= changes the name alone */
	char section[BENCH_NAME_BYTES];
	/* colon separated; a backslash makes a colon part of a name */
	char filename[BENCH_FILENAME_BYTES];
	uint32_t rw; /* enum bench_rw */
	/* sequential: added to the position after each transfer, "rw=read:-2m" */
	int64_t skip_bytes;
	uint64_t block_bytes_min, block_bytes_max;
	uint64_t size_bytes;   /* of the whole job, over all its files; 0: all there is */
	uint32_t size_percent; /* of each file, instead of size_bytes; 0: not given */
	uint64_t offset_bytes;
	uint64_t offset_increment_bytes; /* from one worker of the job to the next */
	uint64_t align_bytes;            /* of random offsets; 0: the smallest block */
	uint64_t runtime_ns;             /* 0: no limit */
	uint64_t ramp_ns;
	uint64_t rate_bytes; /* per second and direction; 0: no limit */
	uint64_t randseed;
	uint64_t object_bytes;
	uint32_t iodepth, submit_batch, complete_min, numjobs, read_percent;
	uint32_t verify, backend, level, stripe;
	uint32_t verify_backlog,
		/* in writes; 0: read back at the end; as many as verify_backlog */
		verify_backlog_batch;
	uint32_t numa_node;
	bool time_based, hipri, sqthread_poll, fixedbufs, group_reporting, stonewall, norandommap;
	bool scramble_buffers;
	bool no_checksums; /* of a store */
	bool satisfied;    /* where options go that say what spillway does anyway: direct=1 */
	char description[256];
};

void bench_job_init(struct bench_job *job);

/**
 * bench_option_set - set one option by its name, as fio spells it; dashes and underscores are the
 * same @value: NULL when none was written: allowed for flags
 *
 * Return: 0; -EINVAL with the words in spw_last_error().
 */
int bench_option_set(struct bench_job *job, const char *name, const char *value);

bool bench_option_exists(const char *name);

/* A flag needs no value, so the next argument of the command line is not its value. */
bool bench_option_is_flag(const char *name);

/* What cannot be said of one option alone. Return: 0; -EINVAL. */
int bench_job_check(const struct bench_job *job);

void bench_options_print(FILE *out);

const char *bench_rw_name(uint32_t rw);
bool bench_rw_is_random(uint32_t rw);
bool bench_rw_reads(uint32_t rw);
bool bench_rw_writes(uint32_t rw);

/* Return: 0; -EINVAL or -ERANGE with the words in spw_last_error(). */
int bench_parse_size(const char *text, uint64_t *bytes);
int bench_parse_time(const char *text, uint64_t *ns);
int bench_parse_count(const char *text, uint64_t *count);

/* ---- Job files ------------------------------------------------------------------------------- */

struct bench_plan {
	struct bench_job *jobs;
	unsigned count;
};

int bench_plan_add(struct bench_plan *plan, const struct bench_job *job);
void bench_plan_free(struct bench_plan *plan);

/**
 * bench_jobfile_read - add the jobs of a file in fio's format
 * @global: what every job starts from; [global] sections add to it
 * @tell:   given the words of every fault but the last, with file and line
 *
 * Reads on after a fault, up to 100 of them; then @plan holds the jobs that have none. Of what does
 * not go together in one job the first is a fault, and nothing if one of its options is faulty by
 * itself.
 *
 * Return: 0; -EINVAL or -ERANGE, with the last fault in spw_last_error(); or what opening and
 * reading the file gives.
 */
int bench_jobfile_read(const char *path, struct bench_job *global, struct bench_plan *plan,
		       void (*tell)(const char *fault));

/* ---- Offsets --------------------------------------------------------------------------------- */

uint64_t bench_percent_of(uint64_t whole, uint32_t percent);

struct bench_random {
	uint64_t state;
};

uint64_t bench_random_next(struct bench_random *random);

/* A well mixed number that depends on both: the same for the same arguments, in every run. */
uint64_t bench_mix(uint64_t key, uint64_t value);

/* Every slot of [0, slots) exactly once, in an order that the key decides; needs no memory. */
struct bench_shuffle {
	uint64_t slots, key;
	unsigned left_bits, right_bits;
};

void bench_shuffle_init(struct bench_shuffle *shuffle, uint64_t slots, uint64_t key);
uint64_t bench_shuffle_at(const struct bench_shuffle *shuffle, uint64_t index);

/*
 * The part of one file that a job uses, and how far it has come. A pass moves as many bytes as it
 * has: sequential transfers follow one another (reads and writes of a mix each from the start),
 * wrapping at both ends if they skip; random ones touch every slot of the largest block size once,
 * like fio with its random map, but where fio lets blocks of a range start at any multiple of the
 * smallest, here they start at slots. What transfer @index of pass @pass is depends on nothing but
 * the seed, so that a pass can be gone over again to verify it.
 */
struct bench_region {
	uint64_t start_bytes, len_bytes; /* a multiple of the smallest block */
	uint64_t block_bytes_min, block_bytes_max;
	uint64_t seed, pass, index;
	int64_t skip_bytes;
	uint64_t position_bytes[2]; /* sequential: per direction, from the start */
	uint64_t issued_bytes;      /* sequential: of this pass, both directions */
	bool random, repeats;       /* repeats: norandommap */
	struct bench_shuffle shuffle;
};

/**
 * bench_region_place - the part of a file that @job uses, one of @files files
 * Return: 0; -EINVAL the blocks do not fit the device's; -ENOSPC the file is too short.
 */
int bench_region_place(struct bench_region *region, const struct bench_job *job, const char *path,
		       const struct spw_geometry *geometry, unsigned files, uint64_t seed);
void bench_region_start_pass(struct bench_region *region, uint64_t pass);

/* The next transfer of the pass. Return: false when the pass has ended. */
bool bench_region_next(struct bench_region *region, unsigned direction, uint64_t *offset_bytes,
		       uint32_t *len_bytes);

/* ---- Results --------------------------------------------------------------------------------- */

enum bench_direction {
	BENCH_DIR_READ,
	BENCH_DIR_WRITE,
	BENCH_DIRECTIONS,
};

#define BENCH_DEPTH_LEVELS 7

struct bench_direction_stats {
	uint64_t ios, bytes;
	uint64_t runtime_ns;
	struct spw_summary submit_ns;     /* slat: from starting on it until the kernel has it */
	struct spw_histogram complete_ns; /* clat: from then until it is done */
	struct spw_summary total_ns;
	struct spw_summary bandwidth_kib, iops; /* samples of half a second */
};

struct bench_stats {
	struct bench_direction_stats direction[BENCH_DIRECTIONS];
	uint64_t depth_levels[BENCH_DEPTH_LEVELS]; /* 1, 2, 4 ... >= 64 in flight when issued */
	/* 0, 4, 8 ... >= 64 */
	uint64_t submit_levels[BENCH_DEPTH_LEVELS], complete_levels[BENCH_DEPTH_LEVELS];
	uint64_t runtime_ns, user_ns, system_ns;
	uint64_t context_switches, faults_major, faults_minor;
	uint64_t blocks_verified;
	struct spw_queue_stats queue;
	struct spw_store_stats store;
	int error; /* 0 or the negative errno that ended the job */
	char error_text[512];
	char description[256]; /* the backend in words */
};

void bench_stats_merge(struct bench_stats *to, const struct bench_stats *from);

/* ---- Running --------------------------------------------------------------------------------- */

struct bench_drive_share {
	char path[256];
	uint64_t bytes_written, bytes_read;
	uint32_t in_flight_max, depth; /* of the queue; the first, of the whole run */
};

/* One thread that runs a job. */
struct bench_worker {
	const struct bench_job *job;
	unsigned index;    /* of this worker among those of its job */
	unsigned group;    /* fio's groupid: counts stonewalls */
	unsigned sequence; /* over all workers of the run: keeps seeds apart */
	struct spw_device *devices[BENCH_FILES_MAX];
	char *paths[BENCH_FILES_MAX]; /* owned */
	unsigned devices_count;
	struct spw_log log;
	atomic_bool *stop;
	struct bench_gate *gate; /* all workers of a wave begin together */
	pthread_t thread;
	bool started;
	struct bench_drive_share *shares; /* store level: per drive */
	unsigned shares_count;
	struct bench_stats stats;

	/*
	 * For the progress line: written by the worker with relaxed stores, read by the main
	 * thread.
	 */
	_Atomic uint64_t live_bytes[BENCH_DIRECTIONS], live_ios[BENCH_DIRECTIONS];
	_Atomic uint64_t live_start_ns; /* 0: still ramping up */
	_Atomic uint64_t live_total_bytes;
	atomic_bool live_ended;
};

/* Workers prepare, wait here, and begin when the last one is ready or has failed. */
struct bench_gate {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned waiting, ended;
	bool open;
};

void bench_gate_init(struct bench_gate *gate);
void bench_gate_wait(struct bench_gate *gate); /* a worker is ready */
void bench_gate_end(struct bench_gate *gate);  /* a worker has ended */
/* Return: how many workers have ended when that is @count, or at @until_ns (monotonic). */
unsigned bench_gate_watch(struct bench_gate *gate, unsigned count, uint64_t until_ns);

/* Everything of one command line. */
struct bench_devices;

struct bench_run {
	struct bench_plan plan;
	struct bench_worker *workers;
	unsigned workers_count;
	struct bench_devices
		/*
		 * kept open from run to run by the caller, who closes them; NULL: this run has its
		 * own
		 */
		*devices;
	bool allow_destructive;
	bool verbose;
	bool quiet; /* no progress line */
	bool interrupted;
	uint64_t start_time_ms; /* since the epoch */
	uint64_t elapsed_ns;
	uint64_t process_user_ns, process_system_ns; /* of all threads, kernel workers included */
};

/*
 * Return: 0 also when jobs failed (their stats say so); -EBUSY, -EEXIST, -ESPIPE refused for
 * safety; -ENOTUNIQ a job names a drive twice; else a negative errno.
 */
int bench_run(struct bench_run *run);
void bench_run_free(struct bench_run *run);

int bench_worker_run(struct bench_worker *worker);       /* on devices */
int bench_store_worker_run(struct bench_worker *worker); /* on a store */

/* Split a colon separated list; names are to be freed. Return: how many; -EINVAL; -ENOMEM. */
int bench_split_filename(const char *filename, char *paths[BENCH_FILES_MAX]);

/* What both loops share: the clock of a job, its limits and its accounts. */
struct bench_timer {
	uint64_t begin_ns; /* of everything, ramp included */
	uint64_t start_ns; /* of what is measured */
	uint64_t end_ns;   /* when to stop; UINT64_MAX: no limit */
	uint64_t user_ns, system_ns;
	uint64_t context_switches, faults_major, faults_minor;
	bool ramping;
};

void bench_timer_begin(struct bench_timer *timer, struct bench_worker *worker);
/* Return: true when the job's time is up or it is to stop. Ends the ramp when that is over. */
bool bench_timer_expired(struct bench_timer *timer, struct bench_worker *worker, uint64_t now_ns);
void bench_timer_end(struct bench_timer *timer, struct bench_worker *worker);
void bench_worker_live(struct bench_worker *worker);
/*
 * The job has ended with @result. Its words are the last error's, unless it noted some before.
 * Return: @result.
 */
int bench_worker_ended(struct bench_worker *worker, int result);
unsigned bench_depth_level(unsigned in_flight);
unsigned bench_batch_level(unsigned batch);

/* ---- Verification ---------------------------------------------------------------------------- */

/* What all blocks of a job have in common. */
struct bench_units {
	enum bench_verify checksum;
	size_t unit_bytes;
	uint64_t seed;
};

/*
 * Fill @len bytes that go to @offset with units, each with a header that says where, when and by
 * whom.
 */
void bench_verify_fill(const struct bench_units *units, void *buf, size_t len,
		       uint64_t offset_bytes, uint64_t generation);

#define BENCH_GENERATION_ANY UINT64_MAX

/* Return: 0; -EBADMSG with the words in spw_last_error(). */
int bench_verify_check(const struct bench_units *units, const void *buf, size_t len,
		       uint64_t offset_bytes, uint64_t generation, const char *path);

/* ---- Progress and reports -------------------------------------------------------------------- */

struct bench_live;

struct bench_live *bench_live_new(const struct bench_run *run);
/* Wait until all @count workers have ended; meanwhile take samples and draw the line. */
void bench_live_watch(struct bench_live *live, struct bench_gate *gate,
		      struct bench_worker *workers, unsigned count);
void bench_live_free(struct bench_live *live);

/* Results are reported per job, or merged per group: an entry of the report. */
struct bench_entry {
	const struct bench_job *job;
	unsigned group, workers;
	struct bench_stats stats;
};

/* Return: how many entries, to be freed with free(); -ENOMEM. */
int bench_entries(const struct bench_run *run, struct bench_entry **entries);

extern const double bench_percentiles[];
extern const unsigned bench_percentiles_count;

int bench_report_text(const struct bench_run *run, FILE *out);
json_t *bench_report_json(const struct bench_run *run);
int bench_report_terse(const struct bench_run *run, FILE *out);

#endif
