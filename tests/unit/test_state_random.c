/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_state_random.c - training state against a model in plain memory: any orders and
 * departures from them, several records taken at once, drives that fail, commits, crashes
 */
/* link: simstore libspillway */
#include "tests/unit/state_rig.h"

#define RUNS  400u
#define STEPS 600u

static uint64_t seed;

/* What each record has, and what of it is durable. */
static struct {
	uint32_t records, buffers;
	uint64_t lens[RECORDS];
	bool transient[RECORDS];
	uint8_t now[RECORDS][LEN], durable[RECORDS][LEN];
	uint8_t *taken[RECORDS];
	uint32_t taken_count;
	uint64_t commits;
} model;

static uint32_t below(uint64_t limit)
{
	return (uint32_t)random_below(&seed, limit);
}

static void declare(void)
{
	open_state(model.buffers);
	for (uint32_t i = 0; i < model.records; i++) {
		char name[32];
		uint32_t number;

		(void)snprintf(name, sizeof(name), "tile %u", i);
		assert_ok(model.transient[i]
				  ? spw_state_add_transient(held, name, model.lens[i], &number)
				  : spw_state_add(held, name, model.lens[i], NULL, 0, &number));
	}
	assert_int_equal(spw_state_attach(held), model.commits > 0);
}

static void begin(void)
{
	memset(&model, 0, sizeof(model));
	model.buffers = 4 + below(12);
	model.records = 1 + below(model.buffers * 4);
	for (uint32_t i = 0; i < model.records; i++) {
		model.lens[i] = 1 + below(LEN);
		model.transient[i] = i > 0 && below(4) == 0;
	}
	fake.random = random_next(&seed);
	fake.store->chunk_bytes = 1u << below(8);
	fake.lazy = below(4);
	declare();
}

/* Drives become bad, or good again. */
static void change_luck(void)
{
	bool bad = below(3) == 0;

	fake.put_fails = bad ? 1 + below(6) : 0;
	fake.get_fails = bad && below(2) ? 1 + below(6) : 0;
	fake.put_refused = bad && below(2) ? 1 + below(6) : 0;
	fake.get_refused = bad && below(2) ? 1 + below(6) : 0;
	fake.lazy = below(4);
}

static bool is_bad(void)
{
	return fake.put_fails || fake.get_fails || fake.put_refused || fake.get_refused;
}

static void check_error(int rc)
{
	if (rc != 0 && !(is_bad() && (rc == -EIO || rc == -ENOBUFS)))
		fail_msg("%s (%s)", spw_strerror(rc), spw_last_error());
}

static void take_one(uint32_t number)
{
	void *memory;
	int rc;

	if (model.taken[number] || model.taken_count + 1 >= model.buffers)
		return;
	rc = spw_state_take(held, number, &memory);
	check_error(rc);
	if (rc)
		return;
	if (memcmp(memory, model.now[number], model.lens[number]) != 0)
		fail_msg("record %u has other bytes", number);
	model.taken[number] = memory;
	model.taken_count++;
}

static void give_one(uint32_t number)
{
	bool changed = below(4) > 0;

	if (!model.taken[number])
		return;
	for (uint64_t i = 0; changed && i < model.lens[number]; i++)
		model.now[number][i] = model.taken[number][i] = (uint8_t)random_next(&seed);
	assert_ok(spw_state_give(held, number, changed));
	model.taken[number] = NULL;
	model.taken_count--;
}

static void clear_one(uint32_t number)
{
	int rc = spw_state_clear(held, number);

	assert_int_equal(rc, model.taken[number] ? -EBUSY : 0);
	if (rc == 0)
		memset(model.now[number], 0, LEN);
}

static void give_all(void)
{
	for (uint32_t i = 0; i < model.records; i++)
		give_one(i);
}

/* Up, down, or shuffled; all, or a part. */
static uint32_t draw_order(uint32_t order[])
{
	uint32_t kind = below(3), count = model.records;

	for (uint32_t i = 0; i < count; i++)
		order[i] = kind == 1 ? count - 1 - i : i;
	for (uint32_t i = count; kind == 2 && i > 1; i--) {
		uint32_t other = below(i), was = order[i - 1];

		order[i - 1] = order[other];
		order[other] = was;
	}
	return below(3) ? count : below(count + 1);
}

static void one_pass(void)
{
	uint32_t order[RECORDS], count = draw_order(order);
	bool departs = below(3) == 0;

	give_all();
	assert_ok(spw_state_pass(held, order, count));
	for (uint32_t i = 0; i < count; i++) {
		take_one(departs && below(4) == 0 ? below(model.records) : order[i]);
		while (model.taken_count > 1 + below(3))
			for (uint32_t n = below(model.records), k = 0; k < model.records; k++)
				give_one((n + k) % model.records);
		if (below(20) == 0)
			change_luck();
	}
}

static void commit(void)
{
	int rc;

	give_all();
	rc = spw_state_commit(held, model.commits + 1, &model.commits, sizeof(model.commits),
			      below(2));
	check_error(rc);
	if (rc)
		return;
	model.commits++;
	for (uint32_t i = 0; i < model.records; i++)
		if (!model.transient[i])
			memcpy(model.durable[i], model.now[i], LEN);
}

/* Close, or crash: what was committed is there again. */
static void open_again(void)
{
	give_all();
	close_state();
	fake_check_empty();
	fake_reopen();
	memcpy(model.now, model.durable, sizeof(model.now));
	model.buffers = 4 + below(12);
	declare();
}

static void step(void)
{
	uint32_t number = below(model.records);

	switch (below(24)) {
	case 0: one_pass(); break;
	case 1: commit(); break;
	case 2: change_luck(); break;
	case 3:
		if (below(6) == 0)
			open_again();
		break;
	case 4: give_all(); break;
	case 5: clear_one(number); break;
	default:
		if (below(2))
			take_one(number);
		else
			give_one(number);
	}
}

/* Nothing was lost while drives were bad. */
static void check_all(void)
{
	fake.put_fails = fake.get_fails = fake.put_refused = fake.get_refused = 0;
	give_all();
	for (uint32_t i = 0; i < model.records; i++) {
		take_one(i);
		assert_non_null(model.taken[i]);
		give_one(i);
	}
	commit();
	open_again();
	for (uint32_t i = 0; i < model.records; i++) {
		take_one(i);
		give_one(i);
	}
	close_state();
	fake_check_empty();
}

STATE_CASE(test_takes_give_what_was_given_back_last)
{
	seed = random_seed();
	for (unsigned run = 0; run < RUNS; run++) {
		begin();
		for (unsigned i = 0; i < STEPS; i++)
			step();
		check_all();
		teardown(NULL);
		setup(NULL);
	}
}

RUN_CASES(NULL, NULL)
