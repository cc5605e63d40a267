/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/function.h - struct spw_vfio_function, spw_vfio_domain: PCI functions behind
 * vfio-pci, by iommufd or group
 *
 *   iommufd  (iommufd.c) The device's own node, /dev/vfio/devices/vfioN, is bound to /dev/iommu and
 *            attached to an address space there. Needs Linux 6.6 or later.
 *   group    (container.c) /dev/vfio/N is the smallest set of devices that the IOMMU can isolate,
 *            mostly one device. It is added to a container, /dev/vfio/vfio, which has the address
 *            space.
 *
 * All controllers that are opened in the same way share one address space, a domain (domain.c):
 * memory is mapped once. Registers and configuration are the same in both ways (function.c).
 */
#ifndef SPW_ENGINE_VFIO_FUNCTION_H
#define SPW_ENGINE_VFIO_FUNCTION_H

#include <pthread.h>

#include "engine/vfio/link.h"
#include "engine/vfio/space.h"

struct spw_vfio_way;
struct spw_vfio_group; /* see container.c */

/* Protects all domains, groups and mappings. */
extern pthread_mutex_t spw_vfio__domains_lock;

struct spw_vfio_domain {
	const struct spw_vfio_way *way;
	struct spw_vfio_domain **current; /* the domain for the next function; may be another one */
	int fd;                           /* the container's, or /dev/iommu's */
	uint32_t ioas;                    /* iommufd: the address space in it */
	unsigned members;                 /* groups, or functions, that are attached */
	unsigned links;                   /* links that use it, including those that are cut off */
	struct spw_vfio_space space;
};

struct spw_vfio_function {
	struct spw_vfio_link link; /* first */
	const struct spw_vfio_way *way;
	struct spw_vfio_domain *domain; /* NULL: not assigned yet */
	struct spw_vfio_group *group;   /* by group; NULL: not opened yet, or cut off */
	unsigned group_number;          /* of the IOMMU group */
	bool attached;                  /* by iommufd: attached to the domain */
	int fd;                         /* the device's; -1: not opened yet, or cut off */
};

struct spw_vfio_way {
	const char *name;
	const char *more_memory; /* advice when memory cannot be locked */

	/* Create a domain's kernel part. spw_vfio__domains_lock is held. Return: 0; -errno. */
	int (*make)(struct spw_vfio_domain *domain);

	/* Open and attach the device, which is reset: takes long. Call leave() also on errors. */
	int (*open)(struct spw_vfio_function *f);

	/* Close the device, which then cannot access memory any more. Keeps the domain. */
	void (*leave)(struct spw_vfio_function *f);

	/* Called with spw_vfio__domains_lock held. Return: 0; -errno without a message. */
	int (*map)(struct spw_vfio_domain *domain, const struct spw_vfio_mapping *mapping);
	int (*unmap)(struct spw_vfio_domain *domain, const struct spw_vfio_mapping *mapping);
};

extern const struct spw_vfio_way spw_vfio__by_iommufd, spw_vfio__by_group;

/* Assign an existing or new domain. spw_vfio__domains_lock is held. Return: 0; -errno. */
int spw_vfio__domain_get(const struct spw_vfio_way *way, struct spw_vfio_domain **current,
			 struct spw_vfio_function *f);

/* Remove the function from its domain, and free the domain after the last one. */
void spw_vfio__domain_put(struct spw_vfio_function *f);

/* Report that the kernel refuses a device whose interrupts are not isolated. Return: -EPERM. */
int spw_vfio__unsafe_interrupts(const struct spw_vfio_function *f, const char *module);

#endif
