/* SPDX-License-Identifier: MIT */
/* drives/signatures.c - find signatures on a drive with libblkid: file systems, tables, members */
#include <blkid/blkid.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/device.h"
#include "engine/vfio/vfio.h"
#include "drives/safety.h"
#include "util/util.h"

static const char *probe_value(blkid_probe probe, const char *name)
{
	const char *value;

	return blkid_probe_lookup_value(probe, name, &value, NULL) == 0 ? value : NULL;
}

static const char *usage_words(const char *usage, const char *type)
{
	if (strcmp(type, "swap") == 0)
		return "area";
	if (!usage)
		return "signature";
	if (strcmp(usage, "filesystem") == 0)
		return "file system";
	if (strcmp(usage, "crypto") == 0)
		return "encrypted volume";
	return strcmp(usage, "raid") == 0 ? "RAID or LVM member" : "signature";
}

static void describe(blkid_probe probe, struct spw_signature *signature)
{
	const char *type = probe_value(probe, "TYPE"), *table = probe_value(probe, "PTTYPE");
	const char *label = probe_value(probe, "LABEL"),
		   *magic = probe_value(probe, type ? "SBMAGIC_OFFSET" : "PTMAGIC_OFFSET");
	size_t len;

	if (type)
		(void)snprintf(signature->what, sizeof(signature->what),
			       label ? "%s %s \"%s\"" : "%s %s", type,
			       usage_words(probe_value(probe, "USAGE"), type), label);
	else
		(void)snprintf(signature->what, sizeof(signature->what), "%s partition table",
			       table ? table : "unknown");
	/* Labels may have any bytes, and texts are shown on terminals. */
	spw_make_printable(signature->what);
	signature->offset_bytes = magic ? strtoull(magic, NULL, 10) : 0;
	if (magic && blkid_probe_lookup_value(probe, type ? "SBMAGIC" : "PTMAGIC", NULL, &len) == 0)
		signature->len_bytes = len;
}

/* Search like wipefs(8): all magic numbers, even with a wrong checksum, and backup tables. */
static int configure(blkid_probe probe, int fd, unsigned sector_bytes)
{
	if (blkid_probe_set_device(probe, fd, 0, 0) != 0 ||
	    (sector_bytes && blkid_probe_set_sectorsize(probe, sector_bytes) != 0))
		return -EIO;
	blkid_probe_enable_superblocks(probe, 1);
	blkid_probe_set_superblocks_flags(probe, BLKID_SUBLKS_TYPE | BLKID_SUBLKS_LABEL |
							 BLKID_SUBLKS_USAGE | BLKID_SUBLKS_MAGIC |
							 BLKID_SUBLKS_BADCSUM);
	blkid_probe_enable_partitions(probe, 1);
	blkid_probe_set_partitions_flags(probe, BLKID_PARTS_MAGIC | BLKID_PARTS_FORCE_GPT);
	return 0;
}

static int collect(blkid_probe probe, struct spw_signatures *signatures)
{
	int more = 0;

	while (signatures->count < SPW_SIGNATURES_MAX && (more = blkid_do_probe(probe)) == 0) {
		struct spw_signature *signature = &signatures->found[signatures->count];

		describe(probe, signature);
		signatures->count++;
	}
	return more < 0 ? -EIO : 0;
}

void spw_drives__safety_prepare(void)
{
	blkid_init_debug(0);
}

/* @sector_bytes: 0: that of the device. */
static int search(const char *path, int fd, unsigned sector_bytes,
		  struct spw_signatures *signatures)
{
	blkid_probe probe = blkid_new_probe();
	int rc;

	if (!probe)
		return spw_error(-ENOMEM, "%s: no memory to search for file systems", path);
	rc = configure(probe, fd, sector_bytes);
	if (rc == 0)
		rc = collect(probe, signatures);
	blkid_free_probe(probe);
	return rc == 0 ? 0
		       : spw_error(rc,
				   "%s: libblkid could not read it to search for file systems; "
				   "check the drive",
				   path);
}

/* Count a boot sector: libblkid's check of NTFS reads the middle, which the image lacks. */
static void add_boot_sector(int fd, struct spw_signatures *signatures)
{
	uint8_t mark[2];

	if (signatures->count > 0 || pread(fd, mark, sizeof(mark), 510) != sizeof(mark) ||
	    mark[0] != 0x55 || mark[1] != 0xaa)
		return;
	(void)snprintf(signatures->found[0].what, sizeof(signatures->found[0].what), "boot sector");
	signatures->found[0].offset_bytes = 510;
	signatures->found[0].len_bytes = sizeof(mark);
	signatures->count = 1;
}

/*
 * ---- A drive that has no node ----
 *
 * libblkid reads an image in memory with the drive's beginning and end. Signatures are in the first
 * 2 MiB and in the last; a second LUKS header may begin at 4 MiB. Those that point to a place
 * between find zeros and may not be recognized.
 */

#define HEAD_BYTES (5u << 20)
#define TAIL_BYTES (2u << 20)
#define STEP_BYTES (256u << 10)

static int copy_range(const struct spw_device *device, int fd, uint8_t *buf, uint64_t from_bytes,
		      uint64_t to_bytes)
{
	int rc = 0;

	SPW_ASSERT(to_bytes <= device->geometry.size_bytes);
	while (rc == 0 && from_bytes < to_bytes) {
		size_t len = SPW_MIN(to_bytes - from_bytes, STEP_BYTES);

		rc = spw_device_pread(device, buf, len, from_bytes);
		/* A write to memory is never short. */
		if (rc == 0 && pwrite(fd, buf, len, (off_t)from_bytes) != (ssize_t)len)
			rc = spw_error(-ENOMEM, "%s: no memory for a copy of its ends",
				       spw_device_path(device));
		from_bytes += len;
	}
	return rc;
}

/* Make a file in memory with both ends of the drive. Return: a descriptor; -errno. */
static int image_of(const struct spw_device *device)
{
	const struct spw_geometry *geometry = spw_device_geometry(device);
	uint64_t end = geometry->size_bytes, head = SPW_MIN(end, HEAD_BYTES);
	uint64_t tail = end - head < TAIL_BYTES
				? head
				: spw_round_down(end - TAIL_BYTES, geometry->logical_block_bytes);
	uint8_t *buf = spw_engine__device_buffer(device, STEP_BYTES);
	int fd, rc;

	SPW_ASSERT(head <= tail && tail <= end);
	if (!buf)
		return -ENOMEM;
	fd = memfd_create("spillway-drive", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)end) != 0)
		rc = spw_error_errno(-errno, "%s: no memory for a copy of its ends",
				     spw_device_path(device));
	else
		rc = copy_range(device, fd, buf, 0, head);
	if (rc == 0)
		rc = copy_range(device, fd, buf, tail, end);
	free(buf);
	if (rc && fd >= 0)
		(void)close(fd);
	return rc ? rc : fd;
}

int spw_drives__safety_image_signatures(const struct spw_device *device,
					struct spw_signatures *signatures)
{
	int fd = image_of(device);
	int rc;

	memset(signatures, 0, sizeof(*signatures));
	if (fd < 0)
		return fd;
	rc = search(spw_device_path(device), fd, spw_device_geometry(device)->logical_block_bytes,
		    signatures);
	if (rc == 0)
		add_boot_sector(fd, signatures);
	(void)close(fd);
	return rc;
}

static int vfio_signatures(const char *path, struct spw_signatures *signatures)
{
	struct spw_device *device;
	int rc = spw_drives__safety_open(path, true, false, NULL, &device);

	if (rc == 0)
		rc = spw_drives__safety_image_signatures(device, signatures);
	spw_device_close(device);
	return rc;
}

int spw_drives__safety_signatures(const char *path, struct spw_signatures *signatures)
{
	int fd, rc;

	memset(signatures, 0, sizeof(*signatures));
	if (spw_vfio__is_name(path))
		return vfio_signatures(path, signatures);
	fd = spw_drives__safety_open_node(path);
	if (fd < 0)
		return spw_error_errno(fd, "%s: cannot be searched for file systems", path);
	rc = search(path, fd, 0, signatures);
	(void)close(fd);
	return rc;
}
