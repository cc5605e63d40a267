/* SPDX-License-Identifier: MIT */
/* tools/ui/counters.h - print a struct of counters as text or JSON, by the library's table */
#ifndef SPW_TOOLS_UI_COUNTERS_H
#define SPW_TOOLS_UI_COUNTERS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <spillway/counters.h>

/* Get a counter of the table. Return: whether there is one of this index. */
bool tool_counter_at(enum spw_counted counted, unsigned index, struct spw_counter *counter);
uint64_t tool_counter_value(const struct spw_counter *counter, const void *stats);
/* The name without the words of its unit: "plan_peak" of plan_peak_bytes. */
const char *tool_counter_name(char buf[64], const struct spw_counter *counter);

/* Print the counters that are not 0 for people, a paragraph per group. */
void tool_counters_print(enum spw_counted counted, const void *stats, FILE *out);
/* All counters by their names. */
json_t *tool_counters_json(enum spw_counted counted, const void *stats);

#endif
