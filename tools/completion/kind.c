/* SPDX-License-Identifier: MIT */
/* tools/completion/kind.c - derive what may follow an option from its help */
#include "tools/completion/completion.h"

#include <string.h>

#include "util/util.h"

enum completion_kind completion_kind(const struct tool_shown *option)
{
	static const struct {
		const char *argument;
		enum completion_kind kind;
	} kinds[] = {
		{"FILE", COMPLETION_FILE},     {"[=FILE]", COMPLETION_FILE},
		{"A:B", COMPLETION_FILE},      {"DIR", COMPLETION_FOLDER},
		{"A,B,...", COMPLETION_FILES}, {"FOLDER", COMPLETION_FOLDER},
		{"USER", COMPLETION_USER},
	};

	if (!option->argument)
		return COMPLETION_FLAG;
	if (option->values)
		return COMPLETION_VALUES;
	if (option->devices)
		return COMPLETION_FILES;
	for (size_t i = 0; i < SPW_ARRAY_LEN(kinds); i++)
		if (strcmp(option->argument, kinds[i].argument) == 0)
			return kinds[i].kind;
	return COMPLETION_ANY;
}

void completion_quote(const char *text, const char *special, const char *quote, FILE *out)
{
	for (; *text; text++) {
		if (*text == '\'') {
			(void)fputs(quote, out);
			continue;
		}
		if (strchr(special, *text))
			(void)fputc('\\', out);
		(void)fputc(*text, out);
	}
}
