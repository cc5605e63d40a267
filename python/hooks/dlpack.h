/* SPDX-License-Identifier: MIT */
/* hooks/dlpack.h - tensors of DLPack, as its public header describes them */
#ifndef SPW_HOOKS_DLPACK_H
#define SPW_HOOKS_DLPACK_H

#include <stdint.h>

#define DLPACK_CPU 1

struct dl_device {
	int32_t type, id;
};

struct dl_type {
	uint8_t code, bits;
	uint16_t lanes;
};

struct dl_tensor {
	void *data;
	struct dl_device device;
	int32_t ndim;
	struct dl_type dtype;
	int64_t *shape, *strides; /* in elements */
	uint64_t byte_offset;
};

/* What a capsule of this name has, from DLPack 1.2: functions on Python objects. */
#define DLPACK_EXCHANGE       "dlpack_exchange_api"
#define DLPACK_EXCHANGE_MAJOR 1

struct dl_exchange {
	uint32_t major, minor;
	struct dl_exchange *before;
	void *unused[3];
	/* Fill in what the tensor has now, without a reference. Return: 0; -1 with an exception */
	int (*look)(void *object, struct dl_tensor *now);
};

#endif
