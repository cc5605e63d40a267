/* SPDX-License-Identifier: MIT */
/* tools/cmd_format.c - spillway format: make a new, empty store */
#include "tools/tool.h"

#include <unistd.h>

#include "util/util.h"

static struct tool_devices devices;
static uint32_t partitions = 1;
static uint64_t chunk_bytes = 1u << 20;
static bool force, json, verbose;

static const struct tool_option options[] = {
	{"devices", TOOL_DEVICES, &devices, "A,B,...", "the drives: block devices or existing plain files"},
	{"partitions", TOOL_COUNT, &partitions, "N",
	 "equal parts, one per process that will use the store (default 1)"},
	{"chunk", TOOL_SIZE, &chunk_bytes, "SIZE", "unit of striping, a power of two from 64k to 64m (default 1m)"},
	{"force", TOOL_FLAG, &force, NULL, "overwrite what the drives carry; a drive in use is refused even so"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{"verbose", TOOL_FLAG, &verbose, NULL, "say more on standard error"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

/* Somebody watches: tell which drives are about to lose what they hold. */
static void announce(void)
{
	char size[32];

	if (!isatty(STDERR_FILENO))
		return;
	(void)fprintf(stderr, "Making a store on %u drive%s; what they hold will be lost:\n", devices.count,
		      devices.count == 1 ? "" : "s");
	for (unsigned i = 0; i < devices.count; i++) {
		struct spw_probe_info info = {.size = sizeof(info)};

		if (spw_probe(devices.paths[i], &info) == 0)
			(void)fprintf(stderr, "  %s  %s  %s\n", devices.paths[i],
				      spw_size_format(info.geometry.size_bytes, size, sizeof(size)),
				      info.holds[0] ? info.holds : "unreadable");
	}
}

static int format_store(const struct tool_command *command)
{
	struct spw_store_info info = {.size = sizeof(info)};
	struct spw_format_opts opts;
	int result;

	if (partitions == 0 || chunk_bytes == 0)
		return tool_usage_error(command, "--partitions and --chunk must be above 0");
	spw_format_opts_init(&opts, sizeof(opts));
	opts.partitions = partitions;
	opts.chunk_bytes = chunk_bytes;
	opts.force = force;
	opts.log = tool_log(verbose);
	announce();
	result = spw_format(devices.paths, devices.count, &opts, &info);
	if (result < 0)
		return tool_fail(command, result, json);
	if (json)
		return tool_print_json(tool_json_store(&info));
	tool_print_store(&info, stdout);
	return TOOL_DONE;
}

static int run(const struct tool_command *command, int argc, char **argv)
{
	return tool_run_on_drives(command, argc, argv, &devices, format_store);
}

const struct tool_command command_format = {
	.name = "format",
	.summary = "make a new, empty store on one or more drives",
	.synopsis = "--devices A,B,... [--partitions N] [--chunk SIZE] [--force] [--json]",
	.description =
		"Writes a superblock to each drive. All drives are checked before the first is written: one that is "
		"mounted,\n"
		"held, swapped on or in use by a store is refused always, one that carries a partition table, a file "
		"system\n"
		"or another store is refused unless --force is given. A refusal writes nothing and exits with 3.\n",
	.examples = "  spillway format --devices /dev/nvme1n1,/dev/nvme2n1,/dev/nvme3n1,/dev/nvme4n1\n"
		    "  spillway format --devices /dev/nvme1n1,/dev/nvme2n1 --partitions 8     # eight ranks share the "
		    "drives\n"
		    "  truncate -s 1G a.img b.img && spillway format --devices a.img,b.img    # no drives to spare\n",
	.run = run,
	.options = options,
	.destructive = true,
};
