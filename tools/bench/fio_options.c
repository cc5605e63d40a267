/* SPDX-License-Identifier: MIT */
/*
 * tools/bench/fio_options.c - fio's options that no job acts on, and why
 *
 * With the table of options.c these are all options of fio 3.33, those of its engines included. The
 * page docs/FIO.md is printed from both.
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
	 "a device or file has the size that it has, and without size= all of it is used"},
	{"invalidate pre_read", NO_EFFECT, "transfers go past the page cache"},
	{"allow_mounted_write", NO_EFFECT,
	 "what is mounted is never written; it does not stand for --allow-destructive"},
	{"random_generator", NO_EFFECT,
	 "each block comes once in an order that looks random: by all of them; norandommap=1 alone "
	 "lets blocks repeat"},
	{"randrepeat allrandrepeat", NO_EFFECT,
	 "the order repeats unless randseed differs; no byte and no count depends on it"},
	{"softrandommap", NO_EFFECT, "where there is no memory for a map the job ends, in words"},
	{"io_submit_mode", SAID(OFFLOAD), "the job's thread submits, and waits for no transfer"},
	{"mem iomem iomem_align mem_align hugepage-size lockmem", NO_EFFECT,
	 "buffers lie in memory for DMA, in huge pages where there are any"},
	{"verify_fatal verify_dump verify_async verify_async_cpus experimental_verify verifysort "
	 "verifysort_nr error_dump",
	 NO_EFFECT, "the first wrong block ends the job, in words; the job's thread checks"},
	{"write_bw_log write_lat_log write_iops_log write_hist_log write_iolog", SAID(LOGS),
	 "no log is written; JSON has histograms' percentiles, and rates over time"},
	{"per_job_logs log_entries log_avg_msec log_hist_msec log_hist_coarseness log_max_value "
	 "log_offset log_prio log_compression log_compression_cpus log_store_compressed "
	 "log_unix_epoch log_alternate_epoch log_alternate_epoch_clock_id bwavgtime iopsavgtime",
	 NO_EFFECT, "of logs, of which none is written; rates are looked at every half second"},
	{"clocksource gtod_reduce gtod_cpu disable_lat disable_clat disable_slat "
	 "disable_bw_measurement disable_bw stats",
	 NO_EFFECT, "latencies take two reads of the clock for each batch: always measured"},
	{"clat_percentiles lat_percentiles slat_percentiles percentile_list significant_figures "
	 "disk_util unified_rw_reporting block_error_percentiles unit_base",
	 NO_EFFECT, "of the report's form, which has fio's defaults"},
	{"thread threads registerfiles nonvectored", NO_EFFECT, "so it is always"},
	{"sqthread_poll_cpu userspace_reap force_async uncached nowait", NO_EFFECT,
	 "of fio's engines; spillway's queue has its own ways"},
	{"thp no_completion_thread hipri_percentage", NO_EFFECT,
	 "of engines in whose place spillway's own runs"},
	{"rate_ignore_thinktime thinktime_spin", NO_EFFECT,
	 "a pause is slept through, and what a rate allows meanwhile is made up for"},
	{"rwmixcycle percentage_sequential flow_watermark", NO_EFFECT,
	 "fio itself does nothing with it any more"},
	{"write_barrier sync_file_range", NO_EFFECT,
	 "of engines and of a page cache that are not here"},

	/* ---- of other engines ---- */
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
	 ENGINE, "of an engine whose sections are not run"},

	/* ---- refused ---- */
	{"filename_format opendir", REFUSED, "name the files: filename=a:b"},
	{"file_service_type", REFUSED,
	 "files are served by turns, those with fewest transfers in flight first"},
	{"rw_sequencer", REFUSED, "write it as rw=read:SKIP"},
	{"iodepth_low iodepth_batch_complete_max", REFUSED,
	 "completions are collected as many as there are"},
	{"offset_align", REFUSED, "give an offset that is aligned"},
	{"bs_unaligned blocksize_unaligned", REFUSED, "past the page cache transfers are aligned"},
	{"bs_is_seq_rand", REFUSED, "sizes are of reads and of writes"},
	{"fsync fdatasync sync end_fsync fsync_on_close atomic write_hint", REFUSED,
	 "what a drive has acknowledged is what is measured: flushes and hints are not sent"},
	{"cmdprio_percentage cmdprio_class cmdprio cmdprio_bssplit", REFUSED,
	 "transfers of one job have one priority: prio, prioclass"},
	{"cmd_type", REFUSED, "backend=nvme sends NVMe commands, and nothing else does"},
	{"verify_offset verify_only verify_state_load", REFUSED,
	 "headers lie at the start of their blocks, and no state is kept between runs"},
	{"trim_percentage trim_verify_zero trim_backlog trim_backlog_batch", REFUSED,
	 "nothing is discarded"},
	{"read_iolog read_iolog_chunked replay_no_stall replay_redirect replay_scale replay_align "
	 "replay_time_scale replay_skip merge_blktrace_file merge_blktrace_scalars "
	 "merge_blktrace_iters",
	 REFUSED, "'spillway replay' replays recorded steps; traces of blocks are not read"},
	{"exec_prerun exec_postrun", REFUSED, "no program is started"},
	{"ioscheduler", REFUSED, "settings of the system are left as they are"},
	{"zonecapacity read_beyond_wp max_open_zones "
	 "job_max_open_zones ignore_zone_limits zone_reset_threshold zone_reset_frequency",
	 REFUSED, "drives of zones are not known: zonemode=zbd"},
	{"thinktime_blocks_type thinktime_iotime", REFUSED,
	 "a pause comes after so many transfers: thinktime_blocks"},
	{"max_latency latency_target latency_window latency_percentile latency_run", REFUSED,
	 "the depth of a job stays; 'spillway tune' looks for the best"},
	{"create_only", REFUSED, "files are never created"},
	{"cpumask", REFUSED, "write cpus_allowed=LIST"},
	{"exitall_on_error", REFUSED, "the other jobs of a failed one go on"},
	{"continue_on_error ignore_error", REFUSED, "the first error ends a job, in words"},
	{"profile", REFUSED, "there are none"},
	{"cgroup cgroup_nodelete cgroup_weight uid gid", REFUSED,
	 "start the command there, or as that user"},
};

/* Engines of fio that are not a way to move bytes to and from a drive here. */
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
		      "is left out, which is said, and the exit status is 1: `%s`.\n\n"
		      "| options | |\n|---|---|\n",
		      engines);
	print_others(out, BENCH_FIO_ENGINE);
	(void)fprintf(out, "\n### Refused\n\n| options | because |\n|---|---|\n");
	print_others(out, BENCH_FIO_REFUSED);
}
