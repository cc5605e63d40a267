/* SPDX-License-Identifier: MIT */
/* util/names.h - lists of names in one text */
#ifndef SPW_UTIL_NAMES_H
#define SPW_UTIL_NAMES_H

/*
 * "a:b\:c" -> "a", "b:c": gives each name to @add, empty ones too, until it returns non-zero. The
 * colons of pci:0000:3d:00.0/1 separate nothing. Return: that; 0; -ENOMEM.
 */
int spw_names_split(const char *text, char separator, int (*add)(void *context, const char *name),
		    void *context);

#endif
