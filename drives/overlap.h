/* SPDX-License-Identifier: MIT */
/* drives/overlap.h - is a device made of blocks that a drive of a store has? */
#ifndef SPW_DRIVES_OVERLAP_H
#define SPW_DRIVES_OVERLAP_H

#include "layout/superblock.h"

/*
 * Refuse a device if an alias of it (drives/aliases.h) holds a drive that superblock @store
 * names. It need not begin where that drive begins: a loop device may lie inside a file, where its
 * own first and last blocks do not tell. Return: 0; -EEXIST; or an error of looking.
 */
int spw_drives__overlap_refuse(const char *path, const struct spw_superblock *store);

#endif
