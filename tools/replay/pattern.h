/* SPDX-License-Identifier: MIT */
/*
 * tools/replay/pattern.h - what the tensors of a replay hold: words that depend on the tensor and
 * on their place
 *
 * So wrong bytes show whether they come from another tensor, from another place, or from another
 * step. Fast, as it stands for compute that touches each byte.
 */
#ifndef SPW_TOOLS_REPLAY_PATTERN_H
#define SPW_TOOLS_REPLAY_PATTERN_H

#include <stdbool.h>
#include <stdint.h>

uint64_t replay_pattern_seed(uint64_t key);

void replay_pattern_fill(uint8_t *bytes, uint64_t len_bytes, uint64_t seed);

/* Whether @bytes are those from @offset_bytes on; any alignment. */
bool replay_pattern_matches(const uint8_t *bytes, uint64_t offset_bytes, uint64_t len_bytes,
			    uint64_t seed);

#endif
