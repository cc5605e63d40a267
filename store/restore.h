/* SPDX-License-Identifier: MIT */
/* store/restore.h - restore the objects of a commit when its partition is opened */
#ifndef SPW_STORE_RESTORE_H
#define SPW_STORE_RESTORE_H

struct spw_store;

int spw_store__restore(struct spw_store *store);

#endif
