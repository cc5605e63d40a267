/* SPDX-License-Identifier: MIT */
/*
 * spillway/format.h - making, examining and removing a store on drives
 *
 * Contract
 *   Threads    Every function may be called from any thread; none keeps anything between calls.
 *   Safety     spw_format() and spw_wipe() are the only functions of spillway that write to a
 *              device outside an open store by themselves, and they write only to the devices
 *              named, each claimed by spw_claim(). A device that is mounted, held, swapped on or in
 *              use by a store is refused always; one that carries a partition table, a file system
 *              or any signature that libblkid knows is refused unless forced; one on which nothing
 *              is known, but whose first or last MiB is not all zeros, unless it is to be erased.
 *              Neither stands for the other. A refusal happens before the first byte is written to
 *              any of the devices.
 *   Errors     0 or a count, or a negative errno, with the device, the cause and the remedy in
 *              spw_last_error(). -EBUSY, -EEXIST (carries something), -ENOTUNIQ (named twice) and
 *              -ESPIPE (zoned) are refusals for safety.
 *   Structs    The caller sets the size of an info struct before the call; 0 is taken as this
 *              library's. Of an array, the first element's counts for all.
 *   Trust      Nothing read from a drive is trusted: bad bytes give -EUCLEAN or -EMEDIUMTYPE, never
 *              a crash.
 */
#ifndef SPILLWAY_FORMAT_H
#define SPILLWAY_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/engine.h>
#include <spillway/error.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPW_DRIVES_MAX      64u
#define SPW_PARTITIONS_MAX  256u
#define SPW_CHUNK_BYTES_MIN (64u << 10)
#define SPW_CHUNK_BYTES_MAX (64u << 20)
#define SPW_UUID_TEXT_BYTES 37

struct spw_format_opts {
	size_t size;
	uint32_t partitions;  /* 1..SPW_PARTITIONS_MAX; default 1 */
	uint64_t chunk_bytes; /* unit of striping, a power of two; 0: chosen (1 MiB); default 0 */
	/* overwrite stores and signatures; never a device in use; default false */
	bool force;
	struct spw_log log;
	/*
	 * overwrite bytes that nothing known accounts for, and what is committed in a store;
	 * default false
	 */
	bool erase;
};

struct spw_wipe_opts {
	size_t size;
	bool erase; /* what is committed, too; default false */
	struct spw_log log;
};

/* What a store's superblocks say. */
struct spw_store_info {
	size_t size;
	char store_uuid[SPW_UUID_TEXT_BYTES];
	uint32_t format_version;
	uint32_t drives;
	uint32_t partitions;
	uint32_t block_bytes; /* unit of allocation */
	uint64_t chunk_bytes;
	uint64_t capacity_bytes;           /* for data, all drives and partitions together */
	uint64_t partition_capacity_bytes; /* of one partition, all drives together */
	uint32_t partitions_in_use;        /* held by a process right now */
};

/* What one drive's superblocks say. */
struct spw_drive_info {
	size_t size;
	char path[256];
	char drive_uuid[SPW_UUID_TEXT_BYTES];
	uint32_t index;
	uint32_t copies_good; /* 1 or 2 superblock copies are intact */
	uint64_t size_bytes;  /* of the device */
	uint64_t data_offset_bytes;
	uint64_t partition_bytes; /* of each partition on this drive */
	uint64_t sequence;
	struct spw_geometry geometry;
	int32_t error;    /* what is wrong with this drive by itself: 0, or as spw_store_open() */
	char reason[256]; /* in words, with the remedy; "" when nothing is */
};

/* One candidate device, whatever it holds. */
struct spw_probe_info {
	size_t size;
	char path[256];
	struct spw_geometry geometry;
	/* "nothing known", "unknown data", "ext4 file system \"root\"", "spillway store ..." */
	char holds[160];
	bool usable; /* spw_format() without force and erase would take it */
	bool has_store;
	char reason[256]; /* why it is not usable, with the remedy; "" when usable */
	/* 0 when usable, else what spw_format() returns: -EBUSY when it is in use */
	int error;
	bool unknown_data; /* nothing is known on it, but an end of it is not empty */
	/*
	 * where an NVMe drive's controller is, of several paths each, "; " between them:
	 * "0000:3d:00.0", "traddr=10.0.0.7,trsvcid=4420"; "" of other devices
	 */
	char address[256];
};

/* What is committed. */
struct spw_commit_info {
	size_t size;
	uint64_t number;       /* that its caller gave it */
	uint64_t record_bytes; /* length of what the caller put beside the objects */
	uint32_t objects;
	bool has_previous; /* the commit before is still held: a crash of others may ask for it */
	uint64_t previous; /* its number */
	/* of an open store alone: */
	bool mirrored;        /* made with a mirror, if need be of one copy: see runs_single */
	uint64_t runs;        /* of bytes, in all its objects: chunks, or parts of them */
	uint64_t runs_single; /* of these, how many have one copy alone */
};

SPW_EXPORT void spw_format_opts_init(struct spw_format_opts *opts, size_t size);

/**
 * spw_format - make a new, empty store on @count drives
 * @paths:  block devices or existing regular files of at least SPW_DRIVE_BYTES_MIN each; sizes may
 *          differ
 * @info:   set on success; may be NULL
 *
 * Checks all drives before it writes to the first. Between the ends of a drive on which nothing is
 * known it looks at 64 places: data there is a warning in the log. What the drives held is lost
 * (their data blocks are not overwritten: see spw_wipe()). A crash in between leaves drives that
 * spw_store_open() refuses as "format did not finish", never a store of mixed generations.
 *
 * Return: 0; -EINVAL options; -ENOSPC a drive is too small; -EEXIST a drive carries something (not
 * forced), or data of nobody knows whom, or a commit (not to be erased); -EBUSY a drive is in use;
 * -ENOTUNIQ a drive is named twice; -ESPIPE a drive is zoned, and takes no write out of order; or
 * what opening and writing it returns.
 */
SPW_EXPORT int spw_format(const char *const paths[], unsigned count,
			  const struct spw_format_opts *opts, struct spw_store_info *info);

/**
 * spw_check - read and verify every superblock copy of a store and whether its drives belong
 * together
 * @info:    set when the store is usable; else what any of the drives says of it, with drives 0
 * @drives:  array of @count, one per path in the order given; entries are filled as far as they
 *           could be read; may be NULL
 *
 * Reads only. Works while the store is open elsewhere.
 *
 * Return: 0 the store can be opened; else as spw_store_open(), for the first fault found.
 */
SPW_EXPORT int spw_check(const char *const paths[], unsigned count, struct spw_store_info *info,
			 struct spw_drive_info drives[]);

/**
 * spw_committed - what is committed in a partition, without opening the store
 * @paths, @count:  the store's drives
 * @info:           number, has_previous and previous are set, the rest is 0
 *
 * Reads only; works while the store is open elsewhere. For processes that have to agree on a commit
 * that all of them have: opening with another number than the newest gives that up.
 *
 * With drives missing: what the others have. Return: 0; -ENODATA nothing is; -EINVAL no such
 * partition; -EUCLEAN drives went on without each other, or contradict; else as spw_store_open().
 */
SPW_EXPORT int spw_committed(const char *const paths[], unsigned count, uint32_t partition,
			     struct spw_commit_info *info, size_t size);

/**
 * spw_wipe - remove a store: overwrite both superblock copies of every drive, so that the drives
 * are free again
 *
 * Discards the data area too where the device can. Refuses a drive that holds no spillway
 * superblock (-EMEDIUMTYPE), one in use (-EBUSY), or one with a commit that is not to be erased
 * (-EEXIST). A drive of an incomplete store (others missing) may be wiped.
 *
 * @opts: NULL: the defaults
 */
SPW_EXPORT void spw_wipe_opts_init(struct spw_wipe_opts *opts, size_t size);
SPW_EXPORT int spw_wipe(const char *const paths[], unsigned count,
			const struct spw_wipe_opts *opts);

/**
 * spw_claim - open a drive read-write as its only user, to write anywhere on it
 * @log:  may be NULL
 *
 * Until spw_device_close() nobody who asks gets the drive, a part of it, or the whole of which it
 * is a part: a block device is held exclusively (O_EXCL), and all of its bytes, or of the file, are
 * locked. Does not look at what the drive carries: see spw_probe(). A process that was killed a
 * moment ago is waited for, up to five seconds, and the log says so.
 *
 * Return: 0; -EBUSY it is mounted, held, swapped on, shown by a loop device, or in use by a
 * process; -EROFS it is write-protected; or as spw_device_open().
 */
SPW_EXPORT int spw_claim(const char *path, const struct spw_log *log, struct spw_device **device);

/**
 * spw_probe - one device: geometry, what is on it, and whether it could be formatted
 *
 * Reads only. A device that cannot even be opened still gives 0, with usable false and the reason.
 */
SPW_EXPORT int spw_probe(const char *path, struct spw_probe_info *info);

/**
 * spw_probe_list - the paths of all whole block devices of this machine that have a size,
 * partitions and device-mapper targets included
 * @paths:  set to an array of strings to be given to spw_probe_list_free()
 *
 * Return: how many, or a negative errno.
 */
SPW_EXPORT int spw_probe_list(char ***paths);
SPW_EXPORT void spw_probe_list_free(char **paths);

/**
 * spw_drives_distinct - does each path name another drive?
 *
 * Two names of one: links, nodes of one number, the block and the character node of an NVMe
 * namespace, spellings of a PCI address. What cannot be examined counts as a drive of its own.
 * Opens nothing.
 *
 * Return: 0; -ENOTUNIQ, with the first two names of one drive in spw_last_error().
 */
SPW_EXPORT int spw_drives_distinct(const char *const paths[], unsigned count);

/**
 * spw_tune_read - what `spillway tune` found best, for the options with which drives are opened
 * @path:    the file; NULL or "": none
 * @drives:  whose it must be, all of them; none: whoever's
 * @log:     hears that it is for other drives; may be NULL
 * @tune:    set; depths of 0 where there is no file, or it is for other drives
 *
 * A drive is told by model, size and serial number; one without a serial number by its path. Each
 * is opened read-only for that. The library itself reads no environment: the command, the fio
 * engine and the Python package hand over what SPILLWAY_TUNE names.
 *
 * Return: 0; -EINVAL not such a file, with line and column where it is not even JSON; or what
 * opening it gives.
 */
SPW_EXPORT int spw_tune_read(const char *path, const char *const drives[], unsigned count,
			     const struct spw_log *log, struct spw_tune *tune, size_t size);

/* Smallest drive that can be formatted: two superblock copies and some data. */
#define SPW_DRIVE_BYTES_MIN (16u << 20)

#ifdef __cplusplus
}
#endif
#endif
