/* SPDX-License-Identifier: MIT */
/* tools/bench/bench.h - spillway bench: jobs, workers and results, and who does what with them */
#ifndef SPW_BENCH_H
#define SPW_BENCH_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <jansson.h>

#include <spillway/engine.h>
#include <spillway/store.h>

#include "tools/ui/tool.h"
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
	uint32_t verify, backend, level, stripe, workers;
	/* in writes; 0: read back at the end; 0: as many as verify_backlog */
	uint32_t verify_backlog, verify_backlog_batch;
	uint32_t numa_node;             /* BENCH_NUMA_ANY: none named */
	uint64_t null_bytes_per_second; /* of each such drive; 0: transfers end at once */
	uint32_t drives;                /* how many of them */
	bool time_based, hipri, sqthread_poll, fixedbufs, group_reporting, stonewall, norandommap;
	bool scramble_buffers;
	bool no_checksums; /* of a store */
	bool null;         /* on drives of bench_null_make() */
	bool satisfied;    /* where options go that say what spillway does anyway: direct=1 */
	char description[256];
};

void bench_job_init(struct bench_job *job);

/* @value: NULL when none was written: allowed for flags. Return: 0; -EINVAL, in words. */
int bench_option_set(struct bench_job *job, const char *name, const char *value);

bool bench_option_exists(const char *name);
/* Is it what somebody typed, but for dashes and underscores? */
bool bench_option_same(const char *typed, const char *name);

/* A flag needs no value, so the next argument of the command line is not its value. */
bool bench_option_is_flag(const char *name);

/* What cannot be said of one option alone. Return: 0; -EINVAL. */
int bench_job_check(const struct bench_job *job);

void bench_options_each(tool_show *show, void *context);

const char *bench_rw_name(uint32_t rw);
const char *bench_backend_name(uint32_t backend);
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
void bench_random_fill(uint64_t seed, void *bytes, size_t len);

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
#define BENCH_UNWRITTEN_UNKNOWN UINT64_MAX

/*
 * How many bytes of a part of a file or device were never written, or were discarded since, so that
 * reads of them measure nothing; BENCH_UNWRITTEN_UNKNOWN: that cannot be asked.
 */
uint64_t bench_unwritten(const char *path, uint64_t offset_bytes, uint64_t len_bytes);

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
	int error; /* 0 or the negative errno that ended the job */
	char error_text[512];
	char description[256]; /* the backend in words */
};

/* ---- Running --------------------------------------------------------------------------------- */

/* What a worker had moved when last looked at, and its rates at all looks. */
struct bench_sample {
	uint64_t bytes[BENCH_DIRECTIONS], ios[BENCH_DIRECTIONS];
	uint64_t time_ns, start_ns; /* when looked; when measuring began */
	struct spw_summary bandwidth[BENCH_DIRECTIONS], iops[BENCH_DIRECTIONS];
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
	struct bench_gate *gate; /* all workers of a wave begin together */
	pthread_t thread;
	bool started;
	struct bench_region *regions;   /* engine level: of each device */
	struct spw_drive_stats *drives; /* store level: what each has moved; or NULL */
	uint64_t unwritten_bytes;       /* of what it reads, when it began, as far as is known */
	struct bench_stats stats;

	/* Progress: written by the worker with relaxed stores, read by the main thread. */
	_Atomic uint64_t live_bytes[BENCH_DIRECTIONS], live_ios[BENCH_DIRECTIONS];
	_Atomic uint64_t live_start_ns; /* of measuring; 0: not yet */
	_Atomic uint64_t live_total_bytes;
	atomic_bool live_ended;
	struct bench_sample sample; /* the main thread's */
};

/* Workers prepare, wait here, and begin when the last one is ready or has failed. */
struct bench_gate {
	sem_t ready, open, end; /* posted once by or for each worker */
	unsigned ended;
};

void bench_gate_init(struct bench_gate *gate);
void bench_gate_wait(struct bench_gate *gate); /* a worker is ready */
void bench_await(sem_t *semaphore);            /* not ended by signals */

struct bench_device {
	char *path; /* as first named */
	bool writes;
	bool is_vfio; /* no node, so no identity but its name */
	struct stat status;
	struct spw_device *device;
};

struct bench_devices {
	struct bench_device *list[BENCH_FILES_MAX];
	unsigned count;
};

/* The device that @path names, added if it is new. NULL: the words are in spw_last_error(). */
struct bench_device *bench_devices_find(struct bench_devices *devices, const char *path);

/**
 * bench_devices_open - check every device that is written, then open all that are not open yet
 * Return: 0; -EBUSY, -EEXIST, -ESPIPE refused for safety; or what probing and opening give. Nothing
 * has been written.
 */
int bench_devices_open(struct bench_devices *devices, bool allow_destructive,
		       const struct spw_log *log);
void bench_devices_close(struct bench_devices *devices);

/* Drives that no transfer touches, of all jobs. */
struct bench_null {
	int fds[SPW_QUEUE_DEVICES_MAX]; /* that keep them */
	unsigned count;
};

/**
 * bench_null_make - make the drives of the jobs that have null, and set the filename of these
 * @null:  set, also after a failure: to be given to bench_null_remove()
 *
 * Return: 0; or what opening a file, or spw_format(), gives.
 */
int bench_null_make(const struct bench_plan *plan, struct bench_null *null);
void bench_null_remove(struct bench_null *null);

/* Everything of one command line. */
struct bench_run {
	struct bench_plan plan;
	struct bench_worker *workers;
	unsigned workers_count;
	/* kept open between runs and closed by the caller; NULL: opened for this run */
	struct bench_devices *devices;
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

/* What a job ends with stands in the worker's stats. */
void bench_worker_run(struct bench_worker *worker);       /* on devices */
void bench_store_worker_run(struct bench_worker *worker); /* on a store */

/* Run this thread on the job's node, if it names one. Return: 0; -EINVAL there is none; -errno. */
int bench_bind_to_node(const struct bench_job *job);

/* Split a colon separated list into the worker's paths. Return: 0; -EINVAL; -ENOMEM. */
int bench_split_filename(const char *filename, struct bench_worker *worker);

/* What both loops share: the clock of a job, its limits and its accounts. */
struct bench_timer {
	uint64_t start_ns;    /* of what is measured */
	uint64_t end_ns;      /* when to stop; UINT64_MAX: no limit */
	uint64_t ramp_end_ns; /* when measuring begins anew; 0: it does not */
	/* by the job's rate: when the next transfer may start, and what a byte adds to that */
	uint64_t due_ns[BENCH_DIRECTIONS];
	double ns_per_byte;
	struct rusage usage; /* at the start */
};

uint64_t bench_timeval_ns(const struct timeval *time);

void bench_timer_begin(struct bench_timer *timer, struct bench_worker *worker);
/* Ends the ramp, too. Return: true when the job's time is up or it is to stop. */
bool bench_timer_expired(struct bench_timer *timer, struct bench_worker *worker, uint64_t now_ns);
/* A transfer has started: when may the next? */
void bench_timer_pace(struct bench_timer *timer, unsigned direction, uint64_t bytes);
/* Sleep until the next transfer of @direction may start; less if the job may have to end. */
void bench_timer_sleep(const struct bench_timer *timer, unsigned direction);
void bench_timer_end(const struct bench_timer *timer, struct bench_worker *worker);
void bench_worker_live(struct bench_worker *worker);
/* Unless @error is 0: the job ends with it, and with its words, if it is the first. */
void bench_worker_failed(struct bench_worker *worker, int error);
/* A transfer has ended. */
void bench_account(struct bench_direction_stats *stats, uint64_t bytes, uint64_t start_ns,
		   uint64_t issue_ns, uint64_t end_ns);
unsigned bench_depth_level(unsigned in_flight);
unsigned bench_batch_level(unsigned batch);

/* ---- Verification ---------------------------------------------------------------------------- */

/* What all blocks of a job have in common. */
struct bench_units {
	enum bench_verify checksum;
	size_t unit_bytes;
	uint64_t seed;
};

/* CRC-32C, as fio has it. @crc: of the bytes before; 0: there are none. */
uint32_t bench_crc32c(uint32_t crc, const void *bytes, size_t len);

/* Fill @len bytes for @offset with units, whose headers say where, when and by whom. */
void bench_verify_fill(const struct bench_units *units, void *buf, size_t len,
		       uint64_t offset_bytes, uint64_t generation);

#define BENCH_GENERATION_ANY UINT64_MAX

/* Return: 0; -EBADMSG with the words in spw_last_error(). */
int bench_verify_check(const struct bench_units *units, const void *buf, size_t len,
		       uint64_t offset_bytes, uint64_t generation, const char *path);

/* ---- Progress and reports -------------------------------------------------------------------- */

/* Wait until all @count workers have ended; meanwhile take samples and draw the line. */
void bench_live_watch(const struct bench_run *run, struct bench_gate *gate,
		      struct bench_worker *workers, unsigned count);

/* Results are reported per job, or merged per group: an entry of the report. */
struct bench_entry {
	const struct bench_job *job;
	unsigned group, workers;
	struct bench_stats stats;
	uint64_t unwritten_bytes;
};

/* Return: how many entries, to be freed with free(); -ENOMEM. */
int bench_entries(const struct bench_run *run, struct bench_entry **entries);

extern const double bench_percentiles[];
extern const unsigned bench_percentiles_count;
extern const char *const bench_depth_names[BENCH_DEPTH_LEVELS],
	*const bench_batch_names[BENCH_DEPTH_LEVELS];

/* fio's coarse classes: completions up to 2, 4, 10 ... 1000 ns, us and ms; up to 2 s; more. */
#define BENCH_LATENCY_CLASSES 30

/* The upper end of a class, in its unit. */
uint64_t bench_latency_limit(unsigned class);
/* Return: how many completions there were. */
uint64_t bench_latency_classes(const struct bench_stats *stats,
			       uint64_t classes[BENCH_LATENCY_CLASSES + 2]);

double bench_percentage(uint64_t part, uint64_t whole);

int bench_report_text(const struct bench_run *run, FILE *out);
int bench_report_terse(const struct bench_run *run, FILE *out);
json_t *bench_report_json(const struct bench_run *run);

#endif
