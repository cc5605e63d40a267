/* SPDX-License-Identifier: MIT */
/*
 * engine/nvme_probe.c - what the kernel's NVMe passthrough can do with a device, found out by reading its first block
 *
 * On a ring and in memory of its own, so that neither the queue's owner nor the arena's content matters. That a drive fails the read
 * says nothing against the way there.
 */
#include "engine/nvme_probe.h"

#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/nvme_entry.h"
#include "util/util.h"

struct probe {
	struct io_uring ring;
	int fd;
	const struct spw_nvme_namespace *ns;
	char *memory;
	size_t len_bytes;
	size_t page_bytes;
};

/* Return: 0 the command got to the drive and back; a negative errno of the kernel. */
static int read_block(struct probe *p, bool fixed)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&p->ring);
	struct nvme_uring_cmd *cmd;
	struct io_uring_cqe *cqe;
	int ret;

	if (!sqe)
		return -EBUSY;
	cmd = spw_nvme_entry(sqe, p->fd, NVME_URING_CMD_IO, 1);
	spw_nvme_encode_transfer(cmd, p->ns, true, 0, 1u << p->ns->block_shift, SPW_NVME_PLACEMENT_NONE);
	cmd->addr = (uintptr_t)p->memory;
	cmd->data_len = 1u << p->ns->block_shift;
	if (fixed)
		spw_nvme_entry_use_registered(sqe, 0);
	/* A wait that polls may end with nothing, and nothing may be left in flight on a ring that is given up. */
	do {
		ret = io_uring_submit_and_wait(&p->ring, 1);
		if (ret >= 0)
			ret = io_uring_peek_cqe(&p->ring, &cqe);
	} while (ret == -EAGAIN || ret == -EINTR);
	if (ret < 0)
		return ret;
	ret = cqe->res < 0 ? cqe->res : 0;
	io_uring_cqe_seen(&p->ring, cqe);
	return ret;
}

/* Whether a command can use the beginning of registered memory of @len_bytes. */
static bool registered_works(struct probe *p, size_t len_bytes)
{
	struct iovec piece = {.iov_base = p->memory, .iov_len = len_bytes};
	bool works;

	if (io_uring_register_buffers(&p->ring, &piece, 1))
		return false;
	works = read_block(p, true) == 0;
	(void)io_uring_unregister_buffers(&p->ring);
	return works;
}

static int probe_ring(struct probe *p, bool polled, struct spw_nvme_abilities *abilities)
{
	struct io_uring_params params = {
		.flags = IORING_SETUP_SQE128 | IORING_SETUP_CQE32 | (polled ? IORING_SETUP_IOPOLL : 0),
	};
	int ret = io_uring_queue_init_params(4, &p->ring, &params);

	if (ret)
		return ret;
	ret = read_block(p, false);
	if (ret == 0) {
		abilities->polled = polled;
		abilities->fixed_large = registered_works(p, p->len_bytes);
		abilities->fixed_small =
			abilities->fixed_large || registered_works(p, p->len_bytes - 3 * p->page_bytes);
	}
	io_uring_queue_exit(&p->ring);
	return ret;
}

static const char *remedy(int error)
{
	switch (error) {
	case -EACCES:
	case -EPERM: return " (needs root, or Linux 6.2; or seccomp, kernel.io_uring_disabled)";
	case -EINVAL:
	case -ENOSYS:
	case -EOPNOTSUPP: return " (needs Linux 5.19)";
	default: return "";
	}
}

int spw_nvme_probe(int fd, const char *path, const struct spw_nvme_namespace *ns, bool want_polled,
		   uint32_t segments_max, struct spw_nvme_abilities *abilities)
{
	struct probe p = {.fd = fd, .ns = ns, .page_bytes = (size_t)sysconf(_SC_PAGESIZE)};
	int ret = -EOPNOTSUPP;

	*abilities = (struct spw_nvme_abilities){0};
	/* More pages than a command may have; with three less, just as many or one less. */
	p.len_bytes = (segments_max + 2) * p.page_bytes;
	p.memory = mmap(NULL, p.len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p.memory == MAP_FAILED)
		return spw_error(-ENOMEM, "nvme: no memory to try %s", path);
	/* Else a huge page would be one segment. */
	(void)madvise(p.memory, p.len_bytes, MADV_NOHUGEPAGE);
	if (want_polled)
		ret = probe_ring(&p, true, abilities);
	if (!abilities->polled)
		ret = probe_ring(&p, false, abilities);
	(void)munmap(p.memory, p.len_bytes);
	return ret ? spw_error(ret, "nvme refused: passthrough to %s: %s%s", path, spw_strerror(ret), remedy(ret)) : 0;
}
