/* SPDX-License-Identifier: MIT */
/* tools/state_export.c - write the records of a committed step as files */
#include "tools/state_export.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "tools/ui/tool.h"
#include "util/util.h"

#define PIECE_BYTES (8u << 20) /* bytes per read and write */
#define PATIENCE_NS UINT64_C(2000000000)
#define INTERVAL_NS UINT64_C(500000000)

struct export
{
	struct spw_store *store;
	const char *folder;
	struct tool_exported *exported;
	json_t *index;
	uint8_t *piece;
	uint64_t next_ns;
	bool shown;
};

static int write_all(int fd, const uint8_t *bytes, size_t len)
{
	while (len > 0) {
		ssize_t written = write(fd, bytes, len);

		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			return written < 0 ? -errno : -EIO;
		bytes += written;
		len -= (size_t)written;
	}
	return 0;
}

static void show(struct export *export)
{
	if (!isatty(STDERR_FILENO) || spw_clock_ns() < export->next_ns)
		return;
	export->next_ns = spw_clock_ns() + INTERVAL_NS;
	export->shown = true;
	(void)fprintf(stderr, "\r%s in %u records ... ", SPW_SIZE_TEXT(export->exported->bytes),
		      export->exported->records);
}

static int get(struct export *export, spw_object object, uint64_t offset, size_t len)
{
	struct spw_request *request;
	int rc;

	if (object.value == 0) {
		memset(export->piece, 0, len);
		return 0;
	}
	rc = spw_store_get(export->store, object, offset, export->piece, len, SPW_URGENT_READ, NULL,
			   &request);
	return rc ? rc : spw_request_wait(request);
}

static int write_record(struct export *export, int fd, const char *path, uint64_t len,
			spw_object object)
{
	int rc = 0;

	for (uint64_t offset = 0; rc == 0 && offset < len; offset += PIECE_BYTES) {
		size_t piece_bytes = SPW_MIN(len - offset, PIECE_BYTES);

		rc = get(export, object, offset, piece_bytes);
		if (rc)
			return rc;
		rc = write_all(fd, export->piece, piece_bytes);
		export->exported->bytes += piece_bytes;
		show(export);
	}
	if (rc == 0 && fsync(fd))
		rc = -errno;
	return rc ? spw_error_errno(rc, "%s: cannot be written", path) : 0;
}

static int make_file(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

	return fd < 0 ? spw_error_errno(-errno, "%s: cannot be made", path) : fd;
}

static int export_record(void *context, const char *name, uint64_t len, const void *shape,
			 size_t shape_len, spw_object object)
{
	struct export *export = context;
	char path[PATH_MAX], file[32];
	json_t *text = json_stringn(shape, shape_len);
	int fd, rc;

	/* Name files by number: a record's name may contain anything. */
	(void)snprintf(file, sizeof(file), "%06u.bin", export->exported->records++);
	if (snprintf(path, sizeof(path), "%s/%s", export->folder, file) >= (int)sizeof(path)) {
		json_decref(text);
		return spw_error(-ENAMETOOLONG, "%s: the path is too long", export->folder);
	}
	(void)json_array_append_new(export->index,
				    json_pack("{s:s, s:o, s:I, s:o}", "file", file, "name",
					      tool_json_text(name), "bytes", (json_int_t)len,
					      "shape", text ? text : json_null()));
	fd = make_file(path);
	if (fd < 0)
		return fd;
	rc = write_record(export, fd, path, len, object);
	(void)close(fd);
	return rc;
}

static int write_index(struct export *export)
{
	json_t *document = json_pack("{s:I, s:O}", "step", (json_int_t) export->exported->step,
				     "records", export->index);
	char *text = document ? json_dumps(document, JSON_INDENT(2)) : NULL;
	char path[PATH_MAX];
	int fd, rc;

	json_decref(document);
	if (!text)
		return spw_error(-ENOMEM, "no memory for the index");
	(void)snprintf(path, sizeof(path), "%s/index.json", export->folder);
	fd = make_file(path);
	rc = fd;
	if (fd >= 0) {
		rc = write_all(fd, (const uint8_t *)text, strlen(text));
		if (rc == 0 && (write_all(fd, (const uint8_t *)"\n", 1) || fsync(fd)))
			rc = -EIO;
		if (rc)
			(void)spw_error_errno(rc, "%s: cannot be written", path);
		(void)close(fd);
	}
	free(text);
	return rc;
}

int tool_state_export(struct spw_store *store, const char *folder, struct tool_exported *exported)
{
	struct spw_commit_info info = {.size = sizeof(info)};
	struct export export = {.store = store,
				.folder = folder,
				.exported = exported,
				.index = json_array(),
				.piece = malloc(PIECE_BYTES),
				.next_ns = spw_clock_ns() + PATIENCE_NS};
	int rc = spw_store_committed(store, &info, sizeof(info));

	*exported = (struct tool_exported){.step = info.number};
	if (rc == 0 && (!export.index || !export.piece))
		rc = spw_error(-ENOMEM, "no memory to export records");
	if (rc == 0 && mkdir(folder, 0777))
		rc = spw_error_errno(-errno, "%s: cannot be made", folder);
	if (rc == 0)
		rc = spw_state_committed(store, export_record, &export);
	if (export.shown)
		(void)fputc('\n', stderr);
	if (rc == 0)
		rc = write_index(&export);
	json_decref(export.index);
	free(export.piece);
	return rc;
}
