/* SPDX-License-Identifier: MIT */
/* store/mirror.h - mirrored puts: each chunk on two drives */
#ifndef SPW_STORE_MIRROR_H
#define SPW_STORE_MIRROR_H

#include <stdbool.h>
#include <stdint.h>

#include "store/write.h"

/* Like spw_store__write_next(), for a mirrored oldest put; *left is 0 afterwards. */
bool spw_store__mirror_next(struct spw_store *store, const struct drive_scores *scores,
			    uint64_t *left);
/* Count @len_bytes that have one copy only; log the first time. Any thread. */
void spw_store__single_note(struct spw_store *store, uint64_t len_bytes);

#endif
