/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/backend_vfio.c - backend vfio: NVMe queue pairs driven by this process, without
 * system calls
 *
 * Each device has a queue pair, polled by the queue's thread; parts and commands share slots. The
 * arena is mapped once. Other memory, and a vector with gaps between its pages for a controller
 * without scatter gather lists, is copied through mapped memory, and counted.
 *
 * No kernel enforces deadlines here: the clock and the controllers' registers are checked from time
 * to time, once a second while a queue sleeps. When a command is late, or a controller fails, the
 * controller is stopped; only then do its parts end, because until then it may write to their
 * memory.
 *
 * Devices that are not behind vfio are handled by another backend, whose state is q->state.
 *
 * Invariants, cited by asserts and tests
 *   VFIO-1  Each copy buffer is free, or used by exactly one command in flight.
 *   VFIO-2  A part whose command has not completed is ended only when the controller is STOPPED.
 *   VFIO-3  A command has no more bytes than its controller accepts.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "engine/arena.h"
#include "engine/backend.h"
#include "engine/nvme/admin.h"
#include "engine/vfio/namespace.h"
#include "engine/vfio/pointer.h"
#include "util/util.h"

/* Number of copy buffers per device; when all are in use, parts that need one wait. */
#define COPIES_MAX 32u

/* All registered memory is one piece. */
#define WHOLE_SHIFT 62u

/* Unsuccessful polls of the rings, or waits, per look at the clock; time between health checks. */
#define LOOKS_PER_CLOCK 64u

#define CHECK_MS 100u

/* A slot's command. If the slot is free, or was used by vfio_prepare(): bytes 0 and copy -1. */
struct command {
	uint32_t bytes;     /* length, which may be less than the part's; 0: all of the part */
	int16_t copy;       /* index of its copy buffer; -1: it needs none */
	uint32_t seen_uses; /* slot's use count at the last check of deadlines, */
	uint64_t seen_ns;   /* and when that count was first seen */
};

struct vfio_device {
	struct spw_vfio_pair pair;
	/* offset from addresses in the arena, or in the pair's memory, to the controller's */
	uint64_t arena_iova, own_iova;
	uint64_t range_iovas[SPW_RANGES_MAX]; /* the same for the queue's ranges */
	struct spw_nvme_namespace nvme;
	uint32_t changes_seen; /* namespace_changes of the controller when last checked */
	bool read_only;
	bool takes_sgl;
	bool dead;   /* the controller is stopped, and all parts have ended */
	char *lists; /* a page for lists per slot */
	char *copies;
	uint32_t copies_free; /* bit i: copy i */
	struct command *commands;
	struct spw_vfio_namespace *ns; /* NULL: not behind vfio */
	bool arena_is_mapped;
};

struct vfio {
	struct vfio_device devices[SPW_QUEUE_DEVICES_MAX];
	unsigned device_count; /* devices behind vfio */
	unsigned by_iommufd;
	struct spw_vfio_link *link; /* of any controller: relax() is the same for all */
	bool take_sgl;              /* all controllers do */
	uint64_t pending; /* bit i: device i has commands whose doorbell was not rung yet */
	uint32_t looks;
	uint64_t next_check_ns;
	uint64_t timeout_ns; /* time limit of a command */
	uint64_t idle_ns;    /* time between checks of the controllers while the queue sleeps */
	/* the backend of devices that are not behind vfio; NULL: there are none */
	const struct spw_backend_ops *other;
};

/* ---- The backend for the other devices ------------------------------------------------------- */

static int open_other(struct spw_queue *q, struct vfio *v)
{
	static const struct spw_backend_ops *const in_order[] = {&spw_engine__backend_io_uring,
								 &spw_engine__backend_libaio};
	int ret = -EINVAL;

	for (unsigned i = 0; i < SPW_ARRAY_LEN(in_order); i++) {
		spw_engine__queue_describe(q,
					   " %s for what is not behind vfio:", in_order[i]->name);
		ret = in_order[i]->open(q);
		if (ret == 0) {
			v->other = in_order[i];
			return 0;
		}
		spw_log(&q->log, SPW_LOG_WARNING, "%s", spw_last_error());
	}
	return ret;
}

/* End a sleep when the kernel wants a controller back, not only when the sleep's time is over. */
static void watch_controllers(struct spw_queue *q, const struct vfio *v)
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
	/* EEXIST for further namespaces of the same controller is ignored. */
	for (unsigned i = 0; i < q->device_count; i++)
		if (v->devices[i].ns && v->devices[i].ns->controller->link->wanted_back >= 0)
			(void)epoll_ctl(fd, EPOLL_CTL_ADD,
					v->devices[i].ns->controller->link->wanted_back, &event);
	q->wake.watched = fd;
}

/* ---- Opening --------------------------------------------------------------------------------- */

static int open_pair(struct spw_queue *q, struct vfio_device *d)
{
	uint64_t lists_bytes = (uint64_t)q->depth * SPW_NVME_PAGE_BYTES;
	uint32_t copies = q->depth < COPIES_MAX ? q->depth : COPIES_MAX;
	int ret =
		spw_vfio__pair_open(d->ns->controller, q->depth,
				    lists_bytes + (uint64_t)copies * SPW_VFIO_COPY_BYTES, &d->pair);

	if (ret)
		return ret;
	d->lists = d->pair.extra;
	d->copies = d->lists + lists_bytes;
	d->own_iova = d->pair.memory.iova - (uintptr_t)d->pair.memory.base;
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

/* The whole pages that contain a range. Return: their length. */
static uint64_t pages_of(const struct spw_range *range, void **first)
{
	uintptr_t base = range->base & ~(uintptr_t)(SPW_NVME_PAGE_BYTES - 1);

	*first = (void *)base;
	return spw_round_up(range->base + range->len_bytes, SPW_NVME_PAGE_BYTES) - base;
}

static void unmap_range(struct vfio_device *d, const struct spw_range *range)
{
	void *first;
	uint64_t len_bytes = pages_of(range, &first);

	d->ns->controller->link->ops->unmap(d->ns->controller->link, first, len_bytes);
}

static void unmap_range_of(struct vfio *v, const struct spw_range *range, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (v->devices[i].ns)
			unmap_range(&v->devices[i], range);
}

static int map_range(struct spw_queue *q, struct vfio *v, const struct spw_range *range)
{
	void *first;
	uint64_t len_bytes = pages_of(range, &first);

	for (unsigned i = 0; i < q->device_count; i++) {
		struct vfio_device *d = &v->devices[i];
		struct spw_vfio_link *link;
		uint64_t iova;
		int ret;

		if (!d->ns)
			continue;
		link = d->ns->controller->link;
		ret = link->ops->map(link, first, len_bytes, &iova);
		if (ret) {
			unmap_range_of(v, range, i);
			return ret;
		}
		d->range_iovas[range - q->ranges.each] = iova - (uintptr_t)first;
	}
	return 0;
}

/* Map the range for all controllers, and register it with the other backend's ring; or nowhere. */
static int vfio_add_range(struct spw_queue *q, struct spw_range *range)
{
	struct vfio *v = q->front_state;
	int ret = map_range(q, v, range);

	if (ret)
		return ret;
	if (!v->other) {
		range->first_piece = (int32_t)q->pieces;
		range->pieces = 1;
		return 0;
	}
	ret = v->other->add_range
		      ? v->other->add_range(q, range)
		      : spw_error(-EOPNOTSUPP, "%s registers no memory", v->other->name);
	if (ret)
		unmap_range_of(v, range, q->device_count);
	return ret;
}

static void vfio_remove_range(struct spw_queue *q, struct spw_range *range)
{
	struct vfio *v = q->front_state;

	unmap_range_of(v, range, q->device_count);
	if (v->other)
		v->other->remove_range(q, range);
}

static void join(struct spw_queue *q, struct vfio *v, const struct spw_vfio_controller *c)
{
	v->device_count++;
	v->link = c->link;
	v->take_sgl = v->take_sgl && c->takes_sgl;
	v->by_iommufd += c->link->way && c->link->why_group[0] == '\0';
	q->stats.vfio_by_group += c->link->why_group[0] != '\0';
	v->timeout_ns = (q->timeout_ms ? q->timeout_ms : c->link->timeout_ms) * UINT64_C(1000000);
	v->idle_ns = c->link->idle_ms * UINT64_C(1000000);
}

/* If a drive does not report its placement handles, write without placements. */
static void place(struct spw_queue *q, const struct vfio_device *d, unsigned index)
{
	uint16_t ids[SPW_NVME_PLACEMENTS_MAX];
	int count = q->placement > 0 ? spw_vfio__placements(d->ns, ids) : 0;

	if (count < 0)
		spw_log(&q->log, SPW_LOG_WARNING, "%s", spw_last_error());
	spw_engine__queue_place(q, index, ids, count > 0 ? (unsigned)count : 0);
}

static int open_device(struct spw_queue *q, struct vfio *v, unsigned index)
{
	const struct spw_device *device = q->devices[index].device;
	struct vfio_device *d = &v->devices[index];
	int ret;

	d->ns = spw_vfio__of(device);
	if (!d->ns)
		return 0;
	d->nvme = d->ns->nvme;
	d->read_only = device->read_only;
	d->takes_sgl = d->ns->controller->takes_sgl;
	join(q, v, d->ns->controller);
	d->commands = calloc(q->depth, sizeof(*d->commands));
	if (!d->commands)
		return spw_error(-ENOMEM, "vfio: no memory");
	for (uint32_t i = 0; i < q->depth; i++)
		d->commands[i].copy = -1;
	place(q, d, index);
	ret = spw_vfio__controller_error(d->ns->controller);
	if (ret)
		return ret;
	ret = open_pair(q, d);
	return ret ? ret : map_arena(q, d);
}

static void close_device(struct spw_queue *q, struct vfio_device *d)
{
	if (!d->ns)
		return;
	spw_vfio__pair_close(d->ns->controller, &d->pair);
	/* Without the pair, or stopped, the controller does not access the arena. */
	if (d->arena_is_mapped)
		d->ns->controller->link->ops->unmap(d->ns->controller->link, (void *)q->arena_base,
						    q->arena_len_bytes);
	for (unsigned i = 0; i < q->ranges.top; i++)
		if (q->ranges.each[i].first_piece >= 0)
			unmap_range(d, &q->ranges.each[i]);
	free(d->commands);
}

static void vfio_close(struct spw_queue *q)
{
	struct vfio *v = q->front_state;

	if (v->other)
		v->other->close(q);
	if (q->wake.watched != q->wake.eventfd)
		(void)close(q->wake.watched);
	q->wake.watched = q->wake.eventfd;
	for (unsigned i = 0; i < q->device_count; i++)
		close_device(q, &v->devices[i]);
	free(v);
	q->front_state = NULL;
}

static int vfio_prepare(struct spw_queue *q, struct spw_io *io);

static const char *ways_of(const struct spw_queue *q, const struct vfio *v)
{
	if (q->stats.vfio_by_group == 0)
		return v->by_iommufd > 0 ? ", iommufd" : "";
	return v->by_iommufd > 0 ? ", iommufd and IOMMU groups" : ", IOMMU groups";
}

static void describe(struct spw_queue *q, const struct vfio *v)
{
	spw_engine__queue_describe(q, "%s poll, %s%s%s", v->other ? "; vfio" : "",
				   q->arena_len_bytes > 0 ? "mapped memory"
							  : "no mapped memory, all is copied",
				   v->take_sgl ? ", scatter gather lists" : "", ways_of(q, v));
}

static void set_up_alone(struct spw_queue *q, const struct vfio *v)
{
	if (q->wait_mode != SPW_WAIT_POLL)
		spw_log(&q->log, SPW_LOG_INFO,
			"vfio: completions are polled, whatever way to wait was asked for");
	/* Without SGLs, cut vectors at gaps, as for polled block devices. */
	q->polls = !v->take_sgl;
	q->pieces = q->arena_len_bytes > 0 ? 1 : 0;
	q->piece_shift = WHOLE_SHIFT;
	q->registered_bytes = q->arena_len_bytes;
	q->prepare = vfio_prepare;
}

static int vfio_open(struct spw_queue *q)
{
	struct vfio *v = calloc(1, sizeof(*v));
	int ret = 0;

	if (!v)
		return spw_error(-ENOMEM, "vfio: no memory");
	v->take_sgl = true;
	q->front_state = v;
	for (unsigned i = 0; i < q->device_count && ret == 0; i++)
		ret = open_device(q, v, i);
	if (ret == 0)
		watch_controllers(q, v);
	if (ret == 0 && v->device_count < q->device_count)
		ret = open_other(q, v);
	if (ret) {
		vfio_close(q);
		return ret;
	}
	describe(q, v);
	if (v->other)
		q->prepare = spw_engine__queue_prepare_any;
	else
		set_up_alone(q, v);
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
	dev->part_bytes_max = (uint32_t)d->ns->command_bytes_max;
	/* Memory that is not mapped is copied, through buffers of this length. */
	dev->segments_max = (uint32_t)(SPW_VFIO_COPY_BYTES / q->page_bytes);
	/* The arena is contiguous for the controller. */
	if (!v->other)
		q->arena_page_bytes = SPW_HUGE_PAGE_BYTES;
}

/* ---- Issuing --------------------------------------------------------------------------------- */

static inline struct spw_vfio_list list_of(const struct vfio_device *d, uint32_t slot)
{
	char *list = d->lists + (size_t)slot * SPW_NVME_PAGE_BYTES;

	return (struct spw_vfio_list){.entries = (uint64_t *)(void *)list,
				      .iova = (uintptr_t)list + d->own_iova};
}

/* Write all words of an entry, which may hold an older command. The ring must have room. */
static inline void issue_transfer(struct vfio_device *d, uint32_t slot, bool is_read,
				  const struct spw_vfio_pointer *pointer, uint64_t offset_bytes,
				  uint32_t len_bytes, uint32_t placed)
{
	uint32_t blocks = (len_bytes >> d->nvme.block_shift) - 1, tag = 0;
	uint64_t first = offset_bytes >> d->nvme.block_shift;
	uint16_t cid;
	union spw_vfio_command *entry = spw_vfio__pair_begin(&d->pair, slot, &cid);

	if (unlikely(placed))
		blocks |= 2u << 20; /* DTYPE: data placement */
	if (unlikely(d->nvme.protects)) {
		blocks |= SPW_NVME_MAKE_TAGS | SPW_NVME_CHECK_TAGS;
		tag = spw_nvme__reference_tag(first);
	}
	entry->words[0] = (is_read ? SPW_NVME_READ : SPW_NVME_WRITE) | pointer->flags << 8 |
			  (uint32_t)cid << 16 | (uint64_t)d->nvme.id << 32;
	entry->words[1] = 0;
	entry->words[2] = 0;
	entry->words[3] = pointer->words[0];
	entry->words[4] = pointer->words[1];
	entry->words[5] = first;
	entry->words[6] = blocks | (uint64_t)placed << 48;
	entry->words[7] = tag;
}

/* Fast path: put a plain transfer into the ring at once; others take the slow path. */
SPW_UNGUARDED static int vfio_prepare(struct spw_queue *q, struct spw_io *io)
{
	struct vfio *v = q->front_state;
	struct spw_queue_device *dev;
	uint64_t piece;
	struct spw_part *part = spw_engine__whole_slot(q, io, WHOLE_SHIFT, &dev, &piece);
	struct spw_vfio_pointer pointer;
	struct spw_vfio_list list;
	struct vfio_device *d;
	uint32_t slot;

	if (unlikely(!part))
		return spw_engine__queue_prepare_any(q, io);
	d = &v->devices[io->device];
	if (unlikely(!spw_vfio__pair_has_room(&d->pair) || (d->read_only && io->op == SPW_WRITE)))
		return spw_engine__queue_prepare_any(q, io);
	slot = (uint32_t)(part - dev->parts);
	list = list_of(d, slot);
	spw_vfio__name_run(&list, d->takes_sgl, (uintptr_t)io->buf + d->arena_iova, io->len_bytes,
			   &pointer);
	issue_transfer(d, slot, io->op == SPW_READ, &pointer, io->offset_bytes, io->len_bytes,
		       spw_engine__placement_of(dev, io));
	spw_engine__whole_issued(q, dev, io);
	v->pending |= UINT64_C(1) << io->device;
	return 0;
}

static bool in_arena(const struct spw_queue *q, const void *memory, uint64_t len_bytes)
{
	uint64_t first = (uintptr_t)memory - q->arena_base;

	return first < q->arena_len_bytes && len_bytes <= q->arena_len_bytes - first;
}

/* *to_iova: what to add to get the controller's address. Return: false: memory is not mapped. */
static bool find_iova(const struct spw_queue *q, const struct vfio_device *d, const void *memory,
		      uint64_t len_bytes, uint64_t *to_iova)
{
	const struct spw_range *range;

	*to_iova = d->arena_iova;
	if (likely(in_arena(q, memory, len_bytes)))
		return true;
	range = spw_engine__range_of(&q->ranges, memory, len_bytes);
	if (!range || range->first_piece < 0)
		return false;
	*to_iova = d->range_iovas[range - q->ranges.each];
	return true;
}

/* The same for all memory of a part, which must be in one mapping. */
static bool find_iova_of_part(const struct spw_queue *q, const struct vfio_device *d,
			      const struct spw_part *part, uint64_t *to_iova)
{
	uint64_t next;

	if (part->iov_count == 0)
		return find_iova(q, d, part->buf, part->len_bytes, to_iova);
	for (uint32_t i = 0; i < part->iov_count; i++) {
		if (!find_iova(q, d, part->iov[i].iov_base, part->iov[i].iov_len, &next) ||
		    (i > 0 && next != *to_iova))
			return false;
		*to_iova = next;
	}
	return true;
}

static char *copy_of(const struct vfio_device *d, const struct command *command)
{
	return d->copies + (size_t)command->copy * SPW_VFIO_COPY_BYTES;
}

static void copy_part(const struct vfio_device *d, const struct spw_part *part,
		      const struct command *command)
{
	const struct iovec one = {.iov_base = part->buf, .iov_len = command->bytes};
	char *copy = copy_of(d, command);

	for (uint32_t i = 0, left = command->bytes, now; left > 0; left -= now, copy += now, i++) {
		const struct iovec *iov = part->iov_count > 0 ? &part->iov[i] : &one;

		now = iov->iov_len < left ? (uint32_t)iov->iov_len : left;
		memcpy(part->op == SPW_WRITE ? copy : iov->iov_base,
		       part->op == SPW_WRITE ? iov->iov_base : copy, now);
	}
}

/* Take a copy buffer, and copy a write into it. Return: false: all are in use. */
static bool take_copy(struct spw_queue *q, struct vfio_device *d, const struct spw_part *part,
		      bool foreign, struct command *command, uint64_t *iova)
{
	if (d->copies_free == 0)
		return false;
	SPW_ASSERT(command->copy < 0); /* the copy has one user (VFIO-1) */
	command->copy = (int16_t)__builtin_ctz(d->copies_free);
	d->copies_free &= d->copies_free - 1;
	command->bytes = SPW_MIN(part->len_bytes, SPW_VFIO_COPY_BYTES);
	*iova = (uintptr_t)copy_of(d, command) + d->own_iova;
	if (part->op == SPW_WRITE)
		copy_part(d, part, command);
	*(foreign ? &q->stats.parts_copied_foreign : &q->stats.parts_copied_gaps) += 1;
	q->stats.bytes_copied += command->bytes;
	return true;
}

static void give_back(struct vfio_device *d, struct command *command)
{
	if (command->copy >= 0) {
		/* the copy has one user (VFIO-1) */
		SPW_ASSERT(!(d->copies_free >> command->copy & 1));
		d->copies_free |= UINT32_C(1) << command->copy;
	}
	command->copy = -1;
	command->bytes = 0;
}

/* Point the command to the part's memory or a copy. Return: false: all copy buffers are in use. */
static bool name_memory(struct spw_queue *q, struct vfio_device *d, struct spw_part *part,
			uint32_t slot, struct spw_vfio_pointer *pointer)
{
	struct command *command = &d->commands[slot];
	struct spw_vfio_list list = list_of(d, slot);
	uint64_t iova, to_iova = 0;
	bool is_foreign = !find_iova_of_part(q, d, part, &to_iova);

	if (!is_foreign && part->iov_count == 0) {
		spw_vfio__name_run(&list, d->takes_sgl, (uintptr_t)part->buf + to_iova,
				   part->len_bytes, pointer);
		return true;
	}
	if (!is_foreign && spw_vfio__name_vector(&list, d->takes_sgl, part->iov, part->iov_count,
						 to_iova, pointer))
		return true;
	if (!take_copy(q, d, part, is_foreign, command, &iova))
		return false;
	part->piece = -1;
	spw_vfio__name_run(&list, d->takes_sgl, iova, command->bytes, pointer);
	return true;
}

/* Issue flush or deallocate, encoded as for the kernel's passthrough: the fields are the same. */
static void issue_rest(struct vfio_device *d, struct spw_part *part, uint32_t slot)
{
	struct spw_vfio_list list = list_of(d, slot);
	union spw_vfio_command *entry;
	struct nvme_uring_cmd cmd;
	uint16_t cid;

	if (part->op == SPW_FLUSH)
		spw_nvme__encode_flush(&cmd, &d->nvme);
	else
		spw_nvme__encode_deallocate(&cmd, &d->nvme, part->offset_bytes, part->len_bytes,
					    (struct spw_nvme_range *)(void *)list.entries);
	entry = spw_vfio__pair_begin(&d->pair, slot, &cid);
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
	spw_engine__part_completed(q, part, ret ? ret : (int64_t)part->len_bytes);
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
	struct spw_vfio_pointer pointer;

	if (!d->ns)
		return issue_to_other(q, v, part);
	if (unlikely(d->dead || (d->read_only && part->op != SPW_READ && part->op != SPW_FLUSH))) {
		spw_engine__part_completed(q, part, d->dead ? -ENODEV : -EBADF);
		return 0;
	}
	/* Longer than the drive accepts in one command. */
	if (unlikely(part->op == SPW_DISCARD && part->len_bytes > d->ns->deallocate_bytes_max)) {
		discard_here_and_now(q, part);
		return 0;
	}
	if (!spw_vfio__pair_has_room(&d->pair))
		return -EAGAIN;
	if (likely(part->op <= SPW_WRITE)) {
		/* the controller accepts the length (VFIO-3) */
		SPW_ASSERT(part->len_bytes <= d->ns->command_bytes_max);
		if (!name_memory(q, d, part, slot, &pointer))
			return -EAGAIN;
		issue_transfer(d, slot, part->op == SPW_READ, &pointer, part->offset_bytes,
			       d->commands[slot].bytes ? d->commands[slot].bytes : part->len_bytes,
			       spw_engine__placement_of(&q->devices[part->device], part->io));
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
		spw_vfio__pair_submit(&v->devices[__builtin_ctzll(pending)].pair);
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

	/* No Abort command, as controllers may ignore it: the command ends by itself. */
	if (!v->devices[part->device].ns)
		v->other->cancel(q, part);
}

/* ---- Completions ----------------------------------------------------------------------------- */

/* Slow path of completions: a failed command, or one that vfio_prepare() did not issue. */
__attribute__((noinline)) static void end_command(struct spw_queue *q, struct vfio_device *d,
						  struct spw_part *part, uint32_t slot,
						  uint32_t status)
{
	struct command *command = &d->commands[slot];
	int64_t res;

	/* Zero also where the bit More points to the Error Information log page. */
	if ((status & SPW_NVME_STATUS_CODE) == 0)
		status = 0;
	if (spw_engine__io_is_whole(part->io))
		spw_engine__part_unfold(q, part);
	if (status == 0 && command->copy >= 0 && part->op == SPW_READ)
		copy_part(d, part, command);
	res = spw_nvme__part_result(q, part, status,
				    command->bytes ? command->bytes : part->len_bytes);
	give_back(d, command);
	spw_engine__part_completed(q, part, res);
	q->drive_status = 0;
}

static unsigned bury(struct spw_queue *q, struct vfio_device *d, struct spw_queue_device *dev,
		     uint64_t expired_ns);

static unsigned take_device(struct spw_queue *q, struct vfio_device *d,
			    struct spw_queue_device *dev)
{
	uint32_t slot = 0, status = 0, count = 0;
	int got = 0;

	/* At most one round of the ring: done may issue further commands, which may end too. */
	while (count <= d->pair.mask &&
	       (got = spw_vfio__pair_take(&d->pair, &slot, &status, NULL)) > 0) {
		struct spw_part *part = &dev->parts[slot];

		count++;
		if (unlikely(status != 0 ||
			     !spw_engine__whole_completed(q, part, part->io->len_bytes)))
			end_command(q, d, part, slot, status);
	}
	if (unlikely(got < 0)) {
		spw_vfio__controller_stop(d->ns->controller, -EIO, "queue %u: %s", d->pair.id,
					  d->pair.complaint);
		count += bury(q, d, dev, 0);
	} else {
		spw_vfio__pair_release(&d->pair);
	}
	return count;
}

/* The controller is stopped or being stopped: end all its parts. Return: how many ended. */
__attribute__((cold)) static unsigned bury(struct spw_queue *q, struct vfio_device *d,
					   struct spw_queue_device *dev, uint64_t expired_ns)
{
	struct spw_vfio_controller *c = d->ns->controller;
	unsigned count = 0;

	/* Returns when the controller cannot write to memory any more. */
	(void)spw_vfio__controller_error(c);
	/* now parts may be ended (VFIO-2) */
	SPW_ASSERT(spw_vfio__controller_state(c) == SPW_VFIO_STOPPED);
	/* Commands that it completed before are valid. */
	if (!d->pair.complaint)
		count = take_device(q, d, dev);
	if (d->dead)
		return count;
	d->dead = true;
	/* The kernel's request for the controller must not end sleeps any more. */
	(void)epoll_ctl(q->wake.watched, EPOLL_CTL_DEL, c->link->wanted_back, NULL);
	q->prepare = spw_engine__queue_prepare_any;
	spw_log(&q->log, SPW_LOG_ERROR, "%s; %u requests fail, and all after them", c->reason,
		d->pair.in_flight);
	for (uint32_t slot = 0; slot < q->depth; slot++) {
		const struct command *command = &d->commands[slot];
		struct spw_part *part = &dev->parts[slot];
		bool expired = expired_ns > 0 && command->seen_uses == d->pair.slots[slot].uses &&
			       command->seen_ns < expired_ns;

		if (!d->pair.slots[slot].busy)
			continue;
		spw_vfio__pair_forget(&d->pair, slot);
		give_back(d, &d->commands[slot]);
		spw_engine__part_completed(q, part,
					   c->error != -ETIMEDOUT ? c->error
					   : expired              ? -ETIMEDOUT
								  : -EIO);
		count++;
	}
	return count;
}

/* ---- Deadlines and dead controllers ---------------------------------------------------------- */

/* Has a command expired? Its time starts when a check first sees it in flight. */
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

/* Stop if a namespace was formatted or replaced: its data may be gone, or another user's. */
static void verify_if_changed(struct vfio_device *d)
{
	struct spw_vfio_controller *c = d->ns->controller;
	uint32_t changes = atomic_load_explicit(&c->namespace_changes, memory_order_relaxed);

	if (likely(changes == d->changes_seen))
		return;
	d->changes_seen = changes;
	if (spw_vfio__has_changed(d->ns))
		spw_vfio__controller_stop(c, -EIO,
					  "namespace %u is not what it was when it was opened: it "
					  "was formatted, replaced, cut or detached",
					  d->nvme.id);
}

static unsigned check_device(struct spw_queue *q, const struct vfio *v, struct vfio_device *d,
			     struct spw_queue_device *dev, uint64_t now_ns)
{
	unsigned count;

	if (spw_vfio__controller_check(d->ns->controller, &q->log))
		verify_if_changed(d);
	if (spw_vfio__controller_state(d->ns->controller) != SPW_VFIO_LIVE)
		return bury(q, d, dev, now_ns > v->timeout_ns ? now_ns - v->timeout_ns : 0);
	/* If this process was stopped meanwhile, completions that are there count as in time. */
	count = take_device(q, d, dev);
	if (d->dead || !find_expired(q, d, now_ns, v->timeout_ns))
		return count;
	spw_vfio__controller_stop(d->ns->controller, -ETIMEDOUT,
				  "a command of queue %u has not ended within %llu ms", d->pair.id,
				  (unsigned long long)(v->timeout_ns / 1000000));
	return count + bury(q, d, dev, now_ns - v->timeout_ns);
}

__attribute__((cold, noinline)) static unsigned check(struct spw_queue *q, struct vfio *v)
{
	uint64_t now_ns = spw_clock_ns();
	uint64_t interval_ns = SPW_MIN(CHECK_MS * UINT64_C(1000000), v->timeout_ns / 4);
	unsigned count = 0;

	if (now_ns < v->next_check_ns)
		return 0;
	v->next_check_ns = now_ns + interval_ns;
	for (unsigned i = 0; i < q->device_count; i++)
		if (v->devices[i].ns && !v->devices[i].dead)
			count += check_device(q, v, &v->devices[i], &q->devices[i], now_ns);
	return count;
}

/* ---- Waiting --------------------------------------------------------------------------------- */

/* Checked first because waiting in the other backend is a system call. */
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

/* Sleep, but check the controllers: if the kernel removes one, it waits for this thread. */
static int wait_without_commands(struct spw_queue *q, struct vfio *v, unsigned want,
				 int64_t timeout_ns)
{
	bool is_shortened = timeout_ns < 0 || timeout_ns > (int64_t)v->idle_ns;
	uint32_t before = spw_engine__queue_in_flight(q);
	int ret;

	if (is_shortened)
		timeout_ns = (int64_t)v->idle_ns;
	ret = v->other ? v->other->wait(q, want, timeout_ns)
		       : spw_engine__queue_sleep(q, timeout_ns);
	/* Nothing completed and no thread woke us: a controller's eventfd ended the sleep. */
	if (ret == 0 && spw_engine__queue_in_flight(q) == before &&
	    !atomic_load_explicit(&q->wake.asked, memory_order_relaxed))
		v->next_check_ns = 0;
	(void)check(q, v);
	return is_shortened && ret == -ETIME ? 0 : ret;
}

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
		uint32_t before = spw_engine__queue_in_flight(q);

		ret = v->other->wait(q, 0, 0);
		*taken += before > spw_engine__queue_in_flight(q)
				  ? before - spw_engine__queue_in_flight(q)
				  : 0;
	}
	if (unlikely(++v->looks % LOOKS_PER_CLOCK == 0))
		*taken += check(q, v);
	return ret;
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
			v->link->ops->relax(v->link);
	}
}

const struct spw_backend_ops spw_vfio__backend_vfio = {
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
	.add_range = vfio_add_range,
	.remove_range = vfio_remove_range,
	.status_text = spw_nvme_status_text,
};
