/* SPDX-License-Identifier: MIT */
/* tools/metrics/openmetrics.h - print counters of open stores in the OpenMetrics 1.0 text format */
#ifndef SPW_TOOLS_METRICS_OPENMETRICS_H
#define SPW_TOOLS_METRICS_OPENMETRICS_H

#include <stdio.h>

#include "tools/ui/tool.h"

#define OPENMETRICS_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"

/* Write the whole document with its end mark. @rated: endurance of each drive, as for spw_wear() */
void openmetrics_write(const struct tool_snapshot *snapshot, double rated, FILE *out);

#endif
