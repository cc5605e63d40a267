/* SPDX-License-Identifier: MIT */
/*
 * tests/vm/test_far.c - a store over three drives of the machine and one over NVMe/TCP, whose
 * network goes away and comes back
 *
 * Set up by tests/vm/machines.py: SPW_VM_BREAK cuts the network, SPW_VM_MEND mends it.
 */
#include <pthread.h>

#include "tests/vm/objects.h"

static const int faults[] = {-EIO, -ENODEV, -ETIMEDOUT, 0};
static char heard[65536];

static void hear(void *context, enum spw_log_level level, const char *message)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

	(void)context;
	(void)level;
	(void)pthread_mutex_lock(&lock);
	(void)strncat(heard, message, sizeof(heard) - strlen(heard) - 1);
	(void)strncat(heard, "\n", sizeof(heard) - strlen(heard) - 1);
	(void)pthread_mutex_unlock(&lock);
}

static struct spw_store *open_store(void)
{
	struct spw_store_opts opts = default_opts();

	(void)format_drives(4, 1, MIB);
	heard[0] = '\0';
	opts.write_deadline_ms = 1000;
	opts.log.write = hear;
	return open_drives(4, &opts);
}

STORE_CASE(test_probe_names_the_way)
{
	struct spw_probe_info info = {.size = sizeof(info)};

	assert_ok(spw_probe(drive_paths[3], &info));
	assert_string_equal(info.geometry.transport, "tcp");
	assert_non_null(strstr(info.address, "traddr=127.0.0.1,trsvcid=4420"));
	assert_ok(spw_probe(drive_paths[0], &info));
	assert_string_equal(info.geometry.transport, "pcie");
	assert_non_null(strstr(info.address, "0000:"));
}

/* What it did not take goes elsewhere, and it is in service again once it is reached. */
STORE_CASE(test_a_network_that_comes_back)
{
	time_t deadline = machine_seconds() + MACHINE_PATIENCE_S;
	struct spw_store *store = open_store();

	put_all(store);
	assert_true(machine_run("SPW_VM_BREAK"));
	while (stats_of(store).drives_retired == 0) {
		machine_assert_before(deadline, "the drive is retired");
		put_batch(store, NULL);
	}
	assert_int_equal(stats_of(store).drives_retired, 1);
	assert_true(stats_of(store).timeouts > 0);
	put_all(store);
	assert_non_null(strstr(heard, "reached over tcp at traddr=127.0.0.1,trsvcid=4420"));
	assert_non_null(strstr(heard, "it is in service again when it takes that write"));
	assert_int_equal(get_all(store, NULL), 0);
	assert_true(machine_run("SPW_VM_MEND"));
	while (stats_of(store).drives_retired > 0) {
		machine_assert_before(deadline, "the drive comes back");
		put_batch(store, NULL);
	}
	assert_non_null(strstr(heard, "in service again"));
	put_all(store);
	assert_int_equal(get_all(store, NULL), 0);
	assert_int_equal(stats_of(store).write_errors + stats_of(store).read_errors, 0);
	close_store(store);
}

/* Reads of bytes that this machine's drives have do not wait for the network. */
STORE_CASE(test_near_copies_serve_without_a_network)
{
	struct spw_store *store = open_store();
	struct spw_drive_stats drive;
	struct spw_request *request;
	spw_object copies[BATCH];

	for (unsigned i = 0; i < BATCH; i++) {
		content_fill(memory[i], OBJECT_BYTES, i);
		assert_ok(spw_store_put_copies(store, memory[i], OBJECT_BYTES, 2, NULL, &copies[i],
					       &request));
		assert_ok(spw_request_wait(request));
	}
	spw_store_drive_stats(store, 3, &drive, sizeof(drive));
	assert_true(drive.bytes_written > 0);
	assert_true(machine_run("SPW_VM_BREAK"));
	for (unsigned i = 0; i < BATCH; i++) {
		assert_ok(spw_store_get(store, copies[i], 0, memory[0], OBJECT_BYTES,
					SPW_URGENT_READ, NULL, &request));
		assert_ok(spw_request_wait(request));
		assert_content(memory[0], OBJECT_BYTES, i, 0);
	}
	assert_int_equal(stats_of(store).reads_switched, 0);
	spw_store_drive_stats(store, 3, &drive, sizeof(drive));
	assert_int_equal(drive.bytes_read, 0);
	assert_true(machine_run("SPW_VM_MEND"));
	close_store(store);
}

RUN_OBJECT_CASES(faults)
