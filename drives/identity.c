/* SPDX-License-Identifier: MIT */
/*
 * drives/identity.c - find block devices that are paths to the same drive, by their attributes in
 * sysfs
 *
 *   NVMe  The same worldwide identifier (made from the serial number if there is none), subsystem
 *         and namespace number: for some models the identifier alone is not unique.
 *   SCSI  The same worldwide identifier and size, and no different serial number: some bridges
 *         report one identifier for all drives behind them.
 *
 * An identifier of zeroes does not count, and if it cannot be read, drives count as different: the
 * kernel has the identifiers of all NVMe namespaces, and multipathd also treats a SCSI drive
 * without one as a single drive.
 */
#include "drives/identity.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "drives/sysfs.h"
#include "util/util.h"

#define ATTRIBUTE_BYTES 512

/* A page of vital product data: a header of 4 bytes, then up to 255 bytes of serial number. */
#define PAGE_BYTES_MAX    260
#define PAGE_HEADER_BYTES 4

/* ---- sysfs ---- */

/* The sysfs folder of a block device's whole drive. Return: false: no such device. */
static bool drive_folder(const char *sysfs, const char *name, char folder[PATH_MAX])
{
	if (!realpath(SPW_PATH("%s/class/block/%s", sysfs, name), folder))
		return false;
	if (spw_drives__sysfs_has(folder, ".", "partition"))
		*strrchr(folder, '/') = '\0';
	return true;
}

static bool read_attribute(const char *folder, const char *attribute, char text[ATTRIBUTE_BYTES])
{
	return spw_drives__sysfs_line(SPW_PATH("%s/%s", folder, attribute), text, ATTRIBUTE_BYTES);
}

static bool same_attribute(const char *a, const char *b, const char *attribute)
{
	char texts[2][ATTRIBUTE_BYTES];

	return read_attribute(a, attribute, texts[0]) && read_attribute(b, attribute, texts[1]) &&
	       strcmp(texts[0], texts[1]) == 0;
}

static uint64_t read_blocks(const char *sysfs, const char *name, const char *attribute,
			    uint64_t otherwise)
{
	const char *path = SPW_PATH("%s/class/block/%s/%s", sysfs, name, attribute);
	char text[ATTRIBUTE_BYTES];

	return spw_drives__sysfs_line(path, text, sizeof(text)) ? strtoull(text, NULL, 10)
								: otherwise;
}

/* ---- The same drive ---- */

/* "naa.5000c500a1b2c3d4", "eui.0025385b91b00000": is the value after the prefix not all zeroes? */
static bool identifies(const char *wwid)
{
	const char *dot = strchr(wwid, '.'), *value = dot ? dot + 1 : wwid;

	return value[strspn(value, "0- ")] != '\0';
}

/* Read a drive's identifier. Return: name of the attribute; NULL: the drive has none. */
static const char *read_wwid(const char *folder, char wwid[ATTRIBUTE_BYTES])
{
	static const char *const attributes[] = {"wwid", "device/wwid"};

	for (size_t i = 0; i < SPW_ARRAY_LEN(attributes); i++)
		if (read_attribute(folder, attributes[i], wwid))
			return identifies(wwid) ? attributes[i] : NULL;
	return NULL;
}

static size_t read_serial(const char *folder, char serial[PAGE_BYTES_MAX])
{
	FILE *file = fopen(SPW_PATH("%s/device/vpd_pg80", folder), "re");
	char page[PAGE_BYTES_MAX];
	size_t len = 0;

	if (file) {
		len = fread(page, 1, sizeof(page), file);
		(void)fclose(file);
	}
	if (len <= PAGE_HEADER_BYTES)
		return 0;
	memcpy(serial, page + PAGE_HEADER_BYTES, len - PAGE_HEADER_BYTES);
	return len - PAGE_HEADER_BYTES;
}

static bool has_other_serial(const char *a, const char *b)
{
	char serials[2][PAGE_BYTES_MAX];
	size_t lens[2] = {read_serial(a, serials[0]), read_serial(b, serials[1])};

	return lens[0] > 0 && lens[1] > 0 &&
	       (lens[0] != lens[1] || memcmp(serials[0], serials[1], lens[0]) != 0);
}

static bool same_drive(const char *a, const char *b)
{
	char wwid[ATTRIBUTE_BYTES];
	const char *attribute = read_wwid(a, wwid);

	if (!attribute || !same_attribute(a, b, attribute))
		return false;
	if (strcmp(attribute, "wwid") == 0)
		return same_attribute(a, b, "nsid") && same_attribute(a, b, "device/subsysnqn");
	return same_attribute(a, b, "size") && !has_other_serial(a, b);
}

/*
 * Do devices of one drive overlap? In doubt yes: a whole drive has no start; no size means no end.
 */
static bool overlap(const char *sysfs, const char *a, const char *b)
{
	uint64_t starts[2] = {read_blocks(sysfs, a, "start", 0), read_blocks(sysfs, b, "start", 0)};
	uint64_t sizes[2] = {read_blocks(sysfs, a, "size", UINT64_MAX),
			     read_blocks(sysfs, b, "size", UINT64_MAX)};

	return starts[0] <= starts[1] ? starts[1] - starts[0] < sizes[0]
				      : starts[0] - starts[1] < sizes[1];
}

bool spw_drives__identity_same(const char *sysfs, const char *a, const char *b)
{
	char folders[2][PATH_MAX];

	return drive_folder(sysfs, a, folders[0]) && drive_folder(sysfs, b, folders[1]) &&
	       strcmp(folders[0], folders[1]) != 0 && same_drive(folders[0], folders[1]) &&
	       overlap(sysfs, a, b);
}

/* ---- All of them ---- */

struct search {
	const char *sysfs, *name;
	char wwid[ATTRIBUTE_BYTES]; /* of the drive that contains name */
	const char *attribute;      /* that has the wwid */
	int (*visit)(void *context, const char *name);
	void *context;
};

/* Visit a drive or partition. Paths that multipath has merged have no device number. */
static int visit_path(void *context, const char *folder, const char *name)
{
	const struct search *search = context;

	if (!spw_drives__sysfs_has(folder, name, "dev") ||
	    !spw_drives__identity_same(search->sysfs, search->name, name))
		return 0;
	return search->visit(search->context, name);
}

static int visit_partition(void *context, const char *folder, const char *name)
{
	return spw_drives__sysfs_has(folder, name, "partition") ? visit_path(context, folder, name)
								: 0;
}

/* Compare the identifier first: that rules out most drives, and partitions have none. */
static int visit_drive(void *context, const char *folder, const char *name)
{
	struct search *search = context;
	const char *path = SPW_PATH("%s/%s", folder, name);
	char wwid[ATTRIBUTE_BYTES];
	int rc;

	if (!read_attribute(path, search->attribute, wwid) || strcmp(wwid, search->wwid) != 0)
		return 0;
	rc = visit_path(search, folder, name);
	return rc == 0 ? spw_each_name(path, visit_partition, search) : rc;
}

int spw_drives__identity_each_path(const char *sysfs, const char *name,
				   int (*visit)(void *context, const char *name), void *context)
{
	struct search search = {.sysfs = sysfs, .name = name, .visit = visit, .context = context};
	char folder[PATH_MAX];

	if (!drive_folder(sysfs, name, folder))
		return 0;
	search.attribute = read_wwid(folder, search.wwid);
	if (!search.attribute)
		return 0;
	return spw_each_name(SPW_PATH("%s/class/block", sysfs), visit_drive, &search);
}

/* ---- A namespace driven by this process ---- */

/* Do both have an identifier, and do these differ? The attribute is hexadecimal. */
static bool contradicts(const char *folder, const char *attribute, const uint8_t *bytes,
			size_t count)
{
	static const uint8_t none[16];
	char text[ATTRIBUTE_BYTES], *at = text;

	if (memcmp(bytes, none, count) == 0 || !read_attribute(folder, attribute, text))
		return false;
	for (size_t i = 0; i < count; i++) {
		unsigned byte;
		int used = 0;

		at += strspn(at, "- ");
		if (sscanf(at, "%2x%n", &byte, &used) != 1 || byte != bytes[i])
			return true;
		at += used;
	}
	return false;
}

/* Compare an attribute with a text, ignoring the blanks that pad it in sysfs. */
static bool reads(const char *folder, const char *attribute, const char *wanted)
{
	char text[ATTRIBUTE_BYTES];
	size_t len = strlen(wanted);

	return read_attribute(folder, attribute, text) && strncmp(text, wanted, len) == 0 &&
	       text[len + strspn(text + len, " ")] == '\0';
}

/* Compare the serial number too: an identifier may be missing, or shared by many drives. */
static bool is_namespace(const char *folder, const struct spw_identity_namespace *wanted)
{
	char id[16];

	(void)snprintf(id, sizeof(id), "%u", wanted->id);
	return reads(folder, "nsid", id) && reads(folder, "device/serial", wanted->serial) &&
	       reads(folder, "device/model", wanted->model) &&
	       !contradicts(folder, "nguid", wanted->unique, 16) &&
	       !contradicts(folder, "eui", wanted->unique + 16, 8);
}

struct namespace_search {
	const struct spw_identity_namespace *wanted;
	char *name;
	size_t len;
};

static int compare_namespace(void *context, const char *folder, const char *name)
{
	const struct namespace_search *search = context;

	if (!spw_drives__sysfs_has(folder, name, "dev") ||
	    !is_namespace(SPW_PATH("%s/%s", folder, name), search->wanted))
		return 0;
	(void)snprintf(search->name, search->len, "%s", name);
	return 1;
}

int spw_drives__identity_find_namespace(const char *sysfs,
					const struct spw_identity_namespace *wanted, char *name,
					size_t len)
{
	struct namespace_search search = {.wanted = wanted, .name = name, .len = len};

	return spw_each_name(SPW_PATH("%s/class/block", sysfs), compare_namespace, &search);
}
