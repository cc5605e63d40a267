/* SPDX-License-Identifier: MIT */
/*
 * tests/sim/device.c - the engine's device over simulated drives, whose paths are sim0, sim1 and so
 * on; and the questions about what a device carries and who uses it, which for these have one
 * answer
 *
 * A device's descriptor is the drive's number.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "engine/device.h"
#include "drives/loop.h"
#include "drives/overlap.h"
#include "drives/safety.h"
#include "drives/share.h"
#include "status/status.h"
#include "tests/sim/sim.h"
#include "util/util.h"

/* Most answers are the same whatever the question. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

uint64_t sim_cut_at, sim_events;
bool sim_cuts_reads, sim_cuts_queues;
static uint64_t entropy;

/* ---- The system ---- */

/* UUIDs of a run follow from its seed, as far as the store sees: they only have to differ. */
WRAP(ssize_t, getrandom, (void *buf, size_t len, unsigned flags))
{
	entropy++;
	sim_fill(buf, len, entropy);
	return (ssize_t)len;
}

WRAP(time_t, time, (time_t * now))
{
	time_t seconds = (time_t)(1 + sim_now_ns / 1000000000);

	if (now)
		*now = seconds;
	return seconds;
}

/* The shared page, without a name that could stay behind. */
WRAP(int, spw_status__take, (const char *store_uuid, uint32_t partition, int *fd))
{
	*fd = memfd_create("sim", MFD_CLOEXEC);
	return *fd < 0 || ftruncate(*fd, (off_t)sizeof(struct spw_status_page)) ? -errno : 0;
}

WRAP(void, spw_status__drop, (const char *store_uuid, uint32_t partition, int fd))
{
	(void)close(fd);
}

WRAP(void, spw_status__sweep, (void))
{
}

/* ---- Safety: no other process is there ---- */

#define ANSWER_0(name, parameters)  \
	WRAP(int, name, parameters) \
	{                           \
		return 0;           \
	}

ANSWER_0(spw_drives__safety_in_use, (const char *path, const struct spw_loops *loops))
ANSWER_0(spw_drives__safety_locked, (const char *path, uint64_t offset_bytes, uint64_t len_bytes))
ANSWER_0(spw_drives__safety_aliases_locked, (const char *path, const struct spw_loops *loops))
ANSWER_0(spw_drives__overlap_refuse, (const char *path, const struct spw_superblock *store))
ANSWER_0(spw_drives__safety_still, (const struct spw_device *device))
ANSWER_0(spw_drives__safety_writable, (const char *path))
ANSWER_0(spw_drives__safety_conventional, (const char *path))
ANSWER_0(spw_engine__device_lock_shared,
	 (const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes))
ANSWER_0(spw_fd_locked, (int fd, uint64_t offset_bytes, uint64_t len_bytes))

WRAP(int, spw_drives__safety_signatures, (const char *path, struct spw_signatures *signatures))
{
	signatures->count = 0;
	return 0;
}

WRAP(unsigned, spw_drives__safety_partitions, (const char *path, char *names, size_t len))
{
	if (len > 0)
		names[0] = '\0';
	return 0;
}

WRAP(int, spw_drives__loops_read, (struct spw_loops * *loops))
{
	*loops = NULL;
	return 0;
}

/* One after the other: what the drives do follows from the order in which they are asked. */
WRAP(void, spw_parallel,
     (unsigned count, const char *what, void (*work)(void *context, unsigned index), void *context,
      const struct spw_log *log))
{
	for (unsigned i = 0; i < count; i++)
		work(context, i);
}

/* ---- The claim of an open store ---- */

struct spw_share {
	unsigned count;
	struct sim_drive *drives[SIM_DRIVES_MAX];
};

WRAP(int, spw_drives__share_open,
     (struct spw_device *const devices[], unsigned count, const struct spw_share_store *store,
      const struct spw_log *log, struct spw_share **out))
{
	struct spw_share *share = calloc(1, sizeof(*share));

	SPW_ASSERT(share);
	*out = share;
	for (unsigned i = 0; i < count && sim_mutation != SIM_MUTATION_NO_CLAIM; i++) {
		struct sim_drive *drive = &sim_drives[devices[i]->fd];

		if (drive->claimed_by)
			return spw_error(-EBUSY, "%s is held", drive->path);
		drive->claimed_by = share;
		share->drives[share->count++] = drive;
	}
	return 0;
}

WRAP(void, spw_drives__share_close, (struct spw_share * share))
{
	for (unsigned i = 0; share && i < share->count; i++)
		share->drives[i]->claimed_by = NULL;
	free(share);
}

/*
 * Power fails while the event of that number is under way. Reads leave nothing half done, so they
 * count only where there is nothing else.
 */
void sim_event(enum spw_op op)
{
	if ((op == SPW_READ && !sim_cuts_reads) || ++sim_events != sim_cut_at)
		return;
	for (unsigned i = 0; i < sim_drive_count; i++)
		sim_power_off(i);
}

static int transfer(const struct spw_device *device, enum spw_op op, void *buf, size_t len,
		    uint64_t offset_bytes)
{
	struct sim_drive *drive = &sim_drives[device->fd];
	uint8_t *at = buf;

	do {
		struct sim_io io = {
			.drive = drive, .op = op, .blocking = true, .offset_bytes = offset_bytes};
		int64_t res;

		io.len_bytes = (uint32_t)len;
		io.one = (struct iovec){.iov_base = at, .iov_len = len};
		io.vector = &io.one;
		sim_io_begin(&io);
		sim_event(op);
		if (io.finish_ns > sim_now_ns)
			sim_now_ns = io.finish_ns;
		res = sim_io_end(&io);
		if (res == 0 && len > 0)
			res = spw_engine__device_no_progress_error(device);
		if (res < 0)
			return spw_error_errno((int)res, "%s: %s of %zu bytes at byte %llu failed",
					       device->path,
					       op == SPW_READ    ? "read"
					       : op == SPW_WRITE ? "write"
								 : "flush",
					       len, (unsigned long long)offset_bytes);
		/* Offsets stay multiples of the block, and memory of what it is aligned by. */
		res = (int64_t)spw_round_down((uint64_t)res, drive->geometry.logical_block_bytes);
		if (res > 4096)
			res = (int64_t)spw_round_down((uint64_t)res, 4096);
		at += res;
		offset_bytes += (uint64_t)res;
		len -= (size_t)res;
	} while (len > 0);
	return 0;
}

static int sim_device_sync(const struct spw_device *device)
{
	return transfer(device, SPW_FLUSH, NULL, 0, 0);
}

/* What was there is anything now. */
static int sim_device_discard(const struct spw_device *device, uint64_t offset_bytes,
			      uint64_t len_bytes)
{
	struct sim_drive *drive = &sim_drives[device->fd];

	sim_event(SPW_DISCARD);
	if (sim_discard(drive, offset_bytes, len_bytes))
		return spw_error(-EIO, "%s: discard failed", device->path);
	return 0;
}

static int sim_device_size(const struct spw_device *device, uint64_t *bytes)
{
	*bytes = sim_ask_size(&sim_drives[device->fd]);
	return 0;
}

/* One lock of a drive or of a partition of it; and one of superblocks, while these are locked. */
static struct sim_range *lock_of(const struct spw_device *device, uint64_t offset_bytes,
				 uint64_t len_bytes)
{
	struct sim_drive *drive = &sim_drives[device->fd];

	return offset_bytes == 0 && len_bytes == 1 ? &drive->superblocks_locked : &drive->locked;
}

static int sim_device_lock(const struct spw_device *device, uint64_t offset_bytes,
			   uint64_t len_bytes)
{
	struct sim_range *locked = lock_of(device, offset_bytes, len_bytes);

	if (locked->len_bytes)
		return spw_error(-EBUSY, "%s: is locked", device->path);
	*locked = (struct sim_range){.offset_bytes = offset_bytes, .len_bytes = len_bytes};
	return 0;
}

static int sim_device_unlock(const struct spw_device *device, uint64_t offset_bytes,
			     uint64_t len_bytes)
{
	lock_of(device, offset_bytes, len_bytes)->len_bytes = 0;
	return 0;
}

WRAP(int, spw_engine__device_translate_error, (const struct spw_device *device, int error))
{
	return sim_drives[device->fd].removed && (error == -ENOSPC || error == -EIO) ? -ENODEV
										     : error;
}

static void sim_device_close(struct spw_device *device)
{
	sim_drives[device->fd].locked.len_bytes = 0;
	sim_drives[device->fd].superblocks_locked.len_bytes = 0;
	if (sim_drives[device->fd].claimed_by == device)
		sim_drives[device->fd].claimed_by = NULL;
}

static const struct spw_device_ops ops = {
	.transfer_blocking = transfer,
	.sync = sim_device_sync,
	.discard = sim_device_discard,
	.size = sim_device_size,
	.lock = sim_device_lock,
	.unlock = sim_device_unlock,
	.close = sim_device_close,
};

WRAP(int, spw_device_open,
     (const char *path, const struct spw_device_opts *opts, struct spw_device **out))
{
	struct spw_device *device;
	unsigned index;

	*out = NULL;
	if (sscanf(path, "sim%u", &index) != 1 || index >= sim_drive_count)
		return spw_error(-ENOENT, "%s cannot be opened: there is no such drive", path);
	if (sim_drives[index].removed)
		return spw_error(-ENXIO, "%s cannot be opened: it was removed", path);
	if (opts && opts->exclusive && sim_drives[index].claimed_by)
		return spw_error(-EBUSY, "%s is held", path);
	device = calloc(1, sizeof(*device));
	if (!device)
		return spw_error(-ENOMEM, "%s: no memory for the device", path);
	device->ops = &ops;
	device->fd = (int)index;
	device->read_only = opts && opts->read_only;
	if (opts)
		device->log = opts->log;
	device->geometry = sim_drives[index].geometry;
	device->geometry.size_bytes = sim_drives[index].size_now_bytes;
	device->path = strdup(path);
	SPW_ASSERT(device->path);
	if (opts && opts->exclusive)
		sim_drives[index].claimed_by = device;
	*out = device;
	return 0;
}
