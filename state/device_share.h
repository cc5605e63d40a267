/* SPDX-License-Identifier: MIT */
/*
 * state/device_share.h - divide the records of an optimizer update between host and device, by the
 * time that each needed in the updates before
 *
 * While the device copies, updates and returns its record, the host updates the others. This costs
 * no time if the device finishes before the host does:
 *
 *   t_cpu   time that the host needs for a record, from its take to its release
 *   t_gpu   time that the device needs for one: copy in, arithmetic, copy out
 *   k       the device updates one record of k: (k - 1) t_cpu >= t_gpu,
 *           so k = 1 + ceil(t_gpu / t_cpu)
 *
 * Pure: no clock, thread or I/O. The caller passes what it has measured, in ns and bytes.
 */
#ifndef SPW_STATE_DEVICE_SHARE_H
#define SPW_STATE_DEVICE_SHARE_H

#include <stdbool.h>
#include <stdint.h>

struct share_work {
	uint64_t bytes, ns;
};

struct share {
	uint32_t given;  /* k, if the caller has fixed it; else 0 */
	uint32_t stride; /* measured k; 0: the device updates nothing */
	uint32_t rest;   /* updates that the host does alone before the device is tried again */
	bool warm;       /* host and device have run once: memory is allocated, code is loaded */
	bool trial;      /* this update has one record on the device, to see what it takes */

	/* this update */
	struct share_work host, device;
	uint64_t waited_ns; /* for drives, in total, when this update began */
	uint32_t records;
	uint32_t left; /* not released yet */
};

/* Why the device gets no records in the next updates. */
enum share_off {
	SHARE_ON,
	SHARE_OFF_SLOW,   /* the device needs longer than the host for all other records */
	SHARE_OFF_DRIVES, /* the update waits for drives as long as the device would save */
};

/* k = 1 + ceil(device / host), at most UINT32_MAX. Neither may have 0 bytes. */
uint32_t spw_state__share_stride(struct share_work host, struct share_work device);

/**
 * spw_state__share_begin - choose the records that the device updates
 * @records:    of the update
 * @device:     in: the device is able to update the record; out: the device updates it
 * @waited_ns:  for drives, in total so far
 */
void spw_state__share_begin(struct share *share, const uint32_t records[], uint32_t count,
			    bool device[], uint64_t waited_ns);

/* Count a released record. Return: it was the last, call spw_state__share_end() now. */
bool spw_state__share_given(struct share *share);

/* Choose k for the next updates by this update's times, or stop using the device for a while. */
enum share_off spw_state__share_end(struct share *share, uint64_t waited_ns);

#endif
