/* SPDX-License-Identifier: MIT */
/*
 * tools/fio_engine/volume.c - the level of devices: one or several address spaces over one spillway
 * queue
 *
 * If striped, the devices are one address space: chunk number n lies on device n modulo their
 * count. A request that crosses chunks becomes several ios that join; their slots are allocated
 * with the request.
 *
 * A device that jobs write is claimed once, by fio's main process, which asks for its size before
 * any job runs, and held until fio ends: jobs are its threads or forked children, and use the
 * device that it has open. So the claim covers all jobs, without a gap in which another process
 * could claim the device.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "level.h"
#include "util/util.h"

struct volume {
	struct spw_fio_level level;
	struct spw_fio_config config;
	struct spw_device *devices[SPW_QUEUE_DEVICES_MAX];
	unsigned device_count;
	struct spw_arena *arena;
	struct spw_queue *queue;
};

static struct volume *to_volume(struct spw_fio_level *level)
{
	return (struct volume *)level;
}

static int check_chunk(const struct spw_fio_config *config, const struct spw_device *device)
{
	uint32_t block = spw_device_geometry(device)->logical_block_bytes;

	if (!config->striped || (config->chunk_bytes <= SPW_IO_BYTES_MAX &&
				 config->chunk_bytes >= block && config->chunk_bytes % block == 0))
		return 0;
	return spw_error(-EINVAL,
			 "spillway_chunk=%llu must be a multiple of the %u-byte blocks of %s and "
			 "at most 1 GiB",
			 (unsigned long long)config->chunk_bytes, block, spw_device_path(device));
}

/* ---- Devices ---- */

/*
 * Devices claimed by this process for itself and its children. Never freed, as fio ends engines
 * only with jobs.
 */
struct claimed {
	char *path;
	struct spw_device *device;
	struct claimed *next;
};

static pthread_mutex_t claims_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct claimed *claims;

/* Find or claim a device that jobs write, by any name. It stays open: its lock covers all jobs. */
static int claim_device(const char *path, const struct spw_log *log, struct spw_device **device)
{
	char *real = realpath(path, NULL);
	struct claimed *claimed;
	int err = 0;

	if (!real)
		return spw_error_errno(-errno, "%s cannot be opened", path);
	(void)pthread_mutex_lock(&claims_mutex);
	claimed = claims;
	while (claimed && strcmp(claimed->path, real) != 0)
		claimed = claimed->next;
	if (!claimed) {
		claimed = calloc(1, sizeof(*claimed));
		err = claimed ? spw_claim(real, log, &claimed->device)
			      : spw_error(-ENOMEM, "%s: no memory to claim it", path);
		if (err) {
			free(claimed);
			goto out;
		}
		claimed->path = real;
		claimed->next = claims;
		claims = claimed;
		real = NULL;
	}
	*device = claimed->device;
out:
	(void)pthread_mutex_unlock(&claims_mutex);
	free(real);
	return err;
}

/*
 * Close a device that is not claimed. Only one process can have a vfio drive open, so that is
 * closed for the next job.
 */
static void close_device(const struct spw_fio_config *config, struct spw_device *device)
{
	if (config->read_only || spw_device_geometry(device)->kind == SPW_DEVICE_VFIO)
		spw_device_close(device);
}

static int open_device(const struct spw_fio_config *config, unsigned index,
		       struct spw_device **device)
{
	const char *path = config->paths[index];
	struct spw_device_opts opts;
	int err;

	*device = NULL;
	spw_device_opts_init(&opts, sizeof(opts));
	opts.read_only = true;
	opts.log = config->log;
	if (config->read_only)
		err = spw_device_open(path, &opts, device);
	else if (strncmp(path, "pci:", 4) == 0)
		err = spw_claim(path, &config->log, device);
	else
		err = claim_device(path, &config->log, device);
	if (err)
		return err;
	err = check_chunk(config, *device);
	if (err) {
		close_device(config, *device);
		*device = NULL;
	}
	return err;
}

/*
 * Get the size of an address space. For a stripe: that of its smallest device, in whole chunks,
 * times their count.
 */
static int volume_size(const struct spw_fio_config *config, unsigned file, uint64_t *bytes)
{
	unsigned first = config->striped ? 0 : file;
	unsigned last = config->striped ? config->path_count - 1 : file;
	uint64_t smallest = UINT64_MAX;

	for (unsigned i = first; i <= last; i++) {
		struct spw_device *device;
		int err = open_device(config, i, &device);

		if (err)
			return err;
		if (spw_device_geometry(device)->size_bytes < smallest)
			smallest = spw_device_geometry(device)->size_bytes;
		close_device(config, device);
	}
	*bytes = config->striped
			 ? spw_round_down(smallest, config->chunk_bytes) * config->path_count
			 : smallest;
	if (*bytes == 0)
		return spw_error(-EINVAL, "%s is smaller than one chunk of %llu bytes",
				 config->paths[0], (unsigned long long)config->chunk_bytes);
	return 0;
}

static void volume_close(struct spw_fio_level *level)
{
	struct volume *volume = to_volume(level);

	if (volume->queue)
		spw_queue_close(volume->queue);
	if (volume->arena)
		spw_arena_close(volume->arena);
	for (unsigned i = 0; i < volume->device_count; i++)
		close_device(&volume->config, volume->devices[i]);
	free(volume);
}

static int volume_open(const struct spw_fio_config *config, struct spw_fio_level **level)
{
	struct volume *volume;
	int err;

	*level = NULL;
	if (config->path_count == 0 || config->path_count > SPW_QUEUE_DEVICES_MAX)
		return spw_error(-EINVAL, "%u devices: a queue takes 1 to %u", config->path_count,
				 SPW_QUEUE_DEVICES_MAX);
	if (!config->striped && config->block_bytes_max > SPW_IO_BYTES_MAX)
		return spw_error(-EINVAL, "bs=%llu: at most 1 GiB",
				 (unsigned long long)config->block_bytes_max);
	volume = calloc(1, sizeof(*volume));
	if (!volume)
		return spw_error(-ENOMEM, "no memory for a volume");
	volume->level.ops = &spw_fio_volume;
	volume->config = *config;
	volume->level.pieces_max =
		config->striped ? (unsigned)(config->block_bytes_max / config->chunk_bytes) + 2 : 1;
	if (volume->level.pieces_max < config->path_count)
		volume->level.pieces_max = config->path_count; /* a flush goes to every device */
	while (volume->device_count < config->path_count) {
		err = open_device(config, volume->device_count,
				  &volume->devices[volume->device_count]);
		if (err) {
			volume_close(&volume->level);
			return err;
		}
		volume->device_count++;
	}
	volume->config.paths = NULL; /* it belongs to the caller */
	*level = &volume->level;
	return 0;
}

static int volume_memory_alloc(struct spw_fio_level *level, size_t len, void **memory)
{
	struct volume *volume = to_volume(level);
	struct spw_arena_opts opts;
	int err;

	if (!volume->arena) {
		spw_arena_opts_init(&opts, sizeof(opts));
		opts.bytes = spw_round_up(len, SPW_ARENA_GRANULE_BYTES);
		opts.numa_node = spw_device_geometry(volume->devices[0])->numa_node;
		opts.log = volume->config.log;
		err = spw_arena_open(&opts, &volume->arena);
		if (err)
			return err;
	}
	return spw_arena_alloc(volume->arena, len, memory);
}

static void volume_memory_free(struct spw_fio_level *level, void *memory)
{
	spw_arena_free(to_volume(level)->arena, memory);
}

/*
 * The queue's depth. fio limits the requests, the depth limits their parts in the kernel. There is
 * room for all parts of all requests, at drives' usual limits, so that the parts of a request run
 * at the same time.
 */
static uint32_t kernel_depth(const struct volume *volume)
{
	const struct spw_fio_config *config = &volume->config;
	uint64_t part_bytes = 1u << 20, per_device, parts, depth;

	SPW_ASSERT(volume->device_count > 0);
	for (unsigned i = 0; i < volume->device_count; i++) {
		uint32_t transfer = spw_device_geometry(volume->devices[i])->transfer_bytes_max;

		if (transfer && transfer < part_bytes)
			part_bytes = transfer;
	}
	per_device = config->block_bytes_max;
	if (config->striped)
		per_device =
			spw_round_up(per_device / volume->device_count + 1, config->chunk_bytes);
	parts = (per_device + part_bytes - 1) / part_bytes;
	depth = config->depth * (parts ? parts : 1);
	return depth < SPW_QUEUE_DEPTH_MAX ? (uint32_t)depth : SPW_QUEUE_DEPTH_MAX;
}

static int volume_start(struct spw_fio_level *level)
{
	struct volume *volume = to_volume(level);
	struct spw_queue_opts opts;
	int err;

	spw_queue_opts_init(&opts, sizeof(opts));
	opts.backend = volume->config.backend;
	opts.wait = volume->config.wait;
	opts.depth = kernel_depth(volume);
	opts.arena = volume->arena;
	opts.log = volume->config.log;
	err = spw_queue_open(volume->devices, volume->device_count, &opts, &volume->queue);
	if (err == 0)
		level->description = spw_queue_description(volume->queue);
	return err;
}

static void piece_done(struct spw_io *io)
{
	struct spw_fio_request *request = io->context;
	struct volume *volume = to_volume(request->level);
	static const char *const names[] = {
		[SPW_READ] = "read",
		[SPW_WRITE] = "write",
		[SPW_FLUSH] = "flush",
		[SPW_DISCARD] = "discard",
	};

	if (io->res < 0 && !request->res) {
		int err =
			spw_error_errno(io->res, "%s: %s of %u bytes at %llu",
					spw_device_path(volume->devices[io->device]), names[io->op],
					io->len_bytes, (unsigned long long)io->offset_bytes);

		(void)spw_fio_failed(request, err);
	}
	if (--request->pieces_pending == 0)
		request->done(request);
}

static bool prepare_piece(struct volume *volume, struct spw_fio_request *request, struct spw_io *io)
{
	int err;

	io->context = request;
	io->done = piece_done;
	err = spw_queue_prepare(volume->queue, io);
	if (err) {
		(void)spw_fio_failed(request, err);
		return false;
	}
	request->pieces_pending++;
	return true;
}

static void queue_flushes(struct volume *volume, struct spw_fio_request *request)
{
	for (unsigned i = 0; i < volume->device_count; i++) {
		request->pieces[i] = (struct spw_io){.op = SPW_FLUSH, .device = i};
		if (!prepare_piece(volume, request, &request->pieces[i]))
			return;
	}
}

static void queue_range(struct volume *volume, struct spw_fio_request *request)
{
	uint64_t chunk = volume->config.chunk_bytes, offset = request->offset_bytes,
		 left = request->len_bytes;
	char *buf = request->buf;

	for (unsigned i = 0; left; i++) {
		struct spw_io *io = &request->pieces[i];
		uint64_t len = left;

		*io = (struct spw_io){.op = request->op, .buf = buf};
		if (volume->config.striped) {
			uint64_t number = offset / chunk, within = offset % chunk;

			io->device = (uint32_t)(number % volume->device_count);
			io->offset_bytes = number / volume->device_count * chunk + within;
			if (len > chunk - within)
				len = chunk - within;
		} else {
			io->device = request->file;
			io->offset_bytes = offset;
		}
		io->len_bytes = (uint32_t)len;
		if (!prepare_piece(volume, request, io))
			return;
		offset += len;
		buf += len;
		left -= len;
	}
}

/* Queue a request. If a piece is refused, earlier ones still run; the request ends after them. */
static enum spw_fio_queued volume_queue(struct spw_fio_level *level,
					struct spw_fio_request *request)
{
	struct volume *volume = to_volume(level);

	request->res = 0;
	request->pieces_pending = 0;
	if (request->op == SPW_FLUSH)
		queue_flushes(volume, request);
	else
		queue_range(volume, request);
	return request->pieces_pending ? SPW_FIO_QUEUED : SPW_FIO_DONE;
}

static int volume_submit(struct spw_fio_level *level)
{
	return spw_queue_submit(to_volume(level)->queue);
}

static int volume_reap(struct spw_fio_level *level, unsigned wait_for)
{
	return spw_queue_reap(to_volume(level)->queue, wait_for, -1);
}

const struct spw_fio_level_ops spw_fio_volume = {
	.size = volume_size,
	.open = volume_open,
	.memory_alloc = volume_memory_alloc,
	.memory_free = volume_memory_free,
	.start = volume_start,
	.queue = volume_queue,
	.submit = volume_submit,
	.reap = volume_reap,
	.close = volume_close,
};
