/* SPDX-License-Identifier: MIT */
/* tools/cmd_format.c - spillway format: make a new, empty store */
#include "tools/ui/tool.h"

#include <errno.h>
#include <unistd.h>

#include "util/util.h"

static struct tool_devices devices;
static uint32_t partitions = 1;
static uint64_t chunk_bytes = 1u << 20;
static bool force, erase, json, verbose;

static const struct tool_option options[] = {
	{"devices", TOOL_DEVICES, &devices, "A,B,...",
	 "block devices or existing plain files; \\, is a comma in a name"},
	{"partitions", TOOL_COUNT, &partitions, "N",
	 "number of equal parts, one per process that will use the store (default 1)"},
	{"chunk", TOOL_SIZE, &chunk_bytes, "SIZE",
	 "unit of striping, a power of two from 64k to 64m (default 1m)"},
	{"force", TOOL_FLAG, &force, NULL,
	 "overwrite stores and signatures, but never a drive in use"},
	{"erase", TOOL_FLAG, &erase, NULL,
	 "overwrite unknown data (asked on a terminal), and commits of a store"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{"verbose", TOOL_FLAG, &verbose, NULL, "say more on standard error"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

/* Name the data that will be lost. Return: whether a drive has data that needs --erase. */
static bool announce(void)
{
	bool unknown = false;

	(void)fprintf(stderr, "Making a store on %u drive%s; what they hold will be lost:\n",
		      devices.count, devices.count == 1 ? "" : "s");
	for (unsigned i = 0; i < devices.count; i++) {
		struct spw_probe_info info = {.size = sizeof(info)};

		if (spw_probe(devices.paths[i], &info) != 0)
			continue;
		(void)fputs("  ", stderr);
		tool_print_text(devices.paths[i], stderr);
		(void)fprintf(stderr, "  %s  %s\n", SPW_SIZE_TEXT(info.geometry.size_bytes),
			      info.holds[0] ? info.holds : "unreadable");
		if (!info.unknown_data || info.error != -EEXIST || erase)
			continue;
		(void)fprintf(stderr, "%s\n", info.reason);
		unknown = true;
	}
	return unknown;
}

/* On a terminal, ask before destroying data. Elsewhere spw_format() refuses. */
static int consent(const struct tool_command *command)
{
	if (!isatty(STDERR_FILENO) || !announce() || !isatty(STDIN_FILENO))
		return TOOL_DONE;
	erase = tool_ask("Erase it? [y/N] ", "y");
	if (erase)
		return TOOL_DONE;
	return tool_refuse(command, "nothing was written", json);
}

/* Print a warning as every command does, and collect it for --json. */
static void note_warning(void *context, enum spw_log_level level, const char *message)
{
	json_t *warnings = context;
	struct spw_log log = tool_log(verbose);

	log.write(log.context, level, message);
	if (level == SPW_LOG_WARNING)
		(void)json_array_append_new(warnings, tool_json_text(message));
}

static int format_store(const struct tool_command *command)
{
	struct spw_store_info info = {.size = sizeof(info)};
	struct spw_format_opts opts;
	json_t *warnings, *document;
	int code, result;

	if (partitions == 0 || partitions > SPW_PARTITIONS_MAX)
		return tool_usage_error(command, "--partitions=%u: 1 to %u", partitions,
					SPW_PARTITIONS_MAX);
	if (!spw_is_power_of_two(chunk_bytes) || chunk_bytes < SPW_CHUNK_BYTES_MIN ||
	    chunk_bytes > SPW_CHUNK_BYTES_MAX)
		return tool_usage_error(
			command, "--chunk: %s is not a chunk size: a power of two from %s to %s",
			SPW_SIZE_TEXT(chunk_bytes), SPW_SIZE_TEXT(SPW_CHUNK_BYTES_MIN),
			SPW_SIZE_TEXT(SPW_CHUNK_BYTES_MAX));
	spw_format_opts_init(&opts, sizeof(opts));
	opts.partitions = partitions;
	opts.chunk_bytes = chunk_bytes;
	code = consent(command);
	if (code != TOOL_DONE)
		return code;
	opts.force = force;
	opts.erase = erase;
	warnings = json_array();
	opts.log = (struct spw_log){.write = note_warning, .context = warnings};
	result = spw_format(devices.paths, devices.count, &opts, &info);
	if (result < 0) {
		code = tool_fail(command, result, json);
	} else if (json) {
		document = tool_json_store(&info);
		(void)json_object_set(document, "warnings", warnings);
		code = tool_print_json(document);
	} else {
		tool_print_store(&info, stdout);
	}
	json_decref(warnings);
	return code;
}

const struct tool_command command_format = {
	.name = "format",
	.summary = "create an empty store on one or more drives",
	.synopsis =
		"--devices A,B,... [--partitions N] [--chunk SIZE] [--force] [--erase] [--json]",
	.description = "Writes a superblock to each drive, after checking all drives. A drive\n"
		       "that is mounted, held, swapped on or in use by a store is always\n"
		       "refused; one with a partition table, a file system or another store is\n"
		       "refused without --force; one with unknown data (the first or last MiB is\n"
		       "not all zeros) without --erase, or a yes on a terminal after showing\n"
		       "what is there. A store with committed training state needs both. A\n"
		       "refusal writes nothing and exits with 3.\n",
	.examples =
		"  spillway format --devices /dev/nvme1n1,/dev/nvme2n1,/dev/nvme3n1,/dev/nvme4n1\n"
		"  spillway format --devices /dev/nvme1n1,/dev/nvme2n1 --partitions 8     # eight "
		"ranks share the drives\n"
		"  fallocate -l 1G a.img; fallocate -l 1G b.img    # without drives to spare\n"
		"  spillway format --devices a.img,b.img\n",
	.action = format_store,
	.none_named = tool_no_drives,
	.options = options,
	.destructive = true,
};
