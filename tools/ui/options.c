/* SPDX-License-Identifier: MIT */
/* tools/ui/options.c - the options of a subcommand from one table, and hints */
#include "tools/ui/tool.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "util/names.h"
#include "util/util.h"

#define NAME_CHARS_MAX 48
#define HELP_COLUMNS   79u

const char tool_no_drives[] = "no drives given: --devices A,B,...";
const char tool_no_controllers[] = "no controller given: name its PCI address, such as "
				   "0000:3d:00.0; 'spillway probe' lists them";

static uint64_t given; /* a bit per option of the command that was parsed last */

bool tool_gave_other_than(const struct tool_command *command, const char *const names[])
{
	for (unsigned i = 0; command->options[i].name; i++) {
		const char *const *name = names;

		while (*name && strcmp(*name, command->options[i].name) != 0)
			name++;
		if (!*name && given >> i & 1)
			return true;
	}
	return false;
}

int tool_usage_error(const struct tool_command *command, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)fprintf(stderr, "spillway %s: ", command->name);
	(void)vfprintf(stderr, format, args);
	(void)fprintf(stderr, "\nusage: spillway %s %s\nTry 'spillway %s --help'.\n", command->name,
		      command->synopsis, command->name);
	va_end(args);
	return TOOL_USAGE;
}

static int unknown_option(const struct tool_command *command, const struct tool_option *options,
			  const char *typed)
{
	const char *names[32] = {NULL};
	const char *nearest;
	size_t count = 0;

	for (; options->name && count + 1 < SPW_ARRAY_LEN(names); options++)
		if (options->name[0])
			names[count++] = options->name;
	nearest = tool_nearest(typed, names);
	if (nearest)
		return tool_usage_error(command, "unknown option --%s; did you mean --%s?", typed,
					nearest);
	return tool_usage_error(command, "unknown option --%s", typed);
}

static int add_device(void *context, const char *path)
{
	struct tool_devices *devices = context;
	const char **grown = realloc(devices->paths, (devices->count + 1) * sizeof(*grown));

	if (!grown)
		return -ENOMEM;
	devices->paths = grown;
	/* Refuse an empty name: an unset shell variable would silently leave out a drive. */
	if (path[0] == '\0')
		return -EINVAL;
	devices->paths[devices->count] = strdup(path);
	if (!devices->paths[devices->count])
		return -ENOMEM;
	devices->count++;
	return 0;
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

static int parse_number(const char *text, struct tool_number *number)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end != '\0' || !(value >= number->least && value <= number->most))
		return -EINVAL;
	number->value = value;
	return 0;
}

static int choose(const char *text, struct tool_choice *choice)
{
	for (unsigned i = 0; choice->names[i]; i++)
		if (strcmp(text, choice->names[i]) == 0) {
			choice->value = i;
			return 0;
		}
	return -EINVAL;
}

int tool_too_small(const struct tool_command *command, const char *name, uint64_t value,
		   const char *per, uint64_t least)
{
	if (value >= least)
		return TOOL_GO_ON;
	return tool_usage_error(
		command,
		"--%s: %llu bytes%s, less than can be meant; sizes need their unit, "
		"such as %lluGB",
		name, (unsigned long long)value, per,
		(unsigned long long)(value > 0 && value < 1000 ? value : 12));
}

unsigned tool_sizes_parse(const char *text, uint64_t sizes[], unsigned most)
{
	char *copy = strdup(text), *rest = copy;
	unsigned count = 0;
	bool good = copy;

	for (; good && rest; count++)
		good = count < most && spw_size_parse(strsep(&rest, ","), &sizes[count]) == 0 &&
		       sizes[count] > 0 && sizes[count] <= UINT64_C(1) << 50;
	free(copy);
	return good ? count : 0;
}

static const char *describe_fault(const struct tool_option *option, char *text, size_t len)
{
	static const char *const faults[] = {
		[TOOL_COUNT] = "not a whole number",
		[TOOL_SIZE] = "not a size; write for example 4k, 1MiB or 2G",
		[TOOL_TEXT] = "an empty text",
		[TOOL_DEVICES] = "an empty name",
	};
	const struct tool_number *number = option->value;
	const struct tool_choice *choice = option->value;

	if (option->kind == TOOL_NUMBER)
		return tool_format(text, len, "not a number from %g to %g", number->least,
				   number->most);
	if (option->kind != TOOL_CHOICE)
		return faults[option->kind];
	for (unsigned i = 0; choice->names[i]; i++) {
		size_t used = strlen(text);

		(void)snprintf(text + used, len - used, "%s%s",
			       i == 0                 ? ""
			       : choice->names[i + 1] ? ", "
						      : " or ",
			       choice->names[i]);
	}
	return text;
}

static int set_value(const struct tool_command *command, const struct tool_option *option,
		     const char *text)
{
	char fault[128] = "";
	int result = 0;

	given |= UINT64_C(1) << (option - command->options);
	switch (option->kind) {
	case TOOL_FLAG: *(bool *)option->value = true; break;
	case TOOL_TEXT: result = set_text(text, option->value); break;
	case TOOL_COUNT: result = parse_count(text, option->value); break;
	case TOOL_SIZE: result = spw_size_parse(text, option->value); break;
	case TOOL_NUMBER: result = parse_number(text, option->value); break;
	case TOOL_CHOICE: result = choose(text, option->value); break;
	case TOOL_DEVICES: result = spw_names_split(text, ',', add_device, option->value); break;
	}
	if (result == -ENOMEM)
		return tool_fail(command, result, false);
	if (result)
		return tool_usage_error(command, "%s%s%s%s: %s", option->name[0] ? "--" : "",
					option->name, option->name[0] ? "=" : "", text,
					result == -ERANGE
						? "too large"
						: describe_fault(option, fault, sizeof(fault)));
	return TOOL_GO_ON;
}

static const struct tool_option *find_option(const struct tool_option *options, const char *name,
					     size_t len)
{
	for (; options->name; options++)
		if (len > 0 && strlen(options->name) == len &&
		    strncmp(options->name, name, len) == 0)
			return options;
	return NULL;
}

/* One "--name", "--name=value" or "--name value"; moves *index to the last argument used. */
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
	if (option->kind == TOOL_FLAG && equals)
		return tool_usage_error(command, "--%s takes no value", option->name);
	if (option->kind == TOOL_FLAG || equals)
		return set_value(command, option, equals ? equals + 1 : "");
	if (*index + 1 >= argc)
		return tool_usage_error(command, "--%s needs a value: --%s %s", option->name,
					option->name, option->argument);
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
	int code = TOOL_GO_ON;

	given = 0;
	for (int i = 1; i < argc && code == TOOL_GO_ON; i++) {
		if (only_arguments || argv[i][0] != '-') {
			if (!positional)
				return tool_usage_error(command, "'%s' is not an option", argv[i]);
			code = set_value(command, positional, argv[i]);
		} else if (strcmp(argv[i], "--") == 0) {
			only_arguments = true;
		} else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
			tool_print_help(command, stdout);
			return TOOL_DONE;
		} else if (argv[i][1] != '-') {
			return tool_usage_error(command,
						"unknown option %s; options begin with two dashes",
						argv[i]);
		} else {
			code = parse_option(command, options, argc, argv, &i);
		}
	}
	return code;
}

static void free_devices(struct tool_devices *devices)
{
	for (unsigned i = 0; i < devices->count; i++)
		free((void *)(uintptr_t)devices->paths[i]);
	free(devices->paths);
	*devices = (struct tool_devices){0};
}

/* ---- Verbs ---- */

const char *tool_verb_name(const struct tool_command *verb)
{
	return strchr(verb->name, ' ') + 1;
}

/* "list, export or drop" */
static void list_verbs(const struct tool_command *verbs, char *text, size_t len)
{
	text[0] = '\0';
	for (; verbs->name; verbs++) {
		size_t used = strlen(text);

		(void)snprintf(text + used, len - used, "%s%s", tool_verb_name(verbs),
			       !verbs[1].name  ? ""
			       : verbs[2].name ? ", "
					       : " or ");
	}
}

static int run_verb(const struct tool_command *command, int argc, char **argv)
{
	const char *names[8] = {NULL};
	char all[128];
	const char *near;
	size_t count = 0;

	if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
		tool_print_help(command, stdout);
		return TOOL_DONE;
	}
	for (const struct tool_command *verb = command->verbs; verb->name; verb++) {
		if (argc > 1 && strcmp(argv[1], tool_verb_name(verb)) == 0)
			return tool_run(verb, argc - 1, argv + 1);
		if (argc > 1 && count + 1 < SPW_ARRAY_LEN(names) &&
		    (!verb->destructive || tool_is_misspelt(argv[1], tool_verb_name(verb))))
			names[count++] = tool_verb_name(verb);
	}
	list_verbs(command->verbs, all, sizeof(all));
	if (argc < 2)
		return tool_usage_error(command, "say which: %s", all);
	near = tool_nearest(argv[1], names);
	if (near)
		return tool_usage_error(command, "there is no '%s'; did you mean '%s'?", argv[1],
					near);
	return tool_usage_error(command, "there is no '%s': %s", argv[1], all);
}

static void print_verbs(const struct tool_command *command, FILE *out)
{
	for (const struct tool_command *verb = command->verbs; verb->name; verb++)
		(void)fprintf(out, "  %-8s %s\n", tool_verb_name(verb), verb->summary);
	(void)fprintf(out, "\n'spillway %s VERB --help' explains one, of these names.\n",
		      command->name);
}

/* ---- Run a command, print help ---- */

int tool_run(const struct tool_command *command, int argc, char **argv)
{
	const struct tool_devices *named;
	int code;

	if (command->verbs)
		return run_verb(command, argc, argv);
	if (command->run)
		return command->run(command, argc, argv);
	named = command->none_named ? positional_option(command->options)->value : NULL;
	code = tool_options_parse(command, argc, argv);
	if (code == TOOL_GO_ON && named && named->count == 0)
		code = tool_usage_error(command, "%s", command->none_named);
	if (code == TOOL_GO_ON)
		code = command->action(command);
	for (const struct tool_option *option = command->options; option->name; option++)
		if (option->kind == TOOL_DEVICES)
			free_devices(option->value);
	return code;
}

/* Print @text in lines that fit on every terminal; all but the first are indented. */
static void print_words(const char *text, size_t column, size_t indent, FILE *out)
{
	const char *separator = "";

	while (*text) {
		size_t len = strcspn(text, " ");

		if (separator[0] && column + 1 + len > HELP_COLUMNS) {
			(void)fprintf(out, "\n%*s", (int)indent, "");
			column = indent;
			separator = "";
		}
		column += strlen(separator) + len;
		(void)fprintf(out, "%s%.*s", separator, (int)len, text);
		text += len + strspn(text + len, " ");
		separator = " ";
	}
	(void)fputc('\n', out);
}

void tool_print_entry(const char *left, size_t width, const char *help, FILE *out)
{
	size_t column = 2 + width + 1;

	(void)fprintf(out, "  %-*s ", (int)width, left);
	if (strlen(left) > width)
		(void)fprintf(out, "\n%*s", (int)column, "");
	print_words(help, column, column, out);
}

void tool_print_option(const char *name, const char *argument, const char *help, FILE *out)
{
	char left[NAME_CHARS_MAX];

	(void)snprintf(left, sizeof(left), "%s%s%s%s", name[0] ? "--" : "", name,
		       name[0] && argument && argument[0] != '[' ? " " : "",
		       argument ? argument : "");
	tool_print_entry(left, 20, help, out);
}

void tool_each_option(const struct tool_command *command, tool_show *show, void *context)
{
	const struct tool_option *option = command->options;

	if (command->each_option)
		command->each_option(show, context);
	for (; option && option->name; option++) {
		const struct tool_choice *choice = option->value;
		char values[128] = "";

		for (unsigned i = 0; option->kind == TOOL_CHOICE && choice->names[i]; i++) {
			size_t used = strlen(values);

			(void)snprintf(values + used, sizeof(values) - used, "%s%s", i ? " " : "",
				       choice->names[i]);
		}
		show(context, &(struct tool_shown){
				      .name = option->name,
				      .argument = option->argument,
				      .help = option->help,
				      .values = values[0] ? values : NULL,
				      .positional = option->kind == TOOL_DEVICES &&
						    option == positional_option(command->options),
				      .devices = option->kind == TOOL_DEVICES,
			      });
	}
}

void tool_print_help(const struct tool_command *command, FILE *out)
{
	int column = 0;

	(void)fprintf(out, "spillway %s:%n ", command->name, &column);
	print_words(command->summary, (size_t)column + 1, 4, out);
	(void)fprintf(out, "\nusage: spillway %s%n ", command->name, &column);
	print_words(command->synopsis, (size_t)column + 1, (size_t)column, out);
	(void)fprintf(out, "\n%s\n", command->description);
	if (command->verbs)
		print_verbs(command, out);
	if (command->print_options)
		command->print_options(out);
	for (const struct tool_option *option = command->options; option && option->name; option++)
		tool_print_option(option->name, option->argument, option->help, out);
	tool_print_option("help", NULL, "show this help", out);
	(void)fprintf(out, "\nExamples:\n%s", command->examples);
}
