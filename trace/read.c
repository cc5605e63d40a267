/* SPDX-License-Identifier: MIT */
/*
 * trace/read.c - spw_trace_read(): reads a trace file, which is not trusted
 *
 * Every value is checked before it is used, the numbers of lines and events are limited, and memory
 * grows only with valid lines, whatever a compressed file claims to hold.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <zlib.h>

#include "trace/internal.h"
#include "util/util.h"

struct reader {
	struct spw_trace trace; /* first member: spw_trace_free() gets its address */
	char *model;
	struct spw_trace_event *events;
	uint32_t events_max;

	struct known_tensor {
		uint64_t storage, version; /* as in its first offer */
		uint64_t storage_len_bytes;
		uint32_t users; /* offers minus releases */
	} * tensors;            /* index: tensor number, from 1 */
	uint32_t tensors_max;

	const char *path;
	gzFile file;
	char *line;
	unsigned line_number;
	json_t *object; /* of the current line */
	/* The first error; its message is set. Fields read after it are 0 and unused. */
	int error;
};

static int bad(struct reader *reader, const char *format, ...) SPW_PRINTF(2, 3);

/* Report what is wrong with the line, unless there was an error before. Return: the first error. */
static int bad(struct reader *reader, const char *format, ...)
{
	char words[256];
	va_list args;

	if (reader->error == 0) {
		va_start(args, format);
		(void)vsnprintf(words, sizeof(words), format, args);
		va_end(args);
		reader->error = spw_error(-EBADMSG, "%s, line %u: %s", reader->path,
					  reader->line_number, words);
	}
	return reader->error;
}

const char *const spw_trace__kind_names[TRACE_KINDS] = {
	"step", "stage",  "scope_enter", "scope_leave", "offer",
	"take", "return", "release",     "hold",        "again",
};
const char *const spw_trace__hint_names[TRACE_HINTS] = {"none", "keep", "spill", "pin"};
const char *const spw_trace__result_names[TRACE_RESULTS] = {"keep", "spill", "dedup"};
const char *const spw_trace__stage_names[2] = {"forward", "backward"};

/* ---- Lines ---- */

static int read_failed(const struct reader *reader)
{
	int saved = errno, zlib_error;
	const char *words = gzerror(reader->file, &zlib_error);

	if (zlib_error == Z_OK || zlib_error == Z_STREAM_END)
		return 0;
	if (zlib_error == Z_ERRNO)
		return spw_error_errno(saved != 0 ? -saved : -EIO, "cannot read the trace %s",
				       reader->path);
	if (zlib_error == Z_MEM_ERROR)
		return spw_error(-ENOMEM, "no memory to read the trace %s", reader->path);
	return spw_error(-EBADMSG,
			 "%s, after line %u: the compressed data are damaged or cut off: %s",
			 reader->path, reader->line_number, words);
}

/* Read and parse the next line into reader->object. Return: 1; 0 at the end of the file; -errno. */
static int next_line(struct reader *reader)
{
	json_error_t error;
	size_t len;

	json_decref(reader->object);
	reader->object = NULL;
	errno = 0;
	if (!gzgets(reader->file, reader->line, (int)TRACE_LINE_MAX))
		return read_failed(reader);
	reader->line_number++;
	len = strlen(reader->line);
	if (len == 0 || reader->line[len - 1] != '\n') {
		int rc = read_failed(reader);

		if (rc)
			return rc;
		if (gzeof(reader->file) && len > 0)
			return bad(reader,
				   "the file ends within the line: if its recording was cut off, "
				   "what is before it is "
				   "whole (head -n %u)",
				   reader->line_number - 1);
		return bad(reader, "longer than %u bytes, or a zero byte in it",
			   TRACE_LINE_MAX - 2);
	}
	reader->object = json_loadb(reader->line, len, JSON_REJECT_DUPLICATES, &error);
	if (!reader->object)
		return bad(reader, "no JSON: %s", error.text);
	if (!json_is_object(reader->object))
		return bad(reader, "no JSON object");
	return 1;
}

/* ---- Fields ---- */

static uint64_t get_number(struct reader *reader, const char *name, uint64_t most)
{
	const json_t *field = json_object_get(reader->object, name);
	uint64_t value = (uint64_t)json_integer_value(field);

	if (!field)
		(void)bad(reader, "\"%s\" is missing", name);
	else if (!json_is_integer(field) || json_integer_value(field) < 0)
		(void)bad(reader, "\"%s\" is not a whole number of at least 0", name);
	else if (value > most)
		(void)bad(reader, "\"%s\" is %" PRIu64 "; at most %" PRIu64, name, value, most);
	return reader->error ? 0 : value;
}

static unsigned get_word(struct reader *reader, const char *name, const char *const words[],
			 unsigned count)
{
	const json_t *field = json_object_get(reader->object, name);

	if (!field)
		(void)bad(reader, "\"%s\" is missing", name);
	for (unsigned value = 0; json_is_string(field) && value < count; value++)
		if (strcmp(json_string_value(field), words[value]) == 0)
			return value;
	(void)bad(reader, "\"%s\" is none of the %u words that it may be, from \"%s\" to \"%s\"",
		  name, count, words[0], words[count - 1]);
	return 0;
}

static bool has(const struct reader *reader, const char *name)
{
	return json_object_get(reader->object, name) != NULL;
}

/* ---- Events ---- */

static void get_stage(struct reader *reader, struct spw_trace_event *event)
{
	event->micro_batch = (uint32_t)get_number(reader, "micro_batch", UINT32_MAX);
	event->backward = get_word(reader, "stage", spw_trace__stage_names, 2) == 1;
	event->has_next = has(reader, "next_stage") || has(reader, "next_micro_batch");
	if (!event->has_next)
		return;
	event->next_micro_batch = (uint32_t)get_number(reader, "next_micro_batch", UINT32_MAX);
	event->next_backward = get_word(reader, "next_stage", spw_trace__stage_names, 2) == 1;
}

static void get_part(struct reader *reader, struct spw_trace_event *event,
		     uint64_t storage_len_bytes)
{
	event->offset_bytes = get_number(reader, "offset", INT64_MAX);
	event->len_bytes = get_number(reader, "bytes", INT64_MAX);
	if (event->len_bytes == 0 || event->offset_bytes > storage_len_bytes ||
	    event->len_bytes > storage_len_bytes - event->offset_bytes)
		(void)bad(reader,
			  "bytes %" PRIu64 " + %" PRIu64
			  " are empty, or not within a storage of %" PRIu64,
			  event->offset_bytes, event->len_bytes, storage_len_bytes);
}

/* Ids are numbered in the order of their appearance: a new id must have the next number. */
static uint64_t get_next_number(struct reader *reader, const char *name, uint32_t *known)
{
	uint64_t value = get_number(reader, name, INT64_MAX);

	if (value == 0 || value > (uint64_t)*known + 1)
		(void)bad(reader,
			  "\"%s\" is %" PRIu64
			  "; new ones are numbered from 1 without gaps, and %u are known",
			  name, value, *known);
	else if (value > *known)
		(*known)++;
	return value;
}

/* Make room for one more element of an array. */
static int grow(void **array, uint32_t used, uint32_t *max, size_t element_bytes)
{
	uint32_t wanted = *max ? *max * 2 : 1024;
	void *grown;

	if (used < *max)
		return 0;
	grown = realloc(*array, wanted * element_bytes);
	if (!grown)
		return spw_error(-ENOMEM, "no memory for a trace of %u events", wanted);
	memset((char *)grown + *max * element_bytes, 0, (wanted - *max) * element_bytes);
	*array = grown;
	*max = wanted;
	return 0;
}

/* Count an offer. A tensor offered again must be unreleased and of the same storage and version. */
static void know_tensor(struct reader *reader, const struct spw_trace_event *event, bool again)
{
	struct known_tensor *tensor = &reader->tensors[event->tensor];

	if (again && tensor->users == 0)
		(void)bad(reader, "tensor %" PRIu64 " has been released, and is offered again",
			  event->tensor);
	if (again &&
	    (tensor->storage != event->storage_key || tensor->version != event->storage_version))
		(void)bad(reader,
			  "tensor %" PRIu64 " is of storage %" PRIu64 ", version %" PRIu64
			  ", and is offered again of another",
			  event->tensor, tensor->storage, tensor->version);
	tensor->storage = event->storage_key;
	tensor->version = event->storage_version;
	if (tensor->storage_len_bytes < event->storage_len_bytes)
		tensor->storage_len_bytes = event->storage_len_bytes;
	tensor->users++;
}

static void get_offer(struct reader *reader, struct spw_trace_event *event)
{
	uint32_t known = reader->trace.tensors;

	event->tensor = get_next_number(reader, "tensor", &reader->trace.tensors);
	if (!reader->error)
		reader->error = grow((void **)&reader->tensors, reader->trace.tensors,
				     &reader->tensors_max, sizeof(*reader->tensors));
	event->storage_key = get_next_number(reader, "storage", &reader->trace.storages);
	event->storage_version = get_number(reader, "version", INT64_MAX);
	event->storage_len_bytes = get_number(reader, "storage_bytes", INT64_MAX);
	get_part(reader, event, event->storage_len_bytes);
	if (has(reader, "hint"))
		event->hint = get_word(reader, "hint", spw_trace__hint_names, TRACE_HINTS);
	event->result = get_word(reader, "result", spw_trace__result_names, TRACE_RESULTS);
	if (!reader->error)
		know_tensor(reader, event, event->tensor <= known);
}

/* The tensor of an event, or NULL. It must not be released, except when a lease is returned. */
static struct known_tensor *get_known_tensor(struct reader *reader, struct spw_trace_event *event)
{
	event->tensor = get_number(reader, "tensor", INT64_MAX);
	if (event->tensor == 0 || event->tensor > reader->trace.tensors)
		(void)bad(reader, "tensor %" PRIu64 " has not been offered", event->tensor);
	else if (event->kind != SPW_TRACE_RETURN && reader->tensors[event->tensor].users == 0)
		(void)bad(reader, "tensor %" PRIu64 " has been released", event->tensor);
	return reader->error ? NULL : &reader->tensors[event->tensor];
}

static void get_event(struct reader *reader, struct spw_trace_event *event, uint64_t not_before_ns)
{
	struct known_tensor *tensor;

	event->kind = get_word(reader, "event", spw_trace__kind_names, TRACE_KINDS);
	event->ns = get_number(reader, "ns", INT64_MAX);
	if (event->ns < not_before_ns)
		(void)bad(reader, "\"ns\" is %" PRIu64 ", before the event of the line above",
			  event->ns);
	if (reader->error)
		return;
	switch (event->kind) {
	case SPW_TRACE_STEP: reader->trace.steps++; break;
	case SPW_TRACE_STAGE: get_stage(reader, event); break;
	case SPW_TRACE_SCOPE_ENTER:
		event->scope_key = get_number(reader, "scope", INT64_MAX);
		break;
	case SPW_TRACE_SCOPE_LEAVE: break;
	case SPW_TRACE_OFFER: get_offer(reader, event); break;
	case SPW_TRACE_TAKE:
		tensor = get_known_tensor(reader, event);
		if (tensor)
			get_part(reader, event, tensor->storage_len_bytes);
		event->wait_ns = get_number(reader, "wait_ns", INT64_MAX);
		break;
	case SPW_TRACE_RETURN: (void)get_known_tensor(reader, event); break;
	case SPW_TRACE_RELEASE:
		tensor = get_known_tensor(reader, event);
		if (tensor)
			tensor->users--;
		break;
	case SPW_TRACE_HOLD:
	case SPW_TRACE_AGAIN: event->wait_ns = get_number(reader, "wait_ns", INT64_MAX); break;
	}
}

/* ---- The whole ---- */

static int read_header(struct reader *reader)
{
	const json_t *format, *model;
	uint64_t version;
	int rc = next_line(reader);

	if (rc < 0)
		return rc;
	format = rc == 1 ? json_object_get(reader->object, "format") : NULL;
	if (!json_is_string(format) || strcmp(json_string_value(format), TRACE_FORMAT) != 0)
		return spw_error(-EBADMSG, "%s, line 1: this is not a trace: no \"format\":\"%s\"",
				 reader->path, TRACE_FORMAT);
	version = get_number(reader, "version", INT64_MAX);
	if (reader->error)
		return reader->error;
	if (version != SPW_TRACE_VERSION)
		return spw_error(-EPROTONOSUPPORT,
				 "%s, line 1: a trace of version %" PRIu64 "; known is %u",
				 reader->path, version, SPW_TRACE_VERSION);
	model = json_object_get(reader->object, "model");
	if (!json_is_string(model) || json_string_length(model) > SPW_TRACE_MODEL_MAX)
		return bad(reader, "\"model\" is missing, no text, or longer than %u bytes",
			   SPW_TRACE_MODEL_MAX);
	reader->model = strdup(json_string_value(model));
	if (!reader->model)
		return spw_error(-ENOMEM, "no memory for a trace");
	reader->trace.model = reader->model;
	return 0;
}

static int read_events(struct reader *reader)
{
	struct spw_trace *trace = &reader->trace;
	uint64_t ns = 0;
	int rc;

	while ((rc = next_line(reader)) == 1) {
		if (trace->count == SPW_TRACE_EVENTS_MAX)
			return spw_error(-E2BIG,
					 "%s, line %u: more than %u events: record fewer steps",
					 reader->path, reader->line_number, SPW_TRACE_EVENTS_MAX);
		rc = grow((void **)&reader->events, trace->count, &reader->events_max,
			  sizeof(*reader->events));
		if (rc)
			return rc;
		get_event(reader, &reader->events[trace->count], ns);
		if (reader->error)
			return reader->error;
		ns = reader->events[trace->count++].ns;
	}
	trace->events = reader->events;
	return rc;
}

static int read_all(struct reader *reader, const char *path)
{
	int rc;

	reader->path = path;
	errno = 0;
	reader->file = gzopen(path, "rbe");
	if (!reader->file)
		return spw_error_errno(errno != 0 ? -errno : -ENOMEM, "cannot open the trace %s",
				       path);
	reader->line = malloc(TRACE_LINE_MAX);
	rc = reader->line ? read_header(reader) : spw_error(-ENOMEM, "no memory for a trace");
	if (rc == 0)
		rc = read_events(reader);
	json_decref(reader->object);
	free(reader->line);
	free(reader->tensors);
	(void)gzclose(reader->file);
	return rc;
}

int spw_trace_read(const char *path, struct spw_trace **trace)
{
	struct reader *reader;
	int rc;

	if (!path || !trace)
		return spw_error(-EINVAL, "reading a trace needs a path and a place for the trace");
	*trace = NULL;
	reader = calloc(1, sizeof(*reader));
	if (!reader)
		return spw_error(-ENOMEM, "no memory for a trace");
	rc = read_all(reader, path);
	if (rc) {
		spw_trace_free(&reader->trace);
		return rc;
	}
	*trace = &reader->trace;
	return 0;
}

void spw_trace_free(struct spw_trace *trace)
{
	struct reader *reader = (struct reader *)trace;

	if (!reader)
		return;
	free(reader->events);
	free(reader->model);
	free(reader);
}
