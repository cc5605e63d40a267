/* SPDX-License-Identifier: MIT */
/* engine/nvme/command.c - encode flush and deallocate, decode Identify and log pages */
#include "engine/nvme/command.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#include "util/util.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	       "ranges are written in the order of this machine");

/* Protection information of a block: guard, application tag and reference tag. */
#define TAGS_BYTES 8u

void spw_nvme__encode_flush(struct nvme_uring_cmd *cmd, const struct spw_nvme_namespace *ns)
{
	*cmd = (struct nvme_uring_cmd){.opcode = SPW_NVME_FLUSH, .nsid = ns->id};
}

void spw_nvme__encode_deallocate(struct nvme_uring_cmd *cmd, const struct spw_nvme_namespace *ns,
				 uint64_t offset_bytes, uint64_t len_bytes,
				 struct spw_nvme_range *range)
{
	SPW_ASSERT(len_bytes >> ns->block_shift <= UINT32_MAX);
	*range = (struct spw_nvme_range){
		.blocks = (uint32_t)(len_bytes >> ns->block_shift),
		.first_block = offset_bytes >> ns->block_shift,
	};
	*cmd = (struct nvme_uring_cmd){
		.opcode = SPW_NVME_DATASET_MANAGEMENT,
		.nsid = ns->id,
		.addr = (uintptr_t)range,
		.data_len = sizeof(*range),
		.cdw10 = 0,       /* NR: one range */
		.cdw11 = 1u << 2, /* AD: deallocate */
	};
}

/* A counter of 128 bits, at most UINT64_MAX. */
static uint64_t le128(const uint8_t *data)
{
	return spw_nvme__le64(data + 8) ? UINT64_MAX : spw_nvme__le64(data);
}

/* Data units are 1000 blocks of 512 bytes. */
static uint64_t data_units(const uint8_t *data)
{
	uint64_t bytes;

	return __builtin_mul_overflow(le128(data), UINT64_C(512000), &bytes) ? UINT64_MAX : bytes;
}

/* Copy ASCII padded with blanks; control codes become question marks. */
static void text(const uint8_t *data, size_t len, char *out)
{
	while (len > 0 && (data[len - 1] == ' ' || data[len - 1] == '\0'))
		len--;
	for (size_t i = 0; i < len; i++)
		out[i] = data[i] >= ' ' && data[i] <= '~' ? (char)data[i] : '?';
	out[len] = '\0';
}

void spw_nvme__decode_controller(const uint8_t data[SPW_NVME_IDENTIFY_BYTES],
				 struct spw_nvme_info *info)
{
	uint8_t mdts = data[77];

	text(data + 4, sizeof(info->serial) - 1, info->serial);
	text(data + 24, sizeof(info->model) - 1, info->model);
	text(data + 64, sizeof(info->firmware) - 1, info->firmware);
	info->transfer_bytes_max =
		mdts > 0 && mdts < 32 ? (uint64_t)SPW_NVME_PAGE_BYTES << mdts : 0;
	info->version = spw_nvme__le32(data + 80);
	info->places_data = (spw_nvme__le32(data + 96) & 1u << 19) != 0;
	info->deallocates = (spw_nvme__le16(data + 520) & 1u << 2) != 0;
	info->write_cache = (data[525] & 1u) != 0;
}

int spw_nvme__decode_namespace(const uint8_t data[SPW_NVME_IDENTIFY_BYTES],
			       struct spw_nvme_namespace *ns)
{
	unsigned format = (data[26] & 0xfu) | (data[26] >> 1 & 0x30u);
	const uint8_t *lbaf = data + 128 + 4 * format;

	ns->blocks = spw_nvme__le64(data);
	ns->used_blocks = SPW_MIN(spw_nvme__le64(data + 16), ns->blocks);
	ns->metadata_bytes = spw_nvme__le16(lbaf);
	ns->protection_type = ns->metadata_bytes >= TAGS_BYTES ? data[29] & 7u : 0;
	ns->protects = ns->metadata_bytes == TAGS_BYTES && ns->protection_type == 1;
	ns->block_shift = lbaf[2];
	if (ns->block_shift < 9 || ns->block_shift > 20 || ns->blocks == 0 ||
	    ns->blocks > UINT64_MAX >> ns->block_shift)
		return -EPROTO;
	return 0;
}

void spw_nvme__decode_health(const uint8_t data[SPW_NVME_HEALTH_BYTES], struct spw_nvme_info *info)
{
	info->has_health = true;
	info->critical_warning = data[0];
	info->temperature_celsius = spw_nvme__le16(data + 1) - 273;
	info->spare_percent = data[3];
	info->spare_threshold_percent = data[4];
	info->percentage_used = data[5];
	info->bytes_read = data_units(data + 32);
	info->bytes_written = data_units(data + 48);
	info->read_commands = le128(data + 64);
	info->write_commands = le128(data + 80);
	info->busy_minutes = le128(data + 96);
	info->power_cycles = le128(data + 112);
	info->power_on_hours = le128(data + 128);
	info->unsafe_shutdowns = le128(data + 144);
	info->media_errors = le128(data + 160);
	info->error_log_entries = le128(data + 176);
}

unsigned spw_nvme__decode_placements(const uint8_t *data, size_t len,
				     uint16_t ids[SPW_NVME_PLACEMENTS_MAX])
{
	size_t room = len < 16 ? 0 : SPW_MIN((len - 16) / 32, SPW_NVME_PLACEMENTS_MAX);
	unsigned count = room == 0 ? 0 : (unsigned)SPW_MIN(spw_nvme__le16(data + 14), room);

	for (unsigned i = 0; i < count; i++)
		ids[i] = spw_nvme__le16(data + 16 + 32 * i);
	return count;
}
