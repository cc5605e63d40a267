/* SPDX-License-Identifier: MIT */
/* engine/vfio/domain.c - spw_vfio__domain_get(): address spaces that several controllers share */
#include "engine/vfio/function.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "util/util.h"

pthread_mutex_t spw_vfio__domains_lock = PTHREAD_MUTEX_INITIALIZER;

int spw_vfio__domain_get(const struct spw_vfio_way *way, struct spw_vfio_domain **current,
			 struct spw_vfio_function *f)
{
	struct spw_vfio_domain *d = *current;
	int ret;

	if (!d) {
		d = calloc(1, sizeof(*d));
		if (!d)
			return spw_error(-ENOMEM, "vfio: no memory");
		d->way = way;
		d->current = current;
		d->fd = -1;
		ret = way->make(d);
		if (ret) {
			if (d->fd >= 0)
				(void)close(d->fd);
			free(d);
			return ret;
		}
		*current = d;
	}
	d->links++;
	f->domain = d;
	return 0;
}

void spw_vfio__domain_put(struct spw_vfio_function *f)
{
	struct spw_vfio_domain *d = f->domain;

	f->domain = NULL;
	(void)pthread_mutex_lock(&spw_vfio__domains_lock);
	if (d && --d->links == 0) {
		SPW_ASSERT(d->members == 0 && !d->space.mappings);
		if (*d->current == d)
			*d->current = NULL;
		(void)close(d->fd);
		free(d);
	}
	(void)pthread_mutex_unlock(&spw_vfio__domains_lock);
}

int spw_vfio__unsafe_interrupts(const struct spw_vfio_function *f, const char *module)
{
	return spw_error(-EPERM,
			 "pci:%s: the IOMMU does not keep its interrupts apart (no interrupt "
			 "remapping), which vfio takes only with %s.allow_unsafe_interrupts=1: any "
			 "device could then raise any interrupt",
			 f->link.address, module);
}
