/* SPDX-License-Identifier: MIT */
/*
 * spillway/nvme.h - spw_nvme_info(): an NVMe drive's identity, features, health and wear
 *
 * Contract
 *   Threads    The function may be called from any thread and keeps no state between calls.
 *   Safety     Sends Identify, Get Log Page and (to a namespace) I/O Management Receive: these
 *              commands do not change the drive. Sends nothing to a device that is not NVMe
 *              according to sysfs.
 *   Errors     0, or a negative errno with a message in spw_last_error().
 *   Structs    The caller sets the size of the struct before the call.
 *   Trust      The drive's answers are sanitized: counters saturate, texts are made printable.
 */
#ifndef SPILLWAY_NVME_H
#define SPILLWAY_NVME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bits of critical_warning. */
#define SPW_NVME_WARNING_SPARE       (1u << 0) /* spare capacity has fallen below the threshold */
#define SPW_NVME_WARNING_TEMPERATURE (1u << 1)
#define SPW_NVME_WARNING_RELIABILITY (1u << 2) /* the medium degrades */
#define SPW_NVME_WARNING_READ_ONLY   (1u << 3)
#define SPW_NVME_WARNING_BACKUP      (1u << 4) /* the volatile memory's backup has failed */

struct spw_nvme_info {
	size_t size;

	/* Identify Controller */
	char model[41];
	char serial[21];
	char firmware[9];
	uint32_t version;            /* of the specification: 0x010400 for 1.4 */
	uint64_t transfer_bytes_max; /* MDTS; 0: no limit */
	bool write_cache;            /* volatile, so that flush matters */
	bool deallocates;            /* Dataset Management */
	bool places_data;            /* Flexible Data Placement */

	/* Identify Namespace; 0 if @path is a controller (/dev/nvme0) */
	uint32_t namespace_id;
	uint32_t block_bytes;
	uint32_t metadata_bytes; /* with each block */
	uint64_t namespace_bytes;
	/* FDP: number of placement handles that writes may use; 0: none, or FDP is not enabled */
	uint32_t placement_handles;

	/* SMART / Health log page */
	bool has_health;
	uint8_t critical_warning; /* SPW_NVME_WARNING_ */
	int32_t temperature_celsius;
	uint32_t spare_percent, spare_threshold_percent;
	/* percent of the rated endurance; 100 and above: used up; at most 255 */
	uint32_t percentage_used;
	/* transferred by the host, as the drive counts: rounded up to 512000 */
	uint64_t bytes_read, bytes_written;
	uint64_t read_commands, write_commands;
	uint64_t busy_minutes;
	uint64_t power_cycles, power_on_hours, unsafe_shutdowns;
	uint64_t media_errors;
	uint64_t error_log_entries;

	/* Identify Namespace: of namespace_bytes; some drives always report all bytes as used */
	uint64_t namespace_used_bytes;
	/* type of protection information with each block, 1 to 3; 0: none */
	uint32_t protection_type;
};
SPW_ABI(struct spw_nvme_info, protection_type, 232, 240);

/**
 * spw_nvme_info - read a drive's identity, health and wear
 * @path:  a namespace (/dev/nvme0n1, /dev/ng0n1, pci:0000:3d:00.0/1), a partition on it, or a
 *         controller (/dev/nvme0)
 * @info:  set on success; its size field must be set
 *
 * Needs the right to send admin commands: root, on most systems. Changes nothing on the drive.
 *
 * Return: 0; -EOPNOTSUPP not an NVMe device; -EACCES, -EPERM missing rights; -EIO or another errno:
 * the drive refuses, with its status in spw_last_error().
 */
SPW_EXPORT int spw_nvme_info(const char *path, struct spw_nvme_info *info);

/**
 * spw_nvme_status_text - the specification's name of a status code
 * @status:  status code type and status code (0x281); other bits are ignored
 *
 * Return: a constant text: "Unrecovered Read Error"; "vendor specific"; "unknown status".
 */
SPW_EXPORT const char *spw_nvme_status_text(uint32_t status);

#ifdef __cplusplus
}
#endif
#endif
