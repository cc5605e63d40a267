/* SPDX-License-Identifier: MIT */
/*
 * spillway/cache.h - the tensor cache: which saved tensors spill, when, and when they come back
 *
 * The caller (a training framework's binding) says where it is and offers the tensors that the
 * forward pass saves; it gets an id for each, and later, for the id, the bytes. Everything in
 * between is decided here: by a fixed rule, or, in the modes that plan, from what the last steps
 * measured. tensor/control/control.c says how.
 *
 * Contract
 *   Threads    Every function may be called from any thread. spw_cache_take(), spw_cache_close()
 *              and, if told to, spw_cache_hold_back() wait for I/O; nothing else does. Steps,
 *              stages and scopes describe one forward and backward pass at a time: call those from
 *              one thread at a time.
 *   Memory     The cache never copies and never frees memory that is offered. One rule for owner
 *              tokens, whatever became of the entry: an offer that returned SPW_OFFER_KEEP or
 *              SPW_OFFER_SPILL hands its token to the cache, and the caller keeps that memory alive
 *              and unchanged until spw_cache_drain() gives the token back, exactly once: when the
 *              bytes are on the drives, or when the last user of the entry is gone. The token of
 *              any other offer (SPW_OFFER_DEDUP, SPW_OFFER_AGAIN, errors) is never given back, and
 *              the cache needs nothing of its memory. So the owner that spw_cache_take() names is
 *              always one the caller still holds, as long as it has not released the tensor.
 *   Identity   A storage is named by the caller's key, which must not be reused while the cache
 *              holds an entry of it, and a version that changes with every in-place write. Never an
 *              address that may be reused, never a clock.
 *   Errors     0 or a count, or a negative errno with spw_last_error(). Trouble with drives never
 *              fails an offer: the tensor is kept. A write that fails later turns the entry into a
 *              kept one: its memory is still there.
 *   Log        The log function is called without any lock of the cache held, and may call the
 *              cache.
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

/* Slot and generation, as spw_object. 0 is no tensor. */
typedef struct {
	uint64_t value;
} spw_tensor;

/*
 * The last three record each step, and plan, and plan again when the step or the drives have
 * changed: a thread searches for the plan during the next step, which goes on as before, and it is
 * in force from the step after that on. Up to four shapes of step have a plan each. A step that is
 * not like one that was planned for, and the first two, follow the rule of SPW_CACHE_SPILL, and in
 * the first two of these modes read ahead as far as their own peak allows.
 */
enum spw_cache_mode {
	/* spill all but small tensors, the last scope, what backward saves or drives cannot take */
	SPW_CACHE_SPILL,
	/* keep everything, count as if: for measuring what plain training holds */
	SPW_CACHE_OBSERVE,
	/* plans the lowest peak without a stall, then the fewest bytes written */
	SPW_CACHE_FASTEST,
	/* plans the fewest bytes written such that the peak fits memory_bytes */
	SPW_CACHE_BUDGET,
	/* plans by position once: all before one scope spills. SSDTrain's rule, the baseline */
	SPW_CACHE_POSITIONAL,
};

struct spw_cache_opts {
	size_t size;
	enum spw_cache_mode mode; /* default SPW_CACHE_FASTEST */
	uint64_t min_bytes;       /* smaller tensors are kept; default 64 KiB */
	/* most bytes that wait to be written; beyond it tensors are kept; default 1 GiB */
	uint64_t staging_bytes;
	/* most bytes read ahead without a plan; 0: as the largest scope spilled; default 0 */
	uint64_t prefetch_bytes;
	/* do not keep the last scope before the backward pass; default false */
	bool spill_last_scope;
	uint32_t tensors_max; /* entries that exist at once; more are kept; default 65536 */
	struct spw_log log;
	/* SPW_CACHE_BUDGET: most bytes of activations in memory; no default */
	uint64_t memory_bytes;
	/* every call is recorded here; the caller's, and outlives the cache; or NULL */
	struct spw_trace_writer *trace;
	/*
	 * Most bytes that are written per day; 0: no limit. In any time no more is written than
	 * that gives for it and for an hour; beyond it tensors are kept. Writes that are cancelled
	 * do not count; what this process writes to the store besides, such as optimizer state,
	 * does, and is never held back. Plans keep to what a step's own time gives. Not in
	 * SPW_CACHE_POSITIONAL.
	 */
	uint64_t wear_bytes_per_day;
	/* instead: how many years the drives shall last from now on, by spw_wear(); 0: no limit */
	double wear_years;
	/* for that: bytes that each drive may be written in its life, by its maker; 0: not known */
	uint64_t endurance_bytes;
};

enum spw_stage {
	SPW_STAGE_FORWARD,
	SPW_STAGE_BACKWARD,
};

/* What the caller knows better about a tensor. */
enum spw_cache_hint {
	SPW_HINT_NONE,
	/* keep it; a budget that cannot be met otherwise may spill it all the same */
	SPW_HINT_KEEP,
	/* in a forward stage: spill it, whatever its size and the plan, if drives can take it */
	SPW_HINT_SPILL,
	SPW_HINT_PIN, /* keep it in any case */
	/*
	 * the caller can compute it again with the scope that it is saved in, whose input it holds:
	 * the plan may give it up
	 */
	SPW_HINT_AGAIN,
	/* the same; in a forward stage: give it up whatever the plan says, if it is not small */
	SPW_HINT_GIVE_UP,
	/*
	 * it is what the innermost scope is computed again from: offered before that is left, it
	 * says that this can be done, and is held until the tensors of the scope are gone
	 */
	SPW_HINT_INPUT,
};

enum spw_offer_result {
	/* stays in memory: hold the memory until its token is drained, at the last release */
	SPW_OFFER_KEEP,
	/* goes to the drives: hold the memory until its token is drained, once it is written */
	SPW_OFFER_SPILL,
	/* the same bytes are held already: this memory is not needed, its token is never drained */
	SPW_OFFER_DEDUP,
	/* of a device, as SPW_OFFER_SPILL: copy, and say when that has ended */
	SPW_OFFER_COPY,
	/*
	 * of a device, as SPW_OFFER_DEDUP, but the copy that is under way may have begun before the
	 * memory was changed: copy once more, after that one, and say when that has ended
	 */
	SPW_OFFER_COPY_AGAIN,
	/*
	 * of a device, as SPW_OFFER_KEEP for now: staging memory comes free when copies and writes
	 * under way have ended; see spw_cache_copy_retry()
	 */
	SPW_OFFER_WAIT,
	/*
	 * given up: this memory is not needed, its token is never drained. Takes say
	 * SPW_TAKE_AGAIN until the scope has been computed again, see spw_cache_restore()
	 */
	SPW_OFFER_AGAIN,
};

/*
 * A saved tensor's bytes: the part [offset, offset + len) of a storage that the tensor's elements
 * lie in. If that is at least half of the storage the whole storage is stored once for all its
 * views, else that part alone.
 *
 * An offer whose part lies within what a living entry of the same key and version has is a
 * duplicate of that entry if it has the same bytes: the version may not count all changes (in
 * PyTorch not those through .data). Memory that the caller still holds is the same memory. Else the
 * offer compares the bytes with those read back, or by checksum with what was written. While a
 * write is under way it only asks for that: a thread of the cache compares once the write has
 * ended, and where the bytes changed the entry stays in memory. So spw_cache_offer() may take as
 * long as reading the memory once does. Of a store without checksums what has been given to it has
 * no duplicates.
 */
struct spw_offer {
	uint64_t storage_key;
	uint64_t storage_version;
	const void *storage_bytes;  /* the whole storage */
	uint64_t storage_len_bytes; /* at most 2^56 */
	uint64_t offset_bytes, len_bytes;
	/* the caller's token for the memory, not 0; spw_cache_drain() gives it back */
	uint64_t owner;
};

/* Of a take: the tensor was given up, compute its scope again. */
#define SPW_TAKE_AGAIN 1

struct spw_taken {
	/* of the offered range [offset, offset + len); NULL: take them from the memory of @owner */
	const void *bytes;
	/* if bytes is NULL: the token of the offer whose memory (whole storage) has them */
	uint64_t owner;
	/* if bytes is not NULL: for spw_cache_return(), when nothing uses them any more */
	uint64_t lease;
	uint64_t storage_bytes_before; /* how far before bytes the lease's memory starts, and */
	/* how long it is: views of one storage share one lease's memory */
	uint64_t storage_bytes_total;
};

SPW_EXPORT void spw_cache_opts_init(struct spw_cache_opts *opts, size_t size);

/*
 * The store stays the caller's, must outlive the cache and must not be in inline mode: nobody would
 * poll it while take waits. It may be NULL in SPW_CACHE_OBSERVE, and in SPW_CACHE_BUDGET, which
 * then plans what is kept and what is computed again.
 *
 * Return: 0; -EINVAL; -ENOMEM; -ENODATA years are given, and how long a drive lasts is unknown.
 */
SPW_EXPORT int spw_cache_open(struct spw_store *store, const struct spw_cache_opts *opts,
			      struct spw_cache **cache);

/*
 * Cancels and waits for I/O in flight. Outstanding leases are void; tokens not drained need not be
 * held any longer. Copies between a device and staging memory must have ended before: those that
 * spw_cache_copied() was not called for count as ended. NULL is no cache.
 */
SPW_EXPORT void spw_cache_close(struct spw_cache *cache);

/* ---- Where the caller is --------------------------------------------------------------------- */

/*
 * A training step begins, in the forward stage of micro-batch 0 and outside all scopes. What the
 * last one left (tensors nobody released) stays valid, but is not read ahead.
 */
SPW_EXPORT void spw_cache_step(struct spw_cache *cache);

/*
 * The pass changes. In SPW_STAGE_BACKWARD the micro-batch's tensors are read ahead in the reverse
 * order of their last offers, and what is offered (recomputation, double backward) is kept. A
 * caller that never says SPW_STAGE_BACKWARD says SPW_STAGE_FORWARD, or calls spw_cache_step(),
 * before each forward pass: the first take after it then begins the backward stage.
 */
SPW_EXPORT void spw_cache_stage(struct spw_cache *cache, uint32_t micro_batch,
				enum spw_stage stage);

/*
 * The same, and says which stage comes after it: if that is a backward stage, reading ahead goes on
 * into it without a pause. A pipeline with several model chunks per rank (interleaved) gives each
 * pair of micro-batch and chunk a number of its own. A plan knows the stages of the last step, and
 * needs no such help.
 */
SPW_EXPORT void spw_cache_stage_next(struct spw_cache *cache, uint32_t micro_batch,
				     enum spw_stage stage, uint32_t next_micro_batch,
				     enum spw_stage next_stage);

/*
 * A scope of the forward pass is entered or left. Scopes nest; tensors belong to the innermost one.
 * Name layers (the blocks of a transformer) and what encloses them, not the parts of a layer: the
 * last scope without scopes inside, and all that is offered after it was entered, is what the next
 * step keeps because its backward pass comes at once; of that the last, three times as much as the
 * largest scope has.
 */
SPW_EXPORT void spw_cache_scope_enter(struct spw_cache *cache, uint64_t scope_key);
SPW_EXPORT void spw_cache_scope_leave(struct spw_cache *cache);

/* ---- Tensors --------------------------------------------------------------------------------- */

/**
 * spw_cache_offer - a tensor is being saved for the backward pass
 * @tensor:  set in every case: one user more of the entry; spw_cache_release() ends it
 *
 * A write that is accepted begins at once, or, of a small tensor or while others are written, with
 * the next call of the cache or the end of some I/O, whichever is first.
 *
 * Return: an enum spw_offer_result; or -EINVAL, -ENOBUFS all entries are in use: the caller keeps
 * the tensor by itself, @tensor is 0, there is nothing to release and no token to be drained. An
 * entry is in use until its users, its leases and its token are gone.
 */
SPW_EXPORT int spw_cache_offer(struct spw_cache *cache, const struct spw_offer *offer,
			       spw_tensor *tensor);

/* The same with a hint. Of a duplicate only KEEP and PIN count, for the steps after. */
SPW_EXPORT int spw_cache_offer_hint(struct spw_cache *cache, const struct spw_offer *offer,
				    enum spw_cache_hint hint, spw_tensor *tensor);

/**
 * spw_cache_hold_back - wait where a forward pass holds more than it may, and writes make room
 * @wait:  false: only say whether there is something to wait for
 *
 * To be called after each offer of the forward pass, without locks that others need, by who wants
 * plans to be kept to: a pass that is faster than planned saves more than the drives have taken
 * until then. Waits until what is leaving memory has made room, and no longer than until the plan
 * is as far as this step: so the step ends no later than planned. Only above the budget of
 * SPW_CACHE_BUDGET, if a plan that fits it is in force, it waits as long as anything is being
 * written. Where no plan is in force it never waits. Tensors of devices are not waited for.
 *
 * Takes no lock where the last offer left nothing to wait for.
 *
 * Return: 1 it has waited, or would: spw_cache_drain() gives memory back now; 0.
 */
SPW_EXPORT int spw_cache_hold_back(struct spw_cache *cache, bool wait);

/*
 * What the caller copies for SPW_OFFER_COPY and SPW_OFFER_COPY_AGAIN; after SPW_OFFER_AGAIN, which
 * part of the storage was given up.
 */
struct spw_copy {
	void *staging;                    /* in the store's arena, see spw_store_arena() */
	uint64_t offset_bytes, len_bytes; /* of the storage */
	/* for spw_cache_ordered(); value 0: none */
	spw_tensor order;
};

/**
 * spw_cache_offer_device - the same for a tensor in memory of a device
 * @offer:   storage_bytes is the address on the device: only compared, never read
 * @device:  which one, from 1 on, as the caller numbers them
 * @copy:    set if the caller is to copy, or the tensor is given up
 *
 * The bytes pass through staging memory, which the cache takes out of the store's arena. The caller
 * carries out the copies, by streams of the device or in any other way: the cache never calls into
 * a device, and never waits for one.
 *
 * Out: after SPW_OFFER_COPY the caller begins to copy, and calls spw_cache_copied() when the copy
 * has ended. The write begins then, and spw_cache_drain_device() gives the token back: earlier, if
 * the caller orders its stream after the copy, see spw_cache_ordered(). Released before, the entry
 * keeps token and staging memory until then.
 *
 * In: spw_cache_take() names the token while the device still has the bytes; else it gives a lease
 * of staging memory that has them, or will have when a copy out to there that the caller ordered
 * has ended: copy after it. The caller copies from there into new memory of the device, which is
 * its own to keep for as long as it has use for it, and returns the lease when the copy has ended.
 * A take after that may read from the drives again. spw_cache_ahead() gives such leases before
 * they are asked for.
 *
 * Memory of a device cannot be compared with what has left it. So an offer is a duplicate if key,
 * version and address are those of an entry whose memory the device still has, or key and version
 * are those of one that was given up, and of no other; but of SPW_HINT_INPUT of any, for what is
 * computed from that is compared. What is given up the caller compares, when it has computed it
 * again.
 *
 * Return: as spw_cache_offer_hint(), and SPW_OFFER_COPY, SPW_OFFER_COPY_AGAIN, SPW_OFFER_WAIT.
 */
SPW_EXPORT int spw_cache_offer_device(struct spw_cache *cache, const struct spw_offer *offer,
				      uint32_t device, enum spw_cache_hint hint, spw_tensor *tensor,
				      struct spw_copy *copy);

/**
 * spw_cache_copied - a copy to staging memory has ended, or could not begin
 * @tensor:  of the offer that asked for it, released or not
 * @rc:      0; or a negative errno: the bytes stay on the device
 *
 * Once for each SPW_OFFER_COPY and SPW_OFFER_COPY_AGAIN.
 *
 * Return: 0; -EINVAL; -ENOENT no copy of this tensor is under way.
 */
SPW_EXPORT int spw_cache_copied(struct spw_cache *cache, spw_tensor tensor, int rc);

/**
 * spw_cache_ordered - whatever uses the tensor's memory next comes after the copies out of it
 * @next:    set to another tensor for which the same is to be done; value 0: none
 *
 * A host that is ahead of the device never sees a copy end, and memory that waits for that is all
 * in use at once. So when more is being copied than keeps the bus busy, struct spw_copy names the
 * oldest tensor. The caller makes the stream that its memory belongs to wait, on the device, for
 * the copies out of it, and then calls this: spw_cache_drain_device() gives the token back at once.
 *
 * Return: 0; -ENOENT no copy of this tensor is under way, or its token has been given back.
 */
SPW_EXPORT int spw_cache_ordered(struct spw_cache *cache, spw_tensor tensor, spw_tensor *next);

/**
 * spw_cache_copy_retry - staging memory for a tensor of which SPW_OFFER_WAIT was said
 * @copy:    set for SPW_OFFER_COPY
 *
 * The plan wants it on the drives, and while copies are under way the host is ahead of the device:
 * waiting costs no time of the step. The caller waits for its oldest copy, or in
 * spw_cache_wait_write(), and calls this, until it says something else.
 *
 * Return: SPW_OFFER_COPY, SPW_OFFER_WAIT, or SPW_OFFER_KEEP; -ENOENT no such tensor.
 */
SPW_EXPORT int spw_cache_copy_retry(struct spw_cache *cache, spw_tensor tensor,
				    struct spw_copy *copy);

/*
 * Wait until some I/O has ended, if a device's tensor is being written. Return: 1; 0 none is: the
 * oldest copy is to be waited for.
 */
SPW_EXPORT int spw_cache_wait_write(struct spw_cache *cache);

/**
 * spw_cache_ahead - the next tensor to be copied to its device ahead of its use
 * @taken:   a lease, as of a take of all that is stored of the storage
 *
 * To be asked in the backward stage until it says 0: as far as tensors have been read ahead, in the
 * order of their use. The caller keeps what it copied until a take of the tensor, which then sets
 * neither bytes nor owner, or the release. Whoever has it no longer takes once more.
 *
 * Return: 1; 0 none now.
 */
SPW_EXPORT int spw_cache_ahead(struct spw_cache *cache, spw_tensor *tensor,
			       struct spw_taken *taken);

/* What events of devices have shown since the last call; nanoseconds of the device. */
struct spw_device_times {
	uint64_t stall_ns;          /* its streams that compute waited for copies, either way */
	uint64_t bytes_out, out_ns; /* copies to staging memory that have ended, each by itself */
	uint64_t bytes_in, in_ns;   /* copies from there */
};

/**
 * spw_cache_device_times - how long a device stalled, and how fast its bus is
 *
 * Plans count on what the bus can do, both ways. From the first call on a stall of tensors of
 * devices is what is told here: a take may wait, and the device still be busy (host_wait_ns).
 *
 * Return: 0; -EINVAL.
 */
SPW_EXPORT int spw_cache_device_times(struct spw_cache *cache,
				      const struct spw_device_times *times);

/**
 * spw_cache_device_mark - the stream that computes is given a mark here
 *
 * Plans are made from the time that a step takes, and a host that is ahead of its device measures
 * its own pace. So the caller gives the stream an event at the beginning of each step, once it has
 * called spw_cache_step(), where scopes begin and end, and where the backward pass comes to what
 * another scope has saved; and says later when the device has come to it. Of several devices one
 * has marks.
 *
 * Return: the mark's number; 0: there is no use for one here.
 */
SPW_EXPORT uint64_t spw_cache_device_mark(struct spw_cache *cache);

/**
 * spw_cache_device_marked - the device has come to a mark
 * @mark: of this step or the two before
 * @ns:   by the device's clock, from any beginning; it stands still while the stream that computes
 *        waits for copies
 *
 * In the order in which the marks were given. What is missing or late is no error: the step's times
 * stay those that were known before.
 */
SPW_EXPORT void spw_cache_device_marked(struct spw_cache *cache, uint64_t mark, uint64_t ns);

/**
 * spw_cache_take - the backward pass needs the bytes of [offset_bytes, offset_bytes + len_bytes) of
 * the storage
 *
 * Any number of times until release, also after an error: it reads again. Forwarded if the bytes
 * are still in memory; else waits for the read. What is forwarded out of a write that has not been
 * issued cancels the write.
 *
 * Return: 0; SPW_TAKE_AGAIN: nothing is set, see spw_cache_restore(); -EINVAL; -ENOENT no such
 * tensor; -ERANGE not within what was offered; -ENOMEM; -EBADMSG, -EIO the drive failed.
 */
SPW_EXPORT int spw_cache_take(struct spw_cache *cache, spw_tensor tensor, uint64_t offset_bytes,
			      uint64_t len_bytes, struct spw_taken *taken);

/* ---- Computing again ---- */

/**
 * spw_cache_restore - a tensor that was given up has been computed again
 * @offer: as the one that was answered by SPW_OFFER_AGAIN, but for its storage: key and version are
 *         not looked at, and its length, offset and bytes must be the same
 *
 * The bytes are compared, by checksum, with those that were given up: nobody is ever handed others.
 * Of a device the caller compares, and vouches for them: no result that depends on others may come
 * to be used. After 0 the tensor is a kept one, and @offer's token is held as after SPW_OFFER_KEEP.
 *
 * Return: 0; 1 it has its bytes already, and the token is not needed; -ESTALE other bytes: it stays
 * given up; -EINVAL; -ENOENT no such tensor; -ERANGE not the part of the storage that was offered.
 */
SPW_EXPORT int spw_cache_restore(struct spw_cache *cache, spw_tensor tensor,
				 const struct spw_offer *offer);

/*
 * From here on the caller computes again what is no part of the step as measured: a scope, or a
 * trial whether that gives the same. No time passes for plans until it has ended. May be nested.
 */
SPW_EXPORT void spw_cache_again_begin(struct spw_cache *cache);
SPW_EXPORT void spw_cache_again_end(struct spw_cache *cache);

/*
 * The bytes of a lease are used no longer. Once for every take that gave it; takes of one tensor
 * give the same. It outlives the release.
 */
SPW_EXPORT void spw_cache_return(struct spw_cache *cache, uint64_t lease);

/* One user of the tensor is gone. The last one frees memory and extents. Return: 0; -ENOENT. */
SPW_EXPORT int spw_cache_release(struct spw_cache *cache, spw_tensor tensor);

/**
 * spw_cache_drain - tokens whose memory the cache needs no longer
 *
 * Call it often (each offer and take is a good moment, and plans take it for granted): until then
 * the memory stays in use, and is still forwarded if it is asked for.
 *
 * Return: how many of @owners (at most @count) were set; -EINVAL.
 */
SPW_EXPORT int spw_cache_drain(struct spw_cache *cache, uint64_t owners[], unsigned count);
/* The same for the tokens of spw_cache_offer_device(), which the other does not give back. */
SPW_EXPORT int spw_cache_drain_device(struct spw_cache *cache, uint64_t owners[], unsigned count);

/* ---- Counters -------------------------------------------------------------------------------- */

/* Why a step held more than its budget. */
enum spw_budget_cause {
	SPW_BUDGET_MET, /* or there is none */
	/* no plan was in force: a step is measured before it is planned for */
	SPW_BUDGET_UNPLANNED,
	SPW_BUDGET_INFEASIBLE, /* no plan was found that fits */
	SPW_BUDGET_CHANGED,    /* the step was not the one that was planned for */
	SPW_BUDGET_DRIVES,     /* what was above it waited to be written */
	SPW_BUDGET_HELD,       /* tensors were saved earlier, or in use longer, than planned */
};

SPW_EXPORT void spw_cache_stats(struct spw_cache *cache, struct spw_cache_stats *stats,
				size_t size);
SPW_EXPORT void spw_cache_reset_peak(struct spw_cache *cache);

#define SPW_MEMORY_POINTS_MAX 512u

/* Of a step, from @ns after its beginning until the next point: the most in that time. */
struct spw_memory_point {
	uint64_t ns;
	uint64_t bytes;          /* in memory, as activation_bytes */
	uint64_t keep_all_bytes; /* that would be if nothing were spilled: from offer to release */
};

/*
 * The memory in use over the last step that ended. Return: how many points, of which the first
 * @count are set; 0: none has ended.
 */
SPW_EXPORT unsigned spw_cache_profile(struct spw_cache *cache, struct spw_memory_point points[],
				      unsigned count);

/* What the plan in force does with a scope of the forward pass. */
struct spw_cache_reason {
	uint64_t scope_key; /* 0: what was saved outside of all scopes */
	uint32_t micro_batch;
	bool may_again;       /* it can be computed again, as far as the caller has said */
	uint64_t again_ns;    /* how long that takes, to its last save */
	uint64_t saved_bytes; /* in it */
	struct spw_plan_reason reason;
};

/**
 * spw_cache_explain - for each scope, what the plan in force does, and why
 * @reasons: in the order in which the scopes ran
 * @result:  the plan's figures, if it is not NULL; its size field must be set
 *
 * Simulates up to four steps for each scope: for people, not for each step.
 *
 * Return: how many scopes there are, of which the first @count are set; 0 no plan is in force;
 * -ENOMEM.
 */
SPW_EXPORT int spw_cache_explain(struct spw_cache *cache, struct spw_cache_reason reasons[],
				 unsigned count, struct spw_plan_result *result);

#ifdef __cplusplus
}
#endif
#endif
