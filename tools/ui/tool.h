/* SPDX-License-Identifier: MIT */
/* tools/ui/tool.h - what all subcommands share: struct tool_command, options, output, exit codes */
#ifndef SPW_TOOLS_UI_TOOL_H
#define SPW_TOOLS_UI_TOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include <spillway/format.h>
#include <spillway/status.h>
#include <spillway/wear.h>

enum tool_exit {
	TOOL_GO_ON = -1,
	TOOL_DONE = 0,
	TOOL_FAILED = 1,
	TOOL_USAGE = 2,
	/* for safety: a device is in use, has other data, is zoned, or the user did not agree */
	TOOL_REFUSED = 3,
	TOOL_INTERRUPTED = 130, /* 128 + SIGINT, after the summary of what was done */
};

struct tool_option;

/* An option as completion shows it. */
struct tool_shown {
	const char *name;
	const char *argument; /* "FILE"; NULL for flags */
	const char *help;
	const char *values; /* the possible values, separated by blanks, if they are few; or NULL */
	bool positional;    /* values may be given without the option's name */
	bool devices;       /* several names, separated by commas */
};

typedef void tool_show(void *context, const struct tool_shown *option);

struct tool_command {
	const char *name;
	const char *summary;  /* one line of the global help */
	const char *synopsis; /* "--devices A,B [--json]" */
	const char *description;
	const char *examples;
	int (*action)(const struct tool_command *command); /* called after the options are parsed */
	const char *none_named; /* the usage error if no device is named; NULL: none is needed */
	/* instead of the action: parses its own options; argv[0] is the subcommand */
	int (*run)(const struct tool_command *command, int argc, char **argv);
	/* instead of action and run: commands such as "state list", ended by a NULL name */
	const struct tool_command *verbs;
	/* ended by a NULL name; options point to variables of the command */
	const struct tool_option *options;
	/* for a command whose options are not in that table */
	void (*print_options)(FILE *out);
	void (*each_option)(tool_show *show, void *context);
	/* additional errors that this command counts as refusals, ended by 0; or NULL */
	const int *refusals;
	/* suggested only for a close misspelling, since it destroys the contents of drives */
	bool destructive;
};

extern const struct tool_command command_probe, command_format, command_info, command_check,
	command_wipe, command_bind, command_unbind, command_bench, command_tune, command_top,
	command_export, command_revive, command_state, command_plan, command_replay, command_run,
	command_report, command_completion, command_grant, command_revoke, command_replace,
	command_add;

/* The commands that completion scripts know, ended by NULL; set before a command runs. */
extern const struct tool_command *const *tool_completed;

void tool_print_help(const struct tool_command *command, FILE *out);

/* ---- Options --------------------------------------------------------------------------------- */

struct tool_devices {
	const char **paths;
	unsigned count;
};

enum tool_option_kind {
	TOOL_FLAG,   /* bool */
	TOOL_COUNT,  /* uint32_t */
	TOOL_SIZE,   /* uint64_t, bytes */
	TOOL_NUMBER, /* struct tool_number */
	TOOL_CHOICE, /* struct tool_choice */
	TOOL_TEXT,   /* const char * */
	/* struct tool_devices: separated by commas (\, is one in a name), positional, repeatable */
	TOOL_DEVICES,
};

struct tool_number {
	double value, least, most;
};

struct tool_choice {
	unsigned value;       /* index into names */
	const char *names[8]; /* ended by NULL */
};

struct tool_option {
	const char *name; /* "": its values are given without a name only */
	enum tool_option_kind kind;
	void *value;
	const char *argument; /* shown in the help, as "SIZE"; NULL for flags */
	const char *help;
};

/* Set the options' values; failures are printed. Return: TOOL_GO_ON, else an exit code. */
int tool_options_parse(const struct tool_command *command, int argc, char **argv);
/* Call @show for each option of the command but --help. */
void tool_each_option(const struct tool_command *command, tool_show *show, void *context);
/* The name of a verb: "list" for "state list". */
const char *tool_verb_name(const struct tool_command *verb);
/* Print "  LEFT   HELP": the help begins after @width columns, and its other lines do too. */
void tool_print_entry(const char *left, size_t width, const char *help, FILE *out);
void tool_print_option(const char *name, const char *argument, const char *help, FILE *out);

/* Whether the command line parsed last has an option other than @names (NULL-terminated). */
bool tool_gave_other_than(const struct tool_command *command, const char *const names[]);

/* Refuse a size or rate in bytes below @least: most likely a number whose unit was forgotten. */
int tool_too_small(const struct tool_command *command, const char *name, uint64_t value,
		   const char *per, uint64_t least);

/* Parse "1GB,2GB". Return: how many; 0: not 1 to @most sizes above 0 and up to 1 PiB. */
unsigned tool_sizes_parse(const char *text, uint64_t sizes[], unsigned most);

/* Parse the options, run the command, free the options' values. Return: the exit code. */
int tool_run(const struct tool_command *command, int argc, char **argv);

extern const char tool_no_drives[], tool_no_controllers[]; /* for .none_named */
#define TOOL_ALL_DRIVES "all drives of the store, in any order; \\, is a comma in a name"

/* A usage error found by the command: printed with the hint to --help. Return: TOOL_USAGE. */
int tool_usage_error(const struct tool_command *command, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* The one of @names (NULL-ended) that begins with @typed, or has few wrong letters; or NULL. */
const char *tool_nearest(const char *typed, const char *const names[]);

/* Whether @typed is @name with one error: a letter wrong, missing or added, or two exchanged. */
bool tool_is_misspelt(const char *typed, const char *name);

/* ---- Output ---------------------------------------------------------------------------------- */

struct tool_table; /* rows of text, columns as wide as their widest cell */

/* Make a table. @titles: of the columns, as "NAME|>SIZE"; > aligns a column to the right. */
struct tool_table *tool_table_new(const char *titles);
/* Add a row: a text for each column. */
#define tool_table_row(table, ...) tool_table_add(table, (const char *const[]){__VA_ARGS__, NULL})
void tool_table_add(struct tool_table *table, const char *const cells[]);
/* Print it, unless @out is NULL, and free it. */
void tool_table_end(struct tool_table *table, FILE *out);

/* Format a short text, in memory of the enclosing block. */
#define TOOL_SHORT(...) tool_format((char[64]){0}, 64, __VA_ARGS__)
const char *tool_format(char *buf, size_t len, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* @text, or "-" if it is empty */
const char *tool_or_dash(const char *text);

/* A path in at most @width characters; the middle of a longer one is replaced by "...". */
#define TOOL_SHORT_PATH(path) tool_short_path((char[64]){0}, path, 36)
const char *tool_short_path(char buf[64], const char *path, unsigned width);

/* Print untrusted @text: control characters do not reach the terminal. */
void tool_print_text(const char *text, FILE *out);

/* A JSON string of untrusted @text: bytes that are not UTF-8 become question marks. */
json_t *tool_json_text(const char *text);

/* Replace the previous line on the terminal, cut to its width, if standard error is one. */
void tool_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void tool_progress_end(void);

/* Print @document (stolen). Return: TOOL_DONE, or TOOL_FAILED: it could not be written. */
int tool_print_json(json_t *document);

/* Whether @path can be written, for use before measuring. Leaves no file. Return: 0; -errno */
int tool_output_check(const char *path);

/* Create or replace a file. @what: its name in messages, as "the chart". Return: 0; -errno */
int tool_output_write(const char *path, const char *what, void (*write)(void *context, FILE *out),
		      void *context);

/* Return: TOOL_REFUSED for errors that protect data, as in use, not empty; else TOOL_FAILED. */
int tool_exit_code(const struct tool_command *command, int error);

/* Report a failure, from spw_last_error(). Return: the exit code for @error. */
int tool_fail(const struct tool_command *command, int error, bool json);

/* Ask on the terminal. Return: whether the answer begins with @agreed, in upper or lower case. */
bool tool_ask(const char *question, const char *agreed);

/* Report that the user did not agree. Return: TOOL_REFUSED. */
int tool_refuse(const struct tool_command *command, const char *text, bool json);

/*
 * On a terminal, ask before unknown data on a drive is lost, and set *erase. Elsewhere the library
 * refuses. Return: TOOL_DONE; TOOL_REFUSED.
 */
int tool_consent(const struct tool_command *command, const char *path, bool *erase, bool json);

/*
 * The drives of a store that has got @path: the devices without the one of index @but (-1: none)
 * and without other names of @path, then @path. @paths: room for one more than there are devices.
 */
struct tool_devices tool_devices_with(const struct tool_devices *devices, int32_t but,
				      const char *path, const char *paths[]);

/* A log that goes to standard error: warnings and errors, with @verbose everything. */
struct spw_log tool_log(bool verbose);

json_t *tool_json_geometry(const struct spw_geometry *geometry);
json_t *tool_json_store(const struct spw_store_info *info);
json_t *tool_json_drive(const struct spw_drive_info *drive);
void tool_print_store(const struct spw_store_info *info, FILE *out);
/* Call spw_check() for these devices. *@drives: for free(), even after a failure. */
int tool_check_store(const struct tool_devices *devices, struct spw_store_info *info,
		     struct spw_drive_info **drives);
void tool_print_drives(const struct spw_drive_info *drives, unsigned count, FILE *out);

/* Wear and health of the NVMe devices, below a blank line; nothing when there is none. */
void tool_print_nvme(const char *const paths[], unsigned count, FILE *out);
/* Wear, health, identity and features: null if not NVMe, {"error": ...} if the query fails. */
json_t *tool_json_nvme(const char *path);

/* The open partitions whose status this user may read, at one moment. */
#define TOOL_PARTITIONS_MAX 64

struct tool_snapshot {
	uint64_t time_ns;
	unsigned count;
	struct spw_status *partitions; /* TOOL_PARTITIONS_MAX of them */
};

/* Read the status of all open partitions. Return: 0; -errno, with a message. */
int tool_snapshot_take(struct tool_snapshot *snapshot);

/* "1.2 TB/day"; "3.4 years" */
#define TOOL_PER_DAY(bytes_per_day) tool_per_day((char[64]){0}, 64, bytes_per_day)
#define TOOL_SPAN(seconds)          tool_span((char[64]){0}, 64, seconds)
const char *tool_per_day(char *buf, size_t len, double bytes_per_day);
const char *tool_span(char *buf, size_t len, double seconds);

/* The wear of an open store's drive, at the rate since it was opened. @rated: as in spw_wear() */
void tool_wear_of(const struct spw_status *status, uint32_t index, double rated,
		  struct spw_wear *wear);
/* How long the drive lasts, or "unknown". */
#define TOOL_WEAR_YEARS(wear) tool_wear_years((char[64]){0}, 64, wear)
const char *tool_wear_years(char *buf, size_t len, const struct spw_wear *wear);
json_t *tool_json_wear(const struct spw_wear *wear);

/*
 * Replace this process by Python (python3 or SPILLWAY_PYTHON), which calls main(@words) of a module
 * of the package; its result is the exit code. @words end with NULL. Returns only after a failure,
 * which was printed.
 */
void tool_python(const char *command, const char *module, const char *const words[]);

/* Find the controllers of @paths, or all if none. @controllers: for free(). Return: how many. */
struct spw_vfio_probe_info;
int tool_find_controllers(const char *const paths[], unsigned count,
			  struct spw_vfio_probe_info **controllers);

/* Call @act for each controller, and print them as JSON or by @print. Return: the exit code. */
int tool_each_controller(const struct tool_command *command, const struct tool_devices *named,
			 bool as_json,
			 int (*act)(const char *address, struct spw_vfio_probe_info *controller),
			 void (*print)(const struct spw_vfio_probe_info *controller));

/*
 * Print, after a blank line, whether a process can drive the controllers, and what prevents it.
 * Prints nothing if there are none.
 */
void tool_print_controllers(const struct spw_vfio_probe_info *controllers, int count, FILE *out);
json_t *tool_json_controllers(const struct spw_vfio_probe_info *controllers, int count);

#endif
