/* SPDX-License-Identifier: MIT */
/*
 * spillway/cache.h - the tensor cache: which saved tensors spill, when, and when they come back
 *
 * The caller (the binding of a training framework) reports its progress in the step and offers the
 * tensors that the forward pass saves. It gets an id for each tensor, and later the bytes for that
 * id. The cache decides everything in between: by a fixed rule, or, in the modes that plan, by
 * measurements of previous steps. See tensor/control/control.c.
 *
 * Contract
 *   Threads    Every function may be called from any thread. spw_cache_take(), spw_cache_close(),
 *              spw_cache_wait_write() and, if asked to, spw_cache_hold_back() wait for I/O; no
 *              other function does. Steps, stages and scopes describe one forward and backward pass
 *              at a time: report those from one thread at a time.
 *   Memory     The cache never copies and never frees memory that is offered. An offer that
 *              returned SPW_OFFER_KEEP or SPW_OFFER_SPILL passes its token to the cache, and the
 *              caller keeps the memory alive and unchanged until spw_cache_drain() returns the
 *              token, exactly once: when the bytes are on the drives, or when the last user of the
 *              entry is gone. The token of any other offer (SPW_OFFER_DEDUP, SPW_OFFER_AGAIN,
 *              errors) is never returned, and the cache does not use its memory. So until the
 *              caller releases a tensor, the token that spw_cache_take() returns is one whose
 *              memory the caller has kept.
 *   Identity   A storage is identified by the caller's key, which must not be reused while the
 *              cache has an entry with it, and a version that changes with every in-place write. An
 *              address that may be reused, or a clock, will not do.
 *   Errors     0 or a count, or a negative errno with spw_last_error(). A failing drive never makes
 *              an offer fail: the tensor stays in memory. If a write fails later, the entry stays
 *              in memory too, because the caller has not freed it yet.
 *   Log        The log function is called without a lock of the cache held, and may call the cache.
 *   Promise    take returns the bytes that were offered, or an error. Never other bytes.
 */
#ifndef SPILLWAY_CACHE_H
#define SPILLWAY_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/counters.h>
#include <spillway/error.h>
#include <spillway/plan.h>
#include <spillway/store.h>

#ifdef __cplusplus
extern "C" {
#endif

struct spw_cache;        /* opaque */
struct spw_trace_writer; /* of spillway/trace.h */

/* Slot and generation, like spw_object. Value 0: no tensor. */
typedef struct {
	uint64_t value;
} spw_tensor;
SPW_ABI(spw_tensor, value, 0, 8);

/*
 * The last two modes record each step and plan, and replan when the step or the drives have
 * changed. A thread searches for the plan during the next step, which still uses the old plan; the
 * new plan is in force from the step after that. Up to four step signatures have a plan each. The
 * first two steps, and any step whose signature has no plan, follow the rule of SPW_CACHE_SPILL,
 * and in modes FASTEST and BUDGET prefetch while memory stays below the step's peak so far.
 */
enum spw_cache_mode {
	/* spill tensors, unless small, of the last scope or backward, or too many for the drives */
	SPW_CACHE_SPILL,
	/* keep everything, only count: measures the memory that plain training needs */
	SPW_CACHE_OBSERVE,
	/* plans the lowest peak without a stall, then the fewest bytes written */
	SPW_CACHE_FASTEST,
	/* plans the fewest bytes written such that the peak fits memory_bytes */
	SPW_CACHE_BUDGET,
	/* 4 was SSDTrain's rule, which plans by position: spillway replay compares with it */
};

struct spw_cache_opts {
	size_t size;
	enum spw_cache_mode mode; /* default SPW_CACHE_FASTEST */
	uint64_t min_bytes;       /* smaller tensors are kept; default 64 KiB */
	/* most bytes that wait to be written; beyond it tensors are kept; default 1 GiB */
	uint64_t staging_bytes;
	/* most bytes prefetched without a plan; 0: the largest scope's spilled bytes; default 0 */
	uint64_t prefetch_bytes;
	/* do not keep the last scope before the backward pass; default false */
	bool spill_last_scope;
	uint32_t tensors_max; /* entries that exist at once; more are kept; default 65536 */
	struct spw_log log;
	/* SPW_CACHE_BUDGET: most bytes of activations in memory; no default */
	uint64_t memory_bytes;
	/* every call is recorded here; owned by the caller, must outlive the cache; or NULL */
	struct spw_trace_writer *trace;
	/*
	 * Most bytes that are written per day; 0: no limit. In any period no more is written than
	 * the limit allows for that period plus an hour; other tensors are kept. Cancelled writes
	 * do not count. Other writes of this process to the store, such as optimizer state, do, but
	 * are never delayed. Plans stay within the limit for the time of a step.
	 */
	uint64_t wear_bytes_per_day;
	/* a limit by years that the drives should last from now, see spw_wear(); 0: no limit */
	double wear_years;
	/* for wear_years: the rated endurance of each drive in bytes; 0: unknown */
	uint64_t endurance_bytes;
};
SPW_ABI(struct spw_cache_opts, endurance_bytes, 96, 104);

enum spw_stage {
	SPW_STAGE_FORWARD,
	SPW_STAGE_BACKWARD,
};

/* What the caller knows about a tensor. */
enum spw_cache_hint {
	SPW_HINT_NONE,
	/* keep it, unless a budget cannot be met otherwise */
	SPW_HINT_KEEP,
	/* 2 was to spill it whatever its size and the plan: min_bytes says what is too small */
	SPW_HINT_PIN = 3, /* keep it in any case */
	/*
	 * the caller can recompute the tensor by running its scope again, whose input the caller
	 * keeps: the plan may discard the tensor
	 */
	SPW_HINT_AGAIN,
	/*
	 * the caller can recompute the tensor, with its scope or by itself; in a forward stage it
	 * is discarded whatever the plan says, unless it is small
	 */
	SPW_HINT_GIVE_UP,
	/*
	 * the tensor is the input from which the innermost scope is recomputed. Offering it before
	 * leaving the scope says that the scope can be recomputed; it is needed until the scope's
	 * tensors are released
	 */
	SPW_HINT_INPUT,
};

enum spw_offer_result {
	/* stays in memory: keep the memory until its token is reaped, after the last release */
	SPW_OFFER_KEEP,
	/* is written to the drives: keep the memory until its token is reaped, after the write */
	SPW_OFFER_SPILL,
	/* an entry has these bytes: the memory is not needed, its token is never reaped */
	SPW_OFFER_DEDUP,
	/* like SPW_OFFER_SPILL, for a device: copy the bytes, and report the end of the copy */
	SPW_OFFER_COPY,
	/*
	 * like SPW_OFFER_DEDUP, for a device, but the copy in flight may have begun before the
	 * memory changed: copy the bytes once more, after that copy, and report the end
	 */
	SPW_OFFER_COPY_AGAIN,
	/*
	 * like SPW_OFFER_KEEP, for a device, for now: there will be staging memory when copies and
	 * writes in flight have ended; see spw_cache_copy_retry()
	 */
	SPW_OFFER_WAIT,
	/*
	 * discarded: the memory is not needed, its token is never reaped. Takes return
	 * SPW_TAKE_AGAIN until the scope has been recomputed, see spw_cache_restore()
	 */
	SPW_OFFER_AGAIN,
};

/*
 * The bytes of a saved tensor: the part [offset, offset + len) of a storage that contains its
 * elements. If that is at least half of the storage, the whole storage is stored once for all its
 * views, else only that part.
 *
 * An offer is a duplicate of an entry with the same key and version if its part lies within the
 * entry's, and has the same bytes: the version may not count all changes (in PyTorch not those
 * through .data). The bytes are not compared while the cache holds the entry's token. Otherwise the
 * offer compares them with the bytes read back, or by checksum with those written. During a write,
 * a thread of the cache compares them when the write has ended, and if they changed, the entry
 * stays in memory. So spw_cache_offer() may take as long as reading the memory once. In a store
 * without checksums, an entry that was written has no duplicates.
 */
struct spw_offer {
	uint64_t storage_key;
	uint64_t storage_version;
	const void *storage_bytes;  /* the whole storage */
	uint64_t storage_len_bytes; /* at most 2^56 */
	uint64_t offset_bytes, len_bytes;
	/* the caller's token for the memory, not 0; spw_cache_drain() returns it */
	uint64_t owner;
	/*
	 * of the save, counted from 1 in each step: spw_cache_keep() knows it by that in later
	 * steps; 0: it is to be offered in those, too. With a number the part is the whole storage
	 */
	uint64_t number;
	uint64_t reserved[2]; /* must be 0 */
};
SPW_ABI(struct spw_offer, reserved, 64, 80);

/* A tensor that stays in the caller's memory, and that no entry stands for. */
struct spw_kept {
	uint64_t id; /* 0: none */
	uint64_t len_bytes;
	uint64_t reserved[2];
};
SPW_ABI(struct spw_kept, reserved, 16, 32);

/* Result of a take: the tensor was discarded, recompute its scope. */
#define SPW_TAKE_AGAIN 1

struct spw_taken {
	/* the offered range [offset, offset + len); NULL: use the memory of @owner */
	const void *bytes;
	/* if bytes is NULL: token of the offer whose memory (the whole storage) has the bytes */
	uint64_t owner;
	/* if bytes is not NULL: for spw_cache_return() when the bytes are no longer used */
	uint64_t lease;
	uint64_t storage_bytes_before; /* distance from the start of the lease's memory to bytes */
	/* length of the lease's memory, which views of one storage share */
	uint64_t storage_bytes_total;
	uint64_t reserved[3];
};
SPW_ABI(struct spw_taken, reserved, 40, 64);

/**
 * spw_cache_opts_init - set the defaults
 * @opts:  set
 * @size:  sizeof *@opts
 */
SPW_EXPORT void spw_cache_opts_init(struct spw_cache_opts *opts, size_t size);

/**
 * spw_cache_open - create a cache over a store
 * @store:  must outlive the cache, and not be in inline mode, where no thread would poll it during
 *          a take. NULL only in SPW_CACHE_OBSERVE, and in SPW_CACHE_BUDGET, which then plans what
 *          is kept and what is recomputed
 * @opts:   or NULL for the defaults
 * @cache:  set on success, else NULL
 *
 * Return: 0; -EINVAL; -ENOMEM; -ENODATA opts.wear_years is given, and the endurance of a drive is
 * unknown.
 */
SPW_EXPORT int spw_cache_open(struct spw_store *store, const struct spw_cache_opts *opts,
			      struct spw_cache **cache);

/**
 * spw_cache_close - cancel and wait for I/O in flight, and free the cache
 * @cache:  not in use by any thread; or NULL
 *
 * Outstanding leases become invalid, and the memory of outstanding tokens is no longer needed.
 * Copies between a device and staging memory must have ended before the call, even if
 * spw_cache_copied() was not called for them.
 */
SPW_EXPORT void spw_cache_close(struct spw_cache *cache);

/* ---- Where the caller is --------------------------------------------------------------------- */

/**
 * spw_cache_step - begin a training step
 * @cache:  the cache
 *
 * The step begins in the forward stage of micro-batch 0, outside of all scopes. Tensors of the last
 * step that were not released stay valid, but are not prefetched.
 */
SPW_EXPORT void spw_cache_step(struct spw_cache *cache);

/** enum spw_step - what spw_cache_step_rest() returns */
enum spw_step {
	SPW_STEP_SEEN, /* the step is to be seen, as after spw_cache_step() */
	/*
	 * The same. The step before moved nothing: by a plan that moves nothing and is not about to
	 * be replaced, or as all its tensors were smaller than min_bytes.
	 */
	SPW_STEP_CALM,
	SPW_STEP_RESTS,      /* nothing need be offered in the step, nor perhaps in the next; */
	SPW_STEP_RESTS_LAST, /* and the next is to be seen */
};

/**
 * spw_cache_step_rest - begin a training step, in which nothing need be offered if nothing moves
 * @cache:     the cache
 * @may_rest:  the step is one of those whose plans move nothing, for all that the caller can tell;
 *             false: as spw_cache_step(), with an answer
 *
 * After four steps in a row that moved nothing, seven rest; the step after them is seen; then 15
 * rest, 31 and so on, up to 255. A step that is seen and moves something ends that. With a budget
 * steps rest only if twice of what they hold fits into it; while a trace is recorded none does.
 *
 * A step that rests counts in steps and steps_resting; no other counter or measurement has it. What
 * is offered in it all the same is kept.
 *
 * Return: an enum spw_step.
 */
SPW_EXPORT int spw_cache_step_rest(struct spw_cache *cache, bool may_rest);

/**
 * spw_cache_stage - enter a forward or backward stage
 * @cache:        the cache
 * @micro_batch:  its number in the step
 * @stage:        the stage
 *
 * In SPW_STAGE_BACKWARD the micro-batch's tensors are prefetched in the reverse order of their last
 * offers, and new offers (recomputation, double backward) are kept. A caller that never reports
 * SPW_STAGE_BACKWARD reports SPW_STAGE_FORWARD, or calls spw_cache_step(), before each forward
 * pass: the first take after it then begins the backward stage.
 */
SPW_EXPORT void spw_cache_stage(struct spw_cache *cache, uint32_t micro_batch,
				enum spw_stage stage);

/**
 * spw_cache_stage_next - enter a stage, and announce the next one
 * @cache:             the cache
 * @micro_batch:       its number in the step
 * @stage:             the stage
 * @next_micro_batch:  of the next stage
 * @next_stage:        the next stage; if it is a backward stage, prefetching continues into it
 *
 * An interleaved pipeline, with several model chunks per rank, numbers each pair of micro-batch and
 * chunk. With a plan this is not needed: the plan knows the stages of the last step.
 */
SPW_EXPORT void spw_cache_stage_next(struct spw_cache *cache, uint32_t micro_batch,
				     enum spw_stage stage, uint32_t next_micro_batch,
				     enum spw_stage next_stage);

/**
 * spw_cache_scope_enter - enter a scope of the forward pass
 * @cache:      the cache
 * @scope_key:  the same in each step
 *
 * Scopes nest; tensors belong to the innermost one. Report layers (the blocks of a transformer) and
 * what encloses them, not the parts of a layer. Tensors of the last innermost scope, and all offers
 * after it was entered, are kept in the next step, because their backward pass follows at once: up
 * to three times the bytes of the largest scope.
 */
SPW_EXPORT void spw_cache_scope_enter(struct spw_cache *cache, uint64_t scope_key);

/**
 * spw_cache_scope_leave - leave the innermost scope
 * @cache:  the cache
 */
SPW_EXPORT void spw_cache_scope_leave(struct spw_cache *cache);

/* ---- Tensors --------------------------------------------------------------------------------- */

/**
 * spw_cache_offer - offer a tensor that is saved for the backward pass
 * @cache:   the cache
 * @offer:   the tensor, and the caller's token for its memory
 * @tensor:  set, also if the tensor is kept; counts as a user of the entry until
 *           spw_cache_release()
 *
 * The write begins at once, or, if the tensor is small or other writes are in flight, with the next
 * call of the cache or the end of other I/O, whichever is first. Does not wait for I/O, but may
 * read the memory once: see struct spw_offer.
 *
 * Return: an enum spw_offer_result; -EINVAL, or -ENOBUFS all entries are in use: the caller keeps
 * the tensor itself, @tensor is 0, and the cache does not have the token. An entry is in use until
 * its users, leases and token are gone.
 */
SPW_EXPORT int spw_cache_offer(struct spw_cache *cache, const struct spw_offer *offer,
			       spw_tensor *tensor);

/**
 * spw_cache_offer_hint - offer a tensor with a hint
 * @cache:   the cache
 * @offer:   as for spw_cache_offer()
 * @hint:    what the caller knows about it. For a duplicate only KEEP and PIN have an effect, in
 *           later steps
 * @tensor:  as for spw_cache_offer()
 *
 * Return: as spw_cache_offer(); SPW_OFFER_AGAIN.
 */
SPW_EXPORT int spw_cache_offer_hint(struct spw_cache *cache, const struct spw_offer *offer,
				    enum spw_cache_hint hint, spw_tensor *tensor);

/**
 * spw_cache_hold_back - throttle a forward pass that is ahead of its plan
 * @cache:  the cache
 * @wait:   false: only return whether it would wait
 *
 * Call it after each offer of the forward pass, without locks that other threads need, if the
 * memory limit is to be enforced: a pass that is faster than planned saves more than the drives
 * have taken so far. Waits until writes have made room, but at most until the planned time of this
 * position in the step, so that the step ends no later than planned. Above the budget of
 * SPW_CACHE_BUDGET, if the plan in force fits the budget, it waits as long as anything is being
 * written. It never waits without a plan, nor for tensors of devices. Takes no lock if there was
 * nothing to wait for after the last offer.
 *
 * Return: 1 it has waited, so spw_cache_drain() has tokens now, or it would wait; 0.
 */
SPW_EXPORT int spw_cache_hold_back(struct spw_cache *cache, bool wait);

/*
 * The copy that the caller makes after SPW_OFFER_COPY and SPW_OFFER_COPY_AGAIN; after
 * SPW_OFFER_AGAIN, the part of the storage that was discarded. order is set whatever the result.
 */
struct spw_copy {
	/* in the store's arena, see spw_store_arena(), or of spw_cache_host_memory() */
	void *staging;
	uint64_t offset_bytes, len_bytes; /* of the storage */
	/* the tensor for spw_cache_ordered(); value 0: there is none */
	spw_tensor order;
	uint64_t reserved[2];
};
SPW_ABI(struct spw_copy, reserved, 32, 48);

/**
 * spw_cache_offer_device - offer a tensor that is in a device's memory
 * @cache:   the cache
 * @offer:   storage_bytes is the address on the device, which is compared, never read
 * @device:  the caller's number of the device, 1 or more
 * @hint:    as for spw_cache_offer_hint()
 * @tensor:  as for spw_cache_offer()
 * @copy:    set if the caller has to copy, or the tensor is discarded; its order in any case
 *
 * The bytes pass through staging memory, which the cache allocates from the store's arena. The
 * caller makes the copies, on streams of the device or in any other way: the cache never calls a
 * device's functions, and never waits for a device.
 *
 * Out: after SPW_OFFER_COPY the caller begins to copy, and calls spw_cache_copied() when the copy
 * has ended. The write begins then, and spw_cache_drain_device() returns the token; earlier if the
 * caller orders its stream after the copy, see spw_cache_ordered(). If the tensor is released
 * before that, the entry keeps token and staging memory until then.
 *
 * In: spw_cache_take() returns the token while the device still has the bytes. Else it returns a
 * lease of staging memory that has the bytes, or will have them when a copy out that the caller
 * ordered has ended: order the copy in after that. The caller copies into new memory of the device,
 * keeps that as long as it needs it, and returns the lease when the copy in has ended. A later take
 * may read from the drives again. spw_cache_ahead() returns such leases before they are needed.
 *
 * Bytes on a device cannot be compared with those that have left it. So an offer is a duplicate if
 * key, version and address are those of an entry whose memory the device still has, or key and
 * version are those of a discarded entry. An offer with SPW_HINT_INPUT is a duplicate of any entry
 * with its key and version, because tensors recomputed from it are compared later. The caller
 * compares recomputed tensors.
 *
 * Return: as spw_cache_offer_hint(); SPW_OFFER_COPY, SPW_OFFER_COPY_AGAIN, SPW_OFFER_WAIT.
 */
SPW_EXPORT int spw_cache_offer_device(struct spw_cache *cache, const struct spw_offer *offer,
				      uint32_t device, enum spw_cache_hint hint, spw_tensor *tensor,
				      struct spw_copy *copy);

/**
 * spw_cache_copied - a copy to staging memory has ended, or could not begin
 * @cache:   the cache
 * @tensor:  of the offer that asked for it, released or not
 * @rc:      0; or a negative errno: the bytes stay on the device
 *
 * Call it once for each SPW_OFFER_COPY and SPW_OFFER_COPY_AGAIN.
 *
 * Return: 0; -EINVAL; -ENOENT no copy of this tensor is in flight.
 */
SPW_EXPORT int spw_cache_copied(struct spw_cache *cache, spw_tensor tensor, int rc);

/**
 * spw_cache_ordered - streams are ordered after the copies out of a tensor
 * @cache:   the cache
 * @tensor:  of spw_copy.order; value 0: only @next is asked for
 * @next:    set to another tensor to order streams after; 0: there is none
 *
 * A host that runs ahead of its device does not see copies end, so that memory of all of them stays
 * in use. When a copy has ended by the plan, or, without one, when more copies are in flight than
 * keep the bus busy, struct spw_copy names the oldest tensor. The caller makes the stream that its
 * memory belongs to wait, on the device, for the copies out of it, then calls this:
 * spw_cache_drain_device() returns the token at once.
 *
 * Return: 0; -ENOENT no copy of this tensor is in flight, or its token was returned.
 */
SPW_EXPORT int spw_cache_ordered(struct spw_cache *cache, spw_tensor tensor, spw_tensor *next);

/**
 * spw_cache_copy_retry - ask again for staging memory after SPW_OFFER_WAIT
 * @cache:   the cache
 * @tensor:  of that offer
 * @copy:    set for SPW_OFFER_COPY
 *
 * The plan spills the tensor. As long as the device has work left, waiting does not make the step
 * longer: the caller waits for its oldest copy, or, if it has none, in spw_cache_wait_write(), and
 * calls this after each until it returns another result than SPW_OFFER_WAIT. Where
 * spw_cache_wait_write() does not wait, the caller waits until the device has come to the tensor,
 * then calls spw_cache_copy_last().
 *
 * Return: SPW_OFFER_COPY, SPW_OFFER_WAIT, or SPW_OFFER_KEEP; -ENOENT no such tensor.
 */
SPW_EXPORT int spw_cache_copy_retry(struct spw_cache *cache, spw_tensor tensor,
				    struct spw_copy *copy);

/**
 * spw_cache_copy_last - ask for staging memory for the last time
 * @cache:   the cache
 * @tensor:  of that offer
 * @copy:    set for SPW_OFFER_COPY
 *
 * The device has nothing else to do, so that waiting would make the step longer: without memory the
 * tensor is kept.
 *
 * Return: SPW_OFFER_COPY or SPW_OFFER_KEEP; -ENOENT no such tensor.
 */
SPW_EXPORT int spw_cache_copy_last(struct spw_cache *cache, spw_tensor tensor,
				   struct spw_copy *copy);

/**
 * spw_cache_wait_write - wait until some I/O has ended, if a device's tensor is being written
 * @cache:  the cache
 *
 * SPW_CACHE_FASTEST would rather keep a tensor than wait for drives.
 *
 * Return: 1 ask again; 0 did not wait: SPW_CACHE_FASTEST, or there are only copies to wait for.
 */
SPW_EXPORT int spw_cache_wait_write(struct spw_cache *cache);

/**
 * spw_cache_ahead - get the next tensor to be copied to its device before its use
 * @cache:   the cache
 * @tensor:  set
 * @taken:   set to a lease, like a take of the whole stored range
 *
 * Call it in the backward stage until it returns 0: it returns prefetched tensors in the order of
 * their use. The caller keeps its copy until a take of the tensor, which then sets neither bytes
 * nor owner, or until the release. If the caller no longer has the copy, it calls take again.
 *
 * Return: 1; 0 no tensor is ready now; -EINVAL.
 */
SPW_EXPORT int spw_cache_ahead(struct spw_cache *cache, spw_tensor *tensor,
			       struct spw_taken *taken);

#define SPW_CACHE_HOST_PIECES_MAX 64u

/**
 * spw_cache_host_memory - give memory in which copies of devices' tensors stay
 * @cache:  the cache
 * @arena:  the caller has pinned its memory, and closes it after the cache
 *
 * A device's tensor that a plan or the fixed rule spills is copied there, and not written, as long
 * as there is room; see SPW_PLAN_HOST. By the fixed rule those that come first stay. What finds no
 * room goes to the drives. A cache without a store spills tensors of devices only there, and keeps
 * others. struct spw_copy.staging lies in such an arena, or in the store's. May be called
 * SPW_CACHE_HOST_PIECES_MAX times, for a piece of memory each; a tensor lies in one.
 *
 * Return: 0; -EINVAL; -ENOSPC there are as many pieces already.
 */
SPW_EXPORT int spw_cache_host_memory(struct spw_cache *cache, struct spw_arena *arena);

/* Measurements by device events since the last call, in nanoseconds of the device. */
struct spw_device_times {
	/* the computing streams waited for copies, or for a host that waited for staging memory */
	uint64_t stall_ns;
	/* completed copies to staging memory, and the sum of their times */
	uint64_t bytes_out, out_ns;
	uint64_t bytes_in, in_ns; /* the same for copies from staging memory */
	uint64_t stall_out_ns;    /* of stall_ns: not for copies from staging memory */
	uint64_t reserved[2];
};
SPW_ABI(struct spw_device_times, reserved, 48, 64);

/**
 * spw_cache_device_times - report how long a device stalled, and how fast its bus is
 * @cache:  the cache
 * @times:  measured since the last call
 *
 * Plans use the bandwidth of the bus in both directions. After the first call, stalls of device
 * tensors are only those reported here: a take may wait while the device is busy, which is counted
 * as host_wait_ns.
 *
 * Return: 0; -EINVAL.
 */
SPW_EXPORT int spw_cache_device_times(struct spw_cache *cache,
				      const struct spw_device_times *times);

/**
 * spw_cache_device_mark - begin a mark: an event that the caller records on the computing stream
 * @cache:  the cache
 *
 * Plans are made from the times of a step, and a host that runs ahead of its device would measure
 * its own times. So the caller records an event at the beginning of each step, after
 * spw_cache_step(), where scopes begin and end, and where the backward pass reaches tensors of
 * another scope, and reports later when the device has passed it. Use marks for only one of several
 * devices.
 *
 * Return: the mark's number; 0: no mark is needed here.
 */
SPW_EXPORT uint64_t spw_cache_device_mark(struct spw_cache *cache);

/**
 * spw_cache_device_marked - the device has passed a mark
 * @cache:  the cache
 * @mark:   of this step or the two before
 * @ns:     time by the device's clock, from any origin, less the time that the computing stream
 *          waited for copies
 *
 * Report marks in order. A missing or late mark is not an error: the step's earlier times stay
 * valid.
 */
SPW_EXPORT void spw_cache_device_marked(struct spw_cache *cache, uint64_t mark, uint64_t ns);

/**
 * spw_cache_take - get bytes that the backward pass needs
 * @cache:         the cache
 * @tensor:        the tensor
 * @offset_bytes:  of the range in the storage
 * @len_bytes:     its length
 * @taken:         set on success
 *
 * May be repeated until the release; after an error it reads again. Forwards bytes that are still
 * in memory; else waits for the read. Forwarding from a write that has not been issued cancels it.
 *
 * Return: 0; SPW_TAKE_AGAIN discarded: see spw_cache_restore(); -EINVAL; -ENOENT no such tensor;
 * -ERANGE not within what was offered; -ENOMEM; -EBADMSG, -EIO a drive failed.
 */
SPW_EXPORT int spw_cache_take(struct spw_cache *cache, spw_tensor tensor, uint64_t offset_bytes,
			      uint64_t len_bytes, struct spw_taken *taken);

/* ---- Recomputation ---- */

/**
 * spw_cache_restore - a discarded tensor was recomputed
 * @cache:   the cache
 * @tensor:  the tensor
 * @offer:   as the one that returned SPW_OFFER_AGAIN, with the same offset, length and bytes; key
 *           and version are ignored
 *
 * The bytes are compared, by checksum, with those that were discarded: a take never returns others.
 * For tensors of a device the caller compares, and must not let results be used that depend on
 * others. After 0 the tensor is kept, and the cache has the token as after SPW_OFFER_KEEP.
 *
 * Return: 0; 1 it has its bytes already, and the token is not handed over; -ESTALE other bytes: it
 * stays discarded; -EINVAL; -ENOENT no such tensor; -ERANGE not the part of the storage that was
 * offered.
 */
SPW_EXPORT int spw_cache_restore(struct spw_cache *cache, spw_tensor tensor,
				 const struct spw_offer *offer);

/**
 * spw_cache_again_begin - begin to recompute a scope, or to try whether it can be recomputed
 * @cache:  the cache
 *
 * Time until spw_cache_again_end() does not count as part of the measured step. Calls may be
 * nested.
 */
SPW_EXPORT void spw_cache_again_begin(struct spw_cache *cache);

/**
 * spw_cache_again_end - end what spw_cache_again_begin() began
 * @cache:  the cache
 */
SPW_EXPORT void spw_cache_again_end(struct spw_cache *cache);

/**
 * spw_cache_return - return a lease
 * @cache:  the cache
 * @lease:  of a take, whose bytes are not used any more
 *
 * Call it once for every take that returned the lease; takes of one tensor return the same lease. A
 * lease may outlive the release of its tensor.
 */
SPW_EXPORT void spw_cache_return(struct spw_cache *cache, uint64_t lease);

/**
 * spw_cache_release - end one use of a tensor
 * @cache:   the cache
 * @tensor:  of one offer
 *
 * The last release frees memory and extents.
 *
 * Return: 0; -ENOENT no such tensor.
 */
SPW_EXPORT int spw_cache_release(struct spw_cache *cache, spw_tensor tensor);

/**
 * spw_cache_keep - ask whether the plan keeps a tensor, before it is offered
 * @cache:      the cache
 * @number:     of the save, counted from 1 in each step
 * @len_bytes:  of its elements
 * @kept:       set if the plan does
 *
 * It does if the next tensor of the innermost scope, in the step that was planned for, was the same
 * save and as long, and is planned to stay. Then this one counts as offered, without an entry. The
 * caller keeps the memory, finds out itself what else is saved of it, and calls
 * spw_cache_kept_used() and spw_cache_kept_gone().
 *
 * Return: 1; 2 the same, and spw_cache_drain() has tokens; 0 it is to be offered; -ESRCH that, and
 * no plan is followed: nor can any be until the next step.
 */
SPW_EXPORT int spw_cache_keep(struct spw_cache *cache, uint64_t number, uint64_t len_bytes,
			      struct spw_kept *kept);

/**
 * spw_cache_kept_again - the same bytes are saved once more
 * @cache:  the cache
 * @kept:   of spw_cache_keep()
 */
SPW_EXPORT void spw_cache_kept_again(struct spw_cache *cache, const struct spw_kept *kept);

/**
 * spw_cache_kept_used - the tensor is used: in place of a take
 * @cache:  the cache
 * @kept:   of spw_cache_keep()
 *
 * Return: 1 spw_cache_drain() has tokens; 0.
 */
SPW_EXPORT int spw_cache_kept_used(struct spw_cache *cache, const struct spw_kept *kept);

/**
 * spw_cache_kept_gone - the caller does not keep the memory any more: in place of a release
 * @cache:  the cache
 * @kept:   of spw_cache_keep(), once
 */
SPW_EXPORT void spw_cache_kept_gone(struct spw_cache *cache, const struct spw_kept *kept);

/**
 * spw_cache_drain - reap the tokens whose memory the cache no longer needs
 * @cache:   the cache
 * @owners:  set to tokens
 * @count:   room in @owners
 *
 * Call it often, such as at each offer and take; plans assume so. Until its token is reaped, memory
 * stays in use, and its bytes may still be forwarded.
 *
 * Return: how many of @owners were set; -EINVAL.
 */
SPW_EXPORT int spw_cache_drain(struct spw_cache *cache, uint64_t owners[], unsigned count);

/**
 * spw_cache_drain_device - reap the tokens of spw_cache_offer_device()
 * @cache:   the cache
 * @owners:  set to tokens
 * @count:   room in @owners
 *
 * Return: as spw_cache_drain().
 */
SPW_EXPORT int spw_cache_drain_device(struct spw_cache *cache, uint64_t owners[], unsigned count);

/* ---- Counters -------------------------------------------------------------------------------- */

/* Why a step used more memory than its budget. */
enum spw_budget_cause {
	SPW_BUDGET_MET, /* it did not, or there is no budget */
	/* no plan was in force yet: a step is measured before it is planned */
	SPW_BUDGET_UNPLANNED,
	SPW_BUDGET_INFEASIBLE, /* no plan that fits was found */
	SPW_BUDGET_CHANGED,    /* the step differed from the planned one */
	/* the bytes above the budget were waiting to be written to the drives */
	SPW_BUDGET_DRIVES,
	SPW_BUDGET_HELD, /* tensors were saved earlier, or in use longer, than planned */
};

/**
 * spw_cache_stats - read the counters
 * @cache:  the cache
 * @stats:  set
 * @size:   sizeof *@stats
 */
SPW_EXPORT void spw_cache_stats(struct spw_cache *cache, struct spw_cache_stats *stats,
				size_t size);

/**
 * spw_cache_reset_peak - reset the peak counters to the present values
 * @cache:  the cache
 */
SPW_EXPORT void spw_cache_reset_peak(struct spw_cache *cache);

#define SPW_MEMORY_POINTS_MAX 512u

/* The maximum from @ns after the beginning of a step until the next point. */
struct spw_memory_point {
	uint64_t ns;
	uint64_t bytes;          /* in memory, as counted by activation_bytes */
	uint64_t keep_all_bytes; /* in memory if nothing were spilled, from offer to release */
};
SPW_ABI(struct spw_memory_point, keep_all_bytes, 16, 24);

/**
 * spw_cache_profile - the memory in use over the last step that ended
 * @cache:   the cache
 * @points:  the first @count are set
 * @count:   room in @points; at most SPW_MEMORY_POINTS_MAX are needed
 *
 * Return: how many points there are; 0: no step has ended.
 */
SPW_EXPORT unsigned spw_cache_profile(struct spw_cache *cache, struct spw_memory_point points[],
				      unsigned count);

/* What the plan in force does with a scope of the forward pass. */
struct spw_cache_reason {
	uint64_t scope_key; /* 0: tensors saved outside of all scopes */
	uint32_t micro_batch;
	bool may_again;       /* the scope can be recomputed, as the caller said */
	uint64_t again_ns;    /* time to recompute it, up to its last save */
	uint64_t saved_bytes; /* in it */
	struct spw_plan_reason reason;
	uint64_t reserved[2];
};
SPW_ABI(struct spw_cache_reason, reserved, 216, 232);

/**
 * spw_cache_explain - explain what the plan in force does with each scope, and why
 * @cache:    the cache
 * @reasons:  the first @count are set, in the order in which the scopes ran
 * @count:    room in @reasons
 * @result:   set to the plan's figures, its size field must be set; or NULL
 *
 * Simulates up to four steps for each scope: for reports, not for each step.
 *
 * Return: how many scopes there are; 0 no plan is in force; -ENOMEM.
 */
SPW_EXPORT int spw_cache_explain(struct spw_cache *cache, struct spw_cache_reason reasons[],
				 unsigned count, struct spw_plan_result *result);

#ifdef __cplusplus
}
#endif
#endif
