/* SPDX-License-Identifier: MIT */
/* util/checksum.c - picks the XXH3 for this CPU: SSE2 takes nearly twice as long as AVX2 */
#include "util/checksum.h"

#include "util/checksum_wide.h"

uint64_t spw_checksum(const void *bytes, size_t len)
{
#ifdef __x86_64__
	if (len >= SPW_CHECKSUM_WIDE_BYTES_MIN && __builtin_cpu_supports("avx512f"))
		return spw_checksum_avx512(bytes, len);
	if (len >= SPW_CHECKSUM_WIDE_BYTES_MIN && __builtin_cpu_supports("avx2"))
		return spw_checksum_avx2(bytes, len);
#endif
#ifdef SPW_CHECKSUM_DISPATCHES
	if (XXH3_64bits_dispatch)
		return XXH3_64bits_dispatch(bytes, len);
#endif
	return XXH3_64bits(bytes, len);
}

void spw_checksum_update(XXH3_state_t *state, const void *bytes, size_t len)
{
#ifdef SPW_CHECKSUM_DISPATCHES
	if (XXH3_64bits_update_dispatch) {
		(void)XXH3_64bits_update_dispatch(state, bytes, len);
		return;
	}
#endif
	(void)XXH3_64bits_update(state, bytes, len);
}
