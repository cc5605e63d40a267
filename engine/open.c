/* SPDX-License-Identifier: MIT */
/* engine/open.c - spw_device_open(), spw_queue_open(): choose the kind of device and the backend */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/backend.h"
#include "engine/nvme/admin.h"
#include "engine/vfio/vfio.h"
#include "util/util.h"

#define TUNED_BYTES (UINT64_C(1) << 20)

/* Check that the character node can be opened. Locks and claims use the block node. */
static int make_char_device(struct spw_device *d)
{
	int fd;

	d->geometry.kind = SPW_DEVICE_NVME_CHAR;
	if (strlen(d->path) < sizeof(d->geometry.nvme_char_path))
		(void)snprintf(d->geometry.nvme_char_path, sizeof(d->geometry.nvme_char_path), "%s",
			       d->path);
	fd = spw_nvme__open_char(d);
	if (fd < 0)
		return fd;
	(void)close(fd);
	return 0;
}

static int open_device(struct spw_device *d, const struct spw_device_opts *opts)
{
	char node[PATH_MAX];
	int ret;

	if (spw_vfio__is_name(d->path))
		return spw_vfio__device_open(d, opts->exclusive);
	ret = spw_device_block_node(d->path, node, sizeof(node));
	if (ret == 0)
		ret = spw_engine__file_open(d, node, opts->exclusive);
	if (ret == 0 && strcmp(node, d->path) != 0)
		ret = make_char_device(d);
	return ret;
}

int spw_device_open(const char *path, const struct spw_device_opts *user_opts,
		    struct spw_device **device)
{
	struct spw_device_opts opts = {0};
	struct spw_device *d;
	int ret;

	*device = NULL;
	spw_device_opts_init(&opts, sizeof(opts));
	if (user_opts)
		spw_opts_merge(&opts, sizeof(opts), user_opts, user_opts->size);
	d = calloc(1, sizeof(*d));
	if (d)
		d->path = strdup(path);
	if (!d || !d->path) {
		free(d);
		return spw_error(-ENOMEM, "%s: no memory for the device", path);
	}
	d->fd = d->claim_fd = -1;
	d->read_only = opts.read_only;
	d->log = opts.log;
	ret = open_device(d, &opts);
	if (ret)
		spw_device_close(d);
	else
		*device = d;
	return ret;
}

static int info_of_node(const char *path, struct spw_nvme_info *info)
{
	int fd = spw_nvme__open_admin(path);
	int ret = fd < 0 ? fd : spw_nvme__ask_all(spw_nvme__system_ioctl, fd, path, info);

	if (fd >= 0)
		(void)close(fd);
	return ret;
}

int spw_nvme_info(const char *path, struct spw_nvme_info *info)
{
	struct spw_nvme_info own = {.size = sizeof(own)};
	int ret = spw_vfio__is_name(path) ? spw_vfio__info(path, &own) : info_of_node(path, &own);

	if (ret == 0)
		spw_opts_merge(info, info->size == 0 ? sizeof(*info) : info->size, &own,
			       sizeof(own));
	return ret;
}

static unsigned count_kind(struct spw_device *const devices[], unsigned count,
			   enum spw_device_kind kind)
{
	unsigned found = 0;

	for (unsigned i = 0; i < count; i++)
		found += devices[i]->geometry.kind == kind;
	return found;
}

/* @asked: the caller's backend, not that of a settings file, which may be outdated. */
static int open_vfio(struct spw_device *const devices[], unsigned count,
		     const struct spw_queue_opts *opts, enum spw_backend asked,
		     struct spw_queue **queue)
{
	static const struct spw_backend_ops *const vfio[] = {&spw_vfio__backend_vfio};

	if (asked != SPW_BACKEND_AUTO && asked != SPW_BACKEND_VFIO)
		return spw_error(
			-EINVAL,
			"a namespace behind vfio (pci:...) is reached by the backend vfio alone");
	if (count_kind(devices, count, SPW_DEVICE_VFIO) == 0)
		return spw_error(-EINVAL,
				 "vfio: none of the devices is behind vfio (pci:0000:3d:00.0/1)");
	return spw_engine__queue_open_with(devices, count, opts, vfio, 1, queue);
}

/* Depth that keeps as many bytes in flight as measured: a store's transfers may be smaller. */
static uint32_t tuned_depth(const struct spw_tune_settings *settings)
{
	uint64_t transfers = (settings->block_bytes + TUNED_BYTES - 1) / TUNED_BYTES;

	return (uint32_t)SPW_MIN(settings->depth * transfers, SPW_QUEUE_DEPTH_MAX);
}

/* One queue reads and writes: it gets the wait mode of reads, and a depth sufficient for both. */
static void apply_tune(struct spw_queue_opts *opts)
{
	const struct spw_tune_settings *from;
	struct spw_tune tune = {0};
	uint32_t read_depth, write_depth;

	if (!opts->tune)
		return;
	spw_opts_merge(&tune, sizeof(tune), opts->tune, opts->tune->size);
	read_depth = tuned_depth(&tune.read);
	write_depth = tuned_depth(&tune.write);
	if (read_depth == 0 && write_depth == 0)
		return;
	from = read_depth ? &tune.read : &tune.write;
	opts->depth = read_depth > write_depth ? read_depth : write_depth;
	/* io_uring is tried first anyway; if the measured backend is refused, AUTO falls back. */
	if (opts->backend == SPW_BACKEND_AUTO && from->backend != SPW_BACKEND_IO_URING)
		opts->backend = from->backend;
	if (opts->wait == SPW_WAIT_INTERRUPT)
		opts->wait = from->wait;
	spw_log(&opts->log, SPW_LOG_INFO, "as 'spillway tune' measured: depth %u%s", opts->depth,
		opts->wait == SPW_WAIT_POLL ? ", polling" : "");
}

int spw_queue_open(struct spw_device *const devices[], unsigned count,
		   const struct spw_queue_opts *user_opts, struct spw_queue **queue)
{
	static const struct spw_backend_ops *const ways[][3] = {
		[SPW_BACKEND_AUTO] = {&spw_engine__backend_io_uring, &spw_engine__backend_libaio},
		[SPW_BACKEND_IO_URING] = {&spw_engine__backend_io_uring},
		[SPW_BACKEND_LIBAIO] = {&spw_engine__backend_libaio, &spw_engine__backend_io_uring},
		[SPW_BACKEND_NVME] = {&spw_nvme__backend_nvme, &spw_engine__backend_io_uring,
				      &spw_engine__backend_libaio},
		[SPW_BACKEND_NULL] = {&spw_engine__backend_null},
	};
	struct spw_queue_opts merged = {0}, *opts = &merged;
	enum spw_backend asked, wanted;
	unsigned candidates = 0;

	*queue = NULL;
	spw_queue_opts_init(opts, sizeof(*opts));
	if (user_opts)
		spw_opts_merge(opts, sizeof(*opts), user_opts, user_opts->size);
	asked = opts->backend;
	apply_tune(opts);
	/* Only the vfio backend can access devices behind vfio. */
	if (asked == SPW_BACKEND_VFIO || count_kind(devices, count, SPW_DEVICE_VFIO) > 0)
		return open_vfio(devices, count, opts, asked, queue);
	wanted = (unsigned)opts->backend < SPW_ARRAY_LEN(ways) ? opts->backend : SPW_BACKEND_AUTO;
	/* Naming a namespace by its character node requests passthrough. */
	if (opts->backend == SPW_BACKEND_AUTO &&
	    count_kind(devices, count, SPW_DEVICE_NVME_CHAR) == count)
		wanted = SPW_BACKEND_NVME;
	/* The caller's choice is used or fails; that of a settings file is only tried first. */
	while (candidates < (asked == SPW_BACKEND_AUTO ? 3 : 1) && ways[wanted][candidates])
		candidates++;
	return spw_engine__queue_open_with(devices, count, opts, ways[wanted], candidates, queue);
}
