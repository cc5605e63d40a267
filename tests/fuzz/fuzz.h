/* SPDX-License-Identifier: MIT */
/*
 * tests/fuzz/fuzz.h - what the fuzz targets share: a file in memory for what reads paths, numbers
 * out of bytes, and a check
 *
 * A target is one file fuzz_NAME.c with LLVMFuzzerTestOneInput(). libFuzzer drives it (make fuzz),
 * or, with no clang, regress.c: the corpus and some thousands of mutations of it (make test). A
 * target frees what it allocates and keeps no state between two inputs.
 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What must hold for every input. */
#define FUZZ_REQUIRE(condition)                                                               \
	do {                                                                                  \
		if (!(condition)) {                                                           \
			(void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			abort();                                                              \
		}                                                                             \
	} while (0)

/* The path of a file in memory that holds these bytes; the next call replaces them. */
static inline const char *fuzz_path(const uint8_t *data, size_t size)
{
	static char path[64];
	static int fd = -1;

	if (fd < 0) {
		fd = memfd_create("spillway-fuzz", MFD_CLOEXEC);
		FUZZ_REQUIRE(fd >= 0);
		(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	}
	FUZZ_REQUIRE(ftruncate(fd, 0) == 0);
	FUZZ_REQUIRE(pwrite(fd, data, size, 0) == (ssize_t)size);
	return path;
}

struct fuzz_bytes {
	const uint8_t *at;
	size_t left;
};

/* 0 at the end. */
static inline uint8_t fuzz_byte(struct fuzz_bytes *bytes)
{
	if (bytes->left == 0)
		return 0;
	bytes->left--;
	return *bytes->at++;
}

/* A number: mostly small, else on the edge of something, else any. */
static inline uint64_t fuzz_number(struct fuzz_bytes *bytes)
{
	static const uint64_t edges[] = {
		0,          1,          511,       512,        4095,
		4096,       65535,      65536,     INT32_MAX,  UINT32_MAX,
		1u << 31,   UINT64_MAX, INT64_MAX, 1ull << 63, UINT64_MAX - 1,
		1ull << 32, 1ull << 62};
	uint8_t kind = fuzz_byte(bytes);
	uint64_t value = 0;

	if (kind < 160)
		return kind;
	if (kind < 160 + sizeof(edges) / sizeof(edges[0]))
		return edges[kind - 160];
	for (unsigned i = 0; i < (kind < 224 ? 2 : 8); i++)
		value = value << 8 | fuzz_byte(bytes);
	return value;
}

#endif
