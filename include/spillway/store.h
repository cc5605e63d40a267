/* SPDX-License-Identifier: MIT */
/*
 * spillway/store.h - objects striped over drives
 *
 * Contract
 *   Threads    A store may be used from any thread. It has opts.workers threads of its own. A
 *              request belongs to the thread that waits for it; two threads must not wait for the
 *              same request. In inline mode (opts.inline_mode) one thread owns the store, and
 *              waiting does the work.
 *   Buffers    A buffer handed to put stays untouched by its owner until the request has ended; one
 *              handed to get holds undefined bytes until then. Any address and any length will do;
 *              memory from spw_store_alloc(), and any other that meets the drives' alignment, is
 *              not copied; every copy is counted.
 *   Fork       A store belongs to the process that opened it. In a child of fork(2) every call that
 *              could do something fails with -EPERM, and spw_store_close() leaves all to the
 *              parent; memory of spw_store_alloc() is not there. The child may open a partition of
 *              its own.
 *   Objects    An object exists from a successful put until free. Its bytes never change.
 *   Durable    What was committed is there again when the partition is opened next, after a stop, a
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

/* Slot and generation: a freed object's id is refused, never reused. 0 is no object. */
typedef struct {
	uint64_t value;
} spw_object;

/* Who goes first when a drive has a free slot; after 8 overtakings the next in line does. */
enum spw_class {
	SPW_URGENT_READ, /* somebody waits */
	SPW_PREFETCH,    /* somebody will wait */
	SPW_BACKGROUND,  /* nobody waits: writes */
	SPW_CLASSES,
};

enum spw_stripe {
	/* a drive takes the next chunk when it has a free slot; slow drives take less */
	SPW_STRIPE_PULL,
	SPW_STRIPE_STATIC, /* RAID 0 order; the baseline */
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
	/* which part of the drives this process owns, or SPW_PARTITION_ANY; default 0 */
	uint32_t partition;
	/*
	 * chunks in flight per drive, beside a quarter as many of urgent reads; for a second after
	 * one of these, writes of a sixth of it in bytes; default 24
	 */
	uint32_t queue_depth;
	/* DMA memory for spw_store_alloc() and for copies, all resident; default 256 MiB */
	uint64_t arena_bytes;
	uint32_t requests_max;    /* requests that exist at once; default 4096 */
	uint32_t objects_max;     /* objects that exist at once; default 65536 */
	enum spw_stripe stripe;   /* default SPW_STRIPE_PULL */
	enum spw_backend backend; /* default SPW_BACKEND_AUTO */
	bool no_checksums;        /* trust the drives; default false */
	/* no I/O thread: waiting and spw_store_poll() do the work; default false */
	bool inline_mode;
	bool no_hugetlb;    /* see spw_arena_opts; default false */
	struct spw_log log; /* written to by the I/O thread too, with no lock held */
	/*
	 * a read that takes longer is reported and cancelled; the only copy on a drive over a
	 * network is waited for as long as the kernel tries to reach it; default 30000, 0: none
	 */
	uint32_t read_deadline_ms;
	/*
	 * a write that takes longer retires its drive and is made elsewhere; a drive over a network
	 * is in service again when it takes that write after all; the same
	 */
	uint32_t write_deadline_ms;
	/* of struct spw_queue_opts; read by spw_store_open() only; default NULL */
	const struct spw_tune *tune;
	/*
	 * Which commit to restore; default SPW_COMMIT_NEWEST. A number: that one.
	 * SPW_COMMIT_NONE: none, the partition is empty. Others are given up for good. Which there
	 * are: spw_committed()
	 */
	uint64_t commit_number;
	/*
	 * to look at what is committed: nothing is put, trimmed, committed or given up (-EROFS);
	 * default false
	 */
	bool read_only;
	/*
	 * threads that sum and copy what is put and got, up to SPW_WORKERS_MAX: the I/O thread (in
	 * inline mode who polls), which alone gives the drives their work, and others. One carries
	 * as much as two of the fastest drives. Default 0: chosen: one for each two drives
	 * that a partition can count on, but at most one for each four CPUs; one without checksums
	 * and in inline mode
	 */
	uint32_t workers;
	/* SPW_BACKEND_NULL: of struct spw_queue_opts */
	uint64_t null_bytes_per_second;
};

/*
 * How a request reports its end without anyone waiting: @done runs on the I/O thread (inline mode:
 * in the polling call), must not block, and may submit further requests.
 */
struct spw_notify {
	void (*done)(void *context, int res); /* 0 or a negative errno */
	void *context;
};

SPW_EXPORT void spw_store_opts_init(struct spw_store_opts *opts, size_t size);

/**
 * spw_store_open - open a formatted store for this process
 * @paths:  the store's drives, in any order (block devices or files)
 * @count:  how many
 * @opts:   options, or NULL for the defaults
 * @store:  set on success, else NULL
 *
 * Reads the superblock of every drive, takes the partition's lock, and claims the drives
 * exclusively (O_EXCL), together with all processes that have the store open: until the last of
 * them closes it, nobody who asks mounts, formats or otherwise takes one. The objects of the
 * partition's last commit are there again: see spw_store_committed(). Other commits are given up,
 * and each drive is tried on 64 KiB of free blocks of the partition, which are put back as they
 * were: does it move the right bytes to and from memory that lies as the drive says it may? Nothing
 * else is written, and nothing at all with opts.read_only. Does not format: see spw_format(). Who
 * has a drive exclusively, or has locked the partition and does not show that the store is open, is
 * waited for up to five seconds, and the log says so: a process that was killed, whose last write a
 * drive still has to take, or one that closes the store at this moment.
 *
 * Return: 0; -ENXIO a drive of the store is missing; -ENOTUNIQ one is given twice; -EMEDIUMTYPE one
 * belongs to another store or to none, or something else was made on it since; -EUCLEAN both
 * superblock copies are damaged, or a format did not finish; -ENOSPC a drive is smaller than when
 * it was formatted; -EBUSY the partition is open elsewhere (says in which process), or a drive, a
 * part of it or its whole is mounted, held or in use; -EROFS one is write-protected;
 * -EPROTONOSUPPORT a newer disk format; -ENODATA the partition has no commit opts.commit_number;
 * -EBADMSG what its commit says cannot be read or is damaged (names the drive); -ENOMEM; or what
 * open(2) and io_uring_setup(2) return.
 */
SPW_EXPORT int spw_store_open(const char *const paths[], unsigned count,
			      const struct spw_store_opts *opts, struct spw_store **store);

/**
 * spw_store_close - end all requests, forget all objects, release the drives
 *
 * Waits for I/O in flight; what has not been issued ends with -ECANCELED. Requests must not be
 * waited for afterwards.
 */
SPW_EXPORT void spw_store_close(struct spw_store *store);

/**
 * spw_store_put - begin to store @len bytes as a new object
 * @object:   set at once; may be used by get before the write has ended (the bytes then come from
 *            memory)
 * @notify:   copied; if given, it reports the end and releases the request by itself; else NULL
 * @request:  if @notify is NULL: set at once, must be given to spw_request_wait(), or to
 *            spw_request_test() until that ends it. With @notify it may be NULL; if not, it is set
 *            for spw_request_cancel(), valid until done returns.
 *
 * Places nothing yet: chunks find their drive when one has room. A drive that fails the write is
 * retired and the chunk goes to another. One that has no space below it, as a sparse file on a full
 * file system or a thin volume, or that answers -EAGAIN for ever, is tried again every second, by
 * the puts that come then. If the request fails, the object still has to be freed.
 *
 * Return: 0; -EINVAL @len is 0; -ENOSPC the partition has not @len bytes left (nothing is stored);
 * -ENOBUFS all requests or all objects are in use (a freed object's slot comes back when the worker
 * has seen it). The request's own end: 0; -ENOSPC, -EAGAIN, -EIO no drive is left that takes it
 * (-EAGAIN: all ask for another attempt, or some are full); -ENOBUFS fragmentation has used up the
 * chunk descriptors; -EFAULT the kernel cannot read @bytes; -ENOMEM it has no memory for the
 * transfer (of these two, no drive is to blame); -ECANCELED.
 *
 * @bytes must be readable until the request has ended: checksums and copies read them in the
 * worker's thread, which gets SIGSEGV where they are not, as memcpy() does. -EFAULT comes only
 * where neither is made: without checksums, of aligned memory.
 */
SPW_EXPORT int spw_store_put(struct spw_store *store, const void *bytes, size_t len,
			     const struct spw_notify *notify, spw_object *object,
			     struct spw_request **request);

/**
 * spw_store_putv - the same for bytes that lie in @count pieces of memory
 * @vector:  must stay valid, like the memory it describes, until the request has ended
 *
 * A chunk that lies in at most 16 elements, each aligned as the drives need it and, but for the
 * last, of whole blocks of 4096 bytes, is not copied; any other is gathered by a copy.
 */
SPW_EXPORT int spw_store_putv(struct spw_store *store, const struct iovec vector[], unsigned count,
			      const struct spw_notify *notify, spw_object *object,
			      struct spw_request **request);

/**
 * spw_store_put_copies - the same as spw_store_put(), of what lasts, and on two drives
 * @copies:  1; 2: every chunk is written to two different drives, each found as the one is
 *
 * What is put by this lies apart from what is put by the others, on drives that place data (FDP,
 * write streams): training state outlives the activations of a step, and a drive that has both in
 * one place copies the state to make room.
 *
 * A get reads the copy whose drive will probably be first, and the other one where that does not
 * serve; either is verified. An urgent one reads a copy on a drive of this machine rather than one
 * over a network. Where fewer than two drives in service have room, what is put has one
 * copy alone, which is logged and counted (chunks_single).
 *
 * Return: as spw_store_put(); -EINVAL @copies.
 */
SPW_EXPORT int spw_store_put_copies(struct spw_store *store, const void *bytes, size_t len,
				    unsigned copies, const struct spw_notify *notify,
				    spw_object *object, struct spw_request **request);

/**
 * spw_store_get - begin to read @len bytes of an object from @offset on
 * @cls:  SPW_URGENT_READ, SPW_PREFETCH or SPW_BACKGROUND
 *
 * The rest as for spw_store_put(). With checksums on, chunks that the range covers in part are read
 * and verified whole.
 *
 * Return: 0; -ENOENT no such object; -ERANGE beyond its end; -ENOBUFS. The request's own end: 0;
 * -EBADMSG the drive returned other bytes than were written (names the drive and block); -EIO,
 * -ENODEV; -ECANCELED.
 */
SPW_EXPORT int spw_store_get(struct spw_store *store, spw_object object, uint64_t offset,
			     void *bytes, size_t len, enum spw_class cls,
			     const struct spw_notify *notify, struct spw_request **request);

/**
 * spw_store_getv - the same into @count pieces of memory, filled one after the other
 * @vector:  must stay valid, like the memory it describes, until the request has ended. Elements
 *           must not overlap; empty ones are passed over
 *
 * Reads as many bytes as the elements have together. What is copied is as for spw_store_putv(), and
 * counted. One request: it ends well when all elements are filled and verified; when it fails, for
 * whatever part of it, the bytes of all elements are undefined. Memory beside them is never written
 * to.
 *
 * Return: as spw_store_get(); -EINVAL an element has a length and no memory.
 */
SPW_EXPORT int spw_store_getv(struct spw_store *store, spw_object object, uint64_t offset,
			      const struct iovec vector[], unsigned count, enum spw_class cls,
			      const struct spw_notify *notify, struct spw_request **request);

/**
 * spw_store_holds - compare memory with what an object has, without reading a drive
 * @bytes:  as long as the object: the whole of what it would be compared with
 *
 * Computes the checksums of the chunks that [offset, offset + len) covers, also in part, in the
 * calling thread, and compares them with those of what was written: other bytes have the same one
 * by a chance of 2^-64.
 *
 * Return: 1 the object holds these bytes; 0 it holds others, in those chunks; -EINPROGRESS its put
 * goes on; -ENOENT; -ERANGE; -EOPNOTSUPP the store was opened without checksums; or how its put
 * failed.
 */
SPW_EXPORT int spw_store_holds(struct spw_store *store, spw_object object, const void *bytes,
			       uint64_t offset, size_t len);

/**
 * spw_store_free - forget an object
 *
 * Its space can be reused as soon as the last request on it has ended: at once if there is none.
 *
 * Return: 0; -ENOENT no such object (freed before, or never there).
 */
SPW_EXPORT int spw_store_free(struct spw_store *store, spw_object object);

/*
 * Wait for a request and release it. Return: how it ended, 0 or a negative errno; the words are in
 * spw_last_error().
 */
SPW_EXPORT int spw_request_wait(struct spw_request *request);

/* As spw_request_wait(), without waiting. -EINPROGRESS: it goes on, and is not released. */
SPW_EXPORT int spw_request_test(struct spw_request *request);

/**
 * spw_request_wait_any - wait until one of several requests of one store has ended
 * @timeout_ns:  negative: no limit
 *
 * Does not release it: spw_request_wait() or spw_request_test() on it does, and then returns at
 * once.
 *
 * Return: the index of the first of @requests that has ended; -ETIMEDOUT.
 */
SPW_EXPORT int spw_request_wait_any(struct spw_request *const requests[], unsigned count,
				    int64_t timeout_ns);

/**
 * spw_store_eventfd - for event loops: a descriptor that becomes readable when a request without a
 * notify has ended
 *
 * Read its 8 bytes, then spw_request_test() the requests. The store's: do not close it. The same on
 * every call.
 *
 * Return: the descriptor, or a negative errno.
 */
SPW_EXPORT int spw_store_eventfd(struct spw_store *store);

/**
 * spw_request_cancel - stop what has not been issued
 *
 * Return: 0 nothing of it had been issued and no drive is touched: it will end with -ECANCELED;
 * -EALREADY part of it is on the way, or it has ended. Either way its end still has to be waited
 * for, or notified.
 */
SPW_EXPORT int spw_request_cancel(struct spw_request *request);

/* Somebody waits now: serve what has not been issued of a read as @cls. Does not lower. */
SPW_EXPORT void spw_request_raise(struct spw_request *request, enum spw_class cls);

/**
 * spw_store_flush - have every drive write out its volatile cache
 *
 * What puts that ended before have written is then on the medium. Activations do not need it;
 * measurements do.
 */
SPW_EXPORT int spw_store_flush(struct spw_store *store, const struct spw_notify *notify,
			       struct spw_request **request);

/* ---- Durable objects ---- */

#define SPW_COMMIT_KEEP_PREVIOUS 1u
#define SPW_COMMIT_MIRRORED      2u

/**
 * spw_store_commit - make a set of objects durable, in place of the set committed before
 * @objects:        their puts have ended well; in the order in which they are to be found again.
 *                  May be freed as soon as this returns: what is committed keeps their bytes
 * @number:         the caller's name for it, at most SPW_COMMIT_NUMBER_MAX: a step. Above that of
 *                  the commit before
 * @record:         any bytes that belong to it, up to SPW_COMMIT_RECORD_BYTES_MAX; NULL: none
 * @flags:          0, or of SPW_COMMIT_*. KEEP_PREVIOUS: the set before stays durable, too, until
 *                  spw_store_commit_release(): for one of several processes that commit the same
 *                  step each for itself. Where one is kept already, that one stays, and the last is
 *                  replaced: others have not got it. MIRRORED: the set's description gets two
 *                  copies also where none of the objects has
 *
 * Writes out the drives' volatile caches, then the set's description, then, on every drive, the
 * block that names it. A crash at any point leaves the set before or this one, complete. Blocks
 * until then; other threads may use the store meanwhile. No blocks of a committed object are used
 * again before a later commit is durable, so the partition has to have room for both.
 *
 * Where all objects have two copies, one drive may fail at any moment: the commit is made without
 * it, and the partition can be opened without it.
 *
 * One commit at a time: not from two threads at once.
 *
 * Return: 0; -EINVAL a number that is not above the last, an object twice, or no such flag; -E2BIG
 * the description does not fit; -ENOENT an object is not there; -EINPROGRESS a put goes on; -EBUSY
 * the previous commit was kept, is not released, and this one does not keep it; -EROFS; -EOPNOTSUPP
 * without checksums; -ENOSPC, -ENOBUFS as of a put of the description; -EIO and the like: a drive
 * that holds some of it could not write or flush, or was cut since it was opened, it is named.
 * After an error the set before is durable still, or, if the block was written all the same, this
 * one, or, where one is kept, at least that; the blocks of all stay until a commit succeeds.
 */
SPW_EXPORT int spw_store_commit(struct spw_store *store, const spw_object objects[], uint32_t count,
				uint64_t number, const void *record, size_t len, unsigned flags);

/*
 * The previous commit, if it was kept, is not needed any more: it is made unfindable, then its
 * space can be used again. Blocks until then. Return: 0; how a drive failed: it is kept still.
 */
SPW_EXPORT int spw_store_commit_release(struct spw_store *store);

/**
 * spw_store_committed - what is durable now: what was restored when the store was opened, or what
 * has been committed since
 *
 * Return: 0; -ENODATA nothing is.
 */
SPW_EXPORT int spw_store_committed(struct spw_store *store, struct spw_commit_info *info,
				   size_t size);

/**
 * spw_store_committed_record - copy the record that was given with the commit
 * @len:  room in @record: info.record_bytes
 *
 * Return: 0; -ENODATA nothing is committed; -ERANGE @len is another.
 */
SPW_EXPORT int spw_store_committed_record(struct spw_store *store, void *record, size_t len);

/**
 * spw_store_committed_objects - the objects that opening the store has restored, in the order in
 * which they were committed
 * @objects:  info.objects of them
 * @lens:     the length of each in bytes; may be NULL
 *
 * They are the caller's, like those of puts: to be freed when they are not needed any more. Later
 * commits do not change what this gives.
 *
 * Return: 0; -ENODATA nothing was restored; -ERANGE @count is another.
 */
SPW_EXPORT int spw_store_committed_objects(struct spw_store *store, spw_object objects[],
					   uint64_t lens[], uint32_t count);

/* What a scrub found on a drive. */
struct spw_scrub_drive {
	uint64_t copies, bytes; /* read */
	uint64_t copies_bad, copies_repaired;
};

struct spw_scrub {
	size_t size;
	uint64_t runs;        /* of bytes: chunks, or parts of them */
	uint64_t runs_single; /* of these, how many have one copy alone */
	uint64_t runs_lost;   /* of which no copy is good, or there */
	struct spw_scrub_drive drive[SPW_DRIVES_MAX];
};

/**
 * spw_store_scrub - read and verify every copy of what is committed, and mend bad ones
 * @go_on:  may be NULL; called in between, in any thread, one at a time; false ends it
 * @found:  set, whatever this returns
 *
 * A bad copy is written again, where it lies, with the bytes of the good one. Of a store that was
 * opened to be read only, too: what is committed does not change. Right after the store was opened:
 * nothing else may be under way. All drives are read at the same time.
 *
 * Return: 0 all is good now; -EBADMSG something is not, which the log names; -ENODATA nothing is
 * committed; -ECANCELED; -ENOMEM; -EPERM in a child of fork(2).
 */
SPW_EXPORT int spw_store_scrub(struct spw_store *store,
			       bool (*go_on)(void *context, uint64_t done_bytes,
					     uint64_t all_bytes),
			       void *context, struct spw_scrub *found, size_t size);

/**
 * spw_store_resilver - second copies, where they are missing, of what is committed
 * @go_on:  may be NULL; called in between; false ends it
 *
 * Where a commit was made while a drive was missing, full or out of service, some of it has one
 * copy alone. That is read, put in two copies, and committed once more under the same number. Right
 * after the store was opened: what spw_store_committed_objects() gives is other objects afterwards.
 * Needs as much room as what is copied. It does not know whether two copies are wanted: of a commit
 * without a mirror it makes one with.
 *
 * Return: 0 all has two copies; -ENOSPC, -ECANCELED, or how a get or a put failed: what was copied
 * until then has two; how the commit failed: as of spw_store_commit(); -ENODATA nothing is
 * committed; -EBUSY something was committed since; -EROFS; -ENOMEM; -EPERM in a child of fork(2).
 */
SPW_EXPORT int spw_store_resilver(struct spw_store *store,
				  bool (*go_on)(void *context, uint64_t done_bytes,
						uint64_t all_bytes),
				  void *context);

/**
 * spw_store_trim - tell the drives that can which blocks of the partition are free (discard)
 *
 * One batch, best at the end of a step: discards block the I/O worker. Drives that cannot discard
 * are left out.
 */
SPW_EXPORT int spw_store_trim(struct spw_store *store, const struct spw_notify *notify,
			      struct spw_request **request);

/**
 * spw_store_revive - try a retired drive again
 *
 * It gets new chunks from now on; what was on it is where it was. The next failed write retires it
 * again.
 *
 * Return: 0; -EINVAL no such drive; -EALREADY it is in service.
 */
SPW_EXPORT int spw_store_revive(struct spw_store *store, unsigned drive);

/* Inline mode: do what can be done; @wait: until something ends. Return: how many requests did. */
SPW_EXPORT int spw_store_poll(struct spw_store *store, bool wait);

/* DMA memory of the arena, never copied, until freed or closed. -ENOBUFS: it is used up. */
SPW_EXPORT int spw_store_alloc(struct spw_store *store, size_t len, void **memory);
SPW_EXPORT void spw_store_release(struct spw_store *store, void *memory);

/*
 * The whole arena, so that it can be made known to a device that copies to and from it (pinned),
 * until the store is closed. Return: 0; -EPERM: in a child of fork().
 */
SPW_EXPORT int spw_store_arena(struct spw_store *store, void **memory, size_t *len);

/**
 * spw_store_register - make memory of the caller's known to the drives, as the arena is
 * @memory:  whole of it is locked in memory (RLIMIT_MEMLOCK); at any address
 * @len:     in bytes; at most 64 ranges are registered at once: rather few and large ones
 *
 * Registered once, its pages need not be pinned and mapped for each transfer; controllers behind
 * vfio reach it without a copy. It changes nothing else: puts and gets take any memory as before,
 * and what drives cannot take unaligned is copied still. Where the kernel or the backend refuses,
 * for want of locked memory (ulimit -l), say, or memory of a file, all goes on as without it: that
 * is logged and counted, and no error. Blocks; not from a notify.
 *
 * Unregister it before it is unmapped or mapped anew: the kernel keeps the pages that were there,
 * and transfers would go on with those. Memory that a child of fork(2) shares stays the parent's.
 *
 * Return: 0, whether it helps or not: see registered_bytes and registrations_refused; -EINVAL no
 * memory; -EEXIST it overlaps the arena or what is registered; -ENOBUFS 64 ranges are; -EPERM.
 */
SPW_EXPORT int spw_store_register(struct spw_store *store, void *memory, size_t len);

/**
 * spw_store_unregister - the reverse, by the address that was registered; closing the store does it
 *
 * Never waits for a drive: while a transfer with that memory is in flight nothing is done. So does
 * a write that missed its deadline, until the drive has answered. When all requests with that
 * memory have ended it succeeds at once otherwise; requests that have not been issued yet go on as
 * from any memory.
 *
 * Return: 0; -EBUSY a transfer with it is in flight, the words name the drive; -ENOENT no
 * registered memory begins there; -EPERM.
 */
SPW_EXPORT int spw_store_unregister(struct spw_store *store, void *memory);

/* What all who use this handle have moved, and what of it is under way. */
struct spw_store_traffic {
	uint64_t bytes_put, bytes_got; /* as in spw_store_stats */
	uint64_t bytes_in_flight;      /* of puts and gets that have not ended */
};

/* A time, while no drive was measured yet. */
#define SPW_PRESSURE_UNKNOWN UINT64_MAX

struct spw_store_pressure {
	size_t size;
	uint64_t put_bytes;              /* of puts that have not ended */
	uint64_t get_bytes[SPW_CLASSES]; /* of gets, by the class with which they were asked for */
	/* of all drives, moving average while busy; 0: not measured yet */
	uint64_t put_bytes_per_second, get_bytes_per_second;
	/*
	 * until such a request of @len bytes would have ended; or SPW_PRESSURE_UNKNOWN. A put in
	 * two copies counts once, and takes twice that
	 */
	uint64_t put_ns, get_ns[SPW_CLASSES];
	uint32_t in_flight, depth; /* transfers that the drives have, and can have at once */
};

/* Latencies by powers of two: the first of so many counts is up to 2^14 ns, the last for longer. */
#define SPW_LATENCY_COUNTS    17u
#define SPW_LATENCY_FIRST_LOG 14u

struct spw_latencies {
	uint64_t counts[SPW_LATENCY_COUNTS]; /* each of its own range only */
	uint64_t sum_ns;
};

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
	/* of what ended in about the last half second of traffic; 0: none of that kind */
	uint64_t read_latency_ns_p50, read_latency_ns_p99, write_latency_ns_p50,
		write_latency_ns_p99;
	/* of write_errors: the file system or the thin volume under it was full */
	uint64_t writes_no_space;
	bool full; /* retired for that: tried again every second */
	/* since open, but for those of the last half second */
	struct spw_latencies read_latencies, write_latencies;
};

/* Counters so far. A snapshot: values of one instant each, not one instant for all. */
SPW_EXPORT void spw_store_stats(struct spw_store *store, struct spw_store_stats *stats,
				size_t size);
/* For who asks with each request: three counters, where spw_store_stats() sums over the drives. */
SPW_EXPORT void spw_store_traffic(struct spw_store *store, struct spw_store_traffic *traffic);

/**
 * spw_store_pressure - how much is under way, and how long more of it would take
 * @len:  bytes that would be put, or got, now
 *
 * For who has a choice: to put now or later, to wait or to compute. Reads counters, takes no lock
 * and asks nobody. The times hold while the drives stay as fast as they were lately and nothing is
 * asked for besides: reads go before writes, and more urgent ones before others.
 */
SPW_EXPORT void spw_store_pressure(struct spw_store *store, uint64_t len,
				   struct spw_store_pressure *pressure, size_t size);
SPW_EXPORT int spw_store_drive_stats(struct spw_store *store, unsigned drive,
				     struct spw_drive_stats *stats, size_t size);

/*
 * For others to see (spw_status_read()), with the next refresh of the status page. A cache does so
 * with each step; of several, the last one is seen.
 */
SPW_EXPORT void spw_store_publish_steps(struct spw_store *store,
					const struct spw_cache_stats *steps);

/**
 * spw_store_ranks - what the other ranks of the store have published of their steps
 * @age_max_ns:  of those alone whose status page was refreshed so lately: it is while there is
 *               traffic
 * @see:         called for each of them, before this returns
 *
 * The figures are another process's: whoever uses them checks them.
 */
SPW_EXPORT void spw_store_ranks(struct spw_store *store, uint64_t age_max_ns,
				void (*see)(void *context, const struct spw_cache_stats *steps),
				void *context);

/* The backend and its features, in words. */
SPW_EXPORT const char *spw_store_description(const struct spw_store *store);
SPW_EXPORT uint64_t spw_store_chunk_bytes(const struct spw_store *store);

#ifdef __cplusplus
}
#endif
#endif
