/* SPDX-License-Identifier: MIT */
/*
 * tests/sim/drive.h - simulated drives: time, what is stored, and everything that can go wrong with
 * either
 *
 * One thread, no system calls, no clock but sim_now_ns: a run is a function of its seed. Each drive
 * holds its bytes twice: `medium` is what it has stored, `truth` what a drive without faults would
 * have. So a checker can tell an error that was caused from one that was made up.
 *
 * A request begins (when it will end, and what will go wrong with it, is settled then) and ends
 * (the bytes move then). Faults of single requests are armed: the Nth request of the right kind
 * from now on meets them. Faults of the drive are done to it at once.
 */
#ifndef TESTS_SIM_DRIVE_H
#define TESTS_SIM_DRIVE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#include <spillway/engine.h>

#include "tests/random.h"

#define SIM_DRIVES_MAX      8
#define SIM_DRIVE_BYTES_MAX (24u << 20)
#define SIM_RECENT          64 /* writes that a fault can be aimed at */
#define SIM_BAD_RANGES      8
#define SIM_SPARED          128
#define SIM_WRONG_READS     256

#define SIM_FAULT_LIST(X)                                                                        \
	X(SHORT, "short", "a transfer ends early, not always on a block")                        \
	X(AGAIN, "again", "-EAGAIN or -EINTR, up to 20 times in a row")                          \
	X(STUBBORN, "stubborn", "-EAGAIN or -EINTR to every request for a while")                \
	X(FULL, "full", "the backend takes one request and then no more until it was submitted") \
	X(EIO, "eio", "one request fails with -EIO")                                             \
	X(STICKY, "sticky", "every request fails with -EIO from now on")                         \
	X(LARGE, "large", "every transfer of more than 512 KiB fails with -EIO from now on")     \
	X(LATENT, "latent", "stored blocks cannot be read any more until they are written")      \
	X(ROT, "rot", "a stored bit flips")                                                      \
	X(FLIP, "flip", "a bit flips on the way to memory")                                      \
	X(STALE, "stale", "runs of 64 bytes of memory are as they were before a read")           \
	X(LOST, "lost", "a write is acknowledged and not stored")                                \
	X(TORN, "torn", "a write is acknowledged and stored in part")                            \
	X(MISDIRECTED, "misdirected", "a write is stored at another place")                      \
	X(HANG, "hang", "a request ends long after its deadline, or when it is cancelled")       \
	X(SLOW, "slow", "everything takes 1000 times as long for a while")                       \
	X(REMOVAL, "removal", "reads complete with 0 bytes, writes with -ENOSPC")                \
	X(SHRINK, "shrink", "the end of the drive is gone")                                      \
	X(POWER, "power",                                                                        \
	  "the drive loses power for a moment: what was in flight fails, what was in its cache " \
	  "may be lost")

enum sim_fault {
#define SIM_FAULT_ENUM(name, word, text) SIM_##name,
	SIM_FAULT_LIST(SIM_FAULT_ENUM)
#undef SIM_FAULT_ENUM
		SIM_FAULTS
};

struct sim_range {
	uint64_t offset_bytes;
	uint64_t len_bytes; /* 0: unused */
};

/* One request of a drive, from the outside: filled in by the caller. */
struct sim_io {
	struct sim_drive *drive;
	enum spw_op op;
	bool blocking; /* of a caller that does not try again after -EAGAIN */
	uint64_t offset_bytes;
	uint32_t len_bytes;
	const struct iovec *vector;
	struct iovec one; /* what vector may point to */
	/* the drive's */
	bool active;
	uint64_t begun_ns, finish_ns;
	uint64_t sequence;
	int fault;         /* enum sim_fault, or -1 */
	uint32_t again;    /* so often more */
	int forced;        /* a result that was settled meanwhile: cancelled, power gone */
	uint8_t *captured; /* the bytes of a write that takes long, or NULL */
	struct sim_io *next, *previous;
};

/* Of requests of one kind, the Nth from now fails; for tests, the faults above are the seeds'. */
struct sim_failing {
	uint32_t in; /* 1: the next one; 0: none */
	int error;
	bool sticky; /* all that follow, too */
};

struct sim_undo {
	uint64_t offset_bytes;
	uint32_t len_bytes;
	uint64_t write; /* which write it is of */
	uint8_t *before;
};

struct sim_drive {
	unsigned index;
	char path[16];
	struct spw_geometry geometry;
	uint8_t *medium, *truth;
	uint64_t size_now_bytes;
	uint64_t random;
	uint8_t *touched; /* one per 4 KiB: to be cleared for the next run */

	/* speed */
	uint64_t latency_ns, bytes_per_second;
	unsigned channels;
	uint64_t channel_free_ns[8], bus_free_ns;
	bool reads_pass; /* as flash does that has a cache for writes: not behind them */
	uint64_t reads_free_ns;
	uint64_t slow_until_ns, stubborn_until_ns;

	/* cache */
	bool cache_is_volatile;
	uint32_t atomic_bytes; /* 512, 4096; 0: whole writes */
	struct sim_undo *undo;
	unsigned undo_count;
	uint64_t undo_bytes, writes;

	/* faults */
	struct {
		uint32_t after, times;
	} armed[SIM_FAULTS];
	bool dead, removed, off, cancels, fails_large;
	/*
	 * Moves wrong bytes to and from memory that is not aligned to pages, whatever it says. The
	 * checker takes that for an error of the store's: nothing on the drive explains it.
	 */
	bool misplaces;
	struct sim_failing failing[SPW_DISCARD + 1];
	bool told[SIM_FAULTS]; /* counted: of faults that go on */
	uint32_t again_left;
	struct sim_range spared[SIM_SPARED]; /* reads that failed alone: tried again they go well */
	unsigned spared_count;
	struct sim_range bad[SIM_BAD_RANGES];
	struct sim_range recent[SIM_RECENT];
	unsigned recent_count;
	/* reads that gave other bytes than were written, the last ones */
	struct sim_range wrong[SIM_WRONG_READS];
	unsigned wrong_count;
	uint32_t injected[SIM_FAULTS];

	/* where the store may write; len_bytes 0: anywhere */
	struct sim_range allowed;
	struct sim_range locked, superblocks_locked;
	const void *claimed_by; /* the exclusive owner; NULL: unclaimed, and no write is allowed */
	struct sim_io *active_first;
};

extern struct sim_drive sim_drives[SIM_DRIVES_MAX];
extern unsigned sim_drive_count;
extern bool sim_trace; /* every request, on the standard error */
extern uint64_t sim_now_ns;
extern uint64_t sim_chunk_bytes; /* of the store: other parts of a transfer are as near */
extern uint64_t sim_ios_ended;   /* on all drives: whether anything goes on */
extern uint64_t sim_glances;     /* backend.c: how often a queue was looked at without waiting */
extern const char *const sim_fault_names[SIM_FAULTS];
extern const char *const sim_fault_texts[SIM_FAULTS];

/* All zeros, whole, idle. Draws the speed and the cache from @random. */
void sim_drive_make(unsigned index, uint64_t size_bytes, uint32_t logical_block_bytes,
		    uint64_t random);

void sim_io_begin(struct sim_io *io);
/* Move the bytes; sim_now_ns is its finish_ns. Return: bytes or -errno. */
int64_t sim_io_end(struct sim_io *io);

/* Do something to a drive now, or to one of its next requests. Return: whether it was possible. */
bool sim_fault(unsigned drive, enum sim_fault fault, uint32_t after, uint32_t times);
/* Is a write that ended when the drive had ended no more than @writes still in its cache alone? */
bool sim_has_unflushed(const struct sim_drive *drive, uint64_t writes);
/* No fault is armed any more; what was done to the drive stays. */
void sim_disarm(unsigned drive);

/* Put bytes there, without faults. */
void sim_drive_write(struct sim_drive *drive, uint64_t offset_bytes, const void *bytes, size_t len);
/* All its bytes; for sim_drive_put_back(): as if it had been away since. */
uint8_t *sim_drive_image(const struct sim_drive *drive);
/* Frees @image. */
void sim_drive_put_back(struct sim_drive *drive, uint8_t *image);

/* How long it is now, as the drive reports it. */
uint64_t sim_ask_size(struct sim_drive *drive);

int sim_discard(struct sim_drive *drive, uint64_t offset_bytes, uint64_t len_bytes);

/* Power is gone: what was not flushed is kept or lost by units; what is in flight fails, too. */
void sim_power_off(unsigned drive);
void sim_power_on(unsigned drive);

bool sim_range_is_true(const struct sim_drive *drive, uint64_t offset_bytes, uint64_t len_bytes);
/* Has a read that touches the range given other bytes than were written? */
bool sim_gave_wrong_bytes(const struct sim_drive *drive, uint64_t offset_bytes, uint64_t len_bytes);
/* Could a read of the range fail because of what was done to the drive? */
bool sim_reads_may_fail(const struct sim_drive *drive);
bool sim_writes_may_fail(const struct sim_drive *drive);
/* So that it is right to retire the drive until it is revived? */
bool sim_writes_may_fail_for_good(const struct sim_drive *drive);

/* device.c: power is cut in the blocking transfer, flush or discard of that number; 0: never. */
extern uint64_t sim_cut_at, sim_events; /* sim_events: how many there were */
extern bool sim_cuts_reads;             /* reads are events, too */
extern bool sim_cuts_queues;            /* and what begins in a queue */
void sim_event(enum spw_op op);

/* A violation: says so and does not return. A program may have one of its own. */
__attribute__((noreturn, format(printf, 1, 2))) void sim_fail(const char *format, ...);

static inline uint64_t sim_below(uint64_t *random, uint64_t limit)
{
	return limit ? random_below(random, limit) : 0;
}

/* ---- For tests: which requests of a drive fail ---- */

static inline void fail_nth(unsigned drive, enum spw_op op, uint32_t nth, int error)
{
	sim_drives[drive].failing[op] = (struct sim_failing){.in = nth, .error = error};
}

/* The Nth, and all that follow. */
static inline void fail_from(unsigned drive, enum spw_op op, uint32_t nth, int error)
{
	fail_nth(drive, op, nth, error);
	sim_drives[drive].failing[op].sticky = true;
}

static inline void mend(unsigned drive)
{
	memset(sim_drives[drive].failing, 0, sizeof(sim_drives[drive].failing));
}

static inline void mend_all(void)
{
	for (unsigned i = 0; i < sim_drive_count; i++)
		mend(i);
}

#endif
