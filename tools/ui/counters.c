/* SPDX-License-Identifier: MIT */
/* tools/ui/counters.c - print a struct of counters as text or JSON, by the library's table */
#include "tools/ui/counters.h"

#include <string.h>

#include "tools/ui/tool.h"
#include "util/util.h"

#define WIDTH_MAX 80
#define INDENT    12

bool tool_counter_at(enum spw_counted counted, unsigned index, struct spw_counter *counter)
{
	return spw_counter_get(counted, index, counter, sizeof(*counter)) == 0;
}

uint64_t tool_counter_value(const struct spw_counter *counter, const void *stats)
{
	const char *at = (const char *)stats + counter->offset_bytes;
	uint64_t value = 0;
	uint32_t narrow;

	if (counter->len_bytes == sizeof(value)) {
		memcpy(&value, at, sizeof(value));
		return value;
	}
	memcpy(&narrow, at, sizeof(narrow));
	return narrow;
}

/* The words of a name that repeat the unit, which is printed with the value. */
static const char *unit_words(enum spw_counter_unit unit)
{
	switch (unit) {
	case SPW_COUNTER_BYTES: return "bytes";
	case SPW_COUNTER_NS: return "ns";
	case SPW_COUNTER_BYTES_PER_SECOND: return "bytes_per_second";
	case SPW_COUNTER_BYTES_PER_DAY: return "bytes_per_day";
	case SPW_COUNTER_PERCENT: return "percent";
	case SPW_COUNTER_NUMBER:
	case SPW_COUNTER_CAUSE: break;
	}
	return "";
}

/* Find @words between underscores in @name. Return: NULL if not found. */
static const char *find_words(const char *name, const char *words)
{
	size_t len = strlen(words);

	for (const char *at = len ? strstr(name, words) : NULL; at; at = strstr(at + 1, words))
		if ((at == name || at[-1] == '_') && (at[len] == '\0' || at[len] == '_'))
			return at;
	return NULL;
}

const char *tool_counter_name(char buf[64], const struct spw_counter *counter)
{
	const char *unit = unit_words(counter->unit);
	const char *at = find_words(counter->name, unit);
	size_t before = at ? (size_t)(at - counter->name) : strlen(counter->name);
	const char *after = at ? at + strlen(unit) : "";

	if (*after == '_')
		after++;
	else if (before > 0 && at)
		before--; /* drop the underscore between */
	return tool_format(buf, 64, "%.*s%s", (int)before, counter->name, after);
}

/* The label of a counter: "peak" for "plan_peak_bytes" in the group "plan". */
static const char *label_of(char buf[64], const struct spw_counter *counter)
{
	size_t len = strlen(counter->group);
	char *label = buf;

	(void)tool_counter_name(buf, counter);
	if (strncmp(buf, counter->group, len) == 0 && buf[len] == '_')
		label = buf + len + 1;
	for (char *at = label; *at; at++)
		if (*at == '_')
			*at = ' ';
	return label;
}

static const char *seconds_text(char buf[64], uint64_t ns)
{
	double seconds = (double)ns / 1e9;

	return seconds >= 1      ? tool_format(buf, 64, "%.2f s", seconds)
	       : seconds >= 1e-3 ? tool_format(buf, 64, "%.2f ms", seconds * 1e3)
				 : tool_format(buf, 64, "%.1f us", seconds * 1e6);
}

static const char *value_text(char buf[64], const struct spw_counter *counter, uint64_t value)
{
	switch (counter->unit) {
	case SPW_COUNTER_BYTES: return spw_size_format(value, buf, 64);
	case SPW_COUNTER_NS: return seconds_text(buf, value);
	case SPW_COUNTER_BYTES_PER_SECOND:
		return tool_format(buf, 64, "%.1f MB/s", (double)value / 1e6);
	case SPW_COUNTER_BYTES_PER_DAY: return tool_per_day(buf, 64, (double)value);
	case SPW_COUNTER_PERCENT: return tool_format(buf, 64, "%ju %%", (uintmax_t)value);
	case SPW_COUNTER_NUMBER:
	case SPW_COUNTER_CAUSE: break;
	}
	return tool_format(buf, 64, "%ju", (uintmax_t)value);
}

/* Print a group's counters that are not 0 after its name, wrapped at WIDTH_MAX columns. */
static void print_group(enum spw_counted counted, const char *group, const void *stats, FILE *out)
{
	struct spw_counter counter;
	size_t column = 0;

	for (unsigned i = 0; tool_counter_at(counted, i, &counter); i++) {
		uint64_t value = tool_counter_value(&counter, stats);
		char label[64], text[64], item[136];
		size_t len;

		if (strcmp(counter.group, group) != 0 || counter.view != SPW_COUNTER_MAIN ||
		    value == 0)
			continue;
		(void)tool_format(item, sizeof(item), "%s %s", label_of(label, &counter),
				  value_text(text, &counter, value));
		len = strlen(item);
		if (column == 0)
			column = (size_t)fprintf(out, "  %-*s%s", INDENT - 2, group, item);
		else if (column + 2 + len < WIDTH_MAX)
			column += (size_t)fprintf(out, ", %s", item);
		else
			column = (size_t)fprintf(out, ",\n%*s%s", INDENT, "", item) - 2;
	}
	if (column > 0)
		(void)fputc('\n', out);
}

void tool_counters_print(enum spw_counted counted, const void *stats, FILE *out)
{
	struct spw_counter counter, before;

	for (unsigned i = 0; tool_counter_at(counted, i, &counter); i++) {
		unsigned first = 0;

		while (tool_counter_at(counted, first, &before) &&
		       strcmp(before.group, counter.group) != 0)
			first++;
		if (first == i)
			print_group(counted, counter.group, stats, out);
	}
}

json_t *tool_counters_json(enum spw_counted counted, const void *stats)
{
	json_t *object = json_object();
	struct spw_counter counter;

	for (unsigned i = 0; tool_counter_at(counted, i, &counter); i++)
		(void)json_object_set_new(
			object, counter.name,
			json_integer((json_int_t)tool_counter_value(&counter, stats)));
	return object;
}
