/* SPDX-License-Identifier: MIT */
/* tools/ui/nvme_output.c - wear, health and abilities of NVMe drives, as table and JSON */
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
		"{s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:b, s:I, s:o}", "model",
		tool_json_text(info.model), "serial", tool_json_text(info.serial), "firmware",
		tool_json_text(info.firmware), "version", (json_int_t)info.version, "namespace_id",
		(json_int_t)info.namespace_id, "namespace_bytes", (json_int_t)info.namespace_bytes,
		"metadata_bytes", (json_int_t)info.metadata_bytes, "protection_type",
		(json_int_t)info.protection_type, "transfer_bytes_max",
		(json_int_t)info.transfer_bytes_max, "write_cache", info.write_cache, "deallocates",
		info.deallocates, "places_data", info.places_data, "placement_handles",
		(json_int_t)info.placement_handles, "health", health_json(&info));
}

void tool_print_nvme(const char *const paths[], unsigned count, FILE *out)
{
	struct tool_table *table = tool_table_new(
		"NVME|FIRMWARE|>WORN|>WRITTEN|>SPARE|>TEMP|>MEDIA ERRORS|>FDP|>PI|WARNING");
	struct spw_nvme_info info;
	unsigned rows = 0;
	char text[96];

	for (unsigned i = 0; i < count; i++) {
		int result;

		memset(&info, 0, sizeof(info));
		info.size = sizeof(info);
		result = spw_nvme_info(paths[i], &info);
		if (result == -EOPNOTSUPP || result == -ENOENT)
			continue;
		if (result != 0) {
			(void)fprintf(out, "\n%s\n", spw_last_error());
			continue;
		}
		describe_warnings(&info, text, sizeof(text));
		tool_table_row(
			table, paths[i], tool_or_dash(info.firmware),
			TOOL_SHORT("%u %%", info.percentage_used),
			SPW_SIZE_TEXT(info.bytes_written), TOOL_SHORT("%u %%", info.spare_percent),
			TOOL_SHORT("%d C", (int)info.temperature_celsius),
			TOOL_SHORT("%ju", (uintmax_t)info.media_errors),
			info.placement_handles ? TOOL_SHORT("%u", info.placement_handles) : "-",
			info.protection_type ? TOOL_SHORT("%u", info.protection_type) : "-", text);
		rows++;
	}
	if (rows > 0)
		(void)fputc('\n', out);
	tool_table_end(table, rows > 0 ? out : NULL);
}
