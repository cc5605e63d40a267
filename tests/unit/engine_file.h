/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/engine_file.h - one drive that needs no rights: a file in a temporary folder; and one
 * pass over it
 */
#ifndef SPW_TESTS_ENGINE_FILE_H
#define SPW_TESTS_ENGINE_FILE_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/case.h"

#include <spillway/engine.h>

#include "engine/backend.h"
#include "util/util.h"

#define DRIVE_BYTES (16u << 20)

static char drive_folder[256], drive_path[300], drive_log[4096];
static struct spw_device *drive;
static struct spw_arena *drive_arena;
static char *drive_memory; /* 64 KiB of it */
static struct spw_queue *drive_queue;

static void collect(void *context, enum spw_log_level level, const char *message)
{
	size_t used = strlen(drive_log);

	(void)context;
	(void)level;
	(void)snprintf(drive_log + used, sizeof(drive_log) - used, "%s\n", message);
}

static inline int make_drive(void **state)
{
	struct spw_arena_opts arena_opts;
	const char *base = getenv("TMPDIR");
	int fd;

	(void)state;
	(void)snprintf(drive_folder, sizeof(drive_folder), "%s/spillway-engine.XXXXXX",
		       base ? base : "/var/tmp");
	assert_non_null(mkdtemp(drive_folder));
	(void)snprintf(drive_path, sizeof(drive_path), "%s/drive", drive_folder);
	fd = open(drive_path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, DRIVE_BYTES), 0);
	assert_int_equal(close(fd), 0);
	assert_int_equal(spw_device_open(drive_path, NULL, &drive), 0);
	spw_arena_opts_init(&arena_opts, sizeof(arena_opts));
	arena_opts.bytes = 2 * DRIVE_BYTES + 65536;
	assert_int_equal(spw_arena_open(&arena_opts, &drive_arena), 0);
	return spw_arena_alloc(drive_arena, 65536, (void **)&drive_memory);
}

static inline int remove_drive(void **state)
{
	(void)state;
	spw_device_close(drive);
	spw_arena_close(drive_arena);
	(void)unlink(drive_path);
	return rmdir(drive_folder);
}

static inline int open_drive_queue(enum spw_backend backend, enum spw_wait wait)
{
	struct spw_queue_opts opts;

	drive_log[0] = '\0';
	spw_queue_opts_init(&opts, sizeof(opts));
	opts.backend = backend;
	opts.wait = wait;
	opts.depth = 8;
	opts.arena = drive_arena;
	opts.log.write = collect;
	return spw_queue_open(&drive, 1, &opts, &drive_queue);
}

static inline void assert_logged(const char *words)
{
	if (!strstr(drive_log, words))
		fail_msg("no \"%s\" in the log:\n%s", words, drive_log);
}

static void count_done(struct spw_io *io)
{
	(*(unsigned *)io->context)++;
}

/*
 * Write all of the drive in 64 KiB pieces, more than the depth at once, flush, read it back,
 * compare.
 */
static inline void pass_over_drive(void)
{
	enum { PIECES = DRIVE_BYTES / 65536 };
	static struct spw_io ios[PIECES];
	unsigned done = 0;
	void *out, *in;

	assert_int_equal(spw_arena_alloc(drive_arena, DRIVE_BYTES, &out), 0);
	assert_int_equal(spw_arena_alloc(drive_arena, DRIVE_BYTES, &in), 0);
	for (unsigned i = 0; i < DRIVE_BYTES / 4; i++)
		((uint32_t *)out)[i] = i * 2654435761u + (uint32_t)(uintptr_t)drive_queue;
	for (unsigned pass = 0; pass < 2; pass++) {
		for (unsigned i = 0; i < PIECES; i++) {
			ios[i] = (struct spw_io){
				.op = pass ? SPW_READ : SPW_WRITE,
				.buf = (char *)(pass ? in : out) + (size_t)i * 65536,
				.len_bytes = 65536,
				.offset_bytes = (uint64_t)i * 65536,
				.done = count_done,
				.context = &done,
			};
			assert_int_equal(spw_queue_prepare(drive_queue, &ios[i]), 0);
		}
		while (done < PIECES)
			assert_true(spw_queue_reap(drive_queue, 1 + done % 20, -1) >= 0);
		for (unsigned i = 0; i < PIECES; i++)
			assert_int_equal(ios[i].res, 65536);
		ios[0] = (struct spw_io){.op = SPW_FLUSH, .done = count_done, .context = &done};
		assert_int_equal(spw_queue_prepare(drive_queue, &ios[0]), 0);
		while (done < PIECES + 1)
			assert_true(spw_queue_reap(drive_queue, 1, -1) >= 0);
		assert_int_equal(ios[0].res, 0);
		done = 0;
	}
	assert_memory_equal(in, out, DRIVE_BYTES);
	spw_arena_free(drive_arena, out);
	spw_arena_free(drive_arena, in);
}

/* 4096 bytes at block @block of the drive. */
static inline struct spw_io small_io(enum spw_op op, char *memory, unsigned block, unsigned *done)
{
	return (struct spw_io){
		.op = op,
		.buf = memory,
		.len_bytes = 4096,
		.offset_bytes = (uint64_t)block * 4096,
		.done = count_done,
		.context = done,
	};
}

/* All in 24 KiB at @bytes. */
static inline void check_cancelled_before_submission(char *bytes)
{
	enum { IOS = 6 };
	struct spw_queue_stats before, stats;
	struct spw_io ios[IOS];
	unsigned done = 0;

	spw_queue_stats(drive_queue, &before, sizeof(before));
	for (unsigned round = 0; round < 2; round++) {
		/* First all are written; then the odd ones would be written again, and are not. */
		memset(bytes, round ? 0xee : 0x11, IOS * 4096);
		for (unsigned i = 0; i < IOS; i++) {
			ios[i] = small_io(SPW_WRITE, bytes + i * 4096, i, &done);
			assert_int_equal(spw_queue_prepare(drive_queue, &ios[i]), 0);
		}
		for (unsigned i = 1; round && i < IOS; i += 2)
			assert_int_equal(spw_queue_cancel(drive_queue, &ios[i]), 0);
		assert_int_equal(drive_queue->devices[0].waiting +
					 spw_engine__queue_in_flight(drive_queue),
				 round ? IOS / 2 : IOS);
		while (done < IOS)
			assert_true(spw_queue_reap(drive_queue, IOS, -1) >= 0);
		for (unsigned i = 0; i < IOS; i++)
			assert_int_equal(ios[i].res, round && i % 2 ? -ECANCELED : 4096);
		done = 0;
	}
	assert_int_equal(spw_queue_cancel(drive_queue, &ios[0]), -ENOENT);
	for (unsigned i = 0; i < IOS; i++) {
		ios[i] = small_io(SPW_READ, bytes + i * 4096, i, &done);
		assert_int_equal(spw_queue_prepare(drive_queue, &ios[i]), 0);
	}
	while (done < IOS)
		assert_true(spw_queue_reap(drive_queue, IOS, -1) >= 0);
	for (unsigned i = 0; i < IOS; i++)
		assert_int_equal((unsigned char)bytes[i * 4096 + 7], i % 2 ? 0x11 : 0xee);
	spw_queue_stats(drive_queue, &stats, sizeof(stats));
	assert_int_equal(stats.errors, before.errors);
	assert_int_equal(stats.bytes_written - before.bytes_written, (IOS + IOS / 2) * 4096);
}

#endif
