/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_state_share.c - updates of which a device does a part: which records, by rates
 * that are simulated
 */
/* link: simstore libspillway */
#include "state/device_share.h"

#include "tests/unit/state_rig.h"

/* ---- The model ---- */

/* What a record of the host's takes, and one of the device's. */
struct rates {
	uint64_t host_ns, device_ns;
	uint64_t drives_ns; /* that the drives take for a whole update */
};

static struct share share;
static uint64_t waited_ns; /* for drives, so far */
static bool device[RECORDS];
static enum share_off off;

static int forget(void **unused)
{
	(void)unused;
	share = (struct share){0};
	waited_ns = 0;
	off = SHARE_ON;
	return 0;
}

#define SHARE_CASE(name) CASE_WITH(name, forget, NULL)

/*
 * An update, in simulated time: the device does its records one after the other, the host the rest.
 * Return: what it takes. What the drives take longer is waited for.
 */
static uint64_t update(struct rates rates, uint32_t count, uint32_t *on_device)
{
	uint32_t records[RECORDS], mine = 0;
	uint64_t busy_ns;

	for (uint32_t i = 0; i < count; i++) {
		records[i] = i;
		device[i] = true;
	}
	spw_state__share_begin(&share, records, count, device, waited_ns);
	for (uint32_t i = 0; i < count; i++) {
		struct share_work *work = device[i] ? &share.device : &share.host;

		work->bytes += LEN;
		work->ns += device[i] ? rates.device_ns : rates.host_ns;
		mine += device[i];
	}
	busy_ns = SPW_MAX((count - mine) * rates.host_ns, mine * rates.device_ns);
	if (rates.drives_ns > busy_ns)
		waited_ns += rates.drives_ns - busy_ns;
	for (uint32_t i = 0; i < count; i++)
		if (spw_state__share_given(&share))
			off = spw_state__share_end(&share, waited_ns);
	assert_int_equal(share.left, 0);
	*on_device = mine;
	return SPW_MAX(busy_ns, rates.drives_ns);
}

SHARE_CASE(test_k_is_one_and_the_device_time_in_host_times)
{
	static const struct {
		uint64_t host_ns, device_ns;
		uint32_t k;
	} cases[] = {{1000, 1000, 2}, {1000, 1001, 3}, {1000, 2000, 3}, {1000, 2500, 4},
		     {1000, 1, 2},    {1000, 0, 2},    {1, 1000, 1001}, {0, 1, UINT32_MAX}};

	for (size_t i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		struct share_work host = {LEN, cases[i].host_ns};
		struct share_work did = {LEN, cases[i].device_ns};

		assert_int_equal(spw_state__share_stride(host, did), cases[i].k);
		/* Records of another length, in other numbers. */
		host = (struct share_work){5 * LEN, 5 * cases[i].host_ns};
		assert_int_equal(spw_state__share_stride(host, did), cases[i].k);
	}
	assert_int_equal(spw_state__share_stride((struct share_work){1, 1},
						 (struct share_work){1, UINT64_MAX}),
			 UINT32_MAX);
}

/* With k the host is never left waiting, and with one less it is. */
SHARE_CASE(test_the_host_covers_the_device)
{
	for (uint64_t device_ns = 1; device_ns < 9000; device_ns += 37) {
		struct share_work host = {LEN, 1000}, did = {LEN, device_ns};
		uint32_t k = spw_state__share_stride(host, did);

		assert_true((k - 1) * host.ns >= device_ns);
		assert_true(k == 2 || (k - 2) * host.ns < device_ns);
	}
}

SHARE_CASE(test_the_second_update_is_measured)
{
	uint32_t mine;

	/* The first takes long on both sides: another rate than later. */
	update((struct rates){.host_ns = 1000, .device_ns = 900000}, 40, &mine);
	assert_int_equal(mine, 1);
	assert_int_equal(share.stride, 0);
	update((struct rates){.host_ns = 1000, .device_ns = 2500}, 40, &mine);
	assert_int_equal(mine, 1);
	assert_int_equal(share.stride, 4);
	assert_int_equal(update((struct rates){.host_ns = 1000, .device_ns = 2500}, 40, &mine),
			 30 * 1000);
	assert_int_equal(mine, 10);
	/* Rates that change are followed. */
	update((struct rates){.host_ns = 1000, .device_ns = 1500}, 40, &mine);
	update((struct rates){.host_ns = 1000, .device_ns = 1500}, 40, &mine);
	assert_int_equal(mine, 13);
	assert_int_equal(share.stride, 3);
}

SHARE_CASE(test_a_slow_device_gets_nothing_and_is_tried_again)
{
	struct rates slow = {.host_ns = 10, .device_ns = 1000};
	uint32_t mine, alone = 0;

	update(slow, 40, &mine);
	update(slow, 40, &mine);
	assert_int_equal(off, SHARE_OFF_SLOW);
	do {
		update(slow, 40, &mine);
		alone++;
	} while (mine == 0);
	assert_int_equal(alone, 33);
	assert_int_equal(mine, 1);
	assert_int_equal(off, SHARE_OFF_SLOW);
	/* It is fast then. */
	for (uint32_t i = 0; i < 33; i++)
		update((struct rates){.host_ns = 1000, .device_ns = 1000}, 40, &mine);
	assert_int_equal(mine, 1);
	update((struct rates){.host_ns = 1000, .device_ns = 1000}, 40, &mine);
	assert_int_equal(mine, 20);
}

/* Where drives take longer than the host, a device saves nothing; where a little less, it does. */
SHARE_CASE(test_drives_that_are_waited_for_leave_nothing_to_save)
{
	struct rates rates = {.host_ns = 1000, .device_ns = 3000, .drives_ns = 60000};
	uint32_t mine;

	update(rates, 40, &mine);
	update(rates, 40, &mine);
	assert_int_equal(off, SHARE_OFF_DRIVES);
	update(rates, 40, &mine);
	assert_int_equal(mine, 0);

	forget(NULL);
	rates.drives_ns = 35000;
	update(rates, 40, &mine);
	update(rates, 40, &mine);
	assert_int_equal(off, SHARE_ON);
	for (uint32_t i = 0; i < 10; i++) {
		assert_int_equal(update(rates, 40, &mine), 35000);
		assert_int_equal(mine, 10);
	}
}

SHARE_CASE(test_what_is_given_is_not_measured)
{
	uint32_t mine;

	share.given = 3;
	for (uint32_t i = 0; i < 4; i++) {
		update((struct rates){.host_ns = 1, .device_ns = 1000, .drives_ns = 1 << 30}, 40,
		       &mine);
		assert_int_equal(mine, 13);
		assert_true(!device[0] && !device[1] && device[2] && device[5]);
	}
	assert_int_equal(share.stride, 0);
}

SHARE_CASE(test_records_that_the_device_cannot_update_stay_with_the_host)
{
	uint32_t records[9];

	share.given = 2;
	for (uint32_t i = 0; i < 9; i++) {
		records[i] = 9 - i;
		device[i] = i != 2;
	}
	spw_state__share_begin(&share, records, 9, device, 0);
	for (uint32_t i = 0; i < 9; i++)
		assert_int_equal(device[i], i != 2 && (9 - i) % 2 == 1);
	/* One alone has nothing to be done meanwhile. */
	device[0] = true;
	records[0] = 1;
	spw_state__share_begin(&share, records, 1, device, 0);
	assert_false(device[0]);
}

SHARE_CASE(test_an_update_without_a_device_decides_nothing)
{
	uint32_t records[4] = {0, 1, 2, 3};

	for (uint32_t i = 0; i < 8; i++) {
		memset(device, 0, sizeof(device));
		spw_state__share_begin(&share, records, 4, device, 0);
		for (uint32_t j = 0; j < 4; j++) {
			assert_false(device[j]);
			share.host.bytes += LEN;
			share.host.ns += 1000;
			if (spw_state__share_given(&share))
				assert_int_equal(spw_state__share_end(&share, 0), SHARE_ON);
		}
	}
	assert_int_equal(share.stride, 0);
	assert_false(share.warm);
}

/* ---- A state ---- */

static void open_shared(uint32_t device_every, uint32_t records)
{
	struct spw_state_opts opts = opts_of(5);

	opts.device_every = device_every;
	assert_ok(spw_state__open_with(fake.store, &opts, &fake_ports, &held));
	add_records(records);
	assert_int_equal(spw_state_attach(held), 0);
}

static void begin_update(uint32_t count)
{
	uint32_t order[RECORDS];

	for (uint32_t i = 0; i < count; i++) {
		order[i] = i;
		device[i] = true;
	}
	assert_ok(spw_state_update(held, order, count, device));
}

static void give_from_device(uint32_t number, bool changed)
{
	assert_ok(spw_state_device_took(held, number, 5));
	assert_ok(spw_state_give(held, number, changed));
}

/* The device has a record while the host updates those that follow. */
static void update_all(uint32_t count, uint8_t was, uint8_t is)
{
	uint32_t out = UINT32_MAX;

	begin_update(count);
	for (uint32_t i = 0; i < count; i++) {
		uint8_t *memory;

		if (!device[i]) {
			use(i, was, is);
			continue;
		}
		if (out != UINT32_MAX)
			give_from_device(out, true);
		memory = take(i);
		assert_int_equal(memory[0], was);
		memset(memory, is, LEN);
		out = i;
	}
	if (out != UINT32_MAX)
		give_from_device(out, true);
}

STATE_CASE(test_an_update_moves_what_a_pass_does)
{
	struct spw_state_stats stats;

	open_shared(4, 40);
	for (uint8_t i = 0; i < 5; i++)
		update_all(40, i, i + 1);
	stats = stats_now();
	assert_int_equal(stats.updates, 5);
	assert_int_equal(stats.device_records, 5 * 10);
	assert_int_equal(stats.device_bytes, 5 * 10 * LEN);
	assert_int_equal(stats.device_ns, 5 * 10 * 5);
	assert_int_equal(stats.host_bytes, 5 * 30 * LEN);
	assert_int_equal(stats.device_every, 4);
	assert_int_equal(stats.passes_departed, 0);
	assert_ok(spw_state_commit(held, 1, NULL, 0, false));
	pass(40, false, 5, 5);
}

STATE_CASE(test_a_pass_ends_an_update_that_has_not_ended)
{
	open_shared(2, 8);
	begin_update(8);
	use(0, 0, 1);
	(void)take(1);
	give_from_device(1, false);
	begin_pass(8, false);
	for (uint32_t i = 0; i < 8; i++)
		use(i, i == 0 ? 1 : 0, 2);
	assert_int_equal(stats_now().updates, 0);
	assert_int_equal(stats_now().host_bytes, LEN);
	/* A record that is used twice in an update is counted once. */
	begin_update(8);
	for (uint32_t i = 0; i < 8; i++) {
		use(i, 2, 3);
		use(i, 3, 2);
	}
	assert_int_equal(stats_now().updates, 1);
	assert_int_equal(stats_now().host_bytes, LEN + 4 * LEN);
}

STATE_CASE(test_what_a_device_did_is_told_of_its_records_alone)
{
	struct spw_state_opts opts = opts_of(5);

	opts.device_every = 1;
	expect_refusal(-EINVAL, "device_every is 1",
		       spw_state__open_with(fake.store, &opts, &fake_ports, &held));
	open_shared(2, 8);
	begin_update(8);
	expect_refusal(-EINVAL, "tile 1 is not on the device", spw_state_device_took(held, 1, 5));
	(void)take(0);
	expect_refusal(-EINVAL, "tile 0 is not on the device", spw_state_device_took(held, 0, 5));
	expect_refusal(-EINVAL, "record 8", spw_state_device_took(held, 8, 5));
	assert_ok(spw_state_give(held, 0, false));
	(void)take(1);
	give_from_device(1, false);
	expect_refusal(-EINVAL, "not on the device", spw_state_device_took(held, 1, 5));
}

RUN_CASES(NULL, NULL)
