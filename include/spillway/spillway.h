/* SPDX-License-Identifier: MIT */
/* spillway/spillway.h - everything: one header per layer, from the bottom up */
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
