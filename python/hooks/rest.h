/* SPDX-License-Identifier: MIT */
/* hooks/rest.h - Rest, the base of the package's type that tells which steps rest */
#ifndef SPW_HOOKS_REST_H
#define SPW_HOOKS_REST_H

#include "lease.h"

/* The package looks closer at a step in this number that rests: what is trained, how much memory */
#define LOOK_STEPS 8

extern PyTypeObject *rest_type;
extern PyType_Spec rest_spec;

#endif
