/* SPDX-License-Identifier: MIT */
/* tools/cmd_wipe.c - spillway wipe: remove a store from its drives */
#include "tools/ui/tool.h"

#include <errno.h>
#include <unistd.h>

#include "util/util.h"

static struct tool_devices devices;
static bool yes, erase, json, verbose;

static const struct tool_option options[] = {
	{"devices", TOOL_DEVICES, &devices, "A,B,...",
	 "the drives to free; \\, is a comma in a name"},
	{"yes", TOOL_FLAG, &yes, NULL, "do not ask; needed without a terminal"},
	{"erase", TOOL_FLAG, &erase, NULL, "also if the store holds a commit"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{"verbose", TOOL_FLAG, &verbose, NULL, "say more on standard error"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

static bool ask(void)
{
	(void)fprintf(stderr, "Everything in the store on these drives will be lost:\n");
	for (unsigned i = 0; i < devices.count; i++) {
		struct spw_probe_info info = {.size = sizeof(info)};

		if (spw_probe(devices.paths[i], &info) == 0)
			(void)fprintf(stderr, "  %s  %s\n", devices.paths[i], info.holds);
	}
	return tool_ask("Wipe? Type yes: ", "yes\n");
}

/* Return: TOOL_DONE, or TOOL_REFUSED with the remedy printed. */
static int consent(const struct tool_command *command)
{
	const char *text =
		"wiping destroys the store, and there is no terminal to ask: add --yes to confirm";

	if (yes)
		return TOOL_DONE;
	if (isatty(STDIN_FILENO) && isatty(STDERR_FILENO)) {
		if (ask())
			return TOOL_DONE;
		text = "nothing was wiped";
	}
	return tool_refuse(command, text, json);
}

static int wipe(const struct tool_command *command)
{
	struct spw_wipe_opts opts;
	int code = consent(command);
	int result;

	if (code != TOOL_DONE)
		return code;
	spw_wipe_opts_init(&opts, sizeof(opts));
	opts.erase = erase;
	opts.log = tool_log(verbose);
	result = spw_wipe(devices.paths, devices.count, &opts);
	if (result < 0)
		return tool_fail(command, result, json);
	if (json)
		return tool_print_json(json_pack("{s:i}", "drives_wiped", (int)devices.count));
	(void)printf("%u drive%s wiped\n", devices.count, devices.count == 1 ? "" : "s");
	return TOOL_DONE;
}

/* Errors that count as refusals: a drive that may not belong to the store may hold other data. */
static const int refusals[] = {EMEDIUMTYPE, EUCLEAN, EPROTONOSUPPORT, 0};

const struct tool_command command_wipe = {
	.name = "wipe",
	.summary = "remove a store from its drives",
	.synopsis = "--devices A,B,... [--yes] [--erase] [--json]",
	.description = "Overwrites both superblock copies of every drive and discards the data\n"
		       "area if the drive can. Asks on a terminal; otherwise --yes is needed.\n"
		       "Refuses, with exit status 3, a drive without a spillway store or in use,\n"
		       "and, without --erase, a store with committed training state.\n",
	.examples = "  spillway wipe --devices /dev/nvme1n1,/dev/nvme2n1\n"
		    "  spillway wipe --devices a.img,b.img --yes\n",
	.action = wipe,
	.none_named = tool_no_drives,
	.options = options,
	.refusals = refusals,
	.destructive = true,
};
