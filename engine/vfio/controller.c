/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/controller.c - an NVMe controller: start, admin commands, queue pairs, events, stop
 */
#include "engine/vfio/controller.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/vfio/pointer.h"
#include "util/util.h"

#define REG_CAP  0x00u
#define REG_CC   0x14u
#define REG_CSTS 0x1cu
#define REG_AQA  0x24u
#define REG_ASQ  0x28u
#define REG_ACQ  0x30u
#define REG_CRTO 0x68u

/* Bit of CAP: the register CRTO exists. */
#define CAP_TELLS_READY_TIME (UINT64_C(1) << 59)

#define CC_ENABLE        0x1u
#define CC_ENTRY_SIZES   (6u << 16 | 4u << 20) /* 64 and 16 bytes */
#define CC_SHUTDOWN      (1u << 14)
#define CC_SHUTDOWN_MASK (3u << 14)

#define CSTS_READY         0x1u
#define CSTS_FATAL         0x2u
#define CSTS_SHUTDOWN_MASK 0xcu
#define CSTS_SHUTDOWN_DONE 0x8u

#define ALL_ONES UINT32_MAX

#define GONE_TEXT  "the controller is gone: its registers read as all ones"
#define FATAL_TEXT "the controller reports a fatal error (CSTS.CFS)"

enum admin_opcode {
	DELETE_SQ = 0x00,
	CREATE_SQ = 0x01,
	DELETE_CQ = 0x04,
	CREATE_CQ = 0x05,
	SET_FEATURES = 0x09,
	ASYNC_EVENT = 0x0c,
};

#define OPCODE_SENDS   0x1u
#define OPCODE_FETCHES 0x2u

#define FEATURE_QUEUES 0x07u
#define FEATURE_EVENTS 0x0bu
#define EVENTS_HEALTH  0x1fu /* all critical warnings */
/* changes of namespaces, if the controller has this bit in OAES */
#define EVENTS_NAMESPACES (1u << 8)

/* Event type 2 (notice): namespaces have changed. */
#define EVENT_NAMESPACES 0x0002u
#define EVENT_MASK       0xff07u

enum { SLOT_EVENT, SLOT_COMMAND, ADMIN_SLOTS };

#define ALL_NAMESPACES UINT32_MAX

/* Limit of the admin queue's rings; CAP.MQES applies only to I/O queues. */
#define ADMIN_ENTRIES_MAX 4096u

/* Identify: limits of the NVM command set. Not before NVMe 1.2, where CNS had fewer bits. */
#define IDENTIFY_LIMITS         0x06u
#define IDENTIFY_LIMITS_VERSION 0x00010200u

/* Time limit of a shutdown: the controller's RTD3E, clamped as in the kernel. */
#define SHUTDOWN_MS_MIN 5000u
#define SHUTDOWN_MS_MAX 60000u

/* Time limit of a start, whatever the controller reports: an unset CRTO means nine hours. */
#define READY_MS_MAX 600000u

/* How long a failed controller may take to end its transfers before it is cut off. */
#define STOP_MS_MAX 5000u

/* Unsuccessful polls before a wait checks the registers and the clock. */
#define LOOKS_PER_CHECK 64u

/* After this time a wait for a register sleeps between polls. */
#define SPIN_NS  1000000u
#define SLEEP_NS 100000

/* ---- Life and death -------------------------------------------------------------------------- */

static void relax(struct spw_vfio_controller *c)
{
	c->link->ops->relax(c->link);
}

static uint32_t status_register(const struct spw_vfio_controller *c)
{
	return spw_vfio__get32(c->link, REG_CSTS);
}

/* Poll the status register for @value. Return: 0; -ENODEV; -EIO a bit of @hopeless; -ETIMEDOUT. */
static int wait_register(struct spw_vfio_controller *c, uint32_t mask, uint32_t value,
			 uint32_t hopeless, uint32_t ms)
{
	const struct timespec pause = {.tv_nsec = SLEEP_NS};
	uint64_t start_ns = spw_clock_ns();

	for (;;) {
		/*
		 * The clock before the register: if this process is stopped in between, a change
		 * that has happened meanwhile is no timeout.
		 */
		uint64_t passed_ns = spw_clock_ns() - start_ns;
		uint32_t now = status_register(c);

		if (now == ALL_ONES)
			return -ENODEV;
		if (now & hopeless)
			return -EIO;
		if ((now & mask) == value)
			return 0;
		if (passed_ns > ms * UINT64_C(1000000))
			return -ETIMEDOUT;
		relax(c);
		if (passed_ns > SPIN_NS)
			(void)nanosleep(&pause, NULL);
	}
}

static int disable(struct spw_vfio_controller *c, uint32_t ms)
{
	uint32_t config = spw_vfio__get32(c->link, REG_CC);

	spw_vfio__set32(c->link, REG_CC, config & ~(CC_ENABLE | CC_SHUTDOWN_MASK));
	return wait_register(c, CSTS_READY, 0, 0, ms);
}

/* Disable a controller in any state. If it is starting, it still looks disabled: wait first. */
static int disable_as_found(struct spw_vfio_controller *c)
{
	int ret = 0;

	if (spw_vfio__get32(c->link, REG_CC) & CC_ENABLE)
		ret = wait_register(c, CSTS_READY, CSTS_READY, CSTS_FATAL, c->ready_ms);
	return ret == 0 || ret == -EIO ? disable(c, c->ready_ms) : ret;
}

void spw_vfio__controller_stop(struct spw_vfio_controller *c, int error, const char *format, ...)
{
	unsigned live = SPW_VFIO_LIVE;
	va_list args;
	int used;

	if (!atomic_compare_exchange_strong(&c->state, &live, SPW_VFIO_STOPPING)) {
		while (spw_vfio__controller_state(c) != SPW_VFIO_STOPPED)
			relax(c);
		return;
	}
	SPW_ASSERT(error < 0);
	c->error = error;
	used = snprintf(c->reason, sizeof(c->reason), "pci:%s: ", c->link->address);
	va_start(args, format);
	(void)vsnprintf(c->reason + used, sizeof(c->reason) - (size_t)used, format, args);
	va_end(args);
	/* A working controller ends its transfers when disabled. Cut it off in any case. */
	(void)disable(c, c->stop_ms);
	c->link->ops->cut(c->link);
	SPW_ASSERT(spw_vfio__controller_state(c) == SPW_VFIO_STOPPING); /* cut off, once (CTRL-1) */
	atomic_store_explicit(&c->state, SPW_VFIO_STOPPED, memory_order_release);
}

int spw_vfio__controller_error(const struct spw_vfio_controller *c)
{
	enum spw_vfio_state state;

	while ((state = spw_vfio__controller_state(c)) == SPW_VFIO_STOPPING)
		relax((struct spw_vfio_controller *)(uintptr_t)c);
	return state == SPW_VFIO_LIVE ? 0 : spw_error(-ENODEV, "%s", c->reason);
}

static bool looks_alive(struct spw_vfio_controller *c)
{
	uint32_t status = status_register(c);
	const char *why = NULL;
	int error = -EIO;

	if (spw_vfio__controller_state(c) != SPW_VFIO_LIVE)
		return false;
	if (status == ALL_ONES) {
		error = -ENODEV;
		why = GONE_TEXT;
	} else if (status & CSTS_FATAL) {
		why = FATAL_TEXT;
	} else if (!(status & CSTS_READY)) {
		why = "the controller is not ready any more (CSTS.RDY): it was reset";
	} else if (c->link->ops->is_wanted_back(c->link)) {
		error = -ENODEV;
		why = "the kernel wants the device back: it is removed, or unbound";
	}
	if (why)
		spw_vfio__controller_stop(c, error, "%s", why);
	return !why;
}

/* ---- One command and its completion ---------------------------------------------------------- */

/* Take all completions. Return: whether slot @wanted was among them. */
static bool take(struct spw_vfio_controller *c, struct spw_vfio_pair *pair, uint32_t wanted,
		 uint32_t *status, uint32_t *result)
{
	uint32_t slot, one_status = 0, one_result = 0;
	bool found = false;
	int ret;

	while ((ret = spw_vfio__pair_take(pair, &slot, &one_status, &one_result)) > 0) {
		if (slot == wanted) {
			*status = one_status;
			*result = one_result;
			found = true;
		} else {
			c->listens = false;
			c->event = one_result;
			c->has_event = (one_status & SPW_NVME_STATUS_CODE) == 0;
		}
	}
	if (ret < 0)
		spw_vfio__controller_stop(c, -EIO, "%s", pair->complaint);
	else
		spw_vfio__pair_release(pair);
	return found;
}

/* Run a command. Called with the pair's lock held. Return: 0; the drive's status; -errno. */
static int run(struct spw_vfio_controller *c, struct spw_vfio_pair *pair, uint32_t slot,
	       const union spw_vfio_command *command, uint32_t *result)
{
	union spw_vfio_command *entry;
	uint64_t deadline_ns;
	uint32_t status, looks = 0;
	uint16_t cid;

	if (spw_vfio__controller_state(c) != SPW_VFIO_LIVE)
		return spw_vfio__controller_error(c);
	entry = spw_vfio__pair_begin(pair, slot, &cid);
	*entry = *command;
	entry->cid = cid;
	spw_vfio__pair_submit(pair);
	deadline_ns = spw_clock_ns() + c->link->timeout_ms * UINT64_C(1000000);
	while (!take(c, pair, slot, &status, result)) {
		if (++looks % LOOKS_PER_CHECK == 0 && looks_alive(c) &&
		    spw_clock_ns() > deadline_ns) {
			/* After a stop of this process: a completion is in time. */
			if (take(c, pair, slot, &status, result))
				break;
			spw_vfio__controller_stop(
				c, -ETIMEDOUT,
				"no answer to command %02xh of queue %u within %u ms",
				command->opcode, pair->id, c->link->timeout_ms);
		}
		if (spw_vfio__controller_state(c) != SPW_VFIO_LIVE) {
			(void)spw_vfio__controller_error(c);
			spw_vfio__pair_forget(pair, slot);
			return spw_error(c->error, "%s", c->reason);
		}
		if (looks % SPW_VFIO_LOOKS_PER_RELAX == 1)
			relax(c);
	}
	/* A success may come with the word that there is more in a log. */
	return status & SPW_NVME_STATUS_CODE ? (int)status : 0;
}

/*
 * Run a command on a copy of its data, in the pair's extra memory: a page for a list, then the
 * data. Called with the pair's lock held.
 */
static int run_copied(struct spw_vfio_controller *c, struct spw_vfio_pair *pair, uint32_t slot,
		      const union spw_vfio_command *command, void *data, uint32_t len_bytes,
		      uint32_t *result)
{
	struct spw_vfio_list list = {.entries = (uint64_t *)(void *)pair->extra,
				     .iova = spw_vfio__memory_iova(&pair->memory, pair->extra)};
	char *copy = pair->extra + SPW_NVME_PAGE_BYTES;
	union spw_vfio_command whole = *command;
	struct spw_vfio_pointer pointer;
	uint32_t ignored;
	int ret;

	if (len_bytes > 0) {
		spw_vfio__name_run(&list, false, spw_vfio__memory_iova(&pair->memory, copy),
				   len_bytes, &pointer);
		memcpy(whole.prp, pointer.words, sizeof(whole.prp));
		/* The opcode tells the direction. Bytes that the drive does not fill are zero. */
		if (command->opcode & OPCODE_SENDS)
			memcpy(copy, data, len_bytes);
		else
			memset(copy, 0, len_bytes);
	}
	ret = run(c, pair, slot, &whole, result ? result : &ignored);
	if (ret == 0 && len_bytes > 0 && command->opcode & OPCODE_FETCHES)
		memcpy(data, copy, len_bytes);
	return ret;
}

/* Called with admin_lock held. */
static int run_admin(struct spw_vfio_controller *c, const union spw_vfio_command *command,
		     void *data, uint32_t len_bytes, uint32_t *result)
{
	SPW_ASSERT(len_bytes <= SPW_NVME_PAGE_BYTES);
	return run_copied(c, &c->admin, SLOT_COMMAND, command, data, len_bytes, result);
}

int spw_vfio__admin(struct spw_vfio_controller *c, const union spw_vfio_command *command,
		    void *data, uint32_t len_bytes, uint32_t *result)
{
	int ret;

	(void)pthread_mutex_lock(&c->admin_lock);
	ret = run_admin(c, command, data, len_bytes, result);
	(void)pthread_mutex_unlock(&c->admin_lock);
	return ret;
}

int spw_vfio__command(struct spw_vfio_controller *c, const union spw_vfio_command *command,
		      void *data, uint32_t len_bytes)
{
	int ret;

	SPW_ASSERT(len_bytes <= SPW_VFIO_COPY_BYTES);
	(void)pthread_mutex_lock(&c->io_lock);
	ret = run_copied(c, &c->io, 0, command, data, len_bytes, NULL);
	(void)pthread_mutex_unlock(&c->io_lock);
	return ret;
}

/* ---- Asynchronous events --------------------------------------------------------------------- */

/* Send an Asynchronous Event Request. Called with admin_lock held. */
static void listen(struct spw_vfio_controller *c)
{
	union spw_vfio_command *entry;
	uint16_t cid;

	if (c->listens || spw_vfio__controller_state(c) != SPW_VFIO_LIVE)
		return;
	entry = spw_vfio__pair_begin(&c->admin, SLOT_EVENT, &cid);
	*entry = (union spw_vfio_command){.opcode = ASYNC_EVENT, .cid = cid};
	spw_vfio__pair_submit(&c->admin);
	c->listens = true;
}

static const char *event_text(uint32_t event)
{
	static const char *const errors[] = {
		"a doorbell that does not exist was written",
		"a doorbell was written with a wrong value",
		"a diagnosis failed",
		"a persistent internal error",
		"a transient internal error",
		"loading the firmware failed",
	};
	static const char *const health[] = {"the drive has become unreliable",
					     "the temperature is over its limit",
					     "the spare capacity is below its limit"};
	static const char *const notices[] = {"namespaces have changed",
					      "new firmware is being started"};
	uint32_t what = event >> 8 & 0xffu;

	switch (event & 7u) {
	case 0: return what < SPW_ARRAY_LEN(errors) ? errors[what] : "an error";
	case 1: return what < SPW_ARRAY_LEN(health) ? health[what] : "a change of its health";
	case 2: return what < SPW_ARRAY_LEN(notices) ? notices[what] : "a notice";
	default: return "something of its own";
	}
}

/* Log an event, read its page, which enables the next, and listen again. admin_lock is held. */
static void answer_event(struct spw_vfio_controller *c, const struct spw_log *log)
{
	uint32_t page = c->event >> 16 & 0xffu;
	uint8_t data[SPW_NVME_HEALTH_BYTES] = {0};
	union spw_vfio_command get = {
		.opcode = SPW_NVME_GET_LOG_PAGE,
		.nsid = ALL_NAMESPACES,
		.cdw10 = page | (uint32_t)(sizeof(data) / 4 - 1) << 16,
	};

	spw_log(log, SPW_LOG_WARNING, "pci:%s reports: %s (event %06xh)", c->link->address,
		event_text(c->event), c->event & 0xffffffu);
	c->has_event = false;
	if ((c->event & EVENT_MASK) == EVENT_NAMESPACES)
		atomic_fetch_add_explicit(&c->namespace_changes, 1, memory_order_relaxed);
	if (run_admin(c, &get, data, sizeof(data), NULL) >= 0)
		listen(c);
}

bool spw_vfio__controller_check(struct spw_vfio_controller *c, const struct spw_log *log)
{
	uint32_t ignored;

	if (!looks_alive(c))
		return false;
	/* If another thread has the lock, that thread or the next check takes the event. */
	if (pthread_mutex_trylock(&c->admin_lock))
		return true;
	(void)take(c, &c->admin, ADMIN_SLOTS, &ignored, &ignored);
	if (c->has_event)
		answer_event(c, log);
	(void)pthread_mutex_unlock(&c->admin_lock);
	return spw_vfio__controller_state(c) == SPW_VFIO_LIVE;
}

/* ---- Pairs ----------------------------------------------------------------------------------- */

static int refused(const struct spw_vfio_controller *c, const char *what, int status)
{
	if (status <= 0)
		return status;
	return spw_error(spw_vfio__errno(status), "pci:%s refuses %s: %s (%03xh)", c->link->address,
			 what, spw_nvme_status_text((uint32_t)status),
			 (unsigned)status & SPW_NVME_STATUS_CODE);
}

/* Called with admin_lock held. */
static int create_pair(struct spw_vfio_controller *c, const struct spw_vfio_pair *pair)
{
	union spw_vfio_command cq = {
		.opcode = CREATE_CQ,
		.prp = {pair->cq_iova},
		.cdw10 = pair->mask << 16 | pair->id,
		.cdw11 = 1, /* physically contiguous; no interrupts */
	};
	union spw_vfio_command sq = {
		.opcode = CREATE_SQ,
		.prp = {pair->memory.iova},
		.cdw10 = pair->mask << 16 | pair->id,
		.cdw11 = (uint32_t)pair->id << 16 | 1,
	};
	union spw_vfio_command delete = {.opcode = DELETE_CQ, .cdw10 = pair->id};
	int ret = refused(c, "a completion queue", run_admin(c, &cq, NULL, 0, NULL));

	if (ret)
		return ret;
	ret = refused(c, "a submission queue", run_admin(c, &sq, NULL, 0, NULL));
	if (ret && run_admin(c, &delete, NULL, 0, NULL) > 0)
		spw_vfio__controller_stop(c, -EIO, "it does not give a completion queue up");
	return ret;
}

/* Delete a pair; on failure stop the controller, which may still write. admin_lock is held. */
static void delete_pair(struct spw_vfio_controller *c, const struct spw_vfio_pair *pair)
{
	union spw_vfio_command sq = {.opcode = DELETE_SQ, .cdw10 = pair->id};
	union spw_vfio_command cq = {.opcode = DELETE_CQ, .cdw10 = pair->id};

	if (spw_vfio__controller_state(c) != SPW_VFIO_LIVE)
		return;
	if (run_admin(c, &sq, NULL, 0, NULL) > 0 || run_admin(c, &cq, NULL, 0, NULL) > 0)
		spw_vfio__controller_stop(c, -EIO, "it does not give queue %u up", pair->id);
}

/* Called with admin_lock held. */
static int open_pair(struct spw_vfio_controller *c, uint32_t slots, uint64_t extra_bytes,
		     struct spw_vfio_pair *pair)
{
	uint16_t id;
	int ret;

	if (c->pairs_free == 0)
		return spw_error(-EBUSY,
				 "pci:%s: all %u queue pairs that the controller has are in use",
				 c->link->address, c->pairs);
	id = (uint16_t)(__builtin_ctzll(c->pairs_free) + 1);
	ret = spw_vfio__pair_init(pair, c->link, id, slots, c->entries_max, c->doorbell_bytes,
				  extra_bytes);
	if (ret)
		return ret;
	ret = create_pair(c, pair);
	if (ret)
		spw_vfio__pair_free(pair, c->link);
	else
		c->pairs_free &= ~(UINT64_C(1) << (id - 1));
	return ret;
}

int spw_vfio__pair_open(struct spw_vfio_controller *c, uint32_t slots, uint64_t extra_bytes,
			struct spw_vfio_pair *pair)
{
	int ret;

	(void)pthread_mutex_lock(&c->admin_lock);
	ret = open_pair(c, slots, extra_bytes, pair);
	(void)pthread_mutex_unlock(&c->admin_lock);
	return ret;
}

void spw_vfio__pair_close(struct spw_vfio_controller *c, struct spw_vfio_pair *pair)
{
	if (!pair->memory.base)
		return;
	(void)pthread_mutex_lock(&c->admin_lock);
	delete_pair(c, pair);
	/* If another thread is stopping the controller, wait: it may still write until then. */
	(void)spw_vfio__controller_error(c);
	SPW_ASSERT(pair->in_flight == 0 ||
		   spw_vfio__controller_state(c) != SPW_VFIO_LIVE); /* the pair is idle (CTRL-2) */
	/* its number is in use (CTRL-3) */
	SPW_ASSERT(!(c->pairs_free >> (pair->id - 1) & 1));
	spw_vfio__pair_free(pair, c->link);
	c->pairs_free |= UINT64_C(1) << (pair->id - 1);
	(void)pthread_mutex_unlock(&c->admin_lock);
}

/* ---- Start and end --------------------------------------------------------------------------- */

static int read_capabilities(struct spw_vfio_controller *c)
{
	uint64_t cap = spw_vfio__get64(c->link, REG_CAP);
	uint32_t told_ms = 0;

	if (cap == UINT64_MAX)
		return spw_error(-ENODEV, "pci:%s: " GONE_TEXT, c->link->address);
	c->entries_max = (uint32_t)(cap & 0xffffu) + 1;
	c->ready_ms = (uint32_t)(cap >> 24 & 0xffu) * 500;
	if (c->ready_ms == 0)
		c->ready_ms = 500;
	/* CAP has only 8 bits for this time, and some controllers report a wrong one there. */
	if (cap & CAP_TELLS_READY_TIME)
		told_ms = (spw_vfio__get32(c->link, REG_CRTO) & 0xffffu) * 500;
	c->ready_ms = SPW_MAX(c->ready_ms, told_ms);
	c->ready_ms = SPW_MIN(c->ready_ms, READY_MS_MAX);
	c->stop_ms = SPW_MIN(c->ready_ms, STOP_MS_MAX);
	c->doorbell_bytes = 4u << (cap >> 32 & 0xfu);
	if (!(cap >> 37 & 1u))
		return spw_error(-EOPNOTSUPP, "pci:%s does not know the NVM command set",
				 c->link->address);
	if ((cap >> 48 & 0xfu) != 0)
		return spw_error(-EOPNOTSUPP, "pci:%s cannot work with memory pages of 4 KiB",
				 c->link->address);
	return 0;
}

static int ready_error(struct spw_vfio_controller *c, int ret, const char *what)
{
	if (ret != -ETIMEDOUT)
		return spw_error(ret, "pci:%s: %s", c->link->address,
				 ret == -ENODEV ? GONE_TEXT : FATAL_TEXT);
	return spw_error(ret, "pci:%s: %s within %u ms, the time that the controller itself states",
			 c->link->address, what, c->ready_ms);
}

static int enable(struct spw_vfio_controller *c)
{
	int ret = disable_as_found(c);

	if (ret)
		return ready_error(c, ret, "does not stop");
	ret = c->link->ops->let_transfer(c->link);
	if (ret)
		return ret;
	ret = spw_vfio__pair_init(&c->admin, c->link, 0, ADMIN_SLOTS, ADMIN_ENTRIES_MAX,
				  c->doorbell_bytes, 2 * SPW_NVME_PAGE_BYTES);
	if (ret)
		return ret;
	spw_vfio__set32(c->link, REG_AQA, c->admin.mask << 16 | c->admin.mask);
	spw_vfio__set64(c->link, REG_ASQ, c->admin.memory.iova);
	spw_vfio__set64(c->link, REG_ACQ, c->admin.cq_iova);
	/* Barrier: the rings must be in memory before the controller reads them. */
	spw_vfio__publish();
	spw_vfio__set32(c->link, REG_CC, CC_ENTRY_SIZES | CC_ENABLE);
	ret = wait_register(c, CSTS_READY, CSTS_READY, CSTS_FATAL, c->ready_ms);
	return ret ? ready_error(c, ret, "does not start") : 0;
}

/* Time limit of a shutdown from RTD3 Entry Latency; 0: not reported. */
static uint32_t shutdown_ms(uint32_t rtd3e_us)
{
	uint32_t ms = rtd3e_us / 1000 + (rtd3e_us % 1000 != 0);

	return ms < SHUTDOWN_MS_MIN ? SHUTDOWN_MS_MIN : ms > SHUTDOWN_MS_MAX ? SHUTDOWN_MS_MAX : ms;
}

static int identify(struct spw_vfio_controller *c)
{
	static const union spw_vfio_command ask = {.opcode = SPW_NVME_IDENTIFY,
						   .cdw10 = SPW_NVME_IDENTIFY_CONTROLLER};
	uint8_t data[SPW_NVME_IDENTIFY_BYTES] = {0};
	int ret = refused(c, "its identity", spw_vfio__admin(c, &ask, data, sizeof(data), NULL));

	if (ret)
		return ret;
	if ((data[512] & 0xfu) > 6 || (data[513] & 0xfu) > 4)
		return spw_error(-EOPNOTSUPP,
				 "pci:%s wants larger queue entries than 64 and 16 bytes",
				 c->link->address);
	spw_nvme__decode_controller(data, &c->identity);
	c->command_bytes_max = c->identity.transfer_bytes_max;
	if (c->command_bytes_max == 0 || c->command_bytes_max > SPW_VFIO_PRP_BYTES_MAX)
		c->command_bytes_max = SPW_VFIO_PRP_BYTES_MAX;
	c->shutdown_ms = shutdown_ms(spw_nvme__le32(data + 88));
	c->tells_namespaces = (spw_nvme__le32(data + 92) & EVENTS_NAMESPACES) != 0;
	c->namespaces = spw_nvme__le32(data + 516);
	c->writes_zeroes = (data[520] & 1u << 3) != 0;
	/* SGLS: 1 and 2 mean supported, 3 is reserved. */
	c->takes_sgl = (data[536] & 3u) == 1 || (data[536] & 3u) == 2;
	return 0;
}

/* Read limits of Write Zeroes (WZSL) and deallocate (DMRSL, DMSL), if the controller has them. */
static int identify_limits(struct spw_vfio_controller *c)
{
	static const union spw_vfio_command ask = {.opcode = SPW_NVME_IDENTIFY,
						   .cdw10 = IDENTIFY_LIMITS};
	uint8_t data[SPW_NVME_IDENTIFY_BYTES] = {0};
	uint64_t blocks;
	int ret = 0;

	c->zeroes_bytes_max = c->command_bytes_max;
	c->deallocate_blocks_max = UINT32_MAX;
	if (c->identity.version >= IDENTIFY_LIMITS_VERSION)
		ret = spw_vfio__admin(c, &ask, data, sizeof(data), NULL);
	if (ret)
		return ret < 0 ? ret : 0;
	if (data[1] > 0 && data[1] < 32 &&
	    c->zeroes_bytes_max > (uint64_t)SPW_NVME_PAGE_BYTES << data[1])
		c->zeroes_bytes_max = (uint64_t)SPW_NVME_PAGE_BYTES << data[1];
	if (spw_nvme__le32(data + 4) > 0)
		c->deallocate_blocks_max = spw_nvme__le32(data + 4);
	blocks = spw_nvme__le64(data + 8);
	if (blocks > 0 && blocks < c->deallocate_blocks_max)
		c->deallocate_blocks_max = (uint32_t)blocks;
	return 0;
}

static int set_features(struct spw_vfio_controller *c)
{
	union spw_vfio_command queues = {
		.opcode = SET_FEATURES,
		.cdw10 = FEATURE_QUEUES,
		.cdw11 = (SPW_VFIO_PAIRS_MAX - 1) << 16 | (SPW_VFIO_PAIRS_MAX - 1),
	};
	union spw_vfio_command events = {
		.opcode = SET_FEATURES,
		.cdw10 = FEATURE_EVENTS,
		.cdw11 = EVENTS_HEALTH | (c->tells_namespaces ? EVENTS_NAMESPACES : 0),
	};
	uint32_t granted = 0, pairs;
	int ret = refused(c, "its queues", spw_vfio__admin(c, &queues, NULL, 0, &granted));

	if (ret)
		return ret;
	pairs = (granted & 0xffffu) < granted >> 16 ? granted & 0xffffu : granted >> 16;
	c->pairs = pairs + 1 < SPW_VFIO_PAIRS_MAX ? pairs + 1 : SPW_VFIO_PAIRS_MAX;
	c->pairs_free = c->pairs == 64 ? UINT64_MAX : (UINT64_C(1) << c->pairs) - 1;
	/* Drives differ in the warnings that they support; a refusal is ignored. */
	ret = spw_vfio__admin(c, &events, NULL, 0, NULL);
	return ret < 0 ? ret : 0;
}

static int open_own_pair(struct spw_vfio_controller *c)
{
	int ret = spw_vfio__pair_open(c, 1, SPW_VFIO_COPY_BYTES + SPW_NVME_PAGE_BYTES, &c->io);

	if (ret)
		return ret;
	(void)pthread_mutex_lock(&c->admin_lock);
	listen(c);
	(void)pthread_mutex_unlock(&c->admin_lock);
	return 0;
}

static int start(struct spw_vfio_controller *c)
{
	static int (*const steps[])(struct spw_vfio_controller * c) = {
		read_capabilities, enable, identify, identify_limits, set_features, open_own_pair};
	int ret = 0;

	for (size_t i = 0; i < SPW_ARRAY_LEN(steps) && ret == 0; i++)
		ret = steps[i](c);
	return ret;
}

/* Shut down, then disable. No shutdown if it has not started or has failed: it would not answer. */
static void shut_down(struct spw_vfio_controller *c)
{
	uint32_t config = spw_vfio__get32(c->link, REG_CC), status = status_register(c);

	if (!(config & CC_ENABLE) || status == ALL_ONES)
		return;
	if ((status & (CSTS_READY | CSTS_FATAL)) == CSTS_READY) {
		spw_vfio__set32(c->link, REG_CC, (config & ~CC_SHUTDOWN_MASK) | CC_SHUTDOWN);
		(void)wait_register(c, CSTS_SHUTDOWN_MASK, CSTS_SHUTDOWN_DONE, CSTS_FATAL,
				    c->shutdown_ms);
	}
	(void)disable(c, c->stop_ms);
}

void spw_vfio__controller_close(struct spw_vfio_controller *c)
{
	if (!c)
		return;
	spw_vfio__pair_close(c, &c->io);
	/* The controller must not write to the memory freed below, whatever its state. */
	if (spw_vfio__controller_state(c) == SPW_VFIO_LIVE) {
		shut_down(c);
		c->link->ops->cut(c->link);
	}
	spw_vfio__pair_free(&c->admin, c->link);
	c->link->ops->close(c->link);
	(void)pthread_mutex_destroy(&c->admin_lock);
	(void)pthread_mutex_destroy(&c->io_lock);
	free(c);
}

int spw_vfio__controller_open(struct spw_vfio_link *link, struct spw_vfio_controller **controller)
{
	struct spw_vfio_controller *c = calloc(1, sizeof(*c));
	int ret;

	if (!c) {
		link->ops->close(link);
		return spw_error(-ENOMEM, "pci: no memory for a controller");
	}
	c->link = link;
	c->shutdown_ms = SHUTDOWN_MS_MIN;
	(void)pthread_mutex_init(&c->admin_lock, NULL);
	(void)pthread_mutex_init(&c->io_lock, NULL);
	ret = start(c);
	if (ret) {
		spw_vfio__controller_close(c);
		return ret;
	}
	*controller = c;
	return 0;
}
