/* SPDX-License-Identifier: MIT */
/*
 * store/status.h - the shared page of an open partition, as its owner and its readers see it
 */
#ifndef SPW_STORE_STATUS_H
#define SPW_STORE_STATUS_H

#include <stdatomic.h>
#include <stdint.h>

#include <spillway/status.h>

#define SPW_PAGE_MAGIC   UINT64_C(0x736b6e6177777073)
#define SPW_PAGE_VERSION 1u

struct spw_status_page {
	uint64_t magic;
	uint32_t version;
	uint32_t size; /* sizeof *this: of the same build or not */
	/* Odd while the owner writes. A reader that sees it odd, or changed, reads again. */
	_Atomic uint32_t sequence;
	_Atomic uint64_t revive; /* bit per drive: set by others, taken by the owner */
	uint64_t owner_start;    /* of the process, in clock ticks since boot: tells a reused pid */
	uint64_t refreshed_ns;   /* CLOCK_MONOTONIC */
	struct spw_status status;
};

/* "/spillway-UUID-PARTITION", for shm_open(3). */
#define SPW_PAGE_NAME_BYTES 64
void spw_page_name(const char *store_uuid, uint32_t partition, char name[SPW_PAGE_NAME_BYTES]);

void spw_status_sweep(void);

/* When process @pid began; 0: there is none. */
uint64_t spw_process_start(int32_t pid);

#endif
