/* SPDX-License-Identifier: MIT */
/* tools/cmd_state.c - spillway state: list, export or drop the training state in a store */
#include "tools/ui/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <spillway/state.h>

#include "tools/state_export.h"
#include "util/util.h"

#define PARTITION_NONE  UINT32_MAX
#define ARENA_BYTES     (16u << 20)
#define DESCRIPTION_MAX 48

static struct tool_devices devices;
static uint32_t partition = PARTITION_NONE, step;
static bool yes, records, json, verbose;
static const char *to;
static struct tool_choice format = {.names = {"records", "safetensors", "torch"}};
static struct tool_choice what = {.names = {"parameters", "masters", "all"}};

/* ---- Opening ---- */

static int open_store(uint32_t which, uint64_t commit_number, bool read_only,
		      struct spw_store **store)
{
	struct spw_store_opts opts;

	spw_store_opts_init(&opts, sizeof(opts));
	opts.partition = which;
	opts.arena_bytes = ARENA_BYTES;
	opts.no_hugetlb = true;
	opts.commit_number = commit_number;
	opts.read_only = read_only;
	opts.log = tool_log(verbose);
	return spw_store_open(devices.paths, devices.count, &opts, store);
}

/* Count the store's partitions. Return: 0; -errno with a message. */
static int count_partitions(uint32_t *count)
{
	struct spw_store_info info = {.size = sizeof(info)};
	int rc = spw_check(devices.paths, devices.count, &info, NULL);

	*count = info.partitions;
	/* With drives missing, the state may still be complete, or at least be listed. */
	if (*count > 0)
		rc = 0;
	if (rc == 0 && partition != PARTITION_NONE && partition >= info.partitions)
		return spw_error(-EINVAL, "partition %u does not exist: the store has %u, from 0",
				 partition, info.partitions);
	return rc;
}

/* ---- list ---- */

struct listing {
	struct spw_store *store;
	bool missing;  /* drives of the store are missing */
	json_t *array; /* NULL: print a table */
	struct tool_table *table;
	json_t *records;
	unsigned lost; /* number of lost records */
	bool found;
};

/* The shape as JSON if it is text; null otherwise. */
static json_t *json_shape(const void *shape, size_t len)
{
	json_t *text = json_stringn(shape, len);

	return text ? text : json_null();
}

/*
 * Whether an object is lost. Reading its first byte fails at once then; otherwise it reads a chunk,
 * so this is done only if drives are missing.
 */
static bool is_lost(const struct listing *listing, spw_object object)
{
	struct spw_request *request;
	uint8_t byte;

	return listing->missing && object.value &&
	       spw_store_get(listing->store, object, 0, &byte, 1, SPW_URGENT_READ, NULL,
			     &request) == 0 &&
	       spw_request_wait(request) == -ENXIO;
}

static int add_record(void *context, const char *name, uint64_t len, const void *shape,
		      size_t shape_len, spw_object object)
{
	struct listing *listing = context;
	bool lost = is_lost(listing, object);

	listing->lost += lost;
	if (listing->array)
		(void)json_array_append_new(
			listing->records,
			json_pack("{s:o, s:I, s:b, s:b, s:o}", "name", tool_json_text(name),
				  "bytes", (json_int_t)len, "stored", object.value != 0, "lost",
				  lost, "shape", json_shape(shape, shape_len)));
	else if (records || lost)
		tool_table_row(listing->table, "", "", name, TOOL_SHORT("%s", SPW_SIZE_TEXT(len)),
			       lost           ? "lost: on a drive that is missing"
			       : object.value ? ""
					      : "zeros");
	return 0;
}

static int add_bytes(void *context, const char *name, uint64_t len, const void *shape,
		     size_t shape_len, spw_object object)
{
	(void)name;
	(void)shape;
	(void)shape_len;
	(void)object;
	*(uint64_t *)context += len;
	return 0;
}

/* Describe a partition's commit. Only the owner of an open partition knows its records. */
static void describe(uint32_t which, const struct spw_commit_info *info, struct spw_store *store,
		     struct listing *listing)
{
	int count = store ? spw_state_committed_count(store) : -EBUSY;
	char note[DESCRIPTION_MAX] = "";
	uint64_t bytes = 0;

	if (!store)
		(void)snprintf(note, sizeof(note), "open in another process");
	else if (count < 0)
		(void)snprintf(note, sizeof(note), "no records: committed by a program itself");
	else if (info->has_previous)
		(void)snprintf(note, sizeof(note), "step %llu is kept, too",
			       (unsigned long long)info->previous);
	listing->found = true;
	listing->store = store;
	listing->records = listing->array ? json_array() : NULL;
	if (count >= 0)
		(void)spw_state_committed(store, add_bytes, &bytes);
	if (!listing->array)
		tool_table_row(listing->table, TOOL_SHORT("%u", which),
			       TOOL_SHORT("%llu", (unsigned long long)info->number),
			       count < 0 ? "-" : TOOL_SHORT("%d records", count),
			       count < 0 ? "-" : SPW_SIZE_TEXT(bytes), note);
	if (store) {
		struct spw_store_stats stats;

		spw_store_stats(store, &stats, sizeof(stats));
		listing->missing = stats.drives_missing > 0;
	}
	if (count >= 0 && (listing->array || records || listing->missing))
		(void)spw_state_committed(store, add_record, listing);
	if (!listing->array)
		return;
	(void)json_array_append_new(listing->array,
				    json_pack("{s:i, s:I, s:o, s:o, s:b}", "partition", (int)which,
					      "step", (json_int_t)info->number, "previous",
					      info->has_previous
						      ? json_integer((json_int_t)info->previous)
						      : json_null(),
					      "records", listing->records, "open", !store));
}

/* Return: 0, also if nothing is committed; -errno. */
static int list_partition(uint32_t which, struct listing *listing)
{
	struct spw_commit_info info = {.size = sizeof(info)};
	struct spw_store *store = NULL;
	int rc = spw_committed(devices.paths, devices.count, which, &info, sizeof(info));

	if (rc)
		return rc == -ENODATA ? 0 : rc;
	rc = open_store(which, SPW_COMMIT_NEWEST, true, &store);
	if (rc && rc != -EBUSY)
		return rc;
	describe(which, &info, store, listing);
	spw_store_close(store);
	return 0;
}

static int list(const struct tool_command *command)
{
	struct listing listing = {.array = json ? json_array() : NULL};
	uint32_t count;
	int rc = count_partitions(&count);

	listing.table = tool_table_new(">PARTITION|>STEP|HOLDS|>BYTES|");
	for (uint32_t i = 0; rc == 0 && i < count; i++)
		if (partition == PARTITION_NONE || partition == i)
			rc = list_partition(i, &listing);
	tool_table_end(listing.table, rc == 0 && !json && listing.found ? stdout : NULL);
	if (rc) {
		json_decref(listing.array);
		return tool_fail(command, rc, json);
	}
	if (json)
		return tool_print_json(json_pack("{s:o}", "commits", listing.array));
	if (!listing.found)
		(void)printf("nothing is committed\n");
	if (listing.lost > 0)
		(void)printf("%u record%s lost without the drives that are missing\n", listing.lost,
			     listing.lost == 1 ? " is" : "s are");
	return TOOL_DONE;
}

/* ---- export ---- */

/* Choose the named partition, or the only one. */
static int choose_partition(const struct tool_command *command, uint32_t *which)
{
	uint32_t count;
	int rc = count_partitions(&count);

	if (rc)
		return tool_fail(command, rc, json);
	if (partition == PARTITION_NONE && count > 1)
		return tool_usage_error(command,
					"the store has %u partitions: say which, by "
					"--partition",
					count);
	*which = partition == PARTITION_NONE ? 0 : partition;
	return TOOL_GO_ON;
}

enum { FORMAT_RECORDS };

/*
 * Let the Python package write the model's files, of all ranks unless a partition was named. It
 * replaces this process.
 */
static int export_model(void)
{
	const char **words = calloc(devices.count + 16u, sizeof(*words));
	char partition_text[16], step_text[16];
	unsigned count = 0;

	if (!words) {
		(void)fprintf(stderr, "spillway state export: out of memory\n");
		return TOOL_FAILED;
	}
	(void)snprintf(partition_text, sizeof(partition_text), "%u", partition);
	(void)snprintf(step_text, sizeof(step_text), "%u", step);
	words[count++] = "export";
	words[count++] = "--to";
	words[count++] = to;
	words[count++] = "--format";
	words[count++] = format.names[format.value];
	words[count++] = "--what";
	words[count++] = what.names[what.value];
	if (partition != PARTITION_NONE) {
		words[count++] = "--partition";
		words[count++] = partition_text;
	}
	if (step) {
		words[count++] = "--step";
		words[count++] = step_text;
	}
	if (json)
		words[count++] = "--json";
	words[count++] = "--";
	for (unsigned i = 0; i < devices.count; i++)
		words[count++] = devices.paths[i];
	tool_python("spillway state export", "spillway.checkpoint.__main__", words);
	free(words);
	return TOOL_FAILED;
}

static int export_state(const struct tool_command *command)
{
	struct tool_exported exported;
	struct spw_store *store;
	uint32_t which = 0;
	int code, rc;

	if (!to)
		return tool_usage_error(command, "say where to, by --to");
	if (what.value != 0 && format.value == FORMAT_RECORDS)
		return tool_usage_error(command, "--what goes with --format safetensors or torch: "
						 "records are exported as they are");
	if (format.value != FORMAT_RECORDS)
		return export_model();
	code = choose_partition(command, &which);
	if (code != TOOL_GO_ON)
		return code;
	rc = open_store(which, step ? step : SPW_COMMIT_NEWEST, true, &store);
	if (rc == 0)
		rc = tool_state_export(store, to, &exported);
	spw_store_close(store);
	if (rc)
		return tool_fail(command, rc, json);
	if (json)
		return tool_print_json(
			json_pack("{s:I, s:i, s:I}", "step", (json_int_t)exported.step, "records",
				  (int)exported.records, "bytes", (json_int_t)exported.bytes));
	(void)printf("step %llu: %u records, %s, in %s\n", (unsigned long long)exported.step,
		     exported.records, SPW_SIZE_TEXT(exported.bytes), to);
	return TOOL_DONE;
}

/* ---- drop ---- */

static bool agreed(uint32_t which)
{
	struct spw_commit_info info = {.size = sizeof(info)};

	if (spw_committed(devices.paths, devices.count, which, &info, sizeof(info)) == 0)
		(void)fprintf(stderr, "Partition %u holds step %llu.\n", which,
			      (unsigned long long)info.number);
	return tool_ask("Give it up for good? Type yes: ", "yes\n");
}

static int drop(const struct tool_command *command)
{
	struct spw_store *store;
	uint32_t which = 0;
	int rc, code = choose_partition(command, &which);

	if (code != TOOL_GO_ON)
		return code;
	if (!yes && (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO)))
		return tool_refuse(command,
				   "dropping cannot be undone, and there is no terminal to ask: "
				   "add --yes to confirm",
				   json);
	if (!yes && !agreed(which))
		return tool_refuse(command, "nothing was dropped", json);
	rc = open_store(which, SPW_COMMIT_NONE, false, &store);
	spw_store_close(store);
	if (rc)
		return tool_fail(command, rc, json);
	if (json)
		return tool_print_json(json_pack("{s:i}", "partition", (int)which));
	(void)printf("partition %u holds nothing any more\n", which);
	return TOOL_DONE;
}

/* ---- The commands ---- */

static const struct tool_option list_options[] = {
	{"devices", TOOL_DEVICES, &devices, "A,B,...", TOOL_ALL_DRIVES},
	{"partition", TOOL_COUNT, &partition, "N", "of this one only"},
	{"records", TOOL_FLAG, &records, NULL, "each record by name"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{"verbose", TOOL_FLAG, &verbose, NULL, "say more on standard error"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

static const struct tool_option export_options[] = {
	{"devices", TOOL_DEVICES, &devices, "A,B,...", TOOL_ALL_DRIVES},
	{"to", TOOL_TEXT, &to, "PATH", "the folder, or the file, to make; must not exist"},
	{"format", TOOL_CHOICE, &format, "FORMAT",
	 "records: a folder with a file for each (default); safetensors or torch: the model as one "
	 "file, by the Python package"},
	{"what", TOOL_CHOICE, &what, "WHAT",
	 "of a model: its parameters (default), their float32 masters, or all that the optimizer "
	 "keeps, too"},
	{"partition", TOOL_COUNT, &partition, "N", "of this one; needed if there are several"},
	{"step", TOOL_COUNT, &step, "STEP", "which, if the one before is kept, too"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{"verbose", TOOL_FLAG, &verbose, NULL, "say more on standard error"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

static const struct tool_option drop_options[] = {
	{"devices", TOOL_DEVICES, &devices, "A,B,...", TOOL_ALL_DRIVES},
	{"partition", TOOL_COUNT, &partition, "N", "of this one; needed if there are several"},
	{"yes", TOOL_FLAG, &yes, NULL, "do not ask; needed without a terminal"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON"},
	{"verbose", TOOL_FLAG, &verbose, NULL, "say more on standard error"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

static const struct tool_command verbs[] = {
	{
		.name = "state list",
		.summary = "list the committed steps of a store",
		.synopsis = "--devices A,B,... [--partition N] [--records] [--json]",
		.description =
			"For each partition with a commit: the step, the number of records and\n"
			"their bytes. Read-only.\n",
		.examples = "  spillway state list --devices /dev/nvme1n1,/dev/nvme2n1\n"
			    "  spillway state list --devices a.img,b.img --records --json\n",
		.action = list,
		.none_named = tool_no_drives,
		.options = list_options,
	},
	{
		.name = "state export",
		.summary = "write the records of a committed step to files",
		.synopsis = "--devices A,B,... --to PATH [--format FORMAT] [--partition N] "
			    "[--step STEP] [--json]",
		.description =
			"Creates a folder with a file for each record, and index.json: the step,\n"
			"and for each record the file, name, length and description. Every byte\n"
			"is verified. The index is written last: a folder without it is\n"
			"incomplete. Read-only. With --format safetensors or torch it writes one\n"
			"file instead: the model's parameters by name, for other software, whole\n"
			"even if several ranks had them sharded; with --partition the shards of\n"
			"one. That needs the Python package and PyTorch in python3, or in the\n"
			"interpreter of SPILLWAY_PYTHON; python3 -m spillway.checkpoint export\n"
			"has more options.\n",
		.examples = "  spillway state export --devices a.img,b.img --to step\n"
			    "  spillway state export a.img b.img --to model.safetensors --format "
			    "safetensors\n",
		.action = export_state,
		.none_named = tool_no_drives,
		.options = export_options,
	},
	{
		.name = "state drop",
		.summary = "drop a committed step",
		.synopsis = "--devices A,B,... [--partition N] [--yes] [--json]",
		.description =
			"Empties the partition; the store remains. Asks on a terminal; otherwise\n"
			"--yes is needed.\n",
		.examples = "  spillway state drop --devices a.img,b.img --yes\n",
		.action = drop,
		.none_named = tool_no_drives,
		.options = drop_options,
		.destructive = true,
	},
	{.name = NULL},
};

const struct tool_command command_state = {
	.name = "state",
	.summary = "list, export or drop a store's training state",
	.synopsis = "list|export|drop [OPTION...]",
	.description = "A training run with its optimizer state on a store commits it from time\n"
		       "to time: a step that survives a crash, and from which training resumes.\n",
	.examples = "  spillway state list --devices /dev/nvme1n1,/dev/nvme2n1\n"
		    "  spillway state export --devices a.img,b.img --to step\n"
		    "  spillway state drop --devices a.img,b.img --yes\n",
	.verbs = verbs,
};
