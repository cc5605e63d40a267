/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_child.h - for tests of the store: children that work in steps, or until
 * they are killed
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

#define CHILDREN_MAX 4

struct child {
	pid_t pid; /* 0: there is none */
	int said;  /* read end */
	int told;  /* write end */
};

static struct child children[CHILDREN_MAX];

/* In the child. */
static int child_said, child_told;

static inline void child_says(void)
{
	child_check(write(child_said, "s", 1) == 1);
}

/* A step is done, and the next is waited for. */
static inline void child_says_and_waits(void)
{
	char word;

	child_says();
	if (read(child_told, &word, 1) != 1)
		_exit(3);
}

/* Begin @work in a process of its own, which ends with this one. */
static inline struct child *start_child(unsigned which, void (*work)(uint64_t argument),
					uint64_t argument)
{
	struct child *child = &children[which];
	int said[2], told[2];

	assert_int_equal(pipe(said), 0);
	assert_int_equal(pipe(told), 0);
	(void)fflush(NULL);
	child->pid = fork();
	assert_true(child->pid >= 0);
	if (child->pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		child_said = said[1];
		child_told = told[0];
		(void)close(said[0]);
		(void)close(told[1]);
		/* a sister's ends would keep her pipes open */
		for (unsigned i = 0; i < which; i++) {
			(void)close(children[i].said);
			(void)close(children[i].told);
		}
		work(argument);
		_exit(0);
	}
	(void)close(said[1]);
	(void)close(told[0]);
	child->said = said[0];
	child->told = told[1];
	return child;
}

static inline void await_step(const struct child *child)
{
	char word;

	if (read(child->said, &word, 1) != 1)
		fail_msg("the child has ended instead of doing its step");
}

static inline void let_go_on(const struct child *child)
{
	assert_int_equal(write(child->told, "g", 1), 1);
}

/* When it and its own children have ended. Return: the exit status, or minus the signal. */
static inline int reap(struct child *child)
{
	char word;
	int status;

	while (waitpid(child->pid, &status, 0) < 0)
		assert_int_equal(errno, EINTR);
	child->pid = 0;
	while (read(child->said, &word, 1) == 1)
		continue;
	(void)close(child->said);
	(void)close(child->told);
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static inline void kill_child(struct child *child)
{
	assert_int_equal(kill(child->pid, SIGKILL), 0);
	assert_int_equal(reap(child), -SIGKILL);
}

/* Kill a process that has begun to do @work, up to @us later: the moment is what is random here. */
static inline void kill_at_work(void (*work)(uint64_t argument), uint64_t argument, uint64_t *seed,
				uint64_t us)
{
	struct child *child = start_child(0, work, argument);
	struct timespec delay = {.tv_nsec = (long)(random_below(seed, us) * 1000)};

	await_step(child);
	(void)nanosleep(&delay, NULL);
	kill_child(child);
}

/* After a test, also after one that failed half-way: no child stays. */
static inline int end_children(void **state)
{
	for (unsigned i = 0; i < CHILDREN_MAX; i++)
		if (children[i].pid > 0) {
			(void)kill(children[i].pid, SIGKILL);
			(void)reap(&children[i]);
		}
	return close_stores(state);
}

/* In a case whose process has threads when it starts a child that starts some. */
static inline void skip_under_thread_sanitizer(void)
{
#ifdef __SANITIZE_THREAD__
	print_message("ThreadSanitizer takes threads of a child for those that its parent has\n");
	skip();
#endif
}

#define CHILD_CASE(name) CASE_WITH(name, NULL, end_children)

static inline struct spw_store_opts partition_opts(uint32_t partition)
{
	struct spw_store_opts opts = default_opts();

	opts.partition = partition;
	opts.arena_bytes = 16 * MIB;
	return opts;
}

static inline int open_partition(uint32_t partition, struct spw_store **opened)
{
	struct spw_store_opts opts = partition_opts(partition);

	return try_open(drive_paths, 4, &opts, opened);
}

#endif
