/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_engine_slice.c - a thread gets a short slice and keeps all else that the
 * scheduler knows of it
 */
/* link: util */

#include "tests/case.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "engine/time_slice.c"

#define SLICE_NS_MAX 1000000u

static struct spw_sched_attr attributes(void)
{
	struct spw_sched_attr attr = {0};

	assert_int_equal(syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0), 0);
	return attr;
}

/* Linux 6.12 has slices that a thread can ask for. */
static int kernel_has_slices(void)
{
	struct utsname name;
	int major = 0, minor = 0;

	assert_int_equal(uname(&name), 0);
	assert_int_equal(sscanf(name.release, "%d.%d", &major, &minor), 2);
	return major > 6 || (major == 6 && minor >= 12);
}

static void *shorten(void *result)
{
	assert_int_equal(setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 5), 0);
	assert_int_equal(spw_queue_short_slice(), 0);
	*(struct spw_sched_attr *)result = attributes();
	return NULL;
}

CASE(test_the_thread_gets_a_short_slice_and_nothing_else)
{
	struct spw_sched_attr before = attributes(), after;
	pthread_t thread;

	if (before.policy != SCHED_OTHER) {
		print_message("the tests run under a policy of their own\n");
		skip();
	}
	assert_int_equal(pthread_create(&thread, NULL, shorten, &after), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(after.policy, SCHED_OTHER);
	assert_int_equal(after.nice, 5);
	if (kernel_has_slices())
		assert_in_range(after.runtime_ns, 1, SLICE_NS_MAX);
	/* Of that thread alone. */
	after = attributes();
	assert_int_equal(after.runtime_ns, before.runtime_ns);
	assert_int_equal(after.nice, before.nice);
}

static void *shorten_batch(void *result)
{
	struct spw_sched_attr attr = attributes();

	attr.policy = SCHED_BATCH;
	assert_int_equal(syscall(SYS_sched_setattr, 0, &attr, 0), 0);
	*(int *)result = spw_queue_short_slice();
	assert_int_equal(attributes().policy, SCHED_BATCH);
	return NULL;
}

CASE(test_a_policy_of_its_own_stays)
{
	pthread_t thread;
	int ret = 0;

	assert_int_equal(pthread_create(&thread, NULL, shorten_batch, &ret), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(ret, -EOPNOTSUPP);
}

RUN_CASES(NULL, NULL)
