/* SPDX-License-Identifier: MIT */
/*
 * util/probes.h - trace points (docs/TRACING.md): one instruction that does nothing until a tracer
 * replaces it. Pass only values that exist already: arguments are computed even without a tracer.
 */
#ifndef SPW_PROBES_H
#define SPW_PROBES_H

#if __has_include(<sys/sdt.h>)
#define SDT_USE_VARIADIC 1
#include <sys/sdt.h>
#define SPW_PROBE(name, ...) STAP_PROBEV(spillway, name, __VA_ARGS__)
#else
#define SPW_PROBE(name, ...) ((void)0)
#endif

#endif
