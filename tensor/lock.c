/* SPDX-License-Identifier: MIT */
/* tensor/lock.c - the cache's lock: what an unlock has to do, and waiting for I/O */
#include <sched.h>
#include <stdlib.h>

#include "tensor/internal.h"
#include "tensor/lock.h"

void spw_cache__lock_open(struct spw_cache *cache)
{
	pthread_mutexattr_t attributes;

	/* Held for less time than falling asleep takes: spin a little first. */
	SPW_MUST(pthread_mutexattr_init(&attributes));
	SPW_MUST(pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP));
	SPW_MUST(pthread_mutex_init(&cache->lock, &attributes));
	SPW_MUST(pthread_mutexattr_destroy(&attributes));
	SPW_MUST(pthread_cond_init(&cache->io_ended, NULL));
}

void spw_cache__lock_close(struct spw_cache *cache)
{
	/* The thread that notified of the last end may not have returned from that yet. */
	while (atomic_load(&cache->notifiers) > 0)
		(void)sched_yield();
	SPW_ASSERT(!cache->holder && cache->waiters == 0 && !cache->doomed);
	SPW_MUST(pthread_cond_destroy(&cache->io_ended));
	SPW_MUST(pthread_mutex_destroy(&cache->lock));
}

void spw_cache__lock(struct spw_cache *cache)
{
	SPW_MUST(pthread_mutex_lock(&cache->lock));
	SPW_ASSERT(!cache->holder);
	cache->holder = spw_thread_self();
}

/* Unlock, wake those that wait for I/O, and free memory. */
static void unlock_and_tidy(struct spw_cache *cache)
{
	void *doomed = cache->doomed;
	bool tell = cache->io_has_ended;

	cache->doomed = NULL;
	cache->io_has_ended = false;
	if (tell)
		(void)atomic_fetch_add(&cache->notifiers, 1);
	cache->holder = NULL;
	SPW_MUST(pthread_mutex_unlock(&cache->lock));
	if (tell) {
		/* Without the lock, which the woken threads need. */
		SPW_MUST(pthread_cond_broadcast(&cache->io_ended));
		/* From here on the cache may be gone: see spw_cache_close(). */
		(void)atomic_fetch_sub(&cache->notifiers, 1);
	}
	while (doomed) {
		void *next = *(void **)doomed;

		free(doomed);
		doomed = next;
	}
}

void spw_cache__unlock(struct spw_cache *cache)
{
	SPW_ASSERT(cache_is_locked(cache));
	if (cache->doomed || cache->io_has_ended) {
		unlock_and_tidy(cache);
		return;
	}
	cache->holder = NULL;
	SPW_MUST(pthread_mutex_unlock(&cache->lock));
}

SPW_COLD static void unlock_and_log(struct spw_cache *cache)
{
	const struct spw_notices notices = cache->notices;
	const struct spw_log log = cache->opts.log;

	cache->notices.pending = 0;
	spw_cache__unlock(cache);
	for (unsigned i = 0; i < NOTICES; i++)
		if (notices.pending & 1u << i)
			spw_log(&log,
				i == NOTICE_MEMORY || i == NOTICE_THROTTLE ? SPW_LOG_INFO
									   : SPW_LOG_WARNING,
				"cache: %s", notices.text[i]);
}

void spw_cache__unlock_and_notify(struct spw_cache *cache)
{
	if (cache->notices.pending)
		unlock_and_log(cache);
	else
		spw_cache__unlock(cache);
}

/*
 * Going to sleep unlocks, so threads that wait for I/O that has ended are woken before.
 * @sleepers: counts the threads that wait for the same, with this one.
 */
static void sleep_for(struct spw_cache *cache, uint64_t *sleepers, const uint64_t *until_ns)
{
	SPW_ASSERT(cache_is_locked(cache));
	if (cache->io_has_ended)
		SPW_MUST(pthread_cond_broadcast(&cache->io_ended));
	cache->io_has_ended = false;
	(*sleepers)++;
	cache->holder = NULL;
	if (until_ns)
		SPW_MUST(cache->ports.sleep_until(&cache->io_ended, &cache->lock, *until_ns));
	else
		SPW_MUST(cache->ports.sleep(&cache->io_ended, &cache->lock));
	SPW_ASSERT(!cache->holder && *sleepers > 0);
	cache->holder = spw_thread_self();
	(*sleepers)--;
}

void spw_cache__wait_io(struct spw_cache *cache)
{
	sleep_for(cache, &cache->waiters, NULL);
}

void spw_cache__wait_io_until(struct spw_cache *cache, uint64_t until_ns)
{
	sleep_for(cache, &cache->waiters, &until_ns);
}

void spw_cache__wait_read(struct entry *entry)
{
	sleep_for(entry->cache, &entry->sleepers, NULL);
}

void spw_cache__io_ended(const struct entry *entry)
{
	struct spw_cache *cache = entry->cache;

	SPW_ASSERT(cache_is_locked(cache) && cache->io_in_flight > 0);
	cache->io_in_flight--;
	if (cache->waiters > 0 || entry->sleepers > 0)
		cache->io_has_ended = true;
}
