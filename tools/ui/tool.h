/* SPDX-License-Identifier: MIT */
/*
 * tools/ui/tool.h - what the subcommands of spillway share: their table, options, output, exit
 * codes
 */
#ifndef SPW_TOOLS_UI_TOOL_H
#define SPW_TOOLS_UI_TOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include <spillway/format.h>

enum tool_exit {
	TOOL_DONE = 0,
	TOOL_FAILED = 1,
	TOOL_USAGE = 2,
	/* for safety: a device is in use, carries something, is zoned, or consent is missing */
	TOOL_REFUSED = 3,
	TOOL_INTERRUPTED = 130, /* 128 + SIGINT, after the summary of what was done */
};

struct tool_option;

struct tool_command {
	const char *name;
	const char *summary;  /* one line of the global help */
	const char *synopsis; /* "--devices A,B [--json]" */
	const char *description;
	const char *examples;
	/* argv[0] is the subcommand */
	int (*run)(const struct tool_command *command, int argc, char **argv);
	/* ended by a NULL name; they point at the command's own variables */
	const struct tool_option *options;
	void (*print_options)(FILE *out); /* for a command whose options are not in that table */
	/* errors that here are refusals for safety too, ended by 0; or NULL */
	const int *refusals;
	/*
	 * takes drives away from what they were for: proposed only to somebody who wrote nearly
	 * that
	 */
	bool destructive;
};

extern const struct tool_command command_probe, command_format, command_info, command_check,
	command_wipe, command_bind, command_unbind, command_bench, command_tune, command_top,
	command_revive, command_plan, command_replay, command_run;

void tool_print_help(const struct tool_command *command, FILE *out);

/* ---- Options --------------------------------------------------------------------------------- */

struct tool_devices {
	const char **paths;
	unsigned count;
};

enum tool_option_kind {
	TOOL_FLAG,  /* bool */
	TOOL_COUNT, /* uint32_t */
	TOOL_SIZE,  /* uint64_t, bytes */
	TOOL_TEXT,  /* const char * */
	/*
	 * struct tool_devices: comma separated (\, is a comma in a name), repeatable, and every
	 * argument that is not an option
	 */
	TOOL_DEVICES,
};

struct tool_option {
	const char *name;
	enum tool_option_kind kind;
	void *value;
	const char *argument; /* in the help: "SIZE"; NULL for flags */
	const char *help;
};

/*
 * Fill the values of the command's options from the arguments. On failure the message and a hint
 * have been printed. Return: 0; -EINVAL wrong usage; -ENOMEM; 1 --help was given and has been
 * printed.
 */
int tool_options_parse(const struct tool_command *command, int argc, char **argv);
void tool_options_print(const struct tool_option *options, FILE *out);
void tool_devices_free(struct tool_devices *devices);

/* What to return from a command after tool_options_parse() gave @result, not 0. */
int tool_usage_exit(int result);

/*
 * The run of a command that works on drives: parse, insist on at least one, do @action, free.
 * Return: the exit code.
 */
int tool_run_on_drives(const struct tool_command *command, int argc, char **argv,
		       struct tool_devices *devices,
		       int (*action)(const struct tool_command *command));

/* The same for a command on NVMe controllers, which are named by their PCI addresses. */
int tool_run_on_controllers(const struct tool_command *command, int argc, char **argv,
			    struct tool_devices *devices,
			    int (*action)(const struct tool_command *command));

/*
 * A usage error found by the command itself: prints it with the hint to --help. Return: TOOL_USAGE.
 */
int tool_usage_error(const struct tool_command *command, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * The one of @names (ended by NULL) that somebody who typed @typed most likely meant, or NULL: it
 * begins so, or at most a third of the letters are wrong.
 */
const char *tool_nearest(const char *typed, const char *const names[]);

/*
 * @typed is @name but for one slip: a letter wrong, missing or too many, or two exchanged. The
 * first one is right.
 */
bool tool_is_misspelt(const char *typed, const char *name);

/* ---- Output ---------------------------------------------------------------------------------- */

struct tool_table; /* rows of text, columns as wide as their widest cell */

struct tool_column {
	const char *title;
	bool right; /* align to the right: numbers */
};

struct tool_table *tool_table_new(const struct tool_column *columns, unsigned count);
void tool_table_cell(struct tool_table *table, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void tool_table_print(const struct tool_table *table, FILE *out);
void tool_table_free(struct tool_table *table);

/* Print @text that came from elsewhere: nothing in it does anything to a terminal. */
void tool_print_text(const char *text, FILE *out);

/*
 * A JSON string of @text, which may come from a device: bytes that are no UTF-8 become question
 * marks.
 */
json_t *tool_json_text(const char *text);

/*
 * Print @document (stolen) to standard output. Return: TOOL_DONE, or TOOL_FAILED when it could not
 * be written.
 */
int tool_print_json(json_t *document);

/*
 * TOOL_REFUSED: to be safe it was not done: a device is in use, carries something, names another
 * one by now; or TOOL_FAILED.
 */
int tool_exit_code(const struct tool_command *command, int error);

/* Report a failure whose words are in spw_last_error(). Return: the exit code for @error. */
int tool_fail(const struct tool_command *command, int error, bool json);

/* Report that somebody did not agree. Return: TOOL_REFUSED. */
int tool_refuse(const struct tool_command *command, const char *text, bool json);

/* A log that goes to standard error: warnings and errors, with @verbose everything. */
struct spw_log tool_log(bool verbose);

json_t *tool_json_geometry(const struct spw_geometry *geometry);
json_t *tool_json_store(const struct spw_store_info *info);
json_t *tool_json_drive(const struct spw_drive_info *drive);
void tool_print_store(const struct spw_store_info *info, FILE *out);
void tool_print_drives(const struct spw_drive_info *drives, unsigned count, FILE *out);

/*
 * Wear and health of those of the devices that are NVMe, below a blank line; nothing when none is.
 */
void tool_print_nvme(const char *const paths[], unsigned count, FILE *out);
/*
 * The same with identity and abilities: null of what is not NVMe, {"error": ...} when the drive
 * cannot be asked.
 */
json_t *tool_json_nvme(const char *path);

/*
 * The NVMe controllers that carry one of the paths, or all of the machine without paths.
 * @controllers is for free(). Return: how many; what cannot be found out is left out.
 */
struct spw_vfio_probe_info;
int tool_find_controllers(const char *const paths[], unsigned count,
			  struct spw_vfio_probe_info **controllers);

/*
 * Before anything is done to one of them: is each the address of an NVMe controller? If not, say
 * so. Return: TOOL_DONE; TOOL_USAGE it is no address at all; another exit code.
 */
int tool_check_controllers(const struct tool_command *command, const struct tool_devices *named,
			   bool as_json);

/*
 * Whether a process can drive them itself and what stands in the way, below a blank line; nothing
 * when there is none.
 */
void tool_print_controllers(const struct spw_vfio_probe_info *controllers, int count, FILE *out);
json_t *tool_json_controller(const struct spw_vfio_probe_info *controller);

#endif
