/* SPDX-License-Identifier: MIT */
/* engine/nvme/entry.h - a passthrough command in an entry of an io_uring with 128-byte entries */
#ifndef SPW_ENGINE_NVME_ENTRY_H
#define SPW_ENGINE_NVME_ENTRY_H

#include <liburing.h>
#include <string.h>

#include "engine/nvme/command.h"

/*
 * @cmd_op: NVME_URING_CMD_IO or _IO_VEC. Return: where the command goes, all of which the caller
 * sets.
 */
static inline struct nvme_uring_cmd *spw_nvme_entry(struct io_uring_sqe *sqe, int fd,
						    uint32_t cmd_op, uint64_t user_data)
{
	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = fd;
	sqe->cmd_op = cmd_op;
	sqe->user_data = user_data;
	return (struct nvme_uring_cmd *)(void *)sqe->cmd;
}

/* The command's memory lies in the registered buffer @index. Not for vectors. */
static inline void spw_nvme_entry_use_registered(struct io_uring_sqe *sqe, uint16_t index)
{
	sqe->uring_cmd_flags = IORING_URING_CMD_FIXED;
	sqe->buf_index = index;
}

#endif
