/* SPDX-License-Identifier: MIT */
/* tensor/trace_names.c - the words of a trace */
#include "tensor/trace_internal.h"

const char *const trace_kind_names[TRACE_KINDS] = {
	"step", "stage", "scope_enter", "scope_leave", "offer", "take", "return", "release",
};
const char *const trace_hint_names[TRACE_HINTS] = {"none", "keep", "spill", "pin"};
const char *const trace_result_names[TRACE_RESULTS] = {"keep", "spill", "dedup"};
const char *const trace_stage_names[2] = {"forward", "backward"};
