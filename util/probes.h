/* SPDX-License-Identifier: MIT */
/*
 * util/probes.h - places where a tracer may look on (docs/TRACING.md)
 *
 * One instruction that does nothing, until bpftrace, perf or SystemTap puts another in its place.
 * Arguments are what is at hand: computing one would cost while nobody looks. Where the header is
 * missing (systemtap-sdt-dev) there are no such places.
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
