/* SPDX-License-Identifier: MIT */
/*
 * engine/nvme/probe.c - tests passthrough to devices by reading their first blocks: polling,
 * registered memory
 *
 * A read that the drive fails still shows that passthrough works. All devices are tested on one
 * separate ring, which is closed with its memory: creating a ring or unregistering memory takes
 * tens of milliseconds.
 */
#include "engine/nvme/probe.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "util/util.h"

struct probe {
	struct io_uring ring;
	char *memory;
	/* bytes to register; 0: do not test registered memory */
	size_t bytes;
	const struct spw_nvme_probed *failed; /* the device with which passthrough does not work */
};

/* Read the first block. Return: 0 the drive has completed the command, with any status; -errno. */
static int read_block(struct probe *p, const struct spw_nvme_probed *device, bool registered)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&p->ring);
	struct nvme_uring_cmd *cmd;
	struct io_uring_cqe *cqe;
	int ret;

	if (!sqe)
		return -EBUSY;
	cmd = spw_nvme__entry(sqe, device->fd, NVME_URING_CMD_IO, 1);
	spw_nvme__encode_transfer(cmd, device->ns, true, 0, 1u << device->ns->block_shift, 0);
	cmd->addr = (uintptr_t)p->memory;
	cmd->data_len = 1u << device->ns->block_shift;
	if (registered)
		spw_nvme__entry_use_registered(sqe, 0);
	/* A polling wait may return early; the ring must not be closed with I/O in flight. */
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

/* Whether commands to every device can use a part of a registered piece. */
static bool registered_works(struct probe *p, const struct spw_nvme_probed devices[],
			     unsigned count)
{
	const struct iovec memory = {.iov_base = p->memory, .iov_len = p->bytes};

	if (p->bytes == 0 || io_uring_register_buffers(&p->ring, &memory, 1))
		return false;
	for (unsigned i = 0; i < count; i++)
		if (read_block(p, &devices[i], true))
			return false;
	return true;
}

static int probe_ring(struct probe *p, const struct spw_nvme_probed devices[], unsigned count,
		      bool polled, struct spw_nvme_abilities *abilities)
{
	struct io_uring_params params = {
		.flags = IORING_SETUP_SQE128 | IORING_SETUP_CQE32 |
			 (polled ? IORING_SETUP_IOPOLL : 0),
	};
	int ret = io_uring_queue_init_params(4, &p->ring, &params);

	p->failed = &devices[0];
	if (ret)
		return ret;
	for (unsigned i = 0; i < count && ret == 0; i++) {
		p->failed = &devices[i];
		ret = read_block(p, &devices[i], false);
	}
	if (ret == 0) {
		abilities->polled = polled;
		abilities->fixed = registered_works(p, devices, count);
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

uint32_t spw_nvme__probe_pages(const struct spw_nvme_probed devices[], unsigned count)
{
	uint32_t most = 0;

	for (unsigned i = 0; i < count; i++)
		most = devices[i].segments_max > most ? devices[i].segments_max : most;
	return most < SPW_NVME_PROBE_PAGES_MAX ? most + 2 : 0;
}

int spw_nvme__probe(const struct spw_nvme_probed devices[], unsigned count, bool want_polled,
		    struct spw_nvme_abilities *abilities)
{
	size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE), bytes;
	struct probe p = {.failed = devices};
	int ret = -EOPNOTSUPP;

	*abilities = (struct spw_nvme_abilities){0};
	p.bytes = spw_nvme__probe_pages(devices, count) * page_bytes;
	bytes = p.bytes > 0 ? p.bytes : page_bytes;
	p.memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p.memory == MAP_FAILED)
		return spw_error(-ENOMEM, "nvme: no memory to try %s", devices[0].path);
	/* Small pages: a huge page would count as one segment. */
	(void)madvise(p.memory, bytes, MADV_NOHUGEPAGE);
	if (want_polled)
		ret = probe_ring(&p, devices, count, true, abilities);
	if (!abilities->polled)
		ret = probe_ring(&p, devices, count, false, abilities);
	(void)munmap(p.memory, bytes);
	return ret ? spw_error(ret, "nvme refused: passthrough to %s: %s%s", p.failed->path,
			       spw_strerror(ret), remedy(ret))
		   : 0;
}
