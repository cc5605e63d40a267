/* SPDX-License-Identifier: MIT */
/* store/trim.h - spw_store_trim(): discard free blocks */
#ifndef SPW_STORE_TRIM_H
#define SPW_STORE_TRIM_H

struct spw_request;

void spw_store__trim_submit(struct spw_request *request);

#endif
