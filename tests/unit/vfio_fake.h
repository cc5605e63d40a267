/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/vfio_fake.h - an NVMe controller in memory: its registers are an array, and it works
 * when the driver waits for it
 *
 * The driver's every look in vain calls fake_pump(), which obeys what registers, doorbells and
 * rings say, by the specification. It reaches memory only by what was mapped for it: each address
 * that was not, and each command that breaks a rule, is counted in fake.faults and said. It can be
 * late, answer in another order, twice, for commands that never were, or not at all.
 *
 * The test has a line "wrap: spw_vfio__link_open" in a comment of its own.
 */
#ifndef SPW_TESTS_VFIO_FAKE_H
#define SPW_TESTS_VFIO_FAKE_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/case.h"
#include "tests/random.h"
#include "tests/unit/nvme_tags.h"
#include "tests/wrap.h"

#include "engine/vfio/controller.h"
#include "util/util.h"

#define FAKE_ADDRESS     "0000:3d:00.0"
#define FAKE_REGISTERS   0x2000u
#define FAKE_MAPPINGS    64u
#define FAKE_QUEUES      9u /* the admin queue's pair among them */
#define FAKE_PENDING     2048u
#define FAKE_MDTS        5u /* 128 KiB */
#define FAKE_DRIVE_BYTES (16u << 20)
#define FAKE_NAMESPACES  2u
#define FAKE_NEVER       UINT32_MAX

enum fake_order { FAKE_IN_ORDER, FAKE_BACKWARDS, FAKE_SHUFFLED };

struct fake_mapping {
	char *memory;
	uint64_t len_bytes, iova;
	unsigned users;
};

struct fake_ring {
	uint64_t iova;
	uint32_t entries; /* 0: there is none */
	uint32_t at;      /* SQ: head; CQ: tail, free running */
	uint16_t cq;      /* of an SQ */
};

struct fake_command {
	union spw_vfio_command command;
	uint16_t sq;
	uint32_t age; /* pumps since it was fetched */
};

struct fake {
	struct spw_vfio_link link;
	uint32_t *registers;
	char *drives[FAKE_NAMESPACES];
	unsigned block_shift;
	unsigned metadata_bytes;
	unsigned protection_type; /* of it; 1: see fake_tags */
	uint32_t rtd3e_us;
	uint32_t sgls; /* of Identify Controller: 0: takes no scatter gather lists */
	uint32_t oaes;
	uint32_t ctratt;
	uint32_t mqes;
	uint32_t to, crto; /* in units of 500 ms; @crto 0: there is no such register */
	uint32_t dstrd;
	uint8_t unique;  /* a byte of the namespaces' identifiers */
	bool has_limits; /* answers what the next three are; 0: no limit */
	uint32_t wzsl, dmrsl;
	uint64_t dmsl;

	struct fake_mapping mappings[FAKE_MAPPINGS];
	uint64_t next_iova;
	struct fake_ring sqs[FAKE_QUEUES], cqs[FAKE_QUEUES];
	struct fake_command pending[FAKE_PENDING];
	unsigned pending_count;
	bool enabled, cut, closed;
	bool transfers; /* is allowed to */

	/* How it behaves. */
	enum fake_order order;
	uint32_t delay;       /* pumps until it looks at a command */
	uint32_t never_after; /* I/O commands that it still ends; FAKE_NEVER: all */
	unsigned fail_next;   /* how many I/O commands fail */
	uint16_t fail_status; /* with this, DNR included */
	unsigned wrong_cid;   /* how many completions have another identifier */
	uint16_t cid_flip;    /* which differs in these bits */
	unsigned twice;       /* how many completions come twice */
	/* completions of I/O name another queue: its number differs in these bits */
	uint16_t sq_flip;
	bool never_ready; /* does not become ready, */
	bool never_stops; /* or not the opposite */
	bool never_shuts_down;
	bool fails_to_start;   /* with a fatal status */
	unsigned still_starts; /* when it is opened: how many pumps from being ready */
	bool says_more;        /* whatever it completes: there is more about it in a log */
	bool refuses_pages;    /* of logs */
	unsigned not_ready;    /* how many questions for a namespace fail, not for good */
	bool is_detached;      /* a namespace that was there before */
	bool is_cut;           /* it has half its blocks */
	bool writes_no_zeroes; /* by itself */
	bool refuses_queues;   /* CREATE_SQ fails */
	bool wanted_back;      /* by the kernel */
	/* so long the process is stopped, once, while the controller ends what it has */
	unsigned sleeps_ms;
	bool still_runs; /* when it is opened: nothing has reset it */
	uint64_t seed;
	void (*on_cut)(void);
	int map_error;
	unsigned map_errors_after; /* mappings that still work */

	/* What was seen. */
	unsigned faults;
	unsigned opens;
	unsigned reads, writes, flushes, deallocations, zeroes, shutdowns;
	unsigned doorbells; /* of submissions, rung, as far as pumps saw */
	unsigned lists;     /* of pages, that I/O commands had; */
	/* I/O commands with one descriptor, and with a segment of them */
	unsigned descriptors, segments;
	uint32_t events_asked;
	uint32_t event_cid; /* of the Asynchronous Event Request that waits, + 1; 0: none */
};

static struct fake fake;

/* Of all blocks of all namespaces, where these are protected. */
static struct block_tags fake_tags[FAKE_NAMESPACES][FAKE_DRIVE_BYTES >> 9];

/* ---- Faults ---------------------------------------------------------------------------------- */

static inline void fake_fault(const char *what, unsigned long long value)
{
	fake.faults++;
	fprintf(stderr, "# the controller: %s (%llx)\n", what, value);
}

static inline uint64_t fake_random(void)
{
	return random_next(&fake.seed);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static inline char *fake_reach(uint64_t iova, uint64_t len_bytes)
{
	for (unsigned i = 0; i < FAKE_MAPPINGS && fake.transfers; i++) {
		const struct fake_mapping *m = &fake.mappings[i];

		if (m->users > 0 && iova >= m->iova && iova + len_bytes <= m->iova + m->len_bytes)
			return m->memory + (iova - m->iova);
	}
	fake_fault(fake.cut          ? "memory after it was cut off"
		   : !fake.transfers ? "memory before it may transfer"
				     : "memory that is not mapped",
		   iova);
	return NULL;
}

static inline int fake_map(struct spw_vfio_link *link, void *memory, uint64_t len_bytes,
			   uint64_t *iova)
{
	struct fake_mapping *unused = NULL;

	(void)link;
	if (fake.map_error && fake.map_errors_after-- == 0)
		return spw_error(fake.map_error, "the test wants no mapping");
	for (unsigned i = 0; i < FAKE_MAPPINGS; i++) {
		struct fake_mapping *m = &fake.mappings[i];

		if (m->users == 0) {
			unused = m;
		} else if (m->memory == memory && m->len_bytes == len_bytes) {
			m->users++;
			*iova = m->iova;
			return 0;
		}
	}
	assert_non_null(unused);
	assert_int_equal(((uintptr_t)memory | len_bytes) & 4095, 0);
	*unused = (struct fake_mapping){
		.memory = memory, .len_bytes = len_bytes, .iova = fake.next_iova, .users = 1};
	*iova = fake.next_iova;
	/* Never next to each other: what runs over an end is seen. */
	fake.next_iova += len_bytes + (1 << 20);
	return 0;
}

static inline void fake_unmap(struct spw_vfio_link *link, void *memory, uint64_t len_bytes)
{
	(void)link;
	for (unsigned i = 0; i < FAKE_MAPPINGS; i++) {
		struct fake_mapping *m = &fake.mappings[i];

		if (m->users > 0 && m->memory == memory && m->len_bytes == len_bytes) {
			m->users--;
			return;
		}
	}
	fail_msg("%p is not mapped", memory);
}

static inline unsigned fake_mapped(void)
{
	unsigned count = 0;

	for (unsigned i = 0; i < FAKE_MAPPINGS; i++)
		count += fake.mappings[i].users;
	return count;
}

static inline void fake_move(uint64_t iova, char *data, uint64_t len_bytes, bool to_host)
{
	char *memory = fake_reach(iova, len_bytes);

	if (memory)
		memcpy(to_host ? memory : data, to_host ? data : memory, len_bytes);
}

/* One descriptor of memory. Return: how much of @len_bytes is left. */
static inline uint64_t fake_run(uint64_t address, uint64_t what, char **data, uint64_t len_bytes,
				bool to_host)
{
	uint64_t now = what & UINT32_MAX;

	if (what >> 32 != 0)
		fake_fault("a descriptor that is not memory", what);
	if ((address | now) & 3)
		fake_fault("a descriptor that is not a multiple of 4", address);
	if (now > len_bytes) {
		fake_fault("more memory than data", now);
		now = len_bytes;
	}
	fake_move(address, *data, now, to_host);
	*data += now;
	return len_bytes - now;
}

static inline void fake_transfer_sgl(const union spw_vfio_command *command, char *data,
				     uint64_t len_bytes, bool to_host)
{
	uint64_t bytes = command->prp[1] & UINT32_MAX;
	const uint64_t *segment;

	if (command->prp[1] >> 60 == 0) {
		fake.descriptors++;
		len_bytes = fake_run(command->prp[0], command->prp[1], &data, len_bytes, to_host);
	} else {
		fake.segments++;
		if (command->prp[1] >> 32 != 0x30000000u || bytes == 0 || bytes % 16 ||
		    (command->prp[0] & 7))
			fake_fault("a descriptor that is not a last segment", command->prp[1]);
		segment = (const uint64_t *)(const void *)fake_reach(command->prp[0], bytes);
		for (uint64_t i = 0; segment && i < bytes / 16; i++)
			len_bytes = fake_run(segment[2 * i], segment[2 * i + 1], &data, len_bytes,
					     to_host);
	}
	if (len_bytes > 0)
		fake_fault("more data than memory", len_bytes);
}

/* The memory of a command, piece by piece, in the order of the specification. */
static inline void fake_transfer(const union spw_vfio_command *command, char *data,
				 uint64_t len_bytes, bool to_host)
{
	uint64_t first = 4096 - (command->prp[0] & 4095), pages;
	const uint64_t *list = NULL;

	if (command->flags) {
		fake_transfer_sgl(command, data, len_bytes, to_host);
		return;
	}
	if (command->prp[0] & 3)
		fake_fault("a first address that is not a multiple of 4", command->prp[0]);
	if (first > len_bytes)
		first = len_bytes;
	pages = (len_bytes - first + 4095) / 4096;
	if (pages > 1) {
		if (command->prp[1] & 7)
			fake_fault("a list that is not a multiple of 8", command->prp[1]);
		if ((command->prp[1] & 4095) + pages * 8 > 4096)
			fake_fault("a list that leaves its page", command->prp[1]);
		list = (const uint64_t *)(const void *)fake_reach(command->prp[1], pages * 8);
		fake.lists++;
	}
	for (uint64_t i = 0, at = 0; i <= pages; i++) {
		uint64_t address = i == 0       ? command->prp[0]
				   : pages == 1 ? command->prp[1]
				   : list       ? list[i - 1]
						: 0;
		uint64_t len = i == 0 ? first : len_bytes - at < 4096 ? len_bytes - at : 4096;

		if (i > 0 && address & 4095)
			fake_fault("a page that does not begin at its beginning", address);
		fake_move(address, data + at, len, to_host);
		at += len;
	}
}

/* ---- Registers ------------------------------------------------------------------------------- */

static inline volatile uint32_t *fake_doorbell(uint16_t id, bool is_cq)
{
	return &fake.registers[0x1000 / 4 + ((2u * id + is_cq) << fake.dstrd)];
}

/* ---- Commands -------------------------------------------------------------------------------- */

static inline void fake_put(uint8_t *data, uint64_t value, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		data[i] = (uint8_t)(value >> 8 * i);
}

static inline uint16_t fake_identify(const union spw_vfio_command *command)
{
	uint8_t data[4096] = {0};

	if (command->cdw10 == SPW_NVME_IDENTIFY_CONTROLLER) {
		memcpy(data + 4, "FAKE0001            ", 20);
		memcpy(data + 24, "a controller in memory                  ", 40);
		memcpy(data + 64, "1.0     ", 8);
		data[77] = FAKE_MDTS;
		fake_put(data + 80, 0x010400, 4);
		fake_put(data + 88, fake.rtd3e_us, 4);
		fake_put(data + 92, fake.oaes, 4);
		fake_put(data + 96, fake.ctratt, 4);
		data[512] = 0x66;
		data[513] = 0x44;
		fake_put(data + 516, FAKE_NAMESPACES, 4);
		fake_put(data + 520, 1u << 2 | (fake.writes_no_zeroes ? 0 : 1u << 3), 2);
		data[525] = 1;
		fake_put(data + 536, fake.sgls, 4);
	} else if (command->cdw10 == 6 && command->cdw11 == 0) {
		if (!fake.has_limits)
			return 0x4002;
		data[1] = (uint8_t)fake.wzsl;
		fake_put(data + 4, fake.dmrsl, 4);
		fake_put(data + 8, fake.dmsl, 8);
	} else if (command->cdw10 == SPW_NVME_IDENTIFY_NAMESPACE && command->nsid >= 1 &&
		   command->nsid <= FAKE_NAMESPACES) {
		if (fake.not_ready > 0) {
			fake.not_ready--;
			return 0x0082;
		}
		if (!fake.is_detached)
			fake_put(data, FAKE_DRIVE_BYTES >> fake.is_cut >> fake.block_shift, 8);
		data[104] = fake.unique;
		data[29] = (uint8_t)fake.protection_type;
		fake_put(data + 128, fake.metadata_bytes, 2);
		data[130] = (uint8_t)fake.block_shift;
	} else {
		return 0x400b;
	}
	fake_transfer(command, (char *)data, sizeof(data), true);
	return 0;
}

static inline uint16_t fake_make_queue(const union spw_vfio_command *command)
{
	uint16_t id = (uint16_t)command->cdw10;
	bool is_sq = command->opcode == 0x01;
	struct fake_ring *ring = is_sq ? &fake.sqs[id] : &fake.cqs[id];

	if (id == 0 || id >= FAKE_QUEUES || ring->entries > 0 || !(command->cdw11 & 1))
		return 0x4101;
	if (is_sq && (fake.refuses_queues || fake.cqs[command->cdw11 >> 16].entries == 0))
		return 0x4100;
	if (command->cdw10 >> 16 > fake.mqes)
		return 0x4102;
	*ring = (struct fake_ring){.iova = command->prp[0],
				   .entries = (command->cdw10 >> 16) + 1,
				   .cq = (uint16_t)(command->cdw11 >> 16)};
	*fake_doorbell(id, !is_sq) = 0;
	return 0;
}

static inline uint16_t fake_admin(const union spw_vfio_command *command, uint32_t *result)
{
	uint8_t health[512] = {0, 0x2c, 0x01, 100, 10, 3};

	/* Lists of admin commands are of pages. */
	if (command->flags)
		fake_fault("flags of an admin command", command->flags);
	switch (command->opcode) {
	case 0x00: fake.sqs[command->cdw10 & 0xf].entries = 0; return 0;
	case 0x04:
		if (fake.sqs[command->cdw10 & 0xf].entries > 0)
			fake_fault("a completion queue given up before its submission queue",
				   command->cdw10);
		fake.cqs[command->cdw10 & 0xf].entries = 0;
		return 0;
	case 0x01:
	case 0x05: return fake_make_queue(command);
	case 0x02:
		if (fake.refuses_pages)
			return 0x4109;
		fake_transfer(command, (char *)health, sizeof(health), true);
		return 0;
	case 0x06: return fake_identify(command);
	case 0x09:
		if (command->cdw10 == 0x0b)
			fake.events_asked = command->cdw11;
		*result = (FAKE_QUEUES - 2) << 16 | (FAKE_QUEUES - 2);
		return 0;
	default: return 0x4001;
	}
}

static inline uint16_t fake_obey_tags(const union spw_vfio_command *command, enum tags_op op,
				      const char *drive, uint64_t at, uint64_t len)
{
	if (fake.protection_type != 1) {
		if (command->cdw12 & (TAGS_PRACT | TAGS_CHECKS) || command->cdw14)
			fake_fault("protection where there is none", command->cdw12);
		return 0;
	}
	return tags_obey(fake_tags[command->nsid - 1], op, command->cdw12, command->cdw14,
			 at >> fake.block_shift, len >> fake.block_shift, drive + at,
			 (size_t)1 << fake.block_shift);
}

static inline uint16_t fake_io(const union spw_vfio_command *command)
{
	uint64_t at = ((uint64_t)command->cdw11 << 32 | command->cdw10) << fake.block_shift;
	uint64_t len = ((uint64_t)(command->cdw12 & 0xffff) + 1) << fake.block_shift;
	uint16_t status;
	char *drive;

	if (command->nsid < 1 || command->nsid > FAKE_NAMESPACES)
		return 0x400b;
	if (command->flags && (command->flags != 0x40 || !fake.sgls)) {
		fake_fault("flags", command->flags);
		return 0x4002;
	}
	drive = fake.drives[command->nsid - 1];
	if (command->opcode == SPW_NVME_FLUSH) {
		fake.flushes++;
		return 0;
	}
	if (command->opcode == SPW_NVME_DATASET_MANAGEMENT) {
		struct spw_nvme_range range;

		fake_transfer(command, (char *)&range, sizeof(range), false);
		if ((fake.dmrsl && range.blocks > fake.dmrsl) ||
		    (fake.dmsl && range.blocks > fake.dmsl))
			return 0x4183;
		if (command->cdw10 != 0 || command->cdw11 != 4 ||
		    (range.first_block + range.blocks) << fake.block_shift > FAKE_DRIVE_BYTES)
			return 0x4080;
		memset(drive + (range.first_block << fake.block_shift), 0,
		       (size_t)range.blocks << fake.block_shift);
		tags_forget(fake_tags[command->nsid - 1] + range.first_block, range.blocks);
		fake.deallocations++;
		return 0;
	}
	if (at + len > FAKE_DRIVE_BYTES)
		return 0x4080;
	if (command->opcode == 0x08 && fake.wzsl && len > 4096u << fake.wzsl)
		return 0x4183;
	if (len > 4096u << FAKE_MDTS)
		fake_fault("a command longer than MDTS", len);
	switch (command->opcode) {
	case SPW_NVME_READ:
		fake.reads++;
		status = fake_obey_tags(command, TAGS_READ, drive, at, len);
		if (status == 0)
			fake_transfer(command, drive + at, len, true);
		return status;
	case SPW_NVME_WRITE:
		fake.writes++;
		fake_transfer(command, drive + at, len, false);
		return fake_obey_tags(command, TAGS_WRITE, drive, at, len);
	case 0x08:
		fake.zeroes++;
		memset(drive + at, 0, len);
		return fake_obey_tags(command, TAGS_ZEROES, drive, at, len);
	default: return 0x4001;
	}
}

/* ---- Completions ----------------------------------------------------------------------------- */

static inline void fake_post(uint16_t sq, uint16_t cid, uint16_t status, uint32_t result)
{
	uint16_t id = fake.sqs[sq].cq;
	struct fake_ring *cq = &fake.cqs[id];
	uint32_t head = *fake_doorbell(id, true);
	struct spw_vfio_completion *entry;

	if (cq->entries == 0)
		return;
	if (head >= cq->entries)
		fake_fault("a head beyond its ring", head);
	if (((cq->at + 1) & (cq->entries - 1)) == head)
		fake_fault("a completion queue that is full", id);
	entry = (void *)fake_reach(cq->iova + (cq->at & (cq->entries - 1)) * sizeof(*entry),
				   sizeof(*entry));
	if (!entry)
		return;
	entry->result = result;
	entry->sq_id = sq > 0 ? sq ^ fake.sq_flip : sq;
	entry->sq_head = (uint16_t)fake.sqs[sq].at;
	entry->cid = cid;
	if (fake.says_more)
		status |= 0x2000;
	/* The phase last. */
	*(volatile uint16_t *)&entry->status = (uint16_t)(status << 1 | !(cq->at & cq->entries));
	cq->at++;
}

static inline void fake_complete(const struct fake_command *c)
{
	uint16_t cid = c->command.cid, status = 0;
	uint32_t result = 0;

	if (c->sq == 0) {
		status = fake_admin(&c->command, &result);
	} else if (fake.fail_next > 0) {
		fake.fail_next--;
		status = fake.fail_status;
	} else {
		status = fake_io(&c->command);
	}
	if (c->sq != 0 && fake.wrong_cid > 0) {
		fake.wrong_cid--;
		cid ^= fake.cid_flip;
	}
	fake_post(c->sq, cid, status, result);
	if (c->sq != 0 && fake.twice > 0) {
		fake.twice--;
		fake_post(c->sq, cid, status, result);
	}
}

static inline void fake_fetch(uint16_t id)
{
	struct fake_ring *sq = &fake.sqs[id];
	uint32_t tail = *fake_doorbell(id, false);

	if (tail >= sq->entries) {
		fake_fault("a tail beyond its ring", tail);
		return;
	}
	fake.doorbells += sq->at != tail;
	while (sq->at != tail && fake.pending_count < FAKE_PENDING) {
		const union spw_vfio_command *at =
			(const void *)fake_reach(sq->iova + sq->at * sizeof(*at), sizeof(*at));

		if (!at)
			return;
		if (id == 0 && at->opcode == 0x0c)
			fake.event_cid = at->cid + 1u;
		else
			fake.pending[fake.pending_count++] =
				(struct fake_command){.command = *at, .sq = id};
		sq->at = (sq->at + 1) & (sq->entries - 1);
	}
}

/* Something happens to the controller, which an asynchronous event request waits for. */
static inline void fake_event(uint32_t event)
{
	assert_true(fake.event_cid > 0);
	fake_post(0, (uint16_t)(fake.event_cid - 1), 0, event);
	fake.event_cid = 0;
}

static inline void fake_reset(void)
{
	memset(fake.sqs, 0, sizeof(fake.sqs));
	memset(fake.cqs, 0, sizeof(fake.cqs));
	fake.pending_count = 0;
	fake.event_cid = 0;
	fake.enabled = false;
}

static inline void fake_configure(void)
{
	volatile uint32_t *r = fake.registers;
	uint32_t config = r[0x14 / 4];

	if (fake.still_starts > 0) {
		if (!(config & 1))
			fake_fault("is told to stop while it starts", config);
		fake.enabled = --fake.still_starts == 0;
		r[0x1c / 4] = fake.enabled;
	} else if ((config & 1) && !fake.enabled && fake.fails_to_start) {
		r[0x1c / 4] |= 2;
	} else if ((config & 1) && !fake.enabled && !fake.never_ready) {
		fake_reset();
		if ((config >> 16 & 0xf) != 6 || (config >> 20 & 0xf) != 4 ||
		    (config >> 7 & 0xf) != 0)
			fake_fault("a configuration", config);
		fake.sqs[0] = (struct fake_ring){.iova = r[0x28 / 4] | (uint64_t)r[0x2c / 4] << 32,
						 .entries = (r[0x24 / 4] & 0xfff) + 1};
		fake.cqs[0] = (struct fake_ring){.iova = r[0x30 / 4] | (uint64_t)r[0x34 / 4] << 32,
						 .entries = (r[0x24 / 4] >> 16 & 0xfff) + 1};
		*fake_doorbell(0, false) = *fake_doorbell(0, true) = 0;
		fake.enabled = true;
		r[0x1c / 4] = (r[0x1c / 4] & 2) | 1;
	} else if (!(config & 1) && fake.enabled && !fake.never_stops) {
		fake_reset();
		r[0x1c / 4] &= ~1u;
	} else if ((config >> 14 & 3) == 1 && !(r[0x1c / 4] & 0xc)) {
		fake.shutdowns++;
		r[0x1c / 4] |= fake.never_shuts_down ? 0x4 : 0x8;
	}
}

static inline unsigned fake_choose(void)
{
	switch (fake.order) {
	case FAKE_BACKWARDS: return fake.pending_count - 1;
	case FAKE_SHUFFLED: return (unsigned)(fake_random() % fake.pending_count);
	default: return 0;
	}
}

/* One turn of the controller. */
static inline void fake_pump(void)
{
	unsigned left;

	if (fake.cut || fake.registers[0x1c / 4] == UINT32_MAX)
		return;
	fake_configure();
	if (!fake.enabled || fake.registers[0x1c / 4] & 2)
		return;
	for (uint16_t id = 0; id < FAKE_QUEUES; id++)
		if (fake.sqs[id].entries > 0)
			fake_fetch(id);
	left = fake.pending_count;
	while (left-- > 0 && fake.pending_count > 0) {
		unsigned i = fake_choose();
		struct fake_command c = fake.pending[i];

		if (c.sq != 0 && fake.pending[i].age++ < fake.delay)
			continue;
		if (c.sq != 0 && fake.never_after == 0)
			continue;
		if (c.sq != 0 && fake.never_after != FAKE_NEVER)
			fake.never_after--;
		memmove(&fake.pending[i], &fake.pending[i + 1],
			(fake.pending_count - i - 1) * sizeof(fake.pending[0]));
		fake.pending_count--;
		fake_complete(&c);
	}
}

/* ---- The link -------------------------------------------------------------------------------- */

static inline void fake_relax(struct spw_vfio_link *link)
{
	(void)link;
	fake_pump();
}

static inline bool fake_is_wanted_back(struct spw_vfio_link *link)
{
	(void)link;
	if (fake.sleeps_ms > 0) {
		assert_int_equal(usleep(fake.sleeps_ms * 1000), 0);
		fake.sleeps_ms = 0;
		fake.delay = 0;
		fake_pump();
	}
	return fake.wanted_back;
}

static inline int fake_let_transfer(struct spw_vfio_link *link)
{
	(void)link;
	assert_false(fake.cut || fake.transfers);
	if (fake.enabled || fake.registers[0x1c / 4] & 1)
		fake_fault("is let transfer while it runs", fake.registers[0x1c / 4]);
	fake.transfers = true;
	return 0;
}

static inline void fake_cut(struct spw_vfio_link *link)
{
	(void)link;
	assert_false(fake.cut);
	fake.cut = true;
	fake.transfers = false;
	fake_reset();
	memset(fake.registers, 0, FAKE_REGISTERS);
	if (fake.on_cut)
		fake.on_cut();
}

static inline void fake_close(struct spw_vfio_link *link)
{
	(void)link;
	assert_false(fake.closed);
	fake.closed = true;
	assert_int_equal(fake_mapped(), 0);
}

static const struct spw_vfio_link_ops fake_ops = {
	.map = fake_map,
	.unmap = fake_unmap,
	.relax = fake_relax,
	.is_wanted_back = fake_is_wanted_back,
	.let_transfer = fake_let_transfer,
	.cut = fake_cut,
	.close = fake_close,
};

WRAP(int, spw_vfio__link_open, (const char *address, struct spw_vfio_link **link))
{
	if (strcmp(address, FAKE_ADDRESS) != 0)
		return spw_error(-ENODEV, "there is no %s", address);
	/* One process has it, and it is reset for the next. */
	assert_true(fake.opens == 0 || fake.closed || fake.cut);
	fake.opens++;
	fake.cut = fake.closed = fake.transfers = false;
	fake_reset();
	memset(fake.registers, 0, FAKE_REGISTERS);
	/* CAP: rings in one piece, NVM command set, pages of 4 KiB. */
	fake.registers[0] = fake.mqes | 1u << 16 | fake.to << 24;
	fake.registers[1] = fake.dstrd | 1u << 5 | (fake.crto ? 1u << 27 : 0);
	fake.registers[0x68 / 4] = fake.crto;
	if (fake.still_starts)
		fake.registers[0x14 / 4] = 1;
	if (fake.still_runs) {
		fake.enabled = true;
		fake.registers[0x14 / 4] = fake.registers[0x1c / 4] = 1;
	}
	*link = &fake.link;
	return 0;
}

/* As at the beginning of each test. */
static inline void fake_begin(unsigned block_shift)
{
	uint32_t *registers = fake.registers;
	char *drives[FAKE_NAMESPACES];

	memcpy(drives, fake.drives, sizeof(drives));
	fake = (struct fake){
		.link = {.ops = &fake_ops,
			 .registers_bytes = FAKE_REGISTERS,
			 .numa_node = -1,
			 .wanted_back = -1,
			 .timeout_ms = 30000,
			 .idle_ms = 1000,
			 .address = FAKE_ADDRESS},
		.registers = registers ? registers : calloc(1, FAKE_REGISTERS),
		.block_shift = block_shift,
		.mqes = 1023,
		.to = 2,
		.never_after = FAKE_NEVER,
		.next_iova = 0x100000000,
		.seed = 1,
	};
	fake.link.registers = fake.registers;
	for (unsigned i = 0; i < FAKE_NAMESPACES; i++) {
		fake.drives[i] = drives[i] ? drives[i] : malloc(FAKE_DRIVE_BYTES);
		assert_non_null(fake.drives[i]);
		for (size_t at = 0; at < FAKE_DRIVE_BYTES; at += 8)
			memcpy(fake.drives[i] + at, &(uint64_t){(at + i) * 0x9e3779b97f4a7c15u}, 8);
	}
	memset(fake_tags, 0xff, sizeof(fake_tags));
	assert_non_null(fake.registers);
}

static inline void fake_end(void)
{
	free(fake.registers);
	for (unsigned i = 0; i < FAKE_NAMESPACES; i++)
		free(fake.drives[i]);
	fake = (struct fake){0};
}

#endif
