/* SPDX-License-Identifier: MIT */
/*
 * trace/write.c - spw_trace_write(): records calls of the cache and their results, one JSON line
 * each
 *
 * Events are printed into blocks of memory under a lock; a thread writes full blocks to the file
 * without that lock. If the file is slower than the events, blocks queue up in memory. After a
 * failure nothing more is recorded: a trace with a gap would be wrong.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <zlib.h>

#include "trace/internal.h"
#include "util/util.h"

#define BLOCK_BYTES     (256u << 10)
#define EVENT_BYTES_MAX 512u /* the longest event has 8 numbers of 20 digits */
#define IDS_MIN         1024u

struct block {
	struct block *next;
	size_t used;
	char text[BLOCK_BYTES];
};

/* Maps ids to numbers, in the order in which they appear. Open addressing; id 0: free slot. */
struct numbering {
	struct {
		uint64_t id, number;
	} * slots;
	size_t mask;
	uint64_t count;
};

struct spw_trace_writer {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	pthread_t thread;
	gzFile file;
	char *path;
	uint64_t begin_ns;

	/* protected by the lock */
	struct block *filling;
	struct block *full, **full_end; /* to be written, in this order */
	struct numbering tensors, storages, scopes;
	int error; /* the first error; nothing is recorded after it */
	char error_text[512];
	bool finishing;
	/* block whose write failed; gzclose() may read it again */
	struct block *unwritten;
};

/* ---- Numbers for ids ---- */

static uint64_t mix(uint64_t id)
{
	id ^= id >> 32;
	id *= UINT64_C(0xd6e8feb86659fd93);
	return id ^ id >> 32;
}

static size_t slot_of(const struct numbering *numbering, uint64_t id)
{
	size_t slot = (size_t)mix(id) & numbering->mask;

	while (numbering->slots[slot].number != 0 && numbering->slots[slot].id != id)
		slot = (slot + 1) & numbering->mask;
	return slot;
}

static int numbering_grow(struct numbering *numbering)
{
	struct numbering grown = {.mask = numbering->slots ? numbering->mask * 2 + 1 : IDS_MIN - 1,
				  .count = numbering->count};

	grown.slots = calloc(grown.mask + 1, sizeof(*grown.slots));
	if (!grown.slots)
		return -ENOMEM;
	for (size_t i = 0; numbering->slots && i <= numbering->mask; i++)
		if (numbering->slots[i].number != 0)
			grown.slots[slot_of(&grown, numbering->slots[i].id)] = numbering->slots[i];
	free(numbering->slots);
	*numbering = grown;
	return 0;
}

/* Replace *id with its number. Return: false: out of memory. */
static bool number(struct numbering *numbering, uint64_t *id)
{
	size_t slot;

	if ((!numbering->slots || numbering->count * 2 > numbering->mask) &&
	    numbering_grow(numbering))
		return false;
	slot = slot_of(numbering, *id);
	if (numbering->slots[slot].number == 0) {
		numbering->slots[slot].id = *id;
		numbering->slots[slot].number = ++numbering->count;
	}
	*id = numbering->slots[slot].number;
	return true;
}

/* ---- Failure ---- */

static void fail(struct spw_trace_writer *writer, int error, const char *words)
{
	if (writer->error)
		return;
	writer->error = error;
	(void)snprintf(writer->error_text, sizeof(writer->error_text),
		       "cannot record to the trace %s: %s", writer->path, words);
}

/* ---- The file ---- */

static int write_block(struct spw_trace_writer *writer, const struct block *block)
{
	int zlib_error;

	errno = 0;
	if (block->used == 0 ||
	    gzwrite(writer->file, block->text, (unsigned)block->used) == (int)block->used)
		return 0;
	(void)gzerror(writer->file, &zlib_error);
	return zlib_error == Z_MEM_ERROR ? -ENOMEM : errno != 0 ? -errno : -EIO;
}

static void *write_blocks(void *context)
{
	struct spw_trace_writer *writer = context;

	SPW_MUST(pthread_mutex_lock(&writer->lock));
	for (;;) {
		struct block *block = writer->full;
		int rc = 0;

		if (!block && writer->finishing)
			break;
		if (!block) {
			SPW_MUST(pthread_cond_wait(&writer->changed, &writer->lock));
			continue;
		}
		writer->full = block->next;
		if (!writer->full)
			writer->full_end = &writer->full;
		if (!writer->unwritten) {
			SPW_MUST(pthread_mutex_unlock(&writer->lock));
			rc = write_block(writer, block);
			SPW_MUST(pthread_mutex_lock(&writer->lock));
		}
		if (!rc) {
			free(block);
		} else {
			writer->unwritten = block;
			fail(writer, rc, spw_strerror(rc));
		}
	}
	SPW_MUST(pthread_mutex_unlock(&writer->lock));
	return NULL;
}

static void queue_block(struct spw_trace_writer *writer)
{
	*writer->full_end = writer->filling;
	writer->full_end = &writer->filling->next;
	writer->filling = NULL;
	SPW_MUST(pthread_cond_signal(&writer->changed));
}

/* A block with room for one more line, or NULL. */
static struct block *block_with_room(struct spw_trace_writer *writer)
{
	if (writer->filling && writer->filling->used + EVENT_BYTES_MAX > BLOCK_BYTES)
		queue_block(writer);
	if (!writer->filling) {
		writer->filling = malloc(sizeof(*writer->filling));
		if (!writer->filling)
			return NULL;
		writer->filling->next = NULL;
		writer->filling->used = 0;
	}
	return writer->filling;
}

/* ---- Printing: many times faster than printf(), in the middle of a training step ---- */

static void put(struct block *block, const char *text)
{
	size_t len = strlen(text);

	memcpy(block->text + block->used, text, len);
	block->used += len;
}

static void put_number(struct block *block, const char *name, uint64_t value)
{
	char digits[20];
	unsigned count = 0;

	put(block, ",\"");
	put(block, name);
	put(block, "\":");
	do {
		digits[count++] = (char)('0' + value % 10);
		value /= 10;
	} while (value > 0);
	while (count > 0)
		block->text[block->used++] = digits[--count];
}

static void put_word(struct block *block, const char *name, const char *word)
{
	put(block, ",\"");
	put(block, name);
	put(block, "\":\"");
	put(block, word);
	put(block, "\"");
}

static void put_stage(struct block *block, const struct spw_trace_event *event)
{
	put_number(block, "micro_batch", event->micro_batch);
	put_word(block, "stage", spw_trace__stage_names[event->backward]);
	if (!event->has_next)
		return;
	put_number(block, "next_micro_batch", event->next_micro_batch);
	put_word(block, "next_stage", spw_trace__stage_names[event->next_backward]);
}

static void put_event(struct block *block, const struct spw_trace_event *event)
{
	put(block, "{\"event\":\"");
	put(block, spw_trace__kind_names[event->kind]);
	put(block, "\"");
	put_number(block, "ns", event->ns);
	if (event->kind == SPW_TRACE_STAGE)
		put_stage(block, event);
	if (event->kind == SPW_TRACE_SCOPE_ENTER)
		put_number(block, "scope", event->scope_key);
	if (spw_trace__names_tensor(event))
		put_number(block, "tensor", event->tensor);
	if (event->kind == SPW_TRACE_OFFER) {
		put_number(block, "storage", event->storage_key);
		put_number(block, "version", event->storage_version);
		put_number(block, "storage_bytes", event->storage_len_bytes);
	}
	if (event->kind == SPW_TRACE_OFFER || event->kind == SPW_TRACE_TAKE) {
		put_number(block, "offset", event->offset_bytes);
		put_number(block, "bytes", event->len_bytes);
	}
	if (event->kind == SPW_TRACE_OFFER) {
		if (event->hint != SPW_TRACE_HINT_NONE)
			put_word(block, "hint", spw_trace__hint_names[event->hint]);
		put_word(block, "result", spw_trace__result_names[event->result]);
	}
	if (event->kind == SPW_TRACE_TAKE || event->kind == SPW_TRACE_HOLD ||
	    event->kind == SPW_TRACE_AGAIN)
		put_number(block, "wait_ns", event->wait_ns);
	put(block, "}\n");
}

/* Numbers fit in 63 bits: JSON readers use signed integers. */
static bool event_valid(const struct spw_trace_event *event)
{
	return event->kind < TRACE_KINDS && event->hint < TRACE_HINTS &&
	       event->result < TRACE_RESULTS &&
	       (!spw_trace__names_tensor(event) || event->tensor != 0) &&
	       event->storage_version <= INT64_MAX && event->storage_len_bytes <= INT64_MAX &&
	       event->offset_bytes <= INT64_MAX && event->len_bytes <= INT64_MAX &&
	       event->wait_ns <= INT64_MAX;
}

static bool number_ids(struct spw_trace_writer *writer, struct spw_trace_event *event)
{
	if (event->kind == SPW_TRACE_SCOPE_ENTER)
		return number(&writer->scopes, &event->scope_key);
	if (spw_trace__names_tensor(event) && !number(&writer->tensors, &event->tensor))
		return false;
	return event->kind != SPW_TRACE_OFFER || number(&writer->storages, &event->storage_key);
}

static void write_locked(struct spw_trace_writer *writer, struct spw_trace_event *event)
{
	struct block *block;

	if (!event_valid(event)) {
		fail(writer, -EINVAL, "an event is out of range");
		return;
	}
	block = number_ids(writer, event) ? block_with_room(writer) : NULL;
	if (!block) {
		fail(writer, -ENOMEM, "no memory");
		return;
	}
	event->ns = spw_clock_ns() - writer->begin_ns;
	put_event(block, event);
}

void spw_trace_write(struct spw_trace_writer *writer, const struct spw_trace_event *caller)
{
	struct spw_trace_event event = *caller;

	SPW_MUST(pthread_mutex_lock(&writer->lock));
	if (!writer->error)
		write_locked(writer, &event);
	SPW_MUST(pthread_mutex_unlock(&writer->lock));
}

/* ---- Opening and closing ---- */

static int put_header(struct block *block, const char *model)
{
	json_t *header = json_pack("{s:s, s:i, s:s}", "format", TRACE_FORMAT, "version",
				   SPW_TRACE_VERSION, "model", model);
	char *text = header ? json_dumps(header, JSON_COMPACT) : NULL;

	json_decref(header);
	if (!text)
		return spw_error(-EINVAL, "the description of a trace is not UTF-8");
	put(block, text);
	put(block, "\n");
	free(text);
	return 0;
}

static int open_file(struct spw_trace_writer *writer)
{
	size_t len = strlen(writer->path);
	bool compressed = len >= 3 && strcmp(writer->path + len - 3, ".gz") == 0;

	errno = 0;
	writer->file = gzopen(writer->path, compressed ? "wbe6" : "wbeT");
	if (writer->file)
		return 0;
	return spw_error_errno(errno != 0 ? -errno : -ENOMEM, "cannot create the trace %s",
			       writer->path);
}

static int start(struct spw_trace_writer *writer, const char *model)
{
	struct block *block = block_with_room(writer);
	int rc;

	if (!block)
		return spw_error(-ENOMEM, "no memory for a trace");
	rc = put_header(block, model ? model : "");
	if (rc)
		return rc;
	writer->begin_ns = spw_clock_ns();
	rc = pthread_create(&writer->thread, NULL, write_blocks, writer);
	return rc ? spw_error_errno(-rc, "no thread to write the trace %s", writer->path) : 0;
}

static void writer_free(struct spw_trace_writer *writer)
{
	free(writer->filling);
	free(writer->unwritten);
	free(writer->tensors.slots);
	free(writer->storages.slots);
	free(writer->scopes.slots);
	free(writer->path);
	free(writer);
}

int spw_trace_create(const char *path, const char *model, struct spw_trace_writer **out)
{
	struct spw_trace_writer *writer;
	int rc;

	if (!path || !out)
		return spw_error(-EINVAL, "a trace needs a path and a place for the writer");
	*out = NULL;
	if (model && strlen(model) > SPW_TRACE_MODEL_MAX)
		return spw_error(-EINVAL, "the description of a trace has %zu bytes; at most %u",
				 strlen(model), SPW_TRACE_MODEL_MAX);
	writer = malloc(sizeof(*writer));
	if (!writer)
		return spw_error(-ENOMEM, "no memory for a trace");
	*writer = (struct spw_trace_writer){.lock = PTHREAD_MUTEX_INITIALIZER,
					    .changed = PTHREAD_COND_INITIALIZER,
					    .full_end = &writer->full};
	writer->path = strdup(path);
	rc = writer->path ? open_file(writer) : spw_error(-ENOMEM, "no memory for a trace");
	if (rc == 0) {
		rc = start(writer, model);
		if (rc)
			(void)gzclose(writer->file);
	}
	if (rc) {
		writer_free(writer);
		return rc;
	}
	*out = writer;
	return 0;
}

int spw_trace_finish(struct spw_trace_writer *writer)
{
	int rc;

	if (!writer)
		return 0;
	SPW_MUST(pthread_mutex_lock(&writer->lock));
	if (writer->filling)
		queue_block(writer);
	writer->finishing = true;
	SPW_MUST(pthread_cond_signal(&writer->changed));
	SPW_MUST(pthread_mutex_unlock(&writer->lock));
	SPW_MUST(pthread_join(writer->thread, NULL));
	errno = 0;
	rc = gzclose(writer->file);
	if (rc != Z_OK) {
		rc = rc == Z_MEM_ERROR ? -ENOMEM : errno != 0 ? -errno : -EIO;
		fail(writer, rc, spw_strerror(rc));
	}
	rc = writer->error ? spw_error(writer->error, "%s", writer->error_text) : 0;
	writer_free(writer);
	return rc;
}
