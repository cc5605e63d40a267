/* SPDX-License-Identifier: MIT */
/* util/names.h - lists of names in one text */
#ifndef SPW_UTIL_NAMES_H
#define SPW_UTIL_NAMES_H

/*
 * "a:b\:c" -> "a", "b:c", for @add until non-zero, empty ones too; the colons of pci:0000:3d:00.0/1
 * separate nothing. Return: that; 0; -ENOMEM.
 */
int spw_names_split(const char *text, char separator, int (*add)(void *context, const char *name),
		    void *context);

#endif
