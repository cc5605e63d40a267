/* SPDX-License-Identifier: MIT */
/*
 * tools/fio_engine/level.h - the interface between fio and spillway: run requests on a volume of
 * devices, or on a store of objects
 *
 * Only fio_engine.c knows fio; only volume.c and objects.c know spillway. They exchange requests:
 * an operation on a range of one address space, which ends exactly once, either in queue
 * (SPW_FIO_DONE) or later by its done function, called from submit or reap. A level belongs to one
 * thread. Errors are negative errnos with spw_last_error(), those of a request in res and text.
 */
#ifndef SPW_FIO_LEVEL_H
#define SPW_FIO_LEVEL_H

#include <stdio.h>

#include <spillway/spillway.h>

enum spw_fio_queued {
	SPW_FIO_QUEUED,
	SPW_FIO_DONE, /* the request has ended: res is set, done will not be called */
	SPW_FIO_BUSY, /* nothing happened: reap, then queue again */
};

struct spw_fio_config {
	char **paths;
	unsigned path_count;
	/* all paths are one address space; else each is one, numbered by spw_fio_request.file */
	bool striped;
	uint64_t chunk_bytes;
	enum spw_backend backend;
	enum spw_wait wait;
	uint32_t depth;             /* most requests in flight */
	uint64_t block_bytes_max;   /* length of the largest request */
	uint64_t range_start_bytes; /* the range that the job touches; for objects only */
	uint64_t range_len_bytes;
	bool read_only;
	struct spw_log log;
};

#define SPW_FIO_TEXT_BYTES 256

struct spw_fio_request {
	enum spw_op op; /* SPW_DISCARD is a trim, SPW_FLUSH a sync */
	uint32_t file;
	uint64_t offset_bytes;
	uint64_t len_bytes;
	void *buf;
	void (*done)(struct spw_fio_request *request);
	void *context; /* for fio_engine.c */

	int res; /* 0 or a negative errno */

	struct spw_fio_level *level;

	struct spw_io *pieces; /* pieces_max of the level */

	/* for the level */
	uint32_t pieces_pending;
	spw_object object;

	char text[SPW_FIO_TEXT_BYTES]; /* the message of res */
};

struct spw_fio_level {
	const struct spw_fio_level_ops *ops;
	unsigned pieces_max;     /* most pieces of a request */
	const char *description; /* set by start */
};

struct spw_fio_level_ops {
	/* Get the size of an address space. A volume claims devices that the job writes. */
	int (*size)(const struct spw_fio_config *config, unsigned file, uint64_t *bytes);
	int (*open)(const struct spw_fio_config *config, struct spw_fio_level **level);
	/* Allocate memory that is registered with the drives' queues. Call it before start. */
	int (*memory_alloc)(struct spw_fio_level *level, size_t len, void **memory);
	void (*memory_free)(struct spw_fio_level *level, void *memory);
	int (*start)(struct spw_fio_level *level);
	enum spw_fio_queued (*queue)(struct spw_fio_level *level, struct spw_fio_request *request);
	int (*submit)(struct spw_fio_level *level);
	/* Submit and reap. @wait_for: sleep until about this many have ended; 0: do not sleep */
	int (*reap)(struct spw_fio_level *level, unsigned wait_for);
	void (*close)(struct spw_fio_level *level);
};

extern const struct spw_fio_level_ops spw_fio_volume;
extern const struct spw_fio_level_ops spw_fio_objects;

/* End a request with @err, described by spw_last_error(). Return: SPW_FIO_DONE. */
static inline enum spw_fio_queued spw_fio_failed(struct spw_fio_request *request, int err)
{
	request->res = err;
	(void)snprintf(request->text, sizeof(request->text), "%s", spw_last_error());
	return SPW_FIO_DONE;
}

/* Put an object with the bytes of @block at each block, to be read. @block is used until close. */
int spw_fio_objects_lay_out(struct spw_fio_level *level, void *block);

#endif
