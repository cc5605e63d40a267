/* SPDX-License-Identifier: MIT */
/*
 * tools/ui/nvme_output.c - what NVMe drives say of themselves: wear, health and abilities, as a
 * table and as JSON
 */
#include "tools/ui/tool.h"

#include <errno.h>
#include <string.h>

#include <spillway/nvme.h>

#include "util/util.h"

/* What the bits of critical_warning mean, from bit 0. */
static const char *const warnings[] = {"spare low", "temperature", "reliability", "read-only",
				       "backup failed"};

static void describe_warnings(const struct spw_nvme_info *info, char *text, size_t len)
{
	size_t used = 0;

	text[0] = '\0';
	for (size_t i = 0; i < SPW_ARRAY_LEN(warnings) && used < len; i++)
		if (info->critical_warning & 1u << i)
			used += (size_t)snprintf(text + used, len - used, used > 0 ? ", %s" : "%s",
						 warnings[i]);
	if (text[0] == '\0')
		(void)snprintf(text, len, info->critical_warning ? "unknown" : "-");
}

static json_t *health_json(const struct spw_nvme_info *info)
{
	json_t *list = json_array();

	for (size_t i = 0; i < SPW_ARRAY_LEN(warnings); i++)
		if (info->critical_warning & 1u << i)
			(void)json_array_append_new(list, json_string(warnings[i]));
	return json_pack(
		"{s:I, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}",
		"percentage_used", (json_int_t)info->percentage_used, "temperature_celsius",
		(int)info->temperature_celsius, "spare_percent", (json_int_t)info->spare_percent,
		"spare_threshold_percent", (json_int_t)info->spare_threshold_percent, "bytes_read",
		(json_int_t)info->bytes_read, "bytes_written", (json_int_t)info->bytes_written,
		"read_commands", (json_int_t)info->read_commands, "write_commands",
		(json_int_t)info->write_commands, "busy_minutes", (json_int_t)info->busy_minutes,
		"power_cycles", (json_int_t)info->power_cycles, "power_on_hours",
		(json_int_t)info->power_on_hours, "unsafe_shutdowns",
		(json_int_t)info->unsafe_shutdowns, "media_errors", (json_int_t)info->media_errors,
		"error_log_entries", (json_int_t)info->error_log_entries, "critical_warnings",
		list);
}

json_t *tool_json_nvme(const char *path)
{
	struct spw_nvme_info info = {.size = sizeof(info)};
	int result = spw_nvme_info(path, &info);

	if (result == -EOPNOTSUPP || result == -ENOENT)
		return json_null();
	if (result != 0)
		return json_pack("{s:o}", "error", tool_json_text(spw_last_error()));
	return json_pack(
		"{s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:b, s:I, s:o}", "model",
		tool_json_text(info.model), "serial", tool_json_text(info.serial), "firmware",
		tool_json_text(info.firmware), "version", (json_int_t)info.version, "namespace_id",
		(json_int_t)info.namespace_id, "namespace_bytes", (json_int_t)info.namespace_bytes,
		"metadata_bytes", (json_int_t)info.metadata_bytes, "transfer_bytes_max",
		(json_int_t)info.transfer_bytes_max, "write_cache", info.write_cache, "deallocates",
		info.deallocates, "places_data", info.places_data, "placement_handles",
		(json_int_t)info.placement_handles, "health", health_json(&info));
}

static void drive_row(struct tool_table *table, const char *path, const struct spw_nvme_info *info)
{
	char written[32], text[96];

	describe_warnings(info, text, sizeof(text));
	tool_table_cell(table, "%s", path);
	tool_table_cell(table, "%s", info->firmware[0] ? info->firmware : "-");
	tool_table_cell(table, "%u %%", info->percentage_used);
	tool_table_cell(table, "%s",
			spw_size_format(info->bytes_written, written, sizeof(written)));
	tool_table_cell(table, "%u %%", info->spare_percent);
	tool_table_cell(table, "%d C", (int)info->temperature_celsius);
	tool_table_cell(table, "%llu", (unsigned long long)info->media_errors);
	tool_table_cell(table, info->placement_handles ? "%u" : "-", info->placement_handles);
	tool_table_cell(table, "%s", text);
}

void tool_print_nvme(const char *const paths[], unsigned count, FILE *out)
{
	static const struct tool_column columns[] = {
		{"NVME", false},        {"FIRMWARE", false}, {"WORN", true},
		{"WRITTEN", true},      {"SPARE", true},     {"TEMP", true},
		{"MEDIA ERRORS", true}, {"FDP", true},       {"WARNING", false},
	};
	struct tool_table *table = tool_table_new(columns, SPW_ARRAY_LEN(columns));
	struct spw_nvme_info info;
	unsigned rows = 0;

	for (unsigned i = 0; i < count; i++) {
		int result;

		memset(&info, 0, sizeof(info));
		info.size = sizeof(info);
		result = spw_nvme_info(paths[i], &info);
		if (result == 0)
			drive_row(table, paths[i], &info);
		else if (result != -EOPNOTSUPP && result != -ENOENT)
			(void)fprintf(out, "\n%s\n", spw_last_error());
		rows += result == 0;
	}
	if (rows > 0) {
		(void)fputc('\n', out);
		tool_table_print(table, out);
	}
	tool_table_free(table);
}
