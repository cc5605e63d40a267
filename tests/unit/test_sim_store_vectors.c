/* SPDX-License-Identifier: MIT */
/* tests/unit/test_sim_store_vectors.c - memory in pieces, and waiting for any of several */
#include "tests/unit/sim_rig.h"

/* ---- Vectors, waiting for any ---- */

DRIVES_CASE(test_putv)
{
	size_t len = 5 * CHUNK_BYTES + 777;
	uint8_t *bytes = pattern(len, 15);
	struct iovec vector[5] = {
		{.iov_base = bytes, .iov_len = CHUNK_BYTES},
		{.iov_base = bytes + CHUNK_BYTES, .iov_len = 0},
		{.iov_base = bytes + CHUNK_BYTES, .iov_len = 2 * CHUNK_BYTES},
		{.iov_base = bytes + 3 * CHUNK_BYTES, .iov_len = 13},
		{.iov_base = bytes + 3 * CHUNK_BYTES + 13, .iov_len = len - 3 * CHUNK_BYTES - 13},
	};
	struct spw_request *request;
	spw_object object;

	open_store(4);
	assert_ok(spw_store_putv(store, vector, 5, NULL, &object, &request));
	assert_ok(spw_request_wait(request));
	/* Only what spans elements, or lies unaligned in one, was copied. */
	assert_in_range(stats().bytes_copied, 1, 3 * CHUNK_BYTES);
	expect_identical(object, bytes, len);
	assert_int_equal(spw_store_putv(store, vector, 0, NULL, &object, &request), -EINVAL);
}

/* The object is asked for while its bytes still lie in the pieces of the caller's vector. */
DRIVES_CASE(test_get_from_a_vector_still_in_memory)
{
	size_t len = 2 * CHUNK_BYTES + 55;
	uint8_t *bytes = pattern(len, 21), *back = memory(len);
	struct iovec vector[3] = {
		{.iov_base = bytes, .iov_len = 1000},
		{.iov_base = NULL, .iov_len = 0},
		{.iov_base = bytes + 1000, .iov_len = len - 1000},
	};
	struct iovec to[2] = {
		{.iov_base = back + 1000, .iov_len = 1000},
		{.iov_base = back, .iov_len = 700},
	};
	struct spw_request *put, *get;
	spw_object object;

	assert_non_null(back);
	open_store(4);
	for (unsigned i = 0; i < DRIVES; i++)
		sim_drives[i].latency_ns = SECOND / 10; /* no write ends meanwhile */
	assert_ok(spw_store_putv(store, vector, 3, NULL, &object, &put));
	for (size_t offset = 0; offset < len; offset += 333) {
		size_t part = len - offset < 5000 ? len - offset : 5000;

		assert_ok(spw_store_get(store, object, offset, back, part, SPW_URGENT_READ, NULL,
					&get));
		assert_ok(spw_request_test(get));
		assert_memory_equal(back, bytes + offset, part);
	}
	assert_true(stats().bytes_from_memory > 0);
	assert_ok(spw_store_getv(store, object, 500, to, 2, SPW_URGENT_READ, NULL, &get));
	assert_ok(spw_request_test(get));
	assert_memory_equal(back + 1000, bytes + 500, 1000);
	assert_memory_equal(back, bytes + 1500, 700);
	assert_ok(spw_request_wait(put));
	expect_identical(object, bytes, len);
}

/* Elements in buffers of their own, each between guards, that nothing may write to. */
#define GUARD_BYTES 64u
#define GUARD_BYTE  0x5c
#define MANY        3000u

struct scattered {
	uint8_t *memory;
	struct iovec vector[MANY];
	unsigned count;
	size_t len_bytes;
};

/* @align: of every element but those of no bytes; 1: any address. */
static void scatter(struct scattered *s, const size_t lens[], unsigned count, size_t align)
{
	size_t at = GUARD_BYTES, total = GUARD_BYTES;

	s->count = count;
	s->len_bytes = 0;
	for (unsigned i = 0; i < count; i++)
		total += lens[i] + 2 * GUARD_BYTES + align;
	s->memory = memory(total);
	memset(s->memory, GUARD_BYTE, total);
	for (unsigned i = 0; i < count; i++) {
		at = align > 1 ? spw_round_up(at, align) : at + (at % 2 == 0);
		s->vector[i] = (struct iovec){.iov_base = lens[i] ? s->memory + at : NULL,
					      .iov_len = lens[i]};
		s->len_bytes += lens[i];
		at += lens[i] + GUARD_BYTES;
	}
}

static void expect_scattered(const struct scattered *s, const uint8_t *bytes)
{
	for (unsigned i = 0; i < s->count; i++) {
		const uint8_t *element = s->vector[i].iov_base;
		size_t len = s->vector[i].iov_len;

		if (len == 0)
			continue;
		assert_int_equal(memcmp(element, bytes, len), 0);
		for (unsigned g = 0; g < GUARD_BYTES; g++)
			assert_true(element[len + g] == GUARD_BYTE);
		assert_true(element[-1] == GUARD_BYTE);
		bytes += len;
	}
}

static int getv_wait(spw_object object, uint64_t offset, const struct scattered *s)
{
	struct spw_request *request;
	int rc = spw_store_getv(store, object, offset, s->vector, s->count, SPW_URGENT_READ, NULL,
				&request);

	return rc ? rc : spw_request_wait(request);
}

DRIVES_CASE(test_getv_of_odd_elements)
{
	static struct scattered s;
	static const size_t lens[] = {1,   0,     511, 512, CHUNK_BYTES,         4097,
				      513, 65537, 0,   7,   2 * CHUNK_BYTES + 3, 777};
	uint8_t *bytes = pattern(6 * CHUNK_BYTES, 31);
	spw_object object;

	open_store(4);
	assert_ok(put_wait(bytes, 6 * CHUNK_BYTES, &object));
	scatter(&s, lens, SPW_ARRAY_LEN(lens), 1);
	for (uint64_t offset = 0; offset <= 6 * CHUNK_BYTES - s.len_bytes; offset += 30011) {
		assert_ok(getv_wait(object, offset, &s));
		expect_scattered(&s, bytes + offset);
	}
	assert_true(stats().copies_unaligned_address + stats().copies_partial_chunk > 0);
	/* At addresses that a drive takes, too: only the last one may end within a block. */
	scatter(&s, lens, SPW_ARRAY_LEN(lens), 512);
	assert_ok(getv_wait(object, 0, &s));
	expect_scattered(&s, bytes);
	assert_int_equal(getv_wait(object, 6 * CHUNK_BYTES - s.len_bytes + 1, &s), -ERANGE);
}

/* More elements than one system call takes. */
DRIVES_CASE(test_getv_of_many_elements)
{
	static struct scattered s;
	static size_t lens[MANY];
	uint8_t *bytes = pattern(4 * CHUNK_BYTES, 32);
	spw_object object;

	open_store(4);
	assert_ok(put_wait(bytes, 4 * CHUNK_BYTES, &object));
	for (unsigned i = 0; i < MANY; i++)
		lens[i] = i % 97;
	scatter(&s, lens, MANY, 1);
	assert_ok(getv_wait(object, 0, &s));
	expect_scattered(&s, bytes);
	assert_ok(getv_wait(object, 12345, &s));
	expect_scattered(&s, bytes + 12345);
}

/* Whole blocks at aligned addresses go as they lie, both ways; the odd end by its own block. */
DRIVES_CASE(test_aligned_elements_are_not_copied)
{
	static struct scattered from, to;
	static const size_t lens[] = {4096, 8192, CHUNK_BYTES - 12288, 16384, CHUNK_BYTES, 0, 4096};
	static const size_t other[] = {8192, CHUNK_BYTES, 0, CHUNK_BYTES + 12288};
	static const size_t odd[] = {CHUNK_BYTES / 2, CHUNK_BYTES, 333};
	uint8_t *bytes = pattern(3 * CHUNK_BYTES, 33);
	struct spw_request *request;
	spw_object object;
	uint8_t *at = bytes;

	open_store(4);
	scatter(&from, lens, SPW_ARRAY_LEN(lens), 512);
	for (unsigned i = 0; i < from.count; at += lens[i++])
		if (lens[i])
			memcpy(from.vector[i].iov_base, at, lens[i]);
	assert_ok(spw_store_putv(store, from.vector, from.count, NULL, &object, &request));
	assert_ok(spw_request_wait(request));
	assert_int_equal(stats().bytes_copied, 0);
	scatter(&to, other, SPW_ARRAY_LEN(other), 512);
	assert_int_equal(to.len_bytes, from.len_bytes);
	assert_ok(getv_wait(object, 0, &to));
	expect_scattered(&to, bytes);
	assert_int_equal(stats().bytes_copied, 0);
	assert_ok(spw_store_free(store, object));

	assert_ok(put_wait(bytes, CHUNK_BYTES * 3 / 2 + 333, &object));
	assert_int_equal(stats().bytes_copied, 333);
	scatter(&to, odd, SPW_ARRAY_LEN(odd), 512);
	assert_ok(getv_wait(object, 0, &to));
	expect_scattered(&to, bytes);
	assert_int_equal(stats().bytes_copied, 2 * 333);
}

/* One more than fit one transfer: the chunk is copied. */
DRIVES_CASE(test_too_many_aligned_elements_are_copied)
{
	static struct scattered s;
	static size_t lens[RUNS_MAX + 1];
	uint8_t *bytes = pattern((RUNS_MAX + 1) * 4096, 34);
	struct spw_format_opts opts;
	spw_object object;

	spw_format_opts_init(&opts, sizeof(opts));
	opts.chunk_bytes = 2 * CHUNK_BYTES;
	opts.force = true;
	assert_ok(spw_format(paths, DRIVES, &opts, NULL));
	open_store(4);
	for (unsigned i = 0; i <= RUNS_MAX; i++)
		lens[i] = 4096;
	assert_ok(put_wait(bytes, RUNS_MAX * 4096, &object));
	scatter(&s, lens, RUNS_MAX, 512);
	assert_ok(getv_wait(object, 0, &s));
	expect_scattered(&s, bytes);
	assert_int_equal(stats().bytes_copied, 0);
	assert_ok(put_wait(bytes, (RUNS_MAX + 1) * 4096, &object));
	scatter(&s, lens, RUNS_MAX + 1, 512);
	assert_ok(getv_wait(object, 0, &s));
	expect_scattered(&s, bytes);
	assert_int_equal(stats().bytes_copied, (RUNS_MAX + 1) * 4096);
}

/* One of three drives cannot read, or lies: one error for all, and nothing beside the elements. */
DRIVES_CASE(test_getv_fails_in_part)
{
	static struct scattered s;
	static const size_t lens[] = {CHUNK_BYTES, 5000, CHUNK_BYTES, CHUNK_BYTES - 5000, 999};
	uint8_t *bytes = pattern(4 * CHUNK_BYTES, 35);
	spw_object object;

	open_store(4);
	assert_ok(put_wait(bytes, 4 * CHUNK_BYTES, &object));
	scatter(&s, lens, SPW_ARRAY_LEN(lens), 1);
	fail_from(1, SPW_READ, 1, -EIO);
	expect_refusal(-EIO, "sim1", getv_wait(object, 0, &s));
	mend_all();
	for (unsigned i = 0; i < s.count; i++)
		memset(s.vector[i].iov_base, GUARD_BYTE, lens[i]);
	assert_ok(getv_wait(object, 7, &s));
	expect_scattered(&s, bytes + 7);
}

DRIVES_CASE(test_getv_refuses)
{
	uint8_t byte;
	struct iovec vector[2] = {{.iov_base = &byte, .iov_len = 1}, {.iov_len = 1}};
	struct spw_request *request = (void *)&byte;
	spw_object object;

	open_store(4);
	assert_ok(put_wait("ab", 2, &object));
	assert_int_equal(spw_store_getv(store, object, 0, vector, 2, SPW_PREFETCH, NULL, &request),
			 -EINVAL);
	assert_null(request);
	assert_int_equal(spw_store_getv(store, object, 0, vector, 0, SPW_PREFETCH, NULL, &request),
			 -EINVAL);
	assert_int_equal(spw_store_getv(store, object, 0, NULL, 1, SPW_PREFETCH, NULL, &request),
			 -EINVAL);
	vector[1].iov_len = SIZE_MAX;
	vector[1].iov_base = &byte;
	assert_int_equal(spw_store_getv(store, object, 0, vector, 2, SPW_PREFETCH, NULL, &request),
			 -EINVAL);
	assert_int_equal(spw_store_get(store, object, 0, NULL, 1, SPW_PREFETCH, NULL, &request),
			 -EINVAL);
	assert_int_equal(stats().requests, 0);
}

/* ---- Memory of the caller's that is registered ---- */

DRIVES_CASE(test_registered_memory)
{
	const size_t len = 6 * CHUNK_BYTES;
	uint8_t *bytes = pattern(len, 41), *back = memory(len);
	spw_object object;

	open_store(4);
	assert_ok(put_wait(bytes, len, &object));
	assert_int_equal(stats().transfers_registered, 0);
	assert_ok(spw_store_register(store, bytes, len));
	assert_int_equal(stats().registered_bytes, len);
	assert_int_equal(spw_store_register(store, bytes + 1, 1), -EEXIST);
	assert_int_equal(spw_store_register(store, NULL, 1), -EINVAL);
	assert_ok(spw_store_free(store, object));
	assert_ok(put_wait(bytes, len, &object));
	assert_int_equal(stats().transfers_registered, 6);
	expect_identical(object, bytes, len);
	assert_int_equal(stats().transfers_registered, 6);
	assert_ok(spw_store_register(store, back, len));
	assert_ok(get_wait(object, 0, back, len));
	assert_memory_equal(back, bytes, len);
	assert_int_equal(stats().transfers_registered, 12);
	assert_ok(spw_store_unregister(store, bytes));
	assert_int_equal(spw_store_unregister(store, bytes), -ENOENT);
	assert_int_equal(stats().registered_bytes, len);
	assert_int_equal(stats().registrations_refused, 0);
	assert_ok(put_wait(bytes, len, &object));
	assert_int_equal(stats().transfers_registered, 12);
}

/* RANGE-2: nothing is waited for, and nothing is revoked under a drive that does not answer. */
DRIVES_CASE(test_unregister_while_a_drive_hangs)
{
	const size_t len = 6 * CHUNK_BYTES;
	uint8_t *bytes = pattern(len, 42);
	struct spw_request *request;
	spw_object object;

	open_store(4);
	assert_ok(spw_store_register(store, bytes, len));
	hang(1);
	assert_ok(spw_store_put(store, bytes, len, NULL, &object, &request));
	poll_once();
	expect_refusal(-EBUSY, "has not ended: wait", spw_store_unregister(store, bytes));
	assert_int_equal(stats().registered_bytes, len);
	hang_no_more(1);
	assert_ok(spw_request_wait(request));
	assert_ok(spw_store_unregister(store, bytes));
	assert_int_equal(stats().registered_bytes, 0);
	expect_identical(object, bytes, len);
}

/* The put has ended on other drives, but one may read its memory still. */
DRIVES_CASE(test_unregister_after_a_missed_deadline)
{
	const size_t len = 6 * CHUNK_BYTES;
	uint8_t *bytes = pattern(len, 43);
	struct spw_store_opts opts = options(4);
	spw_object object;

	opts.write_deadline_ms = 1000;
	open_with(&opts);
	assert_ok(spw_store_register(store, bytes, len));
	hang(0);
	assert_ok(put_wait(bytes, len, &object));
	assert_true(is_retired(0));
	assert_int_equal(spw_store_unregister(store, bytes), -EBUSY);
	hang_no_more(0);
	turn();
	assert_ok(spw_store_unregister(store, bytes));
	expect_identical(object, bytes, len);
}

DRIVES_CASE(test_wait_any)
{
	uint8_t *bytes = pattern(1 << 20, 16);
	struct spw_request *requests[4];
	spw_object objects[4];

	open_store(4);
	for (unsigned i = 0; i < 4; i++)
		assert_ok(spw_store_put(store, bytes, (4 - i) * CHUNK_BYTES, NULL, &objects[i],
					&requests[i]));
	for (unsigned left = 4; left > 0; left--) {
		int index = spw_request_wait_any(requests, left, -1);

		assert_in_range(index, 0, left - 1);
		assert_ok(spw_request_test(requests[index]));
		requests[index] = requests[left - 1];
	}
	hang(0);
	assert_ok(spw_store_put(store, bytes, 1 << 20, NULL, &objects[0], &requests[0]));
	sim_glances = 0;
	assert_int_equal(spw_request_wait_any(requests, 1, 1000000), -ETIMEDOUT);
	/* The turn that issues, and one for each checksum: all others sleep. */
	assert_true(sim_glances <= 1 + (1 << 20) / CHUNK_BYTES);
	hang_no_more(0);
	assert_ok(spw_request_wait_any(requests, 1, -1));
	assert_ok(spw_request_wait(requests[0]));
}

RUN_CASES(NULL, NULL)
