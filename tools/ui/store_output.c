/* SPDX-License-Identifier: MIT */
/* tools/ui/store_output.c - a store, its drives and a device's geometry, as tables and as JSON */
#include "tools/ui/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

static const char *const kind_names[] = {
	[SPW_DEVICE_BLOCK] = "block",
	[SPW_DEVICE_FILE] = "file",
	[SPW_DEVICE_NVME_CHAR] = "nvme-char",
	[SPW_DEVICE_VFIO] = "vfio",
};

json_t *tool_json_geometry(const struct spw_geometry *geometry)
{
	return json_pack(
		"{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:b, s:b, s:b, s:o, s:o, s:o, s:o}",
		"kind", kind_names[geometry->kind], "size_bytes", (json_int_t)geometry->size_bytes,
		"logical_block_bytes", (json_int_t)geometry->logical_block_bytes,
		"physical_block_bytes", (json_int_t)geometry->physical_block_bytes,
		"memory_align_bytes", (json_int_t)geometry->memory_align_bytes,
		"transfer_bytes_max", (json_int_t)geometry->transfer_bytes_max, "segments_max",
		(json_int_t)geometry->segments_max, "numa_node", geometry->numa_node, "rotational",
		geometry->rotational, "polls", geometry->polls, "discards", geometry->discards,
		"model", tool_json_text(geometry->model), "serial",
		tool_json_text(geometry->serial), "nvme_char_path",
		tool_json_text(geometry->nvme_char_path), "transport",
		tool_json_text(geometry->transport));
}

json_t *tool_json_store(const struct spw_store_info *info)
{
	return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "store_uuid",
			 info->store_uuid, "format_version", (json_int_t)info->format_version,
			 "drive_count", (json_int_t)info->drives, "partitions",
			 (json_int_t)info->partitions, "block_bytes", (json_int_t)info->block_bytes,
			 "chunk_bytes", (json_int_t)info->chunk_bytes, "capacity_bytes",
			 (json_int_t)info->capacity_bytes, "partition_capacity_bytes",
			 (json_int_t)info->partition_capacity_bytes, "partitions_in_use",
			 (json_int_t)info->partitions_in_use);
}

json_t *tool_json_drive(const struct spw_drive_info *drive)
{
	return json_pack(
		"{s:o, s:i, s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "path",
		tool_json_text(drive->path), "errno", -drive->error, "error",
		drive->error ? tool_json_text(drive->reason) : json_null(), "drive_uuid",
		drive->drive_uuid, "index", (json_int_t)drive->index, "copies_good",
		(json_int_t)drive->copies_good, "size_bytes", (json_int_t)drive->size_bytes,
		"data_offset_bytes", (json_int_t)drive->data_offset_bytes, "partition_bytes",
		(json_int_t)drive->partition_bytes, "sequence", (json_int_t)drive->sequence,
		"geometry", tool_json_geometry(&drive->geometry));
}

int tool_check_store(const struct tool_devices *devices, struct spw_store_info *info,
		     struct spw_drive_info **drives)
{
	*drives = calloc(devices->count, sizeof(**drives));
	if (!*drives)
		return spw_error(-ENOMEM, "out of memory");
	for (unsigned i = 0; i < devices->count; i++)
		(*drives)[i].size = sizeof(**drives);
	return spw_check(devices->paths, devices->count, info, *drives);
}

struct tool_devices tool_devices_with(const struct tool_devices *devices, int32_t but,
				      const char *path, const char *paths[])
{
	struct tool_devices with = {.paths = paths};

	for (unsigned i = 0; i < devices->count; i++) {
		const char *const both[2] = {devices->paths[i], path};

		if ((int32_t)i != but && strcmp(both[0], both[1]) != 0 &&
		    spw_drives_distinct(both, 2) == 0)
			paths[with.count++] = devices->paths[i];
	}
	paths[with.count++] = path;
	return with;
}

void tool_print_store(const struct spw_store_info *info, FILE *out)
{
	(void)fprintf(out, "store        %s (disk format %u)\n", info->store_uuid,
		      info->format_version);
	(void)fprintf(out, "capacity     %s on %u drive%s\n", SPW_SIZE_TEXT(info->capacity_bytes),
		      info->drives, info->drives == 1 ? "" : "s");
	(void)fprintf(out, "partitions   %u of %s each, %u in use\n", info->partitions,
		      SPW_SIZE_TEXT(info->partition_capacity_bytes), info->partitions_in_use);
	(void)fprintf(out, "chunk        %s\n", SPW_SIZE_TEXT(info->chunk_bytes));
	(void)fprintf(out, "block        %s\n", SPW_SIZE_TEXT(info->block_bytes));
}

void tool_print_drives(const struct spw_drive_info *drives, unsigned count, FILE *out)
{
	struct tool_table *table =
		tool_table_new(">DRIVE|PATH|>SIZE|>BLOCK|>NUMA|>SUPERBLOCKS|MODEL|UUID");

	for (unsigned i = 0; i < count; i++) {
		const struct spw_drive_info *drive = &drives[i];
		const struct spw_geometry *geometry = &drive->geometry;

		tool_table_row(table, TOOL_SHORT("%u", drive->index + 1), drive->path,
			       SPW_SIZE_TEXT(drive->size_bytes),
			       TOOL_SHORT("%u", geometry->logical_block_bytes),
			       geometry->numa_node < 0 ? "-"
						       : TOOL_SHORT("%d", geometry->numa_node),
			       TOOL_SHORT("%u/2", drive->copies_good),
			       tool_or_dash(geometry->model), drive->drive_uuid);
	}
	tool_table_end(table, out);
}
