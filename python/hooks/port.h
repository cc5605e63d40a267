/* SPDX-License-Identifier: MIT */
/* hooks/port.h - copies between the memory of devices and the store's arena */
#ifndef SPW_HOOKS_PORT_H
#define SPW_HOOKS_PORT_H

#include "calls.h"

/* A copy that is or was in flight. */
struct copy {
	PyObject_HEAD uint64_t number; /* out: the tensor's; in: the lease */
	uint64_t len_bytes;
	PyObject *stream; /* that computes: the memory is from its pool */
	PyObject *shape;  /* in: of the memory, as in struct saved; NULL: bytes */
	PyObject *begin;  /* a timed event, for a sample of the copies; or None */
	PyObject *event;  /* its end */
	PyObject *since;  /* an event of a stream just before it waited for the copy; or NULL */
	PyObject *held;   /* the memory, until it cannot be reused before the end; or NULL */
	struct device *device;
	struct copy *earlier; /* out: another copy of the same tensor */
	struct copy *next;    /* in the same direction */
	long long stalled_ns; /* how long a stream waited for it */
	char taken;           /* in: it was prefetched, and has been used */
	char ended;           /* the host has seen its end */
};

/* The copies from a device, or those to it. */
struct direction {
	PyObject *side;            /* the stream that copies, from the first copy on */
	uint64_t begun;            /* copies so far */
	struct copy *first, *last; /* whose end the host has not seen */
};

/* A slow device holds back nothing of another. */
struct device {
	PyObject *device;
	uint32_t number;   /* 1 or more */
	PyObject *nothing; /* a tensor without memory */
	PyObject *streams; /* on which something was saved: a list */
	struct direction out, in;
};

/* Used by one thread at a time. */
struct port {
	PyObject_HEAD PyObject *table; /* a spillway._gpu.accelerator.Table */
	PyObject *times;               /* DeviceTimes */
	PyObject *kind;                /* the devices' type, as in torch.device */
	struct device **devices;
	uint32_t count;
	PyObject *out;   /* the last copy out of each tensor, by its number */
	PyObject *arena; /* its memory as elements, by type; None: the type cannot lie there */
	unsigned long long arena_begin, arena_bytes; /* 0: it is not pinned */
};

extern PyTypeObject *copy_type, *port_type;
extern PyType_Spec copy_spec, port_spec;

/* What is copied out, after an event of the stream that computes. */
struct leaving {
	PyObject *tensor, *stream, *after;
	struct spw_copy part;
	uint64_t number;
	PyObject *shape; /* the tensor's, if the tensor is that part; or NULL */
};

/* @device: of the port's type, or NULL if the tensor is on another one. Return: 0; -1 */
int port_find(struct port *port, PyObject *tensor, struct device **device);
PyObject *port_stream(struct port *port, const struct device *device);
/* Return: 1 a graph is being captured; 0; -1 */
int port_captures(struct port *port);
bool port_is_copying_out(const struct port *port, uint64_t number);
int port_copy_out(struct port *port, struct device *device, const struct leaving *leaving);
/*
 * Makes streams wait for the copies out of this tensor, then drops its memory. The stream whose
 * pool the memory is from is not known, so every stream that has saved something waits.
 * @since: the last event of one of them
 */
int port_order(struct port *port, uint64_t number, PyObject *since);
/*
 * Copies a lease into new memory from the stream's pool, after the copy out of the tensor @number
 * if that is in flight. @shape: of a tensor that fills the lease; or NULL
 */
struct copy *port_copy_in(struct port *port, struct device *device, PyObject *stream,
			  const struct spw_taken *taken, uint64_t number, PyObject *shape);
/*
 * Makes the stream wait for a copy into @base.
 * @since: an event of the stream, before it waited for the bytes; or NULL
 */
int port_use(struct port *port, struct copy *copy, PyObject *base, PyObject *stream,
	     PyObject *since);
/* A copy in is not needed. */
int port_drop(struct port *port, struct copy *copy);

struct ended {
	uint64_t number;
	int result; /* 0 or a negative errno */
};

/*
 * Takes the oldest copy of one direction, if it has ended. @waits: for its end. Return: 1; 0 none
 * has; -1
 */
int port_ended(struct port *port, struct device *device, bool is_out, bool waits,
	       struct ended *ended);
/* The event of the first copy out that has not ended; NULL: there is none. */
PyObject *port_oldest_out(const struct port *port);
/* Waits for all copies, and forgets them. */
int port_finish(struct port *port);

#endif
