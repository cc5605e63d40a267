/* SPDX-License-Identifier: MIT */
/*
 * tests/check/analyzer.h - read by clang-tidy before each file: what the analyzer cannot see across
 * files
 *
 * spw_error() returns the error that it is given, and that is negative. Without knowing it, every
 * path behind a reported error looks like a success.
 */
#ifndef SPW_TESTS_CHECK_ANALYZER_H
#define SPW_TESTS_CHECK_ANALYZER_H

#include "util/util.h"

#define SPW_ANALYZED(function, error, ...)                       \
	({                                                       \
		int spw_analyzed_error = (error);                \
		if (spw_analyzed_error >= 0)                     \
			__builtin_unreachable();                 \
		(void)function(spw_analyzed_error, __VA_ARGS__); \
		spw_analyzed_error;                              \
	})
#define spw_error(error, ...)       SPW_ANALYZED(spw_error, error, __VA_ARGS__)
#define spw_error_errno(error, ...) SPW_ANALYZED(spw_error_errno, error, __VA_ARGS__)

#endif
