/* SPDX-License-Identifier: MIT */
/* tests/sim/steps.c - what a seed means: the drives, the options, the steps; and steps in a file */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/sim.h"
#include "util/util.h"

#define MIB       (UINT64_C(1) << 20)
#define SECOND_NS UINT64_C(1000000000)

/* Faults after which a drive gives other bytes than it was given, and says that all is well. */
#define WRONG_BYTES                                                                           \
	(1u << SIM_ROT | 1u << SIM_FLIP | 1u << SIM_STALE | 1u << SIM_LOST | 1u << SIM_TORN | \
	 1u << SIM_MISDIRECTED | 1u << SIM_POWER)

const char *const sim_step_names[SIM_STEPS] = {
#define SIM_STEP_NAME(name, word) #word,
	SIM_STEP_LIST(SIM_STEP_NAME)
#undef SIM_STEP_NAME
};

/* ---- What there is ---- */

static void draw_store_opts(uint64_t *random, struct spw_store_opts *opts)
{
	spw_store_opts_init(opts, sizeof(*opts));
	opts->inline_mode = true;
	opts->no_hugetlb = true;
	opts->queue_depth = 1 + (uint32_t)sim_below(random, sim_below(random, 2) ? 4 : 32);
	opts->arena_bytes = MIB * (1 + sim_below(random, 8));
	opts->requests_max = 4 + (uint32_t)sim_below(random, 124);
	opts->objects_max = 4 + (uint32_t)sim_below(random, 124);
	opts->read_deadline_ms =
		sim_below(random, 8) ? 2000 + (uint32_t)sim_below(random, 28000) : 0;
	opts->write_deadline_ms =
		sim_below(random, 8) ? 2000 + (uint32_t)sim_below(random, 28000) : 0;
}

static void draw_cache_opts(uint64_t *random, struct spw_cache_opts *opts)
{
	static const enum spw_cache_mode modes[] = {SPW_CACHE_SPILL, SPW_CACHE_SPILL,
						    SPW_CACHE_OBSERVE, SPW_CACHE_BUDGET,
						    SPW_CACHE_FASTEST};

	spw_cache_opts_init(opts, sizeof(*opts));
	opts->mode = modes[sim_below(random, SPW_ARRAY_LEN(modes))];
	opts->memory_bytes = MIB / 4 + sim_below(random, 4 * MIB);
	opts->min_bytes = sim_below(random, 8192);
	opts->staging_bytes = MIB / 2 + sim_below(random, 4 * MIB);
	opts->prefetch_bytes = sim_below(random, 2) ? sim_below(random, 2 * MIB) : 0;
	opts->spill_last_scope = sim_below(random, 2);
	opts->tensors_max = 8 + (uint32_t)sim_below(random, 120);
}

void sim_config_draw(uint64_t seed, struct sim_config *config)
{
	static const uint32_t partitions[] = {1, 1, 2, 3, 8};
	uint64_t random = seed ^ UINT64_C(0x5eed0f511111a7e);
	uint64_t what = sim_below(&random, 4);

	*config = (struct sim_config){.seed = seed};
	config->drives =
		1 + (unsigned)sim_below(&random, sim_below(&random, 3) ? 4 : SIM_DRIVES_MAX);
	config->partitions = partitions[sim_below(&random, SPW_ARRAY_LEN(partitions))];
	/* Mostly small ones, of which there are many; up to 1 MiB. */
	config->chunk_bytes = SPW_CHUNK_BYTES_MIN
			      << sim_below(&random, sim_below(&random, 4) ? 3 : 5);
	if (config->chunk_bytes > SPW_CHUNK_BYTES_MIN << 2)
		config->partitions = 1; /* of many there would be no room for a chunk in each */
	config->logical_block_bytes = sim_below(&random, 2) ? 512 : 4096;
	config->formatted = sim_below(&random, 32) == 0;
	for (unsigned i = 0; i < config->drives; i++)
		config->drive_bytes[i] =
			SPW_DRIVE_BYTES_MIN + sim_below(&random, 8 * MIB / 4096 + 1) * 4096;
	config->has_store = what != 0;
	config->has_cache = what <= 1;
	draw_store_opts(&random, &config->store);
	config->store.partition = (uint32_t)sim_below(&random, config->partitions);
	/* Then the drives are trusted: sim_steps_draw() has them deserve it. */
	config->store.no_checksums = sim_below(&random, 24) == 0;
	draw_cache_opts(&random, &config->cache);
}

/* ---- What is done ---- */

/* Some are frequent, some rare, and in each run some do not come at all. */
static const unsigned weights[SIM_STEPS] = {
	[SIM_STEP_PUT] = 30,   [SIM_STEP_GET] = 34,     [SIM_STEP_FREE] = 14,
	[SIM_STEP_CANCEL] = 4, [SIM_STEP_RAISE] = 3,    [SIM_STEP_WAIT] = 6,
	[SIM_STEP_POLL] = 20,  [SIM_STEP_SETTLE] = 1,   [SIM_STEP_FLUSH] = 1,
	[SIM_STEP_TRIM] = 1,   [SIM_STEP_REVIVE] = 2,   [SIM_STEP_PASS] = 2,
	[SIM_STEP_FAULT] = 12, [SIM_STEP_OFFER] = 24,   [SIM_STEP_TAKE] = 24,
	[SIM_STEP_RETURN] = 8, [SIM_STEP_RELEASE] = 16, [SIM_STEP_DRAIN] = 16,
	[SIM_STEP_STEP] = 2,   [SIM_STEP_STAGE] = 5,    [SIM_STEP_ENTER] = 6,
	[SIM_STEP_LEAVE] = 5,  [SIM_STEP_COMMIT] = 3,
};

static void draw_weights(const struct sim_config *config, uint64_t *random,
			 uint64_t drawn[SIM_STEPS])
{
	for (unsigned kind = 0; kind < SIM_STEPS; kind++) {
		bool is_cache = kind >= SIM_STEP_OFFER;
		bool is_store = kind <= SIM_STEP_WAIT;

		drawn[kind] = weights[kind] * (1 + sim_below(random, 8));
		if (sim_below(random, 6) == 0 && kind != SIM_STEP_POLL)
			drawn[kind] = 0;
		if ((is_cache && !config->has_cache) || (is_store && !config->has_store))
			drawn[kind] = 0;
	}
	/* At most one in a few runs. */
	drawn[SIM_STEP_REOPEN] = sim_below(random, 4) == 0;
	drawn[SIM_STEP_BLACKOUT] = sim_below(random, 8) == 0;
}

/* Small ones, those around the edges of blocks and chunks, and large ones. */
static uint64_t draw_len(const struct sim_config *config, uint64_t *random, uint64_t scale)
{
	uint64_t chunk = config->chunk_bytes;

	switch (sim_below(random, 6)) {
	case 0: return 1 + sim_below(random, 512);
	case 1: return 1 + sim_below(random, 16384);
	case 2: return 4096 * (1 + sim_below(random, 16));
	case 3: return chunk * (1 + sim_below(random, 3)) + sim_below(random, 3) - 1;
	default: return 1 + sim_below(random, scale);
	}
}

/* What a drive does not survive is rare, and what seldom finds its request is frequent. */
static const unsigned fault_weights[SIM_FAULTS] = {
	[SIM_SHORT] = 4,  [SIM_AGAIN] = 4,   [SIM_FULL] = 4,        [SIM_EIO] = 4,
	[SIM_STICKY] = 1, [SIM_LATENT] = 4,  [SIM_ROT] = 4,         [SIM_FLIP] = 12,
	[SIM_LOST] = 4,   [SIM_TORN] = 4,    [SIM_MISDIRECTED] = 4, [SIM_HANG] = 4,
	[SIM_SLOW] = 1,   [SIM_REMOVAL] = 1, [SIM_SHRINK] = 3,      [SIM_POWER] = 3,
	[SIM_STALE] = 12, [SIM_LARGE] = 4,   [SIM_STUBBORN] = 1,
};

/* Of the kinds chosen; SIM_FAULTS: of one that was not. */
static uint64_t draw_fault(uint64_t *random, uint32_t faults)
{
	uint64_t total = 0, pick;
	unsigned fault = 0;

	for (unsigned i = 0; i < SIM_FAULTS; i++)
		total += fault_weights[i];
	pick = sim_below(random, total);
	while (pick >= fault_weights[fault])
		pick -= fault_weights[fault++];
	return faults >> fault & 1 ? fault : SIM_FAULTS;
}

static struct sim_step draw_step(const struct sim_config *config, uint64_t *random, uint32_t faults,
				 uint64_t scale, const uint64_t drawn[SIM_STEPS])
{
	struct sim_step step = {.kind = SIM_STEP_POLL};
	uint64_t total = 0, pick;

	for (unsigned kind = 0; kind < SIM_STEPS; kind++)
		total += drawn[kind];
	pick = sim_below(random, total);
	for (unsigned kind = 0; kind < SIM_STEPS; pick -= drawn[kind++])
		if (pick < drawn[kind]) {
			step.kind = (enum sim_step_kind)kind;
			break;
		}
	step.a = sim_below(random, 1u << 24);
	step.b = sim_below(random, 1u << 24);
	step.c = sim_below(random, 1u << 24);
	if (step.kind == SIM_STEP_PUT)
		step.a = draw_len(config, random, scale);
	if (step.kind == SIM_STEP_PASS)
		step.a = sim_below(random, sim_below(random, 2) ? SECOND_NS / 100 : 40 * SECOND_NS);
	if (step.kind == SIM_STEP_FAULT)
		step.b = draw_fault(random, faults);
	return step;
}

unsigned sim_steps_draw(const struct sim_config *config, uint32_t faults,
			struct sim_step steps[SIM_STEPS_MAX])
{
	uint64_t random = config->seed ^ UINT64_C(0x57e9500000001);
	unsigned count = 40 + (unsigned)sim_below(&random, 260);
	uint64_t scale = sim_below(&random, 4) ? 120000 : 900000;
	uint64_t drawn[SIM_STEPS];

	if (config->store.no_checksums)
		faults &= ~WRONG_BYTES;
	draw_weights(config, &random, drawn);
	if (faults == 0 || sim_below(&random, 16) == 0)
		drawn[SIM_STEP_FAULT] = 0;
	if (!(faults >> SIM_POWER & 1))
		drawn[SIM_STEP_BLACKOUT] = 0;
	for (unsigned i = 0; i < count; i++) {
		steps[i] = draw_step(config, &random, faults, scale, drawn);
		if (steps[i].kind == SIM_STEP_FAULT && steps[i].b == SIM_FAULTS)
			steps[i].kind = SIM_STEP_POLL;
		if (steps[i].kind == SIM_STEP_REOPEN || steps[i].kind == SIM_STEP_BLACKOUT)
			drawn[steps[i].kind] = 0;
	}
	return count;
}

/* ---- In a file ---- */

int sim_steps_write(const char *path, uint64_t seed, const char *why, const struct sim_step *steps,
		    unsigned count)
{
	FILE *file = fopen(path, "we");
	int rc;

	if (!file)
		return -errno;
	rc = fprintf(file, "# %s\nseed %" PRIu64 "\n", why, seed);
	for (unsigned i = 0; i < count && rc >= 0; i++) {
		rc = fprintf(file, "%s %" PRIu64 " %" PRIu64 " %" PRIu64,
			     sim_step_names[steps[i].kind], steps[i].a, steps[i].b, steps[i].c);
		if (rc >= 0 && steps[i].kind == SIM_STEP_FAULT)
			rc = fprintf(file, " # %s on sim drive %" PRIu64 " modulo the drives",
				     sim_fault_names[steps[i].b % SIM_FAULTS], steps[i].a);
		if (rc >= 0)
			rc = fputc('\n', file);
	}
	if (fclose(file) || rc < 0)
		return -EIO;
	return 0;
}

static int read_step(const char *line, struct sim_step *step)
{
	char word[16];

	if (sscanf(line, "%15s %" SCNu64 " %" SCNu64 " %" SCNu64, word, &step->a, &step->b,
		   &step->c) != 4)
		return -EINVAL;
	for (unsigned kind = 0; kind < SIM_STEPS; kind++)
		if (strcmp(word, sim_step_names[kind]) == 0) {
			step->kind = (enum sim_step_kind)kind;
			return 0;
		}
	return -EINVAL;
}

int sim_steps_read(const char *path, uint64_t *seed, struct sim_step steps[SIM_STEPS_MAX],
		   unsigned *count)
{
	FILE *file = fopen(path, "re");
	char line[256];
	bool has_seed = false;
	int rc = 0;

	if (!file)
		return -errno;
	*count = 0;
	while (rc == 0 && fgets(line, sizeof(line), file)) {
		if (line[0] == '#' || line[0] == '\n')
			continue;
		if (!has_seed) {
			has_seed = sscanf(line, "seed %" SCNu64, seed) == 1;
			rc = has_seed ? 0 : -EINVAL;
		} else {
			rc = *count < SIM_STEPS_MAX ? read_step(line, &steps[(*count)++]) : -E2BIG;
		}
	}
	(void)fclose(file);
	return rc == 0 && !has_seed ? -EINVAL : rc;
}
