/* SPDX-License-Identifier: MIT */
/* drives/format.h - spw_format() for tests that look at its transfers */
#ifndef SPW_DRIVES_FORMAT_H
#define SPW_DRIVES_FORMAT_H

#include <spillway/engine.h>
#include <spillway/format.h>

/* Transfers of format and wipe go through these, so that tests can see their order. */
struct spw_format_io {
	int (*pwrite)(void *context, const struct spw_device *device, const void *buf, size_t len,
		      uint64_t offset_bytes);
	int (*sync)(void *context, const struct spw_device *device);
	/* NULL, or -EOPNOTSUPP returned: zeroes are written. */
	int (*zero)(void *context, const struct spw_device *device, uint64_t len_bytes,
		    uint64_t offset_bytes);
	void *context;
};

/* spw_format() with transfers of the caller's. */
int spw_format_with(const char *const paths[], unsigned count, const struct spw_format_opts *opts,
		    struct spw_store_info *info, const struct spw_format_io *io);

#endif
