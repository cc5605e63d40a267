/* SPDX-License-Identifier: MIT */
/* engine/limits.c - spw_engine__queue_limit(): most bytes and segments of a request to a device */
#include "engine/backend.h"
#include "util/util.h"

/* BIO_MAX_VECS: io_uring hands a request of several bios to a kernel worker thread. */
#define PART_SEGMENTS_MAX 256u
#define PART_BYTES_MAX    (16u << 20)

/* Some targets that announce no limit (NVMe over TCP without MDTS) fail longer requests. */
#define FAR_PART_BYTES_MAX (1u << 20)

/* 504 KiB, which one page of PRP list allows: a polled request that is split may never complete. */
#define POLLED_SEGMENTS_ASSUMED 127u

void spw_engine__queue_limit(struct spw_queue *q, struct spw_queue_device *dev)
{
	const struct spw_geometry *g = &dev->device->geometry;
	uint32_t block_pages = (uint32_t)(g->logical_block_bytes / q->page_bytes);
	uint64_t whole;

	dev->part_bytes_max = PART_BYTES_MAX;
	dev->segments_max = PART_SEGMENTS_MAX;
	if (q->polls) {
		dev->part_bytes_max = g->transfer_bytes_max;
		dev->segments_max =
			(g->segments_max ? g->segments_max : POLLED_SEGMENTS_ASSUMED) - 1;
		dev->boundary_bytes = dev->device->boundary_bytes;
		dev->start_bytes = dev->device->start_bytes;
	}
	if (q->ops->limits)
		q->ops->limits(q, dev);
	if (dev->device->transport.far)
		dev->part_bytes_max = SPW_MIN(dev->part_bytes_max, FAR_PART_BYTES_MAX);
	/* One logical block always fits, at any address. */
	dev->segments_max = SPW_MAX(dev->segments_max, block_pages + 2);
	dev->part_bytes_max = SPW_MAX(dev->part_bytes_max, g->logical_block_bytes);
	/* a part has at least a block (QUEUE-5) */
	SPW_ASSERT(dev->part_bytes_max >= g->logical_block_bytes);
	dev->uncut_bytes = (uint32_t)((dev->segments_max - 1) * q->page_bytes);
	dev->uncut_bytes = SPW_MIN(dev->uncut_bytes, dev->part_bytes_max);
	whole = (uint64_t)(dev->segments_max - 1) * q->arena_page_bytes;
	dev->whole_mask = dev->block_mask | dev->align_mask;
	dev->whole_bytes = whole < dev->part_bytes_max ? (uint32_t)whole : dev->part_bytes_max;
	/* If there is a boundary, every transfer takes the slow path, which checks it. */
	if (dev->boundary_bytes > 0)
		dev->uncut_bytes = dev->whole_bytes = 0;
}
