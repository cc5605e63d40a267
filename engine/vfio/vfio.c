/* SPDX-License-Identifier: MIT */
/* engine/vfio/vfio.c - spw_vfio__device_open(): namespaces as devices; locks, transfers */
#include "engine/vfio/vfio.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "engine/nvme/admin.h"
#include "engine/vfio/namespace.h"
#include "util/parallel.h"
#include "util/util.h"

/* Blocks per command: with more a drive might not answer for long. */
#define DEALLOCATE_BLOCKS_MAX (1u << 21)

/* Offset in Identify Namespace: NGUID and EUI64. */
#define UNIQUE_AT 104

#define BLOCK_SHIFT_MAX 16u
_Static_assert(SPW_VFIO_COPY_BYTES >= 1u << BLOCK_SHIFT_MAX, "a copy has whole blocks");

struct range_lock {
	struct range_lock *next;
	uint64_t first, last; /* both inclusive */
};

/* An open controller, with its open namespaces. */
struct holding {
	struct holding *next;
	struct spw_vfio_controller *controller;
	struct spw_vfio_namespace
		*namespaces; /* opens; one namespace may be opened several times */
	char address[SPW_VFIO_ADDRESS_BYTES];
	/* being opened or closed, without the lock because that takes long: other threads wait */
	bool changing;
	/* the process that opened it; its children do not inherit the registers (function.c) */
	pid_t process;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* signalled when a holding has changed */
static struct holding *holdings;

/* ---- Opening --------------------------------------------------------------------------------- */

static int refused(const struct spw_vfio_namespace *ns, const char *what, int status)
{
	/* Only a stopped controller gives no status. */
	if (status < 0)
		return spw_error(status, "%s: %s failed: %s", ns->path, what,
				 ns->controller->reason);
	if (status == 0)
		return 0;
	return spw_error(spw_vfio__errno(status), "%s: %s failed: %s (%03xh)", ns->path, what,
			 spw_nvme_status_text((uint32_t)status),
			 (unsigned)status & SPW_NVME_STATUS_CODE);
}

/* Run a command, with retries as in the kernel, unless the drive sets Do Not Retry. */
static int ask(const struct spw_vfio_namespace *ns, bool is_admin,
	       const union spw_vfio_command *command, void *data, uint32_t len_bytes)
{
	int status;

	for (unsigned tries = 0;; tries++) {
		status = is_admin ? spw_vfio__admin(ns->controller, command, data, len_bytes, NULL)
				  : spw_vfio__command(ns->controller, command, data, len_bytes);
		if (status <= 0 || status & (int)SPW_NVME_STATUS_DNR ||
		    tries >= SPW_NVME_RETRIES_MAX)
			return status;
	}
}

static int ask_for_namespace(const struct spw_vfio_namespace *ns,
			     uint8_t data[SPW_NVME_IDENTIFY_BYTES])
{
	const union spw_vfio_command command = {.opcode = SPW_NVME_IDENTIFY,
						.nsid = ns->nvme.id,
						.cdw10 = SPW_NVME_IDENTIFY_NAMESPACE};

	return ask(ns, true, &command, data, SPW_NVME_IDENTIFY_BYTES);
}

/* Set the limits of commands, in whole blocks. Return: 0; -EOPNOTSUPP. */
static int set_limits(struct spw_vfio_namespace *ns)
{
	const struct spw_vfio_controller *c = ns->controller;
	unsigned shift = ns->nvme.block_shift;
	uint64_t block_bytes = UINT64_C(1) << shift;

	if (shift > BLOCK_SHIFT_MAX)
		return spw_error(-EOPNOTSUPP, "%s: blocks of %llu bytes are too large", ns->path,
				 (unsigned long long)block_bytes);
	ns->command_bytes_max = spw_round_down(
		SPW_MIN(c->command_bytes_max, SPW_NVME_BLOCKS_MAX * block_bytes), block_bytes);
	if (ns->command_bytes_max == 0)
		return spw_error(-EOPNOTSUPP, "%s: a command carries %llu bytes, less than a block",
				 ns->path, (unsigned long long)c->command_bytes_max);
	ns->deallocate_bytes_max =
		(uint64_t)SPW_MIN(c->deallocate_blocks_max, DEALLOCATE_BLOCKS_MAX) << shift;
	if (c->writes_zeroes)
		ns->zeroes_bytes_max = spw_round_down(
			SPW_MIN(c->zeroes_bytes_max, ns->command_bytes_max), block_bytes);
	return 0;
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
	if (spw_nvme__decode_namespace(data, &ns->nvme))
		return spw_error(
			-ENODEV,
			"%s: there is no such namespace, or it is not attached (its size is zero)",
			ns->path);
	if (ns->nvme.metadata_bytes > 0 && !ns->nvme.protects)
		return spw_error(-EOPNOTSUPP, "%s is formatted with %u bytes of metadata per block",
				 ns->path, ns->nvme.metadata_bytes);
	memcpy(ns->unique, data + UNIQUE_AT, sizeof(ns->unique));
	/* The smallest write without read-modify-write (NPWG), if reported. */
	physical = (data[24] & 0x10u ? spw_nvme__le16(data + 64) + UINT64_C(1) : 1)
		   << ns->nvme.block_shift;
	ns->physical_block_bytes = spw_is_power_of_two(physical) && physical <= 1u << 20
					   ? (uint32_t)physical
					   : 1u << ns->nvme.block_shift;
	return set_limits(ns);
}

bool spw_vfio__has_changed(const struct spw_vfio_namespace *ns)
{
	struct spw_nvme_namespace now = {0};
	uint8_t data[SPW_NVME_IDENTIFY_BYTES] = {0};
	int status = ask_for_namespace(ns, data);

	if (status)
		return status > 0;
	/* A namespace that has grown is still the same. */
	return spw_nvme__decode_namespace(data, &now) || now.block_shift != ns->nvme.block_shift ||
	       now.metadata_bytes != ns->nvme.metadata_bytes || now.protects != ns->nvme.protects ||
	       now.blocks < ns->nvme.blocks ||
	       memcmp(ns->unique, data + UNIQUE_AT, sizeof(ns->unique)) != 0;
}

/* Called with the lock held. */
static void forget_holding(struct holding *h)
{
	struct holding **at = &holdings;

	while (*at != h)
		at = &(*at)->next;
	*at = h->next;
	(void)pthread_cond_broadcast(&changed);
	free(h);
}

/* Close a controller without namespaces. Called with the lock held, released for the shutdown. */
static void close_controller_if_unused(struct holding *h)
{
	if (h->namespaces)
		return;
	/* From here on other threads wait. */
	h->changing = true;
	(void)pthread_mutex_unlock(&lock);
	spw_vfio__controller_close(h->controller);
	(void)pthread_mutex_lock(&lock);
	forget_holding(h);
}

/* Called with the lock held. */
static void add_namespace(struct holding *h, struct spw_vfio_namespace *ns)
{
	ns->holding = h;
	ns->next = h->namespaces;
	h->namespaces = ns;
}

static int open_controller(struct holding *h)
{
	struct spw_vfio_link *link;
	int ret = spw_vfio__link_open(h->address, &link);

	return ret ? ret : spw_vfio__controller_open(link, &h->controller);
}

/*
 * Find the holding of a controller. Called with the lock held. A stopped controller stays with its
 * users, but is not found: opening it again makes a new one. A holding of the parent process does
 * not change in a child of fork(2).
 */
static struct holding *present_holding(const char *address)
{
	struct holding *h = holdings;

	while (h) {
		bool is_it = strcmp(h->address, address) == 0;
		bool is_ours = h->process == getpid();

		if (is_it && is_ours && h->changing) {
			/* The list may have changed. */
			(void)pthread_cond_wait(&changed, &lock);
			h = holdings;
		} else if (is_it && (!is_ours || !spw_vfio__controller_error(h->controller))) {
			return h;
		} else {
			h = h->next;
		}
	}
	return NULL;
}

/* Find or open a controller. Called with the lock held, which is released while opening. */
static int find_holding(const char *address, struct holding **out)
{
	struct holding *h = present_holding(address);
	int ret;

	*out = h;
	if (h && h->process != getpid())
		return spw_error(-EBUSY,
				 "pci:%s: process %d had it open when this one was forked from it: "
				 "close it there before the fork, or start another program",
				 address, (int)h->process);
	if (h)
		return 0;
	h = calloc(1, sizeof(*h));
	if (!h)
		return spw_error(-ENOMEM, "pci:%s: no memory for it", address);
	(void)snprintf(h->address, sizeof(h->address), "%s", address);
	h->changing = true;
	h->process = getpid();
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

/* Called with the lock held. */
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
	if (ret == 0)
		add_namespace(h, ns);
	else
		close_controller_if_unused(h);
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

static int open_path(const char *path, bool exclusive, struct spw_vfio_namespace **out)
{
	struct spw_vfio_namespace *ns;
	struct spw_vfio_name name;
	int ret = spw_vfio__parse(path, &name);

	if (ret)
		return ret;
	ns = calloc(1, sizeof(*ns));
	if (!ns)
		return spw_error(-ENOMEM, "%s: no memory for it", path);
	ns->nvme.id = name.namespace_id;
	ns->exclusive = exclusive;
	spw_vfio__format(&name, ns->path);
	(void)pthread_mutex_lock(&lock);
	ret = open_namespace(ns, name.address);
	(void)pthread_mutex_unlock(&lock);
	if (ret)
		free(ns);
	else
		*out = ns;
	return ret;
}

/* Close a namespace that no queue uses, and shut down the controller after the last one. */
static void close_namespace(struct spw_vfio_namespace *ns)
{
	struct holding *h = ns->holding;
	struct range_lock *l;

	(void)pthread_mutex_lock(&lock);
	for (struct spw_vfio_namespace **at = &h->namespaces; *at; at = &(*at)->next) {
		if (*at != ns)
			continue;
		*at = ns->next;
		break;
	}
	close_controller_if_unused(h);
	(void)pthread_mutex_unlock(&lock);
	while ((l = ns->locks) != NULL) {
		ns->locks = l->next;
		free(l);
	}
	free(ns);
}

/* ---- Several at once ------------------------------------------------------------------------- */

struct spw_vfio_hold {
	struct spw_log log;
	unsigned count;
	struct held {
		const char *path;              /* to open */
		struct spw_vfio_namespace *ns; /* NULL: failed */
	} held[];
};

static void open_one(void *context, unsigned index)
{
	struct held *held = &((struct spw_vfio_hold *)context)->held[index];

	(void)open_path(held->path, false, &held->ns);
}

static void close_one(void *context, unsigned index)
{
	struct held *held = &((struct spw_vfio_hold *)context)->held[index];

	if (held->ns)
		close_namespace(held->ns);
}

struct spw_vfio_hold *spw_vfio__hold(const char *const paths[], unsigned count,
				     const struct spw_log *log)
{
	struct spw_vfio_hold *hold = calloc(1, sizeof(*hold) + count * sizeof(hold->held[0]));

	for (unsigned i = 0; hold && i < count; i++)
		if (spw_vfio__is_name(paths[i]))
			hold->held[hold->count++].path = paths[i];
	/* For a single one threads would gain nothing. */
	if (!hold || hold->count <= 1) {
		free(hold);
		return NULL;
	}
	if (log)
		hold->log = *log;
	spw_parallel(hold->count, "controllers are opened", open_one, hold, &hold->log);
	return hold;
}

struct spw_vfio_hold *spw_vfio__hold_open(struct spw_device *const devices[], unsigned count)
{
	struct spw_vfio_hold *hold = calloc(1, sizeof(*hold) + count * sizeof(hold->held[0]));

	(void)pthread_mutex_lock(&lock);
	for (unsigned i = 0; hold && i < count; i++) {
		const struct spw_vfio_namespace *of = devices[i] ? spw_vfio__of(devices[i]) : NULL;
		struct spw_vfio_namespace *ns = of ? malloc(sizeof(*ns)) : NULL;

		if (!ns)
			continue;
		*ns = *of;
		ns->locks = NULL;
		ns->exclusive = false;
		add_namespace(of->holding, ns);
		hold->log = devices[i]->log;
		hold->held[hold->count++].ns = ns;
	}
	(void)pthread_mutex_unlock(&lock);
	return hold;
}

void spw_vfio__let_go(struct spw_vfio_hold *hold)
{
	if (!hold)
		return;
	spw_parallel(hold->count, "controllers are closed", close_one, hold, &hold->log);
	free(hold);
}

/* ---- What it is ------------------------------------------------------------------------------ */

static void read_geometry(const struct spw_vfio_namespace *ns, struct spw_geometry *g)
{
	const struct spw_nvme_info *identity = &ns->controller->identity;

	*g = (struct spw_geometry){
		.size = sizeof(*g),
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
	(void)snprintf(g->transport, sizeof(g->transport), "pcie");
}

/* The namespace for answer_of_namespace(): engine/nvme/admin.h passes only descriptors. */
static _Thread_local struct spw_vfio_namespace *asked;

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
		ret = spw_vfio__admin(asked->controller, &command, data, cmd->data_len, NULL);
	else
		ret = spw_vfio__command(asked->controller, &command, data, cmd->data_len);
	if (ret >= 0)
		return ret;
	errno = -ret;
	return -1;
}

int spw_vfio__info(const char *path, struct spw_nvme_info *info)
{
	struct spw_vfio_namespace *ns;
	int ret = open_path(path, false, &ns);

	if (ret)
		return ret;
	asked = ns;
	ret = spw_nvme__ask_all(answer_of_namespace, -1, ns->path, info);
	asked = NULL;
	close_namespace(ns);
	return ret;
}

int spw_vfio__placements(struct spw_vfio_namespace *ns, uint16_t ids[SPW_NVME_PLACEMENTS_MAX])
{
	int ret;

	if (!ns->controller->identity.places_data)
		return 0;
	asked = ns;
	ret = spw_nvme__ask_placements(answer_of_namespace, -1, ns->path, ns->nvme.id, ids);
	asked = NULL;
	return ret;
}

/* ---- As a device ----------------------------------------------------------------------------- */

static int send(struct spw_vfio_namespace *ns, const char *what,
		const union spw_vfio_command *command, void *data, uint32_t len_bytes)
{
	return refused(ns, what, ask(ns, false, command, data, len_bytes));
}

/* Split a range into commands of at most @step_bytes, whole blocks. @buf: NULL: without data. */
static int send_each(struct spw_vfio_namespace *ns, const char *what, uint8_t opcode, char *buf,
		     uint64_t len_bytes, uint64_t offset_bytes, uint64_t step_bytes)
{
	int ret = 0;

	step_bytes = SPW_MIN(step_bytes, ns->command_bytes_max);
	while (ret == 0 && len_bytes > 0) {
		uint32_t now = (uint32_t)SPW_MIN(len_bytes, step_bytes);
		uint64_t first = offset_bytes >> ns->nvme.block_shift;
		union spw_vfio_command command = {
			.opcode = opcode,
			.nsid = ns->nvme.id,
			.cdw10 = (uint32_t)first,
			.cdw11 = (uint32_t)(first >> 32),
			.cdw12 = (now >> ns->nvme.block_shift) - 1,
		};

		if (ns->nvme.protects) {
			/* Write Zeroes has no tags to be checked. */
			command.cdw12 |= SPW_NVME_MAKE_TAGS | (buf ? SPW_NVME_CHECK_TAGS : 0);
			command.cdw14 = spw_nvme__reference_tag(first);
		}
		ret = send(ns, what, &command, buf, buf ? now : 0);
		buf += buf ? now : 0;
		len_bytes -= now;
		offset_bytes += now;
	}
	return ret;
}

static int vfio_transfer(const struct spw_device *device, enum spw_op op, void *buf, size_t len,
			 uint64_t offset_bytes)
{
	return send_each(device->state, op == SPW_READ ? "read" : "write",
			 op == SPW_READ ? SPW_NVME_READ : SPW_NVME_WRITE, buf, len, offset_bytes,
			 SPW_VFIO_COPY_BYTES);
}

static int vfio_sync(const struct spw_device *device)
{
	struct spw_vfio_namespace *ns = device->state;
	union spw_vfio_command command = {.opcode = SPW_NVME_FLUSH, .nsid = ns->nvme.id};

	return send(ns, "flush", &command, NULL, 0);
}

static int vfio_discard(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes)
{
	struct spw_vfio_namespace *ns = device->state;
	int ret = 0;

	for (uint64_t now; ret == 0 && len_bytes > 0; len_bytes -= now, offset_bytes += now) {
		struct spw_nvme_range range;
		struct nvme_uring_cmd cmd;
		union spw_vfio_command command;

		now = SPW_MIN(len_bytes, ns->deallocate_bytes_max);
		spw_nvme__encode_deallocate(&cmd, &ns->nvme, offset_bytes, now, &range);
		command = (union spw_vfio_command){.opcode = cmd.opcode,
						   .nsid = cmd.nsid,
						   .cdw10 = cmd.cdw10,
						   .cdw11 = cmd.cdw11};
		ret = send(ns, "deallocation", &command, &range, sizeof(range));
	}
	return ret;
}

static int vfio_write_zeroes(const struct spw_device *device, uint64_t offset_bytes,
			     uint64_t len_bytes)
{
	struct spw_vfio_namespace *ns = device->state;

	if (ns->zeroes_bytes_max == 0)
		return spw_error(-EOPNOTSUPP, "%s cannot write zeroes by itself", ns->path);
	return send_each(ns, "writing zeroes", SPW_VFIO_WRITE_ZEROES, NULL, len_bytes, offset_bytes,
			 ns->zeroes_bytes_max);
}

static uint64_t last_byte(uint64_t offset_bytes, uint64_t len_bytes)
{
	uint64_t last;

	return len_bytes == 0 || __builtin_add_overflow(offset_bytes, len_bytes - 1, &last)
		       ? UINT64_MAX
		       : last;
}

static int add_lock(struct spw_vfio_namespace *ns, uint64_t first, uint64_t last)
{
	struct range_lock *l = calloc(1, sizeof(*l));

	if (!l)
		return spw_error(-ENOMEM, "no memory for a lock");
	*l = (struct range_lock){.next = ns->locks, .first = first, .last = last};
	ns->locks = l;
	return 0;
}

static bool is_locked(const struct spw_vfio_namespace *ns, uint64_t first, uint64_t last)
{
	for (const struct range_lock *l = ns->locks; l; l = l->next)
		if (l->first <= last && first <= l->last)
			return true;
	return false;
}

static int vfio_lock(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes)
{
	struct spw_vfio_namespace *ns = device->state;
	uint64_t last = last_byte(offset_bytes, len_bytes);
	int ret = 0;

	(void)pthread_mutex_lock(&lock);
	for (const struct spw_vfio_namespace *o = ns->holding->namespaces; o && !ret; o = o->next)
		if (o != ns && o->nvme.id == ns->nvme.id && is_locked(o, offset_bytes, last))
			ret = spw_error(-EBUSY,
					"%s: bytes %llu to %llu are locked by another opener of "
					"this process",
					ns->path, (unsigned long long)offset_bytes,
					(unsigned long long)last);
	if (ret == 0)
		ret = add_lock(ns, offset_bytes, last);
	(void)pthread_mutex_unlock(&lock);
	return ret;
}

/* Unlock a range; parts of locks outside the range stay locked. */
static int vfio_unlock(const struct spw_device *device, uint64_t offset_bytes, uint64_t len_bytes)
{
	struct spw_vfio_namespace *ns = device->state;
	uint64_t last = last_byte(offset_bytes, len_bytes);
	struct range_lock **at, *l;
	int ret = 0;

	(void)pthread_mutex_lock(&lock);
	for (at = &ns->locks; (l = *at) != NULL && ret == 0;) {
		bool has_begin = l->first<offset_bytes, has_end = l->last> last;

		if (l->first > last || l->last < offset_bytes) {
			at = &l->next;
		} else if (has_begin && has_end) {
			ret = add_lock(ns, last + 1, l->last);
			if (ret == 0)
				l->last = offset_bytes - 1;
		} else if (has_begin) {
			l->last = offset_bytes - 1;
		} else if (has_end) {
			l->first = last + 1;
		} else {
			*at = l->next;
			free(l);
		}
	}
	(void)pthread_mutex_unlock(&lock);
	return ret;
}

static void vfio_close(struct spw_device *device)
{
	if (device->state)
		close_namespace(device->state);
}

static const struct spw_device_ops vfio_ops = {
	.transfer_blocking = vfio_transfer,
	.sync = vfio_sync,
	.discard = vfio_discard,
	.write_zeroes = vfio_write_zeroes,
	.lock = vfio_lock,
	.unlock = vfio_unlock,
	.close = vfio_close,
};

int spw_vfio__device_open(struct spw_device *device, bool exclusive)
{
	struct spw_vfio_namespace *ns;
	int ret = open_path(device->path, exclusive, &ns);

	if (ret)
		return ret;
	device->ops = &vfio_ops;
	device->state = ns;
	read_geometry(ns, &device->geometry);
	(void)snprintf(device->transport.name, sizeof(device->transport.name), "pcie");
	(void)snprintf(device->transport.address, sizeof(device->transport.address), "%s",
		       ns->controller->link->address);
	log_opened(&device->log, ns);
	return 0;
}
