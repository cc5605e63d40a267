/* SPDX-License-Identifier: MIT */
/* store/alignment.h - spw_store__align(): test which memory alignment the drives really accept */
#ifndef SPW_STORE_ALIGNMENT_H
#define SPW_STORE_ALIGNMENT_H

struct spw_store;

/* Test the drives, and set memory_align_bytes. Call it after spw_store__restore(). Return: 0. */
int spw_store__align(struct spw_store *store);

#endif
