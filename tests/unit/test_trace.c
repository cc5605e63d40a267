/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_trace.c - traces: what is written comes back; what is damaged is refused, with
 * the line
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <zlib.h>

#include <spillway/trace.h>

#define HEADER "{\"format\":\"spillway-trace\",\"version\":1,\"model\":\"m\"}\n"
#define STEP   "{\"event\":\"step\",\"ns\":5}\n"
#define OFFER                                                                               \
	"{\"event\":\"offer\",\"ns\":7,\"tensor\":1,\"storage\":1,\"version\":0,\"storage_" \
	"bytes\":100,\"offset\":10,"
#define OFFERED OFFER "\"bytes\":90,\"result\":\"keep\"}\n"
#define AGAIN(storage, version)                                                                   \
	"{\"event\":\"offer\",\"ns\":9,\"tensor\":1,\"storage\":" storage ",\"version\":" version \
	",\"storage_bytes\":100,\"offset\":10,\"bytes\":90,\"result\":\"dedup\"}\n"
#define RELEASE "{\"event\":\"release\",\"ns\":9,\"tensor\":1}\n"

static char path[4096], path_gz[4096];

static int set_up(void **state)
{
	const char *folder = getenv("TMPDIR") ? getenv("TMPDIR") : "/var/tmp";

	(void)state;
	(void)snprintf(path, sizeof(path), "%s/trace.%d.jsonl", folder, (int)getpid());
	(void)snprintf(path_gz, sizeof(path_gz), "%s/trace.%d.jsonl.gz", folder, (int)getpid());
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	(void)unlink(path);
	(void)unlink(path_gz);
	return 0;
}

static void put_file(const char *name, const void *bytes, size_t len)
{
	FILE *file = fopen(name, "w");

	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, len, file), len);
	assert_int_equal(fclose(file), 0);
}

/* Reading @text fails with @error, and the message holds @words. */
static void refused(const char *text, int error, const char *words)
{
	struct spw_trace *trace;

	put_file(path, text, strlen(text));
	assert_int_equal(spw_trace_read(path, &trace), error);
	assert_null(trace);
	if (!strstr(spw_last_error(), words))
		fail_msg("\"%s\" does not say \"%s\"", spw_last_error(), words);
}

/* ---- What is written comes back ---- */

static const struct spw_trace_event samples[] = {
	{.kind = SPW_TRACE_STEP},
	{.kind = SPW_TRACE_STAGE,
	 .micro_batch = 3,
	 .has_next = true,
	 .next_micro_batch = 4,
	 .next_backward = true},
	{.kind = SPW_TRACE_SCOPE_ENTER, .scope_key = 0},
	{.kind = SPW_TRACE_SCOPE_ENTER, .scope_key = UINT64_MAX},
	{.kind = SPW_TRACE_OFFER,
	 .tensor = UINT64_MAX,
	 .storage_key = UINT64_MAX - 1,
	 .storage_version = INT64_MAX,
	 .storage_len_bytes = INT64_MAX,
	 .offset_bytes = 1,
	 .len_bytes = INT64_MAX - 1,
	 .hint = SPW_TRACE_HINT_PIN,
	 .result = SPW_TRACE_RESULT_SPILL},
	{.kind = SPW_TRACE_OFFER,
	 .tensor = 77,
	 .storage_key = 0,
	 .storage_len_bytes = 8,
	 .len_bytes = 8,
	 .result = SPW_TRACE_RESULT_DEDUP},
	{.kind = SPW_TRACE_SCOPE_LEAVE},
	{.kind = SPW_TRACE_STAGE, .backward = true},
	{.kind = SPW_TRACE_TAKE,
	 .tensor = 77,
	 .offset_bytes = 2,
	 .len_bytes = 6,
	 .wait_ns = INT64_MAX},
	{.kind = SPW_TRACE_RELEASE, .tensor = 77},
	{.kind = SPW_TRACE_RETURN, .tensor = 77},
	{.kind = SPW_TRACE_RELEASE, .tensor = UINT64_MAX},
};

enum { SAMPLES = sizeof(samples) / sizeof(samples[0]) };

static void check_samples(const struct spw_trace *trace)
{
	assert_int_equal(trace->count, SAMPLES);
	assert_int_equal(trace->steps, 1);
	assert_int_equal(trace->tensors, 2);
	assert_int_equal(trace->storages, 2);
	for (unsigned i = 0; i < SAMPLES; i++) {
		struct spw_trace_event want = samples[i];

		want.ns = trace->events[i].ns;
		if (want.tensor)
			want.tensor = want.tensor == 77 ? 2 : 1;
		if (want.kind == SPW_TRACE_OFFER)
			want.storage_key = want.tensor;
		if (want.kind == SPW_TRACE_SCOPE_ENTER)
			want.scope_key = want.scope_key ? 2 : 1;
		assert_true(i == 0 || want.ns >= trace->events[i - 1].ns);
		assert_memory_equal(&trace->events[i], &want, sizeof(want));
	}
}

static void record_samples(const char *name, const char *model)
{
	struct spw_trace_writer *writer;

	assert_int_equal(spw_trace_create(name, model, &writer), 0);
	for (unsigned i = 0; i < SAMPLES; i++)
		spw_trace_write(writer, &samples[i]);
	assert_int_equal(spw_trace_finish(writer), 0);
}

static void test_round_trip(void **state)
{
	const char *model = "two \"layers\"\n\\ and a \xc3\xa4";
	struct spw_trace *trace;
	unsigned char magic[2];
	FILE *file;

	(void)state;
	record_samples(path, model);
	assert_int_equal(spw_trace_read(path, &trace), 0);
	assert_string_equal(trace->model, model);
	check_samples(trace);
	spw_trace_free(trace);

	record_samples(path_gz, NULL);
	file = fopen(path_gz, "r");
	assert_non_null(file);
	assert_int_equal(fread(magic, 1, 2, file), 2);
	assert_int_equal(fclose(file), 0);
	assert_memory_equal(magic, "\x1f\x8b", 2);
	assert_int_equal(spw_trace_read(path_gz, &trace), 0);
	assert_string_equal(trace->model, "");
	check_samples(trace);
	spw_trace_free(trace);
}

#define THREADS          4
#define PAIRS_PER_THREAD 20000

static void *write_pairs(void *context)
{
	struct spw_trace_writer *writer = *(struct spw_trace_writer **)context;

	for (uint64_t i = 0; i < PAIRS_PER_THREAD; i++) {
		uint64_t id = (uint64_t)(uintptr_t)context * PAIRS_PER_THREAD + i;
		const struct spw_trace_event offer = {.kind = SPW_TRACE_OFFER,
						      .tensor = id,
						      .storage_key = id,
						      .storage_len_bytes = 1,
						      .len_bytes = 1};
		const struct spw_trace_event release = {.kind = SPW_TRACE_RELEASE, .tensor = id};

		spw_trace_write(writer, &offer);
		spw_trace_write(writer, &release);
	}
	return NULL;
}

/* Larger than the writer's blocks; the reader itself refuses anything out of order or twice. */
static void test_threads(void **state)
{
	struct spw_trace_writer *writers[THREADS];
	pthread_t threads[THREADS];
	struct spw_trace *trace;

	(void)state;
	assert_int_equal(spw_trace_create(path_gz, "", &writers[0]), 0);
	for (unsigned i = 0; i < THREADS; i++) {
		writers[i] = writers[0];
		assert_int_equal(pthread_create(&threads[i], NULL, write_pairs, &writers[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(spw_trace_finish(writers[0]), 0);
	assert_int_equal(spw_trace_read(path_gz, &trace), 0);
	assert_int_equal(trace->count, 2 * THREADS * PAIRS_PER_THREAD);
	assert_int_equal(trace->tensors, THREADS * PAIRS_PER_THREAD);
	spw_trace_free(trace);
}

/* ---- Failures of writing ---- */

static void test_create_refuses(void **state)
{
	char model[SPW_TRACE_MODEL_MAX + 2];
	struct spw_trace_writer *writer;

	(void)state;
	assert_int_equal(spw_trace_create(NULL, NULL, &writer), -EINVAL);
	assert_int_equal(spw_trace_create(path, NULL, NULL), -EINVAL);
	assert_int_equal(spw_trace_create("/nonexistent/trace", NULL, &writer), -ENOENT);
	assert_null(writer);
	assert_non_null(strstr(spw_last_error(), "/nonexistent/trace"));
	memset(model, 'm', sizeof(model) - 1);
	model[sizeof(model) - 1] = '\0';
	assert_int_equal(spw_trace_create(path, model, &writer), -EINVAL);
	model[SPW_TRACE_MODEL_MAX] = '\0';
	assert_int_equal(spw_trace_create(path, model, &writer), 0);
	assert_int_equal(spw_trace_finish(writer), 0);
	assert_int_equal(spw_trace_create(path, "\xff", &writer), -EINVAL);
	assert_int_equal(spw_trace_finish(NULL), 0);
}

static void test_full_disk(void **state)
{
	struct spw_trace_writer *writer;

	(void)state;
	if (access("/dev/full", W_OK) != 0) {
		print_message("no /dev/full here\n");
		skip();
	}
	assert_int_equal(spw_trace_create("/dev/full", "", &writer), 0);
	for (unsigned i = 0; i < 50000; i++)
		spw_trace_write(writer, &samples[0]);
	assert_int_equal(spw_trace_finish(writer), -ENOSPC);
	assert_non_null(strstr(spw_last_error(), "/dev/full"));
}

/* What cannot be read again is not written: the recording ends with what was before. */
static void test_event_out_of_range(void **state)
{
	const struct spw_trace_event wrong[] = {
		{.kind = SPW_TRACE_RELEASE + 1},
		{.kind = SPW_TRACE_RELEASE},
		{.kind = SPW_TRACE_OFFER, .tensor = 1, .storage_version = UINT64_MAX},
		{.kind = SPW_TRACE_TAKE, .tensor = 1, .wait_ns = UINT64_MAX},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct spw_trace_writer *writer;
		struct spw_trace *trace;

		assert_int_equal(spw_trace_create(path, "", &writer), 0);
		spw_trace_write(writer, &samples[0]);
		spw_trace_write(writer, &wrong[i]);
		spw_trace_write(writer, &samples[0]);
		assert_int_equal(spw_trace_finish(writer), -EINVAL);
		assert_int_equal(spw_trace_read(path, &trace), 0);
		assert_int_equal(trace->count, 1);
		spw_trace_free(trace);
	}
}

/* ---- What is refused ---- */

static void test_no_trace(void **state)
{
	struct spw_trace *trace;

	(void)state;
	assert_int_equal(spw_trace_read("/nonexistent", &trace), -ENOENT);
	assert_int_equal(spw_trace_read(NULL, &trace), -EINVAL);
	refused("", -EBADMSG, "this is no trace");
	refused("{}\n", -EBADMSG, "this is no trace");
	refused("[1]\n", -EBADMSG, "line 1");
	refused("\x7f"
		"ELF",
		-EBADMSG, "line 1");
	refused("{\"format\":\"spillway-trace\",\"version\":2,\"model\":\"\"}\n", -EPROTONOSUPPORT,
		"version 2");
	refused("{\"format\":\"spillway-trace\",\"version\":1}\n", -EBADMSG, "\"model\"");
	refused("{\"format\":\"spillway-trace\",\"version\":1,\"version\":1,\"model\":\"\"}\n",
		-EBADMSG, "line 1");
}

static void test_bad_lines(void **state)
{
	static const struct {
		const char *text, *words;
	} cases[] = {
		{HEADER STEP "{\"event\":\"step\",\"ns\":4}\n", "line 3: \"ns\" is 4, before"},
		{HEADER "{\"event\":\"jump\",\"ns\":4}\n", "line 2: \"event\""},
		{HEADER "{\"ns\":4}\n", "line 2: \"event\" is missing"},
		{HEADER "{\"event\":\"step\"}\n", "line 2: \"ns\" is missing"},
		{HEADER "{\"event\":\"step\",\"ns\":-1}\n", "no whole number"},
		{HEADER "{\"event\":\"step\",\"ns\":1.5}\n", "no whole number"},
		{HEADER "{\"event\":\"step\",\"ns\":\"5\"}\n", "no whole number"},
		{HEADER "{\"event\":\"step\",\"ns\":99999999999999999999}\n", "line 2: no JSON"},
		{HEADER STEP "{\"event\":\"step\",\"ns\":5}", "line 3: the file ends"},
		{HEADER STEP "{\"event\":\"step\",\"ns\":5}", "(head -n 2)"},
		{HEADER "\n", "line 2: no JSON"},
		{HEADER "{\"event\":5,\"ns\":5}\n", "line 2: \"event\""},
		{HEADER "{\"event\":\"stage\",\"ns\":5,\"micro_batch\":4294967296,\"stage\":"
			"\"forward\"}\n",
		 "at most"},
		{HEADER "{\"event\":\"stage\",\"ns\":5,\"micro_batch\":0,\"stage\":\"sideward\"}\n",
		 "\"stage\""},
		{HEADER "{\"event\":\"stage\",\"ns\":5,\"micro_batch\":0,\"stage\":\"forward\","
			"\"next_stage\":"
			"\"backward\"}\n",
		 "next_micro_batch"},
		{HEADER "{\"event\":\"scope_enter\",\"ns\":5}\n", "scope"},
		{HEADER OFFER "\"bytes\":91,\"result\":\"keep\"}\n", "not within a storage of 100"},
		{HEADER OFFER "\"bytes\":0,\"result\":\"keep\"}\n", "are empty"},
		{HEADER OFFER "\"bytes\":9223372036854775807,\"result\":\"keep\"}\n", "not within"},
		{HEADER OFFER "\"bytes\":9,\"result\":\"lose\"}\n", "\"result\""},
		{HEADER OFFER "\"bytes\":9,\"hint\":\"?\",\"result\":\"keep\"}\n", "\"hint\""},
		{HEADER OFFERED
		 "{\"event\":\"offer\",\"ns\":8,\"tensor\":9000000000,\"storage\":1}\n",
		 "numbered"},
		{HEADER OFFERED "{\"event\":\"offer\",\"ns\":8,\"tensor\":2,\"storage\":3}\n",
		 "numbered"},
		{HEADER OFFERED "{\"event\":\"offer\",\"ns\":8,\"tensor\":0,\"storage\":1}\n",
		 "numbered"},
		{HEADER RELEASE, "line 2: tensor 1 has not been offered"},
		{HEADER OFFERED RELEASE RELEASE, "line 4: tensor 1 has been released"},
		{HEADER OFFERED RELEASE
		 "{\"event\":\"take\",\"ns\":9,\"tensor\":1,\"offset\":10,\"bytes\":1,"
		 "\"wait_ns\":0}\n",
		 "line 4: tensor 1 has been released"},
		{HEADER OFFERED
		 "{\"event\":\"take\",\"ns\":9,\"tensor\":1,\"offset\":90,\"bytes\":11,"
		 "\"wait_ns\":0}\n",
		 "line 3: bytes 90 + 11"},
		{HEADER OFFERED
		 "{\"event\":\"take\",\"ns\":9,\"tensor\":1,\"offset\":90,\"bytes\":1}\n",
		 "wait_ns"},
		{HEADER "{\"event\":\"return\",\"ns\":9,\"tensor\":1}\n", "not been offered"},
		{HEADER "{\"event\":\"return\",\"ns\":9,\"tensor\":0}\n", "not been offered"},
		{HEADER OFFERED RELEASE AGAIN("1", "0"), "line 4: tensor 1 has been released"},
		{HEADER OFFERED AGAIN("2", "0"), "line 3: tensor 1 is of storage 1"},
		{HEADER OFFERED AGAIN("1", "1"), "line 3: tensor 1 is of storage 1, version 0"},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		refused(cases[i].text, -EBADMSG, cases[i].words);
}

/* A lease may be returned after the release, and offers of one tensor need as many releases. */
static void test_good_lines(void **state)
{
	const char *text = HEADER STEP OFFERED OFFERED RELEASE RELEASE
		"{\"event\":\"return\",\"ns\":9,\"tensor\":1,\"unknown\":[{}]}\n";
	struct spw_trace *trace;

	(void)state;
	put_file(path, text, strlen(text));
	assert_int_equal(spw_trace_read(path, &trace), 0);
	assert_int_equal(trace->count, 6);
	assert_int_equal(trace->tensors, 1);
	spw_trace_free(trace);
}

static void test_long_and_binary_lines(void **state)
{
	size_t len = 200000, header_len = strlen(HEADER);
	char *text = malloc(len);

	(void)state;
	assert_non_null(text);
	memset(text, '[', len);
	memcpy(text, HEADER, header_len);
	text[len - 1] = '\0';
	refused(text, -EBADMSG, "line 2: longer than");
	/* Deep nesting in a line that is just short enough. */
	memcpy(text + header_len + 60000, "\n", 2);
	refused(text, -EBADMSG, "line 2: no JSON");
	free(text);

	put_file(path, HEADER STEP "{\0}\n", header_len + strlen(STEP) + 4);
	assert_int_equal(spw_trace_read(path, (struct spw_trace **)&text), -EBADMSG);
	assert_non_null(strstr(spw_last_error(), "line 3"));
}

/*
 * Cut and damaged at every place: refused, or, where only unread bytes changed, read; never a
 * crash.
 */
static void test_damaged(void **state)
{
	unsigned char whole[8192], copy[sizeof(whole)];
	uint64_t random = getenv("SPW_SEED") ? strtoull(getenv("SPW_SEED"), NULL, 0) : 0;
	struct spw_trace *trace;
	size_t len;
	FILE *file;

	(void)state;
	if (random == 0)
		assert_int_equal(getrandom(&random, sizeof(random), 0), sizeof(random));
	print_message("SPW_SEED=%llu\n", (unsigned long long)random);
	record_samples(path_gz, "m");
	file = fopen(path_gz, "r");
	assert_non_null(file);
	len = fread(whole, 1, sizeof(whole), file);
	assert_int_equal(fclose(file), 0);
	assert_true(len > 100 && len < sizeof(whole));
	for (size_t cut = 0; cut < len; cut++) {
		put_file(path_gz, whole, cut);
		assert_int_equal(spw_trace_read(path_gz, &trace), -EBADMSG);
		assert_null(trace);
	}
	for (unsigned i = 0; i < 300; i++) {
		memcpy(copy, whole, len);
		random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
		copy[(random >> 32) % len] ^= (unsigned char)(1u << (random >> 61));
		put_file(path_gz, copy, len);
		if (spw_trace_read(path_gz, &trace) == 0)
			spw_trace_free(trace);
		else
			assert_null(trace);
	}
}

/* Cut at every place: read as far as it goes if that is the end of a line, and else refused. */
static void test_cut_text(void **state)
{
	char whole[8192];
	struct spw_trace *trace;
	uint32_t lines = 0;
	size_t len;
	FILE *file;

	(void)state;
	record_samples(path, "m");
	file = fopen(path, "r");
	assert_non_null(file);
	len = fread(whole, 1, sizeof(whole), file);
	assert_int_equal(fclose(file), 0);
	assert_true(len > 100 && len < sizeof(whole));
	for (size_t cut = 0; cut <= len; cut++) {
		put_file(path, whole, cut);
		if (cut > 0 && whole[cut - 1] == '\n') {
			assert_int_equal(spw_trace_read(path, &trace), 0);
			assert_int_equal(trace->count, lines++); /* beside the header */
			spw_trace_free(trace);
		} else {
			assert_int_equal(spw_trace_read(path, &trace), -EBADMSG);
			assert_null(trace);
		}
	}
	assert_int_equal(lines, SAMPLES + 1);
}

/* The same for plain text, where the damage gets past the decompression. */
static void test_damaged_text(void **state)
{
	static const char noise[] = "{}[]\",:0123456789-eE.\n\\u tfn";
	uint64_t random = getenv("SPW_SEED") ? strtoull(getenv("SPW_SEED"), NULL, 0) : 0;
	char whole[8192], copy[sizeof(whole)];
	struct spw_trace *trace;
	size_t len;
	FILE *file;

	(void)state;
	if (random == 0)
		assert_int_equal(getrandom(&random, sizeof(random), 0), sizeof(random));
	print_message("SPW_SEED=%llu\n", (unsigned long long)random);
	record_samples(path, "m");
	file = fopen(path, "r");
	assert_non_null(file);
	len = fread(whole, 1, sizeof(whole), file);
	assert_int_equal(fclose(file), 0);
	for (unsigned i = 0; i < 1000; i++) {
		memcpy(copy, whole, len);
		for (unsigned k = 0; k <= i % 3; k++) {
			random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
			copy[(random >> 32) % len] = noise[(random >> 20) % (sizeof(noise) - 1)];
		}
		put_file(path, copy, len);
		if (spw_trace_read(path, &trace) == 0)
			spw_trace_free(trace);
		else
			assert_null(trace);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_threads),
		cmocka_unit_test(test_create_refuses),
		cmocka_unit_test(test_full_disk),
		cmocka_unit_test(test_event_out_of_range),
		cmocka_unit_test(test_no_trace),
		cmocka_unit_test(test_bad_lines),
		cmocka_unit_test(test_good_lines),
		cmocka_unit_test(test_long_and_binary_lines),
		cmocka_unit_test(test_damaged),
		cmocka_unit_test(test_cut_text),
		cmocka_unit_test(test_damaged_text),
	};

	return cmocka_run_group_tests_name("trace", tests, set_up, tear_down);
}
