/* SPDX-License-Identifier: MIT */
/* drives/contents.c - spw_drives__contents_read(): what a drive holds, for format etc. */
#include "drives/contents.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <spillway/format.h>

#include "drives/safety.h"
#include "util/util.h"

/* Is a signature in the data area, whose bytes may look like anything? */
static bool is_data(const struct spw_superblock *sb, const struct spw_signature *signature)
{
	return signature->len_bytes > 0 && signature->offset_bytes >= sb->data_offset_bytes &&
	       signature->offset_bytes <
		       sb->data_offset_bytes + sb->partition_count * sb->partition_bytes;
}

static void add_text(struct spw_contents *contents, const char *text)
{
	size_t used = strlen(contents->text);

	SPW_ASSERT(used < sizeof(contents->text));
	(void)snprintf(contents->text + used, sizeof(contents->text) - used,
		       used > 0 ? ", %s" : "%s", text);
}

static void describe_store(struct spw_contents *contents)
{
	const struct spw_superblocks *superblocks = &contents->superblocks;
	const struct spw_superblock *sb;
	char uuid[SPW_UUID_TEXT_BYTES], text[128];

	contents->store = true;
	if (superblocks->chosen == -EPROTONOSUPPORT) {
		add_text(contents, "spillway store of a newer format");
	} else if (superblocks->chosen == -EUCLEAN) {
		add_text(contents, "damaged spillway store");
	} else if (superblocks->chosen < 0) {
		contents->store = false;
	} else {
		SPW_ASSERT(superblocks->chosen < SPW_PLACES);
		sb = &superblocks->places[superblocks->chosen].superblock;
		(void)snprintf(text, sizeof(text), "%sspillway store %s, drive %u of %u",
			       sb->complete ? "" : "unfinished ",
			       spw_layout__uuid_text(sb->store_uuid, uuid), sb->drive_index + 1,
			       sb->drive_count);
		add_text(contents, text);
	}
	if (superblocks->foreign[0]) {
		contents->foreign = true;
		add_text(contents, superblocks->foreign);
	}
}

static int describe_foreign(const char *path, struct spw_contents *contents)
{
	const struct spw_superblocks *superblocks = &contents->superblocks;
	struct spw_signatures signatures;
	char names[96], text[160];
	int rc = spw_drives__safety_signatures(path, &signatures);

	if (rc != 0)
		return rc;
	for (unsigned i = 0; i < signatures.count; i++) {
		const struct spw_signature *signature = &signatures.found[i];

		if (superblocks->chosen >= 0 &&
		    is_data(&superblocks->places[superblocks->chosen].superblock, signature))
			continue;
		contents->foreign = true;
		if (!strstr(contents->text, signature->what))
			add_text(contents, signature->what);
	}
	/* A store has overwritten partitions that the kernel may still know. */
	if (superblocks->chosen < 0 &&
	    spw_drives__safety_partitions(path, names, sizeof(names)) > 0) {
		contents->foreign = true;
		(void)snprintf(text, sizeof(text), "table of partitions %s", names);
		add_text(contents, text);
	}
	return 0;
}

/* If superblocks cannot be read, assume that there is a store: if in doubt, do not overwrite. */
int spw_drives__contents_read(const struct spw_device *device, struct spw_contents *contents)
{
	const char *path = spw_device_path(device);
	int rc;

	contents->store = contents->foreign = false;
	contents->text[0] = '\0';
	rc = spw_drives__superblocks_read(device, &contents->superblocks);
	if (rc < 0 && rc != -EMEDIUMTYPE && rc != -EUCLEAN && rc != -EPROTONOSUPPORT)
		return rc;
	describe_store(contents);
	rc = describe_foreign(path, contents);
	memset(&contents->unknown, 0, sizeof(contents->unknown));
	if (rc == 0 && !contents->store && !contents->foreign)
		rc = spw_drives__unknown_data_read(device, &contents->unknown);
	if (rc == 0)
		rc = spw_drives__safety_still(device);
	if (rc == 0 && contents->text[0] == '\0')
		add_text(contents, contents->unknown.found ? "unknown data" : "nothing known");
	return rc;
}

int spw_drives__carries_error(const char *path, const struct spw_contents *contents)
{
	const char *article = strchr("aeioux", contents->text[0]) ? "an" : "a";

	SPW_ASSERT((contents->store || contents->foreign) && contents->text[0] != '\0');
	return spw_error(-EEXIST,
			 "%s: carries %s %s; use --force to overwrite it, or name another device",
			 path, article, contents->text);
}

int spw_drives__too_small_error(const char *path, uint64_t size_bytes)
{
	/* Rounded, both sizes would look the same. */
	if (size_bytes > SPW_DRIVE_BYTES_MIN / 100 * 99)
		return spw_error(
			-ENOSPC,
			"%s: is too small: %llu bytes; a drive needs at least 16 MiB (%u bytes)",
			path, (unsigned long long)size_bytes, SPW_DRIVE_BYTES_MIN);
	return spw_error(-ENOSPC, "%s: is too small: %s; a drive needs at least %s", path,
			 SPW_SIZE_TEXT(size_bytes), SPW_SIZE_TEXT(SPW_DRIVE_BYTES_MIN));
}
