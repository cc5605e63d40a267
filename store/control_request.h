/* SPDX-License-Identifier: MIT */
/* store/control_request.h - requests that move no object: locate, revive, retire, register */
#ifndef SPW_STORE_CONTROL_REQUEST_H
#define SPW_STORE_CONTROL_REQUEST_H

struct spw_request;

void spw_store__control_submit(struct spw_request *request);

#endif
