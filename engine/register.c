/* SPDX-License-Identifier: MIT */
/*
 * engine/register.c - registers the caller's memory, in addition to the arena; gives back pages of
 * the arena
 *
 * Invariants, cited by asserts and tests
 *   RANGE-1  Ranges overlap neither each other nor the arena; neither do their pieces.
 *   RANGE-2  A range is not changed or removed while a request in flight uses its memory.
 */
#include "engine/register.h"

#include <errno.h>

#include "engine/arena.h"
#include "engine/backend.h"
#include "util/util.h"

bool spw_engine__queue_knows(const struct spw_queue *q, const void *memory, size_t len)
{
	const struct spw_range *range = spw_engine__range_of(&q->ranges, memory, len);

	return range && range->first_piece >= 0;
}

uint64_t spw_engine__queue_ranges_bytes(const struct spw_queue *q)
{
	return spw_engine__range_bytes(&q->ranges);
}

static int check(const struct spw_queue *q, const void *memory, size_t len)
{
	uintptr_t base = (uintptr_t)memory, end;
	const struct spw_range *other;

	if (!memory || len == 0 || __builtin_add_overflow(base, len, &end))
		return spw_error(-EINVAL, "%zu bytes at %p are not memory that can be registered",
				 len, memory);
	if (spw_engine__memory_overlaps(base, len, q->arena_base, q->arena_len_bytes))
		return spw_error(-EEXIST,
				 "the memory at %p is the store's own, which is registered anyway",
				 memory);
	other = spw_engine__range_overlapping(&q->ranges, base, len);
	if (other)
		return spw_error(-EEXIST,
				 "%zu bytes at %p overlap %llu at %p, which are registered", len,
				 memory, (unsigned long long)other->len_bytes, (void *)other->base);
	return 0;
}

int spw_engine__queue_register(struct spw_queue *q, void *memory, size_t len)
{
	struct spw_range *range;
	char size[32];
	int ret = check(q, memory, len);

	if (ret)
		return ret;
	range = spw_engine__range_take(&q->ranges);
	if (!range)
		return spw_error(-ENOBUFS,
				 "%u ranges of memory are registered, the most there can be: "
				 "register fewer and larger ones",
				 SPW_RANGES_MAX);
	*range = (struct spw_range){/* check() found no overlap (RANGE-1) */
				    .base = (uintptr_t)memory,
				    .len_bytes = len,
				    .first_piece = -1};
	ret = q->ops->add_range ? q->ops->add_range(q, range)
				: spw_error(-EOPNOTSUPP, "%s registers no memory", q->ops->name);
	if (ret == 0)
		return 1;
	SPW_ASSERT(range->first_piece < 0);
	(void)spw_size_format(len, size, sizeof(size));
	spw_log(&q->log, SPW_LOG_WARNING,
		"%s of a caller's memory are not registered: %s; transfers treat them as any other",
		size, spw_last_error());
	return 0;
}

static bool part_uses(const struct spw_part *part, const struct spw_range *range)
{
	if (!part->io)
		return false;
	if (spw_engine__io_is_whole(part->io))
		return spw_engine__memory_overlaps((uintptr_t)part->io->buf, part->io->len_bytes,
						   range->base, range->len_bytes);
	for (uint32_t i = 0; i < part->iov_count; i++)
		if (spw_engine__memory_overlaps((uintptr_t)part->iov[i].iov_base,
						part->iov[i].iov_len, range->base,
						range->len_bytes))
			return true;
	return part->iov_count == 0 &&
	       spw_engine__memory_overlaps((uintptr_t)part->buf, part->len_bytes, range->base,
					   range->len_bytes);
}

int spw_engine__queue_unregister(struct spw_queue *q, const void *memory)
{
	struct spw_range *range = spw_engine__range_at(&q->ranges, memory);

	if (!range)
		return spw_error(-ENOENT, "no memory that begins at %p is registered", memory);
	for (uint32_t i = 0; i < q->depth * q->device_count; i++)
		if (part_uses(&q->parts[i], range)) /* in use by a request in flight (RANGE-2) */
			return spw_error(-EBUSY,
					 "%s: a transfer with the memory at %p has not ended: wait "
					 "for its request, then unregister",
					 q->devices[q->parts[i].device].device->path, memory);
	if (range->first_piece >= 0)
		q->ops->remove_range(q, range);
	spw_engine__range_give(&q->ranges, range);
	return 0;
}

/*
 * A registered page that is returned to the system would still be read and written by the drives,
 * but no longer by us: so what stays registered stays. What is allocated meanwhile lies beyond what
 * is registered, and is registered, with its new pages, by its first transfer: in this thread, thus
 * afterwards.
 */
uint64_t spw_engine__queue_give_back(struct spw_queue *q)
{
	if (!q->arena || !q->ops->shrink)
		return 0;
	q->ops->shrink(q, spw_engine__arena_end(q->arena));
	return spw_engine__arena_give_back(q->arena, q->registered_bytes);
}
