/* SPDX-License-Identifier: MIT */
/* drives/vfio/bind.h - what examining a controller, binding it and giving it back share */
#ifndef SPW_DRIVES_VFIO_BIND_H
#define SPW_DRIVES_VFIO_BIND_H

#include "engine/vfio/system.h"

/* What hinders taking a controller, apart from contents. Return: 0; the first, in words. */
int spw_drives__vfio_find_obstacles(const struct spw_vfio_system *system,
				    struct spw_vfio_probe_info *controller);

/* Is the controller, bridges apart, alone in its IOMMU group? Return: 0; -EBUSY; -errno. */
int spw_drives__vfio_verify_alone(const struct spw_vfio_system *system,
				  const struct spw_vfio_probe_info *controller);

/* Does another controller of the kernel reach a namespace too? Return: 0; -EBUSY; -errno. */
int spw_drives__vfio_verify_only_path(const struct spw_vfio_system *system, const char *address);

/* Has the kernel, if it drives it, found its namespaces? Return: 0; -EAGAIN not yet. */
int spw_drives__vfio_verify_shown(const struct spw_vfio_probe_info *controller);

int spw_drives__vfio_examine_in(const struct spw_vfio_system *system, const char *address,
				struct spw_vfio_probe_info *controller);
int spw_drives__vfio_bind_in(const struct spw_vfio_system *system, const char *address,
			     const struct spw_vfio_bind_opts *opts);
int spw_drives__vfio_unbind_in(const struct spw_vfio_system *system, const char *address,
			       const struct spw_log *log);

#endif
