/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_store_status.c - who has a partition open, and what the shared page tells
 * about it
 */
#include "tests/integration/store_case.h"
#include "tests/integration/test_child.h"
#include "status/status.h"
#include "util/util.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/stat.h>

#define SWEPT_TAKES 5000 /* less than a second */

static struct spw_status status;

static void page_path(char *path, size_t len)
{
	(void)snprintf(path, len, "/dev/shm/spillway-%s-0", formatted.store_uuid);
}

/* The page is refreshed by the worker: wait until it shows @puts, at most a few seconds. */
static void read_until_puts(const char *uuid, uint64_t puts)
{
	for (unsigned i = 0; i < 500; i++) {
		assert_ok(spw_status_read(uuid, 0, &status, sizeof(status)));
		if (status.store.puts >= puts)
			return;
		(void)usleep(10000);
	}
	fail_msg("the page shows %" PRIu64 " puts after five seconds, not %" PRIu64,
		 status.store.puts, puts);
}

STORE_CASE(test_page_of_an_open_store)
{
	struct spw_status_name names[64];
	char path[128];
	struct stat st;
	int count, seen = 0;
	void *bytes;

	formatted = format_drives(4, 2, 0);
	assert_int_equal(spw_status_read(formatted.store_uuid, 0, &status, sizeof(status)),
			 -ENOENT);
	store = open_default();
	assert_ok(spw_store_alloc(store, 8 * MIB, &bytes));
	content_fill(bytes, 8 * MIB, 1);
	(void)put_wait(store, bytes, 8 * MIB);
	read_until_puts(formatted.store_uuid, 1);
	assert_int_equal(status.pid, getpid());
	assert_string_equal(status.store_uuid, formatted.store_uuid);
	assert_int_equal(status.drives, 4);
	assert_int_equal(status.store.bytes_put, 8 * MIB);
	for (unsigned i = 0; i < 4; i++) {
		assert_true(status.drive[i].bytes_written > 0);
		assert_true(status.drive[i].write_latency_ns_p99 >=
			    status.drive[i].write_latency_ns_p50);
		assert_true(status.drive[i].write_latency_ns_p50 > 0);
	}
	page_path(path, sizeof(path));
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	count = spw_status_list(names, 64);
	for (int i = 0; i < count && i < 64; i++)
		seen += strcmp(names[i].store_uuid, formatted.store_uuid) == 0 &&
			names[i].partition == 0;
	assert_int_equal(seen, 1);
	assert_int_equal(spw_status_revive(formatted.store_uuid, 0, 4), -EINVAL);
	assert_ok(spw_status_revive(formatted.store_uuid, 0, 3));
	close_store(store);
	assert_int_equal(stat(path, &st), -1);
	assert_int_equal(spw_status_read(formatted.store_uuid, 0, &status, sizeof(status)),
			 -ENOENT);
}

static struct spw_cache_stats rank_steps;
static unsigned ranks_seen;

static void see_rank(void *context, const struct spw_cache_stats *steps)
{
	(void)context;
	rank_steps = *steps;
	ranks_seen++;
}

static unsigned count_ranks(void)
{
	ranks_seen = 0;
	spw_store_ranks(store, 5000000000, see_rank, NULL);
	return ranks_seen;
}

/* Of other partitions that are open, and in use; this one is not asked for. */
STORE_CASE(test_steps_of_other_ranks)
{
	static struct spw_status_page page = {
		.magic = SPW_PAGE_MAGIC,
		.version = SPW_PAGE_VERSION,
		.size = sizeof(page),
		.status = {.partition = 1, .drives = 4, .steps.write_bytes_per_second = 7}};
	int fd;

	formatted = format_drives(4, 3, 0);
	store = open_default();
	assert_int_equal(count_ranks(), 0);
	assert_ok(spw_status__take(formatted.store_uuid, 1, &fd));
	assert_int_equal(count_ranks(), 0);
	memcpy(page.status.store_uuid, formatted.store_uuid, sizeof(page.status.store_uuid));
	page.refreshed_ns = spw_clock_ns();
	assert_int_equal(pwrite(fd, &page, sizeof(page), 0), sizeof(page));
	assert_int_equal(count_ranks(), 1);
	assert_int_equal(rank_steps.write_bytes_per_second, 7);
	page.refreshed_ns -= 5000000000;
	assert_int_equal(pwrite(fd, &page, sizeof(page), 0), sizeof(page));
	assert_int_equal(count_ranks(), 0);
	spw_status__drop(formatted.store_uuid, 1, fd);
	close_store(store);
}

/* Go on as the first process of a PID namespace, which ends with this one. */
static void become_first_process(void)
{
	pid_t pid;

	if (unshare(CLONE_NEWPID))
		_exit(1);
	pid = fork();
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		return;
	}
	(void)close(child_said);
	while (pid > 0)
		(void)pause();
	_exit(1);
}

static void hold(uint64_t in_namespace)
{
	struct spw_store_opts opts = default_opts();

	if (in_namespace)
		become_first_process();
	child_check(spw_store_open(drive_paths, 4, &opts, &store) == 0);
	child_says();
	for (;;)
		(void)pause();
}

/* A child that has opened the partition, and waits to be killed. */
static struct child *open_in_child(bool in_namespace)
{
	struct child *child;

	release_controllers();
	child = start_child(0, hold, in_namespace);
	await_step(child);
	return child;
}

#define HELD_CASE(name) CASE_WITH(name, format_default, end_children)

HELD_CASE(test_who_holds_it)
{
	struct spw_store_opts opts = default_opts();
	char path[128], pid_text[32];
	int rc;
	struct child *child = open_in_child(false);

	(void)snprintf(pid_text, sizeof(pid_text), "process %d", child->pid);
	expect_refusal(-EBUSY, pid_text, spw_store_open(drive_paths, 4, &opts, &store));
	kill_child(child);
	/* Its page is not believed, and does no harm; another program may have removed it. */
	page_path(path, sizeof(path));
	rc = spw_status_read(formatted.store_uuid, 0, &status, sizeof(status));
	if (rc != -ESRCH) {
		assert_int_equal(rc, -ENOENT);
		assert_int_equal(access(path, F_OK), -1);
	}
	store = open_drives(4, &opts);
	assert_ok(spw_status_read(formatted.store_uuid, 0, &status, sizeof(status)));
	assert_int_equal(status.pid, getpid());
}

static int held_fd;
static bool waited;

static void release_when_waiting(void *context, enum spw_log_level level, const char *message)
{
	(void)context, (void)level;
	if (!strstr(message, "no process shows that it has it open"))
		return;
	waited = true;
	if (held_fd >= 0)
		(void)close(held_fd);
	held_fd = -1;
}

/*
 * Killed a moment ago, and the kernel has not released its drives yet, which the lock here stands
 * for: taking any of its partitions waits for it.
 */
HELD_CASE(test_any_partition_of_a_killed_process)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	struct spw_store_opts opts = default_opts();
	struct spw_drive_info drives[4];
	struct child *child;

	if (strncmp(drive_paths[0], "pci:", 4) == 0) {
		print_message("a controller behind vfio has no locks that others see\n");
		skip();
	}
	memset(drives, 0, sizeof(drives));
	drives[0].size = sizeof(drives[0]);
	assert_ok(spw_check(drive_paths, 4, NULL, drives));
	child = open_in_child(false);
	kill_child(child);
	held_fd = open(drive_paths[0], O_RDWR);
	assert_true(held_fd >= 0);
	lock.l_start = (off_t)drives[0].data_offset_bytes;
	lock.l_len = 1;
	/* Its rings may still be there. */
	while (fcntl(held_fd, F_OFD_SETLK, &lock) != 0)
		assert_true(errno == EAGAIN || errno == EACCES);
	waited = false;
	opts.partition = SPW_PARTITION_ANY;
	opts.log.write = release_when_waiting;
	assert_ok(try_open(drive_paths, 4, &opts, &store));
	assert_true(waited);
}

/* A page that any user could have written is not trusted. */
FORMATTED_CASE(test_page_that_makes_no_sense)
{
	struct spw_status_name names[64];
	char path[128];
	struct stat st;
	int fd;

	page_path(path, sizeof(path));
	assert_ok(spw_status__take(formatted.store_uuid, 0, &fd));
	assert_int_equal(write(fd, "nonsense", 8), 8);
	assert_int_equal(spw_status_read(formatted.store_uuid, 0, &status, sizeof(status)),
			 -EUCLEAN);
	assert_int_equal(ftruncate(fd, 8), 0);
	assert_int_equal(spw_status_read(formatted.store_uuid, 0, &status, sizeof(status)),
			 -EUCLEAN);
	assert_true(spw_status_list(names, 64) >= 0);
	assert_int_equal(stat(path, &st), 0);
	spw_status__drop(formatted.store_uuid, 0, fd);
}

static char pipe_path[128];

/* Whatever opens a store after this test must not wait, too. */
static void give_up(int number)
{
	static const char words[] = "waits for the other end of a pipe\n";

	(void)number;
	(void)unlink(pipe_path);
	if (write(STDERR_FILENO, words, sizeof(words) - 1) < 0)
		_exit(2);
	_exit(1);
}

/* What is there instead of a page is not waited for. */
FORMATTED_CASE(test_pipe_instead_of_a_page)
{
	struct spw_status_name names[64];

	page_path(pipe_path, sizeof(pipe_path));
	assert_true(signal(SIGALRM, give_up) != SIG_ERR);
	(void)alarm(60);
	assert_int_equal(mkfifo(pipe_path, 0666), 0);
	assert_int_equal(spw_status_read(formatted.store_uuid, 0, &status, sizeof(status)),
			 -EUCLEAN);
	assert_true(spw_status_list(names, 64) >= 0);
	store = open_default();
	assert_ok(spw_status_read(formatted.store_uuid, 0, &status, sizeof(status)));
	close_store(store);
	(void)alarm(0);
}

static _Atomic bool cut_off_done;

static void *cut_off(void *page_fd)
{
	int fd = *(const int *)page_fd;

	while (!atomic_load(&cut_off_done))
		if (ftruncate(fd, 0) || ftruncate(fd, sizeof(struct spw_status_page)))
			break;
	return NULL;
}

/* Who looks at a page does not depend on its owner, who may truncate it meanwhile. */
FORMATTED_CASE(test_page_that_is_cut_off)
{
	struct spw_status_name names[64];
	pthread_t thread;
	int fd;

	assert_ok(spw_status__take(formatted.store_uuid, 0, &fd));
	atomic_store(&cut_off_done, false);
	assert_int_equal(pthread_create(&thread, NULL, cut_off, &fd), 0);
	for (unsigned i = 0; i < 2000; i++)
		assert_true(spw_status_list(names, 64) >= 0);
	atomic_store(&cut_off_done, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
	spw_status__drop(formatted.store_uuid, 0, fd);
}

/* What a process calls itself is shown on others' terminals. */
OPEN_CASE(test_names_do_nothing_to_a_terminal)
{
	char path[128], text[] = "a\033[31mb";
	int fd;

	page_path(path, sizeof(path));
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(
		pwrite(fd, text, sizeof(text), offsetof(struct spw_status_page, status.command)),
		sizeof(text));
	assert_int_equal(close(fd), 0);
	assert_ok(spw_status_read(formatted.store_uuid, 0, &status, sizeof(status)));
	assert_string_equal(status.command, "a?[31mb");
}

static void expect_swept(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), -1);
	assert_int_equal(errno, ENOENT);
}

/* Pages that killed processes left are removed when a store is opened, and when all are listed. */
HELD_CASE(test_pages_of_the_dead_are_swept)
{
	struct spw_status_name names[64];
	char path[128], other[128];
	struct stat st;
	struct child *child = open_in_child(false);

	page_path(path, sizeof(path));
	/* The same page under a second name: as if another store were open in that process. */
	(void)snprintf(other, sizeof(other), "/dev/shm/spillway-00000000-0000-0000-0000-%012d-0",
		       getpid());
	assert_int_equal(link(path, other), 0);
	assert_true(spw_status_list(names, 64) >= 0);
	assert_int_equal(stat(other, &st), 0);
	kill_child(child);
	assert_true(spw_status_list(names, 64) >= 0);
	expect_swept(other);
	expect_swept(path);
	child = open_in_child(false);
	assert_int_equal(link(path, other), 0);
	kill_child(child);
	store = open_default();
	expect_swept(other);
}

static void sweep(uint64_t argument)
{
	(void)argument;
	child_says();
	for (;;)
		spw_status__sweep();
}

/* PAGE-1: who removes a page is not taken for one that owns it. */
HELD_CASE(test_who_sweeps_owns_nothing)
{
	struct child *child = start_child(0, sweep, 0);
	char path[128];

	await_step(child);
	page_path(path, sizeof(path));
	for (unsigned i = 0; i < SWEPT_TAKES; i++) {
		int dead = open(path, O_CREAT | O_RDWR, 0600), page;

		assert_true(dead >= 0);
		assert_int_equal(close(dead), 0);
		assert_ok(spw_status__take(formatted.store_uuid, 0, &page));
		spw_status__drop(formatted.store_uuid, 0, page);
	}
	kill_child(child);
}

/* In the middle of a write, of a page of another version, or before anything was written. */
HELD_CASE(test_a_dead_page_is_swept_whatever_it_holds)
{
	static const struct {
		size_t offset;
		uint32_t value;
		off_t len;
	} rows[] = {
		{offsetof(struct spw_status_page, sequence), 1, sizeof(struct spw_status_page)},
		{offsetof(struct spw_status_page, version), 99, sizeof(struct spw_status_page)},
		{offsetof(struct spw_status_page, magic), 0, sizeof(struct spw_status_page)},
		{offsetof(struct spw_status_page, size), 8, 8},
	};
	struct spw_status_name names[64];
	char path[128];

	page_path(path, sizeof(path));
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct child *child = open_in_child(false);
		struct stat st;
		int fd = open(path, O_RDWR);

		print_message("row %u\n", i);
		assert_true(fd >= 0);
		/* Nothing happens in that store, so its process leaves the page as it is here. */
		assert_int_equal(pwrite(fd, &rows[i].value, 4, (off_t)rows[i].offset), 4);
		assert_int_equal(ftruncate(fd, rows[i].len), 0);
		assert_int_equal(close(fd), 0);
		assert_true(spw_status_list(names, 64) >= 0);
		assert_int_equal(stat(path, &st), 0);
		kill_child(child);
		assert_true(spw_status_list(names, 64) >= 0);
		expect_swept(path);
	}
}

/* A process that died while it wrote its page has left it behind as any other has. */
HELD_CASE(test_page_of_a_dead_writer_is_not_waited_for)
{
	const uint32_t odd = 1;
	char path[128];
	struct child *child = open_in_child(false);
	int fd, rc;

	page_path(path, sizeof(path));
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, &odd, 4, offsetof(struct spw_status_page, sequence)), 4);
	assert_int_equal(close(fd), 0);
	assert_int_equal(spw_status_read(formatted.store_uuid, 0, &status, sizeof(status)),
			 -EUCLEAN);
	kill_child(child);
	rc = spw_status_read(formatted.store_uuid, 0, &status, sizeof(status));
	assert_true(rc == -ESRCH || rc == -ENOENT); /* another program may have swept it */
}

/* Containers may share /dev/shm without process numbers: theirs mean others here, or none. */
HELD_CASE(test_a_page_of_another_pid_namespace_lives)
{
	struct spw_status_name names[64];
	char path[128];
	struct stat st;
	struct child *child;

	if (geteuid() != 0) {
		print_message("a PID namespace needs root\n");
		skip();
	}
	child = open_in_child(true);
	page_path(path, sizeof(path));
	assert_true(spw_status_list(names, 64) >= 1);
	assert_int_equal(stat(path, &st), 0);
	assert_ok(spw_status_read(formatted.store_uuid, 0, &status, sizeof(status)));
	assert_int_equal(status.pid, 1);
	kill_child(child);
}

static void live_on(uint64_t argument)
{
	(void)argument;
	child_says_and_waits();
}

/* What a forked child inherits would else keep a dead parent's page, and so its partition. */
CASE_WITH(test_a_child_does_not_own_its_parents_page, format_and_open, end_children)
{
	struct child *child = start_child(0, live_on, 0);

	await_step(child);
	close_store(store);
	assert_int_equal(spw_status_read(formatted.store_uuid, 0, &status, sizeof(status)),
			 -ENOENT);
	store = open_default();
	let_go_on(child);
	assert_int_equal(reap(child), 0);
}

RUN_CASES(drives_from_environment, NULL)
