/* SPDX-License-Identifier: MIT */
/*
 * tools/fio_engine/objects.c - the level of a spillway store: each block of a fixed size is an
 * object
 *
 * A write puts a new object which, once the put has ended, replaces the block's old object; that is
 * freed. A read gets the block's object. A trim frees it. Each job opens a partition of its own, so
 * jobs share drives but no objects and no lock; objects end with the job. A flush does nothing:
 * objects of a store need not outlive its closing.
 */
#include <errno.h>
#include <stdlib.h>

#include "level.h"
#include "util/util.h"

/* Arena bytes in addition to the job's buffers: for bounce buffers, and the store's own needs. */
#define COPY_BYTES (32u << 20)

struct objects {
	struct spw_fio_level level;
	struct spw_fio_config config;
	struct spw_store *store;
	uint64_t block_bytes;
	uint64_t first; /* block number of table[0] */
	uint64_t count;
	spw_object *table; /* 0: no object */
	/* for the layout: puts in flight, perhaps until the store closes, and the first error */
	unsigned puts_pending;
	int put_error;
};

static struct objects *to_objects(struct spw_fio_level *level)
{
	return (struct objects *)level;
}

/*
 * Get the size: the blocks of a partition, less room to replace all objects in flight. Claims
 * nothing: opening the partition does that.
 */
static int objects_size(const struct spw_fio_config *config, unsigned file, uint64_t *bytes)
{
	struct spw_store_info info = {.size = sizeof(info)};
	uint64_t block, blocks;
	int err;

	(void)file;
	err = spw_check((const char *const *)config->paths, config->path_count, &info, NULL);
	if (err)
		return err;
	block = spw_round_up(config->block_bytes_max, info.block_bytes);
	blocks = info.partition_capacity_bytes / block;
	if (blocks <= config->depth)
		return spw_error(-ENOSPC,
				 "a partition of %llu bytes does not hold iodepth=%u blocks of "
				 "%llu bytes and one more",
				 (unsigned long long)info.partition_capacity_bytes, config->depth,
				 (unsigned long long)block);
	*bytes = (blocks - config->depth) * config->block_bytes_max;
	return 0;
}

static void objects_close(struct spw_fio_level *level)
{
	struct objects *objects = to_objects(level);

	if (objects->store)
		spw_store_close(objects->store);
	free(objects->table);
	free(objects);
}

static int open_store(struct objects *objects)
{
	const struct spw_fio_config *config = &objects->config;
	struct spw_store_opts opts;
	struct spw_tune tune;
	int err;

	spw_store_opts_init(&opts, sizeof(opts));
	opts.partition = SPW_PARTITION_ANY;
	opts.arena_bytes = spw_round_up((config->depth + 1) * config->block_bytes_max,
					SPW_ARENA_GRANULE_BYTES) +
			   COPY_BYTES;
	opts.requests_max = config->depth;
	opts.objects_max = (uint32_t)(objects->count + config->depth);
	opts.backend = config->backend;
	opts.inline_mode = true;
	opts.log = config->log;
	opts.tune = &tune;
	err = spw_tune_read(getenv("SPILLWAY_TUNE"), (const char *const *)config->paths,
			    config->path_count, &opts.log, &tune, sizeof(tune));
	if (err)
		return err;
	return spw_store_open((const char *const *)config->paths, config->path_count, &opts,
			      &objects->store);
}

static int objects_open(const struct spw_fio_config *config, struct spw_fio_level **level)
{
	struct objects *objects;
	int err;

	*level = NULL;
	objects = calloc(1, sizeof(*objects));
	if (!objects)
		return spw_error(-ENOMEM, "no memory for a table of objects");
	objects->level.ops = &spw_fio_objects;
	objects->config = *config;
	objects->block_bytes = config->block_bytes_max;
	objects->first = config->range_start_bytes / objects->block_bytes;
	objects->count = config->range_len_bytes / objects->block_bytes;
	if (objects->count == 0 || objects->count > UINT32_MAX - config->depth) {
		err = spw_error(-EINVAL, "a range of %llu blocks: 1 to 2^32 objects",
				(unsigned long long)objects->count);
		goto fail;
	}
	objects->table = calloc(objects->count, sizeof(*objects->table));
	if (!objects->table) {
		err = spw_error(-ENOMEM, "no memory for a table of %llu objects",
				(unsigned long long)objects->count);
		goto fail;
	}
	err = open_store(objects);
	if (err)
		goto fail;
	objects->config.paths = NULL; /* it belongs to the caller */
	*level = &objects->level;
	return 0;
fail:
	objects_close(&objects->level);
	return err;
}

static int objects_memory_alloc(struct spw_fio_level *level, size_t len, void **memory)
{
	return spw_store_alloc(to_objects(level)->store, len, memory);
}

static void objects_memory_free(struct spw_fio_level *level, void *memory)
{
	spw_store_release(to_objects(level)->store, memory);
}

static int objects_start(struct spw_fio_level *level)
{
	level->description = spw_store_description(to_objects(level)->store);
	return 0; /* opening the store has opened its queues */
}

static spw_object *slot_of(struct objects *objects, const struct spw_fio_request *request)
{
	return &objects->table[request->offset_bytes / objects->block_bytes - objects->first];
}

static void request_done(void *context, int res)
{
	struct spw_fio_request *request = context;
	struct objects *objects = to_objects(request->level);

	request->res = 0;
	if (res)
		(void)spw_fio_failed(request, res);
	if (request->op == SPW_WRITE) {
		spw_object *slot = slot_of(objects, request), old = request->object;

		if (!res) {
			old = *slot;
			*slot = request->object;
		}
		if (old.value)
			spw_store_free(objects->store, old);
	}
	request->done(request);
}

static enum spw_fio_queued queued(struct spw_fio_request *request, int err)
{
	if (!err)
		return SPW_FIO_QUEUED;
	if (err == -ENOBUFS)
		return SPW_FIO_BUSY;
	return spw_fio_failed(request, err);
}

static enum spw_fio_queued fail(struct spw_fio_request *request, int err, const char *why)
{
	return spw_fio_failed(request, spw_error(err, "block at %llu: %s",
						 (unsigned long long)request->offset_bytes, why));
}

static enum spw_fio_queued trim(struct objects *objects, struct spw_fio_request *request)
{
	spw_object *slot = slot_of(objects, request);

	int err = slot->value ? spw_store_free(objects->store, *slot) : 0;

	slot->value = 0;
	return err ? spw_fio_failed(request, err) : SPW_FIO_DONE;
}

static enum spw_fio_queued objects_queue(struct spw_fio_level *level,
					 struct spw_fio_request *request)
{
	struct objects *objects = to_objects(level);
	struct spw_notify notify = {.done = request_done, .context = request};
	uint64_t number = request->offset_bytes / objects->block_bytes;

	request->res = 0;
	if (request->op == SPW_FLUSH)
		return SPW_FIO_DONE;
	if (request->offset_bytes % objects->block_bytes ||
	    request->len_bytes != objects->block_bytes)
		return fail(request, -EINVAL,
			    "not one whole block: the store level needs one fixed bs and aligned "
			    "offsets");
	if (number < objects->first || number - objects->first >= objects->count)
		return fail(request, -EINVAL, "outside the job's range of offset= and size=");
	if (request->op == SPW_DISCARD)
		return trim(objects, request);
	if (request->op == SPW_WRITE)
		return queued(request,
			      spw_store_put(objects->store, request->buf, request->len_bytes,
					    &notify, &request->object, NULL));
	if (!slot_of(objects, request)->value)
		return fail(request, -EIO,
			    "holds no object: it was never written by this job, or trimmed");
	return queued(request,
		      spw_store_get(objects->store, *slot_of(objects, request), 0, request->buf,
				    request->len_bytes, SPW_URGENT_READ, &notify, NULL));
}

static int objects_reap(struct spw_fio_level *level, unsigned wait_for)
{
	int ended = spw_store_poll(to_objects(level)->store, wait_for > 0);

	return ended < 0 ? ended : 0;
}

static int objects_submit(struct spw_fio_level *level)
{
	return objects_reap(level, 0);
}

static void layout_put_done(void *context, int res)
{
	struct objects *objects = context;

	objects->puts_pending--;
	if (res && !objects->put_error)
		objects->put_error = res;
}

int spw_fio_objects_lay_out(struct spw_fio_level *level, void *block)
{
	struct objects *objects = to_objects(level);
	struct spw_notify notify = {.done = layout_put_done, .context = objects};
	uint64_t i = 0;
	int err = 0, poll_err = 0;

	while (!err && !objects->put_error && i < objects->count) {
		err = spw_store_put(objects->store, block, objects->block_bytes, &notify,
				    &objects->table[i], NULL);
		if (!err) {
			objects->puts_pending++;
			i++;
		} else if (err == -ENOBUFS && objects->puts_pending) {
			err = objects_reap(level, 1);
		}
	}
	while (objects->puts_pending && !poll_err)
		poll_err = objects_reap(level, 1);
	if (!err)
		err = poll_err;
	return err ? err : objects->put_error;
}

const struct spw_fio_level_ops spw_fio_objects = {
	.size = objects_size,
	.open = objects_open,
	.memory_alloc = objects_memory_alloc,
	.memory_free = objects_memory_free,
	.start = objects_start,
	.queue = objects_queue,
	.submit = objects_submit,
	.reap = objects_reap,
	.close = objects_close,
};
