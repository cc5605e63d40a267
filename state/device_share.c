/* SPDX-License-Identifier: MIT */
/* state/device_share.c - divide the records of an update between host and device */
#include "state/device_share.h"

#include "util/util.h"

/* Updates until the device is tried again. Its speed may change, as that of the drives. */
#define REST_UPDATES 32u

static double ns_per_byte(struct share_work work)
{
	return (double)work.ns / (double)work.bytes;
}

uint32_t spw_state__share_stride(struct share_work host, struct share_work device)
{
	double times;
	uint32_t whole;

	SPW_ASSERT(host.bytes > 0 && device.bytes > 0);
	if (host.ns == 0)
		return UINT32_MAX;
	times = ns_per_byte(device) / ns_per_byte(host);
	if (times >= UINT32_MAX - 1)
		return UINT32_MAX;
	whole = (uint32_t)times;
	/* A device that takes nothing still leaves every second record to the host. */
	return 1 + SPW_MAX(whole + ((double)whole < times), 1u);
}

/*
 * A trial gives the device one record only, the middle one of those that it can update: there the
 * host is busy before and after, as it is in later updates.
 */
static void try_one(bool device[], uint32_t count)
{
	uint32_t can = 0;

	for (uint32_t i = 0; i < count; i++)
		can += device[i];
	for (uint32_t i = 0, nth = 0; i < count; i++)
		if (device[i])
			device[i] = nth++ == can / 2;
}

void spw_state__share_begin(struct share *share, const uint32_t records[], uint32_t count,
			    bool device[], uint64_t waited_ns)
{
	uint32_t stride = share->given ? share->given : share->stride;

	share->host = share->device = (struct share_work){0};
	share->waited_ns = waited_ns;
	share->records = share->left = count;
	share->trial = false;
	if (count < 2 || (stride == 0 && share->rest > 0)) {
		for (uint32_t i = 0; i < count; i++)
			device[i] = false;
		share->rest -= share->rest > 0;
		return;
	}
	share->trial = stride == 0;
	if (share->trial) {
		try_one(device, count);
		return;
	}
	/* Choose by record number, so that the same k gives the same records in any order. */
	for (uint32_t i = 0; i < count; i++)
		device[i] = device[i] && records[i] % stride == stride - 1;
}

bool spw_state__share_given(struct share *share)
{
	if (share->left == 0)
		return false;
	share->left--;
	return share->left == 0;
}

enum share_off spw_state__share_end(struct share *share, uint64_t waited_ns)
{
	double saved_ns;
	bool is_slow;

	if (share->given || share->host.bytes == 0 || share->device.bytes == 0)
		return SHARE_ON;
	if (!share->warm) {
		share->warm = true;
		return SHARE_ON;
	}
	share->stride = spw_state__share_stride(share->host, share->device);
	SPW_ASSERT(share->stride >= 2);
	saved_ns = ns_per_byte(share->host) * (double)(share->host.bytes + share->device.bytes) /
		   share->stride;
	is_slow = share->stride > share->records;
	if (!is_slow && (double)(waited_ns - share->waited_ns) < saved_ns)
		return SHARE_ON;
	share->stride = 0;
	share->rest = REST_UPDATES;
	return is_slow ? SHARE_OFF_SLOW : SHARE_OFF_DRIVES;
}
