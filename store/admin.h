/* SPDX-License-Identifier: MIT */
/* store/admin.h - worker side of locate, revive, retire and register requests */
#ifndef SPW_STORE_ADMIN_H
#define SPW_STORE_ADMIN_H

struct spw_request;

void spw_store__admin_submit(struct spw_request *request);

#endif
