/* SPDX-License-Identifier: MIT */
/*
 * spillway/state.h - training state as records on drives: read ahead, changed in memory, written
 * behind, and durable at a commit
 *
 * A record is a run of bytes of fixed length with a name: of an optimizer, a tile of some 16 to
 * 64 MiB with all fields of a run of parameters. The caller says in which order it will use the
 * records of a pass; each is then in memory when its turn comes, and goes back when it was changed.
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
 *              drives move bytes from and to them without a copy. What spw_state_take() gives is
 *              the caller's until spw_state_give().
 *   Order      In memory are the records whose next use, by the order given, is the nearest; when
 *              room is needed, the one goes whose next use is the farthest. So of N records in
 *              memory for B, passes that go up and down in turn read N - B records each and write
 *              as many: what was used last is still there when the next pass begins.
 *   Writing    A changed record is put as a new object as soon as it is known that it has to go;
 *              the object before is freed when that has ended, so no record is ever torn. Each put
 *              finds the drives that are fastest now.
 *   Durable    After spw_state_commit() all records are on the drives as they are at that moment,
 *              whatever happens. Until the next commit a crash goes back to them. Transient records
 *              are of no commit: they are zero when a state is attached. With opts.copies of 2 one
 *              drive may die, too, at any time: the state goes on, and is attached again without
 *              it. Where only one drive has room left, records have one copy until they are put
 *              the next time (spw_store_stats, chunks_single; spw_commit_info).
 *   Errors     0 or a count, or a negative errno with spw_last_error() in words. A failed write
 *              keeps the record in memory, is logged and counted, and made again by the next call;
 *              it is reported by one that needs the room, or by the commit. Nothing is lost while
 *              the process lives.
 *   Fork       A state belongs to the process that opened it: in a child of fork(2) its calls fail
 *              with -EPERM, and spw_state_close() frees what the child has of it.
 *   Promise    take gives the bytes that were in the record when it was given back last, or an
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
	 * one is used while one is ready, one comes and one goes
	 */
	uint64_t memory_bytes;
	uint64_t record_bytes_max; /* the longest record; default 32 MiB */
	struct spw_log log;        /* default: none */
	/*
	 * 2: every record, and what a commit adds, on two drives, so that any one may fail; needs
	 * twice the room. Default 1
	 */
	uint32_t copies;
	/*
	 * Of updates that a device does a part of (spw_state_update()): it does each n-th record,
	 * from 2 on. Default 0: as many as what was measured says
	 */
	uint32_t device_every;
};

SPW_EXPORT void spw_state_opts_init(struct spw_state_opts *opts, size_t size);

/**
 * spw_state_open - hold training state in a store
 * @store:  open, not in inline mode; stays the caller's, and must outlive the state. What it has
 *          committed is the state's from now on: nobody else commits in it, or has a second state
 *          in it. Others may put and get objects of their own
 * @opts:   options, or NULL for the defaults
 * @state:  set on success, else NULL
 *
 * Return: 0; -EINVAL options; -ENOBUFS the store's arena has no such memory (says by how much it
 * is to be larger); -ENOMEM.
 */
SPW_EXPORT int spw_state_open(struct spw_store *store, const struct spw_state_opts *opts,
			      struct spw_state **state);

/*
 * Waits for I/O in flight, and frees the objects of all records. What was changed since the last
 * commit is lost; what was committed is there when the store is opened again.
 */
SPW_EXPORT void spw_state_close(struct spw_state *state);

/**
 * spw_state_add - declare a record, before spw_state_attach()
 * @name:    unique, not empty, at most SPW_STATE_NAME_BYTES_MAX bytes
 * @len:     1 to opts.record_bytes_max bytes
 * @shape:   any bytes that say what is in it (types, lengths of fields): compared when what is
 *           durable is attached, else not read; at most SPW_STATE_SHAPE_BYTES_MAX
 * @record:  set to its number, from 0 on in the order of the calls
 *
 * Return: 0; -EINVAL; -EEXIST the name is taken; -E2BIG too many, or their names and shapes are
 * too long for a commit; -EALREADY attached; -ENOMEM.
 */
SPW_EXPORT int spw_state_add(struct spw_state *state, const char *name, uint64_t len,
			     const void *shape, size_t shape_len, uint32_t *record);

/**
 * spw_state_add_transient - declare a record that no commit has, before spw_state_attach()
 * @name:    as of spw_state_add()
 * @len:     the same
 * @record:  the same
 *
 * For what is needed from one step to the next at most, like gradients. It needs room once. Return:
 * as spw_state_add().
 */
SPW_EXPORT int spw_state_add_transient(struct spw_state *state, const char *name, uint64_t len,
				       uint32_t *record);

/**
 * spw_state_add_object - declare a record that is an object of the caller's, before
 * spw_state_attach()
 * @name:    as of spw_state_add(), and so are the others
 * @len:     of the object; record_bytes_max does not bind it
 *
 * For what the caller puts and gets by itself, like parameters. Such a record is of every commit,
 * as the object that it was given last; it is in no pass, and nobody takes it. Return: as
 * spw_state_add().
 */
SPW_EXPORT int spw_state_add_object(struct spw_state *state, const char *name, uint64_t len,
				    const void *shape, size_t shape_len, uint32_t *record);

/**
 * spw_state_attach - all records are declared: take up what the store has committed, if anything
 *
 * Records are found by their names, whatever the order. The store must have room for every record
 * twice, since a commit stays until the next is durable, but for transient ones; said here, before
 * the first step. Until the release of a commit that is kept, what changes takes room a third time.
 *
 * Return: 1 the records have the bytes of the commit that the store has restored; 0 nothing is
 * committed: they are zero; -EINVAL no record, or none that a commit could have; -ENOSPC the store
 * is too small (says by how many bytes); -EUCLEAN what is committed is no state, or has other
 * records (names the first that is missing, too many, or of another length or shape);
 * -EPROTONOSUPPORT it is a newer version's; -EALREADY attached, or what the store had restored was
 * used by another state since: open it again; -ENOMEM. After an error nothing is changed.
 */
SPW_EXPORT int spw_state_attach(struct spw_state *state);

/* The number of the commit that was attached; -ENODATA none was. */
SPW_EXPORT int spw_state_attached(const struct spw_state *state, uint64_t *number);

/**
 * spw_state_extra - the bytes that were given with the commit that was attached
 * @len:  in: room in @extra; out: their length. With @extra NULL only that
 *
 * Return: 0; -ENODATA nothing was attached; -ERANGE the room is too small.
 */
SPW_EXPORT int spw_state_extra(const struct spw_state *state, void *extra, size_t *len);

/**
 * spw_state_pass - say in which order records will be taken next
 * @order:  each at most once; copied
 *
 * Reading ahead begins at once. What follows after this pass is not known: it is taken to be the
 * same in reverse. Records that are not named are taken to be used after all others. A take out of
 * order is served all the same, and counted.
 *
 * Return: 0; -EINVAL a number that is none or is there twice; -EBUSY a record is taken.
 */
SPW_EXPORT int spw_state_pass(struct spw_state *state, const uint32_t order[], uint32_t count);

/**
 * spw_state_update - begin a pass that updates each of its records, some of them on a device
 * @order:   as of spw_state_pass(), which this is
 * @device:  of each record; in: a device can update it, as it has what else that takes; out: it is
 *           to, while the host updates those that follow
 *
 * Of k records one is the device's, with k = 1 + ceil(t_gpu / t_cpu), so that it is done when the
 * host has done the others. t_cpu is the time from spw_state_take() to spw_state_give() of a record
 * of the host's, t_gpu what spw_state_device_took() says, both of the update before. Two updates
 * with one record on the device come first: the second is measured. None is on the device where it
 * takes longer than the host takes for all others, or where the caller waits for drives as long as
 * the device saves; which is tried again after 32 updates. With opts.device_every that is k, and
 * nothing is measured. With the same k the same records are the device's.
 *
 * A record on the device is taken as long as that copies from or to its memory: one more buffer
 * than else.
 *
 * Return: as spw_state_pass().
 */
SPW_EXPORT int spw_state_update(struct spw_state *state, const uint32_t order[], uint32_t count,
				bool device[]);

/**
 * spw_state_device_took - how long the device took for a record, before that is given back
 * @ns:  from the begin of the copy to it to the end of the copy back
 *
 * Return: 0; -EINVAL it is none that spw_state_update() gave to the device, or it is not taken.
 */
SPW_EXPORT int spw_state_device_took(struct spw_state *state, uint32_t record, uint64_t ns);

/**
 * spw_state_take - a record's bytes, to be read and changed
 * @memory:  set: aligned to 4096, as long as the record
 *
 * Waits until it is in memory, and, if a put of it is under way, until that has ended. As many may
 * be taken at once as there are buffers but one.
 *
 * Return: 0; -EINVAL no such record, or not attached; -EALREADY it is taken; -ENOBUFS that many are
 * taken, or as spw_store_get(); -EBADMSG, -EIO: how reading it failed; how a write failed without
 * which there is no room. After an error it can be tried again.
 */
SPW_EXPORT int spw_state_take(struct spw_state *state, uint32_t record, void **memory);

/**
 * spw_state_give - a record was used
 * @changed:  its bytes are others than before
 *
 * The memory is not the caller's any more. Does not wait for drives. Return: 0; -EINVAL it is not
 * taken.
 */
SPW_EXPORT int spw_state_give(struct spw_state *state, uint32_t record, bool changed);

/**
 * spw_state_clear - a record's bytes are not needed any more, and are zero
 *
 * Nothing is read or written for it, and it takes no space on the drives until it is given back
 * changed. Waits for what is under way of it.
 *
 * Return: 0; -EINVAL no such record; -EBUSY it is taken.
 */
SPW_EXPORT int spw_state_clear(struct spw_state *state, uint32_t record);

/**
 * spw_state_object - the object of such a record
 * @object:  set: the one of the commit that was attached, which is the caller's to free, or the one
 *           that was set since; 0: none, all bytes are zero
 *
 * Return: 0; -EINVAL no record of spw_state_add_object().
 */
SPW_EXPORT int spw_state_object(struct spw_state *state, uint32_t record, spw_object *object);

/**
 * spw_state_set_object - the object that commits have for such a record from now on
 * @object:  its put has ended well when the next commit is made, and it is there until then. The
 *           one before may be freed at once: what is committed keeps its bytes
 *
 * Return: 0; -EINVAL no record of spw_state_add_object().
 */
SPW_EXPORT int spw_state_set_object(struct spw_state *state, uint32_t record, spw_object object);

/**
 * spw_state_commit - make all records durable as they are now
 * @number:         above that of the commit before
 * @extra:          any bytes that belong to it
 * @keep_previous:  as of spw_store_commit()
 *
 * Waits for the puts of changed records that are in memory, where they stay, and for the drives.
 * Records that never were given back changed are zero, and take no space. None may be taken.
 *
 * Return: 0; -EBUSY one is taken; -E2BIG @extra_len; how the put of a record failed; as
 * spw_store_commit(). After an error the commit before is durable still (spw_store_commit() says
 * when it may be this one), and nothing in memory is lost.
 */
SPW_EXPORT int spw_state_commit(struct spw_state *state, uint64_t number, const void *extra,
				size_t extra_len, bool keep_previous);

/* As spw_store_commit_release(), which blocks. */
SPW_EXPORT int spw_state_commit_release(struct spw_state *state);

SPW_EXPORT void spw_state_stats(const struct spw_state *state, struct spw_state_stats *stats,
				size_t size);

/* ---- What a commit holds, without declaring anything: for tools ---- */

/*
 * How many records the commit has that opening the store has restored; -ENODATA none was; -EUCLEAN
 * it is no state's; -EALREADY as spw_state_attach().
 */
SPW_EXPORT int spw_state_committed_count(struct spw_store *store);

/**
 * spw_state_committed - call @each for every record of that commit, in order
 * @each:  @object's value is 0 where the record is zero. Another value than 0 ends it, and is
 *         returned. What it is given is valid during the call only, but for the object
 *
 * Return: 0; as spw_state_committed_count(); what @each returned.
 */
SPW_EXPORT int spw_state_committed(struct spw_store *store,
				   int (*each)(void *context, const char *name, uint64_t len,
					       const void *shape, size_t shape_len,
					       spw_object object),
				   void *context);

/**
 * spw_state_committed_extra - the bytes that were given with that commit
 * @len:  in: room in @extra; out: their length. With @extra NULL only that
 *
 * Return: 0; as spw_state_committed_count(); -ERANGE the room is too small.
 */
SPW_EXPORT int spw_state_committed_extra(struct spw_store *store, void *extra, size_t *len);

#ifdef __cplusplus
}
#endif
#endif
