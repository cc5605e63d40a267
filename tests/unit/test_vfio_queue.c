/* SPDX-License-Identifier: MIT */
/* tests/unit/test_vfio_queue.c - names, addresses, page lists, rings: without a controller */
/* wrap: spw_vfio__link_open */
#include "tests/unit/vfio_fake.h"

#include "engine/vfio/space.h"
#include "engine/vfio/pointer.h"

#define PAGE 4096u

/* ---- Names ----------------------------------------------------------------------------------- */

static int end_fake(void **state)
{
	(void)state;
	fake_end();
	return 0;
}

CASE(test_names)
{
	static const struct {
		const char *text, *canonical;
	} good[] = {
		{"pci:0000:3d:00.0/1", "pci:0000:3d:00.0/1"},
		{"pci:3D:00.0", "pci:0000:3d:00.0/1"},
		{"pci:10ab:FF:1f.7/4294967294", "pci:10ab:ff:1f.7/4294967294"},
	};
	static const char *const bad[] = {"pci:",
					  "pci:3d",
					  "pci:3d:00",
					  "pci:3d:00.8",
					  "pci:3d:20.0",
					  "pci:3d:00.0/",
					  "pci:3d:00.0/0",
					  "pci:3d:00.0/01",
					  "pci:3d:00.0/4294967295",
					  "pci:3d:00.0/1x",
					  "pci:3d:00.0x",
					  "pci:0000:3d:00.0/-1",
					  "pci:000:3d:00.0",
					  "pci:00000:3d:00.0",
					  "pci:0000:3d:00.00",
					  "pci:0000:3d:0.0",
					  "pci:0000-3d:00.0",
					  "pci:99999999999999999999999999999999999999999999"};
	char text[SPW_VFIO_NAME_BYTES];
	struct spw_vfio_name name;

	for (size_t i = 0; i < SPW_ARRAY_LEN(good); i++) {
		assert_int_equal(spw_vfio__parse(good[i].text, &name), 0);
		spw_vfio__format(&name, text);
		assert_string_equal(text, good[i].canonical);
	}
	for (size_t i = 0; i < SPW_ARRAY_LEN(bad); i++)
		if (spw_vfio__parse(bad[i], &name) != -EINVAL)
			fail_msg("taken: %s", bad[i]);
	expect_words("pci:0000:3d:00.0/1");
	assert_false(spw_vfio__is_name("/dev/nvme0n1"));
	assert_int_equal(spw_vfio__parse("/dev/nvme0n1", &name), -EINVAL);
}

/* ---- Lists of pages -------------------------------------------------------------------------- */

static uint64_t list_page[SPW_VFIO_PRP_ENTRIES + 1] __attribute__((aligned(4096)));
static const struct spw_vfio_list list = {.entries = list_page, .iova = 0x7000};

/* What the specification says that two addresses and a list mean, against what was to be said. */
static void check_run(uint64_t iova, uint32_t len, const uint64_t prp[2])
{
	uint64_t at = iova, end = iova + len;
	uint32_t pages = 0;

	assert_int_equal(prp[0], iova);
	for (at = (iova | (PAGE - 1)) + 1; at < end; at += PAGE)
		pages++;
	if (pages == 0) {
		assert_int_equal(prp[1], 0);
		return;
	}
	at = (iova | (PAGE - 1)) + 1;
	if (pages == 1) {
		assert_int_equal(prp[1], at);
		return;
	}
	assert_int_equal(prp[1], list.iova);
	for (uint32_t i = 0; i < pages; i++, at += PAGE)
		if (list_page[i] != at)
			fail_msg("entry %u of %u bytes at %llx", i, len, (unsigned long long)iova);
}

CASE(test_every_alignment_around_the_ends_of_pages)
{
	static const int32_t around[] = {-8, -4, 0, 4, 8};
	struct spw_vfio_pointer pointer;

	for (uint32_t pages = 0; pages <= SPW_VFIO_PRP_ENTRIES; pages++)
		for (size_t i = 0; i < SPW_ARRAY_LEN(around); i++)
			for (uint32_t offset = 0; offset < PAGE; offset += pages < 4 ? 4 : 508) {
				int64_t len = (int64_t)pages * PAGE + around[i];

				if (len <= 0 || len > SPW_VFIO_PRP_BYTES_MAX)
					continue;
				list_page[SPW_VFIO_PRP_ENTRIES] = 0x600d;
				spw_vfio__name_run(&list, false, 0x100000000 + offset,
						   (uint32_t)len, &pointer);
				assert_int_equal(pointer.flags, 0);
				check_run(0x100000000 + offset, (uint32_t)len, pointer.words);
				assert_int_equal(list_page[SPW_VFIO_PRP_ENTRIES], 0x600d);
			}
}

static struct iovec elements[SPW_VFIO_SGL_RUNS_MAX + 2];
static uint64_t words[2];
static uint32_t element_count, entries;

static void add(uint64_t iova, size_t len)
{
	elements[element_count++] = (struct iovec){(void *)(uintptr_t)iova, len};
}

static bool name_pages(void)
{
	return spw_vfio__name_pages(&list, elements, element_count, 0, words, &entries);
}

static bool name_runs(void)
{
	return spw_vfio__name_runs(&list, elements, element_count, 0, words, &entries);
}

/* A run cut into elements anywhere at the ends of pages is the same run. */
CASE(test_elements_that_fill_pages_are_one_run)
{
	fake.seed = 7;
	for (unsigned round = 0; round < 2000; round++) {
		uint64_t iova = 0x200000000 + (fake_random() % (PAGE / 4)) * 4, at = iova;
		uint32_t len = 4 + 4 * (uint32_t)(fake_random() % 40000), left = len;

		for (element_count = 0; left > 0;
		     left -= (uint32_t)elements[element_count - 1].iov_len) {
			uint64_t page_end = (at | (PAGE - 1)) + 1 + (fake_random() % 6) * PAGE;

			add(at, page_end - at < left ? page_end - at : left);
			at = page_end;
		}
		assert_true(name_pages());
		check_run(iova, len, words);
	}
}

CASE(test_gaps_are_refused)
{
	static const struct {
		uint64_t iova, len;
	} cases[][3] = {
		/* The first piece stops short of its page's end. */
		{{0x1000, PAGE - 4}, {0x9000, 4}},
		/* The second does not begin a page. */
		{{0x1800, 0x800}, {0x9800, 0x800}},
		/* More pages than a list has. */
		{{0x1000, PAGE}, {0x100000, SPW_VFIO_PRP_BYTES_MAX}, {0x1000, 4}},
	};

	for (size_t i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		element_count = 0;
		for (size_t j = 0; j < 3 && cases[i][j].len > 0; j++) {
			assert_true(name_pages());
			add(cases[i][j].iova, cases[i][j].len);
		}
		assert_false(name_pages());
	}
}

/* Runs that touch are one, others are not; the list has no room for more. */
CASE(test_runs)
{
	struct spw_vfio_pointer pointer;

	spw_vfio__name_run(&list, true, 0x1234567000, 8196, &pointer);
	assert_int_equal(pointer.flags, SPW_VFIO_SGL_FLAG);
	assert_int_equal(pointer.words[0], 0x1234567000);
	assert_int_equal(pointer.words[1], 8196);
	element_count = 0;
	add(0x1004, 4);
	add(0x1008, 0);
	add(0x1008, 0x3000);
	assert_true(name_runs());
	assert_int_equal(words[0], 0x1004);
	assert_int_equal(words[1], 0x3004);
	add(0x1000, 4);
	assert_true(name_runs());
	assert_int_equal(words[0], list.iova);
	assert_true(words[1] == (32 | UINT64_C(3) << 60));
	assert_int_equal(list_page[2], 0x1000);
	assert_int_equal(list_page[3], 4);
	/* A length has 32 bits. */
	element_count = 0;
	add(0x1000, UINT32_MAX - 3);
	add(0x1000 + (UINT64_C(1) << 32) - 4, 4);
	assert_true(name_runs());
	assert_int_equal(entries, 2 * SPW_VFIO_SGL_WORDS);
	list_page[SPW_VFIO_PRP_ENTRIES] = 0x600d;
	element_count = 0;
	for (uint32_t i = 0; i < SPW_VFIO_SGL_RUNS_MAX; i++)
		add(0x100000 + i * 8192, 4096);
	add(0x100000 + (SPW_VFIO_SGL_RUNS_MAX - 1) * 8192 + 4096, 4); /* of the last run */
	assert_true(name_runs());
	assert_int_equal(list_page[2 * SPW_VFIO_SGL_RUNS_MAX - 1], 4100);
	add(0x1000, 4);
	assert_false(name_runs());
	assert_int_equal(list_page[SPW_VFIO_PRP_ENTRIES], 0x600d);
}

/* ---- Addresses ------------------------------------------------------------------------------- */

#define MAPPINGS 200u

/* SPACE-1 */
CASE(test_addresses_never_overlap)
{
	struct spw_vfio_space space = {.ranges = {{.first = 0, .last = 0xfedfffff},
						  {.first = 0xfef00000, .last = 0x7fffffffff}},
				       .range_count = 2};
	static struct spw_vfio_mapping mappings[MAPPINGS];

	fake.seed = 11;
	for (unsigned round = 0; round < 4000; round++) {
		struct spw_vfio_mapping *m = &mappings[fake_random() % MAPPINGS];

		if (m->users > 0) {
			spw_vfio__space_remove(&space, m);
			assert_null(spw_vfio__space_mapping(&space, m->memory, m->len_bytes));
			m->users = 0;
			continue;
		}
		m->memory = (char *)(uintptr_t)((fake_random() & 0xffffffffff) << 12);
		m->len_bytes = (1 + fake_random() % 4000) * (round % 3 == 0 ? 512 * PAGE : PAGE);
		assert_true(spw_vfio__space_find(&space, m->memory, m->len_bytes, &m->iova));
		assert_true(m->iova > 0);
		assert_int_equal(m->iova & ((2u << 20) - 1),
				 (uintptr_t)m->memory & ((2u << 20) - 1));
		assert_true(m->iova + m->len_bytes - 1 <= 0xfedfffff ||
			    (m->iova >= 0xfef00000 && m->iova + m->len_bytes - 1 <= 0x7fffffffff));
		for (const struct spw_vfio_mapping *o = space.mappings; o; o = o->next)
			assert_true(m->iova + m->len_bytes <= o->iova ||
				    o->iova + o->len_bytes <= m->iova);
		m->users = 1;
		spw_vfio__space_insert(&space, m);
		for (const struct spw_vfio_mapping *o = space.mappings; o && o->next; o = o->next)
			assert_true(o->iova < o->next->iova);
		assert_ptr_equal(spw_vfio__space_mapping(&space, m->memory, m->len_bytes), m);
	}
}

/* SPACE-2 */
CASE(test_addresses_at_the_limits)
{
	struct spw_vfio_space space = {.ranges = {{.first = 0, .last = UINT64_MAX}},
				       .range_count = 1};
	struct spw_vfio_mapping all = {.users = 1};
	uint64_t iova;

	assert_true(spw_vfio__space_find(&space, (void *)0x1000, PAGE, &iova));
	assert_int_equal(iova, 0x1000);
	/* To the last byte that there is, and nothing after it. */
	all.len_bytes = UINT64_MAX - 0x200000 + 1;
	assert_true(spw_vfio__space_find(&space, NULL, all.len_bytes, &all.iova));
	assert_int_equal(all.iova, 0x200000);
	spw_vfio__space_insert(&space, &all);
	assert_false(spw_vfio__space_find(&space, NULL, 0x200000, &iova));
	assert_true(spw_vfio__space_find(&space, (void *)0x1000, PAGE, &iova));
	space = (struct spw_vfio_space){.ranges = {{.first = 0x200000, .last = 0x200fff}},
					.range_count = 1};
	assert_true(spw_vfio__space_find(&space, NULL, PAGE, &iova));
	assert_false(spw_vfio__space_find(&space, NULL, 2 * PAGE, &iova));
	assert_false(spw_vfio__space_find(&space, (void *)0x1000, PAGE, &iova));
}

/* ---- Rings ----------------------------------------------------------------------------------- */

CASE(test_entries)
{
	/* A page of commands, and twice as many entries as slots; */
	assert_int_equal(spw_vfio__pair_entries(1, 1024), 64);
	assert_int_equal(spw_vfio__pair_entries(32, 1024), 64);
	assert_int_equal(spw_vfio__pair_entries(33, 1024), 128);
	assert_int_equal(spw_vfio__pair_entries(63, 1024), 128);
	assert_int_equal(spw_vfio__pair_entries(64, 1024), 128);
	assert_int_equal(spw_vfio__pair_entries(1024, 65536), 2048);
	/* less where the controller takes less, down to fewer than the slots. */
	assert_int_equal(spw_vfio__pair_entries(1024, 1024), 1024);
	assert_int_equal(spw_vfio__pair_entries(1024, 100), 64);
	assert_int_equal(spw_vfio__pair_entries(1, 33), 32);
	assert_int_equal(spw_vfio__pair_entries(1024, 2), 2);
}

/* A drive without a head: what it would put into the ring is put there by hand. */
static void answer(struct spw_vfio_pair *pair, uint32_t position, uint16_t cid, uint16_t status)
{
	struct spw_vfio_completion *at =
		(void *)(uintptr_t)&pair->completions[position & pair->mask];

	at->cid = cid;
	at->sq_id = pair->id;
	at->result = position;
	at->status = (uint16_t)(status << 1 | !(position & (pair->mask + 1)));
}

/*
 * Round and round, with the number in flight going up and down: entries, phases and doorbells stay
 * right.
 */
CASE_WITH(test_rings_go_round, NULL, end_fake)
{
	uint16_t flying[16];
	unsigned count = 0;
	uint32_t answered = 0, taken = 0;
	struct spw_vfio_pair pair;

	fake_begin(9);
	assert_int_equal(spw_vfio__pair_init(&pair, &fake.link, 3, 16, 8, 4, 0), 0);
	assert_int_equal(pair.mask, 7);
	for (unsigned round = 0; round < 5000; round++) {
		union spw_vfio_command *entry;
		uint32_t slot, status, result;
		uint16_t cid;

		for (slot = 0; slot < 16 && spw_vfio__pair_has_room(&pair); slot++) {
			if (pair.slots[slot].busy || fake_random() % 3 == 0)
				continue;
			entry = spw_vfio__pair_begin(&pair, slot, &cid);
			assert_ptr_equal(entry, &pair.commands[(pair.tail - 1) & 7]);
			assert_int_equal(cid & SPW_VFIO_CID_SLOT, slot);
			flying[count++] = cid;
		}
		assert_true(pair.in_flight <= 7);
		spw_vfio__pair_submit(&pair);
		assert_int_equal(fake.registers[0x1018 / 4], pair.tail & 7);
		assert_int_equal(spw_vfio__pair_take(&pair, &slot, &status, &result), 0);
		for (unsigned some = (unsigned)(fake_random() % (count + 1)); some > 0; some--) {
			unsigned which = (unsigned)(fake_random() % count);

			cid = flying[which];
			flying[which] = flying[--count];
			answer(&pair, answered++, cid, cid & 0x7ff);
			assert_int_equal(spw_vfio__pair_take(&pair, &slot, &status, &result), 1);
			assert_int_equal(slot, cid & SPW_VFIO_CID_SLOT);
			assert_int_equal(status, cid & 0x7ff);
			assert_int_equal(result, taken++);
		}
		spw_vfio__pair_release(&pair);
		assert_int_equal(fake.registers[0x101c / 4], pair.head & 7);
	}
	assert_int_equal(pair.in_flight, count);
	spw_vfio__pair_free(&pair, &fake.link);
	assert_int_equal(fake_mapped(), 0);
}

/* Entries are returned together, and early enough for all slots to be in use at any time. */
CASE_WITH(test_heads_are_told_late, NULL, end_fake)
{
	static const struct {
		uint32_t slots, entries_max, lag;
	} cases[] = {{1, 1024, 62}, {32, 1024, 31}, {63, 1024, 64}, {4, 8, 3},
		     {7, 8, 0},     {16, 8, 0},     {1, 2, 0}};
	uint32_t slot, status, result;

	fake_begin(9);
	for (size_t i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		struct spw_vfio_pair pair;
		uint32_t told = 0;

		assert_int_equal(spw_vfio__pair_init(&pair, &fake.link, 1, cases[i].slots,
						     cases[i].entries_max, 4, 0),
				 0);
		assert_int_equal(pair.head_lag_max, cases[i].lag);
		fake.registers[0x100c / 4] = 0;
		for (uint32_t n = 0; n < 1000; n++) {
			uint16_t cid;

			(void)spw_vfio__pair_begin(&pair, 0, &cid);
			answer(&pair, n, cid, 0);
			assert_int_equal(spw_vfio__pair_take(&pair, &slot, &status, &result), 1);
			spw_vfio__pair_release(&pair);
			if (pair.head - told > cases[i].lag)
				told = pair.head;
			assert_int_equal(fake.registers[0x100c / 4], told & pair.mask);
			/* PAIR-1 */
			assert_true(
				pair.head - told +
					(cases[i].slots < pair.mask ? cases[i].slots : pair.mask) <=
				pair.mask);
		}
		spw_vfio__pair_free(&pair, &fake.link);
	}
}

/* PAIR-2 */
CASE_WITH(test_completions_that_cannot_be, NULL, end_fake)
{
	uint32_t slot, status, result;
	struct spw_vfio_pair pair;
	uint16_t first, second;

	fake_begin(9);
	assert_int_equal(spw_vfio__pair_init(&pair, &fake.link, 1, 4, 1024, 4, 0), 0);
	/* Before anything was sent. */
	answer(&pair, 0, 0, 0);
	assert_int_equal(spw_vfio__pair_take(&pair, &slot, &status, &result), -1);
	(void)spw_vfio__pair_begin(&pair, 2, &first);
	answer(&pair, 0, first, 0);
	assert_int_equal(spw_vfio__pair_take(&pair, &slot, &status, &result), 1);
	/* Once more. */
	answer(&pair, 1, first, 0);
	assert_int_equal(spw_vfio__pair_take(&pair, &slot, &status, &result), -1);
	assert_non_null(strstr(pair.complaint, "second completion"));
	/* Once more, and late: the slot has another command by now. */
	(void)spw_vfio__pair_begin(&pair, 2, &second);
	assert_int_not_equal(first, second);
	assert_int_equal(spw_vfio__pair_take(&pair, &slot, &status, &result), -1);
	assert_non_null(strstr(pair.complaint, "ended before"));
	answer(&pair, 1, 4, 0); /* no such slot */
	assert_int_equal(spw_vfio__pair_take(&pair, &slot, &status, &result), -1);
	assert_non_null(strstr(pair.complaint, "never was"));
	answer(&pair, 1, 0xffff, 0);
	assert_int_equal(spw_vfio__pair_take(&pair, &slot, &status, &result), -1);
	/* The right one, of another queue. */
	answer(&pair, 1, second, 0);
	((struct spw_vfio_completion *)(uintptr_t)&pair.completions[1])->sq_id = 2;
	assert_int_equal(spw_vfio__pair_take(&pair, &slot, &status, &result), -1);
	assert_non_null(strstr(pair.complaint, "another queue"));
	answer(&pair, 1, second, 0x281);
	assert_int_equal(spw_vfio__pair_take(&pair, &slot, &status, &result), 1);
	assert_int_equal(status, 0x281);
	spw_vfio__pair_free(&pair, &fake.link);
}

CASE_WITH(test_doorbells_beyond_the_registers, NULL, end_fake)
{
	struct spw_vfio_pair pair;

	fake_begin(9);
	assert_int_equal(spw_vfio__pair_init(&pair, &fake.link, 511, 4, 1024, 4, 0), 0);
	spw_vfio__pair_free(&pair, &fake.link);
	assert_int_equal(spw_vfio__pair_init(&pair, &fake.link, 512, 4, 1024, 4, 0), -EPROTO);
	assert_int_equal(spw_vfio__pair_init(&pair, &fake.link, 8, 4, 1024, 4 << 8, 0), -EPROTO);
	assert_int_equal(fake_mapped(), 0);
}

RUN_CASES(NULL, NULL)
