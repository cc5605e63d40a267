/* SPDX-License-Identifier: MIT */
/* spillway/spillway.h - includes all public headers, from the lowest layer up */
#ifndef SPILLWAY_SPILLWAY_H
#define SPILLWAY_SPILLWAY_H

#include <spillway/error.h>
#include <spillway/counters.h>
#include <spillway/engine.h>
#include <spillway/nvme.h>
#include <spillway/vfio.h>
#include <spillway/format.h>
#include <spillway/wear.h>
#include <spillway/store.h>
#include <spillway/status.h>
#include <spillway/state.h>
#include <spillway/plan.h>
#include <spillway/trace.h>
#include <spillway/cache.h>

#endif
