/* SPDX-License-Identifier: MIT */
/* store/submit.h - run a request that is neither a put nor a get, and wait for it */
#ifndef SPW_STORE_SUBMIT_H
#define SPW_STORE_SUBMIT_H

#include <stdint.h>

#include "store/request.h"

/* Submit a request, and wait for it. Return: its result. */
int spw_store__control_run(struct spw_store *store, enum request_kind kind, uint64_t what,
			   void *bytes, uint64_t len);

#endif
