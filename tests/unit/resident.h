/* SPDX-License-Identifier: MIT */
/* tests/unit/resident.h - how much of a piece of memory has pages */
#ifndef SPW_TESTS_UNIT_RESIDENT_H
#define SPW_TESTS_UNIT_RESIDENT_H

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/case.h"

static inline size_t resident_bytes(void *memory, size_t len)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), resident = 0;
	unsigned char *each = malloc(len / page);

	assert_non_null(each);
	assert_int_equal(mincore(memory, len, each), 0);
	for (size_t i = 0; i < len / page; i++)
		resident += each[i] & 1u ? page : 0;
	free(each);
	return resident;
}

#endif
