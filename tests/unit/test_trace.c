/* SPDX-License-Identifier: MIT */
/* tests/unit/test_trace.c - traces are read as written; damaged ones are refused, with the line */
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "tests/case.h"
#include "tests/random.h"

#include <spillway/trace.h>

#include "util/util.h"

#define HEADER "{\"format\":\"spillway-trace\",\"version\":1,\"model\":\"m\"}\n"
#define STEP   EVENT("step", ",\"ns\":5")
#define OFFER                                                                               \
	"{\"event\":\"offer\",\"ns\":7,\"tensor\":1,\"storage\":1,\"version\":0,\"storage_" \
	"bytes\":100,\"offset\":10,"
#define OFFERED OFFER "\"bytes\":90,\"result\":\"keep\"}\n"
#define AGAIN(storage, version)                                                                   \
	"{\"event\":\"offer\",\"ns\":9,\"tensor\":1,\"storage\":" storage ",\"version\":" version \
	",\"storage_bytes\":100,\"offset\":10,\"bytes\":90,\"result\":\"dedup\"}\n"
#define EVENT(name, rest) "{\"event\":\"" name "\"" rest "}\n"
#define RELEASE           EVENT("release", ",\"ns\":9,\"tensor\":1")
#define TAKE(rest)        EVENT("take", ",\"ns\":9,\"tensor\":1," rest)
#define STAGE(rest)       EVENT("stage", ",\"ns\":5,\"micro_batch\":" rest)

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

/* Return: the number of bytes of the file, all of which fit into @bytes. */
static size_t get_file(const char *name, void *bytes, size_t size)
{
	FILE *file = fopen(name, "r");
	size_t len;

	assert_non_null(file);
	len = fread(bytes, 1, size, file);
	assert_int_equal(fclose(file), 0);
	assert_true(len > 100 && len < size);
	return len;
}

static struct spw_trace *read_trace(const char *name)
{
	struct spw_trace *trace;

	assert_int_equal(spw_trace_read(name, &trace), 0);
	return trace;
}

/* It is read or refused. */
static void read_damaged(const char *name)
{
	struct spw_trace *trace;

	if (spw_trace_read(name, &trace) == 0)
		spw_trace_free(trace);
	else
		assert_null(trace);
}

/* Reading it fails with @error, and the message holds @words. */
static void not_read(const char *name, int error, const char *words)
{
	struct spw_trace *trace;

	assert_int_equal(spw_trace_read(name, &trace), error);
	assert_null(trace);
	if (!strstr(spw_last_error(), words))
		fail_msg("\"%s\" does not say \"%s\"", spw_last_error(), words);
}

static void refused(const char *text, int error, const char *words)
{
	put_file(path, text, strlen(text));
	not_read(path, error, words);
}

/* ---- What is written comes back ---- */

#define IS(what)           .kind = SPW_TRACE_##what
#define RANGE(offset, len) .offset_bytes = offset, .len_bytes = len
#define OF(key, all)       .storage_key = key, .storage_len_bytes = all
#define CAME(what)         .result = SPW_TRACE_RESULT_##what

static const struct spw_trace_event samples[] = {
	{IS(STEP)},
	{IS(STAGE), .micro_batch = 3, .has_next = true, .next_micro_batch = 4,
	 .next_backward = true},
	{IS(SCOPE_ENTER), .scope_key = 0},
	{IS(SCOPE_ENTER), .scope_key = UINT64_MAX},
	{IS(OFFER), .tensor = UINT64_MAX, OF(UINT64_MAX - 1, INT64_MAX), RANGE(1, INT64_MAX - 1),
	 .storage_version = INT64_MAX, .hint = SPW_TRACE_HINT_PIN, CAME(SPILL)},
	{IS(OFFER), .tensor = 77, OF(0, 8), RANGE(0, 8), CAME(DEDUP)},
	{IS(SCOPE_LEAVE)},
	{IS(STAGE), .backward = true},
	{IS(TAKE), .tensor = 77, RANGE(2, 6), .wait_ns = INT64_MAX},
	{IS(RELEASE), .tensor = 77},
	{IS(RETURN), .tensor = 77},
	{IS(RELEASE), .tensor = UINT64_MAX},
	{IS(HOLD), .wait_ns = 1},
	{IS(AGAIN), .wait_ns = INT64_MAX},
};

#define SAMPLES SPW_ARRAY_LEN(samples)

static void check_samples(const char *name, const char *model)
{
	struct spw_trace *trace = read_trace(name);

	assert_string_equal(trace->model, model);
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
	spw_trace_free(trace);
}

static void record_samples(const char *name, const char *model)
{
	struct spw_trace_writer *writer;

	assert_int_equal(spw_trace_create(name, model, &writer), 0);
	for (unsigned i = 0; i < SAMPLES; i++)
		spw_trace_write(writer, &samples[i]);
	assert_int_equal(spw_trace_finish(writer), 0);
}

CASE(test_round_trip)
{
	const char *model = "two \"layers\"\n\\ and a \xc3\xa4";
	unsigned char compressed[8192];

	record_samples(path, model);
	check_samples(path, model);
	record_samples(path_gz, NULL);
	(void)get_file(path_gz, compressed, sizeof(compressed));
	assert_memory_equal(compressed, "\x1f\x8b", 2);
	check_samples(path_gz, "");
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
CASE(test_threads)
{
	struct spw_trace_writer *writers[THREADS];
	pthread_t threads[THREADS];
	struct spw_trace *trace;

	assert_int_equal(spw_trace_create(path_gz, "", &writers[0]), 0);
	for (unsigned i = 0; i < THREADS; i++) {
		writers[i] = writers[0];
		assert_int_equal(pthread_create(&threads[i], NULL, write_pairs, &writers[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(spw_trace_finish(writers[0]), 0);
	trace = read_trace(path_gz);
	assert_int_equal(trace->count, 2 * THREADS * PAIRS_PER_THREAD);
	assert_int_equal(trace->tensors, THREADS * PAIRS_PER_THREAD);
	spw_trace_free(trace);
}

/* ---- Failures of writing ---- */

CASE(test_create_refuses)
{
	char model[SPW_TRACE_MODEL_MAX + 2];
	struct spw_trace_writer *writer;

	assert_int_equal(spw_trace_create(NULL, NULL, &writer), -EINVAL);
	assert_int_equal(spw_trace_create(path, NULL, NULL), -EINVAL);
	assert_int_equal(spw_trace_create("/nonexistent/trace", NULL, &writer), -ENOENT);
	assert_null(writer);
	expect_words("/nonexistent/trace");
	memset(model, 'm', sizeof(model) - 1);
	model[sizeof(model) - 1] = '\0';
	assert_int_equal(spw_trace_create(path, model, &writer), -EINVAL);
	model[SPW_TRACE_MODEL_MAX] = '\0';
	assert_int_equal(spw_trace_create(path, model, &writer), 0);
	assert_int_equal(spw_trace_finish(writer), 0);
	assert_int_equal(spw_trace_create(path, "\xff", &writer), -EINVAL);
	assert_int_equal(spw_trace_finish(NULL), 0);
}

CASE(test_full_disk)
{
	struct spw_trace_writer *writer;

	if (access("/dev/full", W_OK) != 0) {
		print_message("no /dev/full here\n");
		skip();
	}
	assert_int_equal(spw_trace_create("/dev/full", "", &writer), 0);
	for (unsigned i = 0; i < 50000; i++)
		spw_trace_write(writer, &samples[0]);
	expect_refusal(-ENOSPC, "/dev/full", spw_trace_finish(writer));
}

/* What cannot be read again is not written: the recording ends with what was before. */
CASE(test_event_out_of_range)
{
	const struct spw_trace_event wrong[] = {
		{.kind = SPW_TRACE_AGAIN + 1},
		{.kind = SPW_TRACE_RELEASE},
		{.kind = SPW_TRACE_OFFER, .tensor = 1, .storage_version = UINT64_MAX},
		{.kind = SPW_TRACE_TAKE, .tensor = 1, .wait_ns = UINT64_MAX},
	};

	for (unsigned i = 0; i < SPW_ARRAY_LEN(wrong); i++) {
		struct spw_trace_writer *writer;
		struct spw_trace *trace;

		assert_int_equal(spw_trace_create(path, "", &writer), 0);
		spw_trace_write(writer, &samples[0]);
		spw_trace_write(writer, &wrong[i]);
		spw_trace_write(writer, &samples[0]);
		assert_int_equal(spw_trace_finish(writer), -EINVAL);
		trace = read_trace(path);
		assert_int_equal(trace->count, 1);
		spw_trace_free(trace);
	}
}

/* ---- What is refused ---- */

CASE(test_no_trace)
{
	not_read("/nonexistent", -ENOENT, "/nonexistent");
	not_read(NULL, -EINVAL, "");
	refused("", -EBADMSG, "this is not a trace");
	refused("{}\n", -EBADMSG, "this is not a trace");
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

CASE(test_bad_lines)
{
	static const struct {
		const char *text, *words;
	} cases[] = {
		{HEADER STEP EVENT("step", ",\"ns\":4"), "line 3: \"ns\" is 4, before"},
		{HEADER EVENT("jump", ",\"ns\":4"), "line 2: \"event\""},
		{HEADER "{\"ns\":4}\n", "line 2: \"event\" is missing"},
		{HEADER EVENT("step", ""), "line 2: \"ns\" is missing"},
		{HEADER EVENT("step", ",\"ns\":-1"), "not a whole number"},
		{HEADER EVENT("step", ",\"ns\":1.5"), "not a whole number"},
		{HEADER EVENT("step", ",\"ns\":\"5\""), "not a whole number"},
		{HEADER EVENT("step", ",\"ns\":99999999999999999999"), "line 2: no JSON"},
		{HEADER STEP "{\"event\":\"step\",\"ns\":5}", "line 3: the file ends"},
		{HEADER STEP "{\"event\":\"step\",\"ns\":5}", "(head -n 2)"},
		{HEADER "\n", "line 2: no JSON"},
		{HEADER "{\"event\":5,\"ns\":5}\n", "line 2: \"event\""},
		{HEADER STAGE("4294967296,\"stage\":\"forward\""), "at most"},
		{HEADER STAGE("0,\"stage\":\"sideward\""), "\"stage\""},
		{HEADER STAGE("0,\"stage\":\"forward\",\"next_stage\":\"backward\""),
		 "next_micro_batch"},
		{HEADER EVENT("scope_enter", ",\"ns\":5"), "scope"},
		{HEADER OFFER "\"bytes\":91,\"result\":\"keep\"}\n", "not within a storage of 100"},
		{HEADER OFFER "\"bytes\":0,\"result\":\"keep\"}\n", "are empty"},
		{HEADER OFFER "\"bytes\":9223372036854775807,\"result\":\"keep\"}\n", "not within"},
		{HEADER OFFER "\"bytes\":9,\"result\":\"lose\"}\n", "\"result\""},
		{HEADER OFFER "\"bytes\":9,\"hint\":\"?\",\"result\":\"keep\"}\n", "\"hint\""},
		{HEADER OFFERED EVENT("offer", ",\"ns\":8,\"tensor\":9000000000,\"storage\":1"),
		 "numbered"},
		{HEADER OFFERED EVENT("offer", ",\"ns\":8,\"tensor\":2,\"storage\":3"), "numbered"},
		{HEADER OFFERED EVENT("offer", ",\"ns\":8,\"tensor\":0,\"storage\":1"), "numbered"},
		{HEADER RELEASE, "line 2: tensor 1 has not been offered"},
		{HEADER OFFERED RELEASE RELEASE, "line 4: tensor 1 has been released"},
		{HEADER OFFERED RELEASE TAKE("\"offset\":10,\"bytes\":1,\"wait_ns\":0"),
		 "line 4: tensor 1 has been released"},
		{HEADER OFFERED TAKE("\"offset\":90,\"bytes\":11,\"wait_ns\":0"),
		 "line 3: bytes 90 + 11"},
		{HEADER OFFERED TAKE("\"offset\":90,\"bytes\":1"), "wait_ns"},
		{HEADER EVENT("return", ",\"ns\":9,\"tensor\":1"), "not been offered"},
		{HEADER EVENT("return", ",\"ns\":9,\"tensor\":0"), "not been offered"},
		{HEADER OFFERED RELEASE AGAIN("1", "0"), "line 4: tensor 1 has been released"},
		{HEADER OFFERED AGAIN("2", "0"), "line 3: tensor 1 is of storage 1"},
		{HEADER OFFERED AGAIN("1", "1"), "line 3: tensor 1 is of storage 1, version 0"},
	};

	for (unsigned i = 0; i < SPW_ARRAY_LEN(cases); i++)
		refused(cases[i].text, -EBADMSG, cases[i].words);
}

/* A lease may be returned after the release, and offers of one tensor need as many releases. */
CASE(test_good_lines)
{
	const char *text = HEADER STEP OFFERED OFFERED RELEASE RELEASE EVENT(
		"return", ",\"ns\":9,\"tensor\":1,\"unknown\":[{}]");
	struct spw_trace *trace;

	put_file(path, text, strlen(text));
	trace = read_trace(path);
	assert_int_equal(trace->count, 6);
	assert_int_equal(trace->tensors, 1);
	spw_trace_free(trace);
}

CASE(test_long_and_binary_lines)
{
	size_t len = 200000, header_len = strlen(HEADER);
	char *text = malloc(len);

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
	not_read(path, -EBADMSG, "line 3");
}

/* Cut and damaged at every place: refused or read, never a crash. */
CASE(test_damaged)
{
	unsigned char whole[8192], copy[sizeof(whole)];
	uint64_t random = random_seed();
	size_t len;

	record_samples(path_gz, "m");
	len = get_file(path_gz, whole, sizeof(whole));
	for (size_t cut = 0; cut < len; cut++) {
		put_file(path_gz, whole, cut);
		not_read(path_gz, -EBADMSG, "");
	}
	for (unsigned i = 0; i < 300; i++) {
		memcpy(copy, whole, len);
		copy[random_below(&random, len)] ^= (unsigned char)(1u << random_below(&random, 8));
		put_file(path_gz, copy, len);
		read_damaged(path_gz);
	}
}

/* Cut at every place: read as far as it goes if that is the end of a line, and else refused. */
CASE(test_cut_text)
{
	char whole[8192];
	struct spw_trace *trace;
	uint32_t lines = 0;
	size_t len;

	record_samples(path, "m");
	len = get_file(path, whole, sizeof(whole));
	for (size_t cut = 0; cut <= len; cut++) {
		put_file(path, whole, cut);
		if (cut > 0 && whole[cut - 1] == '\n') {
			trace = read_trace(path);
			assert_int_equal(trace->count, lines++); /* beside the header */
			spw_trace_free(trace);
		} else {
			not_read(path, -EBADMSG, "");
		}
	}
	assert_int_equal(lines, SAMPLES + 1);
}

/* The same for plain text, where the damage gets past the decompression. */
CASE(test_damaged_text)
{
	static const char noise[] = "{}[]\",:0123456789-eE.\n\\u tfn";
	uint64_t random = random_seed();
	char whole[8192], copy[sizeof(whole)];
	size_t len;

	record_samples(path, "m");
	len = get_file(path, whole, sizeof(whole));
	for (unsigned i = 0; i < 1000; i++) {
		memcpy(copy, whole, len);
		for (unsigned k = 0; k <= i % 3; k++)
			copy[random_below(&random, len)] =
				noise[random_below(&random, sizeof(noise) - 1)];
		put_file(path, copy, len);
		read_damaged(path);
	}
}

RUN_CASES(set_up, tear_down)
