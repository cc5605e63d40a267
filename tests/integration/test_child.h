/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_child.h - for tests of the store: a child that works until it is killed,
 * at a moment drawn by lot
 */
#ifndef SPW_TEST_CHILD_H
#define SPW_TEST_CHILD_H

#include "tests/integration/test_store.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* In a child, where cmocka's asserts would return into the parent's test. */
#define child_check(condition)                                                             \
	do {                                                                               \
		if (!(condition)) {                                                        \
			fprintf(stderr, "child, line %d: %s (%s)\n", __LINE__, #condition, \
				spw_last_error());                                         \
			_exit(1);                                                          \
		}                                                                          \
	} while (0)

static pid_t child_pid; /* 0: there is none */

/*
 * Begin @work in a process of its own, and return when it has said by child_says() that it has
 * begun.
 */
__attribute__((unused)) static void start_child(void (*work)(int said, uint64_t random),
						uint64_t random)
{
	int said[2];
	char word;

	assert_int_equal(pipe(said), 0);
	(void)fflush(NULL);
	child_pid = fork();
	assert_true(child_pid >= 0);
	if (child_pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)close(said[0]);
		work(said[1], random);
		_exit(0);
	}
	(void)close(said[1]);
	if (read(said[0], &word, 1) != 1)
		fail_msg("the child has ended instead of beginning");
	(void)close(said[0]);
}

__attribute__((unused)) static void child_says(int said)
{
	char word = 's';

	child_check(write(said, &word, 1) == 1);
}

/* The moment itself is what is random here. */
__attribute__((unused)) static void kill_child_within(uint64_t *seed, uint64_t us)
{
	struct timespec delay = {.tv_nsec = (long)(random_below(seed, us) * 1000)};
	int status;

	(void)nanosleep(&delay, NULL);
	assert_int_equal(kill(child_pid, SIGKILL), 0);
	assert_int_equal(waitpid(child_pid, &status, 0), child_pid);
	child_pid = 0;
	if (!WIFSIGNALED(status))
		fail_msg("the child ended by itself with status %d", WEXITSTATUS(status));
}

/* After a test, also after one that failed half-way. */
__attribute__((unused)) static int end_child(void **state)
{
	if (child_pid > 0) {
		(void)kill(child_pid, SIGKILL);
		(void)waitpid(child_pid, NULL, 0);
		child_pid = 0;
	}
	return close_stores(state);
}

#endif
