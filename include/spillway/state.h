/* SPDX-License-Identifier: MIT */
/*
 * spillway/state.h - training state as records on drives: prefetched, changed in memory,
 * written back, and durable at a commit
 *
 * A record is a named run of bytes of fixed length: for an optimizer, a tile of 16 to 64 MiB with
 * all fields of a range of parameters. The caller announces the order in which it will use the
 * records of a pass; each is then in memory when its turn comes, and is written back if it was
 * changed.
 *
 *   spw_state_open(store, &opts, &state);
 *   for each record: spw_state_add(state, name, len_bytes, shape, shape_len, &record);
 *   spw_state_attach(state);                    what is durable under these names is there again
 *   each step:
 *     spw_state_pass(state, order, count);
 *     for each record of the order: spw_state_take(...); change it; spw_state_give(state, r, true);
 *     now and then: spw_state_commit(state, step, extra, extra_len);
 *
 * Contract
 *   Threads    One thread at a time uses a state. Several may work on the memory of records that
 *              are taken. The store's own thread does the I/O.
 *   Memory     opts.memory_bytes of the store's arena, in buffers of opts.record_bytes_max each;
 *              drives move bytes from and to them without a copy. The memory that spw_state_take()
 *              returns belongs to the caller until spw_state_give().
 *   Order      Memory has the records whose next use, by the announced order, is nearest; when room
 *              is needed, the record whose next use is farthest is evicted. So with N records and
 *              memory for B, passes that alternate up and down read and write N - B records each:
 *              the records used last are still in memory when the next pass begins.
 *   Writing    A changed record is put as a new object as soon as it is known that it will be
 *              evicted; the old object is freed when the put has ended, so no record is ever torn.
 *              Each put is striped over the drives that are fastest now.
 *   Durable    spw_state_commit() makes all records durable as they are at that moment. Until the
 *              next commit, they are restored after a crash. Transient records are not part of
 *              commits: they are zero when a state is attached. With opts.copies of 2 any one drive
 *              may fail at any time: the state continues, and can be attached without it. If only
 *              one drive has room left, records have one copy until they are put again
 *              (spw_store_stats, chunks_single; spw_commit_info).
 *   Errors     0 or a count, or a negative errno with a message in spw_last_error(). After a failed
 *              write the record stays in memory; the failure is logged and counted, and the next
 *              call writes again. A call that needs the memory, or the commit, returns the error.
 *              Nothing is lost while the process lives.
 *   Fork       A state belongs to the process that opened it: in a child of fork(2) its calls fail
 *              with -EPERM, and spw_state_close() frees the child's memory only.
 *   Promise    take returns the bytes that the record had at its last spw_state_give(), or an
 *              error. Never other bytes.
 */
#ifndef SPILLWAY_STATE_H
#define SPILLWAY_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/counters.h>
#include <spillway/error.h>
#include <spillway/store.h>

#ifdef __cplusplus
extern "C" {
#endif

struct spw_state; /* opaque */

#define SPW_STATE_NAME_BYTES_MAX  512u
#define SPW_STATE_SHAPE_BYTES_MAX 65536u
#define SPW_STATE_RECORDS_MAX     (1u << 20)

struct spw_state_opts {
	size_t size; /* sizeof *this as the caller knows it */
	/*
	 * Memory for records; rounded down to whole buffers. Default 0: four buffers, the least:
	 * one record is used while one is ready, one is read and one is written
	 */
	uint64_t memory_bytes;
	uint64_t record_bytes_max; /* the longest record; default 32 MiB */
	struct spw_log log;        /* default: none */
	/*
	 * 2: every record and every commit is stored on two drives, so that any one may fail; needs
	 * twice the space. Default 1
	 */
	uint32_t copies;
	/*
	 * For spw_state_update(): every n-th record is updated on the device, n at least 2. Default
	 * 0: chosen from measurements
	 */
	uint32_t device_every;
};
SPW_ABI(struct spw_state_opts, device_every, 44, 48);

/**
 * spw_state_opts_init - set the defaults
 * @opts:  set
 * @size:  sizeof *@opts
 */
SPW_EXPORT void spw_state_opts_init(struct spw_state_opts *opts, size_t size);

/**
 * spw_state_open - keep training state in a store
 * @store:  open, not in inline mode; must outlive the state. From now on the state makes the
 *          store's commits: the caller must not commit, nor open a second state in the store, but
 *          may put and get other objects
 * @opts:   or NULL for the defaults
 * @state:  set on success, else NULL
 *
 * Return: 0; -EINVAL options; -ENOBUFS the store's arena lacks memory, with how much; -ENOMEM.
 */
SPW_EXPORT int spw_state_open(struct spw_store *store, const struct spw_state_opts *opts,
			      struct spw_state **state);

/**
 * spw_state_close - wait for I/O in flight, and free the objects of all records
 * @state:  or NULL
 *
 * Changes since the last commit are lost; the commit is restored when the store is opened again.
 */
SPW_EXPORT void spw_state_close(struct spw_state *state);

/**
 * spw_state_add - declare a record, before spw_state_attach()
 * @state:      the state
 * @name:       unique, not empty, at most SPW_STATE_NAME_BYTES_MAX bytes
 * @len:        1 to opts.record_bytes_max bytes
 * @shape:      any bytes that describe the contents (types, lengths of fields); compared when a
 *              commit is attached, otherwise not interpreted
 * @shape_len:  at most SPW_STATE_SHAPE_BYTES_MAX
 * @record:     set to its number, counted from 0
 *
 * Return: 0; -EINVAL; -EEXIST the name is taken; -E2BIG too many records, or names and shapes too
 * long for a commit; -EALREADY attached; -ENOMEM.
 */
SPW_EXPORT int spw_state_add(struct spw_state *state, const char *name, uint64_t len,
			     const void *shape, size_t shape_len, uint32_t *record);

/**
 * spw_state_add_transient - declare a record that is not part of commits
 * @state:   the state, before spw_state_attach()
 * @name:    as for spw_state_add()
 * @len:     the same
 * @record:  the same
 *
 * For data that lives for a step at most, such as gradients. It needs space only once.
 *
 * Return: as spw_state_add().
 */
SPW_EXPORT int spw_state_add_transient(struct spw_state *state, const char *name, uint64_t len,
				       uint32_t *record);

/**
 * spw_state_add_former - declare a record that only the commit to be attached has
 * @state:      the state, before spw_state_attach()
 * @name:       as for spw_state_add()
 * @len:        the same
 * @shape:      the same
 * @shape_len:  the same
 * @record:     the same
 *
 * For records that others take the place of, which may then be absent from the commit, and are
 * zero. No later commit has it: the caller fills the others from it, and calls spw_state_clear().
 *
 * Return: as spw_state_add().
 */
SPW_EXPORT int spw_state_add_former(struct spw_state *state, const char *name, uint64_t len,
				    const void *shape, size_t shape_len, uint32_t *record);

/**
 * spw_state_add_object - declare a record whose bytes are an object of the caller's
 * @state:      the state, before spw_state_attach()
 * @name:       as for spw_state_add()
 * @len:        of the object in bytes; may exceed opts.record_bytes_max
 * @shape:      as for spw_state_add()
 * @shape_len:  the same
 * @record:     the same
 *
 * For data that the caller puts and gets itself, such as parameters. Each commit has the object
 * that was set last. The record cannot be part of a pass or be taken.
 *
 * Return: as spw_state_add().
 */
SPW_EXPORT int spw_state_add_object(struct spw_state *state, const char *name, uint64_t len,
				    const void *shape, size_t shape_len, uint32_t *record);

/**
 * spw_state_attach - end declaring records, and restore them from the store's commit, if there is
 * one
 * @state:  the state
 *
 * Records are found by name, in any order. The store must have room for every record twice, except
 * transient ones, since a commit stays until the next is durable; this is checked here, before the
 * first step. While a previous commit is kept, changed records need room a third time.
 *
 * Return: 1 the records have the bytes of the restored commit; 0 no commit: they are zero; -EINVAL
 * no record, or only transient ones; -ENOSPC the store is too small, with the missing bytes;
 * -EUCLEAN the commit is not a state's, or has other records, with the first that is missing,
 * unexpected, or of another length or shape; -EPROTONOSUPPORT a newer version's; -EALREADY
 * attached, or another state has used what the store had restored: reopen it; -ENOMEM. An error
 * changes nothing.
 */
SPW_EXPORT int spw_state_attach(struct spw_state *state);

/**
 * spw_state_attach_empty - as spw_state_attach(), but all records are zero: they are to replace
 * those of the store's commit, whatever these are
 * @state:  the state
 *
 * The commit stays until the next one, which takes its place. Its bytes are read by another store
 * of the same partition (opts.shared).
 *
 * Return: as spw_state_attach(); but 1 there is a commit, of which the number and the extra bytes
 * are known.
 */
SPW_EXPORT int spw_state_attach_empty(struct spw_state *state);

/**
 * spw_state_attached - the number of the commit that was attached
 * @state:   the state
 * @number:  set on success
 *
 * Return: 0; -ENODATA no commit was attached.
 */
SPW_EXPORT int spw_state_attached(const struct spw_state *state, uint64_t *number);

/**
 * spw_state_extra - copy the bytes that were given with the commit that was attached
 * @state:  the state
 * @extra:  set; or NULL to get the length only
 * @len:    in: room in @extra; out: their length
 *
 * Return: 0; -ENODATA no commit was attached; -ERANGE the room is too small.
 */
SPW_EXPORT int spw_state_extra(const struct spw_state *state, void *extra, size_t *len);

/**
 * spw_state_pass - announce in which order records will be taken next
 * @state:  the state
 * @order:  record numbers, each at most once; copied
 * @count:  of @order
 *
 * Prefetching begins at once. The pass after it is assumed to be the same in reverse, and records
 * that are not in @order to be used after all others. A take out of order works, and is counted.
 *
 * Return: 0; -EINVAL a number is not a record's, or is given twice; -EBUSY a record is taken.
 */
SPW_EXPORT int spw_state_pass(struct spw_state *state, const uint32_t order[], uint32_t count);

/**
 * spw_state_update - begin a pass that updates each record, some of them on a device
 * @state:   the state
 * @order:   as for spw_state_pass()
 * @count:   the same
 * @device:  for each record; in: whether a device can update it; out: whether it should, while the
 *           host updates the records that follow
 *
 * The device gets every k-th record, with k = 1 + ceil(t_gpu / t_cpu), so that it has finished one
 * record when the host has finished the others. t_cpu is the time from spw_state_take() to
 * spw_state_give() of a record that the host updates, t_gpu the time given to
 * spw_state_device_took(), both in the previous update. The first two updates have one record on
 * the device; the second is measured. The device gets no record if it takes longer for one than the
 * host for all others, or if the caller waits for drives as long as the device saves; it is tried
 * again after 32 updates. opts.device_every sets k, and nothing is measured. The same k selects the
 * same records.
 *
 * A record on the device stays taken while the device copies from or to its memory, which needs one
 * more buffer.
 *
 * Return: as spw_state_pass().
 */
SPW_EXPORT int spw_state_update(struct spw_state *state, const uint32_t order[], uint32_t count,
				bool device[]);

/**
 * spw_state_device_took - report how long the device took for a record
 * @state:   the state
 * @record:  taken; one that spw_state_update() selected for the device
 * @ns:      from the beginning of the copy to it to the end of the copy back
 *
 * Return: 0; -EINVAL not such a record, or not taken.
 */
SPW_EXPORT int spw_state_device_took(struct spw_state *state, uint32_t record, uint64_t ns);

/**
 * spw_state_take - wait for a record, to read and change it
 * @state:   the state
 * @record:  its number
 * @memory:  set: aligned to 4096, as long as the record, the caller's until spw_state_give()
 *
 * Waits until the record is in memory, and until a put of it has ended. At most one record less
 * than there are buffers may be taken at the same time.
 *
 * Return: 0; -EINVAL no such record, or not attached; -EALREADY it is taken; -ENOBUFS too many are
 * taken, or as spw_store_get(); -EBADMSG, -EIO reading it failed; or the error of a write that had
 * to make room. After an error the call may be repeated.
 */
SPW_EXPORT int spw_state_take(struct spw_state *state, uint32_t record, void **memory);

/**
 * spw_state_give - return a record
 * @state:    the state
 * @record:   taken
 * @changed:  whether its bytes differ from before
 *
 * The memory is not the caller's any more. Does not wait for drives.
 *
 * Return: 0; -EINVAL it is not taken.
 */
SPW_EXPORT int spw_state_give(struct spw_state *state, uint32_t record, bool changed);

/**
 * spw_state_clear - make a record zero
 * @state:   the state
 * @record:  not taken
 *
 * The record is not read or written, and takes no space on the drives, until it is returned as
 * changed. Waits for its I/O in flight.
 *
 * Return: 0; -EINVAL no such record; -EBUSY it is taken.
 */
SPW_EXPORT int spw_state_clear(struct spw_state *state, uint32_t record);

/**
 * spw_state_object - the object of a record of spw_state_add_object()
 * @state:   the state
 * @record:  its number
 * @object:  set to the object of the attached commit, which the caller has to free, or the object
 *           set since; 0: all bytes are zero
 *
 * Return: 0; -EINVAL not such a record.
 */
SPW_EXPORT int spw_state_object(struct spw_state *state, uint32_t record, spw_object *object);

/**
 * spw_state_set_object - set the object of a record of spw_state_add_object()
 * @state:   the state
 * @record:  its number
 * @object:  must exist, and its put have succeeded, at the next commit. The object that it replaces
 *           may be freed at once: the last commit keeps its bytes
 *
 * Return: 0; -EINVAL not such a record.
 */
SPW_EXPORT int spw_state_set_object(struct spw_state *state, uint32_t record, spw_object object);

/**
 * spw_state_commit - make all records durable as they are now
 * @state:          the state; no record is taken
 * @number:         above that of the previous commit
 * @extra:          any bytes to be kept with it; or NULL
 * @extra_len:      of @extra
 * @keep_previous:  as SPW_COMMIT_KEEP_PREVIOUS of spw_store_commit()
 *
 * Waits for the puts of changed records, which stay in memory, and for the drives. Records that
 * were never returned as changed are zero, and take no space.
 *
 * Return: 0; -EBUSY a record is taken; -E2BIG @extra_len; the error of a record's put; or as
 * spw_store_commit(). After an error the previous commit is still durable (or this one, see
 * spw_store_commit()), and nothing in memory is lost.
 */
SPW_EXPORT int spw_state_commit(struct spw_state *state, uint64_t number, const void *extra,
				size_t extra_len, bool keep_previous);

/**
 * spw_state_commit_release - release the previous commit that was kept
 * @state:  the state
 *
 * Waits for the drives.
 *
 * Return: as spw_store_commit_release().
 */
SPW_EXPORT int spw_state_commit_release(struct spw_state *state);

/**
 * spw_state_stats - read the counters
 * @state:  the state
 * @stats:  set
 * @size:   sizeof *@stats
 */
SPW_EXPORT void spw_state_stats(const struct spw_state *state, struct spw_state_stats *stats,
				size_t size);

/* ---- Float32 masters in 17 bits, beside the bfloat16 weights that they are rounded to ---- */

/**
 * spw_state_masters_pack - keep of masters what their weights do not have
 * @masters:   the bits of float32 numbers
 * @weights:   the bits of the same numbers in bfloat16: rounded either way; NaN to any NaN
 * @count:     of both; may be 0
 * @low:       set: @count numbers
 * @carry:     set: bit (@first + i) % 8 of byte (@first + i) / 8 for master i. Other bits are kept
 * @first:     of the bits
 * @sum:       set: a checksum of the weights
 * @odd_nans:  set: how many masters are NaN with a bit set in their low half. These bits are lost,
 *             and it is quiet afterwards
 *
 * Return: how many other masters are lost, since the weight is not the number rounded: 0, or the
 * caller has made a mistake.
 */
SPW_EXPORT uint64_t spw_state_masters_pack(const uint32_t *masters, const uint16_t *weights,
					   size_t count, uint16_t *low, uint8_t *carry,
					   size_t first, uint64_t *sum, uint64_t *odd_nans);

/**
 * spw_state_masters_unpack - the masters again, bit for bit
 * @masters:  set; NULL: only tell whether the weights are the same, for which neither @low nor
 *            @carry is needed
 * @weights:  as they are now
 * @count:    of the same call of spw_state_masters_pack()
 * @low:      which has set it
 * @carry:    the same
 * @first:    the same
 * @sum:      the same
 *
 * Return: 1; 0 the weights are others than those of that call: they are the masters now.
 */
SPW_EXPORT int spw_state_masters_unpack(uint32_t *masters, const uint16_t *weights, size_t count,
					const uint16_t *low, const uint8_t *carry, size_t first,
					uint64_t sum);

/* ---- Read a commit without declaring records: for tools ---- */

/**
 * spw_state_committed_count - how many records the commit of a store has
 * @store:  just opened, without a state
 *
 * Return: the number; -ENODATA no commit was restored; -EUCLEAN it is not a state's; -EALREADY as
 * spw_state_attach().
 */
SPW_EXPORT int spw_state_committed_count(struct spw_store *store);

/**
 * spw_state_committed - call a function for every record of the commit of a store
 * @store:    just opened, without a state
 * @each:     called in order; @object is 0 if the record is zero. Its arguments are valid during
 *            the call, except for the object. A result other than 0 ends the iteration
 * @context:  of @each
 *
 * Return: 0; as spw_state_committed_count(); what @each returned.
 */
SPW_EXPORT int spw_state_committed(struct spw_store *store,
				   int (*each)(void *context, const char *name, uint64_t len,
					       const void *shape, size_t shape_len,
					       spw_object object),
				   void *context);

/**
 * spw_state_committed_extra - copy the bytes that were given with the commit of a store
 * @store:  just opened, without a state
 * @extra:  set; or NULL to get the length only
 * @len:    in: room in @extra; out: their length
 *
 * Return: 0; as spw_state_committed_count(); -ERANGE the room is too small.
 */
SPW_EXPORT int spw_state_committed_extra(struct spw_store *store, void *extra, size_t *len);

#ifdef __cplusplus
}
#endif
#endif
