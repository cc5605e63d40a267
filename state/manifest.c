/* SPDX-License-Identifier: MIT */
/*
 * state/manifest.c - encode and decode the manifest of a commit, the list of its records
 *
 * Invariants of an intact manifest. Decoding refuses a manifest that breaks one; tests cite the
 * numbers. docs/FORMAT.md has each field.
 *
 *   MANIFEST-1  Little-endian fields of fixed width. A manifest begins with the magic and ends with
 *               the XXH3-64 of all bytes before. Both, and the version field, keep their places in
 *               later versions.
 *   MANIFEST-2  total_bytes is the manifest's length, and its parts fill it exactly: the header,
 *               the entries of all records, the extra bytes, the checksum. Each begins at a
 *               multiple of 8.
 *   MANIFEST-3  There are 1 to SPW_STATE_RECORDS_MAX records. Names have 1 to
 *               SPW_STATE_NAME_BYTES_MAX bytes, none of them 0; shapes have at most
 *               SPW_STATE_SHAPE_BYTES_MAX, records at least 1.
 *   MANIFEST-4  The records that are not all zero have the commit's objects 1, 2 ... in the order
 *               of their entries, and each object has a record.
 *   MANIFEST-5  Reserved bytes and padding are zero.
 */
#include "state/manifest.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include <xxhash.h>

#include <spillway/state.h>

#include "util/util.h"

#define VERSION      1u
#define HEADER_BYTES 48u
#define ENTRY_BYTES  24u /* before the name */
#define ALIGN_BYTES  8u

static const char magic[8] = {'S', 'P', 'W', 'S', 'T', 'A', 'T', 'E'};

/* MANIFEST-1 */
enum header_place {
	AT_MAGIC = 0x00,
	AT_VERSION = 0x08,
	AT_HEADER_BYTES = 0x0c,
	AT_TOTAL_BYTES = 0x10,
	AT_EXTRA_BYTES = 0x18,
	AT_RECORDS = 0x20,
	AT_OBJECTS = 0x24,
	AT_RESERVED = 0x28,
};

enum entry_place {
	AT_LEN_BYTES = 0x00,
	AT_OBJECT = 0x08,
	AT_NAME_BYTES = 0x0c,
	AT_SHAPE_BYTES = 0x10,
	AT_ENTRY_RESERVED = 0x14,
};

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "fields are copied as they are");
static_assert(AT_RESERVED + sizeof(uint64_t) == HEADER_BYTES, "size of the header");
static_assert(AT_ENTRY_RESERVED + sizeof(uint32_t) == ENTRY_BYTES, "size of an entry");

static uint32_t get32(const uint8_t *bytes, unsigned at)
{
	uint32_t value;

	memcpy(&value, bytes + at, sizeof(value));
	return value;
}

static uint64_t get64(const uint8_t *bytes, unsigned at)
{
	uint64_t value;

	memcpy(&value, bytes + at, sizeof(value));
	return value;
}

static void put32(uint8_t *bytes, unsigned at, uint32_t value)
{
	memcpy(bytes + at, &value, sizeof(value));
}

static void put64(uint8_t *bytes, unsigned at, uint64_t value)
{
	memcpy(bytes + at, &value, sizeof(value));
}

/* ---- Encode ---- */

uint64_t spw_state__manifest_bytes(uint64_t extra_len)
{
	return HEADER_BYTES + spw_round_up(extra_len, ALIGN_BYTES) + sizeof(uint64_t);
}

uint64_t spw_state__entry_bytes(uint64_t name_len, uint64_t shape_len)
{
	return ENTRY_BYTES + spw_round_up(name_len + shape_len, ALIGN_BYTES);
}

uint8_t *spw_state__manifest_begin(uint8_t *bytes, uint64_t total_bytes,
				   const struct spw_state_manifest *manifest)
{
	memset(bytes, 0, HEADER_BYTES);
	memcpy(bytes + AT_MAGIC, magic, sizeof(magic));
	put32(bytes, AT_VERSION, VERSION);
	put32(bytes, AT_HEADER_BYTES, HEADER_BYTES);
	put64(bytes, AT_TOTAL_BYTES, total_bytes);
	put64(bytes, AT_EXTRA_BYTES, manifest->extra_len);
	put32(bytes, AT_RECORDS, manifest->records);
	put32(bytes, AT_OBJECTS, manifest->objects);
	return bytes + HEADER_BYTES;
}

/* Append bytes, and zeros up to @filled_len. Return: the end. */
static uint8_t *append(uint8_t *at, const void *bytes, uint64_t len, uint64_t filled_len)
{
	if (len > 0)
		memcpy(at, bytes, len);
	memset(at + len, 0, filled_len - len);
	return at + filled_len;
}

uint8_t *spw_state__manifest_add(uint8_t *at, const struct spw_state_entry *entry)
{
	uint64_t texts_len = (uint64_t)entry->name_len + entry->shape_len;

	memset(at, 0, ENTRY_BYTES);
	put64(at, AT_LEN_BYTES, entry->len_bytes);
	put32(at, AT_OBJECT, entry->object);
	put32(at, AT_NAME_BYTES, entry->name_len);
	put32(at, AT_SHAPE_BYTES, entry->shape_len);
	at += ENTRY_BYTES;
	at = append(at, entry->name, entry->name_len, entry->name_len);
	return append(at, entry->shape, entry->shape_len,
		      spw_round_up(texts_len, ALIGN_BYTES) - entry->name_len);
}

void spw_state__manifest_end(uint8_t *at, uint8_t *bytes, uint64_t total_bytes,
			     const struct spw_state_manifest *manifest)
{
	at = append(at, manifest->extra, manifest->extra_len,
		    spw_round_up(manifest->extra_len, ALIGN_BYTES));
	SPW_ASSERT((uint64_t)(at - bytes) == total_bytes - sizeof(uint64_t)); /* MANIFEST-2 */
	put64(at, 0, XXH3_64bits(bytes, (size_t)(at - bytes)));
}

/* ---- Decode ---- */

static bool is_zero(const uint8_t *bytes, size_t len)
{
	while (len > 0 && *bytes == 0) {
		bytes++;
		len--;
	}
	return len == 0;
}

/*
 * Check the header by MANIFEST-2, MANIFEST-3 and MANIFEST-5. This and the other checks return NULL,
 * or what is wrong.
 */
static const char *header_fault(const uint8_t *bytes, size_t len)
{
	if (get32(bytes, AT_VERSION) == 0)
		return "its version is 0";
	if (get32(bytes, AT_HEADER_BYTES) != HEADER_BYTES)
		return "its header has another length";
	if (get64(bytes, AT_TOTAL_BYTES) != len || len % ALIGN_BYTES != 0)
		return "it has another length than it says";
	if (get32(bytes, AT_RECORDS) == 0 || get32(bytes, AT_RECORDS) > SPW_STATE_RECORDS_MAX)
		return "it has no records, or too many";
	if (get32(bytes, AT_OBJECTS) > get32(bytes, AT_RECORDS))
		return "it has more objects than records";
	if (!is_zero(bytes + AT_RESERVED, HEADER_BYTES - AT_RESERVED))
		return "a reserved byte is set";
	return NULL;
}

/* Decode an entry. The caller checks that its name and shape lie inside the manifest. */
static void read_entry(const uint8_t *at, struct spw_state_entry *entry)
{
	*entry = (struct spw_state_entry){
		.name = (const char *)at + ENTRY_BYTES,
		.shape = at + ENTRY_BYTES + get32(at, AT_NAME_BYTES),
		.name_len = get32(at, AT_NAME_BYTES),
		.shape_len = get32(at, AT_SHAPE_BYTES),
		.object = get32(at, AT_OBJECT),
		.len_bytes = get64(at, AT_LEN_BYTES),
	};
}

/* Check the entry at @at, of at most @left bytes, by MANIFEST-3 to MANIFEST-5. */
static const char *entry_fault(const uint8_t *at, uint64_t left, uint32_t *objects)
{
	struct spw_state_entry entry;
	uint64_t texts_len;

	if (left < ENTRY_BYTES)
		return "it ends before its last record";
	if (get32(at, AT_NAME_BYTES) == 0 || get32(at, AT_NAME_BYTES) > SPW_STATE_NAME_BYTES_MAX)
		return "a name is empty or too long";
	if (get32(at, AT_SHAPE_BYTES) > SPW_STATE_SHAPE_BYTES_MAX)
		return "a shape is too long";
	read_entry(at, &entry);
	texts_len = (uint64_t)entry.name_len + entry.shape_len;
	if (spw_state__entry_bytes(entry.name_len, entry.shape_len) > left)
		return "it ends inside a record";
	if (memchr(entry.name, 0, entry.name_len))
		return "a name has a zero byte";
	if (entry.len_bytes == 0)
		return "a record has no bytes";
	if (entry.object != 0 && entry.object != *objects + 1)
		return "the objects of its records are not in order";
	*objects += entry.object != 0;
	if (get32(at, AT_ENTRY_RESERVED) != 0 ||
	    !is_zero(at + ENTRY_BYTES + texts_len,
		     spw_round_up(texts_len, ALIGN_BYTES) - texts_len))
		return "a reserved byte is set";
	return NULL;
}

/* Check everything between the header and the checksum. */
static const char *parts_fault(const uint8_t *bytes, size_t len)
{
	const uint8_t *at = bytes + HEADER_BYTES;
	uint64_t left = len - HEADER_BYTES - sizeof(uint64_t);
	uint64_t extra_len = get64(bytes, AT_EXTRA_BYTES);
	uint32_t objects = 0;

	for (uint32_t i = 0; i < get32(bytes, AT_RECORDS); i++) {
		const char *why = entry_fault(at, left, &objects);
		uint64_t entry_len;

		if (why)
			return why;
		entry_len =
			spw_state__entry_bytes(get32(at, AT_NAME_BYTES), get32(at, AT_SHAPE_BYTES));
		at += entry_len;
		left -= entry_len;
	}
	if (objects != get32(bytes, AT_OBJECTS)) /* MANIFEST-4 */
		return "it has another number of objects than it says";
	if (extra_len > left || spw_round_up(extra_len, ALIGN_BYTES) != left)
		return "its parts do not fill it";
	if (!is_zero(at + extra_len, left - extra_len))
		return "a reserved byte is set";
	return NULL;
}

static int check(const uint8_t *bytes, size_t len, const char **why)
{
	*why = "it is none of spillway's training states";
	if (len < HEADER_BYTES + sizeof(uint64_t) || memcmp(bytes, magic, sizeof(magic)) != 0)
		return -EMEDIUMTYPE;
	*why = "its checksum is wrong";
	if (XXH3_64bits(bytes, len - sizeof(uint64_t)) !=
	    get64(bytes + len - sizeof(uint64_t), 0)) /* MANIFEST-1 */
		return -EUCLEAN;
	*why = "a newer version of spillway made it";
	if (get32(bytes, AT_VERSION) > VERSION)
		return -EPROTONOSUPPORT;
	*why = header_fault(bytes, len);
	if (!*why)
		*why = parts_fault(bytes, len);
	return *why ? -EUCLEAN : 0;
}

int spw_state__manifest_decode(const void *bytes, size_t len, struct spw_state_manifest *manifest,
			       const char **why)
{
	const uint8_t *from = bytes;
	int rc = check(from, len, why);

	memset(manifest, 0, sizeof(*manifest));
	if (rc)
		return rc;
	manifest->records = manifest->left = get32(from, AT_RECORDS);
	manifest->objects = get32(from, AT_OBJECTS);
	manifest->extra_len = get64(from, AT_EXTRA_BYTES);
	manifest->extra =
		from + len - sizeof(uint64_t) - spw_round_up(manifest->extra_len, ALIGN_BYTES);
	manifest->next = from + HEADER_BYTES;
	return 0;
}

bool spw_state__manifest_next(struct spw_state_manifest *manifest, struct spw_state_entry *entry)
{
	if (manifest->left == 0)
		return false;
	read_entry(manifest->next, entry);
	manifest->next += spw_state__entry_bytes(entry->name_len, entry->shape_len);
	manifest->left--;
	return true;
}
