/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_sweep.c - the Nth allocation, the Nth system call fails: for N = 1, 2, 3
 * ... until the operation passes untouched
 *
 * For every operation, once and for a whole burst. Afterwards: an error has words, what was opened
 * is closed, nothing is left over (heap, mappings, descriptors, threads), no wrong byte came back,
 * no drive that is not free was written, and the same operation works.
 */
/* wrap: malloc calloc aligned_alloc strdup reallocarray asprintf __asprintf_chk __getdelim */
/* wrap: getline free mmap munmap stat fstat statx access pread */
/* wrap: pwrite fdatasync fallocate ftruncate madvise eventfd fopen opendir */
/* wrap: getrandom realpath pthread_create pthread_join */
/* wrap: lstat readlink linkat socket bind listen connect sendmsg recvmsg */
/* wrap: open fcntl ioctl io_setup io_submit io_getevents io_uring_queue_init_params */
/* wrap: io_uring_register_buffers io_uring_register_files */
/* wrap: io_uring_register_ring_fd io_uring_register io_uring_enter2 blkid_new_probe */
/* wrap: blkid_probe_set_device blkid_do_probe */
#include "tests/integration/test_store.h"

#include <limits.h>

#include "tests/sweep/faults.h"
#include "util/util.h"

#define DRIVES       2
#define CHUNK_BYTES  SPW_CHUNK_BYTES_MIN
#define OBJECT_BYTES (5 * CHUNK_BYTES + 777)
#define POINTS_MAX   3000 /* more calls than any operation makes */
#define FOR_EVER     LONG_MAX
/* What a store in use must come back from: the kernel refuses this many calls in a row. */
#define A_WHILE 40
#define MARK    "nothing was said"

_Alignas(4096) static uint8_t bytes[8 * CHUNK_BYTES], back[8 * CHUNK_BYTES];
static struct spw_store *subject;
static bool inline_mode;
static bool single; /* the fault that is armed does not come again */
/* drives that are formatted and wiped: one is quicker where there are hundreds of formats */
static unsigned made = DRIVES;

struct operation {
	const char *name;
	int (*prepare)(void); /* no fault here; NULL: nothing to prepare */
	int (*run)(void);
	void (*finish)(void); /* no fault here */
	long burst;           /* how long a sticky fault lasts */
};

/*
 * Hundreds of opens and formats take long on loop devices: what does not depend on the backend is
 * swept on plain files, and sampled elsewhere.
 */
static bool is_whole_sweep(void)
{
	const char *config = getenv("SPW_TEST_CONFIG");

	return !config || strcmp(config, "files-io_uring") == 0;
}

/* ---- One sweep ---- */

static void check_balance(const struct operation *op, const struct fault_balance *before, long nth)
{
	struct fault_balance after = fault_balance_now();

	if (memcmp(before, &after, sizeof(after)) != 0)
		fail_msg("%s, fault %ld (%s): %ld allocations, %lld mapped bytes, %ld descriptors, "
			 "%ld threads left "
			 "over",
			 op->name, nth, atomic_load(&faults.name),
			 after.allocations - before->allocations, after.mapped - before->mapped,
			 after.descriptors - before->descriptors, after.threads - before->threads);
}

static void prepare(const struct operation *op)
{
	if (op->prepare)
		assert_ok(op->prepare());
	(void)spw_error(-EIO, MARK);
}

/* Return: whether anything failed on purpose. */
static bool sweep_point(const struct operation *op, enum fault_class cls, long nth, long burst)
{
	struct fault_balance before = fault_balance_now();
	unsigned hits;
	int rc;

	prepare(op);
	single = burst == 1;
	fault_arm(cls, nth, burst);
	rc = op->run();
	hits = fault_disarm();
	if (rc < 0 && hits == 0)
		fail_msg("%s without a fault: %s", op->name, spw_last_error());
	if (rc < 0 && (strcmp(spw_last_error(), MARK) == 0 || spw_last_error()[0] == '\0'))
		fail_msg("%s, fault %ld (%s): %s without a word of explanation", op->name, nth,
			 atomic_load(&faults.name), spw_strerror(rc));
	if (op->finish)
		op->finish();
	check_balance(op, &before, nth);
	return hits > 0;
}

/* Every @stride th point. */
static void sweep_some(const struct operation *op, long stride)
{
	long points = 0;

	for (unsigned kind = 0; kind < 4; kind++) {
		enum fault_class cls = kind % 2 ? FAULT_CALL : FAULT_MEMORY;
		long nth = 1;

		while (sweep_point(op, cls, nth, kind < 2 ? 1 : op->burst)) {
			assert_true(nth < POINTS_MAX);
			nth += stride;
			points++;
		}
	}
	print_message("%s: %ld faults\n", op->name, points);
}

static void sweep(const struct operation *op)
{
	sweep_some(op, 1);
}

/* With an I/O thread, and without. */
static void sweep_modes(const struct operation *op)
{
	for (unsigned i = 0; i < 2; i++) {
		inline_mode = i == 1;
		sweep(op);
	}
}

/* ---- Opening and closing ---- */

static struct spw_store_opts small_opts(void)
{
	struct spw_store_opts opts = default_opts();

	opts.workers = 2;
	opts.inline_mode = inline_mode;
	opts.arena_bytes = 4 * MIB;
	opts.requests_max = 16;
	opts.objects_max = 16;
	opts.queue_depth = 4;
	return opts;
}

static int open_subject(void)
{
	struct spw_store_opts opts = small_opts();

	return spw_store_open(drive_paths, DRIVES, &opts, &subject);
}

static void close_subject(void)
{
	spw_store_close(subject);
	subject = NULL;
}

static int open_or_nothing(void)
{
	int rc = open_subject();

	assert_true((rc == 0) == (subject != NULL));
	return rc;
}

/* A store that opened in spite of a fault has to work as any other. */
static void use_and_close(void)
{
	spw_object object;

	if (!subject)
		return;
	object = put_wait(subject, bytes, OBJECT_BYTES);
	memset(back, 0xA5, OBJECT_BYTES);
	assert_ok(get_wait(subject, object, 0, back, OBJECT_BYTES));
	assert_memory_equal(back, bytes, OBJECT_BYTES);
	assert_ok(spw_store_free(subject, object));
	close_subject();
}

static struct spw_store *neighbour;

static int disarm(void **state)
{
	(void)state;
	(void)fault_disarm();
	inline_mode = false;
	made = DRIVES;
	if (subject)
		close_subject();
	spw_store_close(neighbour);
	neighbour = NULL;
	return 0;
}

#define SWEEP_CASE(name) CASE_WITH(name, NULL, disarm)

SWEEP_CASE(test_open)
{
	static const struct operation op = {"open", NULL, open_or_nothing, use_and_close, FOR_EVER};

	sweep_some(&op, is_whole_sweep() ? 1 : 17);
	inline_mode = is_whole_sweep();
	if (inline_mode)
		sweep(&op);
	inline_mode = false;
	assert_ok(open_subject());
	use_and_close();
}

/* ---- Joining the processes that have the store open, which only block devices ask for ---- */

static int run_format(void);

static int open_neighbour(void)
{
	struct spw_store_opts opts = small_opts();

	opts.partition = 1;
	return spw_store_open(drive_paths, DRIVES, &opts, &neighbour);
}

static void use_and_close_both(void)
{
	use_and_close();
	spw_store_close(neighbour);
	neighbour = NULL;
}

/* A waste of time on other drives: there the neighbour is not asked. */
SWEEP_CASE(test_join)
{
	static const struct operation op = {"join", open_neighbour, open_or_nothing,
					    use_and_close_both, FOR_EVER};
	const char *config = getenv("SPW_TEST_CONFIG");

	if (!config || strcmp(config, "loop512-io_uring") != 0) {
		print_message("only loop devices are claimed\n");
		skip();
	}
	(void)format_drives(DRIVES, 2, CHUNK_BYTES);
	sweep_some(&op, 5);
	assert_ok(run_format());
}

static int run_close(void)
{
	close_subject();
	return 0;
}

static int open_with_traffic(void)
{
	spw_object object;
	int rc = open_subject();

	for (unsigned i = 0; rc == 0 && i < 3; i++)
		rc = spw_store_put(subject, bytes, OBJECT_BYTES, &(struct spw_notify){0}, &object,
				   NULL);
	return rc;
}

SWEEP_CASE(test_close)
{
	static const struct operation idle = {"close", open_subject, run_close, NULL, A_WHILE},
				      busy = {"close with requests", open_with_traffic, run_close,
					      NULL, A_WHILE};

	sweep_modes(&idle);
	sweep_modes(&busy);
}

/* ---- Objects ---- */

/* An error is an answer, other bytes are not. The object exists also when its put has failed. */
static int round_trip(void)
{
	struct spw_request *request;
	spw_object object;
	int put, get, other,
		rc = spw_store_put(subject, bytes, OBJECT_BYTES, NULL, &object, &request);

	if (rc)
		return rc;
	put = spw_request_wait(request);
	memset(back, 0xA5, OBJECT_BYTES);
	get = get_wait(subject, object, 0, back, OBJECT_BYTES);
	assert_true(put == 0 || get != 0);
	if (get == 0)
		assert_memory_equal(back, bytes, OBJECT_BYTES);
	other = spw_store_flush(subject, NULL, &request);
	other = other ? other : spw_request_wait(request);
	rc = spw_store_trim(subject, NULL, &request);
	rc = rc ? rc : spw_request_wait(request);
	assert_ok(spw_store_free(subject, object));
	assert_true(spw_store_eventfd(subject) >= -EMFILE);
	return put ? put : get ? get : other ? other : rc;
}

/* What the faults have retired serves again. */
static void revive_and_close(void)
{
	for (unsigned i = 0; i < DRIVES; i++)
		(void)spw_store_revive(subject, i);
	use_and_close();
}

SWEEP_CASE(test_round_trip)
{
	static const struct operation op = {"put, get, flush, trim, free", open_subject, round_trip,
					    revive_and_close, A_WHILE};

	sweep_modes(&op);
}

/* ---- The tensor cache ---- */

#define TENSORS 4

static struct spw_cache *cache;

static int open_cache(void)
{
	struct spw_cache_opts opts;

	spw_cache_opts_init(&opts, sizeof(opts));
	opts.min_bytes = 1;
	opts.tensors_max = 16;
	opts.spill_last_scope = true;
	return spw_cache_open(subject, &opts, &cache);
}

static int take_back(spw_tensor tensor, unsigned index)
{
	const uint8_t *kept = bytes + index * CHUNK_BYTES;
	struct spw_taken taken = {0};
	int rc = spw_cache_take(cache, tensor, 0, CHUNK_BYTES, &taken);

	if (rc == 0 && taken.bytes) {
		assert_memory_equal(taken.bytes, kept, CHUNK_BYTES);
		spw_cache_return(cache, taken.lease);
	} else if (rc == 0) {
		assert_int_equal(taken.owner, index + 1);
	}
	if (rc && single)
		fail_msg("fault %s, once: a take fails: %s", atomic_load(&faults.name),
			 spw_last_error());
	assert_ok(spw_cache_release(cache, tensor));
	return rc;
}

/*
 * A step that would have succeeded without the cache does so with it: no fault is a reason to
 * refuse an offer, and a take fails only when what it needs fails again and again.
 */
static int one_step(void)
{
	spw_tensor tensors[TENSORS];
	uint64_t owners[2 * TENSORS];
	int rc = open_cache(), taken;

	if (rc)
		return rc;
	spw_cache_step(cache);
	for (unsigned i = 0; i < TENSORS; i++) {
		struct spw_offer offer = {.storage_key = 100 + i,
					  .storage_bytes = bytes + i * CHUNK_BYTES,
					  .storage_len_bytes = CHUNK_BYTES,
					  .len_bytes = CHUNK_BYTES,
					  .owner = i + 1};

		spw_cache_scope_enter(cache, i);
		assert_in_range(spw_cache_offer(cache, &offer, &tensors[i]), SPW_OFFER_KEEP,
				SPW_OFFER_DEDUP);
		spw_cache_scope_leave(cache);
	}
	spw_cache_stage(cache, 0, SPW_STAGE_BACKWARD);
	for (unsigned i = TENSORS; i-- > 0;) {
		taken = take_back(tensors[i], i);
		rc = rc ? rc : taken;
	}
	assert_true(spw_cache_drain(cache, owners, 2 * TENSORS) >= 0);
	spw_cache_close(cache);
	cache = NULL;
	return rc;
}

SWEEP_CASE(test_step)
{
	static const struct operation op = {"a step of the cache", open_subject, one_step,
					    revive_and_close, A_WHILE};

	sweep(&op);
}

/* ---- Format, check, probe, wipe, status ---- */

static int run_format(void)
{
	struct spw_store_info info = {.size = sizeof(info)};
	struct spw_format_opts opts;

	spw_format_opts_init(&opts, sizeof(opts));
	opts.chunk_bytes = CHUNK_BYTES;
	opts.force = true;
	return spw_format(drive_paths, made, &opts, &info);
}

/* After a format that failed: the old store, the new one, or a refusal that says why. */
static void check_and_format(void)
{
	int rc = spw_check(drive_paths, made, NULL, NULL);

	if (rc != 0 && rc != -EUCLEAN && rc != -EMEDIUMTYPE)
		fail_msg("a format that failed left %s (%s)", spw_strerror(rc), spw_last_error());
	if (rc != 0)
		assert_ok(run_format());
	assert_ok(spw_check(drive_paths, made, NULL, NULL));
}

static int run_check(void)
{
	struct spw_store_info info = {.size = sizeof(info)};
	struct spw_drive_info drives[DRIVES] = {{.size = sizeof(drives[0])}};

	return spw_check(drive_paths, DRIVES, &info, drives);
}

static int run_wipe(void)
{
	return spw_wipe(drive_paths, made, NULL);
}

/* Wiped in part, whole, or not at all: the drives can be formatted. */
static void format_again(void)
{
	assert_ok(run_format());
}

static int run_probe(void)
{
	struct spw_probe_info info = {.size = sizeof(info)};
	char **paths = NULL;
	int found, rc = spw_probe(drive_paths[0], &info);

	/* A fault may hide why, but it cannot make a drive that carries a store a free one. */
	assert_false(info.usable);
	assert_true(info.reason[0] != '\0');
	found = spw_probe_list(&paths);
	if (found >= 0)
		spw_probe_list_free(paths);
	return rc ? rc : found < 0 ? found : 0;
}

static int run_status(void)
{
	static struct spw_status_name names[64];
	static struct spw_status status;
	int rc = spw_status_list(names, 64);

	for (int i = 0; i < rc && i < 64; i++)
		(void)spw_status_read(names[i].store_uuid, names[i].partition, &status,
				      sizeof(status));
	return rc < 0 ? rc : 0;
}

SWEEP_CASE(test_drives)
{
	static const struct operation format = {"format", NULL, run_format, check_and_format,
						FOR_EVER},
				      check = {"check", NULL, run_check, NULL, FOR_EVER},
				      probe = {"probe", NULL, run_probe, NULL, FOR_EVER},
				      wipe = {"wipe", NULL, run_wipe, format_again, FOR_EVER},
				      status = {"status", open_subject, run_status, use_and_close,
						FOR_EVER};

	if (!is_whole_sweep())
		return;
	sweep(&check);
	sweep(&probe);
	sweep(&status);
	made = 1;
	assert_ok(run_format());
	sweep(&format);
	sweep(&wipe);
	made = DRIVES;
	assert_ok(run_format());
}

/* ---- What is not free is not written, whatever fails while that is found out ---- */

static int format_foreign(void)
{
	struct spw_format_opts opts;

	spw_format_opts_init(&opts, sizeof(opts));
	opts.erase = true; /* so that the signature alone protects the drive */
	return spw_format(drive_paths, DRIVES, &opts, NULL);
}

static void expect_refused(int (*attempt)(void))
{
	int rc = attempt();

	if (rc == 0 || atomic_load(&faults.writes) > 0)
		fail_msg("fault %s: a drive that is not free was %s", atomic_load(&faults.name),
			 rc == 0 ? "taken" : "written to");
}

static void sweep_refusals(const char *name, int (*attempt)(void))
{
	for (unsigned kind = 0; kind < 4; kind++)
		for (long nth = 1;; nth++) {
			struct fault_balance before = fault_balance_now();
			const struct operation op = {.name = name};

			(void)spw_error(-EIO, MARK);
			fault_arm(kind % 2 ? FAULT_CALL : FAULT_MEMORY, nth,
				  kind < 2 ? 1 : FOR_EVER);
			expect_refused(attempt);
			assert_string_not_equal(spw_last_error(), MARK);
			if (fault_disarm() == 0)
				break;
			check_balance(&op, &before, nth);
		}
}

static void put_foreign_signature(bool there)
{
	uint8_t *block = aligned_alloc(4096, 8192);
	int fd = open(drive_paths[0], O_RDWR | O_DIRECT | O_CLOEXEC);

	assert_true(block && fd >= 0);
	memset(block, 0, 8192);
	if (there)
		memcpy(block + 4096 - 10, "SWAPSPACE2", 10);
	if (there)
		block[1024] = block[1028] = 1; /* version, last page */
	assert_int_equal(pwrite(fd, block, 8192, 0), 8192);
	assert_int_equal(fdatasync(fd), 0);
	assert_int_equal(close(fd), 0);
	free(block);
}

SWEEP_CASE(test_not_ours)
{
	if (!is_whole_sweep())
		return;
	assert_ok(run_wipe());
	put_foreign_signature(true);
	assert_int_equal(format_foreign(), -EEXIST);
	sweep_refusals("format of a foreign drive", format_foreign);
	sweep_refusals("wipe of a foreign drive", run_wipe);
	put_foreign_signature(false);
	assert_ok(run_format());
	assert_ok(open_subject());
	sweep_refusals("format of an open store", run_format);
	sweep_refusals("wipe of an open store", run_wipe);
	use_and_close();
}

static int setup(void **state)
{
	(void)drives_from_environment(state);
	content_fill(bytes, sizeof(bytes), 1);
	return run_format();
}

RUN_CASES(setup, NULL)
