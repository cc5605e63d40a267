/* SPDX-License-Identifier: MIT */
/* util/log_ring.c - spw_log_ring_open(): keeps log lines in memory until they are read */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "util/util.h"

/*
 * Invariants while ring->lock is held:
 * RING-1  taken <= written <= taken + lines_max; the ring holds written - taken lines, in order
 * RING-2  lost counts lines that found no room since a line was last taken; the next line that is
 *         taken reports the number
 */
struct spw_log_ring {
	pthread_mutex_t lock;
	_Atomic uint64_t written; /* stored under the lock; may be read without it */
	_Atomic uint64_t taken;
	uint32_t lost;
	unsigned lines_max;
	struct spw_log_line lines[];
};

int spw_log_ring_open(unsigned lines_max, struct spw_log_ring **ring)
{
	struct spw_log_ring *made;

	*ring = NULL;
	if (lines_max == 0)
		return spw_error(-EINVAL, "a log of 0 lines keeps none");
	made = calloc(1, sizeof(*made) + lines_max * sizeof(made->lines[0]));
	if (!made)
		return spw_error(-ENOMEM, "no memory for a log of %u lines", lines_max);
	SPW_MUST(pthread_mutex_init(&made->lock, NULL));
	made->lines_max = lines_max;
	*ring = made;
	return 0;
}

void spw_log_ring_close(struct spw_log_ring *ring)
{
	if (!ring)
		return;
	SPW_MUST(pthread_mutex_destroy(&ring->lock));
	free(ring);
}

void spw_log_ring_write(void *context, enum spw_log_level level, const char *message)
{
	struct spw_log_ring *ring = context;
	uint64_t written;

	SPW_MUST(pthread_mutex_lock(&ring->lock));
	written = ring->written;
	if (written - ring->taken == ring->lines_max) {
		ring->lost++;
	} else {
		struct spw_log_line *line = &ring->lines[written % ring->lines_max];

		line->level = level;
		(void)snprintf(line->text, sizeof(line->text), "%s", message);
		ring->written = written + 1;
	}
	SPW_MUST(pthread_mutex_unlock(&ring->lock));
}

int spw_log_ring_read(struct spw_log_ring *ring, struct spw_log_line *line)
{
	uint64_t taken = ring->taken;
	int found = ring->written != taken;

	/* Do not look again: a line that is written meanwhile was not copied to *line. */
	if (!found || !line)
		return found;
	SPW_MUST(pthread_mutex_lock(&ring->lock));
	taken = ring->taken;
	found = ring->written != taken;
	if (found) {
		*line = ring->lines[taken % ring->lines_max];
		line->lost = ring->lost;
		ring->lost = 0;
		ring->taken = taken + 1;
	}
	SPW_MUST(pthread_mutex_unlock(&ring->lock));
	return found;
}
