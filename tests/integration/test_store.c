/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_store.c - what goes into the store comes out: any length, any address, any
 * part, in every mode
 */
/* layer: test and files-workers */
#include "tests/integration/store_case.h"

#include <linux/magic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define LARGEST_BYTES ((size_t)67108865)
#define GUARD_BYTES   ((size_t)64)

_Alignas(4096) static uint8_t from_memory[LARGEST_BYTES + 8 * KIB],
	to_memory[LARGEST_BYTES + 8 * KIB];

/* Get with guards on both sides of the memory: not one byte beside the range may change. */
static void get_guarded(spw_object object, uint64_t offset, size_t len, size_t odd, uint64_t seed)
{
	uint8_t *to = to_memory + GUARD_BYTES + odd;

	memset(to - GUARD_BYTES, 0x5A, GUARD_BYTES);
	memset(to + len, 0x5A, GUARD_BYTES);
	get_check(store, object, offset, to, len, seed);
	for (size_t i = 0; i < GUARD_BYTES; i++)
		if (to[i - GUARD_BYTES] != 0x5A || to[len + i] != 0x5A)
			fail_msg("get of %zu bytes wrote outside its memory", len);
}

/* ---- Lengths, addresses, ranges -------------------------------------------------------------- */

static void check_ranges(spw_object object, size_t len, uint64_t seed)
{
	uint64_t chunk = spw_store_chunk_bytes(store), random = seed;
	const struct {
		uint64_t offset, len;
	} ranges[] = {
		{0, 1},
		{len - 1, 1},
		{len / 3, len / 2},
		{1, len - 1},
		{0, len - 1},
		{511, 2},
		{4095, 2},
		{4096, 4096},
		{chunk - 1, 2},
		{chunk, chunk},
		{chunk + 1, 511},
		{len - 513, 513},
		{chunk - 1, 2 * chunk + 2},
	};

	for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
		if (ranges[i].len > 0 && ranges[i].offset < len &&
		    ranges[i].len <= len - ranges[i].offset)
			get_guarded(object, ranges[i].offset, ranges[i].len, i, seed);
	for (unsigned i = 0; i < 4; i++) {
		uint64_t offset = random_below(&random, len);
		uint64_t part = 1 + random_below(&random, len - offset);

		get_guarded(object, offset, part > MIB ? MIB + part % KIB : part,
			    random_below(&random, 64), seed);
	}
}

static void check_beyond(spw_object object, size_t len)
{
	assert_int_equal(get_wait(store, object, len, to_memory, 1), -ERANGE);
	assert_int_equal(get_wait(store, object, 0, to_memory, len + 1), -ERANGE);
	assert_int_equal(get_wait(store, object, len - 1, to_memory, 2), -ERANGE);
	assert_int_equal(get_wait(store, object, UINT64_MAX, to_memory, 1), -ERANGE);
	assert_int_equal(get_wait(store, object, UINT64_MAX, to_memory, SIZE_MAX), -ERANGE);
	assert_int_equal(get_wait(store, object, 1, to_memory, SIZE_MAX), -ERANGE);
	assert_true(strlen(spw_last_error()) > 0);
}

static void check_length(size_t len, size_t odd)
{
	uint64_t seed = len * 1000 + odd;
	uint8_t *from = from_memory + odd;
	spw_object object;

	content_fill(from, len, seed);
	object = put_wait(store, from, len);
	assert_content(from, len, seed, 0); /* not touched */
	memset(from, 0xEE, len);            /* and not needed any more */
	get_guarded(object, 0, len, odd + 2, seed);
	check_ranges(object, len, seed);
	check_beyond(object, len);
	assert_ok(spw_store_free(store, object));
}

OPEN_CASE(test_lengths)
{
	static const size_t lens[] = {1, 511, 512, 513, 4095, 4096, 4097, 1000003, LARGEST_BYTES};
	static const size_t odds[] = {0, 1, 7, 64, 511, 513};

	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++)
		for (size_t j = 0; j < sizeof(odds) / sizeof(odds[0]); j++)
			if (lens[i] < LARGEST_BYTES || odds[j] == 1)
				check_length(lens[i], odds[j]);
	assert_int_equal(stats_of(store).used_bytes, 0);
}

OPEN_CASE(test_bad_arguments)
{
	struct spw_request *request;
	spw_object object = {0}, other;

	assert_int_equal(spw_store_put(store, from_memory, 0, NULL, &object, &request), -EINVAL);
	assert_int_equal(get_wait(store, (spw_object){0}, 0, to_memory, 1), -ENOENT);
	assert_int_equal(get_wait(store, (spw_object){UINT64_MAX}, 0, to_memory, 1), -ENOENT);
	assert_int_equal(spw_store_free(store, (spw_object){0}), -ENOENT);
	assert_int_equal(spw_store_free(store, (spw_object){UINT64_MAX}), -ENOENT);
	object = put_wait(store, from_memory, 100);
	for (unsigned bit = 0; bit < 64; bit++) {
		other.value = object.value ^ UINT64_C(1) << bit;
		assert_int_equal(get_wait(store, other, 0, to_memory, 1), -ENOENT);
		assert_int_equal(spw_store_free(store, other), -ENOENT);
	}
	assert_ok(get_wait(store, object, 0, to_memory, 1));
}

/* ---- What is in flight ----------------------------------------------------------------------- */

OPEN_CASE(test_get_while_put_is_in_flight)
{
	struct spw_request *put, *gets[3];
	const size_t len = 40 * MIB + 12345;
	spw_object object;

	content_fill(from_memory + 3, len, 77);
	for (unsigned round = 0; round < 4; round++) {
		memset(to_memory, 0xA5, len);
		assert_ok(spw_store_put(store, from_memory + 3, len, NULL, &object, &put));
		assert_ok(spw_store_get(store, object, 0, to_memory, MIB + 1, SPW_PREFETCH, NULL,
					&gets[0]));
		assert_ok(spw_store_get(store, object, 20 * MIB - 7, to_memory + 2 * MIB, MIB,
					SPW_BACKGROUND, NULL, &gets[1]));
		assert_ok(spw_store_get(store, object, len - 4099, to_memory + 4 * MIB, 4099,
					SPW_URGENT_READ, NULL, &gets[2]));
		if (round % 2)
			assert_ok(spw_request_wait(put));
		for (unsigned i = 0; i < 3; i++)
			assert_ok(spw_request_wait(gets[i]));
		if (round % 2 == 0)
			assert_ok(spw_request_wait(put));
		assert_content(to_memory, MIB + 1, 77, 0);
		assert_content(to_memory + 2 * MIB, MIB, 77, 20 * MIB - 7);
		assert_content(to_memory + 4 * MIB, 4099, 77, len - 4099);
		get_check(store, object, 0, to_memory, len, 77);
		assert_ok(spw_store_free(store, object));
	}
	assert_true(stats_of(store).bytes_from_memory > 0);
}

OPEN_CASE(test_free_while_in_flight)
{
	struct spw_request *put, *get;
	const size_t len = 20 * MIB + 1;
	spw_object object;

	content_fill(from_memory, len, 5);
	for (unsigned round = 0; round < 4; round++) {
		assert_ok(spw_store_put(store, from_memory, len, NULL, &object, &put));
		assert_ok(spw_store_free(store, object)); /* during put */
		assert_int_equal(get_wait(store, object, 0, to_memory, 1), -ENOENT);
		assert_int_equal(spw_store_free(store, object), -ENOENT);
		assert_ok(spw_request_wait(put));

		object = put_wait(store, from_memory, len);
		memset(to_memory, 0xA5, len);
		assert_ok(
			spw_store_get(store, object, 0, to_memory, len, SPW_PREFETCH, NULL, &get));
		assert_ok(spw_store_free(store, object)); /* during get */
		assert_int_equal(get_wait(store, object, 0, to_memory + len, 1), -ENOENT);
		/* what might take the place while it is still read */
		content_fill(from_memory, len, 6);
		assert_ok(spw_store_put(store, from_memory, len, NULL, &object, &put));
		assert_ok(spw_request_wait(get));
		assert_content(to_memory, len, 5, 0);
		assert_ok(spw_request_wait(put));
		assert_ok(spw_store_free(store, object));
		content_fill(from_memory, len, 5);
	}
	assert_int_equal(stats_of(store).used_bytes, 0);
	assert_int_equal(stats_of(store).objects, 0);
}

/* ---- Ids ------------------------------------------------------------------------------------- */

OPEN_CASE(test_freed_ids_are_refused)
{
	enum { ROUNDS = 3000 };
	static spw_object objects[ROUNDS];

	content_fill(from_memory, 100, 1);
	for (unsigned i = 0; i < ROUNDS; i++) {
		objects[i] = put_wait(store, from_memory, 100);
		assert_int_not_equal(objects[i].value, 0);
		if (i % 3) /* some stay: slots are reused in another order */
			assert_ok(spw_store_free(store, objects[i]));
	}
	for (unsigned i = 0; i < ROUNDS; i++) {
		assert_int_equal(get_wait(store, objects[i], 0, to_memory, 100),
				 i % 3 ? -ENOENT : 0);
		assert_int_equal(spw_store_free(store, objects[i]), i % 3 ? -ENOENT : 0);
	}
}

/* ---- Memory ---------------------------------------------------------------------------------- */

OPEN_CASE(test_own_memory_is_not_copied)
{
	struct spw_store_stats stats;
	void *from, *to, *none, *arena;
	size_t arena_len;
	spw_object object;

	assert_int_equal(spw_store_alloc(store, spw_store_alloc_max(store) + 1, &none), -ENOBUFS);
	assert_ok(spw_store_alloc(store, spw_store_alloc_max(store), &from));
	spw_store_release(store, from);
	assert_ok(spw_store_alloc(store, 8 * MIB, &from));
	assert_ok(spw_store_alloc(store, 8 * MIB, &to));
	assert_ok(spw_store_arena(store, &arena, &arena_len));
	assert_true(from >= arena && (char *)from + 8 * MIB <= (char *)arena + arena_len);
	content_fill(from, 8 * MIB, 9);
	object = put_wait(store, from, 8 * MIB);
	get_check(store, object, 0, to, 8 * MIB, 9);
	stats = stats_of(store);
	assert_int_equal(stats.bytes_copied, 0);
	assert_int_equal(stats.bytes_written, 8 * MIB);
	assert_int_equal(stats.bytes_read, 8 * MIB);
	assert_ok(spw_store_free(store, object));

	content_fill(from_memory + 1, 8 * MIB, 10);
	object = put_wait(store, from_memory + 1, 8 * MIB);
	stats = stats_of(store);
	assert_true(stats.bytes_copied >= 8 * MIB);
	assert_true(stats.copies_unaligned_address > 0);
	get_check(store, object, 0, to, 8 * MIB, 10);

	assert_int_equal(spw_store_alloc(store, UINT64_C(1) << 40, &none), -ENOBUFS);
	spw_store_release(store, from);
	spw_store_release(store, to);
}

/* What is allocated after memory was returned has other pages, which the drives must know. */
OPEN_CASE(test_memory_that_was_given_back_is_used_again)
{
	for (unsigned i = 0; i < 3; i++) {
		void *from, *to;
		spw_object object;

		assert_ok(spw_store_alloc(store, 16 * MIB, &from));
		assert_ok(spw_store_alloc(store, 16 * MIB, &to));
		content_fill(from, 16 * MIB, 60 + i);
		object = put_wait(store, from, 16 * MIB);
		memset(to, 0, 16 * MIB);
		get_check(store, object, 0, to, 16 * MIB, 60 + i);
		assert_ok(spw_store_free(store, object));
		spw_store_release(store, from);
		spw_store_release(store, to);
		spw_store_give_back(store);
	}
	assert_int_equal(stats_of(store).bytes_copied, 0);
}

/* Of the arena's memory in a random order of whole blocks, then of any memory cut anywhere. */
OPEN_CASE(test_vectors)
{
	enum { ELEMENTS = 9, BLOCK = 4096 };
	const size_t len = 3 * MIB;
	struct iovec vector[ELEMENTS];
	struct spw_store_stats before;
	uint64_t random = random_seed();
	uint8_t *arena, *memories[2];

	assert_ok(spw_store_alloc(store, len, (void **)&arena));
	memories[0] = arena;
	memories[1] = to_memory + GUARD_BYTES + 1;
	for (unsigned round = 0; round < 40; round++) {
		size_t unit = round % 2 ? 1 : BLOCK, at = 0;
		struct spw_request *request;
		spw_object object;

		for (unsigned i = 0; i < ELEMENTS; i++) {
			size_t left = (len - at) / unit;
			size_t part = i + 1 == ELEMENTS ? left : random_below(&random, left + 1);

			vector[i].iov_base = memories[round % 2] + at;
			vector[i].iov_len = part * unit;
			at += part * unit;
		}
		before = stats_of(store);
		content_fill(from_memory, len, round);
		object = put_wait(store, from_memory, len);
		memset(memories[round % 2], 0, len);
		assert_ok(spw_store_getv(store, object, 0, vector, ELEMENTS, SPW_URGENT_READ, NULL,
					 &request));
		assert_ok(spw_request_wait(request));
		assert_memory_equal(memories[round % 2], from_memory, len);
		assert_ok(spw_store_free(store, object));
		assert_ok(spw_store_putv(store, vector, ELEMENTS, NULL, &object, &request));
		assert_ok(spw_request_wait(request));
		get_check(store, object, 0, from_memory, len, round);
		assert_ok(spw_store_free(store, object));
		assert_true((stats_of(store).bytes_copied == before.bytes_copied) ==
			    (unit == BLOCK));
	}
	spw_store_release(store, arena);
}

/* ---- Memory of the caller's that is registered ----------------------------------------------- */

static void expect_round_trip(uint8_t *memory, size_t len, uint64_t seed)
{
	spw_object object;

	content_fill(memory, len, seed);
	object = put_wait(store, memory, len);
	memset(memory, 0, len);
	get_check(store, object, 0, memory, len, seed);
	assert_ok(spw_store_free(store, object));
}

/* Where the backend can register, it is used; where it cannot, all goes on, counted. */
OPEN_CASE(test_registered_memory)
{
	const size_t len = 9 * MIB + 777;
	const char *backend = spw_store_description(store);
	uint64_t before;
	bool registers;

	assert_ok(spw_store_register(store, to_memory + 1, len));
	registers = stats_of(store).registrations_refused == 0;
	assert_int_equal(stats_of(store).registered_bytes, registers ? len : 0);
	/* Passthrough may, by its kernel. */
	if (strncmp(backend, "io_uring", 8) == 0 || strncmp(backend, "vfio", 4) == 0)
		assert_true(registers);
	if (strncmp(backend, "libaio", 6) == 0)
		assert_false(registers);
	expect_round_trip(to_memory + 4096, len - 4095, 51);
	assert_int_equal(stats_of(store).transfers_registered > 0, registers);
	expect_round_trip(to_memory + 1, len, 52); /* unaligned: by copies */
	assert_int_equal(spw_store_register(store, to_memory + MIB, 1), -EEXIST);
	assert_ok(spw_store_unregister(store, to_memory + 1));
	before = stats_of(store).transfers_registered;
	expect_round_trip(to_memory + 4096, len - 4095, 53);
	assert_int_equal(stats_of(store).transfers_registered, before);
	assert_int_equal(spw_store_unregister(store, to_memory + 1), -ENOENT);
}

/* io_uring cannot register a mapping of a file on a disk: that is not an error. */
OPEN_CASE(test_memory_of_a_file_is_not_registered)
{
	const size_t len = 4 * MIB;
	FILE *file = tmpfile();
	struct statfs system;
	uint8_t *memory;

	assert_non_null(file);
	assert_ok(fstatfs(fileno(file), &system));
	assert_int_equal(ftruncate(fileno(file), (off_t)len), 0);
	memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
	assert_ptr_not_equal(memory, MAP_FAILED);
	assert_ok(spw_store_register(store, memory, len));
	if (strncmp(spw_store_description(store), "vfio", 4) != 0) {
		bool refused = stats_of(store).registrations_refused == 1;

		assert_int_equal(stats_of(store).registered_bytes, refused ? 0 : len);
		/* Others may lie in memory: tmpfs does, and so may an overlay. */
		if (system.f_type == EXT4_SUPER_MAGIC || system.f_type == XFS_SUPER_MAGIC)
			assert_true(refused);
	}
	expect_round_trip(memory, len, 54);
	assert_ok(spw_store_unregister(store, memory));
	(void)munmap(memory, len);
	(void)fclose(file);
}

/* The child writes to its copy; what the parent stores, reads and changes stays the parent's. */
OPEN_CASE(test_registered_memory_and_fork)
{
	const size_t len = 4 * MIB;
	uint8_t *memory = to_memory + 4096;
	int go[2], status;
	pid_t child;

	content_fill(memory, len, 55);
	assert_ok(spw_store_register(store, memory, len));
	assert_int_equal(pipe(go), 0);
	child = fork();
	if (child == 0) {
		char byte;

		if (spw_store_register(store, from_memory, 4096) != -EPERM ||
		    spw_store_unregister(store, memory) != -EPERM)
			_exit(1);
		memset(memory, 0x77, len);
		(void)close(go[1]);
		_exit(read(go[0], &byte, 1) == 0 && memory[len - 1] == 0x77 ? 0 : 2);
	}
	assert_true(child > 0);
	for (uint64_t round = 0; round < 4; round++)
		expect_round_trip(memory, len, 56 + round);
	(void)close(go[0]);
	(void)close(go[1]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	expect_round_trip(memory, len, 60);
	assert_ok(spw_store_unregister(store, memory));
}

/* Filled up, refused, released, filled up again: nothing is lost. */
OPEN_CASE(test_arena_is_given_back)
{
	unsigned counts[2] = {0, 0};
	void *memory[256];

	for (unsigned round = 0; round < 2; round++) {
		while (counts[round] < 256 &&
		       spw_store_alloc(store, MIB, &memory[counts[round]]) == 0) {
			memset(memory[counts[round]], 1, MIB);
			counts[round]++;
		}
		assert_in_range(counts[round], 1, 255);
		for (unsigned i = 0; i < counts[round]; i++)
			spw_store_release(store, memory[i]);
	}
	assert_int_equal(counts[0], counts[1]);
}

/* ---- Every mode ------------------------------------------------------------------------------ */

/* Objects of many lengths, all in flight together, read in another order, whole and in parts. */
static void exercise(uint64_t seed)
{
	enum { OBJECTS = 18 };
	struct spw_request *requests[OBJECTS];
	spw_object objects[OBJECTS];
	size_t lens[OBJECTS], starts[OBJECTS], at = 1;

	for (unsigned i = 0; i < OBJECTS; i++) {
		lens[i] = 1 + random_below(&seed, UINT64_C(1) << (4 + i % 18));
		starts[i] = at;
		at += lens[i] + random_below(&seed, 9);
	}
	assert_true(at < LARGEST_BYTES);
	for (unsigned i = 0; i < OBJECTS; i++) {
		content_fill(from_memory + starts[i], lens[i], i + 1);
		assert_ok(spw_store_put(store, from_memory + starts[i], lens[i], NULL, &objects[i],
					&requests[i]));
	}
	for (unsigned i = 0; i < OBJECTS; i++)
		assert_ok(spw_request_wait(requests[i]));
	memset(from_memory, 0xEE, at);
	memset(to_memory, 0xA5, at);
	for (unsigned i = OBJECTS; i-- > 0;)
		assert_ok(spw_store_get(store, objects[i], 0, to_memory + starts[i], lens[i],
					(enum spw_class)(i % SPW_CLASSES), NULL, &requests[i]));
	for (unsigned i = 0; i < OBJECTS; i++) {
		assert_ok(spw_request_wait(requests[i]));
		assert_content(to_memory + starts[i], lens[i], i + 1, 0);
	}
	for (unsigned i = 0; i < OBJECTS; i++) {
		check_ranges(objects[i], lens[i], i + 1);
		assert_ok(spw_store_free(store, objects[i]));
	}
	assert_int_equal(stats_of(store).used_bytes, 0);
}

STORE_CASE(test_every_mode)
{
	static const struct {
		uint64_t chunk_bytes;
		unsigned drives;
		uint32_t queue_depth;
	} shapes[] = {{0, 4, 16},
		      {SPW_CHUNK_BYTES_MIN, 4, 2},
		      {4 * MIB, 3, 1},
		      {SPW_CHUNK_BYTES_MIN, 1, 64}};
	struct spw_store_opts opts;

	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		format_drives(shapes[i].drives, 1, shapes[i].chunk_bytes);
		for (unsigned mode = 0; mode < 4; mode++) {
			opts = default_opts();
			opts.queue_depth = shapes[i].queue_depth;
			opts.no_checksums = (mode & 1) != 0;
			opts.inline_mode = (mode & 2) != 0;
			store = open_drives(shapes[i].drives, &opts);
			if (shapes[i].chunk_bytes)
				assert_int_equal(spw_store_chunk_bytes(store),
						 shapes[i].chunk_bytes);
			assert_true(strlen(spw_store_description(store)) > 0);
			exercise(i * 4 + mode);
			close_store(store);
		}
	}
}

/* An object holds the bytes that were put and no others; any part of it, also over chunks. */
OPEN_CASE(test_holds)
{
	static const size_t lens[] = {1, 511, 4096, 4097, MIB, 3 * MIB + 17};
	uint64_t random = 5;

	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		uint8_t *bytes = from_memory + (i % 2 ? 3 : 0);
		size_t len = lens[i], at, part;
		spw_object object;

		for (size_t k = 0; k < len; k++)
			bytes[k] = (uint8_t)random_next(&random);
		object = put_wait(store, bytes, len);
		assert_int_equal(spw_store_holds(store, object, bytes, 0, len), 1);
		for (unsigned k = 0; k < 20; k++) {
			at = random_below(&random, len);
			part = random_below(&random, len - at) + 1;
			assert_int_equal(spw_store_holds(store, object, bytes, at, part), 1);
			bytes[at] ^= 1;
			assert_ok(spw_store_holds(store, object, bytes, at, 1));
			assert_ok(spw_store_holds(store, object, bytes, 0, len));
			bytes[at] ^= 1;
		}
		assert_int_equal(spw_store_holds(store, object, bytes, 0, len + 1), -ERANGE);
		assert_int_equal(spw_store_holds(store, object, bytes, len, 1), -ERANGE);
		assert_int_equal(spw_store_holds(store, object, bytes, 0, 0), -EINVAL);
		assert_int_equal(spw_store_holds(store, object, NULL, 0, len), -EINVAL);
		assert_ok(spw_store_free(store, object));
		assert_int_equal(spw_store_holds(store, object, bytes, 0, len), -ENOENT);
	}
}

/* Without checksums only the kernel reads aligned memory, and it says that it cannot. */
FORMATTED_CASE(test_memory_that_cannot_be_read)
{
	struct spw_store_opts opts = default_opts();
	struct spw_request *request;
	spw_object object;
	uint8_t *memory;

	if (drive_backend == SPW_BACKEND_VFIO || drive_backend == SPW_BACKEND_NVME) {
		print_message("passthrough and vfio pin the memory first, and refuse it there\n");
		skip();
	}
	opts.no_checksums = true;
	store = open_drives(4, &opts);
	memory = mmap(NULL, MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(memory != MAP_FAILED);
	assert_ok(spw_store_put(store, memory, MIB, NULL, &object, &request));
	assert_int_equal(spw_request_wait(request), -EFAULT);
	assert_int_equal(stats_of(store).drives_retired, 0);
	assert_int_equal(spw_store_holds(store, object, from_memory, 0, MIB), -EOPNOTSUPP);
	assert_ok(spw_store_free(store, object));
	exercise(7);
	assert_int_equal(munmap(memory, MIB), 0);
}

/* Paths in another order than they were formatted in. */
FORMATTED_CASE(test_any_order_of_drives)
{
	const char *paths[4] = {drive_paths[2], drive_paths[0], drive_paths[3], drive_paths[1]};
	struct spw_store_opts opts = default_opts();

	store = open_paths(paths, 4, &opts);
	exercise(99);
}

/* One object, one caller: every drive has as much to do as it takes, and the counters say so. */
FORMATTED_CASE(test_one_object_fills_every_drive)
{
	const size_t len = 64 * MIB;
	struct spw_store_opts opts = default_opts();
	struct spw_drive_stats drive;
	spw_object object;

	content_fill(from_memory, len, 5);
	opts.queue_depth = 4;
	/* A drive may be faster than chunks are summed. */
	opts.no_checksums = true;
	store = open_drives(4, &opts);
	object = put_wait(store, from_memory, len);
	for (unsigned i = 0; i < 4; i++) {
		assert_ok(spw_store_drive_stats(store, i, &drive, sizeof(drive)));
		assert_int_equal(drive.depth, 4 + 1); /* one of urgent reads alone */
		assert_int_equal(drive.in_flight_max, 4);
		assert_int_equal(drive.in_flight, 0);
		assert_true(drive.bytes_written > 0);
	}
	get_check(store, object, 0, to_memory, len, 5);
}

RUN_CASES(drives_from_environment, NULL)
