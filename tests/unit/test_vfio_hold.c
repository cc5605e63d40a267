/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_vfio_hold.c - controllers opened and closed at the same time, each of which waits
 * for all the others to get as far
 */
/* wrap: spw_vfio_link_open spw_vfio_controller_open spw_vfio_controller_close spw_vfio_admin */
/* wrap: spw_vfio_command */
/* wrap: pthread_create */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include <spillway/store.h>

#include "engine/device.h"
#include "engine/vfio/controller.h"
#include "util/util.h"

#define CONTROLLERS 4u
#define PATIENCE_S  20

static const char *const paths[] = {"pci:0000:01:00.0/1", "pci:0000:02:00.0/1",
				    "pci:0000:03:00.0/1", "pci:0000:04:00.0/1",
				    "pci:0000:04:00.0/2"};

static struct spw_vfio_link links[CONTROLLERS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned wanted, arrived, alone, open_now, opens, closes;
static unsigned threads_left; /* that can be started */
static char said[1024];

static void collect(void *context, enum spw_log_level level, const char *message)
{
	size_t used = strlen(said);

	(void)context;
	(void)level;
	(void)snprintf(said + used, sizeof(said) - used, "%s\n", message);
}

static const struct spw_log listener = {.write = collect};

/* Return when @wanted have called it. One that waits in vain is counted. */
static void meet(void)
{
	struct timespec until;

	(void)clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_S;
	(void)pthread_mutex_lock(&mutex);
	if (++arrived % wanted == 0)
		(void)pthread_cond_broadcast(&changed);
	for (unsigned goal = (arrived + wanted - 1) / wanted * wanted; arrived < goal;)
		if (pthread_cond_timedwait(&changed, &mutex, &until)) {
			alone++;
			break;
		}
	(void)pthread_mutex_unlock(&mutex);
}

int __wrap_spw_vfio_link_open(const char *address, struct spw_vfio_link **link);
int __wrap_spw_vfio_controller_open(struct spw_vfio_link *link,
				    struct spw_vfio_controller **controller);
void __wrap_spw_vfio_controller_close(struct spw_vfio_controller *controller);
int __wrap_spw_vfio_admin(struct spw_vfio_controller *controller,
			  const union spw_vfio_command *command, void *data, uint32_t len_bytes,
			  uint32_t *result);

int __wrap_spw_vfio_link_open(const char *address, struct spw_vfio_link **link)
{
	unsigned i = (unsigned)strtoul(address + 5, NULL, 16) - 1;

	if (i >= CONTROLLERS)
		return spw_error(-ENODEV, "there is no %s", address);
	*link = &links[i];
	return 0;
}

int __wrap_spw_vfio_controller_open(struct spw_vfio_link *link,
				    struct spw_vfio_controller **controller)
{
	*controller = calloc(1, sizeof(**controller));
	if (!*controller)
		return -ENOMEM;
	(*controller)->link = link;
	(*controller)->namespaces = 2;
	(*controller)->command_bytes_max = 131072;
	meet();
	(void)pthread_mutex_lock(&mutex);
	opens++;
	open_now++;
	(void)pthread_mutex_unlock(&mutex);
	return 0;
}

void __wrap_spw_vfio_controller_close(struct spw_vfio_controller *controller)
{
	meet();
	(void)pthread_mutex_lock(&mutex);
	closes++;
	open_now--;
	(void)pthread_mutex_unlock(&mutex);
	free(controller);
}

/* All that is asked is what a namespace is like. */
int __wrap_spw_vfio_admin(struct spw_vfio_controller *controller,
			  const union spw_vfio_command *command, void *data, uint32_t len_bytes,
			  uint32_t *result)
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
int __wrap_spw_vfio_command(struct spw_vfio_controller *controller,
			    const union spw_vfio_command *command, void *data, uint32_t len_bytes,
			    bool sends, bool fetches);

int __wrap_spw_vfio_command(struct spw_vfio_controller *controller,
			    const union spw_vfio_command *command, void *data, uint32_t len_bytes,
			    bool sends, bool fetches)
{
	(void)controller;
	(void)command;
	(void)sends;
	if (fetches)
		memset(data, 0, len_bytes);
	return 0;
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
			  void *(*work)(void *), void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
			  void *(*work)(void *), void *context);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
			  void *(*work)(void *), void *context)
{
	if (threads_left == 0)
		return EAGAIN;
	threads_left--;
	return __real_pthread_create(thread, attributes, work, context);
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

static void test_opened_and_closed_at_the_same_time(void **state)
{
	struct spw_device *devices[SPW_ARRAY_LEN(paths)];
	struct spw_vfio_hold *hold;

	(void)state;
	wanted = CONTROLLERS;
	/* Two namespaces of one controller among them. */
	hold = spw_vfio_hold(paths, SPW_ARRAY_LEN(paths), NULL);
	assert_non_null(hold);
	assert_int_equal(open_now, CONTROLLERS);
	open_all(devices, SPW_ARRAY_LEN(paths));
	spw_vfio_let_go(hold);
	assert_int_equal(open_now, CONTROLLERS);
	hold = spw_vfio_hold_open(devices, SPW_ARRAY_LEN(paths));
	assert_non_null(hold);
	close_all(devices, SPW_ARRAY_LEN(paths));
	assert_int_equal(open_now, CONTROLLERS);
	spw_vfio_let_go(hold);
	assert_int_equal(open_now, 0);
	/* What nobody has opened meanwhile is closed at once, too. */
	hold = spw_vfio_hold(paths, SPW_ARRAY_LEN(paths), NULL);
	spw_vfio_let_go(hold);
	assert_int_equal(open_now, 0);
	assert_int_equal(opens, 2 * CONTROLLERS);
	assert_int_equal(alone, 0);
}

/*
 * Those that somebody else has open stay so, and so do those that are opened again before they are
 * let go of.
 */
static void test_what_others_have_stays_open(void **state)
{
	struct spw_device *devices[SPW_ARRAY_LEN(paths)], *other, *again, *mixed[3];
	struct spw_vfio_hold *hold;

	(void)state;
	wanted = 1;
	open_all(devices, 3);
	assert_int_equal(spw_device_open(paths[1], NULL, &other), 0);
	hold = spw_vfio_hold_open(devices, 3);
	close_all(devices, 3);
	assert_int_equal(spw_device_open(paths[2], NULL, &again), 0);
	opens = closes = 0;
	spw_vfio_let_go(hold);
	assert_int_equal(closes, 1);
	assert_int_equal(open_now, 2);
	mixed[0] = other;
	mixed[1] = NULL;
	mixed[2] = again;
	/* One alone gains nothing. */
	assert_null(spw_vfio_hold_open(mixed, 2));
	hold = spw_vfio_hold_open(mixed, 3);
	spw_device_close(other);
	spw_device_close(again);
	assert_int_equal(open_now, 2);
	wanted = 2;
	arrived = 0;
	spw_vfio_let_go(hold);
	assert_int_equal(open_now, 0);
	assert_int_equal(opens, 0);
	assert_int_equal(alone, 0);
}

/* All are held all the same, which takes longer, and is said. */
static void test_without_threads(void **state)
{
	struct spw_device *devices[CONTROLLERS];

	(void)state;
	for (unsigned threads = 0; threads < CONTROLLERS - 1; threads++) {
		struct spw_vfio_hold *hold;
		char words[64];

		said[0] = '\0';
		threads_left = threads;
		hold = spw_vfio_hold(paths, CONTROLLERS, &listener);
		assert_non_null(hold);
		assert_int_equal(open_now, CONTROLLERS);
		(void)snprintf(words, sizeof(words),
			       "%u of %u controllers are opened one after the other",
			       CONTROLLERS - threads, CONTROLLERS);
		assert_non_null(strstr(said, words));
		opens = 0;
		open_all(devices, CONTROLLERS);
		assert_int_equal(opens, 0);
		spw_vfio_let_go(hold);
		said[0] = '\0';
		hold = spw_vfio_hold_open(devices, CONTROLLERS);
		close_all(devices, CONTROLLERS);
		assert_int_equal(open_now, CONTROLLERS);
		threads_left = threads;
		spw_vfio_let_go(hold);
		assert_int_equal(open_now, 0);
		(void)snprintf(words, sizeof(words),
			       "%u of %u controllers are closed one after the other",
			       CONTROLLERS - threads, CONTROLLERS);
		assert_non_null(strstr(said, words));
	}
}

/* A store that cannot be opened gives its controllers back at the same time, too. */
static void test_a_failed_open(void **state)
{
	struct spw_store_opts opts;
	struct spw_store *store;

	(void)state;
	wanted = CONTROLLERS;
	spw_store_opts_init(&opts, sizeof(opts));
	assert_true(spw_store_open(paths, CONTROLLERS, &opts, &store) < 0);
	assert_int_equal(opens, CONTROLLERS);
	assert_int_equal(closes, CONTROLLERS);
	assert_int_equal(open_now, 0);
	assert_int_equal(alone, 0);
}

static int begin(void **state)
{
	(void)state;
	wanted = 1;
	threads_left = UINT_MAX;
	said[0] = '\0';
	arrived = alone = open_now = opens = closes = 0;
	for (unsigned i = 0; i < CONTROLLERS; i++) {
		links[i] = (struct spw_vfio_link){.numa_node = -1, .wanted_back = -1};
		(void)snprintf(links[i].address, sizeof(links[i].address), "0000:%02x:00.0", i + 1);
	}
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_opened_and_closed_at_the_same_time, begin),
		cmocka_unit_test_setup(test_what_others_have_stays_open, begin),
		cmocka_unit_test_setup(test_without_threads, begin),
		cmocka_unit_test_setup(test_a_failed_open, begin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
