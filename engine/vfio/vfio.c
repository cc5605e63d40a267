/* SPDX-License-Identifier: MIT */
/*
 * engine/vfio/vfio.c - namespaces behind vfio: who has them open and locked, and transfers that
 * wait
 */
#include "engine/vfio/vfio.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "engine/device.h"
#include "engine/nvme/admin.h"
#include "engine/vfio/controller.h"
#include "engine/vfio/namespace.h"
#include "util/util.h"

/* As often as the kernel repeats what has not failed for good. */
#define RETRIES_MAX 5

/* Of Identify Namespace: NGUID and EUI64. */
#define UNIQUE_AT 104

struct range_lock {
	struct range_lock *next;
	uint32_t namespace_id;
	const void *owner;
	uint64_t first, last; /* both inclusive */
};

/* A controller that is open, and all that this process has to do with it. */
struct holding {
	struct holding *next;
	struct spw_vfio_controller *controller;
	struct spw_vfio_namespace *namespaces;
	struct range_lock *locks;
	unsigned holds; /* that keep it open, besides namespaces */
	char address[SPW_VFIO_ADDRESS_BYTES];
	/* it is being opened or closed, without the lock, since that takes long: wait */
	bool changing;
};

/* Of all holdings. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* a holding is not changing any more */
static struct holding *holdings;

/* ---- Opening --------------------------------------------------------------------------------- */

static int refused(const struct spw_vfio_namespace *ns, const char *what, int status)
{
	int error = spw_nvme_errno((uint32_t)status);

	/* Only a controller that is dead answers nothing. */
	if (status < 0)
		return spw_error(status, "%s: %s failed: %s", ns->path, what,
				 ns->controller->reason);
	if (status == 0)
		return 0;
	return spw_error(error ? error : -EIO, "%s: %s failed: %s (%03xh)", ns->path, what,
			 spw_nvme_status_text((uint32_t)status),
			 (unsigned)status & SPW_NVME_STATUS_CODE);
}

/* The smallest write that the drive does not have to read for (NPWG), in blocks, where it says. */
static uint32_t write_blocks(const uint8_t *data)
{
	return data[24] & 0x10u ? (uint32_t)(data[64] | data[65] << 8) + 1 : 1;
}

/* @tries: so often it was tried before. */
static bool is_worth_another_try(int status, unsigned tries)
{
	return status > 0 && !(status & (int)SPW_NVME_STATUS_DNR) && tries < RETRIES_MAX;
}

static int ask_for_namespace(const struct spw_vfio_namespace *ns,
			     uint8_t data[SPW_NVME_IDENTIFY_BYTES])
{
	union spw_vfio_command ask = {.opcode = SPW_NVME_IDENTIFY,
				      .nsid = ns->nvme.id,
				      .cdw10 = SPW_NVME_IDENTIFY_NAMESPACE};
	int status;

	for (unsigned i = 0;; i++) {
		status = spw_vfio_admin(ns->controller, &ask, data, SPW_NVME_IDENTIFY_BYTES, NULL);
		if (!is_worth_another_try(status, i))
			return status;
	}
}

static int identify(struct spw_vfio_namespace *ns)
{
	struct spw_vfio_controller *c = ns->controller;
	uint8_t data[SPW_NVME_IDENTIFY_BYTES] = {0};
	uint64_t physical;
	int ret;

	if (ns->nvme.id > c->namespaces)
		return spw_error(-ENODEV, "%s: the controller has no namespace %u, but 1 to %u",
				 ns->path, ns->nvme.id, c->namespaces);
	ret = refused(ns, "asking for the namespace", ask_for_namespace(ns, data));
	if (ret)
		return ret;
	if (spw_nvme_decode_namespace(data, &ns->nvme))
		return spw_error(
			-ENODEV,
			"%s: there is no such namespace, or it is not attached (its size is none)",
			ns->path);
	if (ns->nvme.metadata_bytes > 0)
		return spw_error(-EOPNOTSUPP, "%s is formatted with %u bytes of metadata per block",
				 ns->path, ns->nvme.metadata_bytes);
	memcpy(ns->unique, data + UNIQUE_AT, sizeof(ns->unique));
	physical = (uint64_t)write_blocks(data) << ns->nvme.block_shift;
	ns->physical_block_bytes = spw_is_power_of_two(physical) && physical <= 1u << 20
					   ? (uint32_t)physical
					   : 1u << ns->nvme.block_shift;
	ns->command_bytes_max = c->command_bytes_max;
	if (ns->command_bytes_max > (uint64_t)SPW_NVME_BLOCKS_MAX << ns->nvme.block_shift)
		ns->command_bytes_max = (uint64_t)SPW_NVME_BLOCKS_MAX << ns->nvme.block_shift;
	if (ns->command_bytes_max >> ns->nvme.block_shift == 0)
		return spw_error(-EOPNOTSUPP, "%s: a command carries %llu bytes, less than a block",
				 ns->path, (unsigned long long)ns->command_bytes_max);
	return 0;
}

bool spw_vfio_has_changed(const struct spw_vfio_namespace *ns)
{
	struct spw_nvme_namespace now = {0};
	uint8_t data[SPW_NVME_IDENTIFY_BYTES] = {0};
	int status = ask_for_namespace(ns, data);

	if (status)
		return status > 0;
	/* More blocks do no harm. */
	return spw_nvme_decode_namespace(data, &now) || now.block_shift != ns->nvme.block_shift ||
	       now.metadata_bytes != ns->nvme.metadata_bytes || now.blocks < ns->nvme.blocks ||
	       memcmp(ns->unique, data + UNIQUE_AT, sizeof(ns->unique)) != 0;
}

/* The lock is held. */
static void forget_holding(struct holding *h)
{
	struct holding **at = &holdings;

	while (*at != h)
		at = &(*at)->next;
	*at = h->next;
	(void)pthread_cond_broadcast(&changed);
	free(h);
}

static bool is_open(const struct holding *h)
{
	return h->namespaces || h->holds > 0;
}

/* The lock is held. From here on nobody else finds it. */
static void begin_to_close(struct holding *h)
{
	struct range_lock *l;

	while ((l = h->locks) != NULL) {
		h->locks = l->next;
		free(l);
	}
	h->changing = true;
}

/* The lock is held, but not while the controller is shut down. */
static void close_holding(struct holding *h)
{
	begin_to_close(h);
	(void)pthread_mutex_unlock(&lock);
	spw_vfio_controller_close(h->controller);
	(void)pthread_mutex_lock(&lock);
	forget_holding(h);
}

static int open_controller(struct holding *h)
{
	struct spw_vfio_link *link;
	int ret = spw_vfio_link_open(h->address, &link);

	return ret ? ret : spw_vfio_controller_open(link, &h->controller);
}

/*
 * The lock is held. One that died stays with those who have it; whoever opens it again begins anew.
 */
static struct holding *present_holding(const char *address)
{
	struct holding *h = holdings;

	while (h) {
		bool is_it = strcmp(h->address, address) == 0;

		if (is_it && h->changing) {
			/* Afterwards the list may be another. */
			(void)pthread_cond_wait(&changed, &lock);
			h = holdings;
		} else if (is_it && !spw_vfio_controller_error(h->controller)) {
			return h;
		} else {
			h = h->next;
		}
	}
	return NULL;
}

/* The lock is held, but not while a controller is opened. */
static int find_holding(const char *address, struct holding **out)
{
	struct holding *h = present_holding(address);
	int ret;

	*out = h;
	if (h)
		return 0;
	h = calloc(1, sizeof(*h));
	if (!h)
		return spw_error(-ENOMEM, "pci:%s: no memory for it", address);
	(void)snprintf(h->address, sizeof(h->address), "%s", address);
	h->changing = true;
	h->next = holdings;
	holdings = h;
	(void)pthread_mutex_unlock(&lock);
	ret = open_controller(h);
	(void)pthread_mutex_lock(&lock);
	h->changing = false;
	if (ret) {
		forget_holding(h);
		return ret;
	}
	(void)pthread_cond_broadcast(&changed);
	*out = h;
	return 0;
}

static bool is_held_exclusively(const struct holding *h, uint32_t namespace_id)
{
	for (const struct spw_vfio_namespace *ns = h->namespaces; ns; ns = ns->next)
		if (ns->nvme.id == namespace_id && ns->exclusive)
			return true;
	return false;
}

/* The lock is held. */
static int open_namespace(struct spw_vfio_namespace *ns, const char *address)
{
	struct holding *h = NULL;
	int ret = find_holding(address, &h);

	if (ret)
		return ret;
	ns->controller = h->controller;
	if (ns->exclusive && is_held_exclusively(h, ns->nvme.id))
		ret = spw_error(-EBUSY, "%s is held by this process already", ns->path);
	else
		ret = identify(ns);
	if (ret == 0) {
		ns->holding = h;
		ns->next = h->namespaces;
		h->namespaces = ns;
	} else if (!is_open(h)) {
		close_holding(h);
	}
	return ret;
}

static void log_opened(const struct spw_log *log, const struct spw_vfio_namespace *ns)
{
	const struct spw_vfio_link *link = ns->controller->link;

	spw_log(log, SPW_LOG_INFO, "%s: %s, %u queue pairs, %llu KiB per command", ns->path,
		ns->controller->identity.model, ns->controller->pairs,
		(unsigned long long)ns->command_bytes_max >> 10);
	if (link->why_group[0])
		spw_log(log, SPW_LOG_INFO, "%s: reached by its IOMMU group, not by iommufd: %s",
			ns->path, link->why_group);
}

int spw_vfio_open(const char *path, bool exclusive, const struct spw_log *log,
		  struct spw_vfio_namespace **out)
{
	struct spw_vfio_namespace *ns;
	struct spw_vfio_name name;
	int ret = spw_vfio_parse(path, &name);

	*out = NULL;
	if (ret)
		return ret;
	ns = calloc(1, sizeof(*ns));
	if (!ns)
		return spw_error(-ENOMEM, "%s: no memory for it", path);
	ns->nvme.id = name.namespace_id;
	ns->exclusive = exclusive;
	spw_vfio_format(&name, ns->path);
	(void)pthread_mutex_lock(&lock);
	ret = open_namespace(ns, name.address);
	(void)pthread_mutex_unlock(&lock);
	if (ret) {
		free(ns);
		return ret;
	}
	if (log)
		log_opened(log, ns);
	*out = ns;
	return 0;
}

void spw_vfio_close(struct spw_vfio_namespace *ns)
{
	struct holding *h;

	if (!ns)
		return;
	h = ns->holding;
	(void)pthread_mutex_lock(&lock);
	for (struct spw_vfio_namespace **at = &h->namespaces; *at; at = &(*at)->next) {
		if (*at != ns)
			continue;
		*at = ns->next;
		break;
	}
	if (!is_open(h))
		close_holding(h);
	(void)pthread_mutex_unlock(&lock);
	free(ns);
}

/* ---- Several at once ------------------------------------------------------------------------- */

struct held {
	const char *path;        /* to be opened */
	struct holding *holding; /* NULL: could not be opened, or is open by others too */
	pthread_t thread;
	bool has_thread;
};

struct spw_vfio_hold {
	struct spw_log log;
	unsigned count;
	struct held held[];
};

/* All but the first get a thread. Return: 0; why there were no more, as a negative errno. */
static int start_threads(struct spw_vfio_hold *hold, void *(*work)(void *))
{
	sigset_t all, before;
	int error = 0;

	/* The program's signals are for its own threads. */
	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	for (unsigned i = 1; i < hold->count && error == 0; i++) {
		error = pthread_create(&hold->held[i].thread, NULL, work, &hold->held[i]);
		hold->held[i].has_thread = error == 0;
	}
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -error;
}

/*
 * For the work on each; what no thread can be had for is done by whoever calls, one after the
 * other.
 */
static void run_all(struct spw_vfio_hold *hold, const char *what, void *(*work)(void *))
{
	int error = start_threads(hold, work);
	unsigned alone = 0;

	for (unsigned i = 0; i < hold->count; i++)
		alone += !hold->held[i].has_thread;
	if (error)
		spw_log(&hold->log, SPW_LOG_INFO,
			"vfio: %u of %u controllers are %s one after the other, as no more threads "
			"can be started: %s",
			alone, hold->count, what, spw_strerror(error));
	for (unsigned i = 0; i < hold->count; i++)
		if (!hold->held[i].has_thread)
			(void)work(&hold->held[i]);
	for (unsigned i = 0; i < hold->count; i++)
		if (hold->held[i].has_thread)
			(void)pthread_join(hold->held[i].thread, NULL);
}

/*
 * For names or devices that @names of are behind vfio. One alone is opened and closed as fast by
 * whoever wants it.
 */
static struct spw_vfio_hold *new_hold(unsigned names)
{
	return names > 1 ? calloc(1, sizeof(struct spw_vfio_hold) + names * sizeof(struct held))
			 : NULL;
}

static void *hold_one(void *context)
{
	struct held *held = context;
	struct spw_vfio_name name;

	if (spw_vfio_parse(held->path, &name))
		return NULL;
	(void)pthread_mutex_lock(&lock);
	if (find_holding(name.address, &held->holding) == 0)
		held->holding->holds++;
	(void)pthread_mutex_unlock(&lock);
	return NULL;
}

struct spw_vfio_hold *spw_vfio_hold(const char *const paths[], unsigned count,
				    const struct spw_log *log)
{
	struct spw_vfio_hold *hold;
	unsigned names = 0;

	for (unsigned i = 0; i < count; i++)
		names += spw_vfio_is_name(paths[i]);
	hold = new_hold(names);
	if (!hold)
		return NULL;
	if (log)
		hold->log = *log;
	for (unsigned i = 0; i < count; i++)
		if (spw_vfio_is_name(paths[i]))
			hold->held[hold->count++].path = paths[i];
	run_all(hold, "opened", hold_one);
	return hold;
}

struct spw_vfio_hold *spw_vfio_hold_open(struct spw_device *const devices[], unsigned count)
{
	struct spw_vfio_hold *hold;
	unsigned names = 0;

	for (unsigned i = 0; i < count; i++)
		names += devices[i] && spw_vfio_of(devices[i]);
	hold = new_hold(names);
	if (!hold)
		return NULL;
	(void)pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < count; i++) {
		if (!devices[i] || !spw_vfio_of(devices[i]))
			continue;
		hold->log = devices[i]->log;
		hold->held[hold->count].holding = spw_vfio_of(devices[i])->holding;
		hold->held[hold->count++].holding->holds++;
	}
	(void)pthread_mutex_unlock(&lock);
	return hold;
}

static void *close_one(void *context)
{
	spw_vfio_controller_close(((struct held *)context)->holding->controller);
	return NULL;
}

void spw_vfio_let_go(struct spw_vfio_hold *hold)
{
	unsigned held = hold ? hold->count : 0;

	if (!hold)
		return;
	/* What nobody else has open comes to the front. */
	hold->count = 0;
	(void)pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < held; i++) {
		struct holding *h = hold->held[i].holding;

		if (!h)
			continue;
		h->holds--;
		if (is_open(h))
			continue;
		begin_to_close(h);
		hold->held[hold->count++] = (struct held){.holding = h};
	}
	(void)pthread_mutex_unlock(&lock);
	run_all(hold, "closed", close_one);
	(void)pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < hold->count; i++)
		forget_holding(hold->held[i].holding);
	(void)pthread_mutex_unlock(&lock);
	free(hold);
}

/* ---- What it is ------------------------------------------------------------------------------ */

void spw_vfio_geometry(const struct spw_vfio_namespace *ns, struct spw_geometry *g)
{
	const struct spw_nvme_info *identity = &ns->controller->identity;

	*g = (struct spw_geometry){
		.kind = SPW_DEVICE_VFIO,
		.size_bytes = ns->nvme.blocks << ns->nvme.block_shift,
		.logical_block_bytes = 1u << ns->nvme.block_shift,
		.physical_block_bytes = ns->physical_block_bytes,
		.memory_align_bytes = 4,
		.transfer_bytes_max = (uint32_t)ns->command_bytes_max,
		.numa_node = ns->controller->link->numa_node,
		.polls = true,
		.discards = identity->deallocates,
	};
	(void)snprintf(g->model, sizeof(g->model), "%s", identity->model);
	(void)snprintf(g->serial, sizeof(g->serial), "%s", identity->serial);
}

/*
 * Whom asked_of_namespace() asks: what questions to a drive are written for (engine/nvme/admin.h)
 * knows descriptors only.
 */
static _Thread_local struct spw_vfio_namespace *asked;

static int fail(int error)
{
	errno = -error;
	return -1;
}

static int answer_of_namespace(int fd, unsigned long request, void *argument)
{
	const struct nvme_passthru_cmd *cmd = argument;
	union spw_vfio_command command;
	void *data;
	int ret;

	(void)fd;
	if (request == (unsigned long)NVME_IOCTL_ID)
		return (int)asked->nvme.id;
	command = (union spw_vfio_command){
		.opcode = cmd->opcode,
		.nsid = cmd->nsid,
		.cdw10 = cmd->cdw10,
		.cdw11 = cmd->cdw11,
	};
	data = (void *)(uintptr_t)cmd->addr;
	if (request == NVME_IOCTL_ADMIN_CMD)
		ret = spw_vfio_admin(asked->controller, &command, data, cmd->data_len, NULL);
	else
		ret = spw_vfio_command(asked->controller, &command, data, cmd->data_len, false,
				       true);
	return ret < 0 ? fail(ret) : ret;
}

int spw_vfio_info(struct spw_vfio_namespace *ns, struct spw_nvme_info *info)
{
	struct spw_nvme_info own = {.size = sizeof(own)};
	int ret;

	asked = ns;
	ret = spw_nvme_ask_all(answer_of_namespace, -1, ns->path, &own);
	asked = NULL;
	if (ret == 0)
		spw_opts_merge(info, info->size == 0 ? sizeof(*info) : info->size, &own,
			       sizeof(own));
	return ret;
}

int spw_vfio_placements(struct spw_vfio_namespace *ns, uint16_t ids[SPW_NVME_PLACEMENTS_MAX])
{
	int ret;

	if (!ns->controller->identity.places_data)
		return 0;
	asked = ns;
	ret = spw_nvme_ask_placements(answer_of_namespace, -1, ns->path, ns->nvme.id, ids);
	asked = NULL;
	return ret;
}

/* ---- Transfers that wait --------------------------------------------------------------------- */

static int send(struct spw_vfio_namespace *ns, const char *what,
		const union spw_vfio_command *command, void *data, uint32_t len_bytes, bool sends,
		bool fetches)
{
	int status;

	for (unsigned i = 0;; i++) {
		status = spw_vfio_command(ns->controller, command, data, len_bytes, sends, fetches);
		if (!is_worth_another_try(status, i))
			return refused(ns, what, status);
	}
}

static int check_range(const struct spw_vfio_namespace *ns, uint64_t len_bytes,
		       uint64_t offset_bytes)
{
	uint64_t size_bytes = ns->nvme.blocks << ns->nvme.block_shift;

	if (((len_bytes | offset_bytes) & ((UINT64_C(1) << ns->nvme.block_shift) - 1)) == 0 &&
	    len_bytes <= size_bytes && offset_bytes <= size_bytes - len_bytes)
		return 0;
	return spw_error(
		-EINVAL,
		"%s: %llu bytes at byte %llu are not whole blocks of %u bytes within the device",
		ns->path, (unsigned long long)len_bytes, (unsigned long long)offset_bytes,
		1u << ns->nvme.block_shift);
}

/* A command for @blocks from @offset_bytes on. */
static union spw_vfio_command command_for(const struct spw_vfio_namespace *ns, uint8_t opcode,
					  uint64_t offset_bytes, uint64_t len_bytes)
{
	uint64_t first = offset_bytes >> ns->nvme.block_shift;

	return (union spw_vfio_command){
		.opcode = opcode,
		.nsid = ns->nvme.id,
		.cdw10 = (uint32_t)first,
		.cdw11 = (uint32_t)(first >> 32),
		.cdw12 = (uint32_t)(len_bytes >> ns->nvme.block_shift) - 1,
	};
}

static int transfer(struct spw_vfio_namespace *ns, bool is_read, char *buf, uint64_t len_bytes,
		    uint64_t offset_bytes)
{
	uint64_t step = ns->command_bytes_max < SPW_VFIO_COPY_BYTES ? ns->command_bytes_max
								    : SPW_VFIO_COPY_BYTES;
	int ret = check_range(ns, len_bytes, offset_bytes);

	step = spw_round_down(step, UINT64_C(1) << ns->nvme.block_shift);
	if (step == 0)
		return spw_error(-EOPNOTSUPP, "%s: blocks of %u bytes are too large", ns->path,
				 1u << ns->nvme.block_shift);
	while (ret == 0 && len_bytes > 0) {
		uint32_t now = (uint32_t)(len_bytes < step ? len_bytes : step);
		union spw_vfio_command command = command_for(
			ns, is_read ? SPW_NVME_READ : SPW_NVME_WRITE, offset_bytes, now);

		ret = send(ns, is_read ? "read" : "write", &command, buf, now, !is_read, is_read);
		buf += now;
		len_bytes -= now;
		offset_bytes += now;
	}
	return ret;
}

int spw_vfio_read(struct spw_vfio_namespace *ns, void *buf, uint64_t len_bytes,
		  uint64_t offset_bytes)
{
	return transfer(ns, true, buf, len_bytes, offset_bytes);
}

int spw_vfio_write(struct spw_vfio_namespace *ns, const void *buf, uint64_t len_bytes,
		   uint64_t offset_bytes)
{
	return transfer(ns, false, (char *)(uintptr_t)buf, len_bytes, offset_bytes);
}

int spw_vfio_flush(struct spw_vfio_namespace *ns)
{
	union spw_vfio_command command = {.opcode = SPW_NVME_FLUSH, .nsid = ns->nvme.id};

	return send(ns, "flush", &command, NULL, 0, false, false);
}

int spw_vfio_deallocate(struct spw_vfio_namespace *ns, uint64_t offset_bytes, uint64_t len_bytes)
{
	uint64_t step = spw_vfio_deallocate_max(ns);
	int ret = check_range(ns, len_bytes, offset_bytes);

	if (!ns->controller->identity.deallocates)
		return spw_error(-EOPNOTSUPP, "%s cannot deallocate", ns->path);
	while (ret == 0 && len_bytes > 0) {
		uint64_t now = len_bytes < step ? len_bytes : step;
		struct spw_nvme_range range;
		struct nvme_uring_cmd cmd;
		union spw_vfio_command command;

		spw_nvme_encode_deallocate(&cmd, &ns->nvme, offset_bytes, now, &range);
		command = (union spw_vfio_command){.opcode = cmd.opcode,
						   .nsid = cmd.nsid,
						   .cdw10 = cmd.cdw10,
						   .cdw11 = cmd.cdw11};
		ret = send(ns, "deallocation", &command, &range, sizeof(range), true, false);
		len_bytes -= now;
		offset_bytes += now;
	}
	return ret;
}

int spw_vfio_write_zeroes(struct spw_vfio_namespace *ns, uint64_t offset_bytes, uint64_t len_bytes)
{
	uint64_t most = ns->controller->zeroes_bytes_max, step;
	int ret = check_range(ns, len_bytes, offset_bytes);

	if (most > ns->command_bytes_max)
		most = ns->command_bytes_max;
	step = spw_round_down(most, UINT64_C(1) << ns->nvme.block_shift);
	if (!ns->controller->writes_zeroes || step == 0)
		return spw_error(-EOPNOTSUPP, "%s cannot write zeroes by itself", ns->path);
	while (ret == 0 && len_bytes > 0) {
		uint64_t now = len_bytes < step ? len_bytes : step;
		union spw_vfio_command command =
			command_for(ns, SPW_VFIO_WRITE_ZEROES, offset_bytes, now);

		ret = send(ns, "writing zeroes", &command, NULL, 0, false, false);
		len_bytes -= now;
		offset_bytes += now;
	}
	return ret;
}

/* ---- Locks ----------------------------------------------------------------------------------- */

static uint64_t last_byte(uint64_t offset_bytes, uint64_t len_bytes)
{
	uint64_t last;

	return len_bytes == 0 || __builtin_add_overflow(offset_bytes, len_bytes - 1, &last)
		       ? UINT64_MAX
		       : last;
}

static int add_lock(struct holding *h, uint32_t namespace_id, const void *owner, uint64_t first,
		    uint64_t last)
{
	struct range_lock *l = calloc(1, sizeof(*l));

	if (!l)
		return spw_error(-ENOMEM, "no memory for a lock");
	*l = (struct range_lock){.next = h->locks,
				 .namespace_id = namespace_id,
				 .owner = owner,
				 .first = first,
				 .last = last};
	h->locks = l;
	return 0;
}

int spw_vfio_lock(struct spw_vfio_namespace *ns, const void *owner, uint64_t offset_bytes,
		  uint64_t len_bytes)
{
	uint64_t last = last_byte(offset_bytes, len_bytes);
	int ret = 0;

	(void)pthread_mutex_lock(&lock);
	for (const struct range_lock *l = ns->holding->locks; l && ret == 0; l = l->next)
		if (l->namespace_id == ns->nvme.id && l->owner != owner && l->first <= last &&
		    offset_bytes <= l->last)
			ret = spw_error(-EBUSY,
					"%s: bytes %llu to %llu are locked by another opener of "
					"this process",
					ns->path, (unsigned long long)offset_bytes,
					(unsigned long long)last);
	if (ret == 0)
		ret = add_lock(ns->holding, ns->nvme.id, owner, offset_bytes, last);
	(void)pthread_mutex_unlock(&lock);
	return ret;
}

/* What of the lock lies outside stays, and there is some. */
static int shrink_lock(struct holding *h, struct range_lock *l, uint64_t first, uint64_t last)
{
	if (l->first < first && l->last > last) {
		int ret = add_lock(h, l->namespace_id, l->owner, last + 1, l->last);

		if (ret)
			return ret;
	}
	if (l->first < first)
		l->last = first - 1;
	else
		l->first = last + 1;
	return 0;
}

int spw_vfio_unlock(struct spw_vfio_namespace *ns, const void *owner, uint64_t offset_bytes,
		    uint64_t len_bytes)
{
	uint64_t last = last_byte(offset_bytes, len_bytes);
	struct range_lock **at, *l;
	int ret = 0;

	(void)pthread_mutex_lock(&lock);
	at = &ns->holding->locks;
	while ((l = *at) != NULL && ret == 0) {
		bool overlaps = l->namespace_id == ns->nvme.id && l->owner == owner &&
				l->first <= last && offset_bytes <= l->last;

		if (overlaps && l->first >= offset_bytes && l->last <= last) {
			*at = l->next;
			free(l);
			continue;
		}
		if (overlaps)
			ret = shrink_lock(ns->holding, l, offset_bytes, last);
		at = &l->next;
	}
	(void)pthread_mutex_unlock(&lock);
	return ret;
}
