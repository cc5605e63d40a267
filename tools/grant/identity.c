/* SPDX-License-Identifier: MIT */
/* tools/grant/identity.c - find a drive's identity, which the kernel's numbering does not change */
#include "tools/grant/grant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/util.h"

/* Files with an identity in a drive's sysfs folder, and udev's name for the attribute. */
static const struct {
	const char *file, *attribute;
} attributes[] = {
	{"wwid", "wwid"},        /* an NVMe namespace */
	{"device/wwid", "wwid"}, /* SCSI, SATA */
	{"serial", "serial"},    /* virtio */
	{"dm/uuid", "dm/uuid"},  /* a logical volume, encryption */
	{"md/uuid", "md/uuid"},  /* RAID */
	{"loop/backing_file", "loop/backing_file"},
};

bool grant_identify(const char *sysfs, const char *name, struct grant_identity *identity)
{
	const char *folder = SPW_PATH("%s/class/block/%s", sysfs, name);
	char drive[PATH_MAX];

	*identity = (struct grant_identity){0};
	if (!realpath(folder, drive))
		return false;
	identity->partition = (unsigned)spw_read_number(SPW_PATH("%s/partition", folder), 0);
	if (identity->partition > 0)
		*strrchr(drive, '/') = '\0';
	for (size_t i = 0; i < SPW_ARRAY_LEN(attributes); i++)
		if (spw_read_text(SPW_PATH("%s/%s", drive, attributes[i].file), identity->value,
				  sizeof(identity->value)) &&
		    identity->value[0]) {
			(void)snprintf(identity->attribute, sizeof(identity->attribute), "%s",
				       attributes[i].attribute);
			return true;
		}
	return false;
}

struct search {
	const char *sysfs;
	const struct grant_identity *identity;
	int (*visit)(void *context, const char *name);
	void *context;
};

static int visit_device(void *context, const char *folder, const char *name)
{
	const struct search *search = context;
	struct grant_identity other;

	(void)folder;
	if (!grant_identify(search->sysfs, name, &other) ||
	    other.partition != search->identity->partition ||
	    strcmp(other.attribute, search->identity->attribute) != 0 ||
	    strcmp(other.value, search->identity->value) != 0)
		return 0;
	return search->visit(search->context, name);
}

int grant_each(const char *sysfs, const struct grant_identity *identity,
	       int (*visit)(void *context, const char *name), void *context)
{
	struct search search = {sysfs, identity, visit, context};

	return spw_each_name(SPW_PATH("%s/class/block", sysfs), visit_device, &search);
}

bool grant_identity_parse(const char *text, struct grant_identity *identity)
{
	static const char mark[] = " partition=";
	const char *equals = strchr(text, '='), *end = text + strlen(text);
	const char *at = equals;

	*identity = (struct grant_identity){0};
	/* A value may have blanks and look like a partition: only the last word counts as one. */
	for (const char *next = at; next && (next = strstr(next, mark)); next++)
		at = next;
	if (!equals)
		return false;
	if (at != equals) {
		identity->partition = (unsigned)strtoul(at + strlen(mark), NULL, 10);
		end = at;
	}
	(void)snprintf(identity->attribute, sizeof(identity->attribute), "%.*s",
		       (int)(equals - text), text);
	(void)snprintf(identity->value, sizeof(identity->value), "%.*s", (int)(end - equals - 1),
		       equals + 1);
	return true;
}
