/* SPDX-License-Identifier: MIT */
/*
 * tests/vm/test_removal_engine.c - a drive is pulled out of the machine while a queue is at full
 * depth on it and on others
 *
 * Each io ends exactly once; what a drive that is gone says is never taken for bytes; the other
 * drives do not notice.
 */
#include "tests/integration/engine_common.h"
#include "tests/vm/machine.h"

#define DEPTH    16u
#define IO_BYTES (128u << 10)
#define MORE     200u /* ios on the drive that is gone, once it is known to be */

struct lane {
	struct spw_io io;
	char *model;
	uint64_t salt;
	bool in_flight;
};

static struct rig rig;
static struct lane lanes[RIG_DEVICES_MAX * DEPTH];
static unsigned lane_count;
static uint64_t ended_well[RIG_DEVICES_MAX], lost;
static bool stopping;

static void begin(struct lane *lane)
{
	bool is_write = rig_random() % 2;

	lane->io.op = is_write ? SPW_WRITE : SPW_READ;
	if (is_write)
		rig_fill(lane->io.buf, IO_BYTES, ++lane->salt);
	else
		memset(lane->io.buf, 0xee, IO_BYTES);
	lane->in_flight = true;
	rig_assert_ok(spw_queue_prepare(rig.queue, &lane->io), "prepare");
}

static void ended(struct spw_io *io)
{
	struct lane *lane = io->context;

	assert_true(lane->in_flight);
	lane->in_flight = false;
	if (io->res == (int32_t)IO_BYTES) {
		ended_well[io->device]++;
		if (io->op == SPW_WRITE)
			memcpy(lane->model, io->buf, IO_BYTES);
		else
			rig_assert_same(io->buf, lane->model, IO_BYTES,
					"read while a drive is pulled");
	} else if (stopping && io->res == -ECANCELED) {
		return;
	} else {
		/* Nothing else has failed, and there is no other way to fail. */
		assert_int_equal(io->res, -ENODEV);
		assert_int_equal(io->device, machine_victim());
		lost++;
	}
	if (!stopping)
		begin(lane);
}

/* What is read is compared, so all is written once. */
static void set_up_lanes(char *buffers, char *models)
{
	lane_count = rig.count * DEPTH;
	for (unsigned i = 0; i < lane_count; i++) {
		struct lane *lane = &lanes[i];

		lane->model = models + (size_t)i * IO_BYTES;
		lane->salt = rig_random();
		lane->io = (struct spw_io){.device = i % rig.count,
					   .buf = buffers + (size_t)i * IO_BYTES,
					   .len_bytes = IO_BYTES,
					   .offset_bytes = (uint64_t)(i / rig.count) * IO_BYTES,
					   .done = ended,
					   .context = lane};
		rig_fill(lane->model, IO_BYTES, lane->salt);
		rig_assert_ok(spw_device_pwrite(rig.devices[lane->io.device], lane->model, IO_BYTES,
						lane->io.offset_bytes),
			      "pwrite");
	}
}

static void reap_until(const uint64_t *counter, uint64_t wanted, const char *what)
{
	time_t deadline = machine_seconds() + MACHINE_PATIENCE_S;

	while (*counter < wanted) {
		machine_assert_before(deadline, what);
		rig_assert_ok(spw_queue_reap(rig.queue, 1, 1000000000), "reap");
	}
}

static void test_pulled_at_full_depth(void **state)
{
	char *buffers = rig_foreign((size_t)RIG_DEVICES_MAX * DEPTH * IO_BYTES);
	char *models = rig_foreign((size_t)RIG_DEVICES_MAX * DEPTH * IO_BYTES);
	unsigned victim = machine_victim(), other = (victim + 1) % rig.count;
	uint8_t *block;
	void *memory;

	(void)state;
	rig_open_arena(&rig, 4u << 20);
	rig_assert_ok(spw_arena_alloc(rig.arena, 4096, &memory), "arena memory");
	block = memory;
	rig_open_queue(&rig, DEPTH);
	set_up_lanes(buffers, models);
	for (unsigned i = 0; i < lane_count; i++)
		begin(&lanes[i]);
	reap_until(&ended_well[victim], 100, "100 ios of the drive");
	machine_pull(victim);
	reap_until(&lost, MORE, "ios of the drive that was pulled fail");
	reap_until(&ended_well[other], ended_well[other] + 100, "100 more ios of another drive");
	stopping = true;
	rig_close_queue(&rig);
	for (unsigned i = 0; i < lane_count; i++)
		assert_false(lanes[i].in_flight);
	/* Without a queue, too. */
	assert_int_equal(spw_device_pread(rig.devices[victim], block, 4096, 0), -ENODEV);
	assert_non_null(strstr(spw_last_error(), spw_device_path(rig.devices[victim])));
	assert_int_equal(spw_device_pwrite(rig.devices[victim], block, 4096, 0), -ENODEV);
	assert_int_equal(spw_device_sync(rig.devices[victim]), -ENODEV);
	rig_close(&rig);
	assert_int_equal(munmap(buffers, (size_t)RIG_DEVICES_MAX * DEPTH * IO_BYTES), 0);
	assert_int_equal(munmap(models, (size_t)RIG_DEVICES_MAX * DEPTH * IO_BYTES), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_pulled_at_full_depth)};

	if (!machine_is_there()) {
		printf("runs in the virtual machine of tests/vm\n");
		return 77;
	}
	rig_start_seed();
	if (!rig_open_devices(&rig))
		return 77;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
