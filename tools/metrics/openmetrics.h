/* SPDX-License-Identifier: MIT */
/* tools/metrics/openmetrics.h - what open stores count, in the text format of OpenMetrics 1.0 */
#ifndef SPW_TOOLS_METRICS_OPENMETRICS_H
#define SPW_TOOLS_METRICS_OPENMETRICS_H

#include <stdio.h>

#include "tools/ui/tool.h"

#define OPENMETRICS_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"

/* All of it, to the end mark. @rated: of each drive, as of spw_wear(). */
void openmetrics_write(const struct tool_snapshot *snapshot, double rated, FILE *out);

#endif
