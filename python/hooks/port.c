/* SPDX-License-Identifier: MIT */
/*
 * hooks/port.c - Port: copies between the memory of devices and pinned memory of the host
 *
 * The cache decides what is copied; this file does it.
 *
 * Out: the computing stream records an event; a side stream waits for it, copies into staging
 *      memory and records another event, the end of the copy. A host that runs ahead of the device
 *      does not wait for that end: port_order() makes streams wait, and drops the memory.
 * In:  the computing stream allocates new memory, so that it is from its own pool; another side
 *      stream waits for that, copies, and records an event for which every user of the bytes waits.
 *
 * spillway/_gpu/device_times.py measures how long a computing stream waits for either.
 *
 * The host waits for a stream only when the port is finished, and on request (@waits). Any call may
 * run Python, and so raise KeyboardInterrupt or switch threads: the caller holds a lock.
 */
#include "port.h"

#include <errno.h>
#include <string.h>

/* ---- Calls of the accelerator table ---- */

int port_captures(struct port *port)
{
	return to_bool(PyObject_CallMethodObjArgs(port->table, names.capturing, NULL));
}

PyObject *port_stream(struct port *port, const struct device *device)
{
	return PyObject_CallMethodObjArgs(port->table, names.current_stream, device->device, NULL);
}

static int stream_wait(struct port *port, PyObject *stream, PyObject *event)
{
	return ignore(PyObject_CallMethodObjArgs(port->table, names.wait, stream, event, NULL));
}

/* ---- Devices ---- */

/* Return: the device's index in port->devices, or their count if it is not there yet; -1 */
static int64_t device_find(struct port *port, PyObject *object)
{
	uint32_t i = 0;
	int rc = 0;

	while (i < port->count) {
		rc = PyObject_RichCompareBool(port->devices[i]->device, object, Py_EQ);
		if (rc)
			break;
		i++;
	}
	return rc < 0 ? -1 : (int64_t)i;
}

static struct device *device_new(PyObject *object, PyObject *nothing, uint32_t number)
{
	struct device *device = PyMem_Calloc(1, sizeof(*device));

	if (!device) {
		PyErr_NoMemory();
		return NULL;
	}
	device->streams = PyList_New(0);
	if (!device->streams) {
		PyMem_Free(device);
		return NULL;
	}
	device->device = new_ref(object);
	device->nothing = new_ref(nothing);
	device->number = number;
	return device;
}

/* Add a device, unless another thread has added it since the caller looked. */
static struct device *device_add(struct port *port, PyObject *object)
{
	PyObject *nothing = call(torch.nothing_on, object);
	int64_t place = nothing ? device_find(port, object) : -1;
	struct device **devices = NULL;

	if (place >= 0 && place == port->count) {
		devices = PyMem_Realloc(port->devices, ((size_t)place + 1) * sizeof(*devices));
		if (devices) {
			port->devices = devices;
			devices[place] = device_new(object, nothing, port->count + 1);
			port->count += devices[place] != NULL;
		} else {
			PyErr_NoMemory();
		}
	}
	Py_XDECREF(nothing);
	return place >= 0 && place < port->count ? port->devices[place] : NULL;
}

/* Find or add a device. Return: NULL without an exception if it is not of the port's type. */
static struct device *device_of(struct port *port, PyObject *object)
{
	int64_t place = device_find(port, object);
	PyObject *kind;
	int rc;

	if (place < 0 || place < port->count)
		return place < 0 ? NULL : port->devices[place];
	kind = PyObject_GetAttr(object, names.type);
	if (!kind)
		return NULL;
	rc = PyObject_RichCompareBool(kind, port->kind, Py_EQ);
	Py_DECREF(kind);
	return rc > 0 ? device_add(port, object) : NULL;
}

int port_find(struct port *port, PyObject *tensor, struct device **device)
{
	PyObject *object = get(&torch.device, tensor);

	*device = object ? device_of(port, object) : NULL;
	Py_XDECREF(object);
	return !*device && PyErr_Occurred() ? -1 : 0;
}

/* ---- Copies ---- */

static struct copy *copy_new(struct device *device, uint64_t number, PyObject *stream,
			     PyObject *held, uint64_t len_bytes)
{
	struct copy *copy = PyObject_New(struct copy, copy_type);

	SPW_ASSERT(device->number > 0);
	if (!copy)
		return NULL;
	memset((char *)copy + sizeof(PyObject), 0, sizeof(*copy) - sizeof(PyObject));
	copy->number = number;
	copy->len_bytes = len_bytes;
	copy->stream = new_ref(stream);
	copy->held = new_ref(held);
	copy->device = device;
	return copy;
}

static void copy_dealloc(PyObject *object)
{
	struct copy *copy = (struct copy *)object;

	SPW_ASSERT(!copy->next);
	Py_XDECREF(copy->stream);
	Py_XDECREF(copy->shape);
	Py_XDECREF(copy->begin);
	Py_XDECREF(copy->event);
	Py_XDECREF(copy->since);
	Py_XDECREF(copy->held);
	Py_XDECREF((PyObject *)copy->earlier);
	object_free(object);
}

static void direction_add(struct direction *direction, struct copy *copy)
{
	SPW_ASSERT(copy->event && !copy->ended && !copy->next);
	SPW_ASSERT(!direction->last == !direction->first);
	if (direction->last)
		direction->last->next = copy;
	else
		direction->first = copy;
	direction->last = new_ref(copy);
}

static void direction_remove_first(struct direction *direction)
{
	struct copy *copy = direction->first;

	SPW_ASSERT(copy && !direction->last->next);
	direction->first = copy->next;
	if (!direction->first)
		direction->last = NULL;
	copy->next = NULL;
	Py_DECREF((PyObject *)copy);
}

/* Get the last copy out of a tensor. Return: borrowed; NULL if none, or with an exception. */
static struct copy *out_of(const struct port *port, PyObject *number)
{
	return (struct copy *)PyDict_GetItemWithError(port->out, number);
}

bool port_is_copying_out(const struct port *port, uint64_t number)
{
	for (uint32_t i = 0; i < port->count; i++)
		for (struct copy *copy = port->devices[i]->out.first; copy; copy = copy->next)
			if (copy->number == number)
				return true;
	return false;
}

/* ---- Staging memory ---- */

/* Find the pinned memory that a part lies in. Return: NULL if it lies in none. */
static struct region *region_of(struct port *port, const void *memory, uint64_t len_bytes)
{
	uint64_t begin = (uint64_t)(uintptr_t)memory;

	for (uint32_t i = 0; i < port->region_count; i++) {
		struct region *region = &port->regions[i];

		if (begin >= region->begin && len_bytes <= region->len_bytes &&
		    begin - region->begin <= region->len_bytes - len_bytes)
			return region;
	}
	return NULL;
}

/* Get a region as a tensor of a type. Return: borrowed; None if not aligned for the type. */
static PyObject *region_as(struct port *port, struct region *region, PyObject *dtype)
{
	PyObject *elements = PyDict_GetItemWithError(region->elements, dtype);

	if (elements || PyErr_Occurred())
		return elements;
	elements = PyObject_CallMethod((PyObject *)port, "_elements", "OKK", dtype,
				       (unsigned long long)region->begin,
				       (unsigned long long)region->len_bytes);
	if (elements && PyDict_SetItem(region->elements, dtype, elements))
		Py_CLEAR(elements);
	Py_XDECREF(elements);
	return elements;
}

/*
 * Make a tensor on a part of pinned memory. Return: NULL without an exception if the part is not
 * aligned for the element type.
 */
static PyObject *staging_as(struct port *port, const void *memory, uint64_t len_bytes,
			    PyObject *shape)
{
	struct region *region = region_of(port, memory, len_bytes);
	PyObject *dtype = PyTuple_GetItem(shape, 0), *elements;
	const struct dtype *known = dtype_find(dtype);
	uint64_t begin;

	if (!region || !known)
		return NULL;
	begin = (uint64_t)(uintptr_t)memory - region->begin;
	if (begin % known->itemsize != 0)
		return NULL;
	elements = region_as(port, region, dtype);
	if (!elements || elements == Py_None)
		return NULL;
	return PyObject_CallFunction(torch.as_strided, "OOOK", elements, PyTuple_GetItem(shape, 1),
				     PyTuple_GetItem(shape, 2),
				     (unsigned long long)(begin / known->itemsize));
}

static PyObject *staging(struct port *port, const void *memory, uint64_t len_bytes)
{
	PyObject *address = PyLong_FromVoidPtr((void *)(uintptr_t)memory), *bytes = NULL,
		 *length = PyLong_FromUnsignedLongLong(len_bytes);

	if (address && length)
		bytes = PyObject_CallMethodObjArgs((PyObject *)port, names.bytes_at, address,
						   length, NULL);
	Py_XDECREF(address);
	Py_XDECREF(length);
	return bytes;
}

/* ---- Copying ---- */

/* Start a copy on the side stream, between two events, and add it to the direction's list. */
static int direction_begin(struct port *port, struct direction *direction, struct copy *copy,
			   PyObject *to, PyObject *source)
{
	PyObject *begun = PyLong_FromUnsignedLongLong(direction->begun);

	if (!begun)
		return -1;
	copy->begin =
		PyObject_CallMethodObjArgs(port->times, names.begin, direction->side, begun, NULL);
	Py_DECREF(begun);
	if (!copy->begin)
		return -1;
	direction->begun++;
	if (ignore(PyObject_CallMethodObjArgs(port->table, names.copy, to, source, direction->side,
					      NULL)))
		return -1;
	copy->event =
		PyObject_CallMethodObjArgs(port->table, names.mark_event, direction->side, NULL);
	if (!copy->event)
		return -1;
	direction_add(direction, copy);
	return 0;
}

/*
 * Start a copy after the event @after and, if @out is not NULL, after the copy @out. On failure,
 * such as Ctrl-C, the caller may reuse the memory at once, so this waits for a copy that did start.
 */
static int direction_copy(struct port *port, struct direction *direction, struct copy *copy,
			  PyObject *to, PyObject *source, PyObject *after, const struct copy *out)
{
	PyObject *type, *value, *traceback;

	if (!direction->side)
		direction->side = PyObject_CallMethodObjArgs(port->table, names.new_stream,
							     copy->device->device, NULL);
	if (!direction->side || stream_wait(port, direction->side, after))
		return -1;
	if (out && stream_wait(port, direction->side, out->event))
		return -1;
	if (direction_begin(port, direction, copy, to, source) == 0)
		return 0;
	PyErr_Fetch(&type, &value, &traceback);
	if (ignore(PyObject_CallMethodObjArgs((PyObject *)port, names.abort, direction->side,
					      NULL))) {
		Py_XDECREF(type);
		Py_XDECREF(value);
		Py_XDECREF(traceback);
	} else {
		PyErr_Restore(type, value, traceback);
	}
	return -1;
}

/* Make the source and destination tensors of a copy out. */
static int leaving_ends(struct port *port, const struct leaving *leaving, PyObject **source,
			PyObject **to)
{
	const struct spw_copy *part = &leaving->part;

	*to = leaving->shape ? staging_as(port, part->staging, part->len_bytes, leaving->shape)
			     : NULL;
	if (*to) {
		*source = new_ref(leaving->tensor);
		return 0;
	}
	if (PyErr_Occurred())
		return -1;
	*source = PyObject_CallFunction(torch.bytes_of, "OKK", leaving->tensor,
					(unsigned long long)part->offset_bytes,
					(unsigned long long)part->len_bytes);
	*to = *source ? staging(port, part->staging, part->len_bytes) : NULL;
	return *to ? 0 : -1;
}

int port_copy_out(struct port *port, struct device *device, const struct leaving *leaving)
{
	PyObject *source = NULL, *to = NULL, *number = PyLong_FromUnsignedLongLong(leaving->number);
	struct copy *copy = copy_new(device, leaving->number, leaving->stream, leaving->tensor,
				     leaving->part.len_bytes);
	int rc = number && copy ? PySequence_Contains(device->streams, leaving->stream) : -1;

	if (rc == 0)
		rc = PyList_Append(device->streams, leaving->stream);
	if (rc >= 0)
		rc = leaving_ends(port, leaving, &source, &to);
	if (rc == 0)
		rc = direction_copy(port, &device->out, copy, to, source, leaving->after, NULL);
	if (rc == 0) {
		struct copy *earlier = out_of(port, number);

		copy->earlier = earlier ? new_ref(earlier) : NULL;
		rc = PyErr_Occurred() ? -1 : PyDict_SetItem(port->out, number, (PyObject *)copy);
	}
	Py_XDECREF(source);
	Py_XDECREF(to);
	Py_XDECREF(number);
	Py_XDECREF((PyObject *)copy);
	return rc;
}

static int order(struct port *port, struct copy *copy, PyObject *since)
{
	PyObject *streams = copy->device->streams;

	SPW_ASSERT(copy->event);
	for (Py_ssize_t i = 0; i < PyList_Size(streams); i++)
		if (stream_wait(port, PyList_GetItem(streams, i), copy->event))
			return -1;
	set_ref(&copy->since, since && since != Py_None ? new_ref(since) : NULL);
	if (ignore(PyObject_CallMethodObjArgs(port->times, names.waits, copy->device->device, copy,
					      NULL)))
		return -1;
	for (struct copy *each = copy; each; each = each->earlier)
		Py_CLEAR(each->held);
	return 0;
}

int port_order(struct port *port, uint64_t number, PyObject *since)
{
	PyObject *key = PyLong_FromUnsignedLongLong(number);
	struct copy *copy = key ? out_of(port, key) : NULL;
	int rc = PyErr_Occurred() ? -1 : 0;

	Py_XDECREF(key);
	if (copy && copy->held) {
		Py_INCREF((PyObject *)copy);
		rc = order(port, copy, since);
		Py_DECREF((PyObject *)copy);
	}
	return rc;
}

/* Allocate memory from the stream's pool. @after: set to the event after which it may be written */
static PyObject *memory_new(struct port *port, PyObject *shape, uint64_t len_bytes,
			    PyObject *stream, PyObject **after)
{
	PyObject *bytes =
		shape ? new_ref(shape)
		      : Py_BuildValue("O(K)(i)", torch.uint8, (unsigned long long)len_bytes, 1);
	PyObject *base = NULL;

	if (bytes)
		base = PyObject_CallMethodObjArgs(port->table, names.empty, bytes, stream, NULL);
	Py_XDECREF(bytes);
	*after = base ? PyObject_CallMethodObjArgs(port->table, names.record, stream, NULL) : NULL;
	if (!*after)
		Py_CLEAR(base);
	return base;
}

struct copy *port_copy_in(struct port *port, struct device *device, PyObject *stream,
			  const struct spw_taken *taken, uint64_t number, PyObject *shape)
{
	const char *memory = (const char *)taken->bytes - taken->storage_bytes_before;
	uint64_t len_bytes = taken->storage_bytes_total;
	PyObject *key = PyLong_FromUnsignedLongLong(number), *after = NULL, *base = NULL,
		 *source = key && shape ? staging_as(port, memory, len_bytes, shape) : NULL;
	struct copy *copy = NULL, *out = key && !PyErr_Occurred() ? out_of(port, key) : NULL;

	SPW_ASSERT(taken->lease != 0 && taken->bytes);
	Py_XINCREF((PyObject *)out);
	if (!source && !PyErr_Occurred()) {
		shape = NULL;
		source = staging(port, memory, len_bytes);
	}
	if (source && !PyErr_Occurred())
		base = memory_new(port, shape, len_bytes, stream, &after);
	if (base)
		copy = copy_new(device, taken->lease, stream, base, len_bytes);
	if (copy) {
		copy->shape = shape ? new_ref(shape) : NULL;
		if (direction_copy(port, &device->in, copy, base, source, after, out))
			Py_CLEAR(copy);
	}
	Py_XDECREF((PyObject *)out);
	Py_XDECREF(key);
	Py_XDECREF(source);
	Py_XDECREF(base);
	Py_XDECREF(after);
	return copy;
}

int port_use(struct port *port, struct copy *copy, PyObject *base, PyObject *stream,
	     PyObject *since)
{
	int is_same;

	SPW_ASSERT(copy->event);
	if (stream_wait(port, stream, copy->event))
		return -1;
	if (!copy->since && since && since != Py_None) {
		copy->since = new_ref(since);
		if (ignore(PyObject_CallMethodObjArgs(port->times, names.waits,
						      copy->device->device, copy, NULL)))
			return -1;
	}
	is_same = PyObject_RichCompareBool(stream, copy->stream, Py_EQ);
	if (is_same == 0)
		is_same = ignore(
			PyObject_CallMethodObjArgs(port->table, names.keep, base, stream, NULL));
	if (is_same < 0)
		return -1;
	Py_CLEAR(copy->held);
	return 0;
}

int port_drop(struct port *port, struct copy *copy)
{
	if (copy->held && stream_wait(port, copy->stream, copy->event))
		return -1;
	Py_CLEAR(copy->held);
	return 0;
}

/* ---- What has ended ---- */

/*
 * Whether a copy has ended. After an error of the device every call fails and no copy is running,
 * so that counts as ended, with an error in @result. Return: 1; 0; -1
 */
static int copy_ended(struct port *port, struct copy *copy, bool waits, int *result)
{
	PyObject *name = waits ? names.finish_event : names.done, *type, *value, *traceback;
	PyObject *done = PyObject_CallMethodObjArgs(port->table, name, copy->event, NULL);

	*result = 0;
	if (done && waits) {
		Py_DECREF(done);
		return 1;
	}
	if (done || !PyErr_ExceptionMatches(PyExc_RuntimeError))
		return to_bool(done);
	PyErr_Fetch(&type, &value, &traceback);
	PyErr_NormalizeException(&type, &value, &traceback);
	done = PyObject_CallMethodObjArgs((PyObject *)port, names.failed, value, NULL);
	Py_XDECREF(type);
	Py_XDECREF(value);
	Py_XDECREF(traceback);
	*result = -EIO;
	return ignore(done) ? -1 : 1;
}

static int out_forget(struct port *port, struct copy *copy)
{
	PyObject *number = PyLong_FromUnsignedLongLong(copy->number);
	int rc = number ? 0 : -1;

	Py_CLEAR(copy->held);
	if (number && out_of(port, number) == copy)
		rc = PyDict_DelItem(port->out, number);
	Py_XDECREF(number);
	return rc;
}

int port_ended(struct port *port, struct device *device, bool is_out, bool waits,
	       struct ended *ended)
{
	struct direction *direction = is_out ? &device->out : &device->in;
	struct copy *copy = direction->first;
	int rc = copy ? copy_ended(port, copy, waits, &ended->result) : 0;

	if (rc <= 0)
		return rc;
	SPW_ASSERT(!copy->ended);
	/* Interrupted, this is done again: until it is, the copy is the first. */
	if (ended->result == 0 && (copy->begin != Py_None || copy->since) &&
	    ignore(PyObject_CallMethodObjArgs(port->times, names.ended, device->device, copy,
					      is_out ? Py_True : Py_False, NULL)))
		return -1;
	copy->ended = true;
	ended->number = copy->number;
	rc = is_out ? out_forget(port, copy) : 0;
	direction_remove_first(direction);
	return rc < 0 ? -1 : 1;
}

bool port_is_copying(const struct port *port)
{
	for (uint32_t i = 0; i < port->count; i++)
		if (port->devices[i]->out.first)
			return true;
	return false;
}

PyObject *port_oldest_out(const struct port *port)
{
	for (uint32_t i = 0; i < port->count; i++)
		if (port->devices[i]->out.first)
			return new_ref(port->devices[i]->out.first->event);
	return NULL;
}

int port_finish(struct port *port)
{
	struct ended ended;
	int rc = 0;

	for (int is_out = 1; is_out >= 0; is_out--)
		for (uint32_t i = 0; rc >= 0 && i < port->count; i++)
			do
				rc = port_ended(port, port->devices[i], is_out, true, &ended);
			while (rc > 0);
	return rc;
}

/* ---- As Python objects ---- */

static PyMemberDef copy_members[] = {
	{"begin", T_OBJECT, offsetof(struct copy, begin), READONLY, NULL},
	{"event", T_OBJECT, offsetof(struct copy, event), READONLY, NULL},
	{"since", T_OBJECT, offsetof(struct copy, since), READONLY, NULL},
	{"held", T_OBJECT, offsetof(struct copy, held), READONLY, NULL},
	{"length", T_ULONGLONG, offsetof(struct copy, len_bytes), READONLY, NULL},
	{"ended", T_BOOL, offsetof(struct copy, ended), READONLY, NULL},
	{"stalled_ns", T_LONGLONG, offsetof(struct copy, stalled_ns), 0, NULL},
	{NULL, 0, 0, 0, NULL},
};

PyTypeObject *copy_type;
PyType_Spec copy_spec = {
	.name = "spillway._hooks.Copy",
	.basicsize = sizeof(struct copy),
	.flags = MADE_HERE,
	.slots =
		(PyType_Slot[]){
			{Py_tp_doc, "A copy from a device, or to it."},
			{Py_tp_dealloc, copy_dealloc},
			{Py_tp_members, copy_members},
			{0, NULL},
		},
};

static PyObject *port_finish_now(PyObject *object, PyObject *Py_UNUSED(unused))
{
	if (port_finish((struct port *)object))
		return NULL;
	Py_RETURN_NONE;
}

/* Python's Port(table, times, type of devices) */
static PyObject *port_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	PyObject *table, *times, *kind;
	struct port *port;

	if (kwargs || !PyArg_ParseTuple(args, "OOU", &table, &times, &kind))
		return NULL;
	port = (struct port *)PyType_GenericAlloc(type, 0);
	if (!port)
		return NULL;
	port->table = new_ref(table);
	port->times = new_ref(times);
	port->kind = new_ref(kind);
	port->out = PyDict_New();
	if (!port->out)
		Py_CLEAR(port);
	return (PyObject *)port;
}

static int port_traverse(PyObject *object, visitproc visit, void *arg)
{
	struct port *port = (struct port *)object;

	Py_VISIT(Py_TYPE(object));
	Py_VISIT(port->table);
	Py_VISIT(port->times);
	return 0;
}

static void direction_end(struct direction *direction)
{
	while (direction->first)
		direction_remove_first(direction);
	Py_XDECREF(direction->side);
}

static void regions_drop(struct port *port)
{
	while (port->region_count > 0)
		Py_DECREF(port->regions[--port->region_count].elements);
}

/* Python's add_region(address, length) */
static PyObject *port_add_region(PyObject *object, PyObject *args)
{
	struct port *port = (struct port *)object;
	unsigned long long begin, len_bytes;
	PyObject *elements;

	if (!PyArg_ParseTuple(args, "KK", &begin, &len_bytes))
		return NULL;
	if (port->region_count == REGIONS_MAX) {
		PyErr_SetString(PyExc_ValueError, "a port has no room for more pinned memory");
		return NULL;
	}
	elements = PyDict_New();
	if (!elements)
		return NULL;
	port->regions[port->region_count++] = (struct region){begin, len_bytes, elements};
	Py_RETURN_NONE;
}

static PyObject *port_drop_regions(PyObject *object, PyObject *Py_UNUSED(unused))
{
	regions_drop((struct port *)object);
	Py_RETURN_NONE;
}

static void port_dealloc(PyObject *object)
{
	struct port *port = (struct port *)object;
	PyTypeObject *type = Py_TYPE(object);

	PyObject_GC_UnTrack(object);
	for (uint32_t i = 0; i < port->count; i++) {
		struct device *device = port->devices[i];

		direction_end(&device->out);
		direction_end(&device->in);
		Py_DECREF(device->device);
		Py_DECREF(device->nothing);
		Py_DECREF(device->streams);
		PyMem_Free(device);
	}
	PyMem_Free(port->devices);
	Py_XDECREF(port->out);
	regions_drop(port);
	Py_DECREF(port->table);
	Py_DECREF(port->times);
	Py_DECREF(port->kind);
	PyObject_GC_Del(object);
	Py_DECREF(type);
}

static PyMethodDef port_methods[] = {
	{"finish", port_finish_now, METH_NOARGS, "Wait for all copies and forget them."},
	{"add_region", port_add_region, METH_VARARGS,
	 "Copies may go to and from this memory, which is pinned: its address and length."},
	{"drop_regions", port_drop_regions, METH_NOARGS, "That memory is pinned no longer."},
	{NULL, NULL, 0, NULL},
};

static PyMemberDef port_members[] = {
	{"table", T_OBJECT, offsetof(struct port, table), READONLY, NULL},
	{"times", T_OBJECT, offsetof(struct port, times), READONLY, NULL},
	{"kind", T_OBJECT, offsetof(struct port, kind), READONLY, NULL},
	{NULL, 0, 0, 0, NULL},
};

PyTypeObject *port_type;
PyType_Spec port_spec = {
	.name = "spillway._hooks.Port",
	.basicsize = sizeof(struct port),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
		 Py_TPFLAGS_IMMUTABLETYPE,
	.slots =
		(PyType_Slot[]){
			{Py_tp_doc, "Copies between devices and pinned memory of the host."},
			{Py_tp_new, port_new},
			{Py_tp_dealloc, port_dealloc},
			{Py_tp_traverse, port_traverse},
			{Py_tp_methods, port_methods},
			{Py_tp_members, port_members},
			{0, NULL},
		},
};
