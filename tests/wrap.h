/* SPDX-License-Identifier: MIT */
/* tests/wrap.h - functions of a test that the library calls instead of others (wrap: NAME) */
#ifndef SPW_TEST_WRAP_H
#define SPW_TEST_WRAP_H

/* The head of such a function; the other one is __real_NAME(). */
#define WRAP(type, name, parameters)   \
	type __real_##name parameters; \
	type __wrap_##name parameters; \
	type __wrap_##name parameters

#endif
