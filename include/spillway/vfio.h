/* SPDX-License-Identifier: MIT */
/*
 * spillway/vfio.h - NVMe controllers that a process drives itself: listing, examining, binding them
 * to vfio-pci and back
 *
 * Contract
 *   Threads    Every function may be called from any thread; they keep no state between calls.
 *   Safety     Nothing is written to a drive. spw_vfio_bind() takes a controller from the kernel
 *              only while no namespace of it is mounted, claimed, swapped on or in use by a store,
 *              including partitions and other paths to the same drive, and, unless forced, never
 *              one with data that spw_format() would not overwrite. A refusal changes nothing; a
 *              failure half-way is undone.
 *   Names      A controller is named by its PCI address: "0000:3d:00.0", "3d:00.0". A namespace
 *              behind one that is bound to vfio-pci is a device named "pci:0000:3d:00.0/1",
 *              wherever a device is named.
 *   Errors     0 or a count, or a negative errno, with the device, the cause and the remedy in
 *              spw_last_error().
 *   Structs    The caller sets the size of a struct before the call; 0: the size in this version of
 *              the library.
 */
#ifndef SPILLWAY_VFIO_H
#define SPILLWAY_VFIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/error.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPW_VFIO_OBSTACLES_MAX 12u

/* A reason why a controller cannot be bound or driven, with the remedy. */
struct spw_vfio_obstacle {
	int error; /* the errno that spw_vfio_bind(), or opening the device, returns for it */
	/* it prevents spw_vfio_bind(); if false, only driving the controller afterwards */
	bool of_bind;
	uint8_t reserved[3];
	char text[320];
};
SPW_ABI(struct spw_vfio_obstacle, text, 8, 328);

struct spw_vfio_probe_info {
	size_t size;
	char address[16]; /* "0000:3d:00.0" */
	char driver[32];  /* "nvme", "vfio-pci"; "": none */
	/* model and serial number are known while the kernel drives it; else "" */
	char model[64];
	char serial[64];
	char block_devices[256]; /* "/dev/nvme0n1, /dev/nvme0n2"; "" behind vfio-pci */
	int32_t iommu_group;     /* -1: none */
	int32_t numa_node;       /* -1: unknown or none */
	bool bindable;           /* spw_vfio_bind() would bind it without force */
	bool ready;              /* bound to vfio-pci, and without obstacles */
	uint32_t obstacles;
	struct spw_vfio_obstacle obstacle[SPW_VFIO_OBSTACLES_MAX];
	/*
	 * how a process of this user would access it: "iommufd", "group"; "": unknown before the
	 * vfio modules are loaded
	 */
	char way[16];
	/* if way is "group": why not iommufd, with the remedy; not an obstacle */
	char not_iommufd[256];
	/* "/dev/vfio/devices/vfio0", for iommufd; "": not bound, or the kernel has no such node */
	char device_node[192];
};
SPW_ABI(struct spw_vfio_probe_info, device_node, 4664, 4856);

struct spw_vfio_bind_opts {
	size_t size;
	/*
	 * bind a controller even if a namespace has a signature, but never one in use; default
	 * false
	 */
	bool force;
	bool dry_run; /* examine and claim the controller, then release it; default false */
	struct spw_log log;
	/*
	 * Refuse a controller that shares its IOMMU group with other devices than bridges, even if
	 * it is bound already. Use it before giving another user the group's node, which gives
	 * access to all devices of the group that vfio-pci drives; default false
	 */
	bool alone;
};
SPW_ABI(struct spw_vfio_bind_opts, alone, 32, 40);

/**
 * spw_vfio_bind_opts_init - set the defaults
 * @opts:  set
 * @size:  sizeof *@opts
 */
SPW_EXPORT void spw_vfio_bind_opts_init(struct spw_vfio_bind_opts *opts, size_t size);

/**
 * spw_vfio_list - list the PCI addresses of all NVMe controllers of this machine
 * @addresses:  set to an array of strings, for spw_probe_list_free() of spillway/format.h
 *
 * Return: how many, or a negative errno.
 */
SPW_EXPORT int spw_vfio_list(char ***addresses);

/**
 * spw_vfio_examine - examine one controller, and find what prevents a process from driving it
 * @address:     its PCI address
 * @controller:  set on success; its size field must be set
 *
 * Reads only, and does not open the controller. Facts that only root can read become obstacles for
 * other users.
 *
 * Return: 0; -EINVAL not a PCI address; -ENODEV no such device; -EMEDIUMTYPE not an NVMe
 * controller.
 */
SPW_EXPORT int spw_vfio_examine(const char *address, struct spw_vfio_probe_info *controller);

/**
 * spw_vfio_bind - take a controller from the kernel's driver and bind it to vfio-pci
 * @address:  its PCI address
 * @opts:     or NULL for the defaults
 *
 * The controller's block devices disappear; their contents are not changed. All namespaces stay
 * claimed, as by spw_format(), until the kernel's driver has released them. Loads no module. Does
 * nothing if the controller is bound already. The contents of a controller without a driver cannot
 * be examined: it is bound without a check.
 *
 * Return: 0; -EBUSY a namespace or partition is in use, another driver uses the device, the kernel
 * reaches a namespace through another controller too, or other devices share the IOMMU group;
 * -EEXIST a namespace holds data, and @opts->force is not set; -EOPNOTSUPP there is no IOMMU;
 * -ENOENT vfio-pci is not loaded; -EAGAIN the kernel has not scanned its namespaces yet; -EACCES,
 * -EPERM not root; -EIO the kernel failed, and all changes were undone; or as spw_vfio_examine().
 */
SPW_EXPORT int spw_vfio_bind(const char *address, const struct spw_vfio_bind_opts *opts);

/**
 * spw_vfio_unbind - return a controller to the kernel's driver
 * @address:  its PCI address
 * @log:      or NULL
 *
 * Does not wait for its block devices, which appear some time later. Does nothing if the controller
 * is not bound to vfio-pci.
 *
 * Return: 0; -EBUSY a process drives it, or another driver has it; -ENODEV no kernel driver accepts
 * it; or as spw_vfio_examine().
 */
SPW_EXPORT int spw_vfio_unbind(const char *address, const struct spw_log *log);

#ifdef __cplusplus
}
#endif
#endif
