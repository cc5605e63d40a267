/* SPDX-License-Identifier: MIT */
/*
 * tests/case.h - a test program of cmocka: its cases, which need no list, and its main function
 *
 * CASE(name) { ... } is a test function and its entry in test_cases[], which is in the order of the
 * source. RUN_CASES() at the end of the file runs them.
 */
#ifndef SPW_TEST_CASE_H
#define SPW_TEST_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CASES_MAX 96

/* What follows the last one has no name: cmocka leaves it out. */
static struct CMUnitTest test_cases[CASES_MAX];
static int case_lines[CASES_MAX];

__attribute__((unused)) static void case_add(struct CMUnitTest added, int line)
{
	unsigned at = 0;

	if (test_cases[CASES_MAX - 1].name)
		abort();
	while (test_cases[at].name && case_lines[at] <= line)
		at++;
	memmove(&test_cases[at + 1], &test_cases[at], (CASES_MAX - 1 - at) * sizeof(test_cases[0]));
	memmove(&case_lines[at + 1], &case_lines[at], (CASES_MAX - 1 - at) * sizeof(case_lines[0]));
	test_cases[at] = added;
	case_lines[at] = line;
}

#define CASE_JOIN(name, number)  add_##name##_##number
#define CASE_ADDER(name, number) CASE_JOIN(name, number)

/* An entry. @setup, @teardown: of this case, or NULL. */
#define CASE_ENTRY(name, setup, teardown)                                                    \
	static void name(void **state);                                                      \
	__attribute__((constructor)) static void CASE_ADDER(name, __COUNTER__)(void)         \
	{                                                                                    \
		case_add((struct CMUnitTest){#name, name, setup, teardown, NULL}, __LINE__); \
	}
#define CASE_WITH(name, setup, teardown)  \
	CASE_ENTRY(name, setup, teardown) \
	static void name(__attribute__((unused)) void **state)
#define CASE(name) CASE_WITH(name, NULL, NULL)

#define RUN_CASES(setup, teardown)                                          \
	int main(void)                                                      \
	{                                                                   \
		return cmocka_run_group_tests(test_cases, setup, teardown); \
	}

/* Of a call of the library that returns 0 when all is well. */
#define assert_ok(call)                                                                          \
	do {                                                                                     \
		int result_ = (call);                                                            \
		if (result_)                                                                     \
			fail_msg("%s: %s (%s)", #call, spw_strerror(result_), spw_last_error()); \
	} while (0)

/* ... and that fails, with words that say why. */
#define expect_refusal(error, words, call)                                                 \
	do {                                                                               \
		int result_ = (call);                                                      \
		if (result_ != (error))                                                    \
			fail_msg("%s: %d (%s), not %s", #call, result_,                    \
				 result_ < 0 ? spw_last_error() : "it went well", #error); \
		expect_words(words);                                                       \
	} while (0)

/* What it says of the last call that failed. */
#define expect_words(words)                                                                \
	do {                                                                               \
		if (!strstr(spw_last_error(), (words)))                                    \
			fail_msg("\"%s\" does not say \"%s\"", spw_last_error(), (words)); \
	} while (0)

#endif
