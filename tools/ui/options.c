/* SPDX-License-Identifier: MIT */
/*
 * tools/ui/options.c - parsing the options of a subcommand from one table, and the hints for wrong
 * ones
 */
#include "tools/ui/tool.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

#define NAME_CHARS_MAX 48

static int usage_message(const struct tool_command *command, const char *format, va_list args)
{
	(void)fprintf(stderr, "spillway %s: ", command->name);
	(void)vfprintf(stderr, format, args);
	(void)fprintf(stderr, "\nusage: spillway %s %s\nTry 'spillway %s --help'.\n", command->name,
		      command->synopsis, command->name);
	return TOOL_USAGE;
}

int tool_usage_error(const struct tool_command *command, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)usage_message(command, format, args);
	va_end(args);
	return TOOL_USAGE;
}

int tool_usage_exit(int result)
{
	return result > 0 ? TOOL_DONE : TOOL_USAGE;
}

static int unknown_option(const struct tool_command *command, const struct tool_option *options,
			  const char *typed)
{
	const char *names[32] = {NULL};
	const char *nearest;
	size_t count = 0;

	for (; options[count].name && count + 1 < SPW_ARRAY_LEN(names); count++)
		names[count] = options[count].name;
	nearest = tool_nearest(typed, names);
	if (nearest)
		(void)tool_usage_error(command, "unknown option --%s; did you mean --%s?", typed,
				       nearest);
	else
		(void)tool_usage_error(command, "unknown option --%s", typed);
	return -EINVAL;
}

static int add_device(struct tool_devices *devices, const char *path)
{
	const char **grown = realloc(devices->paths, (devices->count + 1) * sizeof(*grown));

	if (!grown)
		return -ENOMEM;
	devices->paths = grown;
	devices->paths[devices->count] = strdup(path);
	if (!devices->paths[devices->count])
		return -ENOMEM;
	devices->count++;
	return 0;
}

/* "a,b\,c" -> "a", "b,c" */
static int add_devices(struct tool_devices *devices, const char *list)
{
	char *path = malloc(strlen(list) + 1);
	int result = path ? 0 : -ENOMEM;
	size_t len = 0;

	for (const char *at = list; result == 0; at++) {
		if (at[0] == '\\' && at[1] == ',') {
			path[len++] = *++at;
		} else if (*at != ',' && *at != '\0') {
			path[len++] = *at;
		} else {
			path[len] = '\0';
			/*
			 * A variable of the shell that is not set would make a store of fewer
			 * drives than were meant.
			 */
			result = len > 0 ? add_device(devices, path) : -EINVAL;
			len = 0;
			if (*at == '\0')
				break;
		}
	}
	free(path);
	return result;
}

void tool_devices_free(struct tool_devices *devices)
{
	for (unsigned i = 0; i < devices->count; i++)
		free((void *)(uintptr_t)devices->paths[i]);
	free(devices->paths);
	devices->paths = NULL;
	devices->count = 0;
}

static int run_on_named(const struct tool_command *command, int argc, char **argv,
			struct tool_devices *devices, const char *none,
			int (*action)(const struct tool_command *command))
{
	int result = tool_options_parse(command, argc, argv);
	int code;

	if (result != 0)
		code = tool_usage_exit(result);
	else if (devices->count == 0)
		code = tool_usage_error(command, "%s", none);
	else
		code = action(command);
	tool_devices_free(devices);
	return code;
}

int tool_run_on_drives(const struct tool_command *command, int argc, char **argv,
		       struct tool_devices *devices,
		       int (*action)(const struct tool_command *command))
{
	return run_on_named(command, argc, argv, devices, "no drives given: --devices A,B,...",
			    action);
}

int tool_run_on_controllers(const struct tool_command *command, int argc, char **argv,
			    struct tool_devices *devices,
			    int (*action)(const struct tool_command *command))
{
	return run_on_named(command, argc, argv, devices,
			    "no controller given: name its PCI address, such as 0000:3d:00.0; "
			    "'spillway probe' lists them",
			    action);
}

static int parse_count(const char *text, uint32_t *count)
{
	unsigned long long value;
	char *end;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end != '\0')
		return -EINVAL;
	if (errno == ERANGE || value > UINT32_MAX)
		return -ERANGE;
	*count = (uint32_t)value;
	return 0;
}

static int set_text(const char *text, const char **value)
{
	*value = text;
	return text[0] != '\0' ? 0 : -EINVAL;
}

static int refuse_value(const struct tool_command *command, const struct tool_option *option,
			const char *text, int error)
{
	static const char *const faults[] = {
		[TOOL_FLAG] = "",
		[TOOL_COUNT] = "not a number",
		[TOOL_SIZE] = "not a size; write for example 4k, 1MiB or 2G",
		[TOOL_TEXT] = "an empty text",
		[TOOL_DEVICES] = "an empty name",
	};

	(void)tool_usage_error(command, "--%s=%s: %s", option->name, text,
			       error == -ERANGE ? "too large" : faults[option->kind]);
	return -EINVAL;
}

static int set_value(const struct tool_command *command, const struct tool_option *option,
		     const char *text)
{
	int result = 0;

	switch (option->kind) {
	case TOOL_FLAG: *(bool *)option->value = true; return 0;
	case TOOL_TEXT: result = set_text(text, option->value); break;
	case TOOL_COUNT: result = parse_count(text, option->value); break;
	case TOOL_SIZE: result = spw_size_parse(text, option->value); break;
	case TOOL_DEVICES: result = add_devices(option->value, text); break;
	}
	if (result == -ENOMEM) {
		(void)fprintf(stderr, "spillway %s: out of memory\n", command->name);
		return result;
	}
	return result == 0 ? 0 : refuse_value(command, option, text, result);
}

static const struct tool_option *find_option(const struct tool_option *options, const char *name,
					     size_t len)
{
	for (; options->name; options++)
		if (strlen(options->name) == len && strncmp(options->name, name, len) == 0)
			return options;
	return NULL;
}

/*
 * One "--name", "--name=value" or "--name value" at argv[*index]; moves *index to the last argument
 * used.
 */
static int parse_option(const struct tool_command *command, const struct tool_option *options,
			int argc, char **argv, int *index)
{
	const char *name = argv[*index] + 2;
	const char *equals = strchr(name, '=');
	size_t len = equals ? (size_t)(equals - name) : strlen(name);
	const struct tool_option *option = find_option(options, name, len);
	char typed[NAME_CHARS_MAX + 1];

	if (!option) {
		(void)snprintf(typed, sizeof(typed), "%.*s",
			       (int)(len > NAME_CHARS_MAX ? NAME_CHARS_MAX : len), name);
		return unknown_option(command, options, typed);
	}
	if (option->kind == TOOL_FLAG && equals) {
		(void)tool_usage_error(command, "--%s takes no value", option->name);
		return -EINVAL;
	}
	if (option->kind == TOOL_FLAG || equals)
		return set_value(command, option, equals ? equals + 1 : "");
	if (*index + 1 >= argc) {
		(void)tool_usage_error(command, "--%s needs a value: --%s %s", option->name,
				       option->name, option->argument);
		return -EINVAL;
	}
	return set_value(command, option, argv[++*index]);
}

static const struct tool_option *positional_option(const struct tool_option *options)
{
	for (; options->name; options++)
		if (options->kind == TOOL_DEVICES)
			return options;
	return NULL;
}

int tool_options_parse(const struct tool_command *command, int argc, char **argv)
{
	const struct tool_option *options = command->options;
	const struct tool_option *positional = positional_option(options);
	bool only_arguments = false;
	int result = 0;

	for (int i = 1; i < argc && result == 0; i++) {
		if (only_arguments || argv[i][0] != '-') {
			if (!positional) {
				(void)tool_usage_error(command, "'%s' is not an option", argv[i]);
				return -EINVAL;
			}
			result = set_value(command, positional, argv[i]);
		} else if (strcmp(argv[i], "--") == 0) {
			only_arguments = true;
		} else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
			tool_print_help(command, stdout);
			return 1;
		} else if (argv[i][1] != '-') {
			(void)tool_usage_error(command,
					       "unknown option %s; options begin with two dashes",
					       argv[i]);
			return -EINVAL;
		} else {
			result = parse_option(command, options, argc, argv, &i);
		}
	}
	return result;
}

void tool_options_print(const struct tool_option *options, FILE *out)
{
	for (; options->name; options++) {
		char left[NAME_CHARS_MAX];

		(void)snprintf(left, sizeof(left), "--%s%s%s", options->name,
			       options->argument && options->argument[0] != '[' ? " " : "",
			       options->argument ? options->argument : "");
		(void)fprintf(out, "  %-20s %s\n", left, options->help);
	}
	(void)fprintf(out, "  %-20s %s\n", "--help", "show this help");
}

void tool_print_help(const struct tool_command *command, FILE *out)
{
	(void)fprintf(out, "spillway %s: %s\n\nusage: spillway %s %s\n\n%s\n", command->name,
		      command->summary, command->name, command->synopsis, command->description);
	if (command->print_options)
		command->print_options(out);
	else
		tool_options_print(command->options, out);
	(void)fprintf(out, "\nExamples:\n%s", command->examples);
}
