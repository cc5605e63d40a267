/* SPDX-License-Identifier: MIT */
/* engine/nvme/probe.h - passthrough by io_uring: submission entries, and the features that work */
#ifndef SPW_ENGINE_NVME_PROBE_H
#define SPW_ENGINE_NVME_PROBE_H

#include <liburing.h>
#include <string.h>

#include "engine/nvme/command.h"

/* Set up an entry. @cmd_op: NVME_URING_CMD_IO or _IO_VEC. Return: the command to fill in. */
static inline struct nvme_uring_cmd *spw_nvme__entry(struct io_uring_sqe *sqe, int fd,
						     uint32_t cmd_op, uint64_t user_data)
{
	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = fd;
	sqe->cmd_op = cmd_op;
	sqe->user_data = user_data;
	return (struct nvme_uring_cmd *)(void *)sqe->cmd;
}

/* The command's memory is in the registered buffer @index. Not for vectors. */
static inline void spw_nvme__entry_use_registered(struct io_uring_sqe *sqe, uint16_t index)
{
	sqe->uring_cmd_flags = IORING_URING_CMD_FIXED;
	sqe->buf_index = index;
}

struct spw_nvme_abilities {
	bool polled; /* completions can be polled */
	bool fixed;  /* registered memory of any size can be used */
};

struct spw_nvme_probed {
	int fd; /* a character node */
	const char *path;
	const struct spw_nvme_namespace *ns;
	uint32_t segments_max; /* memory pages per command */
};

/* Tests pin at most this many pages, even if a command may have more. */
#define SPW_NVME_PROBE_PAGES_MAX 4096u

/* Number of registered pages for the test: more than any command may have; 0: too many to test. */
uint32_t spw_nvme__probe_pages(const struct spw_nvme_probed devices[], unsigned count);

/* Test passthrough. @want_polled: and polling. Return: 0; -errno: a device without passthrough. */
int spw_nvme__probe(const struct spw_nvme_probed devices[], unsigned count, bool want_polled,
		    struct spw_nvme_abilities *abilities);

#endif
