/* SPDX-License-Identifier: MIT */
/*
 * engine/backend_io_uring.c - backend io_uring: submits parts to one ring and reaps them;
 * interrupts, IOPOLL or SQPOLL
 *
 * The thread that opens the queue creates the ring, disabled, and registers files and memory; the
 * thread that first uses the ring enables and owns it. If the kernel refuses features other than
 * registered files (URING-1), they are left out one by one. One io_uring_enter(2) submits, waits
 * and runs deferred completions; it is called directly, because liburing's helpers may make two
 * calls.
 *
 * Invariants, cited by asserts and tests
 *   URING-1  The files that lock and claim the drives are also registered (see register_files()).
 *   URING-2  wake.polls polls of the eventfd are in flight, at least as many as the completions
 *            that are waited for: so a wake ends every wait.
 *   URING-3  The memory of a part with a piece is registered.
 */
#include <errno.h>
#include <limits.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "engine/arena.h"
#include "engine/backend.h"
#include "engine/uring.h"
#include "util/fork.h"
#include "util/util.h"

/* If the queue has more slots, they are submitted by several calls. */
#define SQ_ENTRIES_MAX 4096u
#define SQ_IDLE_MS     1000u
/* Unused entries in the ring's table of registered memory, for ranges: 1 GiB each. */
#define RANGE_PIECES 1024u

/* 16 MiB: size of pieces when the arena cannot be registered as a whole. */
#define SMALL_PIECE_SHIFT 24u

/* Memory registered when a queue is opened: enough to keep a drive busy with 1 MiB transfers. */
#define FIRST_REGISTERED_BYTES (UINT64_C(8) << 20)

/* ---- Setting up ------------------------------------------------------------------------------ */

static const struct {
	unsigned flag;
	const char *name;
} droppable[] = {
	/* Newest first, so that old kernels need few attempts. */
	{IORING_SETUP_DEFER_TASKRUN, "defer_taskrun"},
	{IORING_SETUP_SINGLE_ISSUER, "single_issuer"},
	{IORING_SETUP_COOP_TASKRUN, "coop_taskrun"},
	{IORING_SETUP_SUBMIT_ALL, "submit_all"},
};

static unsigned wanted_flags(enum spw_wait wait)
{
	unsigned flags = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP | IORING_SETUP_SUBMIT_ALL |
			 IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER;

	if (wait == SPW_WAIT_SQPOLL)
		return flags | IORING_SETUP_SQPOLL;
	flags |= IORING_SETUP_COOP_TASKRUN | IORING_SETUP_DEFER_TASKRUN;
	return wait == SPW_WAIT_POLL ? flags | IORING_SETUP_IOPOLL : flags;
}

static int set_up_ring(struct spw_queue *q, struct spw_uring *u, enum spw_wait wait)
{
	unsigned slots = q->depth * q->device_count + SPW_WANT_MAX;
	unsigned entries = slots < SQ_ENTRIES_MAX ? slots : SQ_ENTRIES_MAX;
	unsigned flags = wanted_flags(wait) | u->extra_flags;
	unsigned next = 0;

	for (;;) {
		struct io_uring_params params = {
			.flags = flags,
			.cq_entries = 2 * slots,
			.sq_thread_idle = SQ_IDLE_MS,
		};
		int ret = io_uring_queue_init_params(entries, &u->ring, &params);

		if (ret == 0) {
			u->setup_flags = flags;
			if (params.features & IORING_FEAT_EXT_ARG)
				return 0;
			io_uring_queue_exit(&u->ring);
			return -EOPNOTSUPP;
		}
		while (ret == -EINVAL && next < SPW_ARRAY_LEN(droppable) &&
		       !(flags & droppable[next].flag))
			next++;
		if (ret != -EINVAL || next == SPW_ARRAY_LEN(droppable))
			return ret;
		flags &= ~droppable[next].flag;
		spw_log(&q->log, SPW_LOG_INFO, "io_uring: the kernel refuses %s; going on without",
			droppable[next].name);
		next++;
	}
}

static const char *reason_of_refusal(int error, char *text, size_t len)
{
	char line[16];

	text[0] = '\0';
	if (error == -EOPNOTSUPP || error == -EINVAL)
		(void)snprintf(text, len, " (needs Linux 5.11)");
	if (error == -ENOMEM)
		(void)snprintf(text, len, " (see ulimit -l)");
	/* Podman's seccomp profile returns ENOSYS, as do profiles that set no errno. */
	if (error == -ENOSYS)
		(void)snprintf(text, len,
			       " (seccomp, as in many containers, or not in this kernel)");
	if (error != -EPERM)
		return text;
	if (spw_read_line("/proc/sys/kernel/io_uring_disabled", line, sizeof(line)) && atoi(line))
		(void)snprintf(text, len, " (kernel.io_uring_disabled=%d)", atoi(line));
	else
		(void)snprintf(text, len, " (seccomp, as in many containers?)");
	return text;
}

static int set_up(struct spw_queue *q, struct spw_uring *u)
{
	static const char *const mode_names[] = {
		[SPW_WAIT_INTERRUPT] = "interrupt",
		[SPW_WAIT_POLL] = "poll",
		[SPW_WAIT_SQPOLL] = "sqpoll",
	};
	char reason[64];
	int ret = set_up_ring(q, u, q->wait_mode);

	if (ret && q->wait_mode != SPW_WAIT_INTERRUPT && ret != -ENOSYS) {
		spw_log(&q->log, SPW_LOG_WARNING, "io_uring refuses to %s: %s; using interrupts",
			mode_names[q->wait_mode], spw_strerror(ret));
		q->wait_mode = SPW_WAIT_INTERRUPT;
		ret = set_up_ring(q, u, q->wait_mode);
	}
	if (ret)
		return spw_error(ret, "io_uring refused: %s%s", spw_strerror(ret),
				 reason_of_refusal(ret, reason, sizeof(reason)));
	spw_engine__queue_describe(q, " %s", mode_names[q->wait_mode]);
	for (size_t i = SPW_ARRAY_LEN(droppable); i-- > 0;)
		if (u->setup_flags & droppable[i].flag)
			spw_engine__queue_describe(q, " %s", droppable[i].name);
	q->polls = q->wait_mode == SPW_WAIT_POLL;
	return 0;
}

/*
 * Register the files for I/O, then those that lock and claim the drives (URING-1). The kernel keeps
 * registered files open until the ring's last request has ended, so that no other process can claim
 * the drive of a killed process before that.
 */
static int register_files(struct spw_queue *q, struct spw_uring *u, const int fds[])
{
	int all[3 * SPW_QUEUE_DEVICES_MAX], ret;
	unsigned count = q->device_count;

	memcpy(all, fds, count * sizeof(*fds));
	for (unsigned i = 0; i < q->device_count; i++) {
		const struct spw_device *device = q->devices[i].device;

		if (device->fd >= 0 && device->fd != fds[i])
			all[count++] = device->fd;
		if (device->claim_fd >= 0)
			all[count++] = device->claim_fd;
	}
	ret = io_uring_register_files(&u->ring, all, count);
	if (ret)
		return spw_error(ret, "io_uring refused: files cannot be registered: %s",
				 spw_strerror(ret));
	spw_engine__queue_describe(q, " files");
	return 0;
}

/* The memory at @base as pieces for registration. Return: NULL: out of memory. */
static struct iovec *cut_pieces(const struct spw_queue *q, uintptr_t base, uint64_t len_bytes,
				uint64_t count, uint64_t room)
{
	uint64_t piece_bytes = UINT64_C(1) << q->piece_shift;
	struct iovec *pieces = calloc(room, sizeof(*pieces));

	for (uint64_t i = 0; pieces && i < count; i++) {
		pieces[i].iov_base = (void *)(base + (i << q->piece_shift));
		pieces[i].iov_len = SPW_MIN(len_bytes - (i << q->piece_shift), piece_bytes);
	}
	return pieces;
}

static uint64_t count_pieces(const struct spw_queue *q, uint64_t len_bytes)
{
	return (len_bytes + (UINT64_C(1) << q->piece_shift) - 1) >> q->piece_shift;
}

/* Register pieces from entry @first on. Return: how many were registered; -errno: none. */
static int update_pieces(struct spw_uring *u, uint32_t first, const struct iovec *pieces,
			 uint64_t count)
{
	return io_uring_register_buffers_update_tag(&u->ring, first, pieces, NULL, (unsigned)count);
}

/*
 * Register pieces @first to @count - 1, with as many calls as needed: a call that registers some of
 * them does not return why it stopped. @done: how many were registered. Return: 0; -errno: the rest
 * was refused.
 */
static int update_rest(struct spw_uring *u, uint64_t first, const struct iovec *pieces,
		       uint64_t count, uint64_t *done)
{
	for (*done = 0; first + *done < count;) {
		int ret = update_pieces(u, (uint32_t)(first + *done), &pieces[first + *done],
					count - first - *done);

		if (ret <= 0)
			return ret < 0 ? ret : -EIO;
		*done += (unsigned)ret;
	}
	return 0;
}

/*
 * Register as much memory as RLIMIT_MEMLOCK allows: piece by piece, until one is refused. Return:
 * how many pieces; 0: no memory is registered.
 */
static uint64_t register_some(struct spw_uring *u, const struct iovec *pieces, uint64_t count,
			      uint64_t room)
{
	struct iovec *empty = calloc(room, sizeof(*empty));
	uint64_t done = 0;

	if (empty && io_uring_register_buffers(&u->ring, empty, (unsigned)room) == 0) {
		while (done < count && update_pieces(u, (uint32_t)done, &pieces[done], 1) == 1)
			done++;
		if (done == 0)
			(void)io_uring_unregister_buffers(&u->ring);
	}
	free(empty);
	return done;
}

/* Register the arena in smaller pieces. Return: how many were registered. */
static uint64_t register_small(struct spw_queue *q, struct spw_uring *u, uint64_t pieces_max)
{
	unsigned shift = q->piece_shift;
	uint64_t count, done = 0;
	struct iovec *pieces;

	q->piece_shift = SPW_MIN(shift, SMALL_PIECE_SHIFT);
	count = count_pieces(q, q->arena_len_bytes);
	pieces = count + RANGE_PIECES <= pieces_max
			 ? cut_pieces(q, q->arena_base, q->arena_len_bytes, count, count)
			 : NULL;
	if (pieces)
		done = register_some(u, pieces, count, count + RANGE_PIECES);
	free(pieces);
	if (done == 0)
		q->piece_shift = shift;
	return done;
}

static void set_registered(struct spw_queue *q, uint64_t count, uint64_t room)
{
	SPW_ASSERT(room <= INT16_MAX); /* spw_part.piece is an int16_t */
	q->pieces = (unsigned)count;
	q->pieces_room = (unsigned)room;
	q->registered_bytes = SPW_MIN(count << q->piece_shift, q->arena_len_bytes);
	spw_engine__queue_describe(q, " memory");
}

/* Log that the rest of the arena, up to @end_bytes, was refused with @error. */
static void warn_registered_in_part(struct spw_queue *q, uint64_t end_bytes, int error)
{
	spw_log(&q->log, SPW_LOG_WARNING,
		"io_uring: only the first %llu of %llu MiB of memory are registered: %llu KiB from "
		"%p on: %s (see ulimit -l); each transfer beyond pins it",
		(unsigned long long)(q->registered_bytes >> 20),
		(unsigned long long)(q->arena_len_bytes >> 20),
		(unsigned long long)(end_bytes - q->registered_bytes) >> 10,
		(void *)(q->arena_base + q->registered_bytes), spw_strerror(error));
}

/* Register a part of the arena, after all of it was refused with @error. */
static void register_in_part(struct spw_queue *q, struct spw_uring *u, uint64_t pieces_max,
			     int error)
{
	uint64_t count = register_small(q, u, pieces_max);

	if (count == 0) {
		spw_log(&q->log, SPW_LOG_WARNING,
			"io_uring: memory cannot be registered: %s (see ulimit -l); each transfer "
			"pins it",
			spw_strerror(error));
		return;
	}
	set_registered(q, count, count_pieces(q, q->arena_len_bytes) + RANGE_PIECES);
	warn_registered_in_part(q, q->arena_len_bytes, error);
}

/*
 * Registered memory is resident. So the arena, whose lowest bytes are allocated first, is
 * registered as it is used: the pieces up to the end of @io's memory are registered again, at least
 * a quarter more bytes than before. The kernel drops the old registrations when the requests that
 * use them have ended. After a failure this is not tried again.
 */
bool spw_engine__uring_grow(struct spw_queue *q, struct spw_uring *u, const struct spw_io *io)
{
	uint64_t end_bytes = (uintptr_t)io->buf - q->arena_base + io->len_bytes;
	uint64_t first = q->registered_bytes >> q->piece_shift, len_bytes, count, done = 0;
	struct iovec *pieces;
	int ret = -ENOMEM;

	if (!spw_engine__queue_arena_holds(q, io->buf) || end_bytes <= q->registered_bytes ||
	    end_bytes > u->growable_bytes)
		return false;
	len_bytes = SPW_MAX(end_bytes, q->registered_bytes + q->registered_bytes / 4);
	len_bytes = SPW_MIN(spw_round_up(len_bytes, SPW_HUGE_PAGE_BYTES), u->growable_bytes);
	count = count_pieces(q, len_bytes);
	pieces = cut_pieces(q, q->arena_base, len_bytes, count, count);
	if (pieces)
		ret = update_rest(u, first, pieces, count, &done);
	free(pieces);
	if (done > 0)
		q->registered_bytes = SPW_MIN((first + done) << q->piece_shift, len_bytes);
	if (ret == 0)
		return true;
	u->growable_bytes = 0;
	warn_registered_in_part(q, len_bytes, ret);
	return end_bytes <= q->registered_bytes;
}

/*
 * From the last piece down, so that what is registered begins at the base at any time. A piece that
 * the kernel does not change remains as it is.
 */
void spw_engine__uring_shrink(struct spw_queue *q, uint64_t len_bytes)
{
	uint64_t before = count_pieces(q, q->registered_bytes), count;
	struct spw_uring *u = q->state;
	struct iovec *pieces;

	len_bytes = SPW_MAX(spw_round_up(len_bytes, SPW_HUGE_PAGE_BYTES), FIRST_REGISTERED_BYTES);
	if (u->growable_bytes == 0 || len_bytes >= q->registered_bytes)
		return;
	count = count_pieces(q, len_bytes);
	pieces = cut_pieces(q, q->arena_base, len_bytes, count, before);
	for (uint64_t i = before; pieces && i >= count; i--) {
		if (update_pieces(u, (uint32_t)i - 1, &pieces[i - 1], 1) != 1)
			break;
		q->registered_bytes = i == count ? len_bytes : (i - 1) << q->piece_shift;
	}
	free(pieces);
}

/*
 * How much to register at open. Growing counts memory twice against RLIMIT_MEMLOCK. If that could
 * exceed the limit, or the kernel cannot change registrations, all memory is registered at once.
 */
static uint64_t choose_first(const struct spw_queue *q, uint64_t count, uint64_t room)
{
	uint64_t len_bytes = SPW_MIN(count << q->piece_shift, q->arena_len_bytes);
	bool grows = room > count && spw_memlock_bytes() / 2 >= len_bytes;

	return grows ? SPW_MIN(len_bytes, FIRST_REGISTERED_BYTES) : len_bytes;
}

/* Register the arena's first @len_bytes; the rest of the ring's @room entries stay empty. */
static int register_pieces(struct spw_queue *q, struct spw_uring *u, uint64_t len_bytes,
			   uint64_t room)
{
	uint64_t count = SPW_MIN(count_pieces(q, len_bytes), room);
	struct iovec *pieces = cut_pieces(q, q->arena_base, len_bytes, count, room);
	int ret = pieces ? io_uring_register_buffers(&u->ring, pieces, (unsigned)room) : -ENOMEM;

	free(pieces);
	return ret;
}

/* Register the arena, with empty entries for ranges, which Linux before 5.13 does not support. */
static void register_memory(struct spw_queue *q, struct spw_uring *u, uint64_t pieces_max)
{
	uint64_t piece_bytes = UINT64_C(1) << q->piece_shift;
	uint64_t count = count_pieces(q, q->arena_len_bytes), room, first_bytes;
	int ret;

	if (count == 0 || pieces_max == 0)
		return;
	if (count > pieces_max) {
		count = pieces_max;
		spw_log(&q->log, SPW_LOG_WARNING,
			"io_uring: only the first %llu MiB of memory are registered",
			(unsigned long long)(count * piece_bytes >> 20));
	}
	room = SPW_MIN(count + RANGE_PIECES, pieces_max);
	first_bytes = choose_first(q, count, room);
	ret = register_pieces(q, u, first_bytes, room);
	if (ret == -EFAULT && room > count) {
		room = count;
		first_bytes = q->arena_len_bytes;
		ret = register_pieces(q, u, first_bytes, room);
	}
	if (ret) {
		register_in_part(q, u, pieces_max, ret);
		return;
	}
	set_registered(q, count, room);
	u->growable_bytes = first_bytes < q->registered_bytes ? q->registered_bytes : 0;
	q->registered_bytes = SPW_MIN(q->registered_bytes, first_bytes);
}

/* Find the lowest consecutive pieces that belong to no range (RANGE-1). Return: false: none. */
static bool find_pieces(const struct spw_queue *q, uint64_t count, uint32_t *first)
{
	uint64_t at = q->pieces;

	for (unsigned i = 0; i < q->ranges.top; i++) {
		const struct spw_range *range = &q->ranges.each[i];

		if (range->first_piece < 0 || at >= (uint64_t)range->first_piece + range->pieces ||
		    at + count <= (uint64_t)range->first_piece)
			continue;
		at = (uint64_t)range->first_piece + range->pieces;
		i = UINT_MAX; /* start over with all ranges */
	}
	*first = (uint32_t)at;
	return at + count <= q->pieces_room;
}

static void forget_pieces(struct spw_queue *q, struct spw_uring *u, uint32_t first, uint64_t count)
{
	static const struct iovec none;
	int ret = 1;

	for (uint64_t i = 0; i < count && ret == 1; i++)
		ret = update_pieces(u, first + (uint32_t)i, &none, 1);
	if (ret != 1)
		spw_log(&q->log, SPW_LOG_WARNING,
			"io_uring: memory stays locked until the queue is closed: %s",
			spw_strerror(ret));
}

int spw_engine__uring_add_range(struct spw_queue *q, struct spw_range *range)
{
	struct spw_uring *u = q->state;
	uint64_t count = count_pieces(q, range->len_bytes);
	struct iovec *pieces;
	uint32_t first;
	int ret;

	if (!find_pieces(q, count, &first))
		return spw_error(-EOPNOTSUPP, q->pieces_room > q->pieces
						      ? "io_uring: more than the ring has room for"
						      : "io_uring: the ring knows no memory");
	pieces = cut_pieces(q, range->base, range->len_bytes, count, count);
	if (!pieces)
		return spw_error(-ENOMEM, "io_uring: no memory to register memory");
	ret = update_pieces(u, first, pieces, count);
	free(pieces);
	if (ret >= 0 && (uint64_t)ret < count) {
		forget_pieces(q, u, first, (uint64_t)ret);
		ret = -ENOMEM;
	}
	if (ret < 0)
		return spw_error(ret, "io_uring: %s%s", spw_strerror(ret),
				 ret == -ENOMEM       ? " (see ulimit -l)"
				 : ret == -EFAULT     ? " (can it be written to?)"
				 : ret == -EOPNOTSUPP ? " (is it a file's?)"
						      : "");
	range->first_piece = (int32_t)first;
	range->pieces = (uint32_t)count;
	return 0;
}

void spw_engine__uring_remove_range(struct spw_queue *q, struct spw_range *range)
{
	forget_pieces(q, q->state, (uint32_t)range->first_piece, range->pieces);
}

int spw_engine__uring_set_up(struct spw_queue *q, struct spw_uring *u, const int fds[],
			     uint64_t pieces_max)
{
	int ret;

	/* A child of fork(2) must not submit to this ring, nor keep drives claimed through it. */
	spw_fork_hold();
	ret = set_up(q, u);
	if (ret == 0) {
		(void)io_uring_ring_dontfork(&u->ring);
		ret = spw_fork_add(u->ring.ring_fd);
		if (ret)
			io_uring_queue_exit(&u->ring);
	}
	spw_fork_release();
	if (ret)
		return ret;
	u->enter_fd = u->ring.ring_fd;
	spw_engine__queue_describe(q, "; registered");
	ret = register_files(q, u, fds);
	if (ret) {
		spw_fork_remove(u->ring.ring_fd);
		io_uring_queue_exit(&u->ring);
		return ret;
	}
	register_memory(q, u, pieces_max);
	return 0;
}

static int uring_prepare(struct spw_queue *q, struct spw_io *io);
static void uring_take(struct spw_queue *q, struct spw_uring *u);

static int uring_open(struct spw_queue *q)
{
	struct spw_uring *u = calloc(1, sizeof(*u));
	int fds[SPW_QUEUE_DEVICES_MAX] = {0};
	uint16_t streams[UINT8_MAX]; /* the kernel numbers streams from 1 */
	int ret;

	for (unsigned i = 0; i < SPW_ARRAY_LEN(streams); i++)
		streams[i] = (uint16_t)(i + 1);
	if (!u)
		return spw_error(-ENOMEM, "io_uring: no memory");
	for (unsigned i = 0; i < q->device_count; i++)
		fds[i] = q->devices[i].fd;
	u->take = uring_take;
	ret = spw_engine__uring_set_up(q, u, fds, INT16_MAX);
	if (ret) {
		free(u);
		return ret;
	}
	for (unsigned i = 0; i < q->device_count; i++)
		if (q->devices[i].device->geometry.kind != SPW_DEVICE_VFIO)
			spw_engine__queue_place(q, i, streams, q->devices[i].device->write_streams);
	u->entries = u->ring.sq.sqes;
	u->entries_mask = *u->ring.sq.kring_mask;
	if (q->piece_shift == SPW_PIECE_SHIFT)
		q->prepare = uring_prepare;
	q->state = u;
	return 0;
}

static int enable(struct spw_queue *q, struct spw_uring *u)
{
	/* Some versions of liburing declare io_uring_enable_rings() without exporting it. */
	int ret =
		io_uring_register((unsigned)u->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);

	if (ret)
		return spw_error_errno(ret, "io_uring cannot be enabled");
	u->enabled = true;
	u->owner = pthread_self();
	ret = io_uring_register_ring_fd(&u->ring);
	if (ret == 1) {
		u->enter_fd = u->ring.enter_ring_fd;
		u->enter_flags = IORING_ENTER_REGISTERED_RING;
	} else {
		spw_log(&q->log, SPW_LOG_INFO, "io_uring: the ring itself cannot be registered: %s",
			spw_strerror(ret));
	}
	return 0;
}

void spw_engine__uring_tear_down(struct spw_queue *q, struct spw_uring *u)
{
	if (u->enabled && !pthread_equal(u->owner, pthread_self())) {
		/* In this thread the registered index is another ring's: do not unregister it. */
		u->ring.int_flags = 0;
	} else {
		/* A closed ring is freed later, and would keep devices, locks and claims. */
		(void)io_uring_unregister_files(&u->ring);
		if (q->pieces_room > 0)
			(void)io_uring_unregister_buffers(&u->ring);
	}
	spw_fork_remove(u->ring.ring_fd);
	io_uring_queue_exit(&u->ring);
}

static void uring_close(struct spw_queue *q)
{
	spw_engine__uring_tear_down(q, q->state);
	free(q->state);
	q->state = NULL;
}

/* ---- Issuing --------------------------------------------------------------------------------- */

/* A submission entry, also accessible as 64-bit words, see fill_entry(). */
union entry {
	struct io_uring_sqe sqe;
	uint64_t words[8];
};

_Static_assert(IORING_OP_WRITE_FIXED == IORING_OP_READ_FIXED + (SPW_WRITE - SPW_READ) &&
		       IORING_OP_WRITE == IORING_OP_READ + (SPW_WRITE - SPW_READ),
	       "an opcode is a sum");
_Static_assert(offsetof(struct io_uring_sqe, opcode) == 0 &&
		       offsetof(struct io_uring_sqe, flags) == 1 &&
		       offsetof(struct io_uring_sqe, fd) == 4 &&
		       offsetof(struct io_uring_sqe, off) == 8 &&
		       offsetof(struct io_uring_sqe, addr) == 16 &&
		       offsetof(struct io_uring_sqe, len) == 24 &&
		       offsetof(struct io_uring_sqe, user_data) == 32 &&
		       offsetof(struct io_uring_sqe, buf_index) == 40 &&
		       offsetof(struct io_uring_sqe, splice_fd_in) == 44 &&
		       __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	       "words of an entry");

/* The write stream is the first byte of splice_fd_in: older headers lack the field write_stream. */
static inline uint8_t stream_of(uint32_t placed)
{
	return (uint8_t)placed;
}

#define PLAIN_ENTRY        (IORING_OP_READ_FIXED + (IOSQE_FIXED_FILE << 8))
#define UNREGISTERED_ENTRY (IORING_OP_READ + (IOSQE_FIXED_FILE << 8))

/* Read how many entries the kernel has consumed. Return: whether there are free entries. */
__attribute__((cold, noinline)) static bool find_room(struct spw_uring *u)
{
	const struct io_uring_sq *sq = &u->ring.sq;

	u->tail_limit = io_uring_smp_load_acquire(sq->khead) + *sq->kring_entries;
	return u->tail_limit != sq->sqe_tail;
}

/* Get an entry, on the slow path. Return: NULL: the ring is full. */
static struct io_uring_sqe *next_entry(struct spw_uring *u)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

	(void)find_room(u);
	return sqe;
}

static inline void prepare_entry(struct io_uring_sqe *sqe, uint8_t opcode, int fd,
				 const void *address, uint32_t len, uint64_t offset, uint64_t tag)
{
	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = opcode;
	sqe->fd = fd;
	sqe->off = offset;
	sqe->addr = (uintptr_t)address;
	sqe->len = len;
	sqe->user_data = tag;
}

/*
 * Submitting does not block: if it would have to, the kernel returns -EAGAIN, and so again at each
 * retry if device mapper has to split the request. Therefore retries let a kernel thread block.
 */
static uint8_t entry_flags(const struct spw_part *part)
{
	return part->retries > 0 ? IOSQE_FIXED_FILE | IOSQE_ASYNC : IOSQE_FIXED_FILE;
}

static int uring_issue(struct spw_queue *q, struct spw_part *part)
{
	uint8_t read = part->piece >= 0  ? IORING_OP_READ_FIXED
		       : part->iov_count ? IORING_OP_READV
					 : IORING_OP_READ;
	struct io_uring_sqe *sqe = next_entry(q->state);
	uint64_t tag = (uintptr_t)part;

	if (!sqe)
		return -EAGAIN;
	if (part->op == SPW_FLUSH) {
		prepare_entry(sqe, IORING_OP_FSYNC, part->device, NULL, 0, 0, tag);
		sqe->fsync_flags = IORING_FSYNC_DATASYNC;
	} else if (part->iov_count) {
		prepare_entry(sqe, read + part->op, part->device, part->iov, part->iov_count,
			      part->offset_bytes, tag);
	} else {
		prepare_entry(sqe, read + part->op, part->device, part->buf, part->len_bytes,
			      part->offset_bytes, tag);
		/* a piece is registered (URING-3) */
		SPW_ASSERT(part->piece < (int)q->pieces_room || part->piece < 0);
		sqe->buf_index = part->piece >= 0 ? (uint16_t)part->piece : 0;
	}
	if (part->op == SPW_WRITE)
		sqe->splice_fd_in =
			stream_of(spw_engine__placement_of(&q->devices[part->device], part->io));
	sqe->flags = entry_flags(part);
	return 0;
}

__attribute__((cold, noinline)) static int prepare_into_full(struct spw_queue *q, struct spw_io *io)
{
	return find_room(q->state) ? uring_prepare(q, io) : spw_engine__queue_prepare_any(q, io);
}

/* Write all fields that uring_issue() ever sets, as 64-bit words; the fields behind them stay 0. */
static inline void fill_entry(struct spw_uring *u, unsigned tail, uint64_t first_word,
			      const struct spw_queue_device *dev, const struct spw_io *io,
			      const struct spw_part *part, uint64_t piece)
{
	union entry *entry = (union entry *)&u->entries[tail & u->entries_mask];

	u->ring.sq.sqe_tail = tail + 1;
	entry->words[0] = first_word + (unsigned)io->op + ((uint64_t)io->device << 32);
	entry->words[1] = io->offset_bytes;
	entry->words[2] = (uintptr_t)io->buf;
	entry->words[3] = io->len_bytes;
	entry->words[4] = (uintptr_t)part;
	entry->words[5] = piece | (uint64_t)stream_of(spw_engine__placement_of(dev, io)) << 32;
}

/* Fast path for memory outside the arena's registered part. */
__attribute__((noinline)) static int prepare_unregistered(struct spw_queue *q, struct spw_io *io)
{
	struct spw_uring *u = q->state;
	struct spw_queue_device *dev;
	struct spw_part *part = spw_engine__whole_unregistered_slot(q, io, &dev);
	unsigned tail = u->ring.sq.sqe_tail;
	int16_t piece;

	if (unlikely(u->growable_bytes > 0) && spw_engine__uring_grow(q, u, io))
		return uring_prepare(q, io);
	if (unlikely(!part))
		return spw_engine__queue_prepare_any(q, io);
	if (unlikely(tail == u->tail_limit))
		return prepare_into_full(q, io);
	spw_engine__whole_issued(q, dev, io);
	piece = q->ranges.top > 0 ? spw_engine__range_piece(&q->ranges, io->buf, io->len_bytes,
							    q->piece_shift)
				  : -1;
	if (piece >= 0) {
		fill_entry(u, tail, PLAIN_ENTRY, dev, io, part, (uint64_t)piece);
		return 0;
	}
	q->parts_unregistered++;
	fill_entry(u, tail, UNREGISTERED_ENTRY, dev, io, part, 0);
	return 0;
}

static int uring_prepare(struct spw_queue *q, struct spw_io *io)
{
	struct spw_uring *u = q->state;
	struct spw_queue_device *dev;
	uint64_t piece;
	struct spw_part *part = spw_engine__whole_slot(q, io, SPW_PIECE_SHIFT, &dev, &piece);
	unsigned tail;

	if (unlikely(!part))
		return prepare_unregistered(q, io);
	tail = u->ring.sq.sqe_tail;
	if (unlikely(tail == u->tail_limit))
		return prepare_into_full(q, io);
	/* Let the compiler reload values: that is cheaper than saving registers for them. */
	__asm__ volatile("" ::: "memory");
	spw_engine__whole_issued(q, dev, io);
	fill_entry(u, tail, PLAIN_ENTRY, dev, io, part, piece);
	return 0;
}

/* Replace a part's entry by a no-op unless it is published. Return: false: the kernel has it. */
static bool take_back(struct spw_uring *u, const struct spw_part *part)
{
	const struct io_uring_sq *sq = &u->ring.sq;

	for (unsigned at = sq->sqe_head; at != sq->sqe_tail; at++) {
		struct io_uring_sqe *sqe = &sq->sqes[(at & *sq->kring_mask) << u->shift];

		if (sqe->user_data == (uintptr_t)part) {
			prepare_entry(sqe, IORING_OP_NOP, -1, NULL, 0, 0, SPW_URING_TAG_CANCEL);
			return true;
		}
	}
	return false;
}

void spw_engine__uring_cancel(struct spw_queue *q, struct spw_part *part)
{
	struct spw_uring *u = q->state;
	struct io_uring_sqe *sqe;

	if (take_back(u, part)) {
		spw_engine__part_completed(q, part, -ECANCELED);
		return;
	}
	/* Polled requests and commands cannot be cancelled: they end by themselves. */
	sqe = q->polls || u->shift > 0 ? NULL : next_entry(u);
	if (sqe)
		prepare_entry(sqe, IORING_OP_ASYNC_CANCEL, -1, part, 0, 0, SPW_URING_TAG_CANCEL);
}

/*
 * Have @want polls of the eventfd in flight, so that wakes end a wait for @want completions, see
 * URING-2. Return: for how many one may wait: fewer if the ring is full.
 */
static unsigned arm_wakes(struct spw_queue *q, struct spw_uring *u, unsigned want)
{
	struct io_uring_sqe *sqe;

	SPW_ASSERT(want <= SPW_WANT_MAX);
	for (unsigned missing = spw_engine__wake_polls_missing(&q->wake, want);
	     missing > 0 && (sqe = next_entry(u)) != NULL; missing--) {
		prepare_entry(sqe, IORING_OP_POLL_ADD, q->wake.watched, NULL, 0, 0,
			      SPW_URING_TAG_WAKE);
		sqe->poll32_events = POLLIN;
		q->wake.polls++;
	}
	return want <= q->wake.polls ? want : q->wake.polls;
}

/* ---- Entering the kernel --------------------------------------------------------------------- */

static inline unsigned publish_entries(struct spw_uring *u)
{
	struct io_uring_sq *sq = &u->ring.sq;
	unsigned tail = sq->sqe_tail;

	if (sq->sqe_head != tail) {
		sq->sqe_head = tail;
		/* Release: the kernel thread (SQPOLL) must see the entries before the tail. */
		io_uring_smp_store_release(sq->ktail, tail);
	}
	return tail - io_uring_smp_load_acquire(sq->khead);
}

/* Return: whether the kernel's submission thread sleeps. */
static bool sq_thread_sleeps(struct spw_uring *u)
{
	/*
	 * We publish the tail, then read the flag; the thread sets the flag, then reads the tail.
	 */
	__sync_synchronize();
	return (IO_URING_READ_ONCE(*u->ring.sq.kflags) & IORING_SQ_NEED_WAKEUP) != 0;
}

static unsigned completions_ready(const struct spw_uring *u)
{
	return io_uring_smp_load_acquire(u->ring.cq.ktail) - *u->ring.cq.khead;
}

static int enter_for(const struct spw_uring *u, unsigned count, unsigned want, unsigned flags,
		     int64_t timeout_ns)
{
	struct __kernel_timespec timeout = {.tv_sec = timeout_ns / 1000000000,
					    .tv_nsec = timeout_ns % 1000000000};
	struct io_uring_getevents_arg arg = {.ts = (uintptr_t)&timeout};

	return io_uring_enter2((unsigned)u->enter_fd, count, want, flags | IORING_ENTER_EXT_ARG,
			       (void *)&arg, sizeof(arg));
}

static int refuse_thread(void)
{
	return spw_error(-EEXIST, "io_uring: the queue belongs to the thread that used it first");
}

/* Check that this thread owns the ring: in another one the registered index is another ring. */
static int own(struct spw_queue *q, struct spw_uring *u)
{
	if (unlikely(!u->enabled))
		return enable(q, u);
	return likely(pthread_equal(u->owner, pthread_self())) ? 0 : refuse_thread();
}

static int enter(struct spw_queue *q, struct spw_uring *u, unsigned want, bool get_events,
		 int64_t timeout_ns)
{
	unsigned flags = u->enter_flags | (get_events ? IORING_ENTER_GETEVENTS : 0);
	unsigned count = publish_entries(u);
	int ret;

	if (u->setup_flags & IORING_SETUP_SQPOLL) {
		if (count > 0 && sq_thread_sleeps(u))
			flags |= IORING_ENTER_SQ_WAKEUP;
		else if (!get_events)
			return 0;
	} else if (count == 0 && !get_events) {
		return 0;
	}
	q->stats.system_calls++;
	if (want > 0)
		q->stats.sleeps++;
	if (want > 0 && timeout_ns >= 0)
		ret = enter_for(u, count, want, flags, timeout_ns);
	else
		ret = io_uring_enter2((unsigned)u->enter_fd, count, want, flags, NULL, 0);
	if (ret == -EEXIST)
		return refuse_thread();
	/* Out of memory, or completions overflowed: unsubmitted entries stay in the ring. */
	if (ret == -EAGAIN || ret == -EBUSY)
		return 0;
	/* The call returns the submitted count even if a signal or timeout ended its wait. */
	if (ret >= 0 && (unsigned)ret == count && completions_ready(u) < want)
		return -EINTR;
	return ret < 0 ? ret : 0;
}

int spw_engine__uring_submit(struct spw_queue *q)
{
	struct spw_uring *u = q->state;
	int ret = own(q, u);

	if (ret)
		return ret;
	ret = enter(q, u, 0, false, -1);
	return ret == -EINTR ? 0 : ret;
}

static inline void end_part(struct spw_queue *q, struct spw_part *part, int res)
{
	if (unlikely(!spw_engine__whole_completed(q, part, res)))
		spw_engine__part_completed(q, part, res);
}

static void uring_take(struct spw_queue *q, struct spw_uring *u)
{
	spw_uring_take(q, u, 0, end_part);
}

static unsigned take_counted(struct spw_queue *q, struct spw_uring *u)
{
	unsigned count = completions_ready(u);

	u->take(q, u);
	return count;
}

static uint64_t troubles(const struct spw_queue *q)
{
	return q->stats.errors + q->stats.retries + q->stats.short_transfers;
}

/* Poll the drives without submitting: a submission that fails would prevent the polling. */
static int look(struct spw_queue *q, struct spw_uring *u)
{
	int ret;

	q->stats.system_calls++;
	ret = io_uring_enter2((unsigned)u->enter_fd, 0, 0, u->enter_flags | IORING_ENTER_GETEVENTS,
			      NULL, 0);
	return ret < 0 && ret != -EAGAIN && ret != -EBUSY ? ret : 0;
}

/*
 * Submit, poll once, and take all completions: the kernel does not poll while completions are in
 * the ring, nor if a submission failed. After a failure the drives are polled once more, so that
 * retries on a drive that is gone do not keep the other drives waiting forever.
 */
static int poll_once(struct spw_queue *q, struct spw_uring *u, unsigned *taken)
{
	uint64_t troubles_before = troubles(q);
	int ret = enter(q, u, 0, spw_engine__queue_in_flight(q) > 0, -1);

	*taken = take_counted(q, u);
	if (ret == 0 && troubles(q) != troubles_before && spw_engine__queue_in_flight(q) > 0) {
		ret = look(q, u);
		*taken += take_counted(q, u);
	}
	return ret;
}

static int wait_polled(struct spw_queue *q, struct spw_uring *u, unsigned want, int64_t timeout_ns)
{
	uint64_t deadline_ns =
		want > 0 && timeout_ns >= 0 ? spw_clock_ns() + (uint64_t)timeout_ns : UINT64_MAX;
	int ret;

	/* Nothing is in flight: only a wake or the timeout ends the wait. */
	if (want > 0 && spw_engine__queue_in_flight(q) == 0)
		return spw_engine__queue_sleep(q, timeout_ns);
	do {
		unsigned taken;

		ret = poll_once(q, u, &taken);
		if (ret || taken >= want)
			break;
		want -= taken;
		if (atomic_load_explicit(&q->wake.asked, memory_order_relaxed))
			break;
		if (deadline_ns != UINT64_MAX && spw_clock_ns() >= deadline_ns)
			ret = -ETIME;
	} while (ret == 0);
	return ret;
}

int spw_engine__uring_wait(struct spw_queue *q, unsigned want, int64_t timeout_ns)
{
	struct spw_uring *u = q->state;
	int ret = own(q, u);

	if (ret)
		return ret;
	if (q->polls)
		return wait_polled(q, u, want, timeout_ns);
	if (want > 0)
		want = arm_wakes(q, u, want);
	/* Enter the kernel for deferred completions; those in the ring need no system call. */
	if (completions_ready(u) >= (want > 0 ? want : 1))
		ret = enter(q, u, 0, false, -1);
	else
		ret = enter(q, u, want, want > 0 || spw_engine__queue_in_flight(q) > 0, timeout_ns);
	u->take(q, u);
	return ret;
}

const struct spw_backend_ops spw_engine__backend_io_uring = {
	.name = "io_uring",
	.backend = SPW_BACKEND_IO_URING,
	.open = uring_open,
	.close = uring_close,
	.issue = uring_issue,
	.submit = spw_engine__uring_submit,
	.wait = spw_engine__uring_wait,
	.cancel = spw_engine__uring_cancel,
	.add_range = spw_engine__uring_add_range,
	.remove_range = spw_engine__uring_remove_range,
	.shrink = spw_engine__uring_shrink,
};
