/* SPDX-License-Identifier: MIT */
/*
 * spillway/engine.h - devices, DMA memory and queues: transfers blocks, knows nothing of objects
 *
 * Contract
 *   Threads    A queue belongs to one thread: the one that first prepares, submits or reaps on it.
 *              Only spw_queue_wake() may be called from another. An arena may be used from any
 *              thread. A device is immutable once open and may be shared.
 *   Buffers    A buffer belongs to the engine from spw_queue_prepare() until its io's done function
 *              is called. Address, offset and length must meet the device's geometry: the engine
 *              does not copy; it fails with -EINVAL, and the message says what is unaligned.
 *   Lifetime   A device outlives the queues opened on it; an arena outlives the queues that
 *              registered it.
 *   Errors     0 or a count, or a negative errno, with a message in spw_last_error(). The result of
 *              an io is in io->res.
 *   Memory     spw_queue_open() allocates everything; preparing, submitting and reaping allocate
 *              nothing.
 */
#ifndef SPILLWAY_ENGINE_H
#define SPILLWAY_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <spillway/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Devices ---- */

struct spw_device; /* opaque */

enum spw_device_kind {
	SPW_DEVICE_BLOCK,     /* /dev/nvme0n1, /dev/loop3 */
	SPW_DEVICE_FILE,      /* a regular file, opened O_DIRECT */
	SPW_DEVICE_NVME_CHAR, /* /dev/ng0n1 */
	SPW_DEVICE_VFIO,      /* pci:0000:3d:00.0/1 */
};

/* A device as the system describes it. All lengths are bytes. Unknown texts are "". */
struct spw_geometry {
	size_t size; /* sizeof *this as the library knows it */
	enum spw_device_kind kind;
	uint64_t size_bytes;
	uint32_t logical_block_bytes; /* unit of offset and length of every transfer */
	/* smallest unit the drive writes without read-modify-write */
	uint32_t physical_block_bytes;
	/* buffers start at a multiple of this (STATX_DIOALIGN where the kernel has it) */
	uint32_t memory_align_bytes;
	/* largest transfer that the kernel hands to the drive in one piece */
	uint32_t transfer_bytes_max;
	uint32_t segments_max; /* scatter-gather entries per transfer; 0: unknown */
	int numa_node;         /* -1: unknown or none */
	bool rotational;
	bool polls;    /* completions can be polled (io_poll of the block queue) */
	bool discards; /* discard is supported */
	char model[64];
	char serial[64];
	char nvme_char_path[64]; /* /dev/ngXnY, if it is an NVMe namespace */
	/* of an NVMe drive's nearest path: "pcie", "tcp", "rdma", "fc", "loop" */
	char transport[16];
	uint64_t reserved[6]; /* 0; room for new fields, as this struct is embedded in others */
};
SPW_ABI(struct spw_geometry, reserved, 264, 312);

struct spw_device_opts {
	size_t size;    /* sizeof *this as the caller knows it */
	bool read_only; /* default false */
	/* O_EXCL: -EBUSY if the block device is mounted or claimed; default false */
	bool exclusive;
	struct spw_log log;
};
SPW_ABI(struct spw_device_opts, log, 16, 32);

/**
 * spw_device_opts_init - set the defaults
 * @opts:  set
 * @size:  sizeof *@opts
 */
SPW_EXPORT void spw_device_opts_init(struct spw_device_opts *opts, size_t size);

/**
 * spw_device_open - open a device for direct I/O and read its geometry
 * @path:    a block device, an NVMe character device, a regular file, or a namespace behind vfio
 * @opts:    or NULL for the defaults
 * @device:  set on success, else NULL
 *
 * Writes nothing, and does not read the contents. Of an NVMe character device (/dev/ng0n1) the
 * block device is opened too, for locks, exclusive claims and spw_device_pread() etc.; only queues
 * bypass it.
 *
 * pci:0000:3d:00.0/1 is namespace 1 of the NVMe controller at that PCI address, which must be bound
 * to vfio-pci. Only one process can have a controller; within it, locks and exclusive claims work
 * as between processes on a block device.
 *
 * Return: 0; -ENOENT, -EACCES, -EBUSY as open(2); -ENOTBLK neither a block device nor a regular
 * file; -EOPNOTSUPP the file system refuses O_DIRECT; -EFBIG a file opened for writing is longer
 * than RLIMIT_FSIZE; -ENODEV a device of size 0, a character device without its block device, or a
 * controller that is not bound to vfio-pci; -EINVAL an invalid name of a namespace behind vfio.
 */
SPW_EXPORT int spw_device_open(const char *path, const struct spw_device_opts *opts,
			       struct spw_device **device);

/**
 * spw_device_close - close a device
 * @device:  without open queues; or NULL
 *
 * Ends its locks and claims.
 */
SPW_EXPORT void spw_device_close(struct spw_device *device);

/**
 * spw_device_block_node - get the block device node of a device, whose mounts, locks and signatures
 * count
 * @path:  a device
 * @node:  set to the block node of an NVMe character device (/dev/ng0n1 -> /dev/nvme0n1); else to
 *         @path, even if it does not exist, or is behind vfio and has no node
 * @len:   room in @node, in bytes
 *
 * Return: 0; -ENODEV the namespace has no block device, or its node is missing; -ENAMETOOLONG.
 */
SPW_EXPORT int spw_device_block_node(const char *path, char *node, size_t len);

/**
 * spw_device_path - the path by which a device was opened
 * @device:  the device
 *
 * Return: the path, valid until the device is closed.
 */
SPW_EXPORT const char *spw_device_path(const struct spw_device *device);

/**
 * spw_device_geometry - the geometry that a device had when it was opened
 * @device:  the device
 *
 * Return: the geometry, valid until the device is closed.
 */
SPW_EXPORT const struct spw_geometry *spw_device_geometry(const struct spw_device *device);

/**
 * spw_device_pread - read some blocks, outside of a queue
 * @device:        the device
 * @buf:           aligned as for a queue
 * @len:           bytes, a multiple of the logical block
 * @offset_bytes:  the same
 *
 * Blocks. Continues after a short transfer.
 *
 * Return: 0 all bytes were read; else a negative errno.
 */
SPW_EXPORT int spw_device_pread(const struct spw_device *device, void *buf, size_t len,
				uint64_t offset_bytes);

/**
 * spw_device_pwrite - write some blocks, outside of a queue
 * @device:        the device, not opened read-only
 * @buf:           aligned as for a queue
 * @len:           bytes, a multiple of the logical block
 * @offset_bytes:  the same
 *
 * Blocks. Continues after a short transfer. The write is not durable before spw_device_sync().
 *
 * Return: 0 all bytes were written; else a negative errno.
 */
SPW_EXPORT int spw_device_pwrite(const struct spw_device *device, const void *buf, size_t len,
				 uint64_t offset_bytes);

/**
 * spw_device_sync - make completed writes durable
 * @device:  the device
 *
 * Blocks until the drive has written out its volatile cache.
 *
 * Return: 0; a negative errno.
 */
SPW_EXPORT int spw_device_sync(const struct spw_device *device);

/**
 * spw_device_discard - tell a device that a range holds no data any more
 * @device:        the device
 * @offset_bytes:  a multiple of the logical block
 * @len_bytes:     the same
 *
 * Blocks until the device has completed it. Reads of the range return undefined bytes afterwards.
 *
 * Return: 0; -EOPNOTSUPP the device cannot discard; -EINVAL unaligned, or beyond the end.
 */
SPW_EXPORT int spw_device_discard(const struct spw_device *device, uint64_t offset_bytes,
				  uint64_t len_bytes);

/**
 * spw_device_lock - take an exclusive advisory lock (OFD) on a byte range
 * @device:        opened read-write
 * @offset_bytes:  where the range begins
 * @len_bytes:     its length
 *
 * Does not wait. The lock ends with spw_device_unlock(), spw_device_close() or the process.
 * Children of fork(2) share the lock until they exec or exit.
 *
 * Return: 0; -EBUSY another process holds a lock in the range.
 */
SPW_EXPORT int spw_device_lock(const struct spw_device *device, uint64_t offset_bytes,
			       uint64_t len_bytes);

/**
 * spw_device_unlock - release a lock
 * @device:        the device
 * @offset_bytes:  as for spw_device_lock()
 * @len_bytes:     the same
 *
 * Return: 0; a negative errno.
 */
SPW_EXPORT int spw_device_unlock(const struct spw_device *device, uint64_t offset_bytes,
				 uint64_t len_bytes);

/* ---- DMA memory ---- */

/* opaque: memory on huge pages, registered with each queue whose opts.arena it is */
struct spw_arena;

struct spw_arena_opts {
	size_t size;
	uint64_t bytes;  /* rounded up to 2 MiB; default 256 MiB */
	int numa_node;   /* preferred node (libnuma); -1: no preference; default -1 */
	bool no_hugetlb; /* use transparent huge pages at once; default false */
	struct spw_log log;
};
SPW_ABI(struct spw_arena_opts, log, 24, 40);

/* Length and address of every allocation are multiples of this. */
#define SPW_ARENA_GRANULE_BYTES 65536u

/**
 * spw_arena_opts_init - set the defaults
 * @opts:  set
 * @size:  sizeof *@opts
 */
SPW_EXPORT void spw_arena_opts_init(struct spw_arena_opts *opts, size_t size);

/**
 * spw_arena_open - reserve DMA memory
 * @opts:   or NULL for the defaults
 * @arena:  set on success, else NULL
 *
 * Uses free huge pages, else transparent ones, else plain pages; the choice and its reason are
 * logged. Does not touch the pages, but registering the arena with io_uring makes all of it
 * resident.
 *
 * Return: 0; -EINVAL; -ENOMEM.
 */
SPW_EXPORT int spw_arena_open(const struct spw_arena_opts *opts, struct spw_arena **arena);

/**
 * spw_arena_close - free an arena and everything allocated from it
 * @arena:  no longer registered with an open queue; or NULL
 */
SPW_EXPORT void spw_arena_close(struct spw_arena *arena);

/**
 * spw_arena_alloc - allocate at the lowest free address
 * @arena:   the arena
 * @len:     bytes, rounded up to SPW_ARENA_GRANULE_BYTES
 * @memory:  set on success, aligned to SPW_ARENA_GRANULE_BYTES; the bytes are undefined
 *
 * Any thread. Does not wait, and does not grow the arena.
 *
 * Return: 0; -EINVAL @len is 0; -ENOBUFS no free run of that length.
 */
SPW_EXPORT int spw_arena_alloc(struct spw_arena *arena, size_t len, void **memory);

/**
 * spw_arena_free - free an allocation
 * @arena:   the arena
 * @memory:  of spw_arena_alloc(); or NULL
 *
 * Any thread.
 */
SPW_EXPORT void spw_arena_free(struct spw_arena *arena, void *memory);

/**
 * spw_arena_memory - the whole memory of an arena
 * @arena:  the arena
 * @len:    set to its length in bytes
 *
 * Return: its address.
 */
SPW_EXPORT void *spw_arena_memory(const struct spw_arena *arena, size_t *len);

/* ---- Queues ---- */

struct spw_queue; /* opaque: submission and completion over one or more devices */

enum spw_backend {
	/* vfio if a device needs it; nvme if all are NVMe char devices; else io_uring, or libaio */
	SPW_BACKEND_AUTO,
	SPW_BACKEND_IO_URING,
	SPW_BACKEND_LIBAIO,
	/* passthrough (io_uring_cmd): whole NVMe namespaces, bypassing the block layer */
	SPW_BACKEND_NVME,
	/* this process drives the controllers' queues; io_uring for devices not behind vfio */
	SPW_BACKEND_VFIO,
	/* for measuring: does not access drives; writes are lost, reads leave memory unchanged */
	SPW_BACKEND_NULL,
};

enum spw_op {
	SPW_READ,
	SPW_WRITE,
	SPW_FLUSH,   /* the drive's volatile cache; offset and length are ignored */
	SPW_DISCARD, /* deallocate a range; -EOPNOTSUPP if the device cannot */
};

/*
 * One transfer, allocated by the caller, for example inside a struct of its own. The caller fills
 * in the fields before res; the engine sets res and calls done exactly once, from spw_queue_reap()
 * or spw_queue_close(). The io may be prepared again from within done.
 */
struct spw_io {
	enum spw_op op;
	uint32_t device; /* index into the queue's devices */
	/* NULL: iov and iov_count describe the memory, which must stay valid until done */
	void *buf;
	const struct iovec *iov;
	uint32_t iov_count;
	uint32_t len_bytes; /* at most SPW_IO_BYTES_MAX; of a vector, the sum of its lengths */
	uint64_t offset_bytes;
	void (*done)(struct spw_io *io);
	void *context; /* the caller's */

	int32_t res; /* bytes transferred, always all of them; or a negative errno */

	/* private: engine */
	struct spw_io *engine_next;
	uint32_t engine_state;
	uint32_t engine_parts;        /* parts in flight */
	uint32_t engine_issued_bytes; /* bytes cut into parts so far */
	int32_t engine_error;         /* of the first part that failed */
	uint32_t engine_iov_index;    /* where the next part begins */
	uint32_t engine_iov_offset;
	uint32_t engine_status; /* the drive's status of the part that failed; 0: there is none */
	uint32_t engine_reserved[2];

	/* set by the caller of a write, up to SPW_PLACEMENT_MAX; 0: as in spw_queue_opts */
	uint32_t placement;
};
SPW_ABI(struct spw_io, placement, 108, 112);

#define SPW_PLACEMENT_MAX 3u

#define SPW_IO_BYTES_MAX      (1u << 30)
#define SPW_QUEUE_DEPTH_MAX   1024u
#define SPW_QUEUE_DEVICES_MAX 64u

enum spw_wait {
	SPW_WAIT_INTERRUPT, /* sleep until an interrupt */
	SPW_WAIT_POLL,      /* poll the drives (IOPOLL); needs devices that poll */
	SPW_WAIT_SQPOLL,    /* a kernel thread submits; reaping sleeps */
};

#define SPW_TUNE_FORMAT 1 /* of the file that `spillway tune` writes */

/*
 * The best settings for reads, or for writes, on all drives at once; depth per drive, 0: unknown.
 */
struct spw_tune_settings {
	uint64_t block_bytes;
	uint32_t depth;
	enum spw_backend backend;
	enum spw_wait wait;
	uint32_t reserved;
};
SPW_ABI(struct spw_tune_settings, reserved, 20, 24);

struct spw_tune {
	size_t size;
	struct spw_tune_settings read, write;
};
SPW_ABI(struct spw_tune, write, 32, 56);

struct spw_queue_opts {
	size_t size;
	enum spw_backend backend; /* default SPW_BACKEND_AUTO */
	enum spw_wait wait;       /* default SPW_WAIT_INTERRUPT; falls back to it, logged */
	/* kernel requests in flight per device, 1..SPW_QUEUE_DEPTH_MAX; default 32 */
	uint32_t depth;
	/* registered with the queue if the backend can; or NULL */
	struct spw_arena *arena;
	struct spw_log log;
	/*
	 * For drives with data placement, which keeps data of different lifetimes apart: by
	 * placement handles (FDP) when bypassing the block layer, else by write streams (Linux
	 * 6.16). The number, from 1, of the handle for writes whose io has placement 0, modulo the
	 * drive's number of handles; 0: no placement; default 0. A drive without placement is
	 * logged and written without it.
	 */
	uint32_t placement;
	/*
	 * Result of spw_tune_read() for these drives, or NULL. Its depth, multiplied by its block
	 * size in MiB, replaces depth; its backend, which falls back as SPW_BACKEND_AUTO does, and
	 * its wait replace the defaults; this is logged. Read by spw_queue_open() only.
	 */
	const struct spw_tune *tune;
	/* vfio: the controller of a command that takes longer is stopped; 0: 30 s; default 0 */
	uint32_t timeout_ms;
	/* SPW_BACKEND_NULL: bandwidth of a device; 0: transfers end at once; default 0 */
	uint64_t null_bytes_per_second;
};
SPW_ABI(struct spw_queue_opts, null_bytes_per_second, 72, 80);

/* Counters of one queue; all are totals since open. */
struct spw_queue_stats {
	size_t size;
	uint64_t ios, bytes_read, bytes_written;
	uint64_t parts;           /* kernel requests: more than ios when transfers were split */
	uint64_t parts_fixed;     /* kernel requests with registered memory */
	uint64_t short_transfers; /* transfers that were continued after a short result */
	/* after -EAGAIN or -EINTR, or a large part failed and was split in half */
	uint64_t retries;
	uint64_t errors;
	uint64_t system_calls; /* io_uring_enter, io_submit, io_getevents */
	uint64_t sleeps;
	uint32_t in_flight_max;
	/* present io_uring worker threads of the process, for requests that would have blocked */
	uint32_t kernel_workers;
	/* vfio: parts copied through mapped memory, because their memory is not in the arena, */
	uint64_t parts_copied_foreign;
	/* vfio: parts copied because the elements of a vector do not fill whole pages */
	uint64_t parts_copied_gaps;
	uint64_t bytes_copied;
	/* vfio: drives that are driven through their IOMMU groups, because iommufd does not work */
	uint32_t vfio_by_group;
	uint32_t drives_placing; /* drives whose writes have a placement */
};
SPW_ABI(struct spw_queue_stats, drives_placing, 124, 128);

/**
 * spw_queue_opts_init - set the defaults
 * @opts:  set
 * @size:  sizeof *@opts
 */
SPW_EXPORT void spw_queue_opts_init(struct spw_queue_opts *opts, size_t size);

/**
 * spw_queue_open - open a queue over devices
 * @devices:  must outlive the queue
 * @count:    1 to SPW_QUEUE_DEVICES_MAX
 * @opts:     or NULL for the defaults
 * @queue:    set on success, else NULL
 *
 * Probes the backend. SPW_BACKEND_AUTO falls back from nvme to io_uring to libaio, but never from
 * vfio, and never selects null. Features that the kernel refuses are left out, one at a time. The
 * choice, what was left out and why are logged and part of spw_queue_description().
 *
 * Return: 0; -EINVAL; -ENOMEM; or as io_uring_setup(2) or io_setup(2).
 */
SPW_EXPORT int spw_queue_open(struct spw_device *const devices[], unsigned count,
			      const struct spw_queue_opts *opts, struct spw_queue **queue);

/**
 * spw_queue_close - cancel what can be cancelled, wait for the rest, and free the queue
 * @queue:  or NULL
 *
 * Call it from the thread that used the queue. Calls done for every io in the queue. Does not
 * return while a device may still write to a caller's buffer.
 */
SPW_EXPORT void spw_queue_close(struct spw_queue *queue);

/**
 * spw_queue_backend - the backend of a queue
 * @queue:  the queue
 *
 * Return: the backend, never SPW_BACKEND_AUTO.
 */
SPW_EXPORT enum spw_backend spw_queue_backend(const struct spw_queue *queue);

/**
 * spw_queue_description - the backend and its features, for logs and reports
 * @queue:  the queue
 *
 * Return: a text such as "io_uring: single_issuer registered files and memory", valid until the
 * queue is closed.
 */
SPW_EXPORT const char *spw_queue_description(const struct spw_queue *queue);

/**
 * spw_queue_prepare - hand over an io, to be issued by the next submit or reap
 * @queue:  the queue
 * @io:     must stay valid, with its memory, until done is called
 *
 * Transfers beyond the depth wait inside the queue, in order. A transfer larger than the device or
 * the kernel accepts is split into parts; done is called when all have completed. Allocates
 * nothing, and makes no system call.
 *
 * Return: 0; -EINVAL unaligned, empty, too long, beyond the device's end, or no such device: done
 * is not called then.
 */
SPW_EXPORT int spw_queue_prepare(struct spw_queue *queue, struct spw_io *io);

/**
 * spw_queue_submit - issue what was prepared, up to the depth, with one system call
 * @queue:  the queue
 *
 * Does not call done.
 *
 * Return: 0; a negative errno.
 */
SPW_EXPORT int spw_queue_submit(struct spw_queue *queue);

/**
 * spw_queue_reap - submit, then call done for completed ios
 * @queue:       the queue
 * @min:         wait for at least this many ios, or for all in the queue if there are fewer; 0 does
 *               not wait. If the queue is empty, only spw_queue_wake(), a signal or the timeout
 *               ends the wait
 * @timeout_ns:  limit of the wait; negative: no limit
 *
 * Returns early, with what has completed, after spw_queue_wake() or a signal. done is called from
 * here and from spw_queue_close() only.
 *
 * Return: how many ios completed; a negative errno of the queue itself, never of an io; -EDEADLK
 * called from inside done.
 */
SPW_EXPORT int spw_queue_reap(struct spw_queue *queue, unsigned min, int64_t timeout_ns);

/**
 * spw_queue_wake - make a sleeping or the next spw_queue_reap() return early
 * @queue:  the queue
 *
 * Any thread, and async-signal-safe.
 */
SPW_EXPORT void spw_queue_wake(struct spw_queue *queue);

/**
 * spw_queue_cancel - try to stop an io
 * @queue:  the queue
 * @io:     prepared, and not completed
 *
 * Parts that were not issued yet are dropped; issued parts are cancelled if possible. done is
 * called in any case, later, from spw_queue_reap(): with res -ECANCELED if the io was stopped, else
 * with its outcome. A write that was stopped midway may have reached the drive.
 *
 * Return: 0; -ENOENT the io is not in the queue.
 */
SPW_EXPORT int spw_queue_cancel(struct spw_queue *queue, struct spw_io *io);

/**
 * spw_queue_stats - read the counters of a queue
 * @queue:  the queue
 * @stats:  set
 * @size:   sizeof *@stats
 */
SPW_EXPORT void spw_queue_stats(struct spw_queue *queue, struct spw_queue_stats *stats,
				size_t size);

/**
 * spw_queue_short_slice - have the calling thread scheduled soon after it wakes up
 *
 * For a thread that does little but reap, prepare and submit. With a short time slice (Linux 6.12;
 * earlier kernels ignore it) it is scheduled before threads that compute, so that drives do not
 * become idle. Its share of the processor stays the same. Threads that it creates from then on
 * inherit the slice.
 *
 * Return: 0; -EOPNOTSUPP the thread has a real-time, batch or idle policy, which is not changed;
 * another negative errno.
 */
SPW_EXPORT int spw_queue_short_slice(void);

#ifdef __cplusplus
}
#endif
#endif
