/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/cache_sim.h - training steps in virtual time: drives of given bandwidths under the
 * fake store, and a model whose layers save, compute and use
 *
 * The clock moves only in sim_advance(): no test waits, and none depends on the machine. Writes are
 * served one after the other, reads too, urgent ones first; while both are served, each gets half
 * of the mixed bandwidth. A request is served no earlier than a latency after it was made. When the
 * thread that computes waits for a read ahead, a second thread moves the clock until that has
 * ended.
 */
#ifndef SPW_TEST_CACHE_SIM_H
#define SPW_TEST_CACHE_SIM_H

#include <stdio.h>

#include <spillway/cache.h>

#include "tensor/control/internal.h"
#include "tensor/internal.h"
#include "tests/unit/cache_fake.h"

#define SIM_TENSORS_MAX 1024u

static uint64_t sim_now_ns;

static uint64_t sim_clock(void)
{
	return __atomic_load_n(&sim_now_ns, __ATOMIC_SEQ_CST);
}

struct sim_drives {
	double write, read, mixed; /* bytes per nanosecond */
	uint64_t latency_ns;
};

struct sim_tensor {
	spw_tensor tensor;
	uint64_t token, key;
	uint8_t *memory;
	size_t len;
	bool held; /* the token is with the cache */
};

struct sim {
	struct spw_store *store;
	struct spw_cache *cache;
	struct spw_cache_opts opts;
	struct sim_drives drives;
	pthread_mutex_t lock; /* of the clock's movement */
	pthread_t helper;
	bool stop;
	unsigned raises_served;
	struct sim_tensor tensors[SIM_TENSORS_MAX];
	uint64_t next_key;
	uint64_t random;
	unsigned jitter_percent;
	unsigned logged;
	uint64_t compute_ns; /* of the present step */
	uint64_t pause_ns;   /* after the backward pass */
};

/* ---- The drives ---- */

static struct spw_request *sim_head_locked(struct sim *sim, enum fake_kind kind)
{
	struct spw_request *head = NULL;

	for (unsigned i = 0; i < FAKE_REQUESTS; i++) {
		struct spw_request *request = &sim->store->requests[i];

		if ((request->state != FAKE_QUEUED && request->state != FAKE_ISSUED) ||
		    request->kind != kind)
			continue;
		if (!request->seen) {
			request->seen = true;
			request->ready_ns = sim_clock() + sim->drives.latency_ns;
			request->remaining = (double)request->len;
		}
		if (!head || request->cls < head->cls ||
		    (request->cls == head->cls && request->sequence < head->sequence))
			head = request;
	}
	return head;
}

static struct spw_request *sim_cancelled_locked(struct sim *sim)
{
	for (unsigned i = 0; i < FAKE_REQUESTS; i++)
		if (sim->store->requests[i].state == FAKE_CANCELLED)
			return &sim->store->requests[i];
	return NULL;
}

static uint64_t sim_end_of(struct spw_request *request, double rate, uint64_t now_ns)
{
	if (!request)
		return UINT64_MAX;
	if (request->ready_ns > now_ns)
		return request->ready_ns; /* then its service begins */
	return now_ns + (uint64_t)(request->remaining / rate) + 1;
}

static bool sim_serve(struct spw_request *request, double rate, uint64_t from_ns, uint64_t to_ns)
{
	if (!request || request->ready_ns > from_ns)
		return false;
	if (request->state == FAKE_QUEUED)
		request->state = FAKE_ISSUED;
	request->remaining -= rate * (double)(to_ns - from_ns);
	return request->remaining <= 0;
}

/*
 * To the next thing that happens, or to @until_ns. Return: whether there is more to come before
 * that.
 */
static bool sim_once(struct sim *sim, uint64_t until_ns)
{
	struct spw_request *write, *read, *ended;
	double write_rate = sim->drives.write, read_rate = sim->drives.read;
	uint64_t now_ns = sim_clock(), next_ns, end_ns;
	bool written;

	fake_lock(sim->store);
	ended = sim_cancelled_locked(sim);
	if (ended) {
		fake_unlock(sim->store);
		fake_end(ended, 0);
		return true;
	}
	write = sim_head_locked(sim, FAKE_WRITE);
	read = sim_head_locked(sim, FAKE_READ);
	if (write && read && write->ready_ns <= now_ns && read->ready_ns <= now_ns) {
		write_rate =
			write_rate < sim->drives.mixed / 2 ? write_rate : sim->drives.mixed / 2;
		read_rate = read_rate < sim->drives.mixed / 2 ? read_rate : sim->drives.mixed / 2;
	}
	next_ns = sim_end_of(write, write_rate, now_ns);
	end_ns = sim_end_of(read, read_rate, now_ns);
	next_ns = end_ns < next_ns ? end_ns : next_ns;
	next_ns = until_ns < next_ns ? until_ns : next_ns;
	written = sim_serve(write, write_rate, now_ns, next_ns);
	if (sim_serve(read, read_rate, now_ns, next_ns))
		ended = read;
	__atomic_store_n(&sim_now_ns, next_ns, __ATOMIC_SEQ_CST);
	fake_unlock(sim->store);
	if (written)
		fake_end(write, 0);
	if (ended)
		fake_end(ended, 0);
	return written || ended || next_ns < until_ns;
}

static void sim_advance(struct sim *sim, uint64_t until_ns)
{
	SPW_ASSERT(pthread_mutex_lock(&sim->lock) == 0);
	while (sim_once(sim, until_ns))
		;
	SPW_ASSERT(pthread_mutex_unlock(&sim->lock) == 0);
}

static bool sim_is_pending(struct spw_request *request, uint64_t sequence)
{
	bool pending;

	fake_lock(request->store);
	pending = request->sequence == sequence &&
		  (request->state == FAKE_QUEUED || request->state == FAKE_ISSUED);
	fake_unlock(request->store);
	return pending;
}

static void sim_advance_to_end(struct sim *sim, struct spw_request *request, uint64_t sequence)
{
	SPW_ASSERT(pthread_mutex_lock(&sim->lock) == 0);
	while (sim_is_pending(request, sequence))
		(void)sim_once(sim, UINT64_MAX);
	SPW_ASSERT(pthread_mutex_unlock(&sim->lock) == 0);
}

static struct sim *sim_of_store; /* one at a time */

static void sim_serve_waiter(struct spw_store *store, struct spw_request *request)
{
	(void)store;
	sim_advance_to_end(sim_of_store, request, request->sequence);
}

/* The thread that computes waits for a read that it raised. */
static void *sim_help(void *context)
{
	struct sim *sim = context;
	struct spw_store *store = sim->store;

	fake_lock(store);
	while (!sim->stop) {
		struct spw_request *request = NULL;
		uint64_t sequence = 0;

		if (sim->raises_served < store->raises) {
			sim->raises_served = store->raises;
			for (unsigned i = 0; i < FAKE_REQUESTS; i++)
				if (store->requests[i].raised &&
				    (store->requests[i].state == FAKE_QUEUED ||
				     store->requests[i].state == FAKE_ISSUED))
					request = &store->requests[i];
		}
		if (!request) {
			SPW_ASSERT(pthread_cond_wait(&store->changed, &store->lock) == 0);
			continue;
		}
		sequence = request->sequence;
		fake_unlock(store);
		sim_advance_to_end(sim, request, sequence);
		fake_lock(store);
	}
	fake_unlock(store);
	return NULL;
}

/* ---- The trainer ---- */

static void sim_log(void *context, enum spw_log_level level, const char *message)
{
	(void)level;
	(void)message;
	((struct sim *)context)->logged++;
}

static void sim_begin(struct sim *sim, enum spw_cache_mode mode)
{
	*sim = (struct sim){.store = fake_open(), .random = 1};
	sim_of_store = sim;
	sim->store->serve = sim_serve_waiter;
	sim->drives = (struct sim_drives){.write = 1, .read = 1, .mixed = 1, .latency_ns = 2000};
	__atomic_store_n(&sim_now_ns, 1000000, __ATOMIC_SEQ_CST);
	spw_cache_opts_init(&sim->opts, sizeof(sim->opts));
	sim->opts.mode = mode;
	sim->opts.min_bytes = 64;
	sim->opts.tensors_max = 2 * SIM_TENSORS_MAX;
	sim->opts.log = (struct spw_log){.write = sim_log, .context = sim};
	assert_int_equal(pthread_mutex_init(&sim->lock, NULL), 0);
}

static void sim_open(struct sim *sim)
{
	assert_int_equal(spw_cache_open(sim->store, &sim->opts, &sim->cache), 0);
	sim->cache->ports.clock_ns = sim_clock;
	assert_int_equal(pthread_create(&sim->helper, NULL, sim_help, sim), 0);
}

static struct spw_cache_stats sim_stats(struct sim *sim)
{
	struct spw_cache_stats stats;

	spw_cache_stats(sim->cache, &stats, sizeof(stats));
	return stats;
}

static void sim_drain(struct sim *sim)
{
	uint64_t token;

	while (spw_cache_drain(sim->cache, &token, 1) == 1) {
		struct sim_tensor *tensor = &sim->tensors[token - 1];

		assert_true(tensor->held);
		memset(tensor->memory, 0xdd, tensor->len);
		free(tensor->memory);
		tensor->memory = NULL;
		tensor->held = false;
	}
}

static void sim_end(struct sim *sim)
{
	struct spw_cache_stats stats;

	sim_advance(sim, sim_clock() + 1000000000);
	sim_drain(sim);
	stats = sim_stats(sim);
	assert_int_equal(stats.entries, 0);
	assert_int_equal(stats.activation_bytes, 0);
	fake_lock(sim->store);
	sim->stop = true;
	fake_unlock(sim->store);
	assert_int_equal(pthread_join(sim->helper, NULL), 0);
	spw_cache_close(sim->cache);
	fake_close(sim->store);
	assert_int_equal(pthread_mutex_destroy(&sim->lock), 0);
}

static void sim_compute(struct sim *sim, uint64_t ns)
{
	if (sim->jitter_percent > 0) {
		sim->random = sim->random * UINT64_C(6364136223846793005) + 1442695040888963407u;
		ns = ns *
		     (100 - sim->jitter_percent +
		      (sim->random >> 33) % (2 * sim->jitter_percent + 1)) /
		     100;
	}
	sim->compute_ns += ns;
	sim_advance(sim, sim_clock() + ns);
	sim_drain(sim);
}

static int sim_offer(struct sim *sim, unsigned slot, size_t len, enum spw_cache_hint hint)
{
	struct sim_tensor *tensor = &sim->tensors[slot];
	struct spw_offer offer;
	int rc;

	assert_true(slot < SIM_TENSORS_MAX && !tensor->held);
	*tensor = (struct sim_tensor){
		.token = slot + 1, .key = ++sim->next_key, .memory = malloc(len), .len = len};
	assert_non_null(tensor->memory);
	memset(tensor->memory, (int)(tensor->key & 0x7f), len);
	offer = (struct spw_offer){.storage_key = tensor->key,
				   .storage_bytes = tensor->memory,
				   .storage_len_bytes = len,
				   .len_bytes = len,
				   .owner = tensor->token};
	rc = spw_cache_offer_hint(sim->cache, &offer, hint, &tensor->tensor);
	assert_true(rc == SPW_OFFER_KEEP || rc == SPW_OFFER_SPILL);
	tensor->held = true;
	sim_drain(sim);
	return rc;
}

/* Use it for @ns, then let go of it. */
static void sim_use(struct sim *sim, unsigned slot, uint64_t ns)
{
	struct sim_tensor *tensor = &sim->tensors[slot];
	struct spw_taken taken;
	const uint8_t *bytes;

	assert_int_equal(spw_cache_take(sim->cache, tensor->tensor, 0, tensor->len, &taken), 0);
	bytes = taken.bytes ? taken.bytes : sim->tensors[taken.owner - 1].memory;
	assert_int_equal(bytes[0], tensor->key & 0x7f);
	assert_int_equal(bytes[tensor->len - 1], tensor->key & 0x7f);
	sim_compute(sim, ns);
	assert_int_equal(spw_cache_release(sim->cache, tensor->tensor), 0);
	if (taken.lease)
		spw_cache_return(sim->cache, taken.lease);
	sim_drain(sim);
}

/* ---- A model ---- */

struct sim_model {
	unsigned layers, tensors; /* of each layer */
	size_t len;               /* of the first tensor of a layer; the others vary around it */
	/* of the forward pass, for each; the backward pass takes twice as long */
	uint64_t tensor_ns;
};

static size_t sim_len(const struct sim_model *model, unsigned tensor)
{
	static const unsigned eighths[] = {8, 1, 16, 4, 8, 12};

	return model->len * eighths[tensor % 6] / 8;
}

static void sim_forward(struct sim *sim, const struct sim_model *model, unsigned slot)
{
	for (unsigned layer = 0; layer < model->layers; layer++) {
		spw_cache_scope_enter(sim->cache, 100 + layer);
		for (unsigned i = 0; i < model->tensors; i++) {
			sim_compute(sim, model->tensor_ns);
			(void)sim_offer(sim, slot + layer * model->tensors + i, sim_len(model, i),
					SPW_HINT_NONE);
		}
		spw_cache_scope_leave(sim->cache);
	}
}

static void sim_backward(struct sim *sim, const struct sim_model *model, unsigned slot)
{
	for (unsigned i = model->layers * model->tensors; i-- > 0;)
		sim_use(sim, slot + i, 2 * model->tensor_ns);
}

struct sim_step {
	double stall; /* share of compute */
	uint64_t peak_bytes;
};

/* How the step that has ended was. Call after spw_cache_step(). */
static struct sim_step sim_step_was(struct sim *sim)
{
	struct spw_cache_stats stats = sim_stats(sim);
	struct sim_step step = {.peak_bytes = stats.step_peak_bytes};

	if (stats.step_compute_ns > 0)
		step.stall = (double)stats.step_stall_ns / (double)stats.step_compute_ns;
	return step;
}

/* A step of one micro-batch, and how it was. The next begins. */
static struct sim_step sim_step(struct sim *sim, const struct sim_model *model)
{
	sim->compute_ns = 0;
	spw_cache_stage(sim->cache, 0, SPW_STAGE_FORWARD);
	sim_forward(sim, model, 0);
	spw_cache_stage(sim->cache, 0, SPW_STAGE_BACKWARD);
	sim_backward(sim, model, 0);
	sim_advance(sim, sim_clock() + sim->pause_ns);
	sim_drain(sim);
	spw_cache_step(sim->cache);
	return sim_step_was(sim);
}

#endif
