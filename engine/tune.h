/* SPDX-License-Identifier: MIT */
/* engine/tune.h - the settings that `spillway tune` found, applied to a queue */
#ifndef SPW_ENGINE_TUNE_H
#define SPW_ENGINE_TUNE_H

#include <spillway/engine.h>

/*
 * Set depth, backend and wait of @opts from the file that opts->tune_path or SPILLWAY_TUNE names;
 * nothing when neither does, or when it was written for other drives, which is logged. Return: 0;
 * what spw_tune_read() returns of a file that is bad.
 */
int spw_tune_apply(struct spw_device *const devices[], unsigned count, struct spw_queue_opts *opts);

#endif
