/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_state_memory.c - each allocation of open, declare and attach fails once: an error
 * with words, nothing is left, and the next try succeeds
 */
/* link: simstore libspillway */
/* wrap: malloc calloc realloc strdup */
#include "tests/unit/state_rig.h"

static unsigned countdown; /* until one fails; 0: none does */

static bool fails(void)
{
	return countdown > 0 && --countdown == 0;
}

void *__real_malloc(size_t len);
void *__real_calloc(size_t count, size_t len);
void *__real_realloc(void *memory, size_t len);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t len);
void *__wrap_calloc(size_t count, size_t len);
void *__wrap_realloc(void *memory, size_t len);
char *__wrap_strdup(const char *text);

void *__wrap_malloc(size_t len)
{
	return fails() ? NULL : __real_malloc(len);
}

void *__wrap_calloc(size_t count, size_t len)
{
	return fails() ? NULL : __real_calloc(count, len);
}

void *__wrap_realloc(void *memory, size_t len)
{
	return fails() ? NULL : __real_realloc(memory, len);
}

char *__wrap_strdup(const char *text)
{
	return fails() ? NULL : __real_strdup(text);
}

static int see(void *context, const char *name, uint64_t len, const void *shape, size_t shape_len,
	       spw_object object)
{
	(void)name;
	(void)len;
	(void)shape;
	(void)shape_len;
	(void)object;
	++*(unsigned *)context;
	return 0;
}

/* Return: 0, or how the call failed in which the allocation did. */
static int all_calls(uint32_t records)
{
	struct spw_state_opts opts = opts_of(5);
	int rc = spw_state__open_with(fake.store, &opts, &fake_ports, &held);
	unsigned seen = 0;

	for (uint32_t i = 0; rc == 0 && i < records; i++) {
		char name[32];
		uint32_t number;

		(void)snprintf(name, sizeof(name), "tile %u", i);
		rc = spw_state_add(held, name, LEN, name, strlen(name), &number);
	}
	if (rc == 0)
		rc = spw_state__committed_with(fake.store, &fake_ports, see, &seen);
	if (rc == 0)
		rc = spw_state_attach(held);
	return rc == 1 ? 0 : rc;
}

STATE_CASE(test_every_allocation_may_fail)
{
	const uint32_t records = 70; /* more than there is room for at first */
	unsigned n = 0;
	int rc;

	open_with(5, records);
	pass(records, false, 0, 1);
	assert_ok(spw_state_commit(held, 1, "extra", 5, false));
	do {
		close_state();
		assert_int_equal(fake.store->arena_used, 0);
		fake_reopen();
		(void)spw_error(-EIO, "nothing");
		countdown = ++n;
		rc = all_calls(records);
		assert_true(rc == 0 || rc == -ENOMEM);
		if (rc)
			expect_words("no memory for");
	} while (countdown == 0);
	countdown = 0;
	assert_int_equal(rc, 0);
	assert_true(n > 2 * records);
	pass(records, true, 1, 2);
}

/* Nothing is committed, nothing is lost. */
STATE_CASE(test_a_commit_without_memory_is_made_again)
{
	open_with(5, 9);
	pass(9, false, 0, 1);
	for (unsigned n = 1; n <= 2; n++) {
		/* All is on the drives, where the fake needs memory, too. */
		assert_ok(spw_state_commit(held, n, NULL, 0, false));
		countdown = n;
		expect_refusal(-ENOMEM, "no memory to commit 9 records",
			       spw_state_commit(held, n + 1, NULL, 0, false));
		assert_int_equal(fake.set.number, n);
	}
	countdown = 0;
	assert_ok(spw_state_commit(held, 3, NULL, 0, false));
	pass(9, true, 1, 2);
}

RUN_CASES(NULL, NULL)
