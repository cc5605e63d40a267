/* SPDX-License-Identifier: MIT */
/* engine/trial.h - what a device says of itself is tried before bytes of a user depend on it */
#ifndef SPW_ENGINE_TRIAL_H
#define SPW_ENGINE_TRIAL_H

#include <stdint.h>

#include <spillway/engine.h>

/* A driver that cannot take a page as it lies in memory cannot hold a file system either. */
#define SPW_ALIGN_TRUSTED_BYTES 4096u

#define SPW_TRIAL_BYTES (64u << 10) /* of a trial at most: a part of a page at each end */

/**
 * spw_engine__trial_alignment - write from memory that is aligned as claimed and no better, read
 * back into whole pages, and the other way round
 * @offset_bytes, @len_bytes: whole blocks that are the caller's; they are left as they were, unless
 * the power fails meanwhile
 *
 * Some drivers take such memory and move other bytes than lie there, without an error; so does all
 * that lies over them. Six transfers, by the calling thread; none where whole pages are claimed.
 *
 * Return: 0 the claim holds; -EBADMSG other bytes came; -ENOMEM; what a transfer returned.
 */
int spw_engine__trial_alignment(const struct spw_device *device, uint64_t offset_bytes,
				uint64_t len_bytes);

#endif
