/* SPDX-License-Identifier: MIT */
/*
 * tests/vm/test_commits.c - commits on command: in the virtual machine a step per line of input,
 * and on the host, with images of what a power cut has left, what is there
 *
 * The bytes of a step's objects follow from its number, and every drive has some of them, so that
 * each commit flushes each drive. Every line is answered by one: "ok", with the step that is
 * durable and the one before it that is kept (0: none), or what went wrong. For
 * tests/vm/power_commits.
 */
#include "tests/integration/test_store.h"
#include "util/util.h"

#define DRIVES          4u
#define PARTITION_BYTES (4 * MIB)
#define OBJECT_BYTES    (160u * KIB)
#define OBJECTS_MIN     4u
#define OBJECTS_MAX     64u

static struct spw_store *store;
static uint8_t bytes[OBJECT_BYTES];

/* ---- A step ---- */

static size_t len_of(uint64_t step, unsigned index)
{
	return 1 + (step * 7919 + index * 104729) % OBJECT_BYTES;
}

static int put(uint64_t seed, size_t len, spw_object *object)
{
	struct spw_request *request;
	int rc;

	content_fill(bytes, len, seed);
	rc = spw_store_put(store, bytes, len, NULL, object, &request);
	if (rc) {
		object->value = 0;
		return rc;
	}
	return spw_request_wait(request);
}

static int written(uint64_t bytes_written[DRIVES])
{
	for (unsigned i = 0; i < DRIVES; i++) {
		struct spw_drive_stats stats;
		int rc = spw_store_drive_stats(store, i, &stats, sizeof(stats));

		if (rc)
			return rc;
		bytes_written[i] = stats.bytes_written;
	}
	return 0;
}

static bool all_have_more(const uint64_t before[DRIVES])
{
	uint64_t now[DRIVES] = {0};
	unsigned more = 0;

	if (written(now))
		return false;
	for (unsigned i = 0; i < DRIVES; i++)
		more += now[i] > before[i];
	return more == DRIVES;
}

/* Objects until each drive has some of them. */
static int put_step(uint64_t step, spw_object objects[OBJECTS_MAX], unsigned *count)
{
	uint64_t before[DRIVES];
	int rc = written(before);

	for (*count = 0; rc == 0 && (*count < OBJECTS_MIN || !all_have_more(before));) {
		if (*count == OBJECTS_MAX)
			return spw_error(-EIO, "a drive gets nothing of what is put");
		rc = put(step * OBJECTS_MAX + *count, len_of(step, *count), &objects[*count]);
		(*count)++;
	}
	return rc;
}

static int commit_step(uint64_t step, bool keep_previous)
{
	spw_object objects[OBJECTS_MAX];
	unsigned count;
	int rc = put_step(step, objects, &count);

	if (rc == 0)
		rc = spw_store_commit(store, objects, count, step, &step, sizeof(step),
				      keep_previous);
	while (rc == 0 && count > 0)
		rc = spw_store_free(store, objects[--count]);
	return rc;
}

/* Fills all that is free, so that what is of no commit any more is overwritten. */
static int fill(void)
{
	static spw_object objects[4 * PARTITION_BYTES / SPW_CHUNK_BYTES_MIN];
	static uint64_t seed = UINT64_C(1) << 40;
	size_t count = 0;
	int rc = 0;

	while (rc == 0 && count < SPW_ARRAY_LEN(objects))
		rc = put(seed++, SPW_CHUNK_BYTES_MIN, &objects[count++]);
	if (rc != -ENOSPC)
		return spw_error(rc ? rc : -EFBIG, "the store was not filled: %s",
				 spw_last_error());
	while (count > 0)
		if (objects[--count].value)
			(void)spw_store_free(store, objects[count]);
	return 0;
}

/* ---- What is there ---- */

static int verify_object(spw_object object, uint64_t len, uint64_t step, unsigned index)
{
	int rc;

	if (len != len_of(step, index))
		return spw_error(-EUCLEAN, "object %u of step %" PRIu64 " has %" PRIu64 " bytes",
				 index, step, len);
	memset(bytes, 0xA5, len);
	rc = get_wait(store, object, 0, bytes, len);
	if (rc)
		return rc;
	if (content_differs(bytes, len, step * OBJECTS_MAX + index, 0) < len)
		return spw_error(-EUCLEAN, "object %u of step %" PRIu64 " has wrong bytes", index,
				 step);
	return 0;
}

/* @info: of what is durable, every byte of which is right; all zero: nothing is. */
static int verify(struct spw_commit_info *info)
{
	spw_object objects[OBJECTS_MAX];
	uint64_t lens[OBJECTS_MAX], step = 0;
	int rc;

	*info = (struct spw_commit_info){.size = sizeof(*info)};
	rc = spw_store_committed(store, info, sizeof(*info));
	if (rc == -ENODATA)
		return 0;
	if (rc == 0 && (info->objects < OBJECTS_MIN || info->objects > OBJECTS_MAX))
		rc = spw_error(-EUCLEAN, "%u objects are there", (unsigned)info->objects);
	if (rc == 0)
		rc = spw_store_committed_record(store, &step, sizeof(step));
	if (rc == 0 && step != info->number)
		rc = spw_error(-EUCLEAN, "the record of step %" PRIu64 " is another's",
			       info->number);
	if (rc == 0)
		rc = spw_store_committed_objects(store, objects, lens, (uint32_t)info->objects);
	for (unsigned i = 0; rc == 0 && i < info->objects; i++)
		rc = verify_object(objects[i], lens[i], step, i);
	return rc;
}

static int open_verified(uint64_t number, bool read_only, struct spw_commit_info *info)
{
	struct spw_store_opts opts = default_opts();
	int rc;

	opts.backend = SPW_BACKEND_AUTO; /* a host may refuse io_uring for a while */
	opts.arena_bytes = 4 * MIB;
	opts.inline_mode = read_only; /* a look needs no thread, and there are thousands */
	opts.read_only = read_only;
	opts.commit_number = number;
	rc = spw_store_open(drive_paths, DRIVES, &opts, &store);
	return rc ? rc : verify(info);
}

static void close_now(void)
{
	spw_store_close(store);
	store = NULL;
}

/* Changes nothing. @kept: the step before, if it can be chosen, too; else 0. */
static int look(uint64_t *step, uint64_t *kept)
{
	struct spw_commit_info info;
	int rc = open_verified(SPW_COMMIT_NEWEST, true, &info);

	close_now();
	*step = info.number;
	*kept = 0;
	if (rc || *step < 2)
		return rc;
	rc = open_verified(*step - 1, true, &info);
	if (store)
		*kept = info.number;
	close_now();
	return rc == -ENODATA ? 0 : rc;
}

/* From what is there, with all else overwritten. */
static int go_on(uint64_t *step, uint64_t *kept)
{
	struct spw_commit_info info;
	int rc = open_verified(SPW_COMMIT_NEWEST, false, &info);

	if (rc == 0)
		rc = fill();
	if (rc == 0)
		rc = verify(&info);
	if (rc == 0)
		rc = commit_step(info.number + 1, false);
	if (rc == 0)
		rc = fill();
	close_now();
	return rc ? rc : look(step, kept);
}

/* ---- Commands ---- */

/* Partitions so small that blocks are soon used again. */
static int format(void)
{
	struct spw_store_info info = {.size = sizeof(info)};
	struct spw_format_opts opts;
	int rc;

	spw_format_opts_init(&opts, sizeof(opts));
	opts.chunk_bytes = SPW_CHUNK_BYTES_MIN;
	opts.force = opts.erase = true;
	rc = spw_format(drive_paths, DRIVES, &opts, &info);
	opts.partitions = (uint32_t)(info.capacity_bytes / PARTITION_BYTES);
	return rc ? rc : spw_format(drive_paths, DRIVES, &opts, NULL);
}

static int obey(const char *word, uint64_t number, uint64_t *step, uint64_t *kept)
{
	struct spw_commit_info info;

	if (strcmp(word, "format") == 0)
		return format();
	if (strcmp(word, "open") == 0)
		return open_verified(SPW_COMMIT_NEWEST, false, &info);
	if (strcmp(word, "fill") == 0)
		return fill();
	if (strcmp(word, "commit") == 0 || strcmp(word, "keep") == 0)
		return commit_step(number, word[0] == 'k');
	if (strcmp(word, "release") == 0)
		return spw_store_commit_release(store);
	if (strcmp(word, "look") == 0)
		return look(step, kept);
	if (strcmp(word, "go_on") == 0)
		return go_on(step, kept);
	return spw_error(-EINVAL, "no such command: %s", word);
}

int main(void)
{
	char line[64], word[16];

	(void)drives_from_environment(NULL);
	while (fgets(line, sizeof(line), stdin)) {
		uint64_t number = 0, step = 0, kept = 0;

		if (sscanf(line, "%15s %" SCNu64, word, &number) < 1)
			continue;
		if (obey(word, number, &step, &kept))
			printf("failed: %s\n", spw_last_error());
		else
			printf("ok %" PRIu64 " %" PRIu64 "\n", step, kept);
		(void)fflush(stdout);
	}
	close_now();
	return 0;
}
