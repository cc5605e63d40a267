/* SPDX-License-Identifier: MIT */
/*
 * hooks/reader.cpp - reads tensors from PyTorch's own structures; of one build of PyTorch, see
 * reader.h
 */
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#if __has_include(<c10/core/impl/COW.h>)
#include <c10/core/impl/COW.h>
#define IS_COW(storage) c10::impl::cow::is_cow_data_ptr((storage).data_ptr())
#else
#define IS_COW(storage) false
#endif

#include <spillway/error.h>

#include "reader.h"

/* What a plain tensor may be, as bits: what the one is that learn() was shown, and the flags. */
static uint64_t plain_keys;

static uint64_t keys_of(const c10::TensorImpl *tensor)
{
	c10::DispatchKeySet keys = tensor->key_set();

	return keys.raw_repr();
}

static bool has_key(const c10::TensorImpl *tensor, c10::DispatchKey key)
{
	return tensor->key_set().has(key);
}

/* NULL: it is not plain. One of inference mode has no version. */
static const c10::TensorImpl *plain_of(PyObject *tensor)
{
	const c10::TensorImpl *plain = THPVariable_Unpack(tensor).unsafeGetTensorImpl();

	if (keys_of(plain) == 0 || (keys_of(plain) & ~plain_keys) != 0 ||
	    !plain->version_counter().enabled())
		return nullptr;
	return plain;
}

static void read_graph(const c10::TensorImpl *plain, struct tensor_read *read)
{
	auto *graph = static_cast<torch::autograd::AutogradMeta *>(plain->autograd_meta());

	read->is_trained = graph && !graph->grad_fn_ && graph->requires_grad();
	read->is_view =
		graph && graph->is_view_ &&
		static_cast<torch::autograd::DifferentiableViewMeta *>(graph)->has_bw_view();
}

/* What has no storage or sizes of its own throws. */
static bool read_plain(const c10::TensorImpl *plain, struct tensor_read *read)
{
	const c10::Storage &storage = plain->storage();
	auto sizes = plain->sizes(), strides = plain->strides();

	/* Asking for the address takes it its own copy. */
	if (!storage || IS_COW(storage) || sizes.size() != strides.size())
		return false;
	read->sizes = sizes.data();
	read->strides = strides.data();
	read->dims = static_cast<int64_t>(sizes.size());
	read->offset = plain->storage_offset();
	read->version = plain->version_counter().current_version();
	read->storage = storage.unsafeGetStorageImpl();
	read->storage_address = reinterpret_cast<uintptr_t>(storage.data());
	read->storage_len_bytes = storage.nbytes();
	read->type = static_cast<int>(c10::typeMetaToScalarType(plain->dtype()));
	read->conj = has_key(plain, c10::DispatchKey::Conjugate);
	read->neg = has_key(plain, c10::DispatchKey::Negative);
	read_graph(plain, read);
	return true;
}

static bool reader_read(PyObject *tensor, struct tensor_read *read)
{
	try {
		const c10::TensorImpl *plain = plain_of(tensor);

		return plain && read_plain(plain, read);
	} catch (...) {
		return false;
	}
}

static bool reader_version(PyObject *tensor, int64_t *version)
{
	const c10::TensorImpl *plain = plain_of(tensor);

	if (!plain)
		return false;
	*version = plain->version_counter().current_version();
	return true;
}

/* What detach() comes to, which goes by way of PyTorch's dispatcher. */
static PyObject *reader_detached(PyObject *tensor)
{
	HANDLE_TH_ERRORS
	const c10::TensorImpl *plain = THPVariable_Unpack(tensor).unsafeGetTensorImpl();
	auto detached = plain->shallow_copy_and_detach(plain->version_counter(), true);

	return THPVariable_Wrap(at::Tensor(std::move(detached)));
	END_HANDLE_TH_ERRORS
}

/* What DLPack comes to, and then detaching the counter and giving it this memory. */
static PyObject *reader_lent(const struct memory *memory, PyObject *counter)
{
	HANDLE_TH_ERRORS
	c10::DataPtr address(memory->address, memory->context, memory->end,
			     c10::Device(c10::DeviceType::CPU));
	c10::Storage storage(c10::Storage::use_byte_size_t(),
			     static_cast<size_t>(memory->len_bytes), std::move(address), nullptr,
			     false);
	auto type = c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(memory->type));
	auto tensor = c10::make_intrusive<c10::TensorImpl>(
		std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), type);
	auto dims = static_cast<size_t>(memory->dims);

	tensor->set_sizes_and_strides(c10::IntArrayRef(memory->sizes, dims),
				      c10::IntArrayRef(memory->strides, dims));
	if (counter)
		tensor->set_version_counter(
			THPVariable_Unpack(counter).unsafeGetTensorImpl()->version_counter());
	return THPVariable_Wrap(at::Tensor(std::move(tensor)));
	END_HANDLE_TH_ERRORS
}

static PyObject *reader_weak(void *storage)
{
	return PyLong_FromVoidPtr(
		c10::raw::intrusive_ptr::make_weak(static_cast<c10::StorageImpl *>(storage)));
}

/* ---- The module ---- */

static struct reader calls = {reader_read, reader_version, reader_detached, reader_lent,
			      reader_weak};

static PyObject *learn(PyObject *, PyObject *sample)
{
	const c10::DispatchKey flags[] = {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative};

	if (!THPVariable_Check(sample)) {
		PyErr_SetString(PyExc_TypeError, "a tensor is needed");
		return nullptr;
	}
	plain_keys = keys_of(THPVariable_Unpack(sample).unsafeGetTensorImpl());
	for (c10::DispatchKey flag : flags) {
		c10::DispatchKeySet keys(flag);

		plain_keys |= keys.raw_repr();
	}
	Py_RETURN_NONE;
}

static PyObject *tuple_of(const int64_t *values, int64_t count)
{
	PyObject *tuple = PyTuple_New(count);

	for (int64_t i = 0; tuple && i < count; i++)
		PyTuple_SET_ITEM(tuple, i, PyLong_FromLongLong(values[i]));
	return tuple;
}

static PyObject *look(PyObject *, PyObject *tensor)
{
	struct tensor_read read;

	if (!THPVariable_Check(tensor)) {
		PyErr_SetString(PyExc_TypeError, "a tensor is needed");
		return nullptr;
	}
	if (!reader_read(tensor, &read))
		Py_RETURN_NONE;
	return Py_BuildValue("(NNLLNKKiNNNN)", tuple_of(read.sizes, read.dims),
			     tuple_of(read.strides, read.dims), static_cast<long long>(read.offset),
			     static_cast<long long>(read.version), PyLong_FromVoidPtr(read.storage),
			     static_cast<unsigned long long>(read.storage_address),
			     static_cast<unsigned long long>(read.storage_len_bytes), read.type,
			     PyBool_FromLong(read.is_trained), PyBool_FromLong(read.is_view),
			     PyBool_FromLong(read.conj), PyBool_FromLong(read.neg));
}

static PyObject *detached(PyObject *, PyObject *tensor)
{
	struct tensor_read read;

	if (!THPVariable_Check(tensor) || !reader_read(tensor, &read)) {
		PyErr_SetString(PyExc_TypeError, "a plain tensor is needed");
		return nullptr;
	}
	return reader_detached(tensor);
}

static void lent_end(void *)
{
}

static PyObject *lent(PyObject *, PyObject *args)
{
	PyObject *tensor, *counter;
	struct tensor_read read;

	if (!PyArg_ParseTuple(args, "OO", &tensor, &counter))
		return nullptr;
	if (!THPVariable_Check(tensor) || !THPVariable_Check(counter) ||
	    !reader_read(tensor, &read) || read.offset) {
		PyErr_SetString(
			PyExc_TypeError,
			"a plain tensor at the beginning of its storage, and another, are needed");
		return nullptr;
	}
	struct memory memory = {reinterpret_cast<void *>(read.storage_address),
				read.storage_len_bytes,
				read.sizes,
				read.strides,
				read.dims,
				read.type,
				lent_end,
				nullptr};
	return reader_lent(&memory, counter);
}

static PyMethodDef functions[] = {
	{"learn", learn, METH_O, "Once, before anything else: this one is plain."},
	{"look", look, METH_O,
	 "Sizes, strides, offset, version, storage, its address and length, number of the type, "
	 "whether\n"
	 "a gradient is asked for, whether it is a view, conjugate, negative. None: it is not "
	 "plain."},
	{"detached", detached, METH_O, "The same memory and version counter without the graph."},
	{"lent", lent, METH_VARARGS,
	 "A tensor on the memory of another, which must outlive it, that counts its versions with "
	 "a third."},
	{nullptr, nullptr, 0, nullptr},
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT,
	"_reader",
	"Reads tensors from PyTorch's own structures.",
	-1,
	functions,
	nullptr,
	nullptr,
	nullptr,
	nullptr,
};

PyMODINIT_FUNC PyInit__reader(void)
{
	PyObject *module = PyModule_Create(&definition);

	if (!module)
		return nullptr;
	if (PyModule_AddStringConstant(module, "VERSION", SPW_VERSION) ||
	    PyModule_AddStringConstant(module, "TORCH", SPW_TORCH) ||
	    PyModule_AddObject(module, "calls", PyCapsule_New(&calls, READER_CAPSULE, nullptr))) {
		Py_DECREF(module);
		return nullptr;
	}
	return module;
}
