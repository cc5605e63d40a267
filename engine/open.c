/* SPDX-License-Identifier: MIT */
/*
 * engine/open.c - which way leads to a device and to a queue: the only file of the engine that
 * knows all of them
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/backend.h"
#include "engine/file.h"
#include "engine/nvme/admin.h"
#include "engine/nvme/node.h"
#include "engine/tune.h"
#include "engine/vfio/vfio.h"
#include "util/util.h"

/* ---- Devices ---- */

/*
 * A namespace named by its character node: transfers may go that way, locks and exclusive claims
 * lie on the block node, so that they hold against whoever names that. Proves that the character
 * node can be opened.
 */
static int make_char_device(struct spw_device *d)
{
	int fd;

	d->geometry.kind = SPW_DEVICE_NVME_CHAR;
	if (strlen(d->path) < sizeof(d->geometry.nvme_char_path))
		(void)snprintf(d->geometry.nvme_char_path, sizeof(d->geometry.nvme_char_path), "%s",
			       d->path);
	fd = spw_nvme_open_char(d);
	if (fd < 0)
		return fd;
	(void)close(fd);
	return 0;
}

static int open_device(struct spw_device *d, const struct spw_device_opts *opts)
{
	char node[PATH_MAX];
	int ret;

	if (spw_vfio_is_name(d->path))
		return spw_vfio_device_open(d, opts->exclusive);
	ret = spw_device_block_node(d->path, node, sizeof(node));
	if (ret == 0)
		ret = spw_file_open(d, node, opts->exclusive);
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
	if (!d)
		return spw_error(-ENOMEM, "%s: no memory for the device", path);
	d->fd = d->claim_fd = -1;
	d->read_only = opts.read_only;
	d->log = opts.log;
	d->path = strdup(path);
	if (!d->path) {
		ret = spw_error(-ENOMEM, "%s: no memory for the device", path);
		goto fail;
	}
	ret = open_device(d, &opts);
	if (ret)
		goto fail;
	*device = d;
	return 0;
fail:
	spw_device_close(d);
	return ret;
}

/* ---- What a drive says of itself ---- */

static int info_vfio(const char *path, struct spw_nvme_info *info)
{
	struct spw_vfio_namespace *ns;
	int ret = spw_vfio_open(path, false, NULL, &ns);

	if (ret)
		return ret;
	ret = spw_vfio_info(ns, info);
	spw_vfio_close(ns);
	return ret;
}

int spw_nvme_info(const char *path, struct spw_nvme_info *info)
{
	struct spw_nvme_info own = {.size = sizeof(own)};
	int fd, ret;

	if (spw_vfio_is_name(path))
		return info_vfio(path, info);
	fd = spw_nvme_open_admin(path);
	if (fd < 0)
		return fd;
	ret = spw_nvme_ask_all(spw_nvme_system_ioctl, fd, path, &own);
	(void)close(fd);
	if (ret == 0)
		spw_opts_merge(info, info->size == 0 ? sizeof(*info) : info->size, &own,
			       sizeof(own));
	return ret;
}

/* ---- Queues ---- */

/* Whoever names a namespace by its character node wants passthrough. */
static bool are_nvme_chars(struct spw_device *const devices[], unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (devices[i]->geometry.kind != SPW_DEVICE_NVME_CHAR)
			return false;
	return true;
}

/* No backend but vfio reaches these. */
static bool any_is_vfio(struct spw_device *const devices[], unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (devices[i]->geometry.kind == SPW_DEVICE_VFIO)
			return true;
	return false;
}

/*
 * @asked: not what a settings file says, which may be of the time when the kernel drove these
 * drives.
 */
static int open_vfio(struct spw_device *const devices[], unsigned count,
		     const struct spw_queue_opts *opts, enum spw_backend asked,
		     struct spw_queue **queue)
{
	static const struct spw_backend_ops *const vfio[] = {&spw_backend_vfio};

	if (asked != SPW_BACKEND_AUTO && asked != SPW_BACKEND_VFIO)
		return spw_error(
			-EINVAL,
			"a namespace behind vfio (pci:...) is reached by the backend vfio alone");
	if (!any_is_vfio(devices, count))
		return spw_error(-EINVAL,
				 "vfio: none of the devices is behind vfio (pci:0000:3d:00.0/1)");
	return spw_queue_open_with(devices, count, opts, vfio, 1, queue);
}

int spw_queue_open(struct spw_device *const devices[], unsigned count,
		   const struct spw_queue_opts *user_opts, struct spw_queue **queue)
{
	static const struct spw_backend_ops *const in_order[] = {
		&spw_backend_nvme, &spw_backend_io_uring, &spw_backend_libaio};
	static const struct spw_backend_ops *const libaio_first[] = {&spw_backend_libaio,
								     &spw_backend_io_uring};
	struct spw_queue_opts merged = {0}, *opts = &merged;
	enum spw_backend asked, wanted;
	int ret;

	*queue = NULL;
	spw_queue_opts_init(opts, sizeof(*opts));
	if (user_opts)
		spw_opts_merge(opts, sizeof(*opts), user_opts, user_opts->size);
	asked = opts->backend;
	ret = spw_tune_apply(devices, count, opts);
	if (ret)
		return ret;
	if (asked == SPW_BACKEND_VFIO || any_is_vfio(devices, count))
		return open_vfio(devices, count, opts, asked, queue);
	wanted = opts->backend;
	/* What the caller asks for is had or nothing; what a settings file says is tried first. */
	if (wanted == SPW_BACKEND_NVME ||
	    (wanted == SPW_BACKEND_AUTO && are_nvme_chars(devices, count)))
		return spw_queue_open_with(devices, count, opts, in_order,
					   asked == SPW_BACKEND_NVME ? 1 : 3, queue);
	if (wanted == SPW_BACKEND_IO_URING)
		return spw_queue_open_with(devices, count, opts, in_order + 1, 1, queue);
	if (wanted == SPW_BACKEND_LIBAIO)
		return spw_queue_open_with(devices, count, opts, libaio_first,
					   asked == SPW_BACKEND_LIBAIO ? 1 : 2, queue);
	return spw_queue_open_with(devices, count, opts, in_order + 1, 2, queue);
}
