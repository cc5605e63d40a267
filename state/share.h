/* SPDX-License-Identifier: MIT */
/*
 * state/share.h - of an update: which part of it a device does, by what the updates before took
 *
 * A record that the device updates goes there, is updated and comes back while the host updates
 * others. It costs the host nothing where the device is done before the host has done the rest:
 *
 *   t_cpu   what the host takes for a record, from when it has it until it gives it back
 *   t_gpu   what the device takes for one: both copies and the arithmetic, one after the other
 *   k       of k records one is the device's: (k - 1) t_cpu >= t_gpu,
 *           so k = 1 + ceil(t_gpu / t_cpu)
 *
 * Pure: no clock, thread or I/O. What is measured is told, in ns and bytes of records.
 */
#ifndef SPW_STATE_SHARE_H
#define SPW_STATE_SHARE_H

#include <stdbool.h>
#include <stdint.h>

struct share_work {
	uint64_t bytes, ns;
};

struct share {
	uint32_t given;  /* k, if the caller has said it; else 0 */
	uint32_t stride; /* k; 0: nothing is the device's */
	uint32_t rest;   /* updates that the host does alone before the device is tried again */
	bool warm;       /* both have updated something: memory and code are there */
	bool trial;      /* this update has one record on the device, to see what it takes */

	/* this update */
	struct share_work host, device;
	uint64_t waited_ns; /* for drives, of all updates and whatever else, when it began */
	uint32_t records;
	uint32_t left; /* not released yet */
};

/* Why nothing is the device's after an update. */
enum share_off {
	SHARE_ON,
	SHARE_OFF_SLOW,   /* the device takes longer than the host for all of the rest */
	SHARE_OFF_DRIVES, /* drives are waited for, for as long as the device saves */
};

/* 1 + ceil(device / host); UINT32_MAX where that is more. Neither may be without bytes. */
uint32_t spw_state__share_stride(struct share_work host, struct share_work device);

/**
 * spw_state__share_begin - an update begins
 * @records:    of it
 * @device:     in: a device can update it; out: it is to
 * @waited_ns:  for drives, so far
 */
void spw_state__share_begin(struct share *share, const uint32_t records[], uint32_t count,
			    bool device[], uint64_t waited_ns);

/* A record was released. Return: whether it was the last, so that spw_state__share_end()
 * follows. */
bool spw_state__share_given(struct share *share);

/* Decide on the updates that come. */
enum share_off spw_state__share_end(struct share *share, uint64_t waited_ns);

#endif
