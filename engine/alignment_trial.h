/* SPDX-License-Identifier: MIT */
/*
 * engine/alignment_trial.h - tests a device's claimed alignment before a user's data depends on it
 */
#ifndef SPW_ENGINE_ALIGNMENT_TRIAL_H
#define SPW_ENGINE_ALIGNMENT_TRIAL_H

#include <stdint.h>

#include <spillway/engine.h>

/* Not tested: a driver that misplaces whole pages could not hold a file system either. */
#define SPW_ALIGN_TRUSTED_BYTES 4096u

#define SPW_TRIAL_BYTES (64u << 10) /* longest transfer of a trial */

/**
 * spw_engine__trial_alignment - write from memory aligned only as the device claims to need, read
 * back into whole pages; then the reverse
 * @offset_bytes, @len_bytes: whole blocks of the caller; their contents are restored, unless the
 * power fails meanwhile
 *
 * Some drivers accept such memory and transfer wrong bytes without an error, as do all devices on
 * top of them. Makes six transfers in the calling thread; none if the device claims page alignment.
 *
 * Return: 0 the claim holds; -EBADMSG wrong bytes; -ENOMEM; the error of a transfer.
 */
int spw_engine__trial_alignment(const struct spw_device *device, uint64_t offset_bytes,
				uint64_t len_bytes);

#endif
