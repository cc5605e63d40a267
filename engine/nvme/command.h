/* SPDX-License-Identifier: MIT */
/* engine/nvme/command.h - encode NVMe commands, decode the drive's data, which is not trusted */
#ifndef SPW_ENGINE_NVME_COMMAND_H
#define SPW_ENGINE_NVME_COMMAND_H

#include <linux/nvme_ioctl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/nvme.h>

#include "util/util.h"

/* Missing in older kernel headers. */
#ifndef NVME_URING_CMD_IO
struct nvme_uring_cmd {
	uint8_t opcode, flags;
	uint16_t rsvd1;
	uint32_t nsid, cdw2, cdw3;
	uint64_t metadata, addr;
	uint32_t metadata_len, data_len;
	uint32_t cdw10, cdw11, cdw12, cdw13, cdw14, cdw15, timeout_ms, rsvd2;
};
#define NVME_URING_CMD_IO     _IOWR('N', 0x80, struct nvme_uring_cmd)
#define NVME_URING_CMD_IO_VEC _IOWR('N', 0x81, struct nvme_uring_cmd)
#endif

_Static_assert(sizeof(struct nvme_uring_cmd) == 72 && offsetof(struct nvme_uring_cmd, nsid) == 4 &&
		       offsetof(struct nvme_uring_cmd, addr) == 24 &&
		       offsetof(struct nvme_uring_cmd, data_len) == 36 &&
		       offsetof(struct nvme_uring_cmd, cdw10) == 40 &&
		       offsetof(struct nvme_uring_cmd, timeout_ms) == 64,
	       "as the kernel has it; it fills the rest of a large entry but 8 bytes");

enum spw_nvme_opcode {
	SPW_NVME_FLUSH = 0x00,
	SPW_NVME_WRITE = 0x01,
	SPW_NVME_READ = 0x02,
	SPW_NVME_DATASET_MANAGEMENT = 0x09,
	SPW_NVME_IO_MANAGEMENT_RECEIVE = 0x12,
};

enum spw_nvme_admin_opcode {
	SPW_NVME_GET_LOG_PAGE = 0x02,
	SPW_NVME_IDENTIFY = 0x06,
};

#define SPW_NVME_IDENTIFY_NAMESPACE  0x00u
#define SPW_NVME_IDENTIFY_CONTROLLER 0x01u
#define SPW_NVME_IDENTIFY_BYTES      4096u

#define SPW_NVME_LOG_HEALTH   0x02u
#define SPW_NVME_HEALTH_BYTES 512u

/* Most blocks of a command: NLB has 16 bits and counts from 0. */
#define SPW_NVME_BLOCKS_MAX 65536u

/* The unit of MDTS is CAP.MPSMIN, which user space cannot read; all known drives have 4 KiB. */
#define SPW_NVME_PAGE_BYTES 4096u

struct spw_nvme_namespace {
	uint32_t id;
	uint32_t block_shift; /* log2 of the logical block's length */
	uint32_t metadata_bytes;
	uint32_t protection_type; /* type of protection information: 1 to 3; 0: none */
	/* all metadata is type 1 protection information, which the controller inserts and checks */
	bool protects;
	uint64_t blocks;
	uint64_t used_blocks; /* NUSE: at most blocks */
};

/* Bits of dword 12 if the namespace protects: PRACT; PRCHK for guard and reference tag. */
#define SPW_NVME_MAKE_TAGS  (1u << 29)
#define SPW_NVME_CHECK_TAGS (1u << 28 | 1u << 26)

/* Dword 14: the reference tag of a command's first block. */
static inline uint32_t spw_nvme__reference_tag(uint64_t first_block)
{
	return (uint32_t)first_block;
}

/*
 * Encode a read or write of whole blocks; the caller sets addr and data_len. @placed: 0, or for a
 * write a placement identifier with SPW_PLACED.
 */
static inline void spw_nvme__encode_transfer(struct nvme_uring_cmd *cmd,
					     const struct spw_nvme_namespace *ns, bool is_read,
					     uint64_t offset_bytes, uint32_t len_bytes,
					     uint32_t placed)
{
	uint64_t first = offset_bytes >> ns->block_shift;

	*cmd = (struct nvme_uring_cmd){
		.opcode = is_read ? SPW_NVME_READ : SPW_NVME_WRITE,
		.nsid = ns->id,
		.cdw10 = (uint32_t)first,
		.cdw11 = (uint32_t)(first >> 32),
		.cdw12 = (len_bytes >> ns->block_shift) - 1,
	};
	if (unlikely(placed && !is_read)) {
		cmd->cdw12 |= 2u << 20; /* DTYPE: data placement */
		cmd->cdw13 = placed << 16;
	}
	if (unlikely(ns->protects)) {
		cmd->cdw12 |= SPW_NVME_MAKE_TAGS | SPW_NVME_CHECK_TAGS;
		cmd->cdw14 = spw_nvme__reference_tag(first);
	}
}

void spw_nvme__encode_flush(struct nvme_uring_cmd *cmd, const struct spw_nvme_namespace *ns);

struct spw_nvme_range {
	uint32_t attributes;
	uint32_t blocks;
	uint64_t first_block;
};

_Static_assert(sizeof(struct spw_nvme_range) == 16 &&
		       offsetof(struct spw_nvme_range, blocks) == 4 &&
		       offsetof(struct spw_nvme_range, first_block) == 8,
	       "as in the specification");

/* Deallocate one range of fewer than 2^32 blocks; @range must stay valid until the command ends. */
void spw_nvme__encode_deallocate(struct nvme_uring_cmd *cmd, const struct spw_nvme_namespace *ns,
				 uint64_t offset_bytes, uint64_t len_bytes,
				 struct spw_nvme_range *range);

/* A completion's status without the phase: DNR, M, CRD; type (3 bits) and code (8). */
#define SPW_NVME_STATUS_DNR  0x4000u
#define SPW_NVME_STATUS_CODE 0x07ffu

#define SPW_NVME_FDP_DISABLED 0x029u

/* Status of a command that the kernel has not sent to a drive, or has aborted. */
#define SPW_NVME_HOST_PATHING_ERROR 0x370u
#define SPW_NVME_ABORTED_BY_HOST    0x371u

/* The errno that the kernel's block layer has for a status, see also spw_nvme_status_text(). */
int spw_nvme__errno(uint32_t status);

/* nvme_core.max_retries: how often the kernel repeats a command whose failure is not final. */
#define SPW_NVME_RETRIES_MAX 5

struct spw_queue;
struct spw_part;

/* The result of a part with this status: @bytes; -EAGAIN: retry; or another negative errno. */
int64_t spw_nvme__part_result(struct spw_queue *queue, const struct spw_part *part, uint32_t status,
			      uint32_t bytes);

static inline uint16_t spw_nvme__le16(const uint8_t *data)
{
	return (uint16_t)(data[0] | data[1] << 8);
}

static inline uint32_t spw_nvme__le32(const uint8_t *data)
{
	return spw_nvme__le16(data) | (uint32_t)spw_nvme__le16(data + 2) << 16;
}

static inline uint64_t spw_nvme__le64(const uint8_t *data)
{
	return spw_nvme__le32(data) | (uint64_t)spw_nvme__le32(data + 4) << 32;
}

void spw_nvme__decode_controller(const uint8_t data[SPW_NVME_IDENTIFY_BYTES],
				 struct spw_nvme_info *info);

/* Decode Identify Namespace. Return: 0; -EPROTO the drive's data is invalid. */
int spw_nvme__decode_namespace(const uint8_t data[SPW_NVME_IDENTIFY_BYTES],
			       struct spw_nvme_namespace *ns);

void spw_nvme__decode_health(const uint8_t data[SPW_NVME_HEALTH_BYTES], struct spw_nvme_info *info);

/*
 * Reclaim Unit Handle Status: header and descriptors. A namespace may have 128; the last is left
 * out, so that the data fits in one page: some drives reject a PRP list that is longer than their
 * data.
 */
#define SPW_NVME_PLACEMENTS_MAX   127u
#define SPW_NVME_PLACEMENTS_BYTES (16u + SPW_NVME_PLACEMENTS_MAX * 32u)

/* The placement identifiers of a namespace. Return: how many, at most SPW_NVME_PLACEMENTS_MAX. */
unsigned spw_nvme__decode_placements(const uint8_t *data, size_t len,
				     uint16_t ids[SPW_NVME_PLACEMENTS_MAX]);

#endif
