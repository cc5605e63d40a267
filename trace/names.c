/* SPDX-License-Identifier: MIT */
/* trace/names.c - the words of a trace */
#include "trace/internal.h"

const char *const spw_kind_names[TRACE_KINDS] = {
	"step", "stage", "scope_enter", "scope_leave", "offer", "take", "return", "release",
};
const char *const spw_hint_names[TRACE_HINTS] = {"none", "keep", "spill", "pin"};
const char *const spw_result_names[TRACE_RESULTS] = {"keep", "spill", "dedup"};
const char *const spw_stage_names[2] = {"forward", "backward"};
