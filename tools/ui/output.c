/* SPDX-License-Identifier: MIT */
/* tools/ui/output.c - tables for people, JSON for programs, errors and log on stderr */
#include "tools/ui/tool.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/ioctl.h>

#include "util/util.h"

#define COLUMNS_MAX 32

struct tool_table {
	char **cells; /* row after row, the titles first */
	size_t cells_count;
	unsigned columns;
	uint32_t right; /* a bit for each right-aligned column */
	bool out_of_memory;
};

static void add_cell(struct tool_table *table, const char *text, size_t len)
{
	char **grown = realloc(table->cells, (table->cells_count + 1) * sizeof(*grown));
	char *cell = grown ? strndup(text, len) : NULL;

	if (grown)
		table->cells = grown;
	table->out_of_memory |= !cell;
	if (!cell)
		return;
	spw_make_printable(cell);
	table->cells[table->cells_count++] = cell;
}

struct tool_table *tool_table_new(const char *titles)
{
	struct tool_table *table = calloc(1, sizeof(*table));

	while (table && titles) {
		const char *end = strchrnul(titles, '|');
		bool right = titles[0] == '>';

		SPW_ASSERT(table->columns < COLUMNS_MAX);
		table->right |= (uint32_t)right << table->columns++;
		add_cell(table, titles + right, (size_t)(end - titles - right));
		titles = *end ? end + 1 : NULL;
	}
	return table;
}

void tool_table_add(struct tool_table *table, const char *const cells[])
{
	for (; table && *cells; cells++)
		add_cell(table, *cells, strlen(*cells));
	SPW_ASSERT(!table || table->out_of_memory || table->cells_count % table->columns == 0);
}

static void print_table(const struct tool_table *table, FILE *out)
{
	size_t widths[COLUMNS_MAX] = {0};

	for (size_t i = 0; i < table->cells_count; i++) {
		size_t len = strlen(table->cells[i]);

		if (len > widths[i % table->columns])
			widths[i % table->columns] = len;
	}
	for (size_t i = 0; i < table->cells_count; i++) {
		size_t column = i % table->columns;
		bool last = column + 1 == table->columns;

		if (table->right >> column & 1)
			(void)fprintf(out, "%*s", (int)widths[column], table->cells[i]);
		else
			(void)fprintf(out, "%-*s", last ? 0 : (int)widths[column], table->cells[i]);
		(void)fputs(last ? "\n" : "  ", out);
	}
}

void tool_table_end(struct tool_table *table, FILE *out)
{
	if (out && (!table || table->out_of_memory))
		(void)fprintf(stderr, "spillway: out of memory while printing a table\n");
	else if (out)
		print_table(table, out);
	for (size_t i = 0; table && i < table->cells_count; i++)
		free(table->cells[i]);
	if (table)
		free(table->cells);
	free(table);
}

const char *tool_format(char *buf, size_t len, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)vsnprintf(buf, len, format, args);
	va_end(args);
	return buf;
}

const char *tool_short_path(char buf[64], const char *path, unsigned width)
{
	size_t len = strlen(path), head = (width - 3) / 3, tail = width - 3 - head;

	SPW_ASSERT(width > 6 && width < 64);
	if (len <= width)
		return tool_format(buf, 64, "%s", path);
	return tool_format(buf, 64, "%.*s...%s", (int)head, path, path + len - tail);
}

void tool_progress(const char *format, ...)
{
	struct winsize size = {0};
	char line[512];
	va_list args;

	if (!isatty(STDERR_FILENO))
		return;
	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
		size.ws_col = 80;
	va_start(args, format);
	(void)vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	/* Cut the line: a wrapped line would not be overwritten by the next. */
	(void)fprintf(stderr, "\r%.*s\033[K", size.ws_col - 1, line);
	(void)fflush(stderr);
}

void tool_progress_end(void)
{
	if (isatty(STDERR_FILENO))
		(void)fputs("\r\033[K", stderr);
}

const char *tool_or_dash(const char *text)
{
	return text[0] ? text : "-";
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
	/* A failed call without a message still has the text of its errno. */
	const char *text = spw_last_error()[0] != '\0' ? spw_last_error() : spw_strerror(error);

	if (json)
		(void)tool_print_json(
			json_pack("{s:o, s:i}", "error", tool_json_text(text), "errno", -error));
	(void)fprintf(stderr, "spillway %s: %s\n", command->name, text);
	return tool_exit_code(command, error);
}

bool tool_ask(const char *question, const char *agreed)
{
	char answer[16] = "";

	(void)fputs(question, stderr);
	return fgets(answer, sizeof(answer), stdin) &&
	       strncasecmp(answer, agreed, strlen(agreed)) == 0;
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
