/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_replace_processes.c - several processes open a store at once whose
 * replacement of a drive was killed between its last steps: one completes the new drive
 *
 * Killed at any moment of that, at most one copy of a superblock is torn; who only reads sees the
 * store meanwhile; and what each commits is there with any drive lost.
 */
/* wrap: pread pwrite */
#include "tests/integration/test_child.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include "layout/superblock.h"
#include "tests/wrap.h"
#include "util/util.h"

#define DRIVES       3 /* of the store; the fourth is the new one */
#define FRESH        3
#define OLD          1
#define RANKS        3
#define OBJECT_BYTES (MIB / 2)
#define KILLS        6

/*
 * Where a replacement is killed. Its writes of superblocks are two of the new drive, one of each
 * other drive, two of the new one: it is decided and not complete.
 */
struct cut {
	unsigned write; /* counted from 1 */
	bool torn;      /* within it; else before it */
};

static const struct cut cuts[] = {{4, true}, {5, false}, {5, true}};

/* ---- Writes of superblocks ---- */

/* Shared by all processes: those that are within a write of a superblock. */
static _Atomic unsigned *writing;
static uint64_t seed;

/* Of this process: at which write of a superblock it stops, torn, or is killed; from 1 */
static unsigned stop_at, stop_next, writes;
static struct cut kill_at;
/* the read of the new drive's first copy, after which it stops: counted from 1 */
static unsigned read_stop_at, reads;

/* At which write of a commit block this process is killed, from 1. */
static unsigned commit_kill_at, commits;

static bool is_commit(const void *bytes, size_t len)
{
	return len >= 8 && memcmp(bytes, "SPWCOMIT", 8) == 0;
}

static bool is_superblock(const void *bytes, size_t len)
{
	struct spw_superblock sb;

	for (unsigned copy = 0; len >= SPW_SUPERBLOCK_BYTES && copy < 2; copy++)
		for (size_t at = 0; at + SPW_SUPERBLOCK_BYTES <= len; at += SPW_SUPERBLOCK_BYTES)
			if (spw_layout__decode((const uint8_t *)bytes + at, copy, &sb, NULL) == 0)
				return true;
	return false;
}

static void tear(int fd, const void *bytes, size_t len, off_t offset);

WRAP(ssize_t, pwrite, (int fd, const void *bytes, size_t len, off_t offset))
{
	ssize_t written;

	if (is_commit(bytes, len) && ++commits == commit_kill_at)
		(void)raise(SIGKILL);
	if (!is_superblock(bytes, len))
		return __real_pwrite(fd, bytes, len, offset);
	writes++;
	if (writes == kill_at.write) {
		if (kill_at.torn)
			tear(fd, bytes, len, offset);
		(void)raise(SIGKILL);
	}
	++*writing;
	if (writes == stop_at) {
		tear(fd, bytes, len, offset);
		stop_at = stop_next;
		child_says_and_waits();
	}
	written = __real_pwrite(fd, bytes, len, offset);
	--*writing;
	return written;
}

/* As far as a power cut may let it come: its second half is not there. */
static void tear(int fd, const void *bytes, size_t len, off_t offset)
{
	uint8_t *torn = aligned_alloc(4096, spw_round_up(len, 4096));

	child_check(torn);
	memcpy(torn, bytes, len);
	for (size_t at = 0; at + SPW_SUPERBLOCK_BYTES <= len; at += SPW_SUPERBLOCK_BYTES)
		memset(torn + at + SPW_SUPERBLOCK_BYTES / 2, 0, SPW_SUPERBLOCK_BYTES / 2);
	child_check(__real_pwrite(fd, torn, len, offset) == (ssize_t)len);
	free(torn);
}

WRAP(ssize_t, pread, (int fd, void *bytes, size_t len, off_t offset))
{
	ssize_t got = __real_pread(fd, bytes, len, offset);
	struct stat st, fresh;

	if (read_stop_at == 0 || offset != 0 || len > 2 * SPW_SUPERBLOCK_BYTES ||
	    fstat(fd, &st) != 0 || stat(drive_paths[FRESH], &fresh) != 0 ||
	    st.st_ino != fresh.st_ino || st.st_rdev != fresh.st_rdev || ++reads != read_stop_at)
		return got;
	child_says_and_waits();
	return got;
}

/* ---- A store whose replacement was cut ---- */

static const char *others[DRIVES];   /* then the new one */
static const char *rest[DRIVES - 1]; /* the others, in the order in which they are told */

static size_t len_of(uint64_t step, unsigned rank)
{
	return 1 + (step * 7919 + rank * 104729) % OBJECT_BYTES;
}

static int commit_step(struct spw_store *store, unsigned rank, uint64_t step)
{
	uint8_t *bytes = malloc(OBJECT_BYTES);
	struct spw_request *request;
	spw_object object;
	int rc;

	if (!bytes)
		return -ENOMEM;
	content_fill(bytes, OBJECT_BYTES, step * RANKS + rank);
	rc = spw_store_put_copies(store, bytes, len_of(step, rank), 2, NULL, &object, &request);
	if (rc == 0)
		rc = spw_request_wait(request);
	if (rc == 0)
		rc = spw_store_commit(store, &object, 1, step, &step, sizeof(step),
				      SPW_COMMIT_MIRRORED);
	free(bytes);
	return rc;
}

/* Return: the step that this rank has committed, with all its bytes; 0: it is not whole. */
static uint64_t found_step(struct spw_store *store, unsigned rank)
{
	struct spw_commit_info info = {.size = sizeof(info)};
	uint8_t *bytes = malloc(OBJECT_BYTES);
	spw_object object;
	uint64_t len;
	bool whole = bytes && spw_store_committed(store, &info, sizeof(info)) == 0 &&
		     spw_store_committed_objects(store, &object, &len, 1) == 0 &&
		     len == len_of(info.number, rank) &&
		     get_wait(store, object, 0, bytes, len) == 0 &&
		     content_differs(bytes, len, info.number * RANKS + rank, 0) == len;

	free(bytes);
	return whole ? info.number : 0;
}

static void replaces(uint64_t which)
{
	writes = 0;
	kill_at = cuts[which];
	(void)spw_replace(rest, DRIVES - 1, "2", drive_paths[FRESH], NULL, NULL);
	child_check(false); /* it is killed */
}

/* Step 1 of each rank is committed to a store of @named. */
static void make_store(const char *const named[])
{
	struct spw_format_opts format;
	struct spw_store_opts opts;
	struct spw_store *store;

	spw_format_opts_init(&format, sizeof(format));
	format.partitions = RANKS;
	format.chunk_bytes = SPW_CHUNK_BYTES_MIN;
	format.force = format.erase = true;
	assert_ok(spw_format(named, DRIVES, &format, NULL));
	for (unsigned rank = 0; rank < RANKS; rank++) {
		opts = partition_opts(rank);
		store = open_paths(named, DRIVES, &opts);
		assert_ok(commit_step(store, rank, 1));
		close_store(store);
	}
}

/* A replacement in it was killed. @told_first: of the other drives */
static void make_cut_told(unsigned which, unsigned told_first)
{
	for (unsigned i = 0, named = 0; i < 4; i++)
		if (i != OLD)
			others[named++] = drive_paths[i];
	for (unsigned i = 0; i < DRIVES - 1; i++)
		rest[i] = others[told_first == 0 ? i : DRIVES - 2 - i];
	format_drives(4, 1, SPW_CHUNK_BYTES_MIN);
	assert_ok(spw_wipe(drive_paths, 4, NULL));
	make_store((const char *const *)drive_paths);
	assert_int_equal(reap(start_child(0, replaces, which)), -SIGKILL);
}

static void make_cut(unsigned which)
{
	make_cut_told(which, 0);
}

static int share_counter(void **state)
{
	seed = random_seed();
	writing = mmap(NULL, sizeof(*writing), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	return writing == MAP_FAILED ? -1 : drives_from_environment(state);
}

/* Of each rank a commit from @steps to @to is there, with each of the drives lost. */
static void verify_from(const uint64_t steps[RANKS], const uint64_t to[RANKS])
{
	for (unsigned lost = 0; lost <= DRIVES; lost++) {
		const char *named[DRIVES];
		unsigned count = 0;

		for (unsigned i = 0; i < DRIVES; i++)
			if (i != lost)
				named[count++] = others[i];
		for (unsigned rank = 0; rank < RANKS; rank++) {
			struct spw_store_opts opts = partition_opts(rank);
			struct spw_store *store;
			uint64_t step;

			opts.read_only = true;
			store = open_paths(named, count, &opts);
			step = found_step(store, rank);
			assert_in_range(step, steps[rank], to[rank]);
			close_store(store);
		}
	}
}

static void verify(const uint64_t steps[RANKS])
{
	verify_from(steps, steps);
}

/* ---- Ranks ---- */

/* What a rank does: opens, commits and closes. Stopped in a write, or as it waits, it says so. */
struct rank {
	unsigned rank, stop_at, stop_next;
	bool says_waiting;
};

static struct rank ranks[RANKS];

static void hears(void *context, enum spw_log_level level, const char *message)
{
	(void)context;
	(void)level;
	if (strstr(message, "another process completes"))
		child_says();
}

static void trains(uint64_t which)
{
	const struct rank *rank = &ranks[which];
	struct spw_store_opts opts = partition_opts(rank->rank);
	struct spw_store *store;

	writes = 0;
	stop_at = rank->stop_at;
	stop_next = rank->stop_next;
	if (rank->says_waiting)
		opts.log.write = hears;
	child_check(try_open(others, DRIVES, &opts, &store) == 0);
	child_check(found_step(store, rank->rank) == 1);
	child_check(commit_step(store, rank->rank, 2) == 0);
	close_store(store);
}

static struct child *start_rank(unsigned which, struct rank rank)
{
	rank.rank = which;
	ranks[which] = rank;
	return start_child(which, trains, which);
}

/* The first is stopped in its first write, and the second waits for it; later it stops @at. */
static void start_two(unsigned which, unsigned at, struct child **first, struct child **second)
{
	make_cut(which);
	*writing = 0;
	*first = start_rank(0, (struct rank){.stop_at = 1});
	await_step(*first);
	*second = start_rank(1, (struct rank){.stop_at = at, .says_waiting = true});
	await_step(*second);
	assert_int_equal(*writing, 1);
}

/* Only one at a time writes superblocks; killed, it has torn one copy, and the next does it. */
CHILD_CASE(test_one_completes)
{
	skip_under_thread_sanitizer();
	for (unsigned which = 0; which < SPW_ARRAY_LEN(cuts); which++) {
		struct child *first, *second;

		start_two(which, 2, &first, &second);
		kill_child(first);
		await_step(second); /* it does all of it, and is killed, too */
		kill_child(second);
		verify((uint64_t[RANKS]){1, 1, 1});
	}
}

/* Those that come while one completes it wait, find that it is complete, and go on. */
CHILD_CASE(test_others_wait)
{
	skip_under_thread_sanitizer();
	for (unsigned which = 0; which < SPW_ARRAY_LEN(cuts); which++) {
		struct child *first, *second;

		start_two(which, 1, &first, &second);
		let_go_on(first);
		assert_int_equal(reap(first), 0);
		assert_int_equal(reap(second), 0); /* it wrote none */
		verify((uint64_t[RANKS]){2, 2, 1});
	}
}

/* In the first of its reads of the new drive that is stopped, and in all that come after it. */
static void reads_only(uint64_t stopped)
{
	struct spw_store_opts opts = partition_opts(2);
	struct spw_store_info info = {.size = sizeof(info)};
	struct spw_store *store;

	writes = reads = 0;
	read_stop_at = (unsigned)stopped;
	opts.read_only = true;
	child_check(try_open(others, DRIVES, &opts, &store) == 0);
	child_check(found_step(store, 2) == 1);
	close_store(store);
	child_check(spw_check(others, DRIVES, &info, NULL) == 0);
	child_check(writes == 0);
}

/* Opened to be read while either copy of the superblock is torn, the store is there. */
CHILD_CASE(test_readers_see_the_store)
{
	skip_under_thread_sanitizer();
	for (unsigned which = 0; which < SPW_ARRAY_LEN(cuts); which++) {
		struct child *first;

		make_cut(which);
		first = start_rank(0, (struct rank){.stop_at = 1, .stop_next = 2});
		for (unsigned copy = 0; copy < 2; copy++) {
			await_step(first);
			assert_int_equal(reap(start_child(2, reads_only, 0)), 0);
			let_go_on(first);
		}
		assert_int_equal(reap(first), 0);
		verify((uint64_t[RANKS]){2, 1, 1});
	}
}

/* The first copy is torn as it is read, and the last one a moment later: neither is for ever. */
CHILD_CASE(test_both_copies_are_torn_as_they_are_read)
{
	static uint8_t zeros[SPW_SUPERBLOCK_BYTES] __attribute__((aligned(4096)));
	struct child *first, *reader;
	struct spw_device *device;

	skip_under_thread_sanitizer();
	for (unsigned nth = 1; nth <= 2; nth++) {
		make_cut(1);
		/* The copy that counts is the last one, so that the first is written first. */
		assert_ok(spw_device_open(drive_paths[FRESH], NULL, &device));
		assert_ok(spw_device_pwrite(device, zeros, sizeof(zeros), 0));
		spw_device_close(device);
		first = start_rank(0, (struct rank){.stop_at = 1, .stop_next = 2});
		await_step(first);
		reader = start_child(2, reads_only, nth);
		await_step(reader);
		let_go_on(first);
		await_step(first);
		let_go_on(reader);
		assert_int_equal(reap(reader), 0);
		let_go_on(first);
		assert_int_equal(reap(first), 0);
		verify((uint64_t[RANKS]){2, 1, 1});
	}
}

/* ---- Commits are cut ---- */

static void commits_until_killed(uint64_t nth)
{
	struct spw_store_opts opts = partition_opts(0);
	struct spw_store *store;
	uint64_t step;

	child_check(try_open(others, DRIVES, &opts, &store) == 0);
	step = found_step(store, 0);
	child_check(step > 0);
	commits = 0;
	commit_kill_at = (unsigned)nth;
	child_check(commit_step(store, 0, step + 1) == 0);
	child_check(false); /* it is killed */
}

/*
 * The first commits after it are cut off, too, at any two of the drives: what the drive has that
 * was not told does not pass for something that was made with the replaced one; and what one drive
 * alone has is on the others before anything is written over (DURABLE-6), also if none was
 * replaced.
 */
CHILD_CASE(test_commits_are_cut)
{
	skip_under_thread_sanitizer();
	for (unsigned i = 0; i < 3 * DRIVES * DRIVES; i++) {
		uint64_t first = 1 + i / 3 % DRIVES, second = 1 + i / 3 / DRIVES;

		if (i % 3 < 2)
			make_cut_told(0, i % 3);
		else
			make_store(others);
		assert_int_equal(reap(start_child(0, commits_until_killed, first)), -SIGKILL);
		verify_from((uint64_t[RANKS]){1, 1, 1}, (uint64_t[RANKS]){2, 1, 1});
		assert_int_equal(reap(start_child(0, commits_until_killed, second)), -SIGKILL);
		verify_from((uint64_t[RANKS]){1, 1, 1}, (uint64_t[RANKS]){3, 1, 1});
	}
}

/* ---- At random moments ---- */

/* Shared: the step of each rank that was committed last, and the one that it is committing. */
static struct steps {
	_Atomic uint64_t committed[RANKS], next[RANKS];
} * steps;

static void trains_on(uint64_t rank)
{
	struct spw_store_opts opts = partition_opts((uint32_t)rank);
	struct spw_store *store;
	uint64_t step;

	child_check(try_open(others, DRIVES, &opts, &store) == 0);
	step = found_step(store, (unsigned)rank);
	child_check(step == steps->committed[rank] || step == steps->next[rank]);
	for (;;) {
		/* no earlier one of this number, which was under way, may pass for it */
		step = steps->next[rank] + 1;
		steps->next[rank] = step;
		child_check(commit_step(store, (unsigned)rank, step) == 0);
		steps->committed[rank] = step;
	}
}

/* All open it at once, and are killed, one after the other; and again: no commit is lost. */
CHILD_CASE(test_all_are_killed)
{
	skip_under_thread_sanitizer();
	steps = mmap(NULL, sizeof(*steps), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	assert_true(steps != MAP_FAILED);
	for (unsigned round = 0; round < KILLS; round++) {
		make_cut(round % SPW_ARRAY_LEN(cuts));
		for (unsigned rank = 0; rank < RANKS; rank++)
			steps->committed[rank] = steps->next[rank] = 1;
		for (unsigned again = 0; again < 2; again++) {
			uint64_t committed[RANKS], next[RANKS];
			struct spw_store_opts opts;

			for (unsigned rank = 0; rank < RANKS; rank++)
				(void)start_child(rank, trains_on, rank);
			for (unsigned rank = 0; rank < RANKS; rank++) {
				struct timespec delay = {
					.tv_nsec = (long)(random_below(&seed, 30000) * 1000)};

				(void)nanosleep(&delay, NULL);
				kill_child(&children[rank]);
			}
			for (unsigned rank = 0; rank < RANKS; rank++) {
				committed[rank] = steps->committed[rank];
				next[rank] = steps->next[rank];
			}
			/* None may have come so far that it was complete. */
			opts = partition_opts(0);
			close_store(open_paths(others, DRIVES, &opts));
			verify_from(committed, next);
		}
	}
	(void)munmap(steps, sizeof(*steps));
}

RUN_CASES(share_counter, NULL)
