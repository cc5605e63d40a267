/* SPDX-License-Identifier: MIT */
/* tests/integration/store_case.h - cases that begin with four drives just formatted as one store */
#ifndef SPW_TEST_STORE_CASE_H
#define SPW_TEST_STORE_CASE_H

#include "tests/integration/test_store.h"

static struct spw_store *store;
static struct spw_store_info formatted;

static inline int format_default(void **state)
{
	(void)state;
	formatted = format_drives(4, 1, 0);
	return 0;
}

static inline int format_and_open(void **state)
{
	(void)format_default(state);
	store = open_default();
	return 0;
}

#define FORMATTED_CASE(name) CASE_WITH(name, format_default, close_stores)
/* The store is open, too. */
#define OPEN_CASE(name) CASE_WITH(name, format_and_open, close_stores)

#endif
