/* SPDX-License-Identifier: MIT */
/* hooks/port.h - Port: copies between the memory of devices and pinned memory of the host */
#ifndef SPW_HOOKS_PORT_H
#define SPW_HOOKS_PORT_H

#include "calls.h"

/* A copy that is or was in flight. */
struct copy {
	PyObject_HEAD uint64_t number; /* out: the tensor's number; in: the lease's */
	uint64_t len_bytes;
	PyObject *stream; /* the computing stream, from whose pool the memory is */
	PyObject *shape;  /* in: of the memory, as in struct saved; NULL: bytes */
	PyObject *begin;  /* a timed event, for a sample of the copies; or None */
	PyObject *event;  /* an event recorded after the copy */
	PyObject *since;  /* an event of a stream just before it waited for the copy; or NULL */
	PyObject *held;   /* the memory, while it could be reused before the copy ends; or NULL */
	struct device *device;
	struct copy *earlier; /* out: another copy of the same tensor */
	struct copy *next;    /* in the same direction */
	long long stalled_ns; /* how long a stream waited for the copy */
	char taken;           /* in: the prefetched bytes have been used */
	char ended;           /* the host knows that the copy has ended */
	char watched;         /* in: a thread waits for its end */
};

/* The copies out of a device, or the copies into it. */
struct direction {
	PyObject *side;            /* the side stream that copies; made by the first copy */
	uint64_t begun;            /* copies so far */
	struct copy *first, *last; /* the copies not known to have ended */
};

/* Each device has its own copies, so that a slow device does not delay another. */
struct device {
	PyObject *device;
	uint32_t number;   /* 1 or more */
	PyObject *nothing; /* a tensor without memory */
	PyObject *streams; /* the streams that have saved something: a list */
	struct direction out, in;
};

/* The store's arena, and what spw_cache_host_memory() was given. */
#define REGIONS_MAX (1 + SPW_CACHE_HOST_PIECES_MAX)

/* Pinned memory of the host. */
struct region {
	uint64_t begin, len_bytes;
	PyObject *elements; /* tensors on it, by element type; None: it is not aligned for that */
};

/* Not thread-safe: the callers hold the lock of struct on_device. */
struct port {
	PyObject_HEAD PyObject *table; /* a spillway._gpu.accelerator.Table */
	PyObject *times;               /* DeviceTimes */
	PyObject *kind;                /* the devices' type, as in torch.device */
	struct device **devices;
	uint32_t count;
	PyObject *out; /* the last copy out of each tensor, by its number */
	struct region regions[REGIONS_MAX];
	uint32_t region_count;
};

extern PyTypeObject *copy_type, *port_type;
extern PyType_Spec copy_spec, port_spec;

/* A tensor to copy out, after an event of the computing stream. */
struct leaving {
	PyObject *tensor, *stream, *after;
	struct spw_copy part;
	uint64_t number;
	PyObject *shape; /* the tensor's, if it is exactly the part to copy; or NULL */
};

/* Find a tensor's device. @device: set to NULL if not of the port's type. Return: 0; -1 */
int port_find(struct port *port, PyObject *tensor, struct device **device);
PyObject *port_stream(struct port *port, const struct device *device);
/* Return: 1 if a CUDA graph is being captured; 0; -1 */
int port_captures(struct port *port);
bool port_is_copying_out(const struct port *port, uint64_t number);
/* Whether some copy out has not ended, as far as the host knows. */
bool port_is_copying(const struct port *port);
int port_copy_out(struct port *port, struct device *device, const struct leaving *leaving);
/*
 * Make streams wait for the copies out of this tensor, then drop its memory. It is not known which
 * stream's pool the memory is from, so every stream that has saved something waits.
 * @since: the last event of one of them
 */
int port_order(struct port *port, uint64_t number, PyObject *since);
/*
 * Copy a lease into new memory from the stream's pool. If the copy out of tensor @number is still
 * in flight, the copy starts after it. @shape: of a tensor that fills the lease; or NULL
 */
struct copy *port_copy_in(struct port *port, struct device *device, PyObject *stream,
			  const struct spw_taken *taken, uint64_t number, PyObject *shape);
/*
 * Make the stream wait for a copy into @base.
 * @since: an event of the stream, before it waited for the bytes; or NULL
 */
int port_use(struct port *port, struct copy *copy, PyObject *base, PyObject *stream,
	     PyObject *since);
/* Drop a copy in that no one will use. */
int port_drop(struct port *port, struct copy *copy);

struct ended {
	uint64_t number;
	int result; /* 0 or a negative errno */
};

/*
 * Remove the oldest copy of one direction if it has ended. @waits: wait until it has. Return: 1; 0
 * it has not, or there is none; -1
 */
int port_ended(struct port *port, struct device *device, bool is_out, bool waits,
	       struct ended *ended);
/* Get the event of the oldest copy out that has not ended. Return: NULL if there is none. */
PyObject *port_oldest_out(const struct port *port);
/* Wait for all copies, and forget them. */
int port_finish(struct port *port);

#endif
