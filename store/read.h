/* SPDX-License-Identifier: MIT */
/* store/read.h - gets: queue, read, verify */
#ifndef SPW_STORE_READ_H
#define SPW_STORE_READ_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/store.h>

struct transfer;

void spw_store__read_submit(struct spw_request *request);
void spw_store__read_end_if_done(struct spw_request *request);
/* Move a get to the lists of its new class. */
void spw_store__read_raise(struct spw_request *request);
/* Issue the drive's next read of this class. Return: false: no bounce buffer is free for it. */
bool spw_store__read_next(struct spw_store *store, uint32_t drive, enum spw_class cls);
/* Issue a drive's next retry. Return: false: its share of bounce buffers is in flight. */
bool spw_store__read_retry_next(struct spw_store *store, uint32_t drive);
void spw_store__read_cancel_retries(struct spw_store *store);
/* A read's checksum job has run. */
void spw_store__read_job_ended(struct transfer *transfer);

#endif
