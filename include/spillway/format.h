/* SPDX-License-Identifier: MIT */
/*
 * spillway/format.h - formatting, checking, probing and wiping drives
 *
 * Contract
 *   Threads    Every function may be called from any thread; they keep no state between calls.
 *   Safety     spw_format(), spw_wipe(), spw_replace() and spw_add() are the only functions of
 *              spillway that write to a device outside an open store by themselves, and they write
 *              only to the devices named, each claimed by spw_claim(). A device that is mounted,
 *              claimed, swapped on or in use by a store is always refused. One with a partition
 *              table, a file system or another signature that libblkid knows is refused unless
 *              opts.force is set. One without a signature whose first or last MiB is not all zeros
 *              is refused unless opts.erase is set. Neither option implies the other. Refusals
 *              happen before the first byte is written to any of the devices.
 *   Errors     0 or a count, or a negative errno, with the device, the cause and the remedy in
 *              spw_last_error(). -EBUSY, -EEXIST (holds data), -ENOTUNIQ (named twice) and -ESPIPE
 *              (zoned) are refusals for safety.
 *   Structs    The caller sets the size of an info struct before the call; 0: the size in this
 *              version of the library. In an array the first element's size counts for all.
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
	uint64_t chunk_bytes; /* unit of striping, a power of two; default 0: 1 MiB */
	/* overwrite stores and signatures; never a device in use; default false */
	bool force;
	struct spw_log log;
	/* overwrite unknown data, and committed objects of a store; default false */
	bool erase;
};
SPW_ABI(struct spw_format_opts, erase, 48, 56);

struct spw_wipe_opts {
	size_t size;
	bool erase; /* also wipe a store with committed objects; default false */
	struct spw_log log;
};
SPW_ABI(struct spw_wipe_opts, log, 16, 32);

struct spw_replace_opts {
	size_t size;
	bool force; /* overwrite a store or signature on the new drive; never a device in use */
	bool erase; /* overwrite unknown data on it, and committed objects of another store */
	struct spw_log log;
	/*
	 * called while data is copied, with the bytes done and all; false: stop, with the store as
	 * it was; or NULL
	 */
	bool (*go_on)(void *context, uint64_t done_bytes, uint64_t all_bytes);
	void *context; /* for go_on */
};
SPW_ABI(struct spw_replace_opts, context, 40, 48);

/* What spw_replace() did. */
struct spw_replace_info {
	size_t size;
	uint32_t drive; /* index of the drive that was replaced */
	int32_t named;  /* index in paths of the replaced drive; -1: it was not among them */
	char drive_uuid[SPW_UUID_TEXT_BYTES]; /* of the new drive */
	bool finished;     /* an interrupted replacement was finished, or there was none to do */
	bool old_was_read; /* the replaced drive could be read, in case its copies were needed */
	uint64_t copied_bytes; /* committed bytes that were copied to the new drive */
};
SPW_ABI(struct spw_replace_info, copied_bytes, 56, 64);

struct spw_add_opts {
	size_t size;
	bool force; /* overwrite a store or signature on the new drive; never a device in use */
	bool erase; /* overwrite unknown data on it, and committed objects of another store */
	struct spw_log log;
};
SPW_ABI(struct spw_add_opts, log, 16, 32);

/* What spw_add() did. */
struct spw_add_info {
	size_t size;
	uint32_t drive;                       /* index of the new drive */
	char drive_uuid[SPW_UUID_TEXT_BYTES]; /* of it */
	bool finished; /* an interrupted addition was finished, or there was none to do */
};
SPW_ABI(struct spw_add_info, finished, 49, 56);

/* A store as its superblocks describe it. */
struct spw_store_info {
	size_t size;
	char store_uuid[SPW_UUID_TEXT_BYTES];
	uint32_t format_version;
	uint32_t drives;
	uint32_t partitions;
	uint32_t block_bytes; /* unit of allocation */
	uint64_t chunk_bytes;
	uint64_t capacity_bytes;           /* for data, of all drives and partitions together */
	uint64_t partition_capacity_bytes; /* of one partition, all drives together */
	uint32_t partitions_in_use;        /* open in a process now */
};
SPW_ABI(struct spw_store_info, partitions_in_use, 88, 96);

/* A drive as its superblocks describe it. */
struct spw_drive_info {
	size_t size;
	char path[256];
	char drive_uuid[SPW_UUID_TEXT_BYTES];
	uint32_t index;
	uint32_t copies_good; /* number of intact superblock copies: 1 or 2 */
	uint64_t size_bytes;  /* of the device */
	uint64_t data_offset_bytes;
	uint64_t partition_bytes; /* of each partition on this drive */
	uint64_t sequence;
	struct spw_geometry geometry;
	int32_t error;    /* a fault of this drive alone: 0, or an error of spw_store_open() */
	char reason[256]; /* explains the error, with the remedy; "" if error is 0 */
};
SPW_ABI(struct spw_drive_info, reason, 660, 920);

/* A candidate device with any contents. */
struct spw_probe_info {
	size_t size;
	char path[256];
	struct spw_geometry geometry;
	/* "nothing known", "unknown data", "ext4 file system \"root\"", "spillway store ..." */
	char holds[160];
	bool usable; /* spw_format() would accept it without force and erase */
	bool has_store;
	char reason[256]; /* why it is not usable, with the remedy; "" when usable */
	/* 0 if usable, else what spw_format() would return, such as -EBUSY */
	int error;
	bool unknown_data; /* without a known signature, but its first or last MiB is not empty */
	/*
	 * addresses of an NVMe drive's controllers, one per path, "; " between them:
	 * "0000:3d:00.0", "traddr=10.0.0.7,trsvcid=4420"; "" for other devices
	 */
	char address[256];
};
SPW_ABI(struct spw_probe_info, address, 1001, 1264);

/* A commit of a partition. */
struct spw_commit_info {
	size_t size;
	uint64_t number;       /* given by the caller of spw_store_commit() */
	uint64_t record_bytes; /* length of the caller's record */
	uint32_t objects;
	/* the previous commit is kept too, for ranks that crash before they commit */
	bool has_previous;
	uint64_t previous; /* number of the previous commit */
	/* set only for an open store: */
	/* made with a mirror; some runs may still have one copy: see runs_single */
	bool mirrored;
	uint64_t runs;        /* runs of bytes in all objects, which are chunks or parts of them */
	uint64_t runs_single; /* runs that have only one copy */
};
SPW_ABI(struct spw_commit_info, runs_single, 56, 64);

/**
 * spw_format_opts_init - set the defaults
 * @opts:  set
 * @size:  sizeof *@opts
 */
SPW_EXPORT void spw_format_opts_init(struct spw_format_opts *opts, size_t size);

/**
 * spw_format - create an empty store
 * @paths:  block devices or existing regular files of at least SPW_DRIVE_BYTES_MIN each; sizes may
 *          differ
 * @count:  of @paths
 * @opts:   or NULL for the defaults
 * @info:   set on success; or NULL
 *
 * Checks all drives before it writes to the first. On a drive without a known signature it samples
 * 64 places between the ends: data there is a warning in the log. The previous contents of the
 * drives are lost, but not overwritten: see spw_wipe(). A crash leaves drives that spw_store_open()
 * refuses as "format did not finish", never a store of mixed generations.
 *
 * Return: 0; -EINVAL options; -ENOSPC a drive is too small; -EEXIST a drive has a known signature
 * (without opts.force), or unknown data or a commit (without opts.erase); -EBUSY a drive is in use;
 * -ENOTUNIQ a drive is named twice; -ESPIPE a drive is zoned, so it accepts only sequential writes;
 * or what opening and writing returns.
 */
SPW_EXPORT int spw_format(const char *const paths[], unsigned count,
			  const struct spw_format_opts *opts, struct spw_store_info *info);

/**
 * spw_check - verify every superblock copy of a store, and that its drives belong together
 * @paths:   the drives
 * @count:   of @paths
 * @info:    set if the store is usable; else as one of the drives describes it, with drives 0
 * @drives:  array of @count in the order of @paths, filled as far as possible; or NULL
 *
 * Reads only. Works while another process has the store open.
 *
 * Return: 0 the store can be opened; else as spw_store_open(), for the first fault.
 */
SPW_EXPORT int spw_check(const char *const paths[], unsigned count, struct spw_store_info *info,
			 struct spw_drive_info drives[]);

/**
 * spw_committed - get the last commit of a partition, without opening the store
 * @paths:      the store's drives; if some are missing, the others are used
 * @count:      of @paths
 * @partition:  the partition
 * @info:       number, has_previous and previous are set, the rest is 0
 * @size:       sizeof *@info
 *
 * Reads only. Works while another process has the store open. Use it when several processes have to
 * agree on a commit that all of them have: opening a store at an older commit abandons the newer
 * ones.
 *
 * Return: 0; -ENODATA no commit; -EINVAL no such partition; -EUCLEAN drives were used without each
 * other, or contradict each other; else as spw_store_open().
 */
SPW_EXPORT int spw_committed(const char *const paths[], unsigned count, uint32_t partition,
			     struct spw_commit_info *info, size_t size);

/**
 * spw_wipe_opts_init - set the defaults
 * @opts:  set
 * @size:  sizeof *@opts
 */
SPW_EXPORT void spw_wipe_opts_init(struct spw_wipe_opts *opts, size_t size);

/**
 * spw_wipe - remove a store, so that its drives are free again
 * @paths:  the drives; the store's other drives may be missing
 * @count:  of @paths
 * @opts:   or NULL for the defaults
 *
 * Overwrites both superblock copies of every drive, and discards the data area if the drive
 * supports it.
 *
 * Return: 0; -EMEDIUMTYPE a drive has no superblock of spillway; -EBUSY one is in use; -EEXIST one
 * has a commit, and opts.erase is not set; or what opening and writing returns.
 */
SPW_EXPORT int spw_wipe(const char *const paths[], unsigned count,
			const struct spw_wipe_opts *opts);

/**
 * spw_replace_opts_init - set the defaults
 * @opts:  set
 * @size:  sizeof *@opts
 */
SPW_EXPORT void spw_replace_opts_init(struct spw_replace_opts *opts, size_t size);

/**
 * spw_replace - replace a drive of a store by a new one
 * @paths:  the other drives of the store, in any order; the replaced and the new one may be among
 *          them
 * @count:  of @paths
 * @drive:  the drive to replace, which need not be there: its path; or its number in the store,
 *          from 1; or its UUID. If no drive of the store is at the path, it is the one missing.
 * @path:   the new drive; it may have the path that the replaced one had
 * @opts:   or NULL for the defaults
 * @info:   set on success; or NULL
 *
 * No process may have the store open. All that is committed on the replaced drive is copied to the
 * new one, from its other copies, and from the replaced drive if that can be read; if a byte has no
 * copy, the call is refused. Nothing is written to the replaced drive, which the store refuses from
 * now on. What has only one copy in the commit gets no second one: see spw_store_resilver().
 *
 * A crash leaves the store with the old drive, or with the new one, and the other is refused. Call
 * it again then.
 *
 * Return: 0; -EINVAL no such drive, or it is not clear which; -ENXIO the replaced drive alone has
 * committed data, and cannot be read; -ENOSPC the new drive is too small; -EEXIST it is a drive of
 * this store, has a known signature (without opts.force), or unknown data or a commit (without
 * opts.erase); -EBUSY a drive is in use; -EMEDIUMTYPE a drive belongs to another store, or was
 * replaced before; -EUCLEAN a drive went on with the one that was replaced; -ECANCELED by
 * opts.go_on; or what opening, reading and writing returns.
 */
SPW_EXPORT int spw_replace(const char *const paths[], unsigned count, const char *drive,
			   const char *path, const struct spw_replace_opts *opts,
			   struct spw_replace_info *info);

/**
 * spw_add_opts_init - set the defaults
 * @opts:  set
 * @size:  sizeof *@opts
 */
SPW_EXPORT void spw_add_opts_init(struct spw_add_opts *opts, size_t size);

/**
 * spw_add - add a drive to a store
 * @paths:  all drives of the store, in any order; the new one may be among them if it is added
 *          already, as far as that was interrupted
 * @count:  of @paths
 * @path:   the new drive
 * @opts:   or NULL for the defaults
 * @info:   set on success; or NULL
 *
 * No process may have the store open. What is committed stays where it is, and later objects are
 * striped over the new drive, too. From now on it is named with the others.
 *
 * A crash leaves the store with the new drive or without it. Call it again then. Of a drive that is
 * in the store already, and not among @paths, it says so.
 *
 * Return: 0; -ENXIO a drive of the store is missing; -EINVAL the store has SPW_DRIVES_MAX drives,
 * or the new one has logical blocks larger than the store's; -ENOSPC it is too small for the
 * store's partitions; -EEXIST it is a drive of this store, has a known signature (without
 * opts.force), or unknown data or a commit (without opts.erase); -EBUSY a drive is in use;
 * -EMEDIUMTYPE a drive belongs to another store, or was replaced; -EUCLEAN drives went on without
 * each other; -EBADMSG something committed is damaged; or what opening, reading and writing
 * returns.
 */
SPW_EXPORT int spw_add(const char *const paths[], unsigned count, const char *path,
		       const struct spw_add_opts *opts, struct spw_add_info *info);

/**
 * spw_claim - open a drive read-write as its only user, to write anywhere on it
 * @path:    the drive
 * @log:     or NULL
 * @device:  set on success
 *
 * Until spw_device_close() no other process can claim the drive, a partition of it, or the whole
 * disk that it is a part of: a block device is opened exclusively (O_EXCL), and all bytes of the
 * device or file are locked. Does not look at its contents: see spw_probe(). Waits up to five
 * seconds for a process that was killed a moment ago, which is logged.
 *
 * Return: 0; -EBUSY it is mounted, claimed, swapped on, backing a loop device, or in use by a
 * process; -EROFS it is write-protected; or as spw_device_open().
 */
SPW_EXPORT int spw_claim(const char *path, const struct spw_log *log, struct spw_device **device);

/**
 * spw_probe - examine one device: geometry, contents, and whether it can be formatted
 * @path:  the device
 * @info:  set; its size field must be set
 *
 * Reads only. A device that cannot be opened is not an error: usable is false, with the reason.
 *
 * Return: 0.
 */
SPW_EXPORT int spw_probe(const char *path, struct spw_probe_info *info);

/**
 * spw_probe_list - list all whole block devices of this machine that have a size
 * @paths:  set to an array of strings, for spw_probe_list_free()
 *
 * Includes partitions and device-mapper targets.
 *
 * Return: how many, or a negative errno.
 */
SPW_EXPORT int spw_probe_list(char ***paths);

/**
 * spw_probe_list_free - free a list of paths
 * @paths:  of spw_probe_list() or spw_vfio_list(); or NULL
 */
SPW_EXPORT void spw_probe_list_free(char **paths);

/**
 * spw_drives_distinct - check that each path names another drive
 * @paths:  the paths
 * @count:  of @paths
 *
 * Recognizes symlinks, nodes with the same device number, the block and the character node of an
 * NVMe namespace, and different spellings of a PCI address. A path that cannot be examined counts
 * as a drive of its own. Opens nothing.
 *
 * Return: 0; -ENOTUNIQ, with two names of one drive in spw_last_error().
 */
SPW_EXPORT int spw_drives_distinct(const char *const paths[], unsigned count);

/**
 * spw_tune_read - read the settings that `spillway tune` found best for drives
 * @path:    the file; NULL or "": there is none
 * @drives:  the file must be for all of these
 * @count:   of @drives; 0: the file may be for any drives
 * @log:     gets a message if the file is for other drives; or NULL
 * @tune:    set; depths are 0 without a file, or if it is for other drives
 * @size:    sizeof *@tune
 *
 * Drives are recognized by model, size and serial number, or by path without a serial number; each
 * is opened read-only for that. The library reads no environment variable: the command, the fio
 * engine and the Python package pass the path in SPILLWAY_TUNE.
 *
 * Return: 0; -EINVAL not such a file, with line and column if it is not JSON; or what opening it
 * returns.
 */
SPW_EXPORT int spw_tune_read(const char *path, const char *const drives[], unsigned count,
			     const struct spw_log *log, struct spw_tune *tune, size_t size);

/* Smallest drive that can be formatted: two superblock copies and some data. */
#define SPW_DRIVE_BYTES_MIN (16u << 20)

#ifdef __cplusplus
}
#endif
#endif
