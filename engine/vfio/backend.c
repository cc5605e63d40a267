/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/backend.c - parts as NVMe commands in rings of this process: no system call on the
 * way
 *
 * Each device behind vfio has a pair of rings of its own, polled by the queue's thread. A part's
 * slot is its command's. Memory of the arena is mapped for the controller once and named by its
 * pages, or, where that takes less, by a scatter gather list; other memory, and a vector with gaps
 * between its pages for a controller that takes no such list, is copied through memory that is
 * mapped, and counted.
 *
 * There is no kernel below that would end what a drive does not: now and then the clock and the
 * controllers' registers are looked at, once a second where a queue sleeps for want of commands.
 * When a command is past its deadline, or a controller does not work any more, the controller is
 * stopped, and only then do its parts end: until that moment it may write to their memory.
 *
 * Devices that are not behind vfio are left to another backend, which shares the queue with this
 * one: its state is q->state, this one's q->front_state.
 *
 * Invariants, cited by asserts and tests
 *   VFIO-1  Each copy is free, or that of one command in flight.
 *   VFIO-2  A part whose command has not ended ends only when the controller is STOPPED.
 *   VFIO-3  A command carries no more than its controller takes at a time.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "engine/arena.h"
#include "engine/backend.h"
#include "engine/vfio/namespace.h"
#include "engine/vfio/prp.h"
#include "engine/vfio/sgl.h"
#include "util/util.h"

#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* As often as the kernel repeats what has not failed for good. */
#define RETRIES_MAX 5

/* One copy, and how many at a time: further parts that need one wait. */
#define COPY_BYTES (128u << 10)
#define COPIES_MAX 32u

/* No piece of registered memory is ever too long. */
#define WHOLE_SHIFT 62u

/* Vain looks at the rings, or waits, per look at the clock; and time between health checks. */
#define LOOKS_PER_CLOCK 64u

#define CHECK_MS 100u

/* Of a slot that is free, or whose part was issued by vfio_prepare(): bytes 0 and copy -1. */
struct command {
	uint32_t bytes;     /* that it carries: may be less than its part; 0: all of it */
	int16_t copy;       /* index of its copy; -1: none */
	bool gathered;      /* of a vector: copied to and from its elements */
	uint32_t seen_uses; /* of the slot, when the deadlines were last looked at, */
	uint64_t seen_ns;   /* and when this use was seen first */
};

struct vfio_device {
	struct spw_vfio_pair pair;
	/* less the arena's address: what makes a controller's address of one of its own */
	uint64_t arena_iova;
	struct spw_nvme_namespace nvme;
	int32_t placement;
	uint32_t changes_seen; /* of the controller's namespaces */
	bool read_only;
	bool takes_sgl;
	bool dead;   /* the controller is stopped, and its parts have ended */
	char *lists; /* a page per slot */
	uint64_t lists_iova;
	char *copies;
	uint64_t copies_iova;
	uint32_t copies_free; /* bit i: copy i */
	struct command *commands;
	struct spw_vfio_namespace *ns; /* NULL: not behind vfio */
	bool arena_is_mapped;
};

struct vfio {
	struct vfio_device devices[SPW_QUEUE_DEVICES_MAX];
	/* in a queue shared with another backend: ends its sleep, see watch_controllers(); or -1 */
	int watched;
	uint64_t pending; /* bit i: device i has commands that the controller is not told of */
	uint32_t looks;
	uint64_t next_check_ns;
	uint64_t timeout_ns;
	/* for devices that are not behind vfio; NULL: there are none */
	const struct spw_backend_ops *other;
};

/* ---- The backend for the other devices ------------------------------------------------------- */

static bool needs_other(const struct spw_queue *q)
{
	for (unsigned i = 0; i < q->device_count; i++)
		if (!spw_vfio_of(q->devices[i].device))
			return true;
	return false;
}

static int open_other(struct spw_queue *q, struct vfio *v)
{
	static const struct spw_backend_ops *const in_order[] = {&spw_backend_io_uring,
								 &spw_backend_libaio};
	int ret = -EINVAL;

	for (unsigned i = 0; i < SPW_ARRAY_LEN(in_order); i++) {
		spw_queue_describe(q, " %s for what is not behind vfio:", in_order[i]->name);
		ret = in_order[i]->open(q);
		if (ret == 0) {
			v->other = in_order[i];
			return 0;
		}
		spw_log(&q->log, SPW_LOG_WARNING, "%s", spw_last_error());
	}
	return ret;
}

static void close_other(struct spw_queue *q, struct vfio *v)
{
	if (v->other)
		v->other->close(q);
	v->other = NULL;
}

/*
 * The other backend sleeps until a descriptor is readable: the eventfd of a wake, and of its place
 * takes a set of that and of those by which the kernel says that it wants a controller back.
 * Without such a set that is noticed when the sleep ends by itself.
 */
static void watch_controllers(struct spw_queue *q, struct vfio *v)
{
	struct epoll_event event = {.events = EPOLLIN};
	int fd = epoll_create1(EPOLL_CLOEXEC);

	if (fd < 0 || epoll_ctl(fd, EPOLL_CTL_ADD, q->wake.eventfd, &event)) {
		spw_log(&q->log, SPW_LOG_WARNING,
			"vfio: controllers cannot be watched while the queue sleeps: %s",
			spw_strerror(errno));
		if (fd >= 0)
			(void)close(fd);
		return;
	}
	/* One that is there already, for several namespaces of a controller, is refused. */
	for (unsigned i = 0; i < q->device_count; i++)
		if (v->devices[i].ns && v->devices[i].ns->controller->link->wanted_back >= 0)
			(void)epoll_ctl(fd, EPOLL_CTL_ADD,
					v->devices[i].ns->controller->link->wanted_back, &event);
	v->watched = fd;
	q->wake.watched = fd;
}

static void unwatch_controllers(struct spw_queue *q, struct vfio *v)
{
	if (v->watched < 0)
		return;
	q->wake.watched = q->wake.eventfd;
	(void)close(v->watched);
	v->watched = -1;
}

/* It is dead: what the kernel wants of it keeps nobody awake. */
static void unwatch(const struct vfio *v, const struct vfio_device *d)
{
	if (v->watched >= 0 && d->ns->controller->link->wanted_back >= 0)
		(void)epoll_ctl(v->watched, EPOLL_CTL_DEL, d->ns->controller->link->wanted_back,
				NULL);
}

/* ---- Opening --------------------------------------------------------------------------------- */

static int choose_placement(struct spw_queue *q, struct vfio_device *d)
{
	uint16_t ids[SPW_NVME_PLACEMENTS_MAX];
	int count;

	d->placement = SPW_NVME_PLACEMENT_NONE;
	if (q->placement == 0)
		return 0;
	count = spw_vfio_placements(d->ns, ids);
	if (count < 0)
		return count;
	if (count == 0) {
		spw_log(&q->log, SPW_LOG_WARNING,
			"%s has no placement handles (FDP); writes go without", d->ns->path);
		return 0;
	}
	d->placement = ids[(q->placement - 1) % (unsigned)count];
	return 0;
}

static uint32_t copies_of(const struct spw_queue *q)
{
	return q->depth < COPIES_MAX ? q->depth : COPIES_MAX;
}

static int open_pair(struct spw_queue *q, struct vfio_device *d)
{
	uint64_t lists_bytes = (uint64_t)q->depth * SPW_NVME_PAGE_BYTES;
	uint32_t copies = copies_of(q);
	int ret = spw_vfio_pair_open(d->ns->controller, q->depth,
				     lists_bytes + (uint64_t)copies * COPY_BYTES, &d->pair);

	if (ret)
		return ret;
	d->lists = spw_vfio_pair_extra(&d->pair);
	d->lists_iova = spw_vfio_memory_iova(&d->pair.memory, d->lists);
	d->copies = d->lists + lists_bytes;
	d->copies_iova = d->lists_iova + lists_bytes;
	d->copies_free = copies == 32 ? UINT32_MAX : (UINT32_C(1) << copies) - 1;
	return 0;
}

static int map_arena(struct spw_queue *q, struct vfio_device *d)
{
	struct spw_vfio_link *link = d->ns->controller->link;
	uint64_t iova;
	int ret;

	if (q->arena_len_bytes == 0)
		return 0;
	ret = link->ops->map(link, (void *)q->arena_base, q->arena_len_bytes, &iova);
	if (ret)
		return ret;
	d->arena_is_mapped = true;
	d->arena_iova = iova - q->arena_base;
	return 0;
}

static int open_device(struct spw_queue *q, unsigned index, struct vfio_device *d)
{
	const struct spw_device *device = q->devices[index].device;
	int ret;

	if (!spw_vfio_of(device))
		return 0;
	d->ns = spw_vfio_of(device);
	d->nvme = d->ns->nvme;
	d->read_only = device->read_only;
	d->takes_sgl = d->ns->controller->takes_sgl;
	q->stats.vfio_by_group += d->ns->controller->link->why_group[0] != '\0';
	if (d->nvme.block_shift > 16)
		return spw_error(-EOPNOTSUPP, "%s: blocks of %u bytes are too large", device->path,
				 1u << d->nvme.block_shift);
	d->commands = calloc(q->depth, sizeof(*d->commands));
	if (!d->commands)
		return spw_error(-ENOMEM, "vfio: no memory");
	for (uint32_t i = 0; i < q->depth; i++)
		d->commands[i].copy = -1;
	ret = spw_vfio_controller_error(d->ns->controller);
	if (ret == 0)
		ret = choose_placement(q, d);
	if (ret == 0)
		ret = open_pair(q, d);
	return ret ? ret : map_arena(q, d);
}

static void close_device(struct spw_queue *q, struct vfio_device *d)
{
	if (!d->ns)
		return;
	spw_vfio_pair_close(d->ns->controller, &d->pair);
	/* With the pair gone, or the controller, nothing of the arena is written to by it. */
	if (d->arena_is_mapped)
		d->ns->controller->link->ops->unmap(d->ns->controller->link, (void *)q->arena_base,
						    q->arena_len_bytes);
	free(d->commands);
}

static void vfio_close(struct spw_queue *q)
{
	struct vfio *v = q->front_state;

	close_other(q, v);
	unwatch_controllers(q, v);
	for (unsigned i = 0; i < q->device_count; i++)
		close_device(q, &v->devices[i]);
	free(v);
	q->front_state = NULL;
}

static int vfio_prepare(struct spw_queue *q, struct spw_io *io);

static bool all_take_sgl(const struct spw_queue *q, const struct vfio *v)
{
	for (unsigned i = 0; i < q->device_count; i++)
		if (v->devices[i].ns && !v->devices[i].takes_sgl)
			return false;
	return true;
}

/* How the kernel lets them be reached. */
static const char *ways_of(const struct spw_queue *q, const struct vfio *v)
{
	unsigned drives = 0;

	for (unsigned i = 0; i < q->device_count; i++)
		drives += v->devices[i].ns && v->devices[i].ns->controller->link->way;
	if (drives == 0)
		return "";
	if (q->stats.vfio_by_group == 0)
		return ", iommufd";
	return q->stats.vfio_by_group < drives ? ", iommufd and IOMMU groups" : ", IOMMU groups";
}

static void describe(struct spw_queue *q, const struct vfio *v)
{
	const char *ways = ways_of(q, v);
	const char *memory =
		q->arena_len_bytes > 0 ? "mapped memory" : "no mapped memory, all is copied";
	const char *lists = all_take_sgl(q, v) ? ", scatter gather lists" : "";

	if (v->other) {
		spw_queue_describe(q, "; vfio poll, %s%s%s", memory, lists, ways);
		return;
	}
	spw_queue_describe(q, " poll, %s%s%s", memory, lists, ways);
	if (q->wait_mode != SPW_WAIT_POLL)
		spw_log(&q->log, SPW_LOG_INFO,
			"vfio: completions are polled, whatever way to wait was asked for");
	/* Vectors are cut where a command cannot name them, as for a polled block device. */
	q->polls = !all_take_sgl(q, v);
	q->pieces = q->arena_len_bytes > 0 ? 1 : 0;
	q->piece_shift = WHOLE_SHIFT;
	q->registered_bytes = q->arena_len_bytes;
	q->prepare = vfio_prepare;
}

/* Of a command: what the caller says, or what suits the slowest controller. */
static uint32_t timeout_ms(const struct spw_queue *q, const struct vfio *v)
{
	uint32_t most = q->timeout_ms;

	for (unsigned i = 0; q->timeout_ms == 0 && i < q->device_count; i++)
		if (v->devices[i].ns && v->devices[i].ns->controller->link->timeout_ms > most)
			most = v->devices[i].ns->controller->link->timeout_ms;
	return most;
}

static int vfio_open(struct spw_queue *q)
{
	struct vfio *v = calloc(1, sizeof(*v));
	int ret = 0;

	if (!v)
		return spw_error(-ENOMEM, "vfio: no memory");
	v->watched = -1;
	q->front_state = v;
	for (unsigned i = 0; i < q->device_count && ret == 0; i++)
		ret = open_device(q, i, &v->devices[i]);
	v->timeout_ns = timeout_ms(q, v) * UINT64_C(1000000);
	if (ret == 0 && needs_other(q)) {
		watch_controllers(q, v);
		ret = open_other(q, v);
	}
	if (ret) {
		vfio_close(q);
		return ret;
	}
	describe(q, v);
	if (v->other)
		q->prepare = spw_queue_prepare_any;
	return 0;
}

static void vfio_limits(struct spw_queue *q, struct spw_queue_device *dev)
{
	struct vfio *v = q->front_state;
	struct vfio_device *d = &v->devices[dev - q->devices];

	if (!d->ns) {
		if (v->other->limits)
			v->other->limits(q, dev);
		return;
	}
	dev->part_bytes_max = (uint32_t)(d->ns->command_bytes_max & ~(uint64_t)dev->block_mask);
	/* What is not in the arena is copied, and a copy is so long. */
	dev->segments_max = (uint32_t)(COPY_BYTES / q->page_bytes);
	/* To the controller the arena is one run of pages. */
	if (!v->other)
		q->arena_page_bytes = SPW_HUGE_PAGE_BYTES;
}

/* ---- Issuing --------------------------------------------------------------------------------- */

static inline struct spw_vfio_prp_list list_of(const struct vfio_device *d, uint32_t slot)
{
	uint64_t offset = (uint64_t)slot * SPW_NVME_PAGE_BYTES;

	return (struct spw_vfio_prp_list){.entries = (uint64_t *)(void *)(d->lists + offset),
					  .iova = d->lists_iova + offset};
}

/* Where a command's memory is. */
struct pointer {
	uint64_t words[2]; /* two pages' addresses, or a descriptor */
	uint32_t flags;    /* which: of the command */
};

/* One run of memory; PRPs are shorter up to two pages. */
static inline void name_run(const struct vfio_device *d, const struct spw_vfio_prp_list *list,
			    uint64_t iova, uint32_t len_bytes, struct pointer *pointer)
{
	if (d->takes_sgl &&
	    (iova & (SPW_NVME_PAGE_BYTES - 1)) + len_bytes > 2 * SPW_NVME_PAGE_BYTES) {
		spw_vfio_sgl(iova, len_bytes, pointer->words);
		pointer->flags = SPW_VFIO_SGL_FLAG;
	} else {
		spw_vfio_prp(list, iova, len_bytes, pointer->words);
		pointer->flags = 0;
	}
}

/* All words of an entry, which may hold an older command. */
static inline void write_transfer(union spw_vfio_command *entry, const struct vfio_device *d,
				  uint16_t cid, bool is_read, const struct pointer *pointer,
				  uint64_t offset_bytes, uint32_t len_bytes)
{
	uint32_t blocks = (len_bytes >> d->nvme.block_shift) - 1;
	uint64_t placement = 0;

	if (unlikely(d->placement >= 0) && !is_read) {
		blocks |= 2u << 20; /* DTYPE: data placement */
		placement = (uint64_t)(uint32_t)d->placement << 48;
	}
	entry->words[0] = (is_read ? SPW_NVME_READ : SPW_NVME_WRITE) | pointer->flags << 8 |
			  (uint32_t)cid << 16 | (uint64_t)d->nvme.id << 32;
	entry->words[1] = 0;
	entry->words[2] = 0;
	entry->words[3] = pointer->words[0];
	entry->words[4] = pointer->words[1];
	entry->words[5] = offset_bytes >> d->nvme.block_shift;
	entry->words[6] = blocks | placement;
	entry->words[7] = 0;
}

/* A plain transfer goes from the caller's io into the ring; others take the long way. */
SPW_UNGUARDED static int vfio_prepare(struct spw_queue *q, struct spw_io *io)
{
	struct vfio *v = q->front_state;
	struct spw_queue_device *dev;
	uint64_t piece;
	struct spw_part *part = spw_whole_slot(q, io, WHOLE_SHIFT, &dev, &piece);
	struct spw_vfio_prp_list list;
	union spw_vfio_command *entry;
	struct vfio_device *d;
	struct pointer pointer;
	uint32_t slot;
	uint16_t cid;

	if (unlikely(!part))
		return spw_queue_prepare_any(q, io);
	d = &v->devices[io->device];
	if (unlikely(!spw_vfio_pair_has_room(&d->pair) || (d->read_only && io->op == SPW_WRITE)))
		return spw_queue_prepare_any(q, io);
	slot = (uint32_t)(part - dev->parts);
	list = list_of(d, slot);
	name_run(d, &list, (uintptr_t)io->buf + d->arena_iova, io->len_bytes, &pointer);
	entry = spw_vfio_pair_begin(&d->pair, slot, &cid);
	write_transfer(entry, d, cid, io->op == SPW_READ, &pointer, io->offset_bytes,
		       io->len_bytes);
	spw_whole_issued(q, dev, io);
	v->pending |= UINT64_C(1) << io->device;
	return 0;
}

static bool in_arena(const struct spw_queue *q, const void *memory, uint64_t len_bytes)
{
	uint64_t first = (uintptr_t)memory - q->arena_base;

	return first < q->arena_len_bytes && len_bytes <= q->arena_len_bytes - first;
}

static bool add_pages(const struct vfio_device *d, const struct spw_part *part,
		      const struct spw_vfio_prp_list *list, struct spw_vfio_prp_builder *pages)
{
	spw_vfio_prp_begin(pages, list);
	for (uint32_t i = 0; i < part->iov_count; i++)
		if (!spw_vfio_prp_add(pages, (uintptr_t)part->iov[i].iov_base + d->arena_iova,
				      part->iov[i].iov_len))
			return false;
	return true;
}

static bool add_runs(const struct vfio_device *d, const struct spw_part *part,
		     const struct spw_vfio_prp_list *list, struct spw_vfio_sgl_builder *runs)
{
	spw_vfio_sgl_begin(runs, list);
	for (uint32_t i = 0; i < part->iov_count; i++)
		if (!spw_vfio_sgl_add(runs, (uintptr_t)part->iov[i].iov_base + d->arena_iova,
				      (uint32_t)part->iov[i].iov_len))
			return false;
	return true;
}

/* The elements of a part's vector. Return: can a command name them? @foreign: why not. */
static bool name_vector(const struct spw_queue *q, const struct vfio_device *d,
			const struct spw_part *part, const struct spw_vfio_prp_list *list,
			bool *foreign, struct pointer *pointer)
{
	struct spw_vfio_prp_builder pages;
	struct spw_vfio_sgl_builder runs;
	bool in_pages;

	*foreign = false;
	for (uint32_t i = 0; i < part->iov_count && !*foreign; i++)
		*foreign = !in_arena(q, part->iov[i].iov_base, part->iov[i].iov_len);
	if (*foreign)
		return false;
	in_pages = add_pages(d, part, list, &pages);
	/* A list of runs has two words each, of pages one; both are built in the same place. */
	if (d->takes_sgl && (!in_pages || pages.count > 1)) {
		if (add_runs(d, part, list, &runs) &&
		    (!in_pages || runs.count * SPW_VFIO_SGL_WORDS < pages.count)) {
			spw_vfio_sgl_end(&runs, pointer->words);
			pointer->flags = SPW_VFIO_SGL_FLAG;
			return true;
		}
		in_pages = in_pages && add_pages(d, part, list, &pages);
	}
	if (!in_pages)
		return false;
	spw_vfio_prp_end(&pages, pointer->words);
	pointer->flags = 0;
	return true;
}

static void copy_vector(const struct spw_part *part, char *copy, uint32_t bytes, bool to_copy)
{
	for (const struct iovec *iov = part->iov; bytes > 0; iov++) {
		uint32_t now = iov->iov_len < bytes ? (uint32_t)iov->iov_len : bytes;

		if (to_copy)
			memcpy(copy, iov->iov_base, now);
		else
			memcpy(iov->iov_base, copy, now);
		copy += now;
		bytes -= now;
	}
}

static void copy_part(const struct vfio_device *d, const struct spw_part *part,
		      const struct command *command, bool to_copy)
{
	char *copy = d->copies + (size_t)command->copy * COPY_BYTES;

	if (command->gathered)
		copy_vector(part, copy, command->bytes, to_copy);
	else if (to_copy)
		memcpy(copy, part->buf, command->bytes);
	else
		memcpy(part->buf, copy, command->bytes);
}

/* Return: false: all copies are in use. */
static bool take_copy(struct spw_queue *q, struct vfio_device *d, const struct spw_part *part,
		      bool foreign, struct command *command, uint64_t *iova)
{
	if (d->copies_free == 0)
		return false;
	SPW_ASSERT(command->copy < 0); /* VFIO-1 */
	command->copy = (int16_t)__builtin_ctz(d->copies_free);
	d->copies_free &= d->copies_free - 1;
	command->gathered = part->iov_count > 0;
	command->bytes = part->len_bytes < COPY_BYTES ? part->len_bytes : COPY_BYTES;
	*iova = d->copies_iova + (uint64_t)command->copy * COPY_BYTES;
	if (part->op == SPW_WRITE)
		copy_part(d, part, command, true);
	*(foreign ? &q->stats.parts_copied_foreign : &q->stats.parts_copied_gaps) += 1;
	q->stats.bytes_copied += command->bytes;
	return true;
}

static void give_back(struct vfio_device *d, struct command *command)
{
	if (command->copy >= 0) {
		SPW_ASSERT(!(d->copies_free >> command->copy & 1)); /* VFIO-1 */
		d->copies_free |= UINT32_C(1) << command->copy;
	}
	command->copy = -1;
	command->bytes = 0;
}

/* Where the part's memory is, for the controller. Return: false: all copies are in use. */
static bool name_memory(struct spw_queue *q, struct vfio_device *d, struct spw_part *part,
			uint32_t slot, struct pointer *pointer)
{
	struct command *command = &d->commands[slot];
	struct spw_vfio_prp_list list = list_of(d, slot);
	bool foreign = true;
	uint64_t iova;

	if (part->iov_count > 0 && name_vector(q, d, part, &list, &foreign, pointer))
		return true;
	if (part->iov_count == 0 && in_arena(q, part->buf, part->len_bytes)) {
		name_run(d, &list, (uintptr_t)part->buf + d->arena_iova, part->len_bytes, pointer);
		return true;
	}
	if (!take_copy(q, d, part, foreign, command, &iova))
		return false;
	part->piece = -1;
	name_run(d, &list, iova, command->bytes, pointer);
	return true;
}

static int issue_transfer(struct spw_queue *q, struct vfio_device *d, struct spw_part *part,
			  uint32_t slot)
{
	union spw_vfio_command *entry;
	struct pointer pointer;
	uint16_t cid;

	SPW_ASSERT(part->len_bytes <= d->ns->command_bytes_max); /* VFIO-3 */
	if (!name_memory(q, d, part, slot, &pointer))
		return -EAGAIN;
	entry = spw_vfio_pair_begin(&d->pair, slot, &cid);
	write_transfer(entry, d, cid, part->op == SPW_READ, &pointer, part->offset_bytes,
		       d->commands[slot].bytes ? d->commands[slot].bytes : part->len_bytes);
	return 0;
}

/* Flush and deallocation, encoded for the kernel's passthrough: the same fields. */
static void issue_rest(struct vfio_device *d, struct spw_part *part, uint32_t slot)
{
	struct spw_vfio_prp_list list = list_of(d, slot);
	union spw_vfio_command *entry;
	struct nvme_uring_cmd cmd;
	uint16_t cid;

	if (part->op == SPW_FLUSH)
		spw_nvme_encode_flush(&cmd, &d->nvme);
	else
		spw_nvme_encode_deallocate(&cmd, &d->nvme, part->offset_bytes, part->len_bytes,
					   (struct spw_nvme_range *)(void *)list.entries);
	entry = spw_vfio_pair_begin(&d->pair, slot, &cid);
	*entry = (union spw_vfio_command){
		.opcode = cmd.opcode,
		.cid = cid,
		.nsid = cmd.nsid,
		.prp = {cmd.addr ? list.iova : 0},
		.cdw10 = cmd.cdw10,
		.cdw11 = cmd.cdw11,
	};
}

static void discard_here_and_now(struct spw_queue *q, struct spw_part *part)
{
	const struct spw_device *device = q->devices[part->device].device;
	int ret;

	q->stats.sleeps++;
	ret = spw_device_discard(device, part->offset_bytes, part->len_bytes);
	spw_part_completed(q, part, ret ? ret : (int64_t)part->len_bytes);
}

static int issue_to_other(struct spw_queue *q, struct vfio *v, struct spw_part *part)
{
	if (part->op != SPW_DISCARD || v->other->discards)
		return v->other->issue(q, part);
	q->stats.system_calls++;
	discard_here_and_now(q, part);
	return 0;
}

static int vfio_issue(struct spw_queue *q, struct spw_part *part)
{
	struct vfio *v = q->front_state;
	struct vfio_device *d = &v->devices[part->device];
	uint32_t slot = (uint32_t)(part - q->devices[part->device].parts);

	if (!d->ns)
		return issue_to_other(q, v, part);
	if (unlikely(d->dead || (d->read_only && part->op != SPW_READ && part->op != SPW_FLUSH))) {
		spw_part_completed(q, part, d->dead ? -ENODEV : -EBADF);
		return 0;
	}
	/* More than the drive takes at a time. */
	if (unlikely(part->op == SPW_DISCARD && part->len_bytes > spw_vfio_deallocate_max(d->ns))) {
		discard_here_and_now(q, part);
		return 0;
	}
	if (!spw_vfio_pair_has_room(&d->pair))
		return -EAGAIN;
	if (likely(part->op <= SPW_WRITE)) {
		if (issue_transfer(q, d, part, slot))
			return -EAGAIN;
	} else {
		issue_rest(d, part, slot);
	}
	v->pending |= UINT64_C(1) << part->device;
	return 0;
}

static inline void submit_pending(struct vfio *v)
{
	uint64_t pending = v->pending;

	v->pending = 0;
	for (; pending; pending &= pending - 1)
		spw_vfio_pair_submit(&v->devices[__builtin_ctzll(pending)].pair);
}

static int vfio_submit(struct spw_queue *q)
{
	struct vfio *v = q->front_state;

	submit_pending(v);
	return v->other ? v->other->submit(q) : 0;
}

static void vfio_cancel(struct spw_queue *q, struct spw_part *part)
{
	struct vfio *v = q->front_state;

	/* A controller may be told to abort a command, and need not: it ends by itself. */
	if (!v->devices[part->device].ns)
		v->other->cancel(q, part);
}

/* ---- Completions ----------------------------------------------------------------------------- */

/* Return: what becomes of the part. */
static int64_t part_result(struct spw_queue *q, const struct spw_part *part, uint32_t status,
			   uint32_t bytes)
{
	int error = spw_nvme_errno(status);

	if (status == 0)
		return bytes;
	if (!(status & SPW_NVME_STATUS_DNR) && part->retries < RETRIES_MAX)
		return -EAGAIN;
	q->drive_status = status & SPW_NVME_STATUS_CODE;
	return error ? error : -EIO;
}

/* A command that the long way issued, or that failed. */
__attribute__((noinline)) static void end_command(struct spw_queue *q, struct vfio_device *d,
						  struct spw_part *part, uint32_t slot,
						  uint32_t status)
{
	struct command *command = &d->commands[slot];
	int64_t res;

	/* A success may come with the word that there is more in a log. */
	if ((status & SPW_NVME_STATUS_CODE) == 0)
		status = 0;
	if (part->io->engine_state == IO_WHOLE)
		spw_part_unfold(q, part);
	if (status == 0 && command->copy >= 0 && part->op == SPW_READ)
		copy_part(d, part, command, false);
	res = part_result(q, part, status, command->bytes ? command->bytes : part->len_bytes);
	give_back(d, command);
	spw_part_completed(q, part, res);
	q->drive_status = 0;
}

static unsigned bury(struct spw_queue *q, struct vfio_device *d, struct spw_queue_device *dev,
		     uint64_t expired_ns);

/* Take what a device has completed. Return: how much. */
static unsigned take_device(struct spw_queue *q, struct vfio_device *d,
			    struct spw_queue_device *dev)
{
	uint32_t slot = 0, status = 0, count = 0;
	int got = 0;

	/* One round of the ring at a time: what ends makes room for more, which may end too. */
	while (count <= d->pair.mask &&
	       (got = spw_vfio_pair_take(&d->pair, &slot, &status, NULL)) > 0) {
		struct spw_part *part = &dev->parts[slot];

		count++;
		if (unlikely(status != 0 || !spw_whole_completed(q, part, part->io->len_bytes)))
			end_command(q, d, part, slot, status);
	}
	if (unlikely(got < 0)) {
		spw_vfio_controller_stop(d->ns->controller, -EIO, "queue %u: %s", d->pair.id,
					 d->pair.complaint);
		count += bury(q, d, dev, 0);
	} else {
		spw_vfio_pair_release(&d->pair);
	}
	return count;
}

/* The controller is stopped or being stopped: all in flight then ends. Return: how many. */
__attribute__((cold)) static unsigned bury(struct spw_queue *q, struct vfio_device *d,
					   struct spw_queue_device *dev, uint64_t expired_ns)
{
	struct spw_vfio_controller *c = d->ns->controller;
	unsigned count = 0;

	/* Returns when it can write nowhere any more. */
	(void)spw_vfio_controller_error(c);
	SPW_ASSERT(spw_vfio_controller_state(c) == SPW_VFIO_STOPPED); /* VFIO-2 */
	/* What it has ended before is right. */
	if (!d->pair.complaint)
		count = take_device(q, d, dev);
	if (d->dead)
		return count;
	d->dead = true;
	unwatch(q->front_state, d);
	q->prepare = spw_queue_prepare_any;
	spw_log(&q->log, SPW_LOG_ERROR, "%s; %u requests fail, and all after them", c->reason,
		d->pair.in_flight);
	for (uint32_t slot = 0; slot < q->depth; slot++) {
		const struct command *command = &d->commands[slot];
		struct spw_part *part = &dev->parts[slot];
		bool expired = expired_ns > 0 && command->seen_uses == d->pair.slots[slot].uses &&
			       command->seen_ns < expired_ns;

		if (!d->pair.slots[slot].busy)
			continue;
		spw_vfio_pair_forget(&d->pair, slot);
		give_back(d, &d->commands[slot]);
		spw_part_completed(q, part,
				   c->error != -ETIMEDOUT ? c->error
				   : expired              ? -ETIMEDOUT
							  : -EIO);
		count++;
	}
	return count;
}

/* ---- Deadlines and dead controllers ---------------------------------------------------------- */

/* Commands have no time of their own: the first check that sees one in flight notes when. */
static bool find_expired(const struct spw_queue *q, struct vfio_device *d, uint64_t now_ns,
			 uint64_t timeout_ns)
{
	bool expired = false;

	for (uint32_t slot = 0; slot < q->depth; slot++) {
		const struct spw_vfio_slot *s = &d->pair.slots[slot];
		struct command *command = &d->commands[slot];

		if (!s->busy)
			continue;
		if (command->seen_uses != s->uses || command->seen_ns == 0) {
			command->seen_uses = s->uses;
			command->seen_ns = now_ns;
		} else if (now_ns - command->seen_ns > timeout_ns) {
			expired = true;
		}
	}
	return expired;
}

/* A namespace formatted or replaced has its blocks elsewhere, or belongs to others. */
static void verify_if_changed(struct vfio_device *d)
{
	struct spw_vfio_controller *c = d->ns->controller;
	uint32_t changes = atomic_load_explicit(&c->namespace_changes, memory_order_relaxed);

	if (likely(changes == d->changes_seen))
		return;
	d->changes_seen = changes;
	if (spw_vfio_has_changed(d->ns))
		spw_vfio_controller_stop(c, -EIO,
					 "namespace %u is not what it was when it was opened: it "
					 "was formatted, replaced, cut or detached",
					 d->nvme.id);
}

static unsigned check_device(struct spw_queue *q, const struct vfio *v, struct vfio_device *d,
			     struct spw_queue_device *dev, uint64_t now_ns)
{
	unsigned count;

	if (spw_vfio_controller_check(d->ns->controller, &q->log))
		verify_if_changed(d);
	if (spw_vfio_controller_state(d->ns->controller) != SPW_VFIO_LIVE)
		return bury(q, d, dev, now_ns > v->timeout_ns ? now_ns - v->timeout_ns : 0);
	/* This process may have been stopped for long: what has ended meanwhile is in time. */
	count = take_device(q, d, dev);
	if (d->dead || !find_expired(q, d, now_ns, v->timeout_ns))
		return count;
	spw_vfio_controller_stop(d->ns->controller, -ETIMEDOUT,
				 "a command of queue %u has not ended within %llu ms", d->pair.id,
				 (unsigned long long)(v->timeout_ns / 1000000));
	return count + bury(q, d, dev, now_ns - v->timeout_ns);
}

/* Return: how many commands have ended by it. */
__attribute__((cold, noinline)) static unsigned check(struct spw_queue *q, struct vfio *v)
{
	uint64_t now_ns = spw_clock_ns();
	uint64_t interval_ns = CHECK_MS * UINT64_C(1000000);
	unsigned count = 0;

	if (now_ns < v->next_check_ns)
		return 0;
	if (interval_ns > v->timeout_ns / 4)
		interval_ns = v->timeout_ns / 4;
	v->next_check_ns = now_ns + interval_ns;
	for (unsigned i = 0; i < q->device_count; i++)
		if (v->devices[i].ns && !v->devices[i].dead)
			count += check_device(q, v, &v->devices[i], &q->devices[i], now_ns);
	return count;
}

/* ---- Waiting --------------------------------------------------------------------------------- */

/* A look at the other backend is a system call. */
static bool other_has_parts(const struct spw_queue *q, const struct vfio *v)
{
	for (unsigned i = 0; v->other && i < q->device_count; i++)
		if (!v->devices[i].ns && q->devices[i].in_flight > 0)
			return true;
	return false;
}

static bool rings_are_empty(const struct spw_queue *q, const struct vfio *v)
{
	for (unsigned i = 0; i < q->device_count; i++)
		if (v->devices[i].pair.in_flight > 0)
			return false;
	return true;
}

/* Sleep for a wake, or until the kernel wants a controller back. */
static int sleep_for_wake(struct spw_queue *q, struct vfio *v, int64_t timeout_ns)
{
	struct pollfd events[1 + SPW_QUEUE_DEVICES_MAX];
	int64_t ms = (timeout_ns + 999999) / 1000000;
	int ret;

	events[0] = (struct pollfd){.fd = q->wake.eventfd, .events = POLLIN};
	for (unsigned i = 0; i < q->device_count; i++) {
		const struct vfio_device *d = &v->devices[i];

		events[1 + i] = (struct pollfd){
			.fd = d->ns && !d->dead ? d->ns->controller->link->wanted_back : -1,
			.events = POLLIN};
	}
	q->stats.system_calls++;
	q->stats.sleeps++;
	ret = poll(events, 1 + q->device_count, ms < INT_MAX ? (int)ms : INT_MAX);
	if (ret < 0)
		return -errno;
	if (events[0].revents)
		spw_wake_drain(&q->wake);
	if (ret > (events[0].revents ? 1 : 0))
		v->next_check_ns = 0;
	return ret == 0 ? -ETIME : 0;
}

static int sleep_in_other(struct spw_queue *q, struct vfio *v, unsigned want, int64_t timeout_ns)
{
	uint32_t before = spw_queue_in_flight(q);
	int ret = v->other->wait(q, want, timeout_ns);

	/* Nothing ended and nobody woke us: a controller ended the sleep. */
	if (ret == 0 && spw_queue_in_flight(q) == before &&
	    !atomic_load_explicit(&q->wake.asked, memory_order_relaxed))
		v->next_check_ns = 0;
	return ret;
}

static uint32_t idle_ms(const struct spw_queue *q, const struct vfio *v)
{
	uint32_t least = UINT32_MAX;

	for (unsigned i = 0; i < q->device_count; i++)
		if (v->devices[i].ns && v->devices[i].ns->controller->link->idle_ms < least)
			least = v->devices[i].ns->controller->link->idle_ms;
	return least;
}

/*
 * Nothing to poll. The controllers are looked at all the same: the kernel's removal of one would
 * wait for this thread, and who asks for the next transfer may be long in coming.
 */
static int wait_without_commands(struct spw_queue *q, struct vfio *v, unsigned want,
				 int64_t timeout_ns)
{
	int64_t idle_ns = idle_ms(q, v) * INT64_C(1000000);
	bool is_shortened = timeout_ns < 0 || timeout_ns > idle_ns;
	int ret;

	if (is_shortened)
		timeout_ns = idle_ns;
	ret = v->other ? sleep_in_other(q, v, want, timeout_ns) : sleep_for_wake(q, v, timeout_ns);
	(void)check(q, v);
	return is_shortened && ret == -ETIME ? 0 : ret;
}

/* Tell the controllers, and take what has ended on all devices. */
static int look(struct spw_queue *q, struct vfio *v, unsigned *taken)
{
	unsigned count = 0;
	int ret = 0;

	submit_pending(v);
	for (unsigned i = 0; i < q->device_count; i++)
		if (v->devices[i].pair.in_flight > 0)
			count += take_device(q, &v->devices[i], &q->devices[i]);
	*taken = count;
	if (unlikely(v->other) && other_has_parts(q, v)) {
		uint32_t before = spw_queue_in_flight(q);

		ret = v->other->wait(q, 0, 0);
		*taken += before > spw_queue_in_flight(q) ? before - spw_queue_in_flight(q) : 0;
	}
	if (unlikely(++v->looks % LOOKS_PER_CLOCK == 0))
		*taken += check(q, v);
	return ret;
}

static void relax(const struct spw_queue *q, const struct vfio *v)
{
	for (unsigned i = 0; i < q->device_count; i++) {
		if (v->devices[i].pair.in_flight == 0)
			continue;
		v->devices[i].ns->controller->link->ops->relax(v->devices[i].ns->controller->link);
		return;
	}
}

static int vfio_wait(struct spw_queue *q, unsigned want, int64_t timeout_ns)
{
	struct vfio *v = q->front_state;
	uint64_t deadline_ns =
		want > 0 && timeout_ns >= 0 ? spw_clock_ns() + (uint64_t)timeout_ns : UINT64_MAX;
	unsigned vain = 0;
	int ret;

	if (want > 0 && rings_are_empty(q, v))
		return wait_without_commands(q, v, want, timeout_ns);
	for (;;) {
		unsigned taken;

		ret = look(q, v, &taken);
		if (ret || taken >= want)
			return ret;
		want -= taken;
		if (atomic_load_explicit(&q->wake.asked, memory_order_relaxed) ||
		    rings_are_empty(q, v))
			return 0;
		if (deadline_ns != UINT64_MAX && spw_clock_ns() >= deadline_ns)
			return -ETIME;
		if (taken == 0 && vain++ % SPW_VFIO_LOOKS_PER_RELAX == 0)
			relax(q, v);
	}
}

const struct spw_backend_ops spw_backend_vfio = {
	.name = "vfio",
	.backend = SPW_BACKEND_VFIO,
	.discards = true,
	.open = vfio_open,
	.close = vfio_close,
	.limits = vfio_limits,
	.issue = vfio_issue,
	.submit = vfio_submit,
	.wait = vfio_wait,
	.cancel = vfio_cancel,
	.status_text = spw_nvme_status_text,
};
