/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/controller.h - an NVMe controller: start, admin commands, queue pairs, events, stop
 *
 * Threads    All functions may be called from any thread. A pair belongs to the thread that opened
 *            it; admin commands are serialized.
 * turns.
 *
 * Life       A controller is LIVE until it is closed, or until a thread finds a failure: a late
 *            command, a fatal status, an impossible completion, registers of all ones, or the
 *            kernel wants the device back. That thread disables it and cuts it off from memory.
 *            Once STOPPED it cannot write to memory any more: owners of commands in flight fail
 *            these and own their memory again. It stays STOPPED; the next spw_vfio__device_open()
 *            opens a new one.
 *
 * Invariants, cited by asserts and tests
 *   CTRL-1  A controller is cut off from memory exactly once, before it is STOPPED.
 *   CTRL-2  A pair is closed with nothing in flight, unless its controller is STOPPED: memory that
 *           a controller may write to is not freed.
 *   CTRL-3  A number in pairs_free belongs to no pair.
 */
#ifndef SPW_ENGINE_VFIO_CONTROLLER_H
#define SPW_ENGINE_VFIO_CONTROLLER_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "engine/vfio/queue.h"

#define SPW_VFIO_PAIRS_MAX 64u

/* Size of a copy buffer, for transfers of memory that is not mapped. */
#define SPW_VFIO_COPY_BYTES (128u << 10)

enum spw_vfio_state { SPW_VFIO_LIVE, SPW_VFIO_STOPPING, SPW_VFIO_STOPPED };

struct spw_vfio_controller {
	struct spw_vfio_link *link;
	atomic_uint state;
	/* once it is not LIVE: errno for commands in flight, and why it was stopped */
	int error;
	char reason[160]; /* "pci:0000:3d:00.0: ..." */

	/* CAP */
	uint32_t entries_max;
	uint32_t doorbell_bytes;
	uint32_t ready_ms; /* time limit of a start */
	uint32_t stop_ms;  /* time limit of a stop, before it is cut off */

	/* Identify Controller */
	uint32_t shutdown_ms; /* time limit of a shutdown (RTD3E) */
	struct spw_nvme_info identity;
	uint64_t command_bytes_max; /* limit by MDTS and by one page of PRP list */
	uint32_t namespaces;
	bool writes_zeroes;
	/* I/O commands may use SGLs, with memory aligned to 4 bytes */
	bool takes_sgl;
	bool tells_namespaces;          /* sends events when namespaces change */
	uint64_t zeroes_bytes_max;      /* limit of one Write Zeroes */
	uint32_t deallocate_blocks_max; /* limit of one Dataset Management */

	atomic_uint namespace_changes; /* number of events that namespaces have changed */

	pthread_mutex_t admin_lock; /* protects the fields below */
	struct spw_vfio_pair admin;
	bool listens;        /* an Asynchronous Event Request is in flight */
	uint32_t pairs;      /* number of I/O queue pairs */
	uint64_t pairs_free; /* bit i: pair i + 1 */
	uint32_t event;      /* last event that was not logged yet; valid if has_event */
	bool has_event;

	pthread_mutex_t io_lock; /* protects io, for blocking transfers */
	struct spw_vfio_pair io;
};

/* Start the controller behind @link. Takes ownership of @link, even on failure. */
int spw_vfio__controller_open(struct spw_vfio_link *link, struct spw_vfio_controller **controller);

/* Shut down a controller, and wait until it has. All pairs except its own must be closed. */
void spw_vfio__controller_close(struct spw_vfio_controller *controller);

/* Is the controller usable? Return: 0 LIVE; else the errno of further commands, with a message. */
int spw_vfio__controller_error(const struct spw_vfio_controller *controller);

/* Run an admin command. @data: at most a page, or NULL. Return: 0; NVMe status above 0; -errno. */
int spw_vfio__admin(struct spw_vfio_controller *controller, const union spw_vfio_command *command,
		    void *data, uint32_t len_bytes, uint32_t *result);

/* The same for an I/O command, with at most SPW_VFIO_COPY_BYTES. The opcode tells the direction. */
int spw_vfio__command(struct spw_vfio_controller *controller, const union spw_vfio_command *command,
		      void *data, uint32_t len_bytes);

/* The errno of a drive's status that is not success. */
static inline int spw_vfio__errno(int status)
{
	int error = spw_nvme__errno((uint32_t)status);

	return error ? error : -EIO;
}

/* Open a queue pair, with @extra_bytes for its owner. Return: 0; -EBUSY no more pairs; -errno. */
int spw_vfio__pair_open(struct spw_vfio_controller *controller, uint32_t slots,
			uint64_t extra_bytes, struct spw_vfio_pair *pair);

/* Close a pair, with nothing in flight unless the controller is STOPPED. */
void spw_vfio__pair_close(struct spw_vfio_controller *controller, struct spw_vfio_pair *pair);

/* Call it periodically: stops the controller if it failed; logs events. Return: is it LIVE? */
bool spw_vfio__controller_check(struct spw_vfio_controller *controller, const struct spw_log *log);

/* Stop a controller. The first call sets error and reason. On return it is STOPPED. */
void spw_vfio__controller_stop(struct spw_vfio_controller *controller, int error,
			       const char *format, ...) __attribute__((format(printf, 3, 4)));

static inline enum spw_vfio_state spw_vfio__controller_state(
	const struct spw_vfio_controller *controller)
{
	return (enum spw_vfio_state)atomic_load_explicit(&controller->state, memory_order_acquire);
}

#endif
