/* SPDX-License-Identifier: MIT */
/* store/alignment.h - which memory alignment the drives really accept */
#ifndef SPW_STORE_ALIGNMENT_H
#define SPW_STORE_ALIGNMENT_H

struct spw_store;

/* Set memory_align_bytes, by a test. After spw_store__restore(). Return: 0. */
int spw_store__align(struct spw_store *store);

#endif
