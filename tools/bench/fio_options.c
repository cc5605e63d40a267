/* SPDX-License-Identifier: MIT */
/*
 * tools/bench/fio_options.c - the table of fio's options that have no effect or are refused, with
 * reasons
 *
 * With the table of options.c these are all options of fio 3.33 and its engines. docs/FIO.md is
 * printed from both tables.
 */
#include "tools/bench/bench.h"

#include <string.h>

#include "util/util.h"

#define NO_EFFECT BENCH_FIO_NO_EFFECT, BENCH_REMARKS
#define SAID(x)   BENCH_FIO_NO_EFFECT, BENCH_REMARK_##x
#define ENGINE    BENCH_FIO_ENGINE, BENCH_REMARKS
#define REFUSED   BENCH_FIO_REFUSED, BENCH_REMARKS

static const struct bench_fio_option others[] = {
	/* ---- without effect ---- */
	{"unique_filename lockfile openfiles fallocate fadvise_hint overwrite create_serialize "
	 "create_fsync create_on_open allow_file_create unlink unlink_each_loop file_append",
	 NO_EFFECT, "files are never created, extended or removed, and stay open for the run"},
	{"fill_device fill_fs", NO_EFFECT,
	 "files are never extended; without size= all of a device or file is used"},
	{"invalidate pre_read", NO_EFFECT, "transfers go past the page cache"},
	{"allow_mounted_write", NO_EFFECT,
	 "mounted devices are never written; this does not replace --allow-destructive"},
	{"random_generator", NO_EFFECT,
	 "every generator visits each block once; only norandommap=1 allows repeats"},
	{"randrepeat allrandrepeat", NO_EFFECT,
	 "the order is always repeatable; randseed changes it"},
	{"softrandommap", NO_EFFECT, "a job without memory for its map fails"},
	{"io_submit_mode", SAID(OFFLOAD), "submission is asynchronous, from the job's thread"},
	{"mem iomem iomem_align mem_align hugepage-size lockmem", NO_EFFECT,
	 "buffers are DMA memory, on huge pages if available"},
	{"verify_fatal verify_dump verify_async verify_async_cpus experimental_verify verifysort "
	 "verifysort_nr error_dump",
	 NO_EFFECT, "the job's thread verifies; the first wrong block ends the job"},
	{"write_bw_log write_lat_log write_iops_log write_hist_log write_iolog", SAID(LOGS),
	 "no logs are written; JSON has percentiles, and rates over time"},
	{"per_job_logs log_entries log_avg_msec log_hist_msec log_hist_coarseness log_max_value "
	 "log_offset log_prio log_compression log_compression_cpus log_store_compressed "
	 "log_unix_epoch log_alternate_epoch log_alternate_epoch_clock_id bwavgtime iopsavgtime",
	 NO_EFFECT, "no logs are written; rates are sampled every half second"},
	{"clocksource gtod_reduce gtod_cpu disable_lat disable_clat disable_slat "
	 "disable_bw_measurement disable_bw stats",
	 NO_EFFECT, "latency costs two clock reads per batch and is always measured"},
	{"clat_percentiles lat_percentiles slat_percentiles percentile_list significant_figures "
	 "disk_util unified_rw_reporting block_error_percentiles unit_base",
	 NO_EFFECT, "reports have fio's default form"},
	{"thread threads registerfiles nonvectored", NO_EFFECT, "always on"},
	{"sqthread_poll_cpu userspace_reap force_async uncached nowait", NO_EFFECT,
	 "specific to fio's engines"},
	{"thp no_completion_thread hipri_percentage", NO_EFFECT,
	 "specific to engines that spillway's replaces"},
	{"rate_ignore_thinktime thinktime_spin", NO_EFFECT,
	 "pauses sleep, and a rate catches up afterwards"},
	{"rwmixcycle percentage_sequential flow_watermark", NO_EFFECT, "no effect in fio either"},
	{"write_barrier sync_file_range", NO_EFFECT,
	 "specific to other engines and the page cache"},

	/* ---- options of other engines ---- */
	{"cpuload cpumode cpuchunks exit_on_io_done pool cont chunk_size object_class svcl "
	 "donorname inplace program arguments grace_time std_redirect stat_type volume brick "
	 "single-instance single_instance https http_host http_user http_pass http_s3_key "
	 "http_s3_keyid http_swift_auth_token http_s3_region http_s3_sse_customer_key "
	 "http_s3_sse_customer_algorithm http_s3_storage_class http_mode http_verbose "
	 "gpu_dev_ids gpu_dev_id cuda_io namenode hostname port hdfsdirectory hdfs_use_direct "
	 "initiator serverip direct_write_to_pmem busy_wait_polling skip_bad uri protocol nodelay "
	 "listen pingpong interface ttl window_size mss nfs_url clustername clientname conf "
	 "busy_poll touch_objects rbdname bindname verb readfua writefua sg_write_mode stream_id "
	 "xnvme_be xnvme_async xnvme_sync xnvme_admin xnvme_dev_nsid xnvme_iovec engine_name",
	 ENGINE, "specific to an engine that is not run"},

	/* ---- refused ---- */
	{"filename_format opendir", REFUSED, "use filename=a:b"},
	{"file_service_type", REFUSED,
	 "files are served in turn, those with the fewest transfers in flight first"},
	{"rw_sequencer", REFUSED, "use rw=read:SKIP"},
	{"iodepth_low iodepth_batch_complete_max", REFUSED,
	 "all available completions are reaped at once"},
	{"offset_align", REFUSED, "use an aligned offset"},
	{"bs_unaligned blocksize_unaligned", REFUSED, "direct I/O must be aligned"},
	{"bs_is_seq_rand", REFUSED, "block sizes are per direction"},
	{"fsync fdatasync sync end_fsync fsync_on_close atomic write_hint", REFUSED,
	 "flushes and hints are not sent: acknowledged writes are measured"},
	{"cmdprio_percentage cmdprio_class cmdprio cmdprio_bssplit", REFUSED,
	 "all transfers of a job have one priority: prio, prioclass"},
	{"verify_offset verify_only verify_state_load", REFUSED,
	 "headers are at the start of their blocks, and no state is kept between runs"},
	{"trim_percentage trim_verify_zero trim_backlog trim_backlog_batch", REFUSED,
	 "no discards are sent"},
	{"read_iolog read_iolog_chunked replay_no_stall replay_redirect replay_scale replay_align "
	 "replay_time_scale replay_skip merge_blktrace_file merge_blktrace_scalars "
	 "merge_blktrace_iters",
	 REFUSED, "'spillway replay' replays recorded steps; block traces are not supported"},
	{"exec_prerun exec_postrun", REFUSED, "no programs are started"},
	{"ioscheduler", REFUSED, "system settings are not changed"},
	{"zonecapacity read_beyond_wp max_open_zones "
	 "job_max_open_zones ignore_zone_limits zone_reset_threshold zone_reset_frequency",
	 REFUSED, "zoned drives are not supported (zonemode=zbd)"},
	{"thinktime_blocks_type thinktime_iotime", REFUSED,
	 "pauses are counted in transfers: thinktime_blocks"},
	{"max_latency latency_target latency_window latency_percentile latency_run", REFUSED,
	 "the depth is fixed; 'spillway tune' finds the best"},
	{"create_only", REFUSED, "files are never created"},
	{"cpumask", REFUSED, "use cpus_allowed=LIST"},
	{"exitall_on_error", REFUSED, "other jobs continue when one fails"},
	{"continue_on_error ignore_error", REFUSED, "the first error ends a job"},
	{"profile", REFUSED, "there are no profiles"},
	{"cgroup cgroup_nodelete cgroup_weight uid gid", REFUSED,
	 "start the command there, or as that user"},
};

/* fio's engines that spillway does not run. */
static const char engines[] =
	"cpuio cpp_null dev-dax dfs e4defrag exec falloc filecreate filestat filedelete ftruncate "
	"gfapi gfapi_async http ime_psync ime_psyncv ime_aio libcufile libhdfs libiscsi libpmem "
	"librpma_apm_client librpma_apm_server librpma_gpspm_client librpma_gpspm_server libzbc "
	"mmap mtd nbd net netsplice nfs pmemblk rados rbd rdma sg solarisaio splice windowsaio "
	"xnvme";

static bool is_among(const char *name, const char *names)
{
	char one[BENCH_NAME_BYTES];

	for (; *names != '\0'; names += names[0] == ' ') {
		size_t len = strcspn(names, " ");

		(void)snprintf(one, sizeof(one), "%.*s", (int)len, names);
		if (bench_option_same(name, one))
			return true;
		names += len;
	}
	return false;
}

const struct bench_fio_option *bench_fio_option(const char *name)
{
	for (size_t i = 0; i < SPW_ARRAY_LEN(others); i++)
		if (is_among(name, others[i].names))
			return &others[i];
	return NULL;
}

bool bench_fio_engine(const char *name)
{
	return is_among(name, engines);
}

/* ---- The page -------------------------------------------------------------------------------- */

static void print_others(FILE *out, enum bench_fio_verdict verdict)
{
	for (size_t i = 0; i < SPW_ARRAY_LEN(others); i++) {
		const char *at = others[i].names;

		if (others[i].verdict != verdict)
			continue;
		(void)fprintf(out, "|");
		for (; *at != '\0'; at += strcspn(at, " "), at += *at == ' ')
			(void)fprintf(out, " `%.*s`", (int)strcspn(at, " "), at);
		(void)fprintf(out, " | %s |\n", others[i].why);
	}
}

void bench_fio_print_others(FILE *out)
{
	(void)fprintf(out, "\n### Without effect here\n\n| options | because |\n|---|---|\n");
	print_others(out, BENCH_FIO_NO_EFFECT);
	(void)fprintf(out,
		      "\n### Of engines that are not run\n\nA section with one of these engines "
		      "is skipped with a message, and the exit status is 1: `%s`.\n\n"
		      "| options | |\n|---|---|\n",
		      engines);
	print_others(out, BENCH_FIO_ENGINE);
	(void)fprintf(out, "\n### Refused\n\n| options | because |\n|---|---|\n");
	print_others(out, BENCH_FIO_REFUSED);
}
