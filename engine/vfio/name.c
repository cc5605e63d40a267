/* SPDX-License-Identifier: MIT */
/* engine/vfio/name.c - parses and formats names of namespaces behind vfio: "pci:0000:3d:00.0/1" */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/vfio/vfio.h"
#include "util/util.h"

#define NSID_MAX 0xfffffffeu

bool spw_vfio__is_name(const char *path)
{
	return strncmp(path, SPW_VFIO_PREFIX, strlen(SPW_VFIO_PREFIX)) == 0;
}

/* Does @text begin like @shape, in which x stands for any hexadecimal digit? */
static bool begins_as(const char *text, const char *shape)
{
	for (; *shape; text++, shape++)
		if (*shape == 'x' ? !isxdigit((unsigned char)*text) : *text != *shape)
			return false;
	return true;
}

/* Parse a PCI address. Return: the text after it; NULL: not an address. */
static const char *parse_address(const char *text, struct spw_vfio_name *name)
{
	bool has_domain = begins_as(text, "xxxx:");
	const char *at = has_domain ? text + 5 : text;

	/* A bus has 32 slots of 8 functions. */
	if (!begins_as(at, "xx:xx.") || at[3] > '1' || at[6] < '0' || at[6] > '7')
		return NULL;
	(void)snprintf(name->address, sizeof(name->address), "%s%.*s",
		       has_domain ? "" : "0000:", (int)(at + 7 - text), text);
	for (char *digit = name->address; *digit; digit++)
		*digit = (char)tolower((unsigned char)*digit);
	return at + 7;
}

static bool parse_namespace(const char *text, uint32_t *id)
{
	unsigned long long value;
	char *end;

	*id = 1;
	if (*text == '\0')
		return true;
	if (text[0] != '/' || text[1] < '1' || text[1] > '9')
		return false;
	value = strtoull(text + 1, &end, 10);
	*id = (uint32_t)value;
	return *end == '\0' && value <= NSID_MAX;
}

int spw_vfio__parse(const char *path, struct spw_vfio_name *name)
{
	const char *end = NULL;

	memset(name, 0, sizeof(*name));
	if (spw_vfio__is_name(path))
		end = parse_address(path + strlen(SPW_VFIO_PREFIX), name);
	if (end && parse_namespace(end, &name->namespace_id))
		return 0;
	return spw_error(-EINVAL,
			 "%s is not an NVMe namespace at a PCI address, which looks like "
			 "pci:0000:3d:00.0/1: "
			 "domain, bus, device, function (see lspci -D), and the namespace's number",
			 path);
}

void spw_vfio__format(const struct spw_vfio_name *name, char text[SPW_VFIO_NAME_BYTES])
{
	(void)snprintf(text, SPW_VFIO_NAME_BYTES, "%s%s/%u", SPW_VFIO_PREFIX, name->address,
		       name->namespace_id);
}
