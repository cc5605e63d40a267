/* SPDX-License-Identifier: MIT */
/* engine/sanitize.h - AddressSanitizer: poison free memory, check what the kernel writes to */
#ifndef SPW_ENGINE_SANITIZE_H
#define SPW_ENGINE_SANITIZE_H

#if defined(__SANITIZE_ADDRESS__)
#define SPW_HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SPW_HAS_ASAN 1
#endif
#endif

#ifdef SPW_HAS_ASAN
#include <sanitizer/asan_interface.h>
#define SPW_POISON(address, len)      __asan_poison_memory_region(address, len)
#define SPW_UNPOISON(address, len)    __asan_unpoison_memory_region(address, len)
#define SPW_IS_POISONED(address, len) (__asan_region_is_poisoned(address, len) != NULL)
#else
#define SPW_POISON(address, len)      ((void)(address), (void)(len))
#define SPW_UNPOISON(address, len)    ((void)(address), (void)(len))
#define SPW_IS_POISONED(address, len) false
#endif

#endif
