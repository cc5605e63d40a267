/* SPDX-License-Identifier: MIT */
/*
 * tests/sweep/wrap_ioctl.h - ioctl(2) of the library led to answer_ioctl(), which the test defines
 *
 * For a test whose source has `wrap: ioctl`.
 */
#ifndef TESTS_SWEEP_WRAP_IOCTL_H
#define TESTS_SWEEP_WRAP_IOCTL_H

#include <stdarg.h>

#include "tests/wrap.h"

/* Return: as ioctl(2). */
static int answer_ioctl(int fd, unsigned long request, void *argument);

WRAP(int, ioctl, (int fd, unsigned long request, ...))
{
	va_list args;
	void *argument;

	va_start(args, request);
	argument = va_arg(args, void *);
	va_end(args);
	return answer_ioctl(fd, request, argument);
}

#endif
