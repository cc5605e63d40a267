/* SPDX-License-Identifier: MIT */
/*
 * hooks/calls.h - tables of what the hooks call in the library, in PyTorch and in the Python
 * package
 */
#ifndef SPW_HOOKS_CALLS_H
#define SPW_HOOKS_CALLS_H

#include "object.h"

#include <spillway/cache.h>

/* Functions of the library. hooks_loader.py passes their addresses in this order. */
struct library {
	__typeof__(&spw_cache_offer_hint) offer_hint;
	__typeof__(&spw_cache_take) take;
	__typeof__(&spw_cache_return) give_back;
	__typeof__(&spw_cache_release) release;
	__typeof__(&spw_cache_drain) drain;
	__typeof__(&spw_cache_restore) restore;
	__typeof__(&spw_cache_hold_back) hold_back;
	__typeof__(&spw_cache_offer_device) offer_device;
	__typeof__(&spw_cache_copied) copied;
	__typeof__(&spw_cache_ordered) ordered;
	__typeof__(&spw_cache_copy_retry) copy_retry;
	__typeof__(&spw_cache_copy_last) copy_last;
	__typeof__(&spw_cache_wait_write) wait_write;
	__typeof__(&spw_cache_ahead) ahead;
	__typeof__(&spw_cache_drain_device) drain_device;
	__typeof__(&spw_cache_step_rest) step_rest;
	__typeof__(&spw_cache_keep) keep;
	__typeof__(&spw_cache_kept_again) kept_again;
	__typeof__(&spw_cache_kept_used) kept_used;
	__typeof__(&spw_cache_kept_gone) kept_gone;
};

struct dl_exchange;

/* A C-level attribute of a Python type, read without a lookup by name. */
struct attribute {
	PyObject *descriptor;
	descrgetfunc get;
};

/* clang-format off */
/* Attributes of a tensor; cdata is a storage's identity. */
#define TORCH_ATTRIBUTES(X) \
	X(is_cpu) X(is_leaf) X(requires_grad) X(dtype) X(version) X(shape) X(base) X(device) \
	X(cdata) X(length) /* bytes of a tensor's elements */

/* Types; methods of a tensor and of a storage; other objects; functions of hooks_loader.py. */
#define TORCH_OBJECTS(X) \
	X(tensor_type) X(parameter_type) \
	X(storage) X(detach) X(stride) X(storage_offset) X(is_neg) X(is_conj) X(as_strided) \
	X(view) X(numel) X(address) \
	X(data_ptr) X(nbytes) X(weak_ref) X(free_weak_ref) X(expired) \
	X(from_dlpack) X(exchange) /* DLPack's functions, or None */ \
	X(nothing) X(nothing_on) /* an empty tensor; the same on a device */ \
	X(counted) /* whether autograd counts versions of what is handed out with the original */ \
	X(plain) X(flagged) X(on) X(raise_modified) X(error_of) \
	/* the state of this thread; innermost() is None if PyTorch has no such function */ \
	X(grad_enabled) X(any_autocast) X(backward_number) X(innermost) \
	X(uint8) X(bytes_of) /* a part of a tensor's storage, as bytes */ \
	X(stop) /* the exception that ends recomputation early */

/* Attributes and methods that are looked up by name. */
#define NAMES(X) \
	X(mark, "_TE_do_not_offload") X(data, "data") X(pack_watched, "_pack_watched") \
	X(use_watched, "_use_watched") X(meet, "_meet") X(unpack, "unpack") \
	X(finish, "_finish") X(handle, "handle") X(compute, "compute") \
	X(save_part, "_save_part") X(type, "type") X(acquire, "acquire") X(release, "release") \
	/* methods of spillway._gpu.accelerator.Table */ \
	X(capturing, "capturing") X(current_stream, "current_stream") X(new_stream, "new_stream") \
	X(record, "record") X(mark_event, "mark") X(wait, "wait") X(done, "done") \
	X(finish_event, "finish") X(keep, "keep") X(copy, "copy") X(empty, "empty") \
	/* methods of DeviceTimes, Port and DeviceTensors */ \
	X(begin, "begin") X(waits, "waits") X(ended, "ended") X(news, "news") X(tell, "tell") \
	X(come, "come") X(stands, "stands") X(starve, "starve") X(feed, "feed") \
	X(border, "border") X(device, "device") X(bytes_at, "_bytes_at") X(failed, "_failed") \
	X(abort, "_abort") X(refuse, "_refuse") X(not_copied, "_not_copied") \
	X(notify, "_notify") X(checksums_of, "_checksums_of") X(compare, "_compare") \
	X(expect, "expect") \
	X(restore, "restore") X(begin_step, "_begin_step") X(save_other, "_save_other") \
	X(training, "training") X(pre_hooks, "_forward_pre_hooks") \
	X(pre_hooks_with_keywords, "_forward_pre_hooks_with_kwargs")
/* clang-format on */

/* What spillway/_core/hooks_loader.py passes to connect(), under these names. */
struct torch {
#define MEMBER(name) struct attribute name;
	TORCH_ATTRIBUTES(MEMBER)
#undef MEMBER
#define MEMBER(name) PyObject *name;
	TORCH_OBJECTS(MEMBER)
#undef MEMBER
};

struct names {
#define MEMBER(name, text) PyObject *name;
	NAMES(MEMBER)
#undef MEMBER
};

/* An element type of PyTorch, with its DLPack code. */
struct dtype {
	PyObject *dtype;
	uint8_t itemsize, code, bits;
	/* unknown to DLPack: exported as another type of the same size and viewed as this one */
	bool is_viewed;
	bool is_complex;
};

extern struct library library;
/* Of PyTorch, if it has them: PyTorch 2.10. */
extern const struct dl_exchange *exchange;
extern struct torch torch;
extern struct names names;

int make_names(void);
/* Python's connect(addresses of library functions, PyTorch's objects by name, element types) */
PyObject *connect_calls(PyObject *module, PyObject *args);
/* Find an element type. Return: NULL without an exception if unknown, as for quantized tensors. */
const struct dtype *dtype_of(PyObject *tensor);
const struct dtype *dtype_find(PyObject *dtype);

static inline PyObject *get(const struct attribute *attribute, PyObject *object)
{
	return attribute->get(attribute->descriptor, object, (PyObject *)Py_TYPE(object));
}

#endif
