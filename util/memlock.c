/* SPDX-License-Identifier: MIT */
/*
 * util/memlock.c - how much memory this process may lock
 */
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "util/util.h"

/* RLIMIT_MEMLOCK does not apply to a process with CAP_IPC_LOCK. */
static bool may_lock_all(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};

	return syscall(SYS_capget, &header, data) == 0 &&
	       (data[0].effective & 1u << CAP_IPC_LOCK) != 0;
}

uint64_t spw_memlock_bytes(void)
{
	struct rlimit limit;

	if (may_lock_all() || getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur == RLIM_INFINITY)
		return UINT64_MAX;
	return limit.rlim_cur;
}
