/* SPDX-License-Identifier: MIT */
/* drives/vfio/bind.h - what examining a controller, binding it and giving it back share */
#ifndef SPW_DRIVES_VFIO_BIND_H
#define SPW_DRIVES_VFIO_BIND_H

#include "engine/vfio/system.h"

/*
 * What stands in the way of taking a controller, whatever its namespaces hold.
 * Return: 0; the first obstacle, in words; all of them are in @controller.
 */
int spw_vfio_find_obstacles(const struct spw_vfio_system *system,
			    struct spw_vfio_probe_info *controller);

/*
 * Has the controller its IOMMU group to itself, but for bridges? Return: 0; -EBUSY there are other
 * devices in it, by whatever driver or by none, in words; or another negative errno: nobody can
 * tell.
 */
int spw_vfio_verify_alone(const struct spw_vfio_system *system,
			  const struct spw_vfio_probe_info *controller);

/*
 * Does the kernel reach a namespace of the controller by another controller too? Return: 0; -EBUSY
 * it does, in words; or another negative errno: nobody can tell.
 */
int spw_vfio_verify_only_path(const struct spw_vfio_system *system, const char *address);

/*
 * Has the kernel, if it drives the controller, looked for its namespaces? Return: 0; -EAGAIN not
 * yet, in words.
 */
int spw_vfio_verify_shown(const struct spw_vfio_probe_info *controller);

int spw_vfio_examine_in(const struct spw_vfio_system *system, const char *address,
			struct spw_vfio_probe_info *controller);
int spw_vfio_bind_in(const struct spw_vfio_system *system, const char *address,
		     const struct spw_vfio_bind_opts *opts);
int spw_vfio_unbind_in(const struct spw_vfio_system *system, const char *address,
		       const struct spw_log *log);

#endif
