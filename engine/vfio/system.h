/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/system.h - NVMe controllers as sysfs shows them, and whose they are
 *
 * All goes through a struct spw_vfio_system, so that tests can have a sysfs, a /dev and a kernel of
 * their own.
 */
#ifndef SPW_ENGINE_VFIO_SYSTEM_H
#define SPW_ENGINE_VFIO_SYSTEM_H

#include <limits.h>

#include <spillway/vfio.h>

struct spw_vfio_system {
	const char *sysfs; /* "/sys" */
	const char *dev;   /* "/dev" */
	/* "/proc/devices": kinds of character devices that the kernel has now */
	const char *char_devices;
	/* Write @text to the attribute at @path. Return: 0 or a negative errno. */
	int (*write)(void *context, const char *path, const char *text);
	void *context;
	bool namespaces_are_files; /* of a test: they have no device number */
	uint64_t memlock_bytes;    /* how much memory this process may lock; UINT64_MAX: all */
};

extern const char spw_vfio_driver[]; /* "vfio-pci" */

/* The system itself. */
void spw_vfio_system_init(struct spw_vfio_system *system);

/* The folder of a controller, or a file in it. */
void spw_vfio_folder(const struct spw_vfio_system *system, const char *address, const char *file,
		     char path[PATH_MAX]);

/* Name of the driver; "" when there is none. */
void spw_vfio_read_driver(const struct spw_vfio_system *system, const char *address, char *driver,
			  size_t len);

/* First line of a file. Return: false and "" when it cannot be read. */
bool spw_vfio_read_line(const char *path, char *line, size_t len);

/*
 * The block device of what sysfs has below a controller: "nvme0n1", and of a drive with several
 * controllers "nvme0c1n1" for nvme0n1. Return: false for anything else.
 */
bool spw_vfio_block_name(const char *entry, char *name, size_t len);

/* What sysfs says of a controller, without its obstacles. Return: as spw_vfio_examine(). */
int spw_vfio_identify(const struct spw_vfio_system *system, const char *address,
		      struct spw_vfio_probe_info *controller);

/*
 * Call @visit with the block node of each namespace, until it returns something else than 0.
 * Return: that; 0; or a negative errno: what the controller has cannot be told.
 */
int spw_vfio_each_namespace(const struct spw_vfio_system *system, const char *address,
			    int (*visit)(void *context, const char *node), void *context);

/*
 * "process 4711 (python3)": who drives the controller, as far as this user may look. Return: false:
 * nobody.
 */
bool spw_vfio_holder(const struct spw_vfio_system *system, const char *address, int *pid,
		     char *text, size_t len);

#endif
