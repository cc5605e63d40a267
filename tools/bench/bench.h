/* SPDX-License-Identifier: MIT */
/* tools/bench/bench.h - spillway bench: jobs, workers and results, and who does what with them */
#ifndef SPW_BENCH_H
#define SPW_BENCH_H

#include <pthread.h>
#include <sched.h>
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
#define BENCH_SECTIONS_MAX   64u

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

enum bench_direction {
	BENCH_DIR_READ,
	BENCH_DIR_WRITE,
	BENCH_DIRECTIONS,
};

/* Where random transfers go. */
enum bench_spread_kind {
	BENCH_SPREAD_EVEN,
	BENCH_SPREAD_ZIPF,
	BENCH_SPREAD_PARETO,
	BENCH_SPREAD_NORMAL,
	BENCH_SPREAD_ZONES,       /* their ends are percents of the range */
	BENCH_SPREAD_ZONES_BYTES, /* they are bytes */
};

/* What a job says of the page cache. */
enum bench_direct {
	BENCH_DIRECT_UNSAID,
	BENCH_DIRECT_PAST,
	BENCH_DIRECT_THROUGH,
};

#define BENCH_SHARES_MAX 64

/* This percentage of transfers have this size, or end below this place. */
struct bench_share {
	uint64_t value;
	uint32_t percent;
};

/* How large the transfers of one direction are. */
struct bench_lengths {
	uint64_t min, max;                           /* bytes; min 0: as the job's */
	struct bench_share shares[BENCH_SHARES_MAX]; /* in place of a range */
	unsigned count;                              /* 0: any multiple of min */
};

#define BENCH_PATTERN_BYTES 512

/* Bytes that buffers are filled with, again and again. */
struct bench_pattern {
	unsigned char bytes[BENCH_PATTERN_BYTES];
	unsigned len; /* 0: none */
};

/* Whom the end of a job ends, too. */
enum bench_exit {
	BENCH_EXIT_GROUP,
	BENCH_EXIT_STONEWALL,
	BENCH_EXIT_ALL,
};

/* What was asked for and is done in another way: said in every report. */
enum bench_remark {
	BENCH_REMARK_BUFFERED,
	BENCH_REMARK_SYNCHRONOUS,
	BENCH_REMARK_ENGINE,
	BENCH_REMARK_CHECKSUM,
	BENCH_REMARK_LOGS,
	BENCH_REMARK_OFFLOAD,
	BENCH_REMARK_NOT_VERIFIED,
	BENCH_REMARKS,
};

#define BENCH_NUMA_ANY UINT32_MAX

/* One job as its section describes it; numjobs workers run it. Copied to inherit. */
struct bench_job {
	char name[BENCH_NAME_BYTES];
	/* by which --section chooses it: in a job file, name= changes the name alone */
	char section[BENCH_NAME_BYTES];
	/* colon separated; a backslash makes a colon part of a name */
	char filename[BENCH_FILENAME_BYTES];
	char directory[BENCH_FILENAME_BYTES];  /* before every name; colon separated: by turns */
	char wait_for[BENCH_NAME_BYTES];       /* begin when that job has ended */
	char foreign_engine[BENCH_NAME_BYTES]; /* an engine of fio's that is not ours; or empty */
	uint32_t rw;                           /* enum bench_rw */
	/* sequential: added to the position after each transfer, "rw=read:-2m" */
	int64_t skip_bytes;
	/* of both directions together; and of each, where they differ or have shares */
	uint64_t block_bytes_min, block_bytes_max;
	struct bench_lengths lengths[BENCH_DIRECTIONS];
	uint64_t size_bytes;   /* of the whole job, over all its files; 0: all there is */
	uint32_t size_percent; /* of each file, instead of size_bytes; 0: not given */
	uint64_t file_bytes;   /* of each file; 0: not given */
	uint64_t io_bytes;     /* to move, in part of a pass or in several; 0: one pass */
	uint32_t io_percent;   /* of the size, instead of io_bytes; 0: not given */
	uint32_t loops;        /* passes */
	uint64_t number_ios;   /* transfers at most; 0: no limit */
	uint64_t offset_bytes;
	uint64_t offset_increment_bytes; /* from one worker of the job to the next */
	/* of random offsets; 0: the smallest block */
	uint64_t align_bytes[BENCH_DIRECTIONS];
	uint32_t random_percent[BENCH_DIRECTIONS]; /* the others follow one another */
	uint32_t spread;                           /* enum bench_spread_kind */
	double spread_theta, spread_center;        /* center < 0: none */
	struct bench_share zones[BENCH_DIRECTIONS][BENCH_SHARES_MAX];
	unsigned zones_count[BENCH_DIRECTIONS];
	uint64_t runtime_ns; /* 0: no limit */
	uint64_t ramp_ns;
	uint64_t delay_ns_min, delay_ns_max; /* before it begins */
	/* per second and direction; 0: no limit */
	uint64_t rate_bytes[BENCH_DIRECTIONS], rate_iops[BENCH_DIRECTIONS];
	/* below it the job fails */
	uint64_t rate_min_bytes[BENCH_DIRECTIONS], rate_min_iops[BENCH_DIRECTIONS];
	uint32_t rate_cycle_ms; /* over which the least rate is looked at */
	bool rate_poisson;
	uint32_t think_us, think_blocks;
	uint32_t flow, flow_id, flow_sleep_us; /* flow 0: in none */
	uint32_t exit_what;                    /* enum bench_exit */
	uint64_t randseed;
	uint64_t object_bytes;
	uint32_t iodepth, submit_batch, complete_min, numjobs, read_percent;
	uint32_t verify, backend, level, workers;
	/* in writes; 0: read back at the end; 0: as many as verify_backlog */
	uint32_t verify_backlog, verify_backlog_batch;
	uint64_t verify_interval_bytes; /* of one header; 0: the smallest block */
	struct bench_pattern pattern, verify_pattern;
	uint32_t nrfiles; /* whose names fio makes of the job's, if none are given */
	int32_t nice;
	uint32_t prio, prio_class; /* 0: as this process */
	bool cpus_given, cpus_split;
	cpu_set_t cpus;
	char numa_cpu_nodes[BENCH_NAME_BYTES];
	uint32_t numa_memory;           /* BENCH_NUMA_ANY: of the drives */
	uint32_t numa_node;             /* BENCH_NUMA_ANY: none named */
	uint64_t null_bytes_per_second; /* of each such drive; 0: transfers end at once */
	uint32_t drives;                /* how many of them */
	bool time_based, hipri, sqthread_poll, fixedbufs, group_reporting, stonewall, norandommap;
	/* of what refilled buffers hold: zeros at the end of each chunk; buffers that were there */
	uint32_t compress_percent, dedupe_percent, dedupe_set_percent;
	uint64_t compress_chunk_bytes;
	bool dedupe_set, dedupe_global; /* of a set of buffers, not the last; of all jobs */
	/* sequential: zone_bytes of each range are transferred, then zone_skip_bytes skipped */
	bool strided;
	uint64_t zone_bytes, zone_range_bytes, zone_skip_bytes;
	/* end when the rate is steady for that long: within a limit, or a percent of the mean */
	uint64_t steady_ns, steady_ramp_ns;
	double steady_limit;
	bool steady_percent, steady_bandwidth, steady_slope;
	bool scramble_buffers, zero_buffers, refill_buffers;
	bool do_verify, exitall, new_group, serialize_overlap;
	bool synchronous;  /* an engine that has one transfer in flight, whatever the depth */
	bool null_engine;  /* ioengine=null: what filename says is of no account */
	bool of_file;      /* of a job file: fio would go through the page cache, if not told */
	uint32_t direct;   /* enum bench_direct */
	bool no_checksums; /* of a store */
	bool null;         /* on drives of bench_null_make() */
	uint32_t remarks;  /* a bit each */
	char description[256];
};

void bench_job_init(struct bench_job *job);

/* @value: NULL when none was written: allowed for flags. Return: 0; -EINVAL, in words. */
int bench_option_set(struct bench_job *job, const char *name, const char *value);

bool bench_option_exists(const char *name);
/* Whether they are equal except for dashes and underscores. */
bool bench_option_same(const char *typed, const char *name);

/* A flag needs no value, so the next argument of the command line is not its value. */
bool bench_option_is_flag(const char *name);

/* What cannot be said of one option alone. Return: 0; -EINVAL. */
int bench_job_check(const struct bench_job *job);

/* The bytes that have one header of verify. */
uint64_t bench_job_unit(const struct bench_job *job);

/* What a report says of it, such as that a job was measured past the page cache all the same. */
const char *bench_remark_words(enum bench_remark remark);

/* ---- fio's other options --------------------------------------------------------------------- */

/* An option of fio that no job acts on. */
struct bench_fio_option {
	const char *names; /* separated by blanks */
	enum bench_fio_verdict {
		BENCH_FIO_NO_EFFECT,
		BENCH_FIO_ENGINE, /* of an engine that is not ours: no effect on others */
		BENCH_FIO_REFUSED,
	} verdict;
	uint32_t remark; /* BENCH_REMARKS: none */
	const char *why;
};

/* NULL: fio has no such option, or bench_option_set() acts on it. */
const struct bench_fio_option *bench_fio_option(const char *name);
/* One of fio's engines that run no transfers of ours? */
bool bench_fio_engine(const char *name);
/* What of fio's is taken, has no effect, or is refused and why: a page in Markdown. */
void bench_fio_print(FILE *out);
/* All but what is taken. */
void bench_fio_print_others(FILE *out);

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
int bench_parse_real(const char *text, double *value);

/* "READS,WRITES", or one value for both: each is given to @parse, and one left out is not. */
typedef int bench_parse_part(void *context, unsigned direction, const char *part);
int bench_parse_pair(const char *text, bench_parse_part *parse, void *context);
/* "4k/10:64k/90". */
int bench_parse_split(const char *text, struct bench_lengths *lengths);
/* "4k-64k". */
int bench_parse_range(const char *text, struct bench_lengths *lengths);
/* "60/10:30/20:8/30:2/40": percents of transfers, and of the range or, with @bytes, sizes. */
int bench_parse_zones(const char *text, bool bytes, struct bench_share *zones,
		      unsigned *zones_count);
int bench_parse_cpus(const char *text, cpu_set_t *cpus);
/* 0xdead, 57005, "text", or several of these. */
int bench_parse_pattern(const char *text, struct bench_pattern *pattern);
void bench_pattern_fill(const struct bench_pattern *pattern, void *bytes, size_t len);

/* ---- Job files ------------------------------------------------------------------------------- */

/* A section whose engine runs nothing here. */
struct bench_left_out {
	char section[BENCH_NAME_BYTES];
	char engine[BENCH_NAME_BYTES];
};

struct bench_plan {
	struct bench_job *jobs;
	unsigned count;
	struct bench_left_out *left_out;
	unsigned left_out_count;
	/* of job files these alone; count 0: all */
	const char *sections[BENCH_SECTIONS_MAX];
	unsigned sections_count;
};

/* What follows from several options of it is settled now: so ioengine=sync has one in flight. */
int bench_plan_add(struct bench_plan *plan, const struct bench_job *job);
void bench_plan_free(struct bench_plan *plan);

/**
 * bench_jobfile_read - add the jobs of a file in fio's format
 * @global: what every job starts from; [global] sections add to it
 * @tell:   given the words of every fault but the last, with file and line
 *
 * A section that has an engine of fio's that is not ours goes to the plan's left_out, whatever else
 * is in it. Reads on after a fault, up to 100 of them; then @plan holds the jobs that have none. Of
 * what does not go together in one job the first is a fault, and nothing if one of its options is
 * faulty by itself.
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

/* Where the random transfers of one direction go, in blocks of a range. */
struct bench_spread {
	uint32_t kind; /* enum bench_spread_kind */
	uint64_t blocks, shift;
	double theta, zetan, eta; /* zipf; pareto: theta is its power */
	const struct bench_share *zones;
	unsigned zones_count;
	uint64_t align_bytes; /* of zones in bytes */
};

void bench_spread_init(struct bench_spread *spread, const struct bench_job *job, unsigned direction,
		       uint64_t blocks, uint64_t seed);
uint64_t bench_spread_next(const struct bench_spread *spread, struct bench_random *random);

/*
 * The part of one file that a job uses, and how far it has come. As in fio: a pass moves as many
 * bytes as it has; sequential transfers follow one another, each direction from the start, and end
 * or turn where fio's do if they skip; random ones touch every block once, at a random place that
 * is free, as long as the drawn size or what is free there, unless norandommap or a distribution
 * lets them repeat. What transfer @index of pass @pass is depends on nothing but the seed and the
 * directions before it, so that a pass can be gone over again to verify it.
 */
struct bench_region {
	uint64_t start_bytes, len_bytes; /* a multiple of the smallest block */
	uint64_t file_bytes;             /* all of the file */
	uint64_t unit_bytes;             /* the smallest block */
	struct bench_lengths lengths[BENCH_DIRECTIONS];
	uint64_t align_bytes[BENCH_DIRECTIONS];
	uint32_t random_percent[BENCH_DIRECTIONS];
	uint64_t seed, pass, index;
	int64_t skip_bytes;
	uint64_t last_bytes[BENCH_DIRECTIONS]; /* where the last transfer ended, in the file */
	bool strided;
	uint64_t zone_bytes, zone_range_bytes, zone_skip_bytes; /* as the job's */
	uint64_t base_bytes,
		zone_issued_bytes; /* where the zone begins, and what was moved in it */
	uint64_t issued_bytes;     /* of this pass, both directions */
	bool random, shuffled;     /* shuffled: all blocks are of one size */
	struct bench_shuffle shuffle;
	struct bench_spread spread[BENCH_DIRECTIONS];
	struct bench_random draw;
	uint64_t *used; /* a bit for each unit; NULL: they may repeat, or are shuffled */
	/* a copy, since spreads point at it */
	struct bench_share zones[BENCH_DIRECTIONS][BENCH_SHARES_MAX];
};

/* Of the transfers of one direction: as the job's, unless they have their own. */
struct bench_lengths bench_job_lengths(const struct bench_job *job, unsigned direction);

/**
 * bench_region_place - the part of a file that @job uses, one of @files files
 * @region: to be given to bench_region_remove()
 *
 * Return: 0; -EINVAL the blocks do not fit the device's; -ENOSPC the file is too short; -ENOMEM.
 */
int bench_region_place(struct bench_region *region, const struct bench_job *job, const char *path,
		       const struct spw_geometry *geometry, unsigned files, uint64_t seed);
/* At the start of the same pass. Return: 0; -ENOMEM. */
int bench_region_copy(struct bench_region *region, const struct bench_region *from);
void bench_region_remove(struct bench_region *region);

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

/* Of a job that ends when its rate is steady: its rates, a second each. */
struct bench_steady {
	uint64_t time_ns, moved;
	double *rates;
	unsigned count;
	bool attained;
};

/* One thread that runs a job. */
struct bench_worker {
	const struct bench_job *job;
	unsigned index;    /* of this worker among those of its job */
	unsigned group;    /* fio's groupid: counts stonewalls and new_groups */
	unsigned sequence; /* over all workers of the run: keeps seeds apart */
	struct spw_device *devices[BENCH_FILES_MAX];
	char *paths[BENCH_FILES_MAX]; /* owned */
	unsigned devices_count;
	struct spw_log log;
	struct bench_gate *gate; /* all workers of a wave begin together */
	unsigned wave;           /* counts stonewalls */
	struct bench_run *run;
	struct bench_flow *flow; /* NULL: in none */
	double flow_moved;       /* its own share of that */
	/* engine level: of all regions, or size if that is less; and in all passes */
	uint64_t pass_bytes, limit_bytes;
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
	atomic_bool told_to_end;    /* by the end of a job with exitall */
	struct bench_steady steady; /* the main thread's, of all of a group */
	struct bench_sample sample; /* the main thread's */
};

/* Transfers of the jobs that share a flow, all in all; each has its part of them by its weight. */
struct bench_flow {
	uint32_t id;
	_Atomic uint64_t moved, weights;
};

/* Workers prepare, wait here, and begin when the last one is ready or has failed. */
struct bench_gate {
	sem_t ready, open, end; /* posted once by or for each worker */
	unsigned ended;
	pthread_mutex_t mutex;
	pthread_cond_t changed; /* a worker has ended, or all are to */
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
	struct bench_flow *flows;
	unsigned flows_count;
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

/* Run this thread where and as the job says. Return: 0; -EINVAL there is no such place; -errno. */
int bench_place_thread(const struct bench_worker *worker);
/* The node of its buffers. Return: -1: of the drives. */
int bench_memory_node(const struct bench_job *job);

/* Until the job's delay is over and what it waits for has ended, or the run is to end. */
void bench_await_turn(struct bench_worker *worker);
/* The worker has ended: so may others that wait for it, or that it takes along. */
void bench_worker_ended(struct bench_worker *worker);

/* The jobs' flows. Return: 0; -ENOMEM. */
int bench_flows_make(struct bench_run *run);
/* A transfer may start; it counts. */
bool bench_flow_take(struct bench_worker *worker);
void bench_flow_leave(struct bench_worker *worker);

/* Split a colon separated list into the worker's paths. Return: 0; -EINVAL; -ENOMEM. */
int bench_split_filename(const char *filename, struct bench_worker *worker);
/* Those of its job, in its directory, or as fio names them. Return: as above. */
int bench_name_files(struct bench_worker *worker);

/* What both loops share: the clock of a job, its limits and its accounts. */
struct bench_timer {
	uint64_t start_ns;    /* of what is measured */
	uint64_t end_ns;      /* when to stop; UINT64_MAX: no limit */
	uint64_t ramp_end_ns; /* when measuring restarts; 0: never */
	/* by the job's rate: when the next transfer may start, and what one adds to that */
	uint64_t due_ns[BENCH_DIRECTIONS];
	double ns_per_byte[BENCH_DIRECTIONS], ns_per_io[BENCH_DIRECTIONS];
	struct bench_random random; /* of a rate's random times */
	/* of the least rate: when it is looked at again, and what was moved until the last time */
	uint64_t check_ns;
	uint64_t checked_bytes[BENCH_DIRECTIONS], checked_ios[BENCH_DIRECTIONS];
	struct rusage usage; /* at the start */
};

uint64_t bench_timeval_ns(const struct timeval *time);

void bench_timer_begin(struct bench_timer *timer, struct bench_worker *worker);
/* Ends the ramp, too. Return: true when the job's time is up or it is to stop. */
bool bench_timer_expired(struct bench_timer *timer, struct bench_worker *worker, uint64_t now_ns);
/* A transfer has started: when may the next? */
void bench_timer_pace(struct bench_timer *timer, const struct bench_job *job, unsigned direction,
		      uint64_t bytes);
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

/* ---- Contents -------------------------------------------------------------------------------- */

/* Of all buffers, before the first write; and of one, before each. */
void bench_content_begin(const struct bench_job *job, void *bytes, size_t len);
struct bench_content {
	const struct bench_job *job;
	struct bench_random random;
	uint64_t seed; /* of the last buffer */
	uint64_t set;  /* of buffers that come again; 0: the last one does */
};

void bench_content_next(struct bench_content *content, void *bytes, size_t len,
			uint64_t offset_bytes, uint64_t now_ns);

/* ---- Verification ---------------------------------------------------------------------------- */

/* What all blocks of a job have in common. */
struct bench_units {
	enum bench_verify checksum;
	size_t unit_bytes;
	uint64_t seed;
	const struct bench_pattern *pattern; /* of what follows a header; NULL: random */
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
/* Jobs whose rates have become steady are told to end. */
void bench_steady_look(struct bench_worker *workers, unsigned count, uint64_t now_ns);
bool bench_is_steady(const struct bench_job *job, const double *rates, unsigned count);
void bench_live_watch(const struct bench_run *run, struct bench_gate *gate,
		      struct bench_worker *workers, unsigned count);

/* Results are reported per job, or merged per group: an entry of the report. */
struct bench_entry {
	const struct bench_job *job;
	unsigned group, workers;
	struct bench_stats stats;
	uint64_t unwritten_bytes;
	bool steady;
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
