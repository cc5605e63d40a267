/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/function.h - controllers (PCI functions) behind vfio-pci, and two ways to reach one
 *
 *   iommufd  (iommufd.c) The device's own node, /dev/vfio/devices/vfioN, is bound to /dev/iommu and
 *            attached to an address space there. Kernels from 6.6 on may have it.
 *   group    (container.c) /dev/vfio/N, for what the IOMMU can keep apart, mostly one device, is
 *            put into a container, /dev/vfio/vfio, which has the address space.
 *
 * All controllers that are reached the same way share one address space, a domain (domain.c):
 * memory is mapped once. Registers and configuration are the same either way (function.c).
 */
#ifndef SPW_ENGINE_VFIO_FUNCTION_H
#define SPW_ENGINE_VFIO_FUNCTION_H

#include <pthread.h>

#include "engine/vfio/link.h"
#include "engine/vfio/space.h"

struct spw_vfio_way;
struct spw_vfio_group; /* of container.c */

/* Of all domains and groups, and of what is mapped. */
extern pthread_mutex_t spw_vfio__domains_lock;

struct spw_vfio_domain {
	const struct spw_vfio_way *way;
	struct spw_vfio_domain **current; /* that the next function takes; may be another */
	int fd;                           /* of the container, or of /dev/iommu */
	uint32_t ioas;                    /* iommufd: the address space in it */
	unsigned members;                 /* groups, or functions, that reach memory by it */
	unsigned links;                   /* that have it, also those that are cut */
	struct spw_vfio_space space;
};

struct spw_vfio_function {
	struct spw_vfio_link link; /* first */
	const struct spw_vfio_way *way;
	struct spw_vfio_domain *domain; /* NULL: none yet */
	struct spw_vfio_group *group;   /* by group: NULL: none yet, or cut */
	unsigned group_number;          /* of the IOMMU */
	bool attached;                  /* by iommufd: to the domain */
	int fd;                         /* of the device; -1: none yet, or cut */
};

struct spw_vfio_way {
	const char *name;
	const char *more_memory; /* what to do when memory cannot be locked */

	/* The kernel's part of a new domain, with its fd. The lock is held. Return: 0; -errno. */
	int (*make)(struct spw_vfio_domain *domain);

	/* Open and map the device; its reset takes long. leave() undoes it also after an error. */
	int (*open)(struct spw_vfio_function *f);

	/* Close the device: afterwards the IOMMU lets nothing through. Keeps the domain. */
	void (*leave)(struct spw_vfio_function *f);

	/* The lock is held. Return: 0; a negative errno, without words. */
	int (*map)(struct spw_vfio_domain *domain, const struct spw_vfio_mapping *mapping);
	int (*unmap)(struct spw_vfio_domain *domain, const struct spw_vfio_mapping *mapping);
};

extern const struct spw_vfio_way spw_vfio__by_iommufd, spw_vfio__by_group;

/* Assign a present or new domain. The lock is held. Return: 0; -errno. */
int spw_vfio__domain_get(const struct spw_vfio_way *way, struct spw_vfio_domain **current,
			 struct spw_vfio_function *f);

/* The function has none any more; without functions it is gone. */
void spw_vfio__domain_put(struct spw_vfio_function *f);

/* The kernel does not take it as its interrupts are not kept apart. Return: -EPERM, in words. */
int spw_vfio__unsafe_interrupts(const struct spw_vfio_function *f, const char *module);

#endif
