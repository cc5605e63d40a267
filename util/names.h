/* SPDX-License-Identifier: MIT */
/* util/names.h - splits "a:b:c" into names */
#ifndef SPW_UTIL_NAMES_H
#define SPW_UTIL_NAMES_H

/*
 * Call @add with each name, empty ones too, until it returns non-zero: "a:b\:c" gives "a" and
 * "b:c". Colons within pci:0000:3d:00.0/1 do not separate. Return: what @add returned; 0; -ENOMEM.
 */
int spw_names_split(const char *text, char separator, int (*add)(void *context, const char *name),
		    void *context);

#endif
