/* SPDX-License-Identifier: MIT */
/* tests/sim/drive.c - what a simulated drive does with a request, and what can be done to it */
#include "tests/sim/drive.h"

#include <errno.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "util/util.h"

#define TOUCH_SHIFT 12
#define UNDO_MAX    512
/* of cache; more is written through to the medium, oldest first */
#define UNDO_BYTES_MAX (2u << 20)
#define HANG_NS_MIN    UINT64_C(1000000000)
#define HANG_NS_MAX    UINT64_C(120000000000)
#define SLOW_NS        UINT64_C(20000000000)
#define SLOW_FACTOR    1000
#define CAPTURE_NS     UINT64_C(1000000000) /* less than any deadline */
#define SECTOR         512u
#define LARGE_BYTES    (512u << 10)
#define STUBBORN_NS    UINT64_C(3000000000)
#define STALE_BYTES    64u /* a line of a cache */
#define STALE_RUNS_MAX 4u

struct sim_drive sim_drives[SIM_DRIVES_MAX];
unsigned sim_drive_count;
bool sim_trace;
uint64_t sim_now_ns, sim_ios_ended;
uint64_t sim_chunk_bytes = 256u << 10;

const char *const sim_fault_names[SIM_FAULTS] = {
#define SIM_FAULT_NAME(name, word, text) word,
	SIM_FAULT_LIST(SIM_FAULT_NAME)
#undef SIM_FAULT_NAME
};

const char *const sim_fault_texts[SIM_FAULTS] = {
#define SIM_FAULT_TEXT(name, word, text) text,
	SIM_FAULT_LIST(SIM_FAULT_TEXT)
#undef SIM_FAULT_TEXT
};

static uint64_t sequence;

static const char *const op_names[] = {
	[SPW_READ] = "read",
	[SPW_WRITE] = "write",
	[SPW_FLUSH] = "flush",
};

__attribute__((weak)) void sim_fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)vprintf(format, args);
	va_end(args);
	(void)printf("\n");
	abort();
}

/* ---- Making one ---- */

static uint8_t *reserve(size_t len)
{
	void *memory = mmap(NULL, len, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		abort();
	return memory;
}

static void touch(struct sim_drive *drive, uint64_t offset, uint64_t len)
{
	for (uint64_t i = offset >> TOUCH_SHIFT; i <= (offset + len - 1) >> TOUCH_SHIFT; i++)
		drive->touched[i] = 1;
}

/* Faster than new memory: only what the run before has written. */
static void clear(struct sim_drive *drive)
{
	for (unsigned i = 0; i < SIM_DRIVE_BYTES_MAX >> TOUCH_SHIFT; i++)
		if (drive->touched[i]) {
			memset(drive->medium + ((size_t)i << TOUCH_SHIFT), 0, 1u << TOUCH_SHIFT);
			memset(drive->truth + ((size_t)i << TOUCH_SHIFT), 0, 1u << TOUCH_SHIFT);
			drive->touched[i] = 0;
		}
}

static void forget_undo(struct sim_drive *drive)
{
	for (unsigned i = 0; i < drive->undo_count; i++)
		free(drive->undo[i].before);
	drive->undo_count = 0;
	drive->undo_bytes = 0;
}

void sim_drive_make(unsigned index, uint64_t size_bytes, uint32_t logical_block_bytes,
		    uint64_t random)
{
	static const uint32_t units[] = {512, 4096, 0};
	struct sim_drive *drive = &sim_drives[index];
	uint8_t *medium = drive->medium, *truth = drive->truth, *touched = drive->touched;
	struct sim_undo *undo = drive->undo;

	if (medium) {
		forget_undo(drive);
		clear(drive);
	} else {
		/* What caches hold comes and goes: not from the system and back each time. */
		(void)mallopt(M_MMAP_THRESHOLD, 8 << 20);
		(void)mallopt(M_TRIM_THRESHOLD, 64 << 20);
		medium = reserve(SIM_DRIVE_BYTES_MAX);
		truth = reserve(SIM_DRIVE_BYTES_MAX);
		touched = reserve(SIM_DRIVE_BYTES_MAX >> TOUCH_SHIFT);
		undo = calloc(UNDO_MAX, sizeof(*undo));
		SPW_ASSERT(undo);
	}
	SPW_ASSERT(size_bytes <= SIM_DRIVE_BYTES_MAX);
	*drive = (struct sim_drive){.index = index,
				    .medium = medium,
				    .truth = truth,
				    .touched = touched,
				    .undo = undo,
				    .size_now_bytes = size_bytes,
				    .random = random};
	(void)snprintf(drive->path, sizeof(drive->path), "sim%u", index);
	drive->geometry =
		(struct spw_geometry){.kind = SPW_DEVICE_BLOCK,
				      .size_bytes = size_bytes,
				      .logical_block_bytes = logical_block_bytes,
				      .physical_block_bytes = 4096,
				      .memory_align_bytes = sim_below(&drive->random, 2) ? 512 : 4,
				      .transfer_bytes_max = 8192u << sim_below(&drive->random, 8),
				      .segments_max = 4 + (uint32_t)sim_below(&drive->random, 124),
				      .numa_node = -1,
				      .polls = sim_below(&drive->random, 2),
				      .discards = sim_below(&drive->random, 2)};
	drive->latency_ns = 10000 + sim_below(&drive->random, 200000);
	drive->bytes_per_second = (100 + sim_below(&drive->random, 4000)) * 1000000;
	drive->channels =
		1 + (unsigned)sim_below(&drive->random, SPW_ARRAY_LEN(drive->channel_free_ns));
	drive->cache_is_volatile = sim_below(&drive->random, 2);
	drive->atomic_bytes = units[sim_below(&drive->random, SPW_ARRAY_LEN(units))];
	drive->cancels = sim_below(&drive->random, 2);
	drive->misplaces = sim_below(&drive->random, 4) == 0;
}

void sim_drive_write(struct sim_drive *drive, uint64_t offset, const void *bytes, size_t len)
{
	touch(drive, offset, len);
	memcpy(drive->medium + offset, bytes, len);
	memcpy(drive->truth + offset, bytes, len);
}

uint8_t *sim_drive_image(const struct sim_drive *drive)
{
	uint8_t *image = malloc(drive->geometry.size_bytes);

	if (!image)
		abort();
	memcpy(image, drive->medium, drive->geometry.size_bytes);
	return image;
}

void sim_drive_put_back(struct sim_drive *drive, uint8_t *image)
{
	sim_drive_write(drive, 0, image, drive->geometry.size_bytes);
	free(image);
}

/* ---- Bytes ---- */

/*
 * As zram does: of memory that is not aligned to a page other bytes move than lie there. @memory is
 * where the element begins of which these are a part.
 */
static void misplace(const struct sim_io *io, const void *memory, uint8_t *bytes, size_t len)
{
	/* What was captured was misplaced then. */
	if (io->drive->misplaces && io->vector->iov_base != io->captured &&
	    (uintptr_t)memory % 4096 != 0)
		for (size_t i = 0; i < len; i++)
			bytes[i] ^= 0x5a;
}

/* @len bytes from @from on in the request's memory: to or from @at. */
static void move(const struct sim_io *io, uint32_t from, uint8_t *at, uint32_t len, bool to_drive)
{
	const struct iovec *vector = io->vector;

	while (len > 0) {
		uint8_t *memory;
		uint32_t part;

		if (from >= vector->iov_len) {
			from -= (uint32_t)vector++->iov_len;
			continue;
		}
		part = (uint32_t)vector->iov_len - from;
		if (part > len)
			part = len;
		memory = (uint8_t *)vector->iov_base + from;
		memcpy(to_drive ? at : memory, to_drive ? memory : at, part);
		misplace(io, vector->iov_base, to_drive ? at : memory, part);
		at += part;
		from += part;
		len -= part;
	}
}

/* What is empty overlaps nothing. */
static bool overlap(uint64_t a, uint64_t a_len, uint64_t b, uint64_t b_len)
{
	return a_len > 0 && b_len > 0 && a < b + b_len && b < a + a_len;
}

static void remember_before(struct sim_drive *drive, uint64_t offset, uint32_t len)
{
	struct sim_undo *undo;

	while (drive->undo_count == UNDO_MAX ||
	       (drive->undo_count > 0 && drive->undo_bytes + len > UNDO_BYTES_MAX)) {
		drive->undo_bytes -= drive->undo[0].len_bytes;
		free(drive->undo[0].before);
		memmove(drive->undo, drive->undo + 1, --drive->undo_count * sizeof(*drive->undo));
	}
	undo = &drive->undo[drive->undo_count++];
	*undo = (struct sim_undo){.offset_bytes = offset,
				  .len_bytes = len,
				  .write = drive->writes,
				  .before = malloc(len)};
	if (!undo->before)
		abort();
	memcpy(undo->before, drive->medium + offset, len);
	drive->undo_bytes += len;
}

/* Bytes from @from on of a write arrive at @offset of the medium. */
static void store(struct sim_drive *drive, const struct sim_io *io, uint32_t from, uint64_t offset,
		  uint32_t len)
{
	if (len == 0)
		return;
	touch(drive, offset, len);
	if (drive->cache_is_volatile)
		remember_before(drive, offset, len);
	move(io, from, drive->medium + offset, len, true);
	for (unsigned i = 0; i < SIM_BAD_RANGES; i++)
		if (overlap(drive->bad[i].offset_bytes, drive->bad[i].len_bytes, offset, len))
			drive->bad[i].len_bytes = 0;
}

static uint32_t unit_of(const struct sim_drive *drive, uint32_t len)
{
	return drive->atomic_bytes ? drive->atomic_bytes : len;
}

/* Some of its units, at random; with whole writes as the unit: all or nothing. */
static void store_in_part(struct sim_drive *drive, const struct sim_io *io)
{
	uint32_t unit = unit_of(drive, io->len_bytes);
	uint64_t kept = sim_below(&drive->random, 4);

	for (uint32_t from = 0; from < io->len_bytes; from += unit)
		if (sim_below(&drive->random, 4) < kept)
			store(drive, io, from, io->offset_bytes + from,
			      io->len_bytes - from < unit ? io->len_bytes - from : unit);
}

/* What a torn write leaves: the beginning or the end, and at least one sector is missing. */
static void store_torn(struct sim_drive *drive, const struct sim_io *io)
{
	uint32_t sectors = io->len_bytes / SECTOR;
	uint32_t kept = (uint32_t)sim_below(&drive->random, sectors) * SECTOR;

	if (sim_below(&drive->random, 4))
		store(drive, io, 0, io->offset_bytes, kept);
	else
		store(drive, io, io->len_bytes - kept, io->offset_bytes + io->len_bytes - kept,
		      kept);
}

static void store_elsewhere(struct sim_drive *drive, const struct sim_io *io)
{
	uint64_t block = drive->geometry.logical_block_bytes;
	struct sim_range range = drive->allowed;
	uint64_t blocks;

	if (range.len_bytes < io->len_bytes || sim_below(&drive->random, 8) == 0)
		range = (struct sim_range){.len_bytes = drive->size_now_bytes};
	if (range.offset_bytes + range.len_bytes > drive->size_now_bytes ||
	    range.len_bytes <= io->len_bytes)
		return;
	blocks = (range.len_bytes - io->len_bytes) / block;
	store(drive, io, 0, range.offset_bytes + sim_below(&drive->random, blocks) * block,
	      io->len_bytes);
}

/* ---- Faults ---- */

static void count(struct sim_drive *drive, enum sim_fault fault)
{
	drive->injected[fault]++;
}

static void count_once(struct sim_drive *drive, enum sim_fault fault)
{
	if (!drive->told[fault])
		count(drive, fault);
	drive->told[fault] = true;
}

uint64_t sim_ask_size(struct sim_drive *drive)
{
	if (drive->size_now_bytes < drive->geometry.size_bytes)
		count_once(drive, SIM_SHRINK);
	return drive->size_now_bytes;
}

static bool is_spared(const struct sim_drive *drive, const struct sim_io *io)
{
	for (unsigned i = 0; i < SIM_SPARED; i++)
		if (overlap(drive->spared[i].offset_bytes, drive->spared[i].len_bytes,
			    io->offset_bytes, io->len_bytes))
			return true;
	return false;
}

static void spare(struct sim_drive *drive, const struct sim_io *io)
{
	uint64_t before = SPW_MIN(io->offset_bytes, sim_chunk_bytes);

	drive->spared[drive->spared_count++ % SIM_SPARED] =
		(struct sim_range){.offset_bytes = io->offset_bytes - before,
				   .len_bytes = before + io->len_bytes + sim_chunk_bytes};
}

static bool meets(const struct sim_drive *drive, const struct sim_io *io, enum sim_fault fault)
{
	switch (fault) {
	case SIM_SHORT:
		return io->op <= SPW_WRITE && io->len_bytes > drive->geometry.logical_block_bytes;
	case SIM_AGAIN: return !io->blocking && drive->again_left == 0;
	case SIM_EIO: return io->op == SPW_WRITE || (io->op == SPW_READ && !is_spared(drive, io));
	case SIM_FLIP:
	case SIM_STALE: return io->op == SPW_READ && !is_spared(drive, io);
	case SIM_LOST:
	case SIM_TORN:
	case SIM_MISDIRECTED: return io->op == SPW_WRITE;
	case SIM_HANG: return io->op <= SPW_WRITE;
	default: return false;
	}
}

static int draw_fault(struct sim_drive *drive, const struct sim_io *io)
{
	for (int fault = 0; fault < SIM_FAULTS; fault++) {
		if (drive->armed[fault].times == 0 || !meets(drive, io, (enum sim_fault)fault))
			continue;
		if (drive->armed[fault].after > 0) {
			drive->armed[fault].after--;
			continue;
		}
		drive->armed[fault].times--;
		return fault;
	}
	return -1;
}

static const struct sim_range *some_recent(struct sim_drive *drive)
{
	unsigned count = drive->recent_count < SIM_RECENT ? drive->recent_count : SIM_RECENT;

	return count ? &drive->recent[sim_below(&drive->random, count)] : NULL;
}

static bool rot(struct sim_drive *drive)
{
	const struct sim_range *range = some_recent(drive);

	if (!range)
		return false;
	drive->medium[range->offset_bytes + sim_below(&drive->random, range->len_bytes)] ^=
		(uint8_t)(1u << sim_below(&drive->random, 8));
	return true;
}

static bool make_unreadable(struct sim_drive *drive)
{
	const struct sim_range *range = some_recent(drive);

	for (unsigned i = 0; range && i < SIM_BAD_RANGES; i++)
		if (drive->bad[i].len_bytes == 0) {
			drive->bad[i].len_bytes = SECTOR * (1 + sim_below(&drive->random, 8));
			drive->bad[i].offset_bytes =
				range->offset_bytes + sim_below(&drive->random, range->len_bytes);
			return true;
		}
	return false;
}

static bool shrink(struct sim_drive *drive)
{
	const struct sim_range *range = some_recent(drive);

	if (!range || drive->size_now_bytes != drive->geometry.size_bytes)
		return false;
	drive->size_now_bytes =
		range->offset_bytes + spw_round_down(sim_below(&drive->random, range->len_bytes),
						     drive->geometry.logical_block_bytes);
	return true;
}

bool sim_fault(unsigned index, enum sim_fault fault, uint32_t after, uint32_t times)
{
	struct sim_drive *drive = &sim_drives[index];
	bool done = true;

	switch (fault) {
	case SIM_ROT:
		done = rot(drive);
		drive->injected[fault] += done;
		break;
	case SIM_STICKY: drive->dead = true; break;
	case SIM_LARGE: drive->fails_large = true; break;
	case SIM_STUBBORN: drive->stubborn_until_ns = sim_now_ns + STUBBORN_NS; break;
	case SIM_LATENT: done = make_unreadable(drive); break;
	case SIM_SLOW: drive->slow_until_ns = sim_now_ns + SLOW_NS; break;
	case SIM_REMOVAL: drive->removed = true; break;
	case SIM_SHRINK: done = shrink(drive); break;
	case SIM_POWER:
		sim_power_off(index);
		sim_power_on(index);
		count(drive, fault);
		break;
	default: drive->armed[fault].after = after; drive->armed[fault].times = times;
	}
	return done;
}

void sim_disarm(unsigned index)
{
	memset(sim_drives[index].armed, 0, sizeof(sim_drives[index].armed));
	sim_drives[index].again_left = 0;
	sim_drives[index].stubborn_until_ns = 0;
}

bool sim_reads_may_fail(const struct sim_drive *drive)
{
	return drive->injected[SIM_STICKY] || drive->injected[SIM_LATENT] ||
	       drive->injected[SIM_REMOVAL] || drive->injected[SIM_SHRINK] ||
	       drive->injected[SIM_POWER] || drive->injected[SIM_HANG] ||
	       drive->injected[SIM_SLOW] || drive->injected[SIM_STUBBORN] || drive->off;
}

bool sim_writes_may_fail(const struct sim_drive *drive)
{
	return drive->injected[SIM_STUBBORN] || sim_writes_may_fail_for_good(drive);
}

bool sim_writes_may_fail_for_good(const struct sim_drive *drive)
{
	return drive->injected[SIM_EIO] || drive->injected[SIM_STICKY] ||
	       drive->injected[SIM_REMOVAL] || drive->injected[SIM_SHRINK] ||
	       drive->injected[SIM_POWER] || drive->injected[SIM_HANG] ||
	       drive->injected[SIM_SLOW] || drive->off;
}

bool sim_range_is_true(const struct sim_drive *drive, uint64_t offset, uint64_t len)
{
	return memcmp(drive->medium + offset, drive->truth + offset, len) == 0;
}

bool sim_has_unflushed(const struct sim_drive *drive, uint64_t writes)
{
	for (unsigned i = 0; i < drive->undo_count; i++)
		if (drive->undo[i].write <= writes)
			return true;
	return false;
}

bool sim_gave_wrong_bytes(const struct sim_drive *drive, uint64_t offset, uint64_t len)
{
	for (unsigned i = 0; i < SIM_WRONG_READS && i < drive->wrong_count; i++)
		if (overlap(drive->wrong[i].offset_bytes, drive->wrong[i].len_bytes, offset, len))
			return true;
	return false;
}

/* ---- Power ---- */

/* Newest first: where a newer write has stayed, an older one does not show. */
static void lose_cache(struct sim_drive *drive)
{
	uint64_t kept = sim_below(&drive->random, 5);
	uint8_t *settled = calloc(drive->geometry.size_bytes / SECTOR, 1);

	if (!settled)
		abort();
	for (unsigned i = drive->undo_count; i-- > 0;) {
		const struct sim_undo *undo = &drive->undo[i];
		uint32_t unit = unit_of(drive, undo->len_bytes);
		/* Units lie at multiples of their length on the drive. */
		uint64_t at = drive->atomic_bytes ? spw_round_down(undo->offset_bytes, unit)
						  : undo->offset_bytes;

		for (; at < undo->offset_bytes + undo->len_bytes; at += unit) {
			bool stays = sim_below(&drive->random, 4) < kept;

			for (uint64_t sector = at; sector < at + unit; sector += SECTOR) {
				if (sector < undo->offset_bytes ||
				    sector >= undo->offset_bytes + undo->len_bytes ||
				    settled[sector / SECTOR])
					continue;
				settled[sector / SECTOR] = stays;
				if (!stays)
					memcpy(drive->medium + sector,
					       undo->before + (sector - undo->offset_bytes),
					       SECTOR);
			}
		}
	}
	free(settled);
	forget_undo(drive);
}

void sim_power_off(unsigned index)
{
	struct sim_drive *drive = &sim_drives[index];

	drive->off = true;
	for (struct sim_io *io = drive->active_first; io; io = io->next) {
		io->forced = -EIO;
		io->finish_ns = sim_now_ns;
	}
}

void sim_power_on(unsigned index)
{
	struct sim_drive *drive = &sim_drives[index];

	if (drive->cache_is_volatile)
		lose_cache(drive);
	drive->off = false;
	for (unsigned i = 0; i < SPW_ARRAY_LEN(drive->channel_free_ns); i++)
		drive->channel_free_ns[i] = 0;
	drive->bus_free_ns = 0;
}

/* ---- A request ---- */

static uint64_t service_ns(struct sim_drive *drive, const struct sim_io *io)
{
	/* Most are quick, few are not: the sum of three, the third rarely. */
	uint64_t ns = drive->latency_ns / 2 + sim_below(&drive->random, drive->latency_ns);

	if (sim_below(&drive->random, 32) == 0)
		ns += sim_below(&drive->random, 20 * drive->latency_ns);
	if (io->op == SPW_FLUSH)
		ns *= 4;
	if (sim_now_ns < drive->slow_until_ns) {
		count_once(drive, SIM_SLOW);
		ns *= SLOW_FACTOR;
	}
	return ns;
}

static uint64_t finish_time(struct sim_drive *drive, const struct sim_io *io)
{
	uint64_t len_ns = io->len_bytes * UINT64_C(1000000000) / drive->bytes_per_second;
	unsigned channel = 0;
	uint64_t at;

	if (drive->reads_pass && io->op == SPW_READ) {
		at = SPW_MAX(sim_now_ns + service_ns(drive, io), drive->reads_free_ns) + len_ns;
		drive->reads_free_ns = at;
		return at;
	}
	for (unsigned i = 1; i < drive->channels; i++)
		if (drive->channel_free_ns[i] < drive->channel_free_ns[channel])
			channel = i;
	at = drive->channel_free_ns[channel] > sim_now_ns ? drive->channel_free_ns[channel]
							  : sim_now_ns;
	at += service_ns(drive, io);
	if (at < drive->bus_free_ns)
		at = drive->bus_free_ns;
	at += len_ns;
	drive->bus_free_ns = at;
	drive->channel_free_ns[channel] = at;
	return at;
}

static void note_recent(struct sim_drive *drive, const struct sim_io *io)
{
	drive->recent[drive->recent_count++ % SIM_RECENT] =
		(struct sim_range){.offset_bytes = io->offset_bytes, .len_bytes = io->len_bytes};
}

static void check_place(const struct sim_drive *drive, const struct sim_io *io)
{
	const struct sim_range *allowed = &drive->allowed;

	if (io->op > SPW_WRITE)
		return;
	if (io->len_bytes == 0 ||
	    (io->offset_bytes | io->len_bytes) % drive->geometry.logical_block_bytes ||
	    io->offset_bytes + io->len_bytes > drive->geometry.size_bytes)
		sim_fail("%s: a transfer of %u bytes at %llu is not one of whole blocks inside the "
			 "drive",
			 drive->path, io->len_bytes, (unsigned long long)io->offset_bytes);
	if (io->op == SPW_WRITE && (!drive->claimed_by || drive->locked.len_bytes == 0))
		sim_fail("%s: a write of %u bytes at %llu to a drive that is not %s", drive->path,
			 io->len_bytes, (unsigned long long)io->offset_bytes,
			 drive->claimed_by ? "locked" : "claimed");
	if (io->op == SPW_WRITE && allowed->len_bytes > 0 &&
	    (io->offset_bytes < allowed->offset_bytes ||
	     io->offset_bytes + io->len_bytes > allowed->offset_bytes + allowed->len_bytes))
		sim_fail("%s: a write of %u bytes at %llu outside the partition", drive->path,
			 io->len_bytes, (unsigned long long)io->offset_bytes);
}

/* Blocks that are written belong to one request; others that touch them have them too early. */
static void check_alone(const struct sim_drive *drive, const struct sim_io *io)
{
	for (const struct sim_io *other = drive->active_first; other; other = other->next)
		if ((io->op == SPW_WRITE || other->op == SPW_WRITE) &&
		    overlap(io->offset_bytes, io->len_bytes, other->offset_bytes, other->len_bytes))
			sim_fail("%s: the %u bytes at %llu are %s while those at %llu are %s",
				 drive->path, io->len_bytes, (unsigned long long)io->offset_bytes,
				 io->op == SPW_WRITE ? "written" : "read",
				 (unsigned long long)other->offset_bytes,
				 other->op == SPW_WRITE ? "written" : "read");
}

static void make_active(struct sim_drive *drive, struct sim_io *io)
{
	io->active = true;
	io->previous = NULL;
	io->next = drive->active_first;
	if (io->next)
		io->next->previous = io;
	drive->active_first = io;
}

static void make_idle(struct sim_drive *drive, struct sim_io *io)
{
	io->active = false;
	*(io->previous ? &io->previous->next : &drive->active_first) = io->next;
	if (io->next)
		io->next->previous = io->previous;
}

static void capture(struct sim_io *io)
{
	io->captured = malloc(io->len_bytes);
	SPW_ASSERT(io->captured);
	move(io, 0, io->captured, io->len_bytes, true);
	io->one = (struct iovec){.iov_base = io->captured, .iov_len = io->len_bytes};
	io->vector = &io->one;
}

void sim_io_begin(struct sim_io *io)
{
	struct sim_drive *drive = io->drive;

	check_place(drive, io);
	check_alone(drive, io);
	make_active(drive, io);
	io->sequence = sequence++;
	io->forced = 0;
	io->again = 0;
	io->begun_ns = sim_now_ns;
	io->finish_ns = finish_time(drive, io);
	io->fault = draw_fault(drive, io);
	if (io->fault == SIM_HANG) {
		count(drive, SIM_HANG);
		io->finish_ns = sim_now_ns + HANG_NS_MIN +
				sim_below(&drive->random, HANG_NS_MAX - HANG_NS_MIN);
	}
	/* A write that timed out must not read memory that may be its owner's again. */
	if (io->op == SPW_WRITE && io->finish_ns - sim_now_ns > CAPTURE_NS)
		capture(io);
	if (io->fault == SIM_AGAIN) {
		count(drive, SIM_AGAIN);
		drive->again_left = 1 + (uint32_t)sim_below(&drive->random, 20);
	}
}

/* The part of a request that lies before the end of what is left of the drive. */
static int64_t beyond_end(struct sim_drive *drive, const struct sim_io *io)
{
	count_once(drive, SIM_SHRINK);
	if (io->offset_bytes >= drive->size_now_bytes)
		return io->op == SPW_READ ? 0 : -ENOSPC;
	return (int64_t)(drive->size_now_bytes - io->offset_bytes);
}

static bool is_unreadable(struct sim_drive *drive, const struct sim_io *io)
{
	for (unsigned i = 0; i < SIM_BAD_RANGES; i++)
		if (overlap(drive->bad[i].offset_bytes, drive->bad[i].len_bytes, io->offset_bytes,
			    io->len_bytes))
			return true;
	return false;
}

static bool is_failing(struct sim_failing *failing)
{
	bool due = failing->in == 1;

	if (failing->in > 0 && !(due && failing->sticky))
		failing->in--;
	return due;
}

/* What the drive answers before it looks at the bytes: how many it would transfer, or an error. */
static int64_t answer(struct sim_drive *drive, const struct sim_io *io)
{
	if (drive->removed) {
		count_once(drive, SIM_REMOVAL);
		return io->op == SPW_READ ? 0 : io->op == SPW_WRITE ? -ENOSPC : -EIO;
	}
	if (drive->off)
		return -EIO;
	if (drive->dead) {
		count_once(drive, SIM_STICKY);
		return -EIO;
	}
	if (io->fault == SIM_EIO) {
		count(drive, SIM_EIO);
		return -EIO;
	}
	if (is_failing(&drive->failing[io->op]))
		return drive->failing[io->op].error;
	if (sim_now_ns < drive->stubborn_until_ns && !io->blocking) {
		count_once(drive, SIM_STUBBORN);
		return sim_below(&drive->random, 2) ? -EAGAIN : -EINTR;
	}
	if (drive->again_left > 0 && !io->blocking) {
		drive->again_left--;
		return sim_below(&drive->random, 2) ? -EAGAIN : -EINTR;
	}
	if (io->op > SPW_WRITE)
		return 0;
	if (drive->fails_large && io->len_bytes > LARGE_BYTES) {
		count(drive, SIM_LARGE);
		return -EIO;
	}
	if (io->offset_bytes + io->len_bytes > drive->size_now_bytes)
		return beyond_end(drive, io);
	if (io->op == SPW_READ && is_unreadable(drive, io)) {
		count(drive, SIM_LATENT);
		return -EIO;
	}
	if (io->fault == SIM_SHORT) {
		/* At least a block: less, like nothing, is the answer of a drive that is gone. */
		uint32_t least = drive->geometry.logical_block_bytes;

		count(drive, SIM_SHORT);
		return least + (int64_t)sim_below(&drive->random, io->len_bytes - least);
	}
	return io->len_bytes;
}

static void end_write(struct sim_drive *drive, struct sim_io *io, uint32_t bytes)
{
	/* Whatever a short write says: sectors are written whole. */
	bytes = (uint32_t)spw_round_down(bytes, SECTOR);
	drive->writes++;
	note_recent(drive, io);
	switch (io->fault) {
	case SIM_LOST: break;
	case SIM_TORN: store_torn(drive, io); break;
	case SIM_MISDIRECTED: store_elsewhere(drive, io); break;
	default: store(drive, io, 0, io->offset_bytes, bytes);
	}
	touch(drive, io->offset_bytes, io->len_bytes);
	move(io, 0, drive->truth + io->offset_bytes, bytes, true);
	if (io->fault == SIM_LOST || io->fault == SIM_TORN || io->fault == SIM_MISDIRECTED)
		count(drive, (enum sim_fault)io->fault);
}

static void flip(struct sim_drive *drive, const struct sim_io *io, uint32_t bytes)
{
	uint64_t bit = sim_below(&drive->random, UINT64_C(8) * bytes);

	for (const struct iovec *vector = io->vector;; bit -= 8 * vector++->iov_len)
		if (bit < 8 * vector->iov_len) {
			((uint8_t *)vector->iov_base)[bit / 8] ^= (uint8_t)(1u << bit % 8);
			return;
		}
}

/* All arrives but for some lines of the memory. Return: whether that made a difference. */
static bool arrive_in_part(struct sim_drive *drive, const struct sim_io *io, uint32_t bytes)
{
	uint32_t count = 1 + (uint32_t)sim_below(&drive->random, STALE_RUNS_MAX);
	uint8_t before[STALE_RUNS_MAX][STALE_BYTES];
	uint32_t runs[STALE_RUNS_MAX];
	bool differs = false;

	for (uint32_t i = 0; i < count; i++) {
		runs[i] = STALE_BYTES * (uint32_t)sim_below(&drive->random, bytes / STALE_BYTES);
		move(io, runs[i], before[i], STALE_BYTES, true);
	}
	move(io, 0, drive->medium + io->offset_bytes, bytes, false);
	for (uint32_t i = 0; i < count; i++) {
		differs |= memcmp(before[i], drive->medium + io->offset_bytes + runs[i],
				  STALE_BYTES) != 0;
		move(io, runs[i], before[i], STALE_BYTES, false);
	}
	return differs;
}

static void end_read(struct sim_drive *drive, struct sim_io *io, uint32_t bytes)
{
	bool is_stale = false;

	if (io->fault == SIM_STALE && bytes >= STALE_BYTES)
		is_stale = arrive_in_part(drive, io, bytes);
	else
		move(io, 0, drive->medium + io->offset_bytes, bytes, false);
	if (!sim_range_is_true(drive, io->offset_bytes, bytes)) {
		spare(drive, io);
		drive->wrong[drive->wrong_count++ % SIM_WRONG_READS] =
			(struct sim_range){.offset_bytes = io->offset_bytes, .len_bytes = bytes};
	}
	if (!is_stale && (io->fault != SIM_FLIP || bytes == 0))
		return;
	count(drive, (enum sim_fault)io->fault);
	spare(drive, io);
	if (io->fault == SIM_FLIP)
		flip(drive, io, bytes);
}

/* A write that failed may have left anything; the caller must not rely on it. */
static void fail_write(struct sim_drive *drive, struct sim_io *io)
{
	if (drive->removed || io->offset_bytes + io->len_bytes > drive->size_now_bytes)
		return;
	drive->writes++;
	touch(drive, io->offset_bytes, io->len_bytes);
	store_in_part(drive, io);
	memcpy(drive->truth + io->offset_bytes, drive->medium + io->offset_bytes, io->len_bytes);
}

int64_t sim_io_end(struct sim_io *io)
{
	struct sim_drive *drive = io->drive;
	int64_t res = io->forced ? io->forced : answer(drive, io);

	make_idle(drive, io);
	sim_ios_ended++;
	if (sim_trace)
		(void)fprintf(stderr, "%12.6f s  %s: %s of %u bytes at %llu: %lld%s%s\n",
			      (double)sim_now_ns * 1e-9, drive->path, op_names[io->op],
			      io->len_bytes, (unsigned long long)io->offset_bytes, (long long)res,
			      io->fault >= 0 ? ", fault " : "",
			      io->fault >= 0 ? sim_fault_names[io->fault] : "");
	/* A flush that was lost is a mutation, no fault of drives: see backend.c. */
	if (io->op == SPW_FLUSH && res == 0 && io->fault != SIM_LOST)
		forget_undo(drive);
	else if (io->op == SPW_WRITE && res > 0)
		end_write(drive, io, (uint32_t)res);
	else if (io->op == SPW_WRITE && res != -EAGAIN && res != -EINTR)
		fail_write(drive, io);
	else if (io->op == SPW_READ && res > 0)
		end_read(drive, io, (uint32_t)res);
	/* What is tried again after this goes well, unless the drive is to blame. */
	else if (io->op == SPW_READ && res != -EAGAIN && res != -EINTR)
		spare(drive, io);
	free(io->captured);
	io->captured = NULL;
	return res;
}

/* What was in the cache of a discarded range does not come back. */
static void forget_before(const struct sim_undo *undo, uint64_t from, uint64_t to)
{
	uint64_t undo_end = undo->offset_bytes + undo->len_bytes;

	from = from > undo->offset_bytes ? from : undo->offset_bytes;
	to = to < undo_end ? to : undo_end;
	if (from < to)
		memset(undo->before + (from - undo->offset_bytes), 0xdd, to - from);
}

/* What is read there then is undefined: bytes that never were; zeros where nothing ever was. */
int sim_discard(struct sim_drive *drive, uint64_t offset, uint64_t len)
{
	struct sim_io write = {.drive = drive,
			       .op = SPW_WRITE,
			       .offset_bytes = offset,
			       .len_bytes = (uint32_t)len};
	uint64_t end = offset + len;

	check_place(drive, &write);
	check_alone(drive, &write);
	if (answer(drive, &(struct sim_io){.op = SPW_DISCARD, .blocking = true, .fault = -1}))
		return -EIO;
	for (uint64_t next; offset < end; offset = next) {
		next = ((offset >> TOUCH_SHIFT) + 1) << TOUCH_SHIFT;
		if (next > end)
			next = end;
		if (!drive->touched[offset >> TOUCH_SHIFT])
			continue;
		memset(drive->medium + offset, 0xdd, next - offset);
		memset(drive->truth + offset, 0xdd, next - offset);
	}
	for (unsigned i = 0; i < drive->undo_count; i++)
		forget_before(&drive->undo[i], write.offset_bytes, end);
	return 0;
}
