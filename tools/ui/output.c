/* SPDX-License-Identifier: MIT */
/*
 * tools/ui/output.c - aligned tables for people, JSON for programs, errors and log lines on
 * standard error
 */
#include "tools/ui/tool.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

struct tool_table {
	const struct tool_column *columns;
	unsigned columns_count;
	char **cells; /* row after row */
	size_t cells_count;
	bool out_of_memory;
};

struct tool_table *tool_table_new(const struct tool_column *columns, unsigned count)
{
	struct tool_table *table = calloc(1, sizeof(*table));

	if (!table)
		return NULL;
	table->columns = columns;
	table->columns_count = count;
	return table;
}

void tool_table_cell(struct tool_table *table, const char *format, ...)
{
	char **grown;
	va_list args;
	char *text;
	int len;

	if (!table)
		return;
	va_start(args, format);
	len = vasprintf(&text, format, args);
	va_end(args);
	grown = len < 0 ? NULL : realloc(table->cells, (table->cells_count + 1) * sizeof(*grown));
	if (!grown) {
		if (len >= 0)
			free(text);
		table->out_of_memory = true;
		return;
	}
	spw_make_printable(text);
	table->cells = grown;
	table->cells[table->cells_count++] = text;
}

static void print_cell(const struct tool_table *table, unsigned column, const char *text,
		       size_t width, FILE *out)
{
	bool last = column + 1 == table->columns_count;

	if (table->columns[column].right)
		(void)fprintf(out, "%*s", (int)width, text);
	else
		(void)fprintf(out, "%-*s", last ? 0 : (int)width, text);
	(void)fputs(last ? "\n" : "  ", out);
}

void tool_table_print(const struct tool_table *table, FILE *out)
{
	size_t widths[32] = {0};

	if (!table || table->out_of_memory || table->columns_count == 0 ||
	    table->columns_count > SPW_ARRAY_LEN(widths)) {
		(void)fprintf(stderr, "spillway: out of memory while printing a table\n");
		return;
	}
	for (unsigned i = 0; i < table->columns_count; i++)
		widths[i] = strlen(table->columns[i].title);
	for (size_t i = 0; i < table->cells_count; i++) {
		size_t len = strlen(table->cells[i]);

		if (len > widths[i % table->columns_count])
			widths[i % table->columns_count] = len;
	}
	for (unsigned i = 0; i < table->columns_count; i++)
		print_cell(table, i, table->columns[i].title, widths[i], out);
	for (size_t i = 0; i < table->cells_count; i++) {
		unsigned column = (unsigned)(i % table->columns_count);

		print_cell(table, column, table->cells[i], widths[column], out);
	}
}

void tool_table_free(struct tool_table *table)
{
	if (!table)
		return;
	for (size_t i = 0; i < table->cells_count; i++)
		free(table->cells[i]);
	free(table->cells);
	free(table);
}

void tool_print_text(const char *text, FILE *out)
{
	char *copy = strdup(text);

	if (!copy)
		return;
	spw_make_printable(copy);
	(void)fputs(copy, out);
	free(copy);
}

json_t *tool_json_text(const char *text)
{
	json_t *json = json_string(text);
	char *copy;

	if (json)
		return json;
	copy = strdup(text);
	for (char *at = copy; at && *at != '\0'; at++)
		if ((unsigned char)*at >= 0x80)
			*at = '?';
	json = copy ? json_string(copy) : NULL;
	free(copy);
	return json;
}

int tool_print_json(json_t *document)
{
	int failed = !document || json_dumpf(document, stdout, JSON_INDENT(2)) != 0 ||
		     fputc('\n', stdout) == EOF || fflush(stdout) != 0;

	json_decref(document);
	if (failed)
		(void)fprintf(stderr, "spillway: cannot write the JSON output: %s\n",
			      strerror(errno));
	return failed ? TOOL_FAILED : TOOL_DONE;
}

int tool_exit_code(const struct tool_command *command, int error)
{
	for (const int *refusal = command->refusals; refusal && *refusal != 0; refusal++)
		if (*refusal == -error)
			return TOOL_REFUSED;
	switch (-error) {
	case EBUSY:
	case EEXIST:
	case ENOTUNIQ:
	case ESPIPE:
	case ESTALE: return TOOL_REFUSED;
	default: return TOOL_FAILED;
	}
}

int tool_fail(const struct tool_command *command, int error, bool json)
{
	/* A failing call that left no words behind still has its errno's. */
	const char *text = spw_last_error()[0] != '\0' ? spw_last_error() : spw_strerror(error);

	if (json)
		(void)tool_print_json(
			json_pack("{s:o, s:i}", "error", tool_json_text(text), "errno", -error));
	(void)fprintf(stderr, "spillway %s: %s\n", command->name, text);
	return tool_exit_code(command, error);
}

int tool_refuse(const struct tool_command *command, const char *text, bool json)
{
	if (json)
		(void)tool_print_json(json_pack("{s:s, s:i}", "error", text, "errno", EPERM));
	(void)fprintf(stderr, "spillway %s: %s\n", command->name, text);
	return TOOL_REFUSED;
}

static void log_all(void *context, enum spw_log_level level, const char *message)
{
	static const char *const names[] = {"debug", "info", "warning", "error"};

	(void)context;
	(void)fprintf(stderr, "spillway: %s: %s\n", level <= SPW_LOG_ERROR ? names[level] : "log",
		      message);
}

static void log_warnings(void *context, enum spw_log_level level, const char *message)
{
	if (level >= SPW_LOG_WARNING)
		log_all(context, level, message);
}

struct spw_log tool_log(bool verbose)
{
	return (struct spw_log){.write = verbose ? log_all : log_warnings};
}
