/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_util.c - sizes in words, error texts, the log, option structs of other versions
 */
/* link: util */
#include "util/notices.h"
#include "util/util.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/case.h"

#define KIB 1024ull
#define MIB (KIB * 1024)
#define GIB (MIB * 1024)
#define TIB (GIB * 1024)
#define PIB (TIB * 1024)

/* ---- Sizes ----------------------------------------------------------------------------------- */

CASE(test_size_parse)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} good[] = {
		{"0", 0},
		{"1536", 1536},
		{"1b", 1},
		{"512B", 512},
		{"4k", 4 * KIB},
		{"4K", 4 * KIB},
		{"4KiB", 4 * KIB},
		{"4kib", 4 * KIB},
		{"4 KiB", 4 * KIB},
		{"4kB", 4000},
		{"4KB", 4000},
		{"1.5MiB", MIB + MIB / 2},
		{"1.5m", MIB + MIB / 2},
		{"0.5k", 512},
		{"2G", 2 * GIB},
		{"2GB", 2000000000},
		{"3T", 3 * TIB},
		{"3tb", 3000000000000},
		{"1P", PIB},
		{"1E", 1024 * PIB},
		{"15.5 EiB", 15872 * PIB},
		{"18EB", UINT64_C(18000000000000000000)},
		{"15.9999999999999999999999EiB", UINT64_MAX - 1}, /* 18 digits count */
		{"0.1k", 102},
		{"1.k", KIB},
		{"007", 7},
		{"4294967296", 1ull << 32},
		{"18446744073709551615", UINT64_MAX},
		{"16383P", 16383 * PIB},
	};
	uint64_t bytes;

	for (size_t i = 0; i < SPW_ARRAY_LEN(good); i++) {
		bytes = 99;
		print_message("size \"%s\"\n", good[i].text);
		assert_int_equal(spw_size_parse(good[i].text, &bytes), 0);
		assert_int_equal(bytes, good[i].bytes);
	}
}

CASE(test_size_parse_refuses)
{
	static const struct {
		const char *text;
		int error;
	} bad[] = {
		{"", -EINVAL},       {" ", -EINVAL},
		{" 4k", -EINVAL},    {"-1", -EINVAL},
		{"+1", -EINVAL},     {"k", -EINVAL},
		{".5k", -EINVAL},    {"4x", -EINVAL},
		{"4kk", -EINVAL},    {"4ki", -EINVAL},
		{"4iB", -EINVAL},    {"4k 4", -EINVAL},
		{"4k,", -EINVAL},    {"4 4", -EINVAL},
		{"1.2.3", -EINVAL},  {"1,5k", -EINVAL},
		{"0x10", -EINVAL},   {"1e3", -EINVAL},
		{"0x1p4", -EINVAL},  {"nan", -EINVAL},
		{"inf", -EINVAL},    {"infinity", -EINVAL},
		{"four", -EINVAL},   {"18446744073709551616", -ERANGE},
		{"16E", -ERANGE},    {"18446744073709551616x", -EINVAL},
		{"16384P", -ERANGE}, {"99999999999999999999999G", -ERANGE},
	};
	uint64_t bytes;

	for (size_t i = 0; i < SPW_ARRAY_LEN(bad); i++) {
		bytes = 99;
		print_message("size \"%s\"\n", bad[i].text);
		assert_int_equal(spw_size_parse(bad[i].text, &bytes), bad[i].error);
		assert_int_equal(bytes, 0);
	}
}

static void assert_format(uint64_t bytes, const char *text)
{
	char buf[32];

	assert_ptr_equal(spw_size_format(bytes, buf, sizeof(buf)), buf);
	assert_string_equal(buf, text);
}

CASE(test_size_format)
{
	assert_format(0, "0 B");
	assert_format(1, "1 B");
	assert_format(1023, "1023 B");
	assert_format(1024, "1 KiB");
	assert_format(1536, "1.50 KiB");
	/* What rounds to 1024 is one of the next unit. */
	assert_format(1048524, "1023.9 KiB");
	assert_format(1048525, "1.00 MiB");
	assert_format(1048575, "1.00 MiB");
	assert_format(GIB - 1, "1.00 GiB");
	assert_format(UINT64_MAX, "16 EiB");
	assert_format(10 * KIB + 512, "10.5 KiB");
	assert_format(GIB + GIB / 2, "1.50 GiB");
	assert_format(4 * GIB, "4 GiB");
	assert_format(100 * TIB, "100 TiB");
}

/*
 * What is printed can be typed in again: exactly for whole units, and within what three digits tell
 * for the rest.
 */
CASE(test_size_round_trip)
{
	uint64_t bytes, again, unit;
	char buf[32];

	for (unsigned bit = 0; bit < 60; bit++) {
		bytes = 1ull << bit;
		assert_int_equal(spw_size_parse(spw_size_format(bytes, buf, sizeof(buf)), &again),
				 0);
		assert_int_equal(again, bytes);

		bytes += bytes / 3;
		unit = bytes / 100 + 1;
		assert_int_equal(spw_size_parse(spw_size_format(bytes, buf, sizeof(buf)), &again),
				 0);
		assert_in_range(again, bytes - unit, bytes + unit);
	}
}

CASE(test_size_format_short_buffer)
{
	char buf[8];

	memset(buf, 'x', sizeof(buf));
	(void)spw_size_format(GIB + GIB / 2, buf, 4);
	assert_string_equal(buf, "1.5");
	assert_int_equal(buf[4], 'x');
}

CASE(test_rounding)
{
	assert_int_equal(spw_round_up(0, 4096), 0);
	assert_int_equal(spw_round_up(1, 4096), 4096);
	assert_int_equal(spw_round_up(4096, 4096), 4096);
	assert_int_equal(spw_round_up(1000, 300), 1200);
	assert_int_equal(spw_round_down(4097, 4096), 4096);
	assert_int_equal(spw_round_down(4095, 4096), 0);
	assert_false(spw_is_power_of_two(0));
	assert_true(spw_is_power_of_two(1));
	assert_false(spw_is_power_of_two(3));
	assert_true(spw_is_power_of_two(1ull << 63));
}

/* ---- Errors ---------------------------------------------------------------------------------- */

CASE(test_error_text)
{
	assert_int_equal(spw_error(-ENXIO, "drive %d of %s", 3, "seven"), -ENXIO);
	assert_string_equal(spw_last_error(), "drive 3 of seven");
	assert_int_equal(spw_error_errno(-ENOENT, "/dev/none"), -ENOENT);
	assert_string_equal(spw_last_error(), "/dev/none: No such file or directory");
}

/* A layer may put words before what the layer below has said. */
CASE(test_error_text_of_error_text)
{
	(void)spw_error(-EIO, "the inner one");
	(void)spw_error(-EIO, "the outer one: %s", spw_last_error());
	assert_string_equal(spw_last_error(), "the outer one: the inner one");
}

CASE(test_error_text_is_cut)
{
	char text[2000];

	memset(text, 'e', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	assert_int_equal(spw_error(-EIO, "%s", text), -EIO);
	assert_int_equal(strlen(spw_last_error()), 511);
	assert_int_equal(spw_error_errno(-EIO, "%s", text), -EIO);
	assert_int_equal(strlen(spw_last_error()), 511);

	/* The reason goes as far as there is room. */
	text[500] = '\0';
	(void)spw_error_errno(-ENOENT, "%s", text);
	assert_int_equal(strlen(spw_last_error()), 511);
	assert_string_equal(spw_last_error() + 500, ": No such f");
}

static void *other_thread(void *context)
{
	bool *ok = context;

	*ok = strcmp(spw_last_error(), "") == 0;
	(void)spw_error(-EIO, "of the other thread");
	*ok = *ok && strcmp(spw_last_error(), "of the other thread") == 0;
	return NULL;
}

CASE(test_error_text_per_thread)
{
	pthread_t thread;
	bool ok = false;

	(void)spw_error(-EIO, "of this thread");
	assert_int_equal(pthread_create(&thread, NULL, other_thread, &ok), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(ok);
	assert_string_equal(spw_last_error(), "of this thread");
}

CASE(test_strerror)
{
	static const int own[] = {ENXIO,   ENOTUNIQ, EMEDIUMTYPE, EUCLEAN, EPROTONOSUPPORT,
				  EBADMSG, ENOBUFS,  EEXIST,      EILSEQ};
	char text[128];

	assert_string_equal(spw_strerror(-ENOENT), "No such file or directory");
	assert_string_equal(spw_strerror(ENOENT), spw_strerror(-ENOENT));
	assert_string_equal(spw_strerror(0), "Success");
	for (size_t i = 0; i < SPW_ARRAY_LEN(own); i++) {
		(void)snprintf(text, sizeof(text), "%s", strerror(own[i]));
		assert_string_not_equal(spw_strerror(-own[i]), text);
	}
	assert_non_null(strstr(spw_strerror(-123456), "123456"));
}

CASE(test_version)
{
	unsigned major, minor, patch;
	char rest;

	assert_string_equal(spw_version(), SPW_VERSION);
	assert_int_equal(sscanf(spw_version(), "%u.%u.%u%c", &major, &minor, &patch, &rest), 3);
}

/* ---- Log ------------------------------------------------------------------------------------- */

struct heard {
	unsigned count;
	enum spw_log_level level;
	char text[1024];
};

static void hear(void *context, enum spw_log_level level, const char *message)
{
	struct heard *heard = context;

	heard->count++;
	heard->level = level;
	(void)snprintf(heard->text, sizeof(heard->text), "%s", message);
}

CASE(test_log)
{
	struct heard heard = {0};
	struct spw_log log = {.write = hear, .context = &heard}, silent = {0};

	spw_log(NULL, SPW_LOG_ERROR, "unheard %d", 1);
	spw_log(&silent, SPW_LOG_ERROR, "unheard %d", 2);
	spw_log(&log, SPW_LOG_WARNING, "drive %s is %d %% full", "a", 97);
	assert_int_equal(heard.count, 1);
	assert_int_equal(heard.level, SPW_LOG_WARNING);
	assert_string_equal(heard.text, "drive a is 97 % full");
}

CASE(test_log_is_cut)
{
	struct heard heard = {0};
	struct spw_log log = {.write = hear, .context = &heard};
	char text[800];

	memset(text, 'l', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	spw_log(&log, SPW_LOG_INFO, "%s", text);
	assert_int_equal(heard.count, 1);
	assert_int_equal(strlen(heard.text), 511);
}

#define RING_LINES 8

CASE(test_log_ring)
{
	struct spw_log_ring *ring;
	struct spw_log_line line;
	struct spw_log log = {.write = spw_log_ring_write};

	assert_int_equal(spw_log_ring_open(0, &ring), -EINVAL);
	spw_log_ring_close(ring);
	assert_int_equal(spw_log_ring_open(RING_LINES, &ring), 0);
	log.context = ring;
	(void)spw_error(-EIO, "as it was");
	for (unsigned round = 0; round < 3; round++) {
		assert_int_equal(spw_log_ring_read(ring, NULL), 0);
		assert_int_equal(spw_log_ring_read(ring, &line), 0);
		for (unsigned i = 0; i < RING_LINES + round; i++)
			spw_log(&log, i % 2 ? SPW_LOG_INFO : SPW_LOG_ERROR, "%u of %u", i, round);
		for (unsigned i = 0; i < RING_LINES; i++) {
			char text[32];

			(void)snprintf(text, sizeof(text), "%u of %u", i, round);
			assert_int_equal(spw_log_ring_read(ring, NULL), 1);
			assert_int_equal(spw_log_ring_read(ring, &line), 1);
			assert_string_equal(line.text, text);
			assert_int_equal(line.level, i % 2 ? SPW_LOG_INFO : SPW_LOG_ERROR);
			assert_int_equal(line.lost, i ? 0 : round);
		}
	}
	assert_string_equal(spw_last_error(), "as it was");
	spw_log_ring_close(ring);
}

#define RING_WRITERS 4
#define RING_WRITES  20000

static void *write_to_ring(void *ring)
{
	for (unsigned i = 0; i < RING_WRITES; i++)
		spw_log_ring_write(ring, SPW_LOG_INFO, "from a thread");
	return NULL;
}

/* Each line is read or counted, while several write. */
CASE(test_log_ring_by_threads)
{
	pthread_t threads[RING_WRITERS];
	struct spw_log_ring *ring;
	struct spw_log_line line;
	uint64_t seen = 0;

	assert_int_equal(spw_log_ring_open(RING_LINES, &ring), 0);
	for (unsigned i = 0; i < RING_WRITERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, write_to_ring, ring), 0);
	while (seen < RING_WRITERS * RING_WRITES - RING_LINES)
		if (spw_log_ring_read(ring, &line)) {
			assert_string_equal(line.text, "from a thread");
			seen += 1 + line.lost;
		}
	for (unsigned i = 0; i < RING_WRITERS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	while (spw_log_ring_read(ring, &line))
		seen += 1 + line.lost;
	assert_int_equal(seen, RING_WRITERS * RING_WRITES);
	spw_log_ring_close(ring);
}

CASE(test_notices)
{
	static struct spw_notices notices;
	unsigned written = 0;

	for (unsigned step = 1; step <= 100; step++) {
		char text[64];

		spw_notice(&notices, 3, "drive %u", step);
		spw_notice(&notices, 3, "not this");
		(void)snprintf(text, sizeof(text),
			       step > 1 ? "drive %u (%u times so far)" : "drive %u", step, step);
		if (notices.pending) {
			assert_int_equal(notices.pending, 1u << 3);
			assert_string_equal(notices.text[3], text);
			written++;
		}
		notices.pending = 0;
		spw_notices_again(&notices, 1u << 4);
	}
	assert_int_equal(written, 7); /* 1, 2, 4 ... 64 */
}

/* ---- Option structs -------------------------------------------------------------------------- */

struct opts_now {
	size_t size;
	uint32_t depth;
	uint32_t parts;
	uint64_t bytes;
};

static const struct opts_now defaults = {
	.size = sizeof(struct opts_now), .depth = 32, .parts = 4, .bytes = 100};

/* A program compiled against an older header: what it does not know keeps its default. */
CASE(test_opts_of_older_version)
{
	struct {
		size_t size;
		uint32_t depth;
	} old = {.depth = 8};
	struct opts_now to = defaults;

	old.size = offsetof(struct opts_now, parts);
	spw_opts_merge(&to, sizeof(to), &old, old.size);
	assert_int_equal(to.size, sizeof(to));
	assert_int_equal(to.depth, 8);
	assert_int_equal(to.parts, 4);
	assert_int_equal(to.bytes, 100);
}

/*
 * A program compiled against a newer header: what we do not know is left, and nothing is written
 * beyond our struct.
 */
CASE(test_opts_of_newer_version)
{
	struct {
		struct opts_now known;
		uint64_t unknown;
	} newer = {.known = {.depth = 8, .parts = 2, .bytes = 7}, .unknown = 5};
	struct {
		struct opts_now opts;
		uint64_t behind;
	} to = {.opts = defaults, .behind = 0x5a5a};

	newer.known.size = sizeof(newer);
	spw_opts_merge(&to.opts, sizeof(to.opts), &newer, newer.known.size);
	assert_int_equal(to.opts.size, sizeof(to.opts));
	assert_int_equal(to.opts.depth, 8);
	assert_int_equal(to.opts.bytes, 7);
	assert_int_equal(to.behind, 0x5a5a);
}

/* ---- The rest -------------------------------------------------------------------------------- */

CASE(test_clock)
{
	struct timespec before, after;
	uint64_t now;

	assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &before), 0);
	now = spw_clock_ns();
	assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &after), 0);
	assert_in_range(now, (uint64_t)before.tv_sec * 1000000000u + (uint64_t)before.tv_nsec,
			(uint64_t)after.tv_sec * 1000000000u + (uint64_t)after.tv_nsec);
}

/* A broken invariant ends the process by SIGABRT and says which and where. */
CASE(test_assert)
{
	char text[256] = "";
	int ends[2], status;
	ssize_t got;
	pid_t child;

	assert_int_equal(pipe(ends), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		(void)dup2(ends[1], STDERR_FILENO);
		SPW_ASSERT(1 + 1 == 2);
		SPW_ASSERT(1 + 1 == 3);
		_exit(0);
	}
	(void)close(ends[1]);
	assert_int_equal(waitpid(child, &status, 0), child);
	got = read(ends[0], text, sizeof(text) - 1);
	(void)close(ends[0]);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	assert_true(got > 0);
	assert_non_null(strstr(text, "test_util.c"));
	assert_non_null(strstr(text, "1 + 1 == 3"));
}

CASE(test_printable)
{
	/* A terminal's commands begin with ESC, or with 9b as Latin-1 or UTF-8 has it. */
	char text[] = "a\033[2J\tb\177\302\233c \303\274 \342\202\254 \360\237\220\247 \302";
	/* Alone; too long for what it says; half of a pair; beyond the last one; cut off. */
	char broken[] = "a\233b \300\257 \340\201\201 \355\240\200 \364\220\200\200 \377 \342\202";

	spw_make_printable(text);
	assert_string_equal(text, "a?[2J?b???c \303\274 \342\202\254 \360\237\220\247 ?");
	spw_make_printable(broken);
	assert_string_equal(broken, "a?b ?? ??? ??? ???? ? ??");
}

CASE(test_messages_are_printable)
{
	struct heard heard = {0};
	const struct spw_log log = {.write = hear, .context = &heard};

	(void)spw_error(-EBUSY, "it is mounted on /mnt/%s", "\033]0;\302\233x\007");
	assert_string_equal(spw_last_error(), "it is mounted on /mnt/?]0;??x?");
	(void)spw_error_errno(-ENOENT, "%s", "\033c");
	assert_string_equal(spw_last_error(), "?c: No such file or directory");
	spw_log(&log, SPW_LOG_INFO, "%s", "a\033[2J\303\274");
	assert_string_equal(heard.text, "a?[2J\303\274");
}

/* ---- Small files ----------------------------------------------------------------------------- */

CASE(test_first_lines)
{
	static const struct {
		const char *content, *line;
		bool found;
	} cases[] = {{"a b \nc", "a b ", true},
		     {"7", "7", true},
		     {"\n", "", true},
		     {"", "", false},
		     {"12345678", "1234567", true}};
	const char *base = getenv("TMPDIR");
	char path[256], line[8];

	(void)snprintf(path, sizeof(path), "%s/spillway-util.XXXXXX", base ? base : "/var/tmp");
	assert_int_equal(close(mkstemp(path)), 0);
	for (size_t i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		FILE *file = fopen(path, "w");

		assert_non_null(file);
		assert_true(fputs(cases[i].content, file) >= 0);
		assert_int_equal(fclose(file), 0);
		strcpy(line, "old");
		assert_int_equal(spw_read_line(path, line, sizeof(line)), cases[i].found);
		assert_string_equal(line, cases[i].line);
	}
	assert_int_equal(unlink(path), 0);
	strcpy(line, "old");
	assert_false(spw_read_line(path, line, sizeof(line)));
	assert_string_equal(line, "");
}

RUN_CASES(NULL, NULL)
