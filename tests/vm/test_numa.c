/* SPDX-License-Identifier: MIT */
/*
 * tests/vm/test_numa.c - a store whose drives lie on one NUMA node has its thread and its memory
 * there
 *
 * tests/vm/machine.py deals the drives out over two nodes, one after the other.
 */
#include "tests/integration/test_store.h"

#include <dirent.h>
#include <numa.h>
#include <numaif.h>
#include <sched.h>

/* The drives of a node lie first. */
static void take_drives_of(unsigned node)
{
	const char *first = drive_paths[node], *second = drive_paths[node + 2];

	drive_paths[0] = first;
	drive_paths[1] = second;
}

static int setup(void **state)
{
	drives_from_environment(state);
	if (numa_available() < 0 || numa_max_node() < 1) {
		printf("this machine has one NUMA node\n");
		exit(77);
	}
	return 0;
}

static int node_of_drive(unsigned drive)
{
	struct spw_device *device;
	int node;

	assert_ok(spw_device_open(drive_paths[drive], NULL, &device));
	node = spw_device_geometry(device)->numa_node;
	spw_device_close(device);
	return node;
}

/* The CPUs of the thread that does the store's I/O. */
static cpu_set_t cpus_of_worker(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *entry;
	cpu_set_t cpus;
	int found = 0;

	CPU_ZERO(&cpus);
	assert_non_null(tasks);
	while ((entry = readdir(tasks)) != NULL) {
		char path[sizeof(entry->d_name) + 32], name[32] = "";
		FILE *file;

		(void)snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		file = fopen(path, "re");
		if (file && fgets(name, sizeof(name), file) && strcmp(name, "spillway-io\n") == 0) {
			assert_int_equal(
				sched_getaffinity(atoi(entry->d_name), sizeof(cpus), &cpus), 0);
			found++;
		}
		if (file)
			(void)fclose(file);
	}
	(void)closedir(tasks);
	assert_int_equal(found, 1);
	return cpus;
}

static int node_of_memory(void *memory)
{
	int node = -1;

	memset(memory, 1, 4096);
	assert_int_equal(get_mempolicy(&node, NULL, 0, memory, MPOL_F_NODE | MPOL_F_ADDR), 0);
	return node;
}

/* The thread names itself when it runs: after a put it does. */
static struct spw_store *open_and_use(unsigned drives)
{
	struct spw_store_opts opts = default_opts();
	struct spw_store *store;
	uint8_t bytes[8192];
	spw_object object;

	(void)format_drives(drives, 1, MIB);
	store = open_drives(drives, &opts);
	content_fill(bytes, sizeof(bytes), 1);
	object = put_wait(store, bytes, sizeof(bytes));
	get_check(store, object, 0, bytes, sizeof(bytes), 1);
	return store;
}

static void on_node(unsigned node)
{
	struct spw_store *store;
	cpu_set_t cpus;
	char words[32];
	void *memory;

	take_drives_of(node);
	assert_int_equal(node_of_drive(0), node);
	assert_int_equal(node_of_drive(1), node);
	store = open_and_use(2);
	cpus = cpus_of_worker();
	assert_true(CPU_COUNT(&cpus) > 0);
	for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &cpus))
			assert_int_equal(numa_node_of_cpu((int)cpu), node);
	assert_ok(spw_store_alloc(store, MIB, &memory));
	assert_int_equal(node_of_memory(memory), node);
	spw_store_release(store, memory);
	(void)snprintf(words, sizeof(words), "NUMA node %u", node);
	assert_non_null(strstr(spw_store_description(store), words));
	close_store(store);
}

static void test_drives_of_node_1(void **state)
{
	(void)state;
	on_node(1);
}

static void test_drives_of_node_0(void **state)
{
	(void)state;
	on_node(0);
}

static void test_drives_of_both_nodes_bind_nothing(void **state)
{
	struct spw_store *store;
	cpu_set_t cpus;

	(void)state;
	store = open_and_use(4);
	cpus = cpus_of_worker();
	assert_int_equal(CPU_COUNT(&cpus), numa_num_configured_cpus());
	assert_null(strstr(spw_store_description(store), "NUMA"));
	close_store(store);
}

/* Who may not run there gets a store all the same, and keeps his CPUs. */
static void test_a_process_kept_to_another_node(void **state)
{
	cpu_set_t before, only, cpus;
	struct spw_store *store;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	CPU_ZERO(&only);
	for (unsigned cpu = 0; cpu < (unsigned)numa_num_configured_cpus(); cpu++)
		if (numa_node_of_cpu((int)cpu) == 0)
			CPU_SET(cpu, &only);
	assert_int_equal(sched_setaffinity(0, sizeof(only), &only), 0);
	take_drives_of(1);
	store = open_and_use(2);
	cpus = cpus_of_worker();
	assert_true(CPU_EQUAL(&cpus, &only));
	assert_null(strstr(spw_store_description(store), "NUMA"));
	close_store(store);
	assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
}

/* Each changes which drives are first. */
static const char *drives_at_start[TEST_DRIVES_MAX];

static int restore_drives(void **state)
{
	memcpy(drive_paths, drives_at_start, sizeof(drive_paths));
	return close_stores(state);
}

static int keep_drives(void **state)
{
	int result = setup(state);

	memcpy(drives_at_start, drive_paths, sizeof(drives_at_start));
	return result;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_drives_of_node_0, restore_drives),
		cmocka_unit_test_teardown(test_drives_of_node_1, restore_drives),
		cmocka_unit_test_teardown(test_drives_of_both_nodes_bind_nothing, restore_drives),
		cmocka_unit_test_teardown(test_a_process_kept_to_another_node, restore_drives),
	};

	return cmocka_run_group_tests(tests, keep_drives, NULL);
}
