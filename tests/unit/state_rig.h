/* SPDX-License-Identifier: MIT */
/* tests/unit/state_rig.h - a state over a store in memory (state_fake.h), and passes over it */
#ifndef SPW_TEST_STATE_RIG_H
#define SPW_TEST_STATE_RIG_H

#include "tests/unit/state_fake.h"

#define LEN     64u /* of most records */
#define RECORDS 400u

static struct spw_state *held;
static char logged[512];
static unsigned logs;

static inline void hear(void *context, enum spw_log_level level, const char *message)
{
	(void)context;
	assert_int_equal(level, SPW_LOG_WARNING);
	(void)snprintf(logged, sizeof(logged), "%s", message);
	logs++;
}

static inline int setup(void **unused)
{
	(void)unused;
	fake_open();
	logs = 0;
	return 0;
}

static inline void close_state(void)
{
	spw_state_close(held);
	held = NULL;
}

static inline int teardown(void **unused)
{
	(void)unused;
	close_state();
	fake_close();
	return 0;
}

#define STATE_CASE(name) CASE_WITH(name, setup, teardown)

static inline struct spw_state_opts opts_of(uint32_t buffers)
{
	struct spw_state_opts opts;

	spw_state_opts_init(&opts, sizeof(opts));
	opts.record_bytes_max = LEN;
	opts.memory_bytes = (uint64_t)buffers * LEN;
	opts.log.write = hear;
	return opts;
}

static inline void open_state(uint32_t buffers)
{
	struct spw_state_opts opts = opts_of(buffers);

	assert_ok(spw_state__open_with(fake.store, &opts, &fake_ports, &held));
}

static inline void add_records(uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		char name[32];
		uint32_t number;

		(void)snprintf(name, sizeof(name), "tile %u", i);
		assert_ok(spw_state_add(held, name, LEN, name, strlen(name), &number));
		assert_int_equal(number, i);
	}
}

static inline void open_with(uint32_t buffers, uint32_t records)
{
	open_state(buffers);
	add_records(records);
	assert_int_equal(spw_state_attach(held), 0);
}

/* What is durable is there again. */
static inline void reopen(uint32_t buffers, uint32_t records)
{
	close_state();
	fake_check_empty();
	fake_reopen();
	open_state(buffers);
	add_records(records);
	assert_int_equal(spw_state_attach(held), 1);
}

static inline struct spw_state_stats stats_now(void)
{
	struct spw_state_stats stats;

	spw_state_stats(held, &stats, sizeof(stats));
	assert_int_equal(stats.size, sizeof(stats));
	assert_int_equal(stats.hits + stats.ready + stats.waits, stats.takes);
	return stats;
}

static inline uint8_t *take(uint32_t number)
{
	void *memory;

	assert_ok(spw_state_take(held, number, &memory));
	assert_int_equal((uintptr_t)memory % 4096, 0);
	return memory;
}

/* Take it, check that all bytes are @was, make them @is, give it back. */
static inline void use(uint32_t number, uint8_t was, uint8_t is)
{
	uint8_t *memory = take(number);

	for (size_t i = 0; i < LEN; i++)
		if (memory[i] != was)
			fail_msg("record %u, byte %zu: %u instead of %u", number, i, memory[i],
				 was);
	memset(memory, is, LEN);
	assert_ok(spw_state_give(held, number, is != was));
}

static inline void begin_pass(uint32_t count, bool down)
{
	uint32_t order[RECORDS];

	for (uint32_t i = 0; i < count; i++)
		order[i] = down ? count - 1 - i : i;
	assert_ok(spw_state_pass(held, order, count));
}

/* All of a pass; each byte becomes @is. */
static inline void pass(uint32_t count, bool down, uint8_t was, uint8_t is)
{
	begin_pass(count, down);
	for (uint32_t i = 0; i < count; i++)
		use(down ? count - 1 - i : i, was, is);
}

#endif
