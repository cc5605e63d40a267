/* SPDX-License-Identifier: MIT */
/* tests/unit/test_vfio_hold.c - controllers opened and closed in parallel */
/* wrap: spw_vfio__link_open spw_vfio__controller_open spw_vfio__controller_close spw_vfio__admin */
/* wrap: spw_vfio__command */
/* wrap: pthread_create */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/meet.h"
#include "tests/wrap.h"

#include <spillway/store.h>

#include "engine/device.h"
#include "engine/vfio/controller.h"
#include "util/util.h"

#define CONTROLLERS 4u

static const char *const paths[] = {"pci:0000:01:00.0/1", "pci:0000:02:00.0/1",
				    "pci:0000:03:00.0/1", "pci:0000:04:00.0/1",
				    "pci:0000:04:00.0/2"};
/* The last one is not there. */
static const char *const others[] = {"pci:0000:01:00.0", "/dev/null", "pci:0000:99:00.0"};

static struct spw_vfio_link links[CONTROLLERS];
static unsigned open_now, opens, closes; /* meet_lock is held */
static char said[1024];

static void collect(void *context, enum spw_log_level level, const char *message)
{
	size_t used = strlen(said);

	(void)context;
	(void)level;
	(void)snprintf(said + used, sizeof(said) - used, "%s\n", message);
}

static const struct spw_log listener = {.write = collect};

WRAP(int, spw_vfio__link_open, (const char *address, struct spw_vfio_link **link))
{
	unsigned i = (unsigned)strtoul(address + 5, NULL, 16) - 1;

	if (i >= CONTROLLERS)
		return spw_error(-ENODEV, "there is no %s", address);
	*link = &links[i];
	return 0;
}

WRAP(int, spw_vfio__controller_open,
     (struct spw_vfio_link * link, struct spw_vfio_controller **controller))
{
	*controller = calloc(1, sizeof(**controller));
	if (!*controller)
		return -ENOMEM;
	(*controller)->link = link;
	(*controller)->namespaces = 2;
	(*controller)->command_bytes_max = 131072;
	meet();
	(void)pthread_mutex_lock(&meet_lock);
	opens++;
	open_now++;
	(void)pthread_mutex_unlock(&meet_lock);
	return 0;
}

WRAP(void, spw_vfio__controller_close, (struct spw_vfio_controller * controller))
{
	meet();
	(void)pthread_mutex_lock(&meet_lock);
	closes++;
	open_now--;
	(void)pthread_mutex_unlock(&meet_lock);
	free(controller);
}

/* All that is asked is what a namespace is like. */
WRAP(int, spw_vfio__admin,
     (struct spw_vfio_controller * controller, const union spw_vfio_command *command, void *data,
      uint32_t len_bytes, uint32_t *result))
{
	(void)controller;
	(void)command;
	(void)result;
	memset(data, 0, len_bytes);
	((uint8_t *)data)[1] = 0x80;
	((uint8_t *)data)[130] = 9;
	return 0;
}

/* There is nothing on it. */
WRAP(int, spw_vfio__command,
     (struct spw_vfio_controller * controller, const union spw_vfio_command *command, void *data,
      uint32_t len_bytes))
{
	(void)controller;
	if (command->opcode == SPW_NVME_READ)
		memset(data, 0, len_bytes);
	return 0;
}

static void open_all(struct spw_device *devices[], unsigned count)
{
	struct spw_device_opts opts;

	spw_device_opts_init(&opts, sizeof(opts));
	opts.log = listener;
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(spw_device_open(paths[i], &opts, &devices[i]), 0);
}

static void close_all(struct spw_device *const devices[], unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		spw_device_close(devices[i]);
}

static int begin(void **state)
{
	(void)state;
	begin_meeting(1);
	said[0] = '\0';
	open_now = opens = closes = 0;
	for (unsigned i = 0; i < CONTROLLERS; i++) {
		links[i] = (struct spw_vfio_link){.numa_node = -1, .wanted_back = -1};
		(void)snprintf(links[i].address, sizeof(links[i].address), "0000:%02x:00.0", i + 1);
	}
	return 0;
}

CASE_WITH(test_opened_and_closed_at_the_same_time, begin, NULL)
{
	struct spw_device *devices[SPW_ARRAY_LEN(paths)];
	struct spw_vfio_hold *hold;

	begin_meeting(CONTROLLERS);
	/* Two namespaces of one controller among them. */
	hold = spw_vfio__hold(paths, SPW_ARRAY_LEN(paths), NULL);
	assert_non_null(hold);
	assert_int_equal(open_now, CONTROLLERS);
	open_all(devices, SPW_ARRAY_LEN(paths));
	spw_vfio__let_go(hold);
	assert_int_equal(open_now, CONTROLLERS);
	hold = spw_vfio__hold_open(devices, SPW_ARRAY_LEN(paths));
	assert_non_null(hold);
	close_all(devices, SPW_ARRAY_LEN(paths));
	assert_int_equal(open_now, CONTROLLERS);
	spw_vfio__let_go(hold);
	assert_int_equal(open_now, 0);
	/* Two are a gain, though one of them cannot be had. */
	assert_null(spw_vfio__hold(others, 2, NULL));
	begin_meeting(1);
	hold = spw_vfio__hold(others, 3, NULL);
	assert_non_null(hold);
	assert_int_equal(open_now, 1);
	spw_vfio__let_go(hold);
	spw_vfio__let_go(NULL);
	assert_int_equal(open_now, 0);
	begin_meeting(CONTROLLERS);
	/* What was not opened meanwhile is closed at once, too. */
	hold = spw_vfio__hold(paths, SPW_ARRAY_LEN(paths), NULL);
	spw_vfio__let_go(hold);
	assert_int_equal(open_now, 0);
	assert_int_equal(opens, 2 * CONTROLLERS + 1);
	assert_int_equal(meeting.alone, 0);
}

/*
 * Those that another process has open stay so, and so do those that are opened again before
 * they are released.
 */
CASE_WITH(test_what_others_have_stays_open, begin, NULL)
{
	struct spw_device *devices[SPW_ARRAY_LEN(paths)], *other, *again, *mixed[3];
	struct spw_vfio_hold *hold;

	begin_meeting(1);
	open_all(devices, 3);
	assert_int_equal(spw_device_open(paths[1], NULL, &other), 0);
	hold = spw_vfio__hold_open(devices, 3);
	close_all(devices, 3);
	assert_int_equal(spw_device_open(paths[2], NULL, &again), 0);
	opens = closes = 0;
	spw_vfio__let_go(hold);
	assert_int_equal(closes, 1);
	assert_int_equal(open_now, 2);
	mixed[0] = other;
	mixed[1] = NULL;
	mixed[2] = again;
	hold = spw_vfio__hold_open(mixed, 3);
	spw_device_close(other);
	spw_device_close(again);
	assert_int_equal(open_now, 2);
	begin_meeting(2);
	spw_vfio__let_go(hold);
	assert_int_equal(open_now, 0);
	assert_int_equal(opens, 0);
	assert_int_equal(meeting.alone, 0);
}

/* All are held all the same, which takes longer, and is said. */
CASE_WITH(test_without_threads, begin, NULL)
{
	struct spw_device *devices[CONTROLLERS];

	for (unsigned threads = 0; threads < CONTROLLERS - 1; threads++) {
		struct spw_vfio_hold *hold;
		char words[64];

		said[0] = '\0';
		meeting.threads_left = threads;
		hold = spw_vfio__hold(paths, CONTROLLERS, &listener);
		assert_non_null(hold);
		assert_int_equal(open_now, CONTROLLERS);
		(void)snprintf(words, sizeof(words), "%u controllers are opened by %u thread",
			       CONTROLLERS, threads + 1);
		assert_non_null(strstr(said, words));
		opens = 0;
		open_all(devices, CONTROLLERS);
		assert_int_equal(opens, 0);
		spw_vfio__let_go(hold);
		said[0] = '\0';
		hold = spw_vfio__hold_open(devices, CONTROLLERS);
		close_all(devices, CONTROLLERS);
		assert_int_equal(open_now, CONTROLLERS);
		meeting.threads_left = threads;
		spw_vfio__let_go(hold);
		assert_int_equal(open_now, 0);
		(void)snprintf(words, sizeof(words), "%u controllers are closed by %u thread",
			       CONTROLLERS, threads + 1);
		assert_non_null(strstr(said, words));
	}
}

/* A store that cannot be opened gives its controllers back at the same time, too. */
CASE_WITH(test_a_failed_open, begin, NULL)
{
	struct spw_store_opts opts;
	struct spw_store *store;

	begin_meeting(CONTROLLERS);
	spw_store_opts_init(&opts, sizeof(opts));
	assert_true(spw_store_open(paths, CONTROLLERS, &opts, &store) < 0);
	assert_int_equal(opens, CONTROLLERS);
	assert_int_equal(closes, CONTROLLERS);
	assert_int_equal(open_now, 0);
	assert_int_equal(meeting.alone, 0);
}

/* In a child of fork(2) the registers of what is open are not there. */
CASE_WITH(test_a_child_is_refused_what_its_parent_has, begin, NULL)
{
	struct spw_device *devices[2], *device;
	int status;
	pid_t child;

	open_all(devices, 1);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		char words[32];

		(void)snprintf(words, sizeof(words), "process %d had it open", (int)getppid());
		if (spw_device_open(paths[0], NULL, &device) != -EBUSY ||
		    !strstr(spw_last_error(), words))
			_exit(1);
		_exit(spw_device_open(paths[1], NULL, &device) == 0 ? 0 : 2);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_int_equal(spw_device_open(paths[0], NULL, &devices[1]), 0);
	close_all(devices, 2);
	assert_int_equal(open_now, 0);
}

RUN_CASES(NULL, NULL)
