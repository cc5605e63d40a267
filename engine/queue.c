/* SPDX-License-Identifier: MIT */
/* engine/queue.c - opens a queue with the first backend that works; close, stats */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/arena.h"
#include "engine/backend.h"
#include "util/util.h"

void spw_queue_opts_init(struct spw_queue_opts *opts, size_t size)
{
	struct spw_queue_opts defaults = {.size = sizeof(defaults), .depth = 32};

	spw_opts_merge(opts, size, &defaults, sizeof(defaults));
}

void spw_engine__queue_describe(struct spw_queue *q, const char *format, ...)
{
	size_t used = strlen(q->description);
	va_list args;

	va_start(args, format);
	(void)vsnprintf(q->description + used, sizeof(q->description) - used, format, args);
	va_end(args);
}

int spw_engine__queue_sleep(struct spw_queue *q, int64_t timeout_ns)
{
	struct pollfd event = {.fd = q->wake.watched, .events = POLLIN};
	struct timespec limit = {.tv_sec = timeout_ns / 1000000000,
				 .tv_nsec = timeout_ns % 1000000000};
	int ret;

	q->stats.system_calls++;
	q->stats.sleeps++;
	ret = ppoll(&event, 1, timeout_ns < 0 ? NULL : &limit, NULL);
	if (ret > 0)
		spw_engine__wake_drain(&q->wake);
	return ret < 0 ? -errno : ret == 0 ? -ETIME : 0;
}

static void set_up_device(struct spw_queue *q, unsigned index, const struct spw_device *device)
{
	struct spw_queue_device *dev = &q->devices[index];

	dev->device = device;
	dev->fd = device->fd;
	dev->block_mask = device->geometry.logical_block_bytes - 1;
	dev->align_mask = device->geometry.memory_align_bytes - 1;
	dev->size_bytes = device->geometry.size_bytes;
	dev->parts = q->parts + (size_t)index * q->depth;
	for (uint32_t i = q->depth; i-- > 0;) {
		dev->parts[i].device = (uint8_t)index;
		dev->parts[i].next = dev->free;
		dev->free = &dev->parts[i];
	}
}

static int check_opts(const struct spw_queue_opts *opts, unsigned count)
{
	if (count == 0 || count > SPW_QUEUE_DEVICES_MAX)
		return spw_error(-EINVAL, "a queue over %u devices; 1 to %u are possible", count,
				 SPW_QUEUE_DEVICES_MAX);
	if (opts->depth == 0 || opts->depth > SPW_QUEUE_DEPTH_MAX)
		return spw_error(-EINVAL, "a queue depth of %u; 1 to %u are possible", opts->depth,
				 SPW_QUEUE_DEPTH_MAX);
	if ((unsigned)opts->backend > SPW_BACKEND_NULL || (unsigned)opts->wait > SPW_WAIT_SQPOLL)
		return spw_error(-EINVAL, "no such backend as %d or no such way to wait as %d",
				 (int)opts->backend, (int)opts->wait);
	return 0;
}

static int make_queue(struct spw_device *const devices[], unsigned count,
		      const struct spw_queue_opts *opts, struct spw_queue *q)
{
	int ret;

	SPW_ASSERT(count <= SPW_QUEUE_DEVICES_MAX && opts->depth <= SPW_QUEUE_DEPTH_MAX);
	q->depth = opts->depth;
	q->device_count = count;
	q->wait_mode = opts->wait;
	q->log = opts->log;
	q->placement = opts->placement;
	q->timeout_ms = opts->timeout_ms;
	q->null_bytes_per_second = opts->null_bytes_per_second;
	q->page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
	q->arena = opts->arena;
	if (opts->arena) {
		q->arena_base = (uintptr_t)opts->arena->base;
		q->arena_len_bytes = opts->arena->len_bytes;
	}
	q->devices = aligned_alloc(_Alignof(struct spw_queue_device), count * sizeof(*q->devices));
	q->parts = aligned_alloc(sizeof(*q->parts), (size_t)count * q->depth * sizeof(*q->parts));
	if (!q->devices || !q->parts)
		return spw_error(-ENOMEM, "no memory for a queue of %u slots", count * q->depth);
	memset(q->devices, 0, count * sizeof(*q->devices));
	memset(q->parts, 0, (size_t)count * q->depth * sizeof(*q->parts));
	for (unsigned i = 0; i < count; i++)
		set_up_device(q, i, devices[i]);
	ret = spw_engine__wake_open(&q->wake);
	return ret ? spw_error_errno(ret, "no event descriptor for a queue") : 0;
}

static void free_queue(struct spw_queue *q)
{
	spw_engine__wake_close(&q->wake);
	free(q->devices);
	free(q->parts);
	free(q);
}

/* Polling needs all devices to support it; else fall back to interrupts, which always work. */
static void settle_wait_mode(struct spw_queue *q)
{
	for (unsigned i = 0; q->wait_mode == SPW_WAIT_POLL && i < q->device_count; i++) {
		const struct spw_device *device = q->devices[i].device;

		if (device->geometry.polls)
			continue;
		q->wait_mode = SPW_WAIT_INTERRUPT;
		spw_log(&q->log, SPW_LOG_WARNING,
			"%s cannot be polled (see queue/io_poll, nvme.poll_queues); using "
			"interrupts",
			device->path);
	}
}

static int open_backend(struct spw_queue *q, const struct spw_backend_ops *const candidates[],
			unsigned count)
{
	enum spw_wait wait_mode = q->wait_mode;
	char refusals[256] = "";
	int ret = -EINVAL;

	for (unsigned i = 0; i < count; i++) {
		size_t used = strlen(refusals);

		(void)snprintf(q->description, sizeof(q->description), "%s:", candidates[i]->name);
		q->ops = candidates[i];
		q->pieces = q->pieces_room = 0;
		q->piece_shift = SPW_PIECE_SHIFT;
		q->registered_bytes = 0;
		q->prepare = spw_engine__queue_prepare_any;
		q->polls = false;
		spw_engine__queue_unplace(q);
		/* The backend tried before may have changed it. */
		q->wait_mode = wait_mode;
		ret = q->ops->open(q);
		if (ret == 0) {
			if (q->stats.drives_placing > 0)
				spw_engine__queue_describe(q, "; %u of %u drives place data",
							   q->stats.drives_placing,
							   q->device_count);
			spw_engine__queue_describe(q, "%s", refusals);
			spw_log(&q->log, SPW_LOG_INFO, "%s", q->description);
			return 0;
		}
		(void)snprintf(refusals + used, sizeof(refusals) - used, "; %s", spw_last_error());
		if (i + 1 < count)
			spw_log(&q->log, SPW_LOG_WARNING, "%s; using %s", spw_last_error(),
				candidates[i + 1]->name);
	}
	return ret;
}

int spw_engine__queue_open_with(struct spw_device *const devices[], unsigned count,
				const struct spw_queue_opts *opts,
				const struct spw_backend_ops *const candidates[],
				unsigned candidate_count, struct spw_queue **out)
{
	struct spw_queue *q;
	int ret;

	*out = NULL;
	ret = check_opts(opts, count);
	if (ret)
		return ret;
	q = calloc(1, sizeof(*q));
	if (!q)
		return spw_error(-ENOMEM, "no memory for a queue");
	q->wake.eventfd = -1;
	ret = make_queue(devices, count, opts, q);
	if (ret)
		goto fail;
	settle_wait_mode(q);
	ret = open_backend(q, candidates, candidate_count);
	if (ret)
		goto fail;
	q->arena_page_bytes = q->page_bytes;
	if (q->arena && q->arena->pages != SPW_PAGES_PLAIN && !q->polls)
		q->arena_page_bytes = SPW_HUGE_PAGE_BYTES;
	for (unsigned i = 0; i < count; i++)
		spw_engine__queue_limit(q, &q->devices[i]);
	*out = q;
	return 0;
fail:
	free_queue(q);
	return ret;
}

void spw_queue_close(struct spw_queue *q)
{
	if (!q)
		return;
	q->closing = true;
	q->prepare = spw_engine__queue_prepare_any;
	for (unsigned i = 0; i < q->device_count; i++) {
		struct spw_queue_device *dev = &q->devices[i];

		while (dev->head)
			(void)spw_queue_cancel(q, dev->head);
		for (struct spw_part *part = dev->parts; part < dev->parts + q->depth; part++)
			if (part->io)
				(void)spw_queue_cancel(q, part->io);
	}
	while (spw_engine__queue_ios(q) > 0) {
		int ret = spw_queue_reap(q, spw_engine__queue_ios(q), -1);

		/* Abort instead of returning: a drive may still write to freed buffers. */
		if (ret < 0)
			spw_log(&q->log, SPW_LOG_ERROR,
				"closing a queue with %u requests in flight: %s",
				spw_engine__queue_in_flight(q), spw_strerror(ret));
		SPW_ASSERT(ret >= 0 || spw_engine__queue_in_flight(q) == 0);
	}
	for (unsigned i = 0; i < q->device_count; i++)
		SPW_ASSERT(q->devices[i].in_flight == 0 &&
			   !q->devices[i].head); /* empty (QUEUE-4) */
	q->ops->close(q);
	free_queue(q);
}

enum spw_backend spw_queue_backend(const struct spw_queue *q)
{
	return q->ops->backend;
}

const char *spw_queue_description(const struct spw_queue *q)
{
	return q->description;
}

/* Count this process's io_uring worker threads, which issue requests that would block. */
static int count_kernel_worker(void *context, const char *folder, const char *task)
{
	const char *path = SPW_PATH("%s/%s/comm", folder, task);
	char name[32];

	*(uint32_t *)context +=
		spw_read_line(path, name, sizeof(name)) && strncmp(name, "iou-wrk", 7) == 0;
	return 0;
}

void spw_queue_stats(struct spw_queue *q, struct spw_queue_stats *stats, size_t size)
{
	struct spw_queue_stats now = q->stats;

	now.ios = q->slots_given + q->ios_ended_besides;
	now.parts = q->slots_taken + q->parts_besides;
	now.parts_fixed = now.parts - q->parts_unregistered;
	now.bytes_read = q->bytes[SPW_READ];
	now.bytes_written = q->bytes[SPW_WRITE];
	(void)spw_each_name("/proc/self/task", count_kernel_worker, &now.kernel_workers);
	spw_opts_merge(stats, size, &now, sizeof(now));
}
