/* SPDX-License-Identifier: MIT */
/* drives/vfio/bind.h - shared by examining, binding and unbinding a controller */
#ifndef SPW_DRIVES_VFIO_BIND_H
#define SPW_DRIVES_VFIO_BIND_H

#include "engine/vfio/system.h"

/* Find obstacles to binding or driving, except contents. Return: 0; the first, with a message. */
int spw_drives__vfio_find_obstacles(const struct spw_vfio_system *system,
				    struct spw_vfio_probe_info *controller);

/* Is the controller alone in its IOMMU group, apart from bridges? Return: 0; -EBUSY; -errno. */
int spw_drives__vfio_verify_alone(const struct spw_vfio_system *system,
				  const struct spw_vfio_probe_info *controller);

/* Has the kernel another path to a namespace? Return: 0; -EBUSY; -errno. */
int spw_drives__vfio_verify_only_path(const struct spw_vfio_system *system, const char *address);

/* If the kernel drives the controller, has it found the namespaces? Return: 0; -EAGAIN not yet. */
int spw_drives__vfio_verify_shown(const struct spw_vfio_probe_info *controller);

int spw_drives__vfio_examine_in(const struct spw_vfio_system *system, const char *address,
				struct spw_vfio_probe_info *controller);
int spw_drives__vfio_bind_in(const struct spw_vfio_system *system, const char *address,
			     const struct spw_vfio_bind_opts *opts);
int spw_drives__vfio_unbind_in(const struct spw_vfio_system *system, const char *address,
			       const struct spw_log *log);

#endif
