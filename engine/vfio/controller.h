/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/controller.h - an NVMe controller, from its start to its shutdown or failure
 *
 * Threads    Any, for all functions. A pair belongs to the thread that made it; admin commands take
 * turns.
 *
 * Life       LIVE until it is closed, or until a thread finds it not working: a late command, a
 *            fatal status, an impossible completion, registers of all ones, the kernel wanting it
 *            back. That thread disables it and cuts it off from memory. Once it is STOPPED it can
 *            write nowhere: owners of commands in flight fail them and own the memory again. It
 *            stays so; the next spw_vfio__device_open() starts over.
 *
 * Invariants, cited by asserts and tests
 *   CTRL-1  A controller is cut off before it is STOPPED, once.
 *   CTRL-2  A pair is closed with nothing in flight, unless its controller is STOPPED: what a
 *           controller may write to is not freed.
 *   CTRL-3  A number in pairs_free belongs to no pair.
 */
#ifndef SPW_ENGINE_VFIO_CONTROLLER_H
#define SPW_ENGINE_VFIO_CONTROLLER_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "engine/vfio/queue.h"

#define SPW_VFIO_PAIRS_MAX 64u

/* What is copied through at a time, of a transfer that is not in mapped memory. */
#define SPW_VFIO_COPY_BYTES (128u << 10)

enum spw_vfio_state { SPW_VFIO_LIVE, SPW_VFIO_STOPPING, SPW_VFIO_STOPPED };

struct spw_vfio_controller {
	struct spw_vfio_link *link;
	atomic_uint state;
	/* of what was in flight when it was found dead, and why; once it is not LIVE */
	int error;
	char reason[160]; /* "pci:0000:3d:00.0: ..." */

	/* CAP */
	uint32_t entries_max;
	uint32_t doorbell_bytes;
	uint32_t ready_ms; /* how long it may take to start, */
	uint32_t stop_ms;  /* and to stop before it is cut off */

	/* Identify Controller */
	uint32_t shutdown_ms; /* how long a shutdown may take; RTD3E */
	struct spw_nvme_info identity;
	uint64_t command_bytes_max; /* MDTS, and what one list of pages holds */
	uint32_t namespaces;
	bool writes_zeroes;
	/* with I/O commands; aligned to 4 bytes, as all memory here is */
	bool takes_sgl;
	bool tells_namespaces;          /* when they change */
	uint64_t zeroes_bytes_max;      /* of one Write Zeroes, */
	uint32_t deallocate_blocks_max; /* and of one Dataset Management */

	atomic_uint namespace_changes; /* so often it has said that namespaces have changed */

	pthread_mutex_t admin_lock; /* all below */
	struct spw_vfio_pair admin;
	bool listens;        /* an Asynchronous Event Request is with the controller */
	uint32_t pairs;      /* that it has, besides the admin queue's */
	uint64_t pairs_free; /* bit i: pair i + 1 */
	uint32_t event;      /* the last that was not logged yet, and whether there is one */
	bool has_event;

	pthread_mutex_t io_lock; /* for the transfers that wait; what is below */
	struct spw_vfio_pair io;
};

/* Start the controller behind @link, which belongs to it from now on, whatever is returned. */
int spw_vfio__controller_open(struct spw_vfio_link *link, struct spw_vfio_controller **controller);

/* All pairs but its own are gone. Tells it to shut down, and waits until it has. */
void spw_vfio__controller_close(struct spw_vfio_controller *controller);

/* What is refused from now on, as an error of its own; 0 when it is LIVE. */
int spw_vfio__controller_error(const struct spw_vfio_controller *controller);

/* Send and wait. @data: at most a page, or NULL. Return: 0; NVMe status above 0; -errno. */
int spw_vfio__admin(struct spw_vfio_controller *controller, const union spw_vfio_command *command,
		    void *data, uint32_t len_bytes, uint32_t *result);

/* The same on its own I/O rings, at most SPW_VFIO_COPY_BYTES; the opcode has the direction. */
int spw_vfio__command(struct spw_vfio_controller *controller, const union spw_vfio_command *command,
		      void *data, uint32_t len_bytes);

/* Of a drive's status that is not success. */
static inline int spw_vfio__errno(int status)
{
	int error = spw_nvme__errno((uint32_t)status);

	return error ? error : -EIO;
}

/* Make a pair, with @extra_bytes for its owner. Return: 0; -EBUSY no more pairs; -errno. */
int spw_vfio__pair_open(struct spw_vfio_controller *controller, uint32_t slots,
			uint64_t extra_bytes, struct spw_vfio_pair *pair);

/* Nothing is in flight, or the controller is STOPPED. */
void spw_vfio__pair_close(struct spw_vfio_controller *controller, struct spw_vfio_pair *pair);

/* Check it; stop it if it failed; log its events. Called at times. Return: is it LIVE? */
bool spw_vfio__controller_check(struct spw_vfio_controller *controller, const struct spw_log *log);

/* Stop it. The first to call says why: @error, and the text. On return it is STOPPED. */
void spw_vfio__controller_stop(struct spw_vfio_controller *controller, int error,
			       const char *format, ...) __attribute__((format(printf, 3, 4)));

static inline enum spw_vfio_state spw_vfio__controller_state(
	const struct spw_vfio_controller *controller)
{
	return (enum spw_vfio_state)atomic_load_explicit(&controller->state, memory_order_acquire);
}

#endif
