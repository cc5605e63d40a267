/* SPDX-License-Identifier: MIT */
/* util/checksum.h - XXH3 of 64 bits, with the widest vectors that the CPU has */
#ifndef SPW_UTIL_CHECKSUM_H
#define SPW_UTIL_CHECKSUM_H

#define XXH_STATIC_LINKING_ONLY /* callers keep XXH3_state_t on the stack */
#include <xxhash.h>
#if defined(__x86_64__) && defined(__has_include)
#if __has_include(<xxh_x86dispatch.h>)
#define XXH_DISPATCH_DISABLE_REPLACE
#include <xxh_x86dispatch.h>
/* Weak: a static libxxhash.a may lack functions that the header declares; Debian's does. */
#pragma weak XXH3_64bits_dispatch
#pragma weak XXH3_64bits_update_dispatch
#define SPW_CHECKSUM_DISPATCHES
#endif
#endif

#include <stddef.h>
#include <stdint.h>

uint64_t spw_checksum(const void *bytes, size_t len);
void spw_checksum_update(XXH3_state_t *state, const void *bytes, size_t len);

#endif
