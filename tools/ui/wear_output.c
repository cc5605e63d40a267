/* SPDX-License-Identifier: MIT */
/* tools/ui/wear_output.c - print the wear of drives, and how long they last, as text and JSON */
#include "tools/ui/tool.h"

#include <string.h>

#include <spillway/wear.h>

#define HOUR_SECONDS 3600.0
#define YEAR_SECONDS (SPW_DAYS_PER_YEAR * SPW_SECONDS_PER_DAY)

const char *tool_per_day(char *buf, size_t len, double bytes_per_day)
{
	if (bytes_per_day >= 1e12)
		return tool_format(buf, len, "%.1f TB/day", bytes_per_day / 1e12);
	return bytes_per_day >= 1e9 ? tool_format(buf, len, "%.1f GB/day", bytes_per_day / 1e9)
				    : tool_format(buf, len, "%.1f MB/day", bytes_per_day / 1e6);
}

const char *tool_span(char *buf, size_t len, double seconds)
{
	if (seconds < 2 * SPW_SECONDS_PER_DAY)
		return tool_format(buf, len, "%.1f hours", seconds / HOUR_SECONDS);
	if (seconds < YEAR_SECONDS)
		return tool_format(buf, len, "%.1f days", seconds / SPW_SECONDS_PER_DAY);
	if (seconds < 1000 * YEAR_SECONDS)
		return tool_format(buf, len, "%.1f years", seconds / YEAR_SECONDS);
	return tool_format(buf, len, "over 1000 years");
}

/* The path to query for health: NULL behind vfio, where only the process that drives it can ask. */
static const char *to_be_asked(const char *path)
{
	return strncmp(path, "pci:", 4) == 0 ? NULL : path;
}

void tool_wear_of(const struct spw_status *status, uint32_t index, double rated,
		  struct spw_wear *wear)
{
	const struct spw_drive_stats *drive = &status->drive[index];
	double seconds = (double)status->open_ns / 1e9;

	/* A status page may have any number: a wrong one must not make this command fail. */
	if (spw_wear(to_be_asked(drive->path), rated, (double)drive->bytes_written,
		     seconds > 0 ? seconds : 1, wear, sizeof(*wear)))
		*wear = (struct spw_wear){.size = sizeof(*wear), .years = -1};
	if (!to_be_asked(drive->path))
		(void)tool_format(wear->reason, sizeof(wear->reason),
				  "only the process that drives %s can ask it", drive->path);
}

const char *tool_wear_years(char *buf, size_t len, const struct spw_wear *wear)
{
	if (wear->basis == SPW_WEAR_UNKNOWN)
		return "unknown";
	if (wear->left_bytes <= 0)
		return "used up";
	return wear->years < 0 ? "-" : tool_span(buf, len, wear->years * YEAR_SECONDS);
}

json_t *tool_json_wear(const struct spw_wear *wear)
{
	static const char *const bases[] = {
		[SPW_WEAR_UNKNOWN] = "unknown",
		[SPW_WEAR_HEALTH] = "health page",
		[SPW_WEAR_RATING] = "rating and health page",
		[SPW_WEAR_RATING_ALONE] = "rating",
	};
	bool known = wear->basis != SPW_WEAR_UNKNOWN;

	return json_pack("{s:s, s:f, s:o, s:o, s:o, s:o, s:o}", "basis", bases[wear->basis],
			 "bytes_per_day", wear->bytes_per_day, "left_bytes",
			 known ? json_real(wear->left_bytes) : json_null(), "years",
			 wear->years < 0 ? json_null() : json_real(wear->years), "percentage_used",
			 wear->has_health ? json_integer(wear->percentage_used) : json_null(),
			 "life_bytes_written",
			 wear->has_health ? json_real(wear->life_bytes) : json_null(), "reason",
			 wear->reason[0] ? tool_json_text(wear->reason) : json_null());
}
