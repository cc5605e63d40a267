/* SPDX-License-Identifier: MIT */
/* engine/vfio/name.c - names of namespaces behind vfio: "pci:0000:3d:00.0/1" */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/vfio/vfio.h"
#include "util/util.h"

#define NSID_MAX 0xfffffffeu

bool spw_vfio_is_name(const char *path)
{
	return strncmp(path, SPW_VFIO_PREFIX, strlen(SPW_VFIO_PREFIX)) == 0;
}

/* So many hexadecimal digits. Return: what follows; NULL there are others. */
static const char *hex(const char *text, unsigned digits, unsigned *value)
{
	*value = 0;
	for (unsigned i = 0; i < digits; i++, text++) {
		if (!isxdigit((unsigned char)*text))
			return NULL;
		*value = *value * 16 +
			 (unsigned)(isdigit((unsigned char)*text)
					    ? *text - '0'
					    : tolower((unsigned char)*text) - 'a' + 10);
	}
	return text;
}

static bool parse_address(const char *text, struct spw_vfio_name *name, const char **end)
{
	unsigned domain = 0, bus, slot, function;
	const char *at = hex(text, 4, &domain);

	if (at && *at == ':')
		text = at + 1;
	else
		domain = 0;
	at = hex(text, 2, &bus);
	if (!at || *at++ != ':')
		return false;
	at = hex(at, 2, &slot);
	if (!at || *at++ != '.' || slot > 0x1f || !isdigit((unsigned char)*at))
		return false;
	function = (unsigned)(*at++ - '0');
	if (function > 7)
		return false;
	(void)snprintf(name->address, sizeof(name->address), "%04x:%02x:%02x.%u", domain & 0xffffu,
		       bus & 0xffu, slot & 0x1fu, function);
	*end = at;
	return true;
}

static bool parse_namespace(const char *text, uint32_t *id)
{
	uint64_t value = 0;

	*id = 1;
	if (*text == '\0')
		return true;
	if (*text++ != '/' || *text < '1' || *text > '9')
		return false;
	for (; isdigit((unsigned char)*text); text++) {
		value = value * 10 + (uint64_t)(*text - '0');
		if (value > NSID_MAX)
			return false;
	}
	*id = (uint32_t)value;
	return *text == '\0';
}

int spw_vfio_parse(const char *path, struct spw_vfio_name *name)
{
	const char *end;

	memset(name, 0, sizeof(*name));
	if (spw_vfio_is_name(path) && parse_address(path + strlen(SPW_VFIO_PREFIX), name, &end) &&
	    parse_namespace(end, &name->namespace_id))
		return 0;
	return spw_error(-EINVAL,
			 "%s is no NVMe namespace at a PCI address, which looks like "
			 "pci:0000:3d:00.0/1: domain, bus, "
			 "device, function (see lspci -D), and the namespace's number",
			 path);
}

void spw_vfio_format(const struct spw_vfio_name *name, char text[SPW_VFIO_NAME_BYTES])
{
	(void)snprintf(text, SPW_VFIO_NAME_BYTES, "%s%s/%u", SPW_VFIO_PREFIX, name->address,
		       name->namespace_id);
}
