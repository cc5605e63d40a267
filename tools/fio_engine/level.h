/* SPDX-License-Identifier: MIT */
/*
 * tools/fio_engine/level.h - what fio's requests are run against: a volume of devices, or a store
 * of objects
 *
 * fio_engine.c alone knows fio; volume.c and objects.c alone know spillway. Between them lie
 * requests: an operation on a range of one address space, that ends exactly once, either at once
 * (queue returns SPW_FIO_DONE) or later by its done function, called from submit or reap. A level
 * belongs to one thread. Errors are negative errnos with spw_last_error(), those of a request in
 * res and text.
 */
#ifndef SPW_FIO_LEVEL_H
#define SPW_FIO_LEVEL_H

#include <stdio.h>

#include <spillway/spillway.h>

enum spw_fio_queued {
	SPW_FIO_QUEUED,
	SPW_FIO_DONE, /* ended already: res is set, done will not be called */
	SPW_FIO_BUSY, /* nothing happened: reap, then try again */
};

struct spw_fio_config {
	char **paths;
	unsigned path_count;
	/* the paths are one address space; else numbered by spw_fio_request.file */
	bool striped;
	uint64_t chunk_bytes;
	enum spw_backend backend;
	enum spw_wait wait;
	uint32_t depth;             /* requests at once */
	uint64_t block_bytes_max;   /* largest request */
	uint64_t range_start_bytes; /* what the job touches; for objects only */
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
	void *context; /* fio_engine.c's */

	int res; /* 0 or a negative errno */

	struct spw_fio_level *level;

	struct spw_io *pieces; /* the level's pieces_max of them */

	/* the level's */
	uint32_t pieces_pending;
	spw_object object;

	char text[SPW_FIO_TEXT_BYTES]; /* of res */
};

struct spw_fio_level {
	const struct spw_fio_level_ops *ops;
	unsigned pieces_max;     /* of one request */
	const char *description; /* from start on */
};

struct spw_fio_level_ops {
	/* The size of one address space. What the job writes is claimed by now. */
	int (*size)(const struct spw_fio_config *config, unsigned file, uint64_t *bytes);
	int (*open)(const struct spw_fio_config *config, struct spw_fio_level **level);
	/* Memory that is registered with the drives' queues. Before start. */
	int (*memory_alloc)(struct spw_fio_level *level, size_t len, void **memory);
	void (*memory_free)(struct spw_fio_level *level, void *memory);
	int (*start)(struct spw_fio_level *level);
	enum spw_fio_queued (*queue)(struct spw_fio_level *level, struct spw_fio_request *request);
	int (*submit)(struct spw_fio_level *level);
	/* Submit and reap. @wait_for: sleep until about this many have ended; 0 does not sleep. */
	int (*reap)(struct spw_fio_level *level, unsigned wait_for);
	void (*close)(struct spw_fio_level *level);
};

extern const struct spw_fio_level_ops spw_fio_volume;
extern const struct spw_fio_level_ops spw_fio_objects;

/* The request has ended with @err, described by spw_last_error(). Return: SPW_FIO_DONE. */
static inline enum spw_fio_queued spw_fio_failed(struct spw_fio_request *request, int err)
{
	request->res = err;
	(void)snprintf(request->text, sizeof(request->text), "%s", spw_last_error());
	return SPW_FIO_DONE;
}

/* Put an object of @block everywhere, to be read. @block is used until the level closes. */
int spw_fio_objects_lay_out(struct spw_fio_level *level, void *block);

#endif
