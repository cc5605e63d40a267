/* SPDX-License-Identifier: MIT */
/* util/names.c - spw_names_split(): splits "a:b:c" into names */
#include "util/names.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Length of "pci:0000:3d:00.0/1" at the start of @text, or 0. */
static size_t pci_name_len(const char *text)
{
	const char *at = text + 4;

	if (strncmp(text, "pci:", 4) != 0)
		return 0;
	at += strspn(at, "0123456789abcdefABCDEF:");
	if (at[0] != '.' || !isdigit((unsigned char)at[1]))
		return 0;
	at += 2;
	if (at[0] == '/')
		at += 1 + strspn(at + 1, "0123456789");
	return (size_t)(at - text);
}

int spw_names_split(const char *text, char separator, int (*add)(void *context, const char *name),
		    void *context)
{
	char *name = malloc(strlen(text) + 1);
	int rc = name ? 0 : -ENOMEM;
	size_t len = 0;

	for (const char *at = text; rc == 0; at++) {
		size_t pci = len == 0 && separator == ':' ? pci_name_len(at) : 0;

		if (pci > 0) {
			memcpy(name, at, pci);
			len = pci;
			at += pci;
		}
		if (at[0] == '\\' && at[1] == separator) {
			name[len++] = *++at;
		} else if (*at != separator && *at != '\0') {
			name[len++] = *at;
		} else {
			name[len] = '\0';
			len = 0;
			rc = add(context, name);
			if (*at == '\0')
				break;
		}
	}
	free(name);
	return rc;
}
