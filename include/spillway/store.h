/* SPDX-License-Identifier: MIT */
/*
 * spillway/store.h - objects striped over drives
 *
 * Contract
 *   Threads    A store may be used from any thread. It has opts.workers threads of its own. A
 *              request belongs to the thread that waits for it; two threads must not wait for the
 *              same request. In inline mode (opts.inline_mode) one thread owns the store, and
 *              waiting does the work.
 *   Buffers    The caller does not change a buffer of a put until the request has ended; a buffer
 *              of a get holds undefined bytes until then. Any address and any length will do;
 *              memory from spw_store_alloc(), and other memory that meets the drives' alignment, is
 *              not copied; every copy is counted.
 *   Fork       A store belongs to the process that opened it. In a child of fork(2) every call with
 *              an effect fails with -EPERM, spw_store_close() changes nothing for the parent, and
 *              memory of spw_store_alloc() is not mapped. The child may open a partition of its
 *              own.
 *   Objects    An object exists from a successful put until free. Its bytes never change.
 *   Durable    Committed objects are restored when the partition is opened again, after a stop, a
 *              crash or a power cut. Nothing else survives spw_store_close().
 *   Errors     0 or a count on success, a negative errno otherwise; spw_last_error() names the
 *              drive, the cause and the remedy.
 *   Promise    get returns the bytes that put was given, or an error. Never other bytes.
 */
#ifndef SPILLWAY_STORE_H
#define SPILLWAY_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/counters.h>
#include <spillway/engine.h>
#include <spillway/error.h>
#include <spillway/format.h>

#ifdef __cplusplus
extern "C" {
#endif

struct spw_store;   /* opaque */
struct spw_request; /* opaque, from a pool made at open */

/* Slot and generation: a freed object's id is invalid and never reused. Value 0: no object. */
typedef struct {
	uint64_t value;
} spw_object;
SPW_ABI(spw_object, value, 0, 8);

/* Priority for a drive's free slots. At most 8 requests in a row may overtake another. */
enum spw_class {
	SPW_URGENT_READ, /* a thread is waiting for it */
	SPW_PREFETCH,    /* a thread will wait for it */
	SPW_BACKGROUND,  /* no thread waits for it: writes */
	SPW_CLASSES,
};

enum spw_stripe {
	/* a drive takes the next chunk when it has a free slot; slow drives take less */
	SPW_STRIPE_PULL,
	/* 1 was RAID 0 order */
};

#define SPW_PARTITION_ANY UINT32_MAX
#define SPW_WORKERS_MAX   64u

#define SPW_COMMIT_NEWEST UINT64_MAX
#define SPW_COMMIT_NONE   (UINT64_MAX - 1)
/* The largest number that a commit may have. */
#define SPW_COMMIT_NUMBER_MAX (UINT64_MAX >> 1)
/* The largest record that may go with a commit. */
#define SPW_COMMIT_RECORD_BYTES_MAX (256u << 20)

struct spw_store_opts {
	size_t size; /* sizeof *this as the caller knows it */
	/* the partition that this process will own, or SPW_PARTITION_ANY; default 0 */
	uint32_t partition;
	/*
	 * chunks in flight per drive; urgent reads may take a quarter as many in addition. For a
	 * second after an urgent read, writes are limited to a sixth of the depth, in bytes;
	 * default 24
	 */
	uint32_t queue_depth;
	/* DMA memory for spw_store_alloc() and for copies, always resident; default 256 MiB */
	uint64_t arena_bytes;
	uint32_t requests_max;    /* requests that exist at once; default 4096 */
	uint32_t objects_max;     /* objects that exist at once; default 65536 */
	enum spw_stripe stripe;   /* default SPW_STRIPE_PULL */
	enum spw_backend backend; /* default SPW_BACKEND_AUTO */
	bool no_checksums;        /* trust the drives; default false */
	/* no I/O thread: waiting and spw_store_poll() do the work; default false */
	bool inline_mode;
	bool no_hugetlb;    /* see spw_arena_opts; default false */
	struct spw_log log; /* also called by the I/O thread; never with a lock held */
	/*
	 * a read that takes longer is reported and cancelled, except for the only copy on a drive
	 * over a network, which may take as long as the kernel retries; default 30000, 0: no
	 * deadline
	 */
	uint32_t read_deadline_ms;
	/*
	 * a write that takes longer retires its drive and is repeated on another; a drive over a
	 * network is revived if it completes the write later; default 30000, 0: no deadline
	 */
	uint32_t write_deadline_ms;
	/* see struct spw_queue_opts; read by spw_store_open() only; default NULL */
	const struct spw_tune *tune;
	/*
	 * Number of the commit to restore; default SPW_COMMIT_NEWEST; SPW_COMMIT_NONE: start with
	 * an empty partition. All other commits are abandoned for good. To list them:
	 * spw_committed()
	 */
	uint64_t commit_number;
	/*
	 * only read committed objects: put, trim and commit fail with -EROFS, and no commit is
	 * abandoned; default false
	 */
	bool read_only;
	/*
	 * threads that compute checksums and copy, up to SPW_WORKERS_MAX: the I/O thread (in inline
	 * mode the polling thread), which alone issues I/O, and helper threads. One thread keeps up
	 * with two of the fastest drives. Default 0: one thread for every two drives of a
	 * partition, at most one for every four CPUs; just one without checksums or in inline mode
	 */
	uint32_t workers;
	/* only SPW_BACKEND_NULL: see struct spw_queue_opts */
	uint64_t null_bytes_per_second;
	/*
	 * only with read_only: also while another process has the partition open, or this one.
	 * Nothing is locked or claimed. When that process commits again, reads may fail with
	 * -EBADMSG, and without checksums they return any bytes; default false
	 */
	bool shared;
};
SPW_ABI(struct spw_store_opts, shared, 104, 112);

/*
 * Notification of a request's end, instead of waiting: @done runs on the I/O thread (inline mode:
 * in the polling call), must not block, and may submit further requests.
 */
struct spw_notify {
	void (*done)(void *context, int res); /* 0 or a negative errno */
	void *context;
};
SPW_ABI(struct spw_notify, context, 8, 16);

/**
 * spw_store_opts_init - set the defaults
 * @opts:  set
 * @size:  sizeof *@opts
 */
SPW_EXPORT void spw_store_opts_init(struct spw_store_opts *opts, size_t size);

/**
 * spw_store_open - open a formatted store
 * @paths:  the store's drives, block devices or files, in any order
 * @count:  of @paths
 * @opts:   or NULL for the defaults
 * @store:  set on success, else NULL
 *
 * Reads the superblock of every drive, locks the partition and claims the drives (O_EXCL), a claim
 * shared by all processes that have the store open: until the last of them closes it, no other
 * process can mount, format or otherwise claim a drive. Restores the objects of the partition's
 * last commit, see spw_store_committed(), and abandons its other commits.
 *
 * Tests each drive with 64 KiB of free blocks, whose contents are restored: whether it transfers
 * the right bytes with memory aligned as it claims to support. Completes the superblock of a new
 * drive whose replacement of another was cut off once it was decided. Nothing else is written, and
 * nothing at all with opts.read_only. Does not format: see spw_format().
 *
 * Waits up to five seconds, which is logged, for a process that has a drive open exclusively, or
 * has locked the partition but has no status page: such a process was killed and its last write is
 * still in flight, or it is just closing the store.
 *
 * Return: 0; -ENXIO a drive of the store is missing; -ENOTUNIQ one is given twice; -EMEDIUMTYPE one
 * belongs to another store or to none, or was reused since; -EUCLEAN both superblock copies are
 * damaged, or a format did not finish; -ENOSPC a drive is smaller than when it was formatted;
 * -EBUSY another process, which is named, has the partition open, or a drive, a part of it or its
 * whole disk is mounted, claimed or in use; -EROFS one is write-protected; -EPROTONOSUPPORT a newer
 * disk format; -ENODATA the partition has no commit opts.commit_number; -EBADMSG the commit cannot
 * be read or is damaged, with the drive; -ENOMEM; or as open(2) and io_uring_setup(2).
 */
SPW_EXPORT int spw_store_open(const char *const paths[], unsigned count,
			      const struct spw_store_opts *opts, struct spw_store **store);

/**
 * spw_store_close - end all requests, forget all objects, and release the drives
 * @store:  or NULL
 *
 * Waits for I/O in flight; requests that have not been issued end with -ECANCELED. Requests must
 * not be waited for afterwards.
 */
SPW_EXPORT void spw_store_close(struct spw_store *store);

/**
 * spw_store_put - begin to store bytes as a new object
 * @store:    the store
 * @bytes:    must be readable and unchanged until the request has ended
 * @len:      bytes; not 0
 * @notify:   copied; reports the end, and releases the request; or NULL
 * @object:   set at once. A get may use it before the write has ended: the bytes then come from
 *            memory
 * @request:  without @notify: set at once, for spw_request_wait(), or spw_request_test() until that
 *            ends it. With @notify: NULL, or set for spw_request_cancel(), valid until done returns
 *
 * A chunk's drive is chosen later, when a drive has room. A drive that fails a write is retired,
 * and the chunk is written to another. A drive that lacks space underneath (a sparse file on a full
 * file system, a thin volume) or keeps returning -EAGAIN is tried again once a second. If the
 * request fails, the object still has to be freed.
 *
 * The store's threads read @bytes to compute checksums and to copy, and get SIGSEGV if they are not
 * readable, as memcpy() would. -EFAULT is returned only where neither is done: without checksums,
 * from aligned memory.
 *
 * Return: 0; -EINVAL @len is 0; -ENOSPC the partition has less than @len bytes left: nothing is
 * stored; -ENOBUFS all requests or objects are in use (the slot of a freed object is reused once
 * the I/O thread has seen it). The request ends with 0; -ENOSPC, -EAGAIN, -EIO no remaining drive
 * accepts the write; -ENOBUFS fragmentation has used up the chunk descriptors; -EFAULT the kernel
 * cannot read @bytes; -ENOMEM it has no memory for the transfer; -ECANCELED.
 */
SPW_EXPORT int spw_store_put(struct spw_store *store, const void *bytes, size_t len,
			     const struct spw_notify *notify, spw_object *object,
			     struct spw_request **request);

/**
 * spw_store_putv - begin to store bytes that lie in several pieces of memory
 * @store:    the store
 * @vector:   must stay valid, like the memory it describes, until the request has ended
 * @count:    of @vector
 * @notify:   as for spw_store_put()
 * @object:   the same
 * @request:  the same
 *
 * A chunk is not copied if it lies in at most 16 elements that are aligned as the drives need, and
 * all but the last consist of whole blocks of 4096 bytes; any other is gathered by a copy.
 *
 * Return: as spw_store_put().
 */
SPW_EXPORT int spw_store_putv(struct spw_store *store, const struct iovec vector[], unsigned count,
			      const struct spw_notify *notify, spw_object *object,
			      struct spw_request **request);

/**
 * spw_store_put_copies - begin to store long-lived bytes, optionally on two drives
 * @store:    the store
 * @bytes:    as for spw_store_put()
 * @len:      the same
 * @copies:   1; 2: every chunk is written to two different drives
 * @notify:   as for spw_store_put()
 * @object:   the same
 * @request:  the same
 *
 * On drives with data placement (FDP, write streams) these objects lie apart from those of
 * spw_store_put(): training state outlives the activations of a step, and a drive that mixes both
 * has to copy the state to make room.
 *
 * A get reads the copy whose drive will probably answer first, and the other copy if that fails;
 * whichever is read is verified. An urgent get prefers a local drive to one over a network. If
 * fewer than two drives in service have room, the object has one copy, which is logged and counted
 * (chunks_single).
 *
 * Return: as spw_store_put(); -EINVAL @copies.
 */
SPW_EXPORT int spw_store_put_copies(struct spw_store *store, const void *bytes, size_t len,
				    unsigned copies, const struct spw_notify *notify,
				    spw_object *object, struct spw_request **request);

/**
 * spw_store_get - begin to read a range of an object
 * @store:    the store
 * @object:   the object
 * @offset:   of the range in the object, in bytes
 * @bytes:    undefined until the request has ended
 * @len:      bytes
 * @cls:      SPW_URGENT_READ, SPW_PREFETCH or SPW_BACKGROUND
 * @notify:   as for spw_store_put()
 * @request:  the same
 *
 * With checksums, chunks that the range covers partly are read and verified whole.
 *
 * Return: 0; -ENOENT no such object; -ERANGE the range ends beyond the object; -ENOBUFS all
 * requests are in use. The request ends with 0; -EBADMSG the drive returned wrong bytes, with drive
 * and block; -EIO, -ENODEV; -ECANCELED.
 */
SPW_EXPORT int spw_store_get(struct spw_store *store, spw_object object, uint64_t offset,
			     void *bytes, size_t len, enum spw_class cls,
			     const struct spw_notify *notify, struct spw_request **request);

/**
 * spw_store_getv - begin to read a range of an object into several pieces of memory
 * @store:    the store
 * @object:   the object
 * @offset:   of the range in the object, in bytes
 * @vector:   must stay valid, like the memory it describes, until the request has ended; elements
 *            must not overlap, and may be empty
 * @count:    of @vector
 * @cls:      as for spw_store_get()
 * @notify:   as for spw_store_put()
 * @request:  the same
 *
 * Reads as many bytes as the elements have together, and fills them in order. Copies as
 * spw_store_putv() does. It is one request: if any part fails, the bytes of all elements are
 * undefined. Memory outside of them is never written to.
 *
 * Return: as spw_store_get(); -EINVAL an element has a length and no memory.
 */
SPW_EXPORT int spw_store_getv(struct spw_store *store, spw_object object, uint64_t offset,
			      const struct iovec vector[], unsigned count, enum spw_class cls,
			      const struct spw_notify *notify, struct spw_request **request);

/**
 * spw_store_holds - compare memory with an object, without reading a drive
 * @store:   the store
 * @object:  the object
 * @bytes:   as long as the whole object
 * @offset:  of the range to compare, in bytes
 * @len:     of the range
 *
 * Computes, in the calling thread, the checksums of all chunks that the range touches, and compares
 * them with those of the written bytes. Different bytes go unnoticed with a probability of 2^-64.
 *
 * Return: 1 the object has these bytes; 0 bytes differ in those chunks; -EINPROGRESS the object's
 * put is in flight; -ENOENT; -ERANGE; -EOPNOTSUPP the store was opened without checksums; or the
 * error of a failed put.
 */
SPW_EXPORT int spw_store_holds(struct spw_store *store, spw_object object, const void *bytes,
			       uint64_t offset, size_t len);

/**
 * spw_store_free - delete an object
 * @store:   the store
 * @object:  no longer usable, even while requests on it are in flight
 *
 * Its space can be reused when the last request on it has ended.
 *
 * Return: 0; -ENOENT no such object: freed before, or never created.
 */
SPW_EXPORT int spw_store_free(struct spw_store *store, spw_object object);

/**
 * spw_request_wait - wait for a request, and release it
 * @request:  not being waited for by another thread
 *
 * Return: how it ended: 0, or a negative errno with spw_last_error().
 */
SPW_EXPORT int spw_request_wait(struct spw_request *request);

/**
 * spw_request_test - release a request if it has ended
 * @request:  not being waited for by another thread
 *
 * Does not wait.
 *
 * Return: as spw_request_wait(); -EINPROGRESS it has not ended, and is not released.
 */
SPW_EXPORT int spw_request_test(struct spw_request *request);

/**
 * spw_request_wait_any - wait until one of several requests has ended
 * @requests:    of one store
 * @count:       of @requests
 * @timeout_ns:  negative: no limit
 *
 * Does not release the request: call spw_request_wait() or spw_request_test(), which return at
 * once.
 *
 * Return: the index of the first of @requests that has ended; -ETIMEDOUT.
 */
SPW_EXPORT int spw_request_wait_any(struct spw_request *const requests[], unsigned count,
				    int64_t timeout_ns);

/**
 * spw_store_wait_request - wait until a request is free
 * @store:       the store
 * @timeout_ns:  negative: no limit
 *
 * For a caller that got -ENOBUFS because all requests were in use, by any caller. Reserves nothing:
 * another thread may take the free request first. A request is in use until it has been waited for,
 * or until its notify function has returned. In inline mode this does the store's work meanwhile,
 * and returns if there is no work. Any thread may call it.
 *
 * Return: 0; -ETIMEDOUT all are still in use; -EPERM in a child of fork(2).
 */
SPW_EXPORT int spw_store_wait_request(struct spw_store *store, int64_t timeout_ns);

/**
 * spw_store_eventfd - a descriptor that is readable when a request without notify has ended
 * @store:  the store
 *
 * For event loops: read its 8 bytes, then spw_request_test() the requests. The store closes it;
 * every call returns the same one.
 *
 * Return: the descriptor, or a negative errno.
 */
SPW_EXPORT int spw_store_eventfd(struct spw_store *store);

/**
 * spw_request_cancel - stop a request that has not been issued
 * @request:  still has to be waited for, or notifies, in either case
 *
 * Return: 0 no part was issued: the request ends with -ECANCELED; -EALREADY part of it was issued,
 * or it has ended.
 */
SPW_EXPORT int spw_request_cancel(struct spw_request *request);

/**
 * spw_request_raise - raise the priority of a read
 * @request:  those of its parts that were not issued yet are served as @cls
 * @cls:      the new priority; if it is lower than the present one, nothing changes
 */
SPW_EXPORT void spw_request_raise(struct spw_request *request, enum spw_class cls);

/**
 * spw_store_flush - have every drive write out its volatile cache
 * @store:    the store
 * @notify:   as for spw_store_put()
 * @request:  the same
 *
 * When the request has ended, all puts that had ended before it was made are on the medium.
 * Activations do not need that; measurements do.
 *
 * Return: 0; -ENOBUFS all requests are in use. The request ends with 0, or the error of a drive.
 */
SPW_EXPORT int spw_store_flush(struct spw_store *store, const struct spw_notify *notify,
			       struct spw_request **request);

/* ---- Durable objects ---- */

#define SPW_COMMIT_KEEP_PREVIOUS 1u
#define SPW_COMMIT_MIRRORED      2u

/**
 * spw_store_commit - make a set of objects durable, replacing the previous commit
 * @store:    the store
 * @objects:  whose puts have succeeded; they will be restored in this order. They may be freed
 *            afterwards: the commit keeps their bytes
 * @count:    of @objects
 * @number:   the caller's number for the commit, such as a step: above that of the previous commit,
 *            and at most SPW_COMMIT_NUMBER_MAX
 * @record:   any bytes to be kept with it; or NULL
 * @len:      of @record, up to SPW_COMMIT_RECORD_BYTES_MAX
 * @flags:    0, or of SPW_COMMIT_*. KEEP_PREVIOUS: the previous commit stays durable too, until
 *            spw_store_commit_release(), for several processes that each commit the same step; if a
 *            commit is kept already, it stays, and the last commit is replaced. MIRRORED: the
 *            commit's manifest gets two copies even if no object has two
 *
 * Flushes the drives' volatile caches, then writes the manifest, then, on every drive, the commit
 * block that names it. A crash at any point leaves either the last commit or this one, complete;
 * while an earlier one is kept, that or this one: the last one is overwritten. Waits for the
 * drives; other threads may use the store meanwhile, but must not commit. Blocks of a committed
 * object are not reused before a later commit is durable, so the partition needs room for both.
 *
 * If all objects have two copies, one drive may fail at any time: the commit succeeds without it,
 * and the partition can be opened without it.
 *
 * Return: 0; -EINVAL the number is not above the last, an object is given twice, or @flags; -E2BIG
 * the manifest is too large; -ENOENT no such object; -EINPROGRESS a put is in flight; -EBUSY an
 * earlier commit is kept, and @flags lack KEEP_PREVIOUS; or another thread commits; -EROFS;
 * -EOPNOTSUPP without checksums; -ENOMEM; -ENOSPC, -ENOBUFS as a put; -EIO or another errno: a
 * drive with part of the commit, which the message names, could not write or flush, or was cut off
 * since the store was opened. After an error the last commit is still durable, or this one if its
 * block reached a drive; where an earlier one is kept, at least that. The blocks of none of them
 * are reused until a commit succeeds.
 */
SPW_EXPORT int spw_store_commit(struct spw_store *store, const spw_object objects[], uint32_t count,
				uint64_t number, const void *record, size_t len, unsigned flags);

/**
 * spw_store_commit_release - release the previous commit that was kept
 * @store:  the store
 *
 * Erases its commit block, then frees its space. Waits for the drives.
 *
 * Return: 0; -EBUSY a later commit failed while its blocks were written over those of the last, so
 * that the one that is kept is the only sure one: it can be released when another has succeeded; or
 * the error of a drive. After an error the commit is still kept.
 */
SPW_EXPORT int spw_store_commit_release(struct spw_store *store);

/**
 * spw_store_committed - what is durable now
 * @store:  the store
 * @info:   set: the commit that was restored when the store was opened, or the last commit made
 *          since
 * @size:   sizeof *@info
 *
 * Return: 0; -ENODATA no commit.
 */
SPW_EXPORT int spw_store_committed(struct spw_store *store, struct spw_commit_info *info,
				   size_t size);

/**
 * spw_store_committed_record - copy the record that was passed to the commit
 * @store:   the store
 * @record:  set
 * @len:     of the record: info.record_bytes
 *
 * Return: 0; -ENODATA no commit; -ERANGE @len differs.
 */
SPW_EXPORT int spw_store_committed_record(struct spw_store *store, void *record, size_t len);

/**
 * spw_store_committed_objects - the objects that opening the store has restored
 * @store:    the store
 * @objects:  set, in the order in which they were committed
 * @lens:     set to the length of each in bytes; or NULL
 * @count:    info.objects
 *
 * The objects belong to the caller and have to be freed, like those of puts. Later commits do not
 * change the result.
 *
 * Return: 0; -ENODATA no commit was restored; -ERANGE @count differs.
 */
SPW_EXPORT int spw_store_committed_objects(struct spw_store *store, spw_object objects[],
					   uint64_t lens[], uint32_t count);

/* What a scrub found on a drive. */
struct spw_scrub_drive {
	uint64_t copies, bytes; /* read */
	uint64_t copies_bad, copies_repaired;
	uint64_t reserved[2];
};
SPW_ABI(struct spw_scrub_drive, reserved, 32, 48);

struct spw_scrub {
	size_t size;
	uint64_t runs;        /* runs of bytes, which are chunks or parts of them */
	uint64_t runs_single; /* runs that have only one copy */
	uint64_t runs_lost;   /* runs without any intact copy */
	struct spw_scrub_drive drive[SPW_DRIVES_MAX];
};
SPW_ABI(struct spw_scrub, drive, 32, 3104);

/**
 * spw_store_scrub - read and verify every copy of the committed objects, and repair bad copies
 * @store:    just opened, without other requests in flight; may be opened read-only
 * @go_on:    called from time to time, in any thread, by one thread at a time; returning false ends
 *            the scrub; or NULL
 * @context:  of @go_on
 * @found:    set, whatever is returned
 * @size:     sizeof *@found
 *
 * Rewrites a bad copy in place with the bytes of the good one. Reads all drives at the same time.
 *
 * Return: 0 all copies are good now; -EBADMSG some are not: see the log; -ENODATA no commit;
 * -ECANCELED @go_on returned false; -ENOMEM; -EPERM in a child of fork(2).
 */
SPW_EXPORT int spw_store_scrub(struct spw_store *store,
			       bool (*go_on)(void *context, uint64_t done_bytes,
					     uint64_t all_bytes),
			       void *context, struct spw_scrub *found, size_t size);

/**
 * spw_store_resilver - create missing second copies of the committed objects
 * @store:    just opened: spw_store_committed_objects() returns other objects afterwards
 * @go_on:    called from time to time; returning false ends the operation; or NULL
 * @context:  of @go_on
 *
 * A commit that was made while a drive was missing, full or retired has single copies. These are
 * read, put with two copies, and committed once more under the same number. Needs space for the
 * copied objects. A commit does not record whether two copies were wanted: one that never had a
 * mirror gets one.
 *
 * Return: 0 all objects have two copies; -ENOSPC, -ECANCELED, or the error of a get or put: the
 * objects copied before that have two; -ENODATA no commit; -EBUSY a commit was made since the store
 * was opened; -EROFS; -ENOMEM; -EPERM in a child of fork(2); or as spw_store_commit().
 */
SPW_EXPORT int spw_store_resilver(struct spw_store *store,
				  bool (*go_on)(void *context, uint64_t done_bytes,
						uint64_t all_bytes),
				  void *context);

/**
 * spw_store_trim - discard the free blocks of the partition, on drives that support it
 * @store:    the store
 * @notify:   as for spw_store_put()
 * @request:  the same
 *
 * Discards one batch of extents; call it at the end of a step, because discards block the I/O
 * thread.
 *
 * Return: 0; -EROFS; -ENOBUFS all requests are in use. The request ends with 0, or the error of
 * a drive.
 */
SPW_EXPORT int spw_store_trim(struct spw_store *store, const struct spw_notify *notify,
			      struct spw_request **request);

/**
 * spw_store_revive - try a retired drive again
 * @store:  the store
 * @drive:  its index
 *
 * The drive gets new chunks from now on; the chunks on it stay valid. The next failed write retires
 * the drive again.
 *
 * Return: 0; -EINVAL no such drive; -EALREADY it is in service.
 */
SPW_EXPORT int spw_store_revive(struct spw_store *store, unsigned drive);

/**
 * spw_store_poll - inline mode: make progress
 * @store:  in inline mode
 * @wait:   true: wait until a request ends
 *
 * Return: how many requests ended; -EINVAL the store has an I/O thread; -EPERM in a child of
 * fork(2).
 */
SPW_EXPORT int spw_store_poll(struct spw_store *store, bool wait);

/**
 * spw_store_alloc - allocate DMA memory of the arena, which puts and gets never copy
 * @store:   the store
 * @len:     bytes
 * @memory:  set on success; valid until released, or the store is closed
 *
 * Does not wait.
 *
 * Return: 0; -EINVAL @len is 0; -ENOBUFS the arena has no such run of memory; -EPERM in a child of
 * fork(2).
 */
SPW_EXPORT int spw_store_alloc(struct spw_store *store, size_t len, void **memory);

/**
 * spw_store_release - free memory of spw_store_alloc()
 * @store:   the store
 * @memory:  not in use by a request; or NULL
 */
SPW_EXPORT void spw_store_release(struct spw_store *store, void *memory);

/**
 * spw_store_give_back - give memory of the arena that is not in use back to the system
 * @store:  the store
 *
 * Of the pages that lie after all that is allocated. They are taken again as they are used, which
 * takes time: so a call does nothing if those before it were too short a time ago for that to be
 * less than a hundredth of it. Does nothing for huge pages of the pool (vm.nr_hugepages), once
 * spw_store_arena() has been called, where controllers know the memory (vfio), or where the kernel
 * cannot change what is registered (before Linux 5.13, or a low ulimit -l). Any thread; does not
 * wait, and may be called with locks held.
 */
SPW_EXPORT void spw_store_give_back(struct spw_store *store);

/**
 * spw_store_arena - get the whole arena, so that it can be pinned for a device that copies to and
 * from it
 * @store:   the store
 * @memory:  set; valid until the store is closed
 * @len:     set, in bytes
 *
 * From then on its pages stay where they are, see spw_store_give_back().
 *
 * Return: 0; -EPERM in a child of fork(2).
 */
SPW_EXPORT int spw_store_arena(struct spw_store *store, void **memory, size_t *len);

/**
 * spw_store_alloc_max - get how much of the arena spw_store_alloc() can give in all
 * @store:  the store
 *
 * The rest is the store's own: bounce buffers take up to a quarter.
 *
 * Return: bytes; 0 in a child of fork(2).
 */
SPW_EXPORT uint64_t spw_store_alloc_max(const struct spw_store *store);

/**
 * spw_store_register - register the caller's memory with the drives, as the arena is
 * @store:   the store
 * @memory:  at any address; all of it is locked in memory (RLIMIT_MEMLOCK)
 * @len:     in bytes; at most 64 ranges are registered at once: prefer few large ones
 *
 * Pages of registered memory are not pinned and mapped again for each transfer, and controllers
 * behind vfio access them without a copy. Nothing else changes: puts and gets accept any memory as
 * before, and still copy memory that is not aligned as the drives need. If the kernel or the
 * backend refuses, for lack of locked memory (ulimit -l) or because the memory belongs to a file,
 * that is logged and counted, but not an error. Blocks; must not be called from a notify function.
 *
 * Unregister memory before it is unmapped or remapped: the kernel keeps the old pages, and
 * transfers would use them. In a child of fork(2) the registration remains the parent's.
 *
 * Return: 0, even if registering was refused: see registered_bytes and registrations_refused;
 * -EINVAL no memory; -EEXIST it overlaps the arena or a registered range; -ENOBUFS 64 ranges are
 * registered; -EPERM in a child of fork(2).
 */
SPW_EXPORT int spw_store_register(struct spw_store *store, void *memory, size_t len);

/**
 * spw_store_unregister - undo spw_store_register(), as closing the store does
 * @store:   the store
 * @memory:  the address that was registered
 *
 * Never waits for a drive. Succeeds if all requests with that memory have ended, except that a
 * write that missed its deadline keeps the memory in use until the drive has answered. Requests
 * that have not been issued yet use it as unregistered memory.
 *
 * Return: 0; -EBUSY a transfer with it is in flight, with the drive in spw_last_error(); -ENOENT no
 * registered memory begins there; -EPERM in a child of fork(2).
 */
SPW_EXPORT int spw_store_unregister(struct spw_store *store, void *memory);

/* Bytes transferred and in flight, over all threads that use the store. */
struct spw_store_traffic {
	uint64_t bytes_put, bytes_got; /* as in spw_store_stats */
	uint64_t bytes_in_flight;      /* of puts and gets that have not ended */
	uint64_t reserved[1];
};
SPW_ABI(struct spw_store_traffic, reserved, 24, 32);

/* Value of put_ns and get_ns before a drive was measured. */
#define SPW_PRESSURE_UNKNOWN UINT64_MAX

struct spw_store_pressure {
	size_t size;
	uint64_t put_bytes;              /* of puts that have not ended */
	uint64_t get_bytes[SPW_CLASSES]; /* of gets, by their class */
	/* bandwidth of all drives, a moving average while they are busy; 0: not measured yet */
	uint64_t put_bytes_per_second, get_bytes_per_second;
	/*
	 * time until such a request of @len bytes would have ended; or SPW_PRESSURE_UNKNOWN. A put
	 * with two copies takes twice as long
	 */
	uint64_t put_ns, get_ns[SPW_CLASSES];
	uint32_t in_flight, depth; /* transfers in flight on the drives, and the most possible */
};
SPW_ABI(struct spw_store_pressure, depth, 92, 96);

/* Latencies by powers of two: the first counts up to 2^14 ns, the last all longer ones. */
#define SPW_LATENCY_COUNTS    17u
#define SPW_LATENCY_FIRST_LOG 14u

struct spw_latencies {
	uint64_t counts[SPW_LATENCY_COUNTS]; /* not cumulative: each counts its own range */
	uint64_t sum_ns;
};
SPW_ABI(struct spw_latencies, sum_ns, 136, 144);

struct spw_drive_stats {
	size_t size;
	char path[256];
	bool retired;
	uint64_t capacity_bytes, used_bytes;
	uint64_t bytes_written, bytes_read, writes, reads;
	uint64_t write_errors, read_errors, checksum_errors;
	uint32_t in_flight, in_flight_max, depth;
	uint64_t write_bytes_per_second, read_bytes_per_second; /* moving average while busy */
	uint64_t timeouts;
	/* of transfers that ended in about the last half second of traffic; 0: there were none */
	uint64_t read_latency_ns_p50, read_latency_ns_p99, write_latency_ns_p50,
		write_latency_ns_p99;
	/* the part of write_errors because the file system or thin volume below was full */
	uint64_t writes_no_space;
	bool full; /* retired because it was full: tried again every second */
	/* since open, except for the last half second */
	struct spw_latencies read_latencies, write_latencies;
};
SPW_ABI(struct spw_drive_stats, write_latencies, 576, 720);

/**
 * spw_store_stats - read the counters
 * @store:  the store
 * @stats:  set; each value is exact, but they are not all of the same instant
 * @size:   sizeof *@stats
 *
 * Any thread. Sums up all drives; to call for each request, spw_store_traffic() is cheaper.
 */
SPW_EXPORT void spw_store_stats(struct spw_store *store, struct spw_store_stats *stats,
				size_t size);

/**
 * spw_store_traffic - read the counters of bytes, at little cost
 * @store:    the store
 * @traffic:  set
 *
 * Any thread; three loads.
 */
SPW_EXPORT void spw_store_traffic(struct spw_store *store, struct spw_store_traffic *traffic);

/**
 * spw_store_pressure - how many bytes are in flight, and how long a further request would take
 * @store:     the store
 * @len:       length of the further put or get
 * @pressure:  set
 * @size:      sizeof *@pressure
 *
 * To choose whether to put now or later, to wait or to recompute. Reads counters, takes no lock,
 * and does no I/O. The times assume that the drives stay as fast as they were lately, and that no
 * other requests are made: reads overtake writes, and more urgent reads overtake others.
 */
SPW_EXPORT void spw_store_pressure(struct spw_store *store, uint64_t len,
				   struct spw_store_pressure *pressure, size_t size);

/**
 * spw_store_drive_stats - read the counters of one drive
 * @store:  the store
 * @drive:  its index
 * @stats:  set on success
 * @size:   sizeof *@stats
 *
 * Return: 0; -EINVAL no such drive.
 */
SPW_EXPORT int spw_store_drive_stats(struct spw_store *store, unsigned drive,
				     struct spw_drive_stats *stats, size_t size);

/**
 * spw_store_publish_steps - publish the counters of a cache on the status page
 * @store:  the store
 * @steps:  copied
 *
 * spw_status_read() returns them after the next refresh of the page. A cache calls this in each
 * step; of several caches, the last caller's counters are published.
 */
SPW_EXPORT void spw_store_publish_steps(struct spw_store *store,
					const struct spw_cache_stats *steps);

/**
 * spw_store_ranks - the step counters that other ranks of the store have published
 * @store:       the store
 * @age_max_ns:  skip ranks whose status page was refreshed longer ago; it is refreshed during
 *               traffic
 * @see:         called for each such rank, before this returns
 * @context:     of @see
 *
 * The figures come from other processes: @see must check them.
 */
SPW_EXPORT void spw_store_ranks(struct spw_store *store, uint64_t age_max_ns,
				void (*see)(void *context, const struct spw_cache_stats *steps),
				void *context);

/**
 * spw_store_description - the backend and its features
 * @store:  the store
 *
 * Return: a text for logs and reports, valid until the store is closed.
 */
SPW_EXPORT const char *spw_store_description(const struct spw_store *store);

/**
 * spw_store_chunk_bytes - the unit of striping
 * @store:  the store
 *
 * Return: bytes.
 */
SPW_EXPORT uint64_t spw_store_chunk_bytes(const struct spw_store *store);

#ifdef __cplusplus
}
#endif
#endif
