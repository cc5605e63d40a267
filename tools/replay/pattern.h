/* SPDX-License-Identifier: MIT */
/*
 * tools/replay/pattern.h - the content of a replay's tensors: words that depend on the tensor and
 * the offset
 *
 * So wrong bytes are found, whether they come from another tensor, offset or step. Filling is fast,
 * as it replaces compute that touches each byte.
 */
#ifndef SPW_TOOLS_REPLAY_PATTERN_H
#define SPW_TOOLS_REPLAY_PATTERN_H

#include <stdbool.h>
#include <stdint.h>

uint64_t replay_pattern_seed(uint64_t key);

void replay_pattern_fill(uint8_t *bytes, uint64_t len_bytes, uint64_t seed);

/* Whether @bytes are the content from @offset_bytes on. Any alignment. */
bool replay_pattern_matches(const uint8_t *bytes, uint64_t offset_bytes, uint64_t len_bytes,
			    uint64_t seed);

#endif
