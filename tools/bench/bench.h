/* SPDX-License-Identifier: MIT */
/* tools/bench/bench.h - spillway bench: jobs, workers, results, and the functions on them */
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

/* How random transfers are distributed. */
enum bench_spread_kind {
	BENCH_SPREAD_EVEN,
	BENCH_SPREAD_ZIPF,
	BENCH_SPREAD_PARETO,
	BENCH_SPREAD_NORMAL,
	BENCH_SPREAD_ZONES,       /* zones end at percents of the range */
	BENCH_SPREAD_ZONES_BYTES, /* zones end at byte offsets */
};

/* What a job says about the page cache. */
enum bench_direct {
	BENCH_DIRECT_UNSAID,
	BENCH_DIRECT_PAST,
	BENCH_DIRECT_THROUGH,
};

#define BENCH_SHARES_MAX 64

/* @percent of transfers have the size @value, or lie below the offset @value. */
struct bench_share {
	uint64_t value;
	uint32_t percent;
};

/* The sizes of the transfers of one direction. */
struct bench_lengths {
	uint64_t min, max;                           /* bytes; min 0: the job's sizes */
	struct bench_share shares[BENCH_SHARES_MAX]; /* used instead of the range */
	unsigned count;                              /* 0: any multiple of min */
	bool by_range;                               /* by bsrange, which bs does not change */
};

#define BENCH_PATTERN_BYTES 512

/* Bytes that are repeated to fill a buffer. */
struct bench_pattern {
	unsigned char bytes[BENCH_PATTERN_BYTES];
	unsigned len; /* 0: none */
};

/* Which other jobs end when a job ends. */
enum bench_exit {
	BENCH_EXIT_GROUP,
	BENCH_EXIT_STONEWALL,
	BENCH_EXIT_ALL,
};

/* Options of fio that the bench carries out differently: each report names those that were used. */
enum bench_remark {
	BENCH_REMARK_BUFFERED,
	BENCH_REMARK_SYNCHRONOUS,
	BENCH_REMARK_ENGINE,
	BENCH_REMARK_CHECKSUM,
	BENCH_REMARK_LOGS,
	BENCH_REMARK_OFFLOAD,
	BENCH_REMARK_NOT_VERIFIED,
	BENCH_REMARK_WHOLE,
	BENCH_REMARK_ROUNDED,
	BENCH_REMARKS,
};

#define BENCH_NUMA_ANY UINT32_MAX

/* One job as its section describes it; numjobs workers run it. Copies inherit options. */
struct bench_job {
	char name[BENCH_NAME_BYTES];
	/* the name for --section; name= in a job file changes only the name */
	char section[BENCH_NAME_BYTES];
	/* colon separated; a backslash makes a colon part of a name */
	char filename[BENCH_FILENAME_BYTES];
	char directory[BENCH_FILENAME_BYTES];  /* folders, colon separated; workers take turns */
	char wait_for[BENCH_NAME_BYTES];       /* name of the job to wait for */
	char foreign_engine[BENCH_NAME_BYTES]; /* another engine of fio's; or empty */
	uint32_t rw;                           /* enum bench_rw */
	/* sequential jobs: added to the position after each transfer, "rw=read:-2m" */
	int64_t skip_bytes;
	/* smallest and largest of both directions; per direction, if they differ or have shares */
	uint64_t block_bytes_min, block_bytes_max;
	struct bench_lengths lengths[BENCH_DIRECTIONS];
	uint64_t size_bytes;   /* of the job, over all its files; 0: as much as the files have */
	uint32_t size_percent; /* of each file, instead of size_bytes; 0: not given */
	uint64_t file_bytes;   /* of each file; 0: not given */
	uint64_t io_bytes;     /* to move, in part of a pass or in several; 0: one pass */
	uint32_t io_percent;   /* of the size, instead of io_bytes; 0: not given */
	uint32_t loops;        /* passes */
	uint64_t number_ios;   /* transfers at most; 0: no limit */
	uint64_t offset_bytes;
	uint64_t offset_increment_bytes; /* from one worker of the job to the next */
	/* alignment of random offsets; 0: the smallest block */
	uint64_t align_bytes[BENCH_DIRECTIONS];
	uint32_t random_percent[BENCH_DIRECTIONS]; /* of random transfers; the rest is sequential */
	uint32_t spread;                           /* enum bench_spread_kind */
	double spread_theta, spread_center;        /* center < 0: none */
	struct bench_share zones[BENCH_DIRECTIONS][BENCH_SHARES_MAX];
	unsigned zones_count[BENCH_DIRECTIONS];
	uint64_t runtime_ns; /* 0: no limit */
	uint64_t ramp_ns;
	uint64_t delay_ns_min, delay_ns_max; /* delay before the job begins */
	/* per second and direction; 0: no limit */
	uint64_t rate_bytes[BENCH_DIRECTIONS], rate_iops[BENCH_DIRECTIONS];
	/* a job that is slower fails */
	uint64_t rate_min_bytes[BENCH_DIRECTIONS], rate_min_iops[BENCH_DIRECTIONS];
	uint32_t rate_cycle_ms; /* interval at which the least rate is checked */
	bool rate_poisson;
	uint32_t think_us, think_blocks;
	uint32_t flow, flow_id, flow_sleep_us; /* flow 0: in none */
	uint32_t exit_what;                    /* enum bench_exit */
	uint64_t randseed;
	uint64_t object_bytes;
	uint32_t iodepth, submit_batch, complete_min, numjobs, read_percent;
	uint32_t verify, backend, level, workers;
	/* writes until they are read back, 0: at the end; reads then, 0: as many */
	uint32_t verify_backlog, verify_backlog_batch;
	uint64_t verify_interval_bytes; /* bytes per header; 0: the smallest block */
	struct bench_pattern pattern, verify_pattern;
	uint32_t nrfiles; /* number of files named by fio's rule, if filename is not given */
	int32_t nice;
	uint32_t prio, prio_class; /* 0: inherited from this process */
	bool cpus_given, cpus_split;
	cpu_set_t cpus;
	char numa_cpu_nodes[BENCH_NAME_BYTES];
	uint32_t numa_memory;           /* BENCH_NUMA_ANY: the drives' node */
	uint32_t numa_node;             /* BENCH_NUMA_ANY: not given */
	uint64_t null_bytes_per_second; /* rate of each null drive; 0: transfers end at once */
	uint32_t drives;                /* number of null drives */
	bool time_based, hipri, sqthread_poll, fixedbufs, group_reporting, stonewall, norandommap;
	/* refilled buffers: percent of zeros at the end of each chunk; percent of duplicates */
	uint32_t compress_percent, dedupe_percent, dedupe_set_percent;
	uint64_t compress_chunk_bytes;
	bool dedupe_set, dedupe_global; /* duplicates are from a set; shared by all jobs */
	/* sequential jobs: transfer zone_bytes of each range, then skip zone_skip_bytes */
	bool strided;
	uint64_t zone_bytes, zone_range_bytes, zone_skip_bytes;
	/* end when the rate was steady this long: within a limit, or a percentage of the mean */
	uint64_t steady_ns, steady_ramp_ns;
	double steady_limit;
	bool steady_percent, steady_bandwidth, steady_slope;
	bool scramble_buffers, zero_buffers, refill_buffers;
	bool do_verify, exitall, new_group, serialize_overlap;
	bool synchronous;  /* the engine has one transfer in flight, whatever the depth */
	bool null_engine;  /* ioengine=null: filename is ignored */
	bool of_file;      /* from a job file: fio's default would be the page cache */
	uint32_t direct;   /* enum bench_direct */
	bool no_checksums; /* the store checks no checksums */
	bool null;         /* runs on drives of bench_null_make() */
	uint32_t remarks;  /* a bit per enum bench_remark */
	char description[256];
};

void bench_job_init(struct bench_job *job);

/* Set an option. @value: NULL if none was given, as for flags. Return: 0; -EINVAL, message. */
int bench_option_set(struct bench_job *job, const char *name, const char *value);

bool bench_option_exists(const char *name);
/* Whether two names are equal, with dashes for underscores. */
bool bench_option_same(const char *typed, const char *name);

/* Whether an option is a flag: then the next argument is not its value. */
bool bench_option_is_flag(const char *name);

/* Check how options go together. Return: 0; -EINVAL. */
int bench_job_check(const struct bench_job *job);

/* The number of bytes per verify header. */
uint64_t bench_job_unit(const struct bench_job *job);

/* The text of a remark in a report, such as that the page cache was not used. */
const char *bench_remark_words(enum bench_remark remark);

/* ---- fio's other options --------------------------------------------------------------------- */

/* An option of fio that has no effect here, or is refused. */
struct bench_fio_option {
	const char *names; /* separated by blanks */
	enum bench_fio_verdict {
		BENCH_FIO_NO_EFFECT,
		BENCH_FIO_ENGINE, /* an option of another engine: no effect on spillway's */
		BENCH_FIO_REFUSED,
	} verdict;
	uint32_t remark; /* BENCH_REMARKS: none */
	const char *why;
};

/* Find such an option. Return: NULL if fio does not have it, or bench_option_set() handles it. */
const struct bench_fio_option *bench_fio_option(const char *name);
/* Whether this is one of the fio engines that spillway does not run. */
bool bench_fio_engine(const char *name);
/* Print a Markdown page of fio's options: supported, without effect, refused and why. */
void bench_fio_print(FILE *out);
/* Print the part with options without effect and refused ones. */
void bench_fio_print_others(FILE *out);

void bench_options_each(tool_show *show, void *context);

const char *bench_rw_name(uint32_t rw);
const char *bench_backend_name(uint32_t backend);
bool bench_rw_is_random(uint32_t rw);
bool bench_rw_reads(uint32_t rw);
bool bench_rw_writes(uint32_t rw);

/* Parse a value. Return: 0; -EINVAL or -ERANGE, with a message in spw_last_error(). */
int bench_parse_size(const char *text, uint64_t *bytes);
int bench_parse_time(const char *text, uint64_t *ns);
int bench_parse_count(const char *text, uint64_t *count);
int bench_parse_real(const char *text, double *value);

/* Parse "READS,WRITES", or one value for both: call @parse for each. Omitted values are skipped. */
typedef int bench_parse_part(void *context, unsigned direction, const char *part);
int bench_parse_pair(const char *text, bench_parse_part *parse, void *context);
/* Parse shares: "4k/10:64k/90". */
int bench_parse_split(const char *text, struct bench_lengths *lengths);
/* Parse a range: "4k-64k". */
int bench_parse_range(const char *text, struct bench_lengths *lengths);
/* Parse "60/10:30/20:8/30:2/40": percents of transfers, and of the range or, with @bytes, sizes. */
int bench_parse_zones(const char *text, bool bytes, struct bench_share *zones,
		      unsigned *zones_count);
int bench_parse_cpus(const char *text, cpu_set_t *cpus);
/* Parse a pattern: 0xdead, 57005, "text", or several of these. */
int bench_parse_pattern(const char *text, struct bench_pattern *pattern);

/* ---- Job files ------------------------------------------------------------------------------- */

/* A section that is left out because of its engine. */
struct bench_left_out {
	char section[BENCH_NAME_BYTES];
	char engine[BENCH_NAME_BYTES];
};

struct bench_plan {
	struct bench_job *jobs;
	unsigned count;
	struct bench_left_out *left_out;
	unsigned left_out_count;
	/* the only sections to take from job files; count 0: all */
	const char *sections[BENCH_SECTIONS_MAX];
	unsigned sections_count;
};

/* Add a job. Apply what follows from its options: ioengine=sync has one transfer in flight. */
int bench_plan_add(struct bench_plan *plan, const struct bench_job *job);
void bench_plan_free(struct bench_plan *plan);

/**
 * bench_jobfile_read - add the jobs of a file in fio's format to a plan
 * @global: what every job starts from; [global] sections add to it
 * @tell:   called with the message of every fault but the last, with file and line
 *
 * A section with a fio engine that is not one of spillway's goes to the plan's left_out, whatever
 * its other options. Continues after a fault, up to 100 of them; @plan then has the jobs without
 * faults. Options that do not go together count as one fault per job, or none if a single option is
 * faulty.
 *
 * Return: 0; -EINVAL or -ERANGE, with the last fault in spw_last_error(); or the error of opening
 * or reading the file.
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

/* A hash of both arguments, the same in every run. */
uint64_t bench_mix(uint64_t key, uint64_t value);

/* A permutation of [0, slots) that depends on the key; needs no memory. */
struct bench_shuffle {
	uint64_t slots, key;
	unsigned left_bits, right_bits;
};

void bench_shuffle_init(struct bench_shuffle *shuffle, uint64_t slots, uint64_t key);
uint64_t bench_shuffle_at(const struct bench_shuffle *shuffle, uint64_t index);

/* The distribution of random transfers of one direction over the blocks of a range. */
struct bench_spread {
	uint32_t kind; /* enum bench_spread_kind */
	uint64_t blocks, shift;
	double theta, zetan, eta; /* for zipf; for pareto theta is the power */
	const struct bench_share *zones;
	unsigned zones_count;
	uint64_t align_bytes; /* alignment of zones in bytes */
};

void bench_spread_init(struct bench_spread *spread, const struct bench_job *job, unsigned direction,
		       uint64_t blocks, uint64_t seed);
uint64_t bench_spread_next(const struct bench_spread *spread, struct bench_random *random);

/*
 * The part of one file that a job uses, and the progress in it. As in fio: a pass moves as many
 * bytes as the region has; sequential transfers follow one another, each direction from the start,
 * and those that skip end or wrap where fio's do; random transfers touch each block once, at a
 * random free place and as long as the drawn size or the free space there, unless norandommap or a
 * distribution allows repetition. Transfer @index of pass @pass depends only on the seed and on the
 * directions before it, so that a pass can be repeated to verify it.
 */
struct bench_region {
	uint64_t start_bytes, len_bytes; /* a multiple of the smallest block */
	uint64_t file_bytes;             /* length of the whole file */
	uint64_t unit_bytes;             /* the smallest block */
	struct bench_lengths lengths[BENCH_DIRECTIONS];
	uint64_t align_bytes[BENCH_DIRECTIONS];
	uint32_t random_percent[BENCH_DIRECTIONS];
	uint64_t seed, pass, index;
	int64_t skip_bytes;
	uint64_t last_bytes[BENCH_DIRECTIONS]; /* end of the last transfer, in the file */
	bool strided;
	uint64_t zone_bytes, zone_range_bytes, zone_skip_bytes; /* as in the job */
	uint64_t base_bytes,
		zone_issued_bytes; /* start of the current zone, and bytes moved in it */
	uint64_t issued_bytes;     /* bytes of this pass, both directions */
	bool random, shuffled;     /* shuffled: blocks of one size, chosen by the shuffle */
	struct bench_shuffle shuffle;
	struct bench_spread spread[BENCH_DIRECTIONS];
	struct bench_random draw;
	uint64_t *used; /* a bit for each used unit; NULL if units may repeat or are shuffled */
	/* a copy, since spreads point at it */
	struct bench_share zones[BENCH_DIRECTIONS][BENCH_SHARES_MAX];
};

/* The sizes of the transfers of one direction, its own or the job's. */
struct bench_lengths bench_job_lengths(const struct bench_job *job, unsigned direction);

/**
 * bench_region_place - the part of a file that @job uses, one of @files files
 * @region: pass it to bench_region_remove()
 *
 * Return: 0; -EINVAL the blocks do not fit the device's; -ENOSPC the file is too short; -ENOMEM.
 */
int bench_region_place(struct bench_region *region, const struct bench_job *job, const char *path,
		       const struct spw_geometry *geometry, unsigned files, uint64_t seed);
/* Copy a region, and go to the start of the same pass. Return: 0; -ENOMEM. */
int bench_region_copy(struct bench_region *region, const struct bench_region *from);
void bench_region_remove(struct bench_region *region);

#define BENCH_UNWRITTEN_UNKNOWN UINT64_MAX

/*
 * The number of bytes in a part of a file or device that were never written, or were discarded
 * since, so that reading them measures nothing; BENCH_UNWRITTEN_UNKNOWN if it cannot be queried.
 */
uint64_t bench_unwritten(const char *path, uint64_t offset_bytes, uint64_t len_bytes);

void bench_region_start_pass(struct bench_region *region, uint64_t pass);

/* Get the next transfer of the pass. Return: false at the end of the pass. */
bool bench_region_next(struct bench_region *region, unsigned direction, uint64_t *offset_bytes,
		       uint32_t *len_bytes);

/* ---- Results --------------------------------------------------------------------------------- */

#define BENCH_DEPTH_LEVELS 7

struct bench_direction_stats {
	uint64_t ios, bytes;
	uint64_t runtime_ns;
	struct spw_summary submit_ns;     /* slat: until the kernel has the transfer */
	struct spw_histogram complete_ns; /* clat: from then until completion */
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
	char description[256]; /* description of the backend */
};

/* ---- Running --------------------------------------------------------------------------------- */

/* What a worker had moved at the last sample, and its rates over all samples. */
struct bench_sample {
	uint64_t bytes[BENCH_DIRECTIONS], ios[BENCH_DIRECTIONS];
	uint64_t time_ns, start_ns; /* time of the sample; start of the measurement */
	struct spw_summary bandwidth[BENCH_DIRECTIONS], iops[BENCH_DIRECTIONS];
};

/* For a job that ends when its rate is steady: its rates, one per second. */
struct bench_steady {
	uint64_t time_ns, moved;
	double *rates;
	unsigned count;
	bool attained;
};

/* One thread that runs a job. */
struct bench_worker {
	const struct bench_job *job;
	unsigned index;    /* index among the workers of its job */
	unsigned group;    /* fio's groupid: number of stonewalls and new_groups so far */
	unsigned sequence; /* index among all workers of the run, for different seeds */
	struct spw_device *devices[BENCH_FILES_MAX];
	char *paths[BENCH_FILES_MAX]; /* owned */
	unsigned devices_count;
	struct spw_log log;
	struct bench_gate *gate;
	unsigned wave; /* number of stonewalls so far */
	struct bench_run *run;
	struct bench_flow *flow; /* NULL: the job is in no flow */
	double flow_moved;       /* what this worker has moved of the flow */
	/* engine level: bytes of a pass (all regions, or size= if less), and of all passes */
	uint64_t pass_bytes, limit_bytes;
	pthread_t thread;
	bool started;
	struct bench_region *regions;   /* engine level: a region per device */
	struct spw_drive_stats *drives; /* store level: transfers of each drive; or NULL */
	uint64_t unwritten_bytes;       /* of what it reads: never written when it began */
	struct bench_stats stats;

	/* Progress, written by the worker with relaxed stores and read by the main thread. */
	_Atomic uint64_t live_bytes[BENCH_DIRECTIONS], live_ios[BENCH_DIRECTIONS];
	_Atomic uint64_t live_start_ns; /* when measuring began; 0: not yet */
	_Atomic uint64_t live_total_bytes;
	atomic_bool live_ended;
	atomic_bool told_to_end;    /* a job with exitall has ended */
	struct bench_steady steady; /* rates of the whole group; used by the main thread */
	struct bench_sample sample; /* used by the main thread */
};

/* The transfers of all jobs that share a flow; each job gets a share by its weight. */
struct bench_flow {
	uint32_t id;
	_Atomic uint64_t moved, weights;
};

/* A barrier: workers prepare and wait here until the last one is ready or has failed. */
struct bench_gate {
	sem_t ready, open, end; /* posted once by or for each worker */
	unsigned ended;
	pthread_mutex_t mutex;
	pthread_cond_t changed; /* a worker has ended, or all must end */
};

void bench_gate_init(struct bench_gate *gate);
void bench_gate_wait(struct bench_gate *gate); /* called by a worker that is ready */
void bench_await(sem_t *semaphore);            /* sem_wait() that continues after signals */

struct bench_device {
	char *path; /* as first named */
	bool writes;
	bool is_vfio; /* no device node, so the name is its only identity */
	struct stat status;
	struct spw_device *device;
};

struct bench_devices {
	struct bench_device *list[BENCH_FILES_MAX];
	unsigned count;
};

/* Find or add the device that @path names. Return: NULL with a message in spw_last_error(). */
struct bench_device *bench_devices_find(struct bench_devices *devices, const char *path);

/**
 * bench_devices_open - check the devices that will be written, then open those not open yet
 * Return: 0; -EBUSY, -EEXIST, -ESPIPE refused for safety; or the error of probing or opening.
 * Writes nothing.
 */
int bench_devices_open(struct bench_devices *devices, bool allow_destructive,
		       const struct spw_log *log);
void bench_devices_close(struct bench_devices *devices);

/* The null drives of all jobs, which no transfer reaches. */
struct bench_null {
	int fds[SPW_QUEUE_DEVICES_MAX]; /* descriptors that keep the files */
	unsigned count;
};

/**
 * bench_null_make - make the drives of jobs with null, and set these jobs' filename
 * @null:  set even after a failure: pass it to bench_null_remove()
 *
 * Return: 0; or the error of opening a file or of spw_format().
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
	uint64_t process_user_ns, process_system_ns; /* with kernel workers */
};

/*
 * Run all jobs. Return: 0, even if jobs failed (see their stats); -EBUSY, -EEXIST, -ESPIPE refused
 * for safety; -ENOTUNIQ a job names a drive twice; else a negative errno.
 */
int bench_run(struct bench_run *run);
void bench_run_free(struct bench_run *run);

/* Run a job in this thread. Results and errors go to the worker's stats. */
void bench_worker_run(struct bench_worker *worker);       /* on devices */
void bench_store_worker_run(struct bench_worker *worker); /* on a store */

/* Set this thread's CPU, node and priority. Return: 0; -EINVAL no such CPU or node; -errno. */
int bench_place_thread(const struct bench_worker *worker);
/* The NUMA node for the job's buffers. Return: -1: the drives' node. */
int bench_memory_node(const struct bench_job *job);

/* Wait until the delay is over and the job to wait for has ended, or the run must end. */
void bench_await_turn(struct bench_worker *worker);
/* A worker has ended: wake those that wait for it, and end those that exitall ends. */
void bench_worker_ended(struct bench_worker *worker);

/* Make the jobs' flows. Return: 0; -ENOMEM. */
int bench_flows_make(struct bench_run *run);
/* Ask to start a transfer, and count it. Return: whether it may start. */
bool bench_flow_take(struct bench_worker *worker);
void bench_flow_leave(struct bench_worker *worker);

/* Split a colon separated list into the worker's paths. Return: 0; -EINVAL; -ENOMEM. */
int bench_split_filename(const char *filename, struct bench_worker *worker);
/* Set the worker's paths: its job's names, or names by fio's rule. Return: as above. */
int bench_name_files(struct bench_worker *worker);

/* What both loops share: a job's clock, limits and statistics. */
struct bench_timer {
	uint64_t start_ns;    /* start of the measurement */
	uint64_t end_ns;      /* when to stop; UINT64_MAX: no limit */
	uint64_t ramp_end_ns; /* end of the ramp, when measuring restarts; 0: no ramp */
	/* for the job's rate: when the next transfer may start; what each adds to that */
	uint64_t due_ns[BENCH_DIRECTIONS];
	double ns_per_byte[BENCH_DIRECTIONS], ns_per_io[BENCH_DIRECTIONS];
	struct bench_random random; /* for random times between transfers */
	/* for the least rate: when it is checked next, and what was moved until the last check */
	uint64_t check_ns;
	uint64_t checked_bytes[BENCH_DIRECTIONS], checked_ios[BENCH_DIRECTIONS];
	struct rusage usage; /* CPU time at the start */
};

uint64_t bench_timeval_ns(const struct timeval *time);

void bench_timer_begin(struct bench_timer *timer, struct bench_worker *worker);
/* Check the time, and end the ramp. Return: whether the job's time is up or it must stop. */
bool bench_timer_expired(struct bench_timer *timer, struct bench_worker *worker, uint64_t now_ns);
/* A transfer has started: compute when the next may start. */
void bench_timer_pace(struct bench_timer *timer, const struct bench_job *job, unsigned direction,
		      uint64_t bytes);
/* Sleep until the next transfer of @direction may start, or the job may have to end. */
void bench_timer_sleep(const struct bench_timer *timer, unsigned direction);
void bench_timer_end(const struct bench_timer *timer, struct bench_worker *worker);
void bench_worker_live(struct bench_worker *worker);
/* If @error is not 0, end the job with it. The first error and its message are kept. */
void bench_worker_failed(struct bench_worker *worker, int error);
/* Count a completed transfer. */
void bench_account(struct bench_direction_stats *stats, uint64_t bytes, uint64_t start_ns,
		   uint64_t issue_ns, uint64_t end_ns);
unsigned bench_depth_level(unsigned in_flight);
unsigned bench_batch_level(unsigned batch);

/* ---- Contents -------------------------------------------------------------------------------- */

/* Fill a buffer with a pattern, repeated. */
void bench_pattern_fill(const struct bench_pattern *pattern, void *bytes, size_t len);
/* Fill all buffers before the first write; bench_content_next() does one before each write. */
void bench_content_begin(const struct bench_job *job, void *bytes, size_t len);
struct bench_content {
	const struct bench_job *job;
	struct bench_random random;
	uint64_t seed;
	uint64_t set; /* number of buffers that are repeated; 0: only the last one */
};

void bench_content_next(struct bench_content *content, void *bytes, size_t len,
			uint64_t offset_bytes, uint64_t now_ns);

/* ---- Verification ---------------------------------------------------------------------------- */

/* What all verified blocks of a job have in common. */
struct bench_units {
	enum bench_verify checksum;
	size_t unit_bytes;
	uint64_t seed;
	const struct bench_pattern *pattern; /* content after a header; NULL: random */
};

/* CRC-32C as in fio. @crc: of the bytes before; 0 at the start */
uint32_t bench_crc32c(uint32_t crc, const void *bytes, size_t len);

/* Fill @len bytes for @offset with units, whose headers have offset, generation and seed. */
void bench_verify_fill(const struct bench_units *units, void *buf, size_t len,
		       uint64_t offset_bytes, uint64_t generation);

#define BENCH_GENERATION_ANY UINT64_MAX

/* Check what was filled. Return: 0; -EBADMSG with a message in spw_last_error(). */
int bench_verify_check(const struct bench_units *units, const void *buf, size_t len,
		       uint64_t offset_bytes, uint64_t generation, const char *path);

/* ---- Progress and reports -------------------------------------------------------------------- */

/* Tell jobs to end whose rates have become steady. */
void bench_steady_look(struct bench_worker *workers, unsigned count, uint64_t now_ns);
bool bench_is_steady(const struct bench_job *job, const double *rates, unsigned count);
/* Wait until all @count workers have ended; meanwhile take samples and draw the line. */
void bench_live_watch(const struct bench_run *run, struct bench_gate *gate,
		      struct bench_worker *workers, unsigned count);

/* An entry of the report: the results of a worker, or of a group merged. */
struct bench_entry {
	const struct bench_job *job;
	unsigned group, workers;
	struct bench_stats stats;
	uint64_t unwritten_bytes;
	bool steady;
};

/* Make the entries, for free(). Return: their number; -ENOMEM. */
int bench_entries(const struct bench_run *run, struct bench_entry **entries);

extern const double bench_percentiles[];
extern const unsigned bench_percentiles_count;
extern const char *const bench_depth_names[BENCH_DEPTH_LEVELS],
	*const bench_batch_names[BENCH_DEPTH_LEVELS];

/* fio's coarse latency classes: up to 2, 4, 10 ... 1000 ns, us and ms; up to 2 s; more. */
#define BENCH_LATENCY_CLASSES 30

/* The upper limit of a class, in the class's unit. */
uint64_t bench_latency_limit(unsigned class);
/* Count completions by class. Return: the number of completions. */
uint64_t bench_latency_classes(const struct bench_stats *stats,
			       uint64_t classes[BENCH_LATENCY_CLASSES + 2]);

double bench_percentage(uint64_t part, uint64_t whole);

int bench_report_text(const struct bench_run *run, FILE *out);
int bench_report_terse(const struct bench_run *run, FILE *out);
json_t *bench_report_json(const struct bench_run *run);

#endif
