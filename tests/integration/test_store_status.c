/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_store_status.c - who has a partition open, and what the shared page tells
 * about it
 */
#include "tests/integration/test_store.h"
#include "drives/status.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct spw_status status;

static void page_path(const struct spw_store_info *info, char *path, size_t len)
{
	(void)snprintf(path, len, "/dev/shm/spillway-%s-0", info->store_uuid);
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
	fail_msg("the page shows %llu puts after five seconds, not %llu",
		 (unsigned long long)status.store.puts, (unsigned long long)puts);
}

static void test_page_of_an_open_store(void **state)
{
	struct spw_store_info info = format_drives(4, 2, 0);
	struct spw_status_name names[64];
	struct spw_store *store;
	char path[128];
	struct stat st;
	int count, seen = 0;
	void *bytes;

	(void)state;
	assert_int_equal(spw_status_read(info.store_uuid, 0, &status, sizeof(status)), -ENOENT);
	store = open_default();
	assert_ok(spw_store_alloc(store, 8 * MIB, &bytes));
	content_fill(bytes, 8 * MIB, 1);
	(void)put_wait(store, bytes, 8 * MIB);
	read_until_puts(info.store_uuid, 1);
	assert_int_equal(status.pid, getpid());
	assert_string_equal(status.store_uuid, info.store_uuid);
	assert_int_equal(status.drives, 4);
	assert_int_equal(status.store.bytes_put, 8 * MIB);
	for (unsigned i = 0; i < 4; i++) {
		assert_true(status.drive[i].bytes_written > 0);
		assert_true(status.drive[i].write_latency_ns_p99 >=
			    status.drive[i].write_latency_ns_p50);
		assert_true(status.drive[i].write_latency_ns_p50 > 0);
	}
	page_path(&info, path, sizeof(path));
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	count = spw_status_list(names, 64);
	for (int i = 0; i < count && i < 64; i++)
		seen += strcmp(names[i].store_uuid, info.store_uuid) == 0 &&
			names[i].partition == 0;
	assert_int_equal(seen, 1);
	assert_int_equal(spw_status_revive(info.store_uuid, 0, 4), -EINVAL);
	assert_ok(spw_status_revive(info.store_uuid, 0, 3));
	close_store(store);
	assert_int_equal(stat(path, &st), -1);
	assert_int_equal(spw_status_read(info.store_uuid, 0, &status, sizeof(status)), -ENOENT);
}

/* of a pipe whose other end the process that has the store open keeps until it ends */
static int child_end;

/* Go on as the first process of a PID namespace, which ends with this one. @fd: its alone */
static void become_first_process(int fd)
{
	pid_t pid;

	if (unshare(CLONE_NEWPID))
		_exit(1);
	pid = fork();
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		return;
	}
	(void)close(fd);
	while (pid > 0)
		(void)pause();
	_exit(1);
}

/* A child that opens the partition, tells through the pipe, and waits to be killed. */
static pid_t open_in_child(int *told, bool in_namespace)
{
	int ends[2];
	char byte;
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	release_controllers();
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct spw_store_opts opts = default_opts();
		struct spw_store *store;

		if (in_namespace)
			become_first_process(ends[1]);
		byte = spw_store_open(drive_paths, 4, &opts, &store) == 0;
		if (write(ends[1], &byte, 1) != 1)
			_exit(1);
		for (;;)
			(void)pause();
	}
	(void)close(ends[1]);
	assert_int_equal(read(ends[0], &byte, 1), 1);
	*told = byte;
	child_end = ends[0];
	return pid;
}

static void kill_child(pid_t pid)
{
	char byte;

	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(read(child_end, &byte, 1), 0);
	(void)close(child_end);
}

static void test_who_holds_it(void **state)
{
	struct spw_store_info info = format_drives(4, 1, 0);
	struct spw_store_opts opts = default_opts();
	struct spw_store *store;
	char path[128], pid_text[32];
	int opened, rc;
	pid_t pid = open_in_child(&opened, false);

	(void)state;
	assert_true(opened);
	(void)snprintf(pid_text, sizeof(pid_text), "process %d", pid);
	assert_int_equal(spw_store_open(drive_paths, 4, &opts, &store), -EBUSY);
	assert_non_null(strstr(spw_last_error(), pid_text));
	kill_child(pid);
	/*
	 * What it left behind is not believed, and is in nobody's way; a program beside this one
	 * may have swept it.
	 */
	page_path(&info, path, sizeof(path));
	rc = spw_status_read(info.store_uuid, 0, &status, sizeof(status));
	if (rc != -ESRCH) {
		assert_int_equal(rc, -ENOENT);
		assert_int_equal(access(path, F_OK), -1);
	}
	store = open_drives(4, &opts);
	assert_ok(spw_status_read(info.store_uuid, 0, &status, sizeof(status)));
	assert_int_equal(status.pid, getpid());
	close_store(store);
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
 * for: whoever takes any partition waits for it, as one who wants this one does.
 */
static void test_any_partition_of_a_killed_process(void **state)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	struct spw_store_opts opts = default_opts();
	struct spw_drive_info drives[4];
	struct spw_store *store;
	int opened;
	pid_t pid;

	(void)state;
	if (strncmp(drive_paths[0], "pci:", 4) == 0) {
		print_message("a controller behind vfio has no locks that others see\n");
		skip();
	}
	(void)format_drives(4, 1, 0);
	memset(drives, 0, sizeof(drives));
	drives[0].size = sizeof(drives[0]);
	assert_ok(spw_check(drive_paths, 4, NULL, drives));
	pid = open_in_child(&opened, false);
	assert_true(opened);
	kill_child(pid);
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
	close_store(store);
}

/* A page that anybody could have written is not trusted. */
static void test_page_that_makes_no_sense(void **state)
{
	struct spw_store_info info = format_drives(4, 1, 0);
	char path[128];
	FILE *file;

	(void)state;
	page_path(&info, path, sizeof(path));
	file = fopen(path, "wx");
	assert_non_null(file);
	assert_true(fputs("nonsense", file) >= 0);
	assert_int_equal(spw_status_read(info.store_uuid, 0, &status, sizeof(status)), -EUCLEAN);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(truncate(path, 1 << 20), 0);
	assert_int_equal(spw_status_read(info.store_uuid, 0, &status, sizeof(status)), -EUCLEAN);
	assert_int_equal(unlink(path), 0);
}

static char pipe_path[128];

/* Whoever opens a store after this test shall not wait, too. */
static void give_up(int number)
{
	static const char words[] = "waits for the other end of a pipe\n";

	(void)number;
	(void)unlink(pipe_path);
	if (write(STDERR_FILENO, words, sizeof(words) - 1) < 0)
		_exit(2);
	_exit(1);
}

/* Nobody waits for the other end of what is no page. */
static void test_pipe_instead_of_a_page(void **state)
{
	struct spw_store_info info = format_drives(4, 1, 0);
	struct spw_status_name names[64];
	struct spw_store *store;

	(void)state;
	page_path(&info, pipe_path, sizeof(pipe_path));
	assert_true(signal(SIGALRM, give_up) != SIG_ERR);
	(void)alarm(60);
	assert_int_equal(mkfifo(pipe_path, 0666), 0);
	assert_int_equal(spw_status_read(info.store_uuid, 0, &status, sizeof(status)), -EUCLEAN);
	assert_true(spw_status_list(names, 64) >= 0);
	store = open_default();
	assert_ok(spw_status_read(info.store_uuid, 0, &status, sizeof(status)));
	close_store(store);
	(void)alarm(0);
}

static _Atomic bool cut_off_done;

static void *cut_off(void *path)
{
	int fd = open(path, O_RDWR);

	while (fd >= 0 && !atomic_load(&cut_off_done))
		if (ftruncate(fd, 0) || ftruncate(fd, sizeof(struct spw_status_page)))
			break;
	(void)close(fd);
	return NULL;
}

/*
 * Who looks at a page does not depend on its owner's goodwill: it may be cut off under one's eyes.
 */
static void test_page_that_is_cut_off(void **state)
{
	struct spw_store_info info = format_drives(4, 1, 0);
	struct spw_store *store = open_default();
	struct spw_status_name names[64];
	char path[128], other[128];
	pthread_t thread;

	(void)state;
	page_path(&info, path, sizeof(path));
	(void)snprintf(other, sizeof(other), "/dev/shm/spillway-00000000-0000-0000-0000-%012d-0",
		       getpid());
	assert_int_equal(link(path, other), 0);
	close_store(store);
	atomic_store(&cut_off_done, false);
	assert_int_equal(pthread_create(&thread, NULL, cut_off, other), 0);
	for (unsigned i = 0; i < 2000; i++)
		assert_true(spw_status_list(names, 64) >= 0);
	atomic_store(&cut_off_done, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
	(void)unlink(other);
}

/* What a process calls itself is shown on others' terminals. */
static void test_names_do_nothing_to_a_terminal(void **state)
{
	struct spw_store_info info = format_drives(4, 1, 0);
	char path[128], text[] = "a\033[31mb";
	struct spw_store *store = open_default();
	int fd;

	(void)state;
	page_path(&info, path, sizeof(path));
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(
		pwrite(fd, text, sizeof(text), offsetof(struct spw_status_page, status.command)),
		sizeof(text));
	assert_int_equal(close(fd), 0);
	assert_ok(spw_status_read(info.store_uuid, 0, &status, sizeof(status)));
	assert_string_equal(status.command, "a?[31mb");
	close_store(store);
}

/*
 * Who sweeps has a page locked for a moment, and programs beside this one sweep, too: then it is
 * they who remove it. If nobody does, the runner ends this.
 */
static void expect_swept(const char *path)
{
	struct stat st;

	while (stat(path, &st) == 0)
		(void)sched_yield();
	assert_int_equal(errno, ENOENT);
}

/* Pages that killed processes left are removed when a store is opened, and when all are listed. */
static void test_pages_of_the_dead_are_swept(void **state)
{
	struct spw_store_info info = format_drives(4, 1, 0);
	struct spw_status_name names[64];
	struct spw_store *store;
	char path[128], other[128];
	struct stat st;
	int opened;
	pid_t pid = open_in_child(&opened, false);

	(void)state;
	assert_true(opened);
	page_path(&info, path, sizeof(path));
	/* The same page under a second name: as if another store were open in that process. */
	(void)snprintf(other, sizeof(other), "/dev/shm/spillway-00000000-0000-0000-0000-%012d-0",
		       getpid());
	assert_int_equal(link(path, other), 0);
	assert_true(spw_status_list(names, 64) >= 0);
	assert_int_equal(stat(other, &st), 0);
	kill_child(pid);
	assert_true(spw_status_list(names, 64) >= 0);
	expect_swept(other);
	expect_swept(path);
	pid = open_in_child(&opened, false);
	assert_true(opened);
	assert_int_equal(link(path, other), 0);
	kill_child(pid);
	store = open_default();
	expect_swept(other);
	close_store(store);
}

/*
 * Containers may share /dev/shm without sharing process numbers: theirs mean others here, or
 * nobody.
 */
static void test_a_page_of_another_pid_namespace_lives(void **state)
{
	struct spw_store_info info;
	struct spw_status_name names[64];
	char path[128];
	struct stat st;
	int opened;
	pid_t pid;

	(void)state;
	if (geteuid() != 0) {
		print_message("a PID namespace needs root\n");
		skip();
	}
	info = format_drives(4, 1, 0);
	pid = open_in_child(&opened, true);
	assert_true(opened);
	page_path(&info, path, sizeof(path));
	assert_true(spw_status_list(names, 64) >= 1);
	assert_int_equal(stat(path, &st), 0);
	assert_ok(spw_status_read(info.store_uuid, 0, &status, sizeof(status)));
	assert_int_equal(status.pid, 1);
	kill_child(pid);
}

/* What a forked child inherits would else keep a dead parent's page, and so its partition. */
static void test_a_child_does_not_own_its_parents_page(void **state)
{
	struct spw_store_info info = format_drives(4, 1, 0);
	struct spw_store *store = open_default();
	int ends[2], rc;
	pid_t pid;

	(void)state;
	assert_int_equal(pipe(ends), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		char byte;

		(void)close(ends[1]);
		_exit(read(ends[0], &byte, 1) != 0);
	}
	(void)close(ends[0]);
	close_store(store);
	rc = spw_status_read(info.store_uuid, 0, &status, sizeof(status));
	store = open_default();
	close_store(store);
	(void)close(ends[1]);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(rc, -ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		test_case(test_page_of_an_open_store),
		test_case(test_who_holds_it),
		test_case(test_any_partition_of_a_killed_process),
		test_case(test_page_that_makes_no_sense),
		test_case(test_pipe_instead_of_a_page),
		test_case(test_page_that_is_cut_off),
		test_case(test_names_do_nothing_to_a_terminal),
		test_case(test_pages_of_the_dead_are_swept),
		test_case(test_a_page_of_another_pid_namespace_lives),
		test_case(test_a_child_does_not_own_its_parents_page),
	};

	return cmocka_run_group_tests(tests, drives_from_environment, NULL);
}
