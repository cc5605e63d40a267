/* SPDX-License-Identifier: MIT */
/*
 * drives/change.h - change which drives a store has: one is replaced by another, or one is added
 *
 * What a replacement and an addition share. Every error has a message.
 */
#ifndef SPW_DRIVES_CHANGE_H
#define SPW_DRIVES_CHANGE_H

#include "drives/assemble.h"
#include "drives/candidates.h"

struct spw_vfio_hold;

#define SPW_CHANGE_NO_DRIVE SPW_DRIVES_MAX

struct spw_change {
	bool force, erase; /* what may be on the new drive, as for a format */
	const struct spw_log *log;
	bool (*go_on)(void *context, uint64_t done_bytes, uint64_t all_bytes); /* or NULL */
	void *context;
	struct spw_candidate *rest; /* the other drives; the replaced one, too, until it is found */
	unsigned rest_count;
	struct spw_candidate *old; /* the replaced one; device NULL: it cannot be read, or none */
	struct spw_candidate *target; /* the new drive */
	struct spw_vfio_hold *hold;
	unsigned index;        /* of the new drive, and of the replaced one */
	bool adds;             /* the new drive replaces none */
	bool is_listed;        /* the new drive is one of those that were named as the store's */
	bool finishes;         /* the new drive belongs to the store: the others have to be told */
	uint64_t copied_bytes; /* to the new drive */
};

/* Do two paths lead to one device? */
bool spw_drives__same_device(const char *a, const char *b);

/* The drive with the newest superblock, which lists the store's drives: of the rest, usually. */
const struct spw_candidate *spw_drives__change_newest(const struct spw_change *run);
/* Was it made for the store? Does the store, as @newest describes it, have it now? */
bool spw_drives__change_is_of_store(const struct spw_candidate *candidate,
				    const struct spw_superblock *newest);
bool spw_drives__change_is_member(const struct spw_candidate *candidate,
				  const struct spw_superblock *newest);
/* Is the new drive one? If something else has been made of it, it is as good as a foreign one. */
bool spw_drives__change_has_target(const struct spw_change *run,
				   const struct spw_superblock *newest);
/* The drives, but @but, that are neither among the others nor the new drive. Return: how many. */
unsigned spw_drives__change_missing(const struct spw_change *run,
				    const struct spw_superblock *newest, unsigned but,
				    unsigned *first);

/*
 * @paths: the drives of the store; the new one, at @path, and the replaced one, if @name is its
 * path, may be among them. Return: 0, with no rest if no other is named; -EINVAL;
 * -ENOTUNIQ; -ENOMEM.
 */
int spw_drives__change_new(struct spw_change *run, const char *const paths[], unsigned count,
			   const char *name, bool is_path, const char *path);
void spw_drives__change_close(struct spw_change *run);

/* Claim and read the other drives; verify them as one store; claim, read and compare the new one */
void spw_drives__change_claim_rest(struct spw_change *run);
int spw_drives__change_verify_rest(struct spw_change *run);
int spw_drives__change_claim_target(struct spw_change *run);

/* Is the new or the replaced drive not among the others, too, as a copy? Return: 0; -ENOTUNIQ. */
int spw_drives__change_verify_unique(const struct spw_change *run,
				     const struct spw_candidate *candidate);

/* May the new drive be written to? Sets finishes. Return: 0; -EEXIST; -EINVAL; as a format. */
int spw_drives__change_examine_target(struct spw_change *run);

/* Make the change, or finish it, and give the new drive up. */
int spw_drives__change_make(struct spw_change *run);

/*
 * Complete the drives of a claimed assembly that other drives alone vouch for, as a replacement was
 * cut off (REPLACE-5), so that what is committed with them does not depend on those. Ranks that do
 * this at once write the same bytes. Return: 0; an error of reading or writing.
 */
int spw_drives__change_complete(const struct spw_assembly *assembly, const struct spw_log *log);

#endif
