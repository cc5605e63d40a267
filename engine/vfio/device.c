/* SPDX-License-Identifier: MIT */
/* engine/vfio/device.c - a namespace behind vfio as a device */
#include "engine/device.h"
#include "engine/vfio/vfio.h"

static int vfio_read(const struct spw_device *device, void *buf, size_t len, uint64_t offset_bytes)
{
	return spw_vfio_read(device->state, buf, len, offset_bytes);
}

static int vfio_write(const struct spw_device *device, const void *buf, size_t len,
		      uint64_t offset_bytes)
{
	return spw_vfio_write(device->state, buf, len, offset_bytes);
}

static int vfio_sync(const struct spw_device *device)
{
	return spw_vfio_flush(device->state);
}

static int vfio_discard(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes)
{
	return spw_vfio_deallocate(device->state, offset_bytes, len_bytes);
}

static int vfio_write_zeroes(const struct spw_device *device, uint64_t offset_bytes,
			     uint64_t len_bytes)
{
	return spw_vfio_write_zeroes(device->state, offset_bytes, len_bytes);
}

static int vfio_lock(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes)
{
	return spw_vfio_lock(device->state, device, offset_bytes, len_bytes);
}

static int vfio_unlock(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes)
{
	return spw_vfio_unlock(device->state, device, offset_bytes, len_bytes);
}

static void vfio_close(struct spw_device *device)
{
	if (!device->state)
		return;
	(void)spw_vfio_unlock(device->state, device, 0, 0);
	spw_vfio_close(device->state);
}

static const struct spw_device_ops vfio_ops = {
	.read = vfio_read,
	.write = vfio_write,
	.sync = vfio_sync,
	.discard = vfio_discard,
	.write_zeroes = vfio_write_zeroes,
	.lock = vfio_lock,
	.unlock = vfio_unlock,
	.close = vfio_close,
};

int spw_vfio_device_open(struct spw_device *device, bool exclusive)
{
	struct spw_vfio_namespace *ns;
	int ret = spw_vfio_open(device->path, exclusive, &device->log, &ns);

	if (ret)
		return ret;
	device->ops = &vfio_ops;
	device->state = ns;
	spw_vfio_geometry(ns, &device->geometry);
	return 0;
}
