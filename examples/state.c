/* SPDX-License-Identifier: MIT */
/*
 * examples/state.c - training state that lives on the drives, survives the process, and is resumed
 *
 *   cc state.c -o state $(pkg-config --cflags --libs spillway)
 *   ./state DRIVE...      again and again: each run goes on where the last commit was
 *
 * The state is of records, here of 1 MiB. More of them than fit memory are read ahead and
 * written behind in the order in which a step uses them.
 */
#include <stdio.h>

#include <spillway/spillway.h>

#define RECORDS 8
#define LEN     ((size_t)1 << 20)
#define STEPS   4

static uint32_t records[RECORDS];

/* Names are how records are found again; the shape is compared, so that no other model resumes. */
static int declare(struct spw_state *state)
{
	static const char shape[] = "float32[262144]";
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < RECORDS; i++) {
		char name[32];

		(void)snprintf(name, sizeof(name), "layer.%u.moment", i);
		rc = spw_state_add(state, name, LEN, shape, sizeof(shape), &records[i]);
	}
	return rc;
}

static int step(struct spw_state *state)
{
	int rc = spw_state_pass(state, records, RECORDS);

	for (unsigned i = 0; rc == 0 && i < RECORDS; i++) {
		void *memory;

		rc = spw_state_take(state, records[i], &memory);
		if (rc)
			break;
		for (size_t at = 0; at < LEN / sizeof(float); at++)
			((float *)memory)[at] += 1;
		rc = spw_state_give(state, records[i], true);
	}
	return rc;
}

/* Every record counts the steps: the same in all of them, and the commit's own number. */
static int check(struct spw_state *state, uint64_t number)
{
	for (unsigned i = 0; i < RECORDS; i++) {
		void *memory;
		float first, last;
		int rc = spw_state_take(state, records[i], &memory);

		if (rc)
			return rc;
		first = ((float *)memory)[0];
		last = ((float *)memory)[LEN / sizeof(float) - 1];
		rc = spw_state_give(state, records[i], false);
		if (rc || first != (float)number || last != first) {
			fprintf(stderr, "record %u is of step %g\n", i, (double)first);
			return -1;
		}
	}
	return 0;
}

static int train(struct spw_state *state)
{
	uint64_t number = 0;
	int rc = declare(state);

	if (rc == 0)
		rc = spw_state_attach(state);
	if (rc == 1)
		rc = spw_state_attached(state, &number);
	if (rc == 0)
		rc = check(state, number);
	if (rc)
		return rc;
	printf(number ? "resumed at step %llu\n" : "began at step %llu\n",
	       (unsigned long long)number);
	for (unsigned i = 0; rc == 0 && i < STEPS; i++)
		rc = step(state);
	number += STEPS;
	/* From here on a crash, or the end of the process, comes back to this step. */
	if (rc == 0)
		rc = spw_state_commit(state, number, NULL, 0, false);
	if (rc == 0)
		printf("committed step %llu\n", (unsigned long long)number);
	return rc;
}

int main(int argc, char *argv[])
{
	struct spw_state *state = NULL;
	struct spw_state_opts opts;
	struct spw_store *store;
	int rc;

	if (argc < 2) {
		fprintf(stderr, "usage: %s DRIVE... (formatted by spillway format)\n", argv[0]);
		return 2;
	}
	if (spw_store_open((const char *const *)&argv[1], (unsigned)argc - 1, NULL, &store)) {
		fprintf(stderr, "%s\n", spw_last_error());
		return 1;
	}
	spw_state_opts_init(&opts, sizeof(opts));
	opts.record_bytes_max = LEN;
	rc = spw_state_open(store, &opts, &state);
	if (rc == 0)
		rc = train(state);
	if (rc)
		fprintf(stderr, "%s\n", spw_last_error());
	spw_state_close(state);
	spw_store_close(store);
	return rc ? 1 : 0;
}
