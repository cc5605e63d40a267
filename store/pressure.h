/* SPDX-License-Identifier: MIT */
/* store/pressure.h - count bytes of requests in flight */
#ifndef SPW_STORE_PRESSURE_H
#define SPW_STORE_PRESSURE_H

#include <stdint.h>

struct spw_request;
struct spw_store;

/* A put or a get begins, with length and class set, or ends. */
void spw_store__pressure_begin(struct spw_request *request);
void spw_store__pressure_end(struct spw_request *request);
uint64_t spw_store__pressure_all(const struct spw_store *store);

#endif
