/* SPDX-License-Identifier: MIT */
/* store/drive_health.h - retire drives that fail, try them again, return them to service */
#ifndef SPW_STORE_DRIVE_HEALTH_H
#define SPW_STORE_DRIVE_HEALTH_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

struct spw_store;

/*
 * A drive retired with this error has not failed, but rests (full or busy): it gets no chunks for
 * now, serves reads, and is tried again.
 */
static inline bool spw_store__drive_rests(int error)
{
	return error == -ENOSPC || error == -EAGAIN;
}

/* Retire a drive. @error: of its transfer; -ETIMEDOUT: the transfer missed its deadline. */
void spw_store__drive_retire(struct spw_store *store, uint32_t drive, int error);
/* An abandoned write has succeeded: return the drive to service if it is remote. */
void spw_store__drive_answered(struct spw_store *store, uint32_t drive);
void spw_store__drive_revive(struct spw_store *store, uint32_t drive);
/* Put drives that have rested for a while in service: the next chunk shows whether they work. */
void spw_store__drives_try_again(struct spw_store *store);
/* How long the worker may sleep; negative: no limit, since no drive rests. */
int64_t spw_store__try_again_timeout_ns(const struct spw_store *store);

/* Text in @buf: drives out of service, why, and the remedy; else @advice. Any thread. */
#define SPW_ADVICE_BYTES 448

const char *spw_store__health_advice(const struct spw_store *store, const char *advice,
				     char buf[SPW_ADVICE_BYTES]);

#endif
