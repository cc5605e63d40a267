/* SPDX-License-Identifier: MIT */
/* engine/nvme/admin.c - admin commands: Identify, Get Log Page, I/O Management Receive */
#include "engine/nvme/admin.h"

#include <errno.h>
#include <sys/ioctl.h>

#include "util/util.h"

#define ALL_NAMESPACES UINT32_MAX

#define MANAGEMENT_RUH_STATUS 1u

int spw_nvme__system_ioctl(int fd, unsigned long request, void *argument)
{
	return ioctl(fd, request, argument);
}

/* Report a failed command. @status: a positive status of the drive, or -1 and errno. */
static int refusal(const char *path, const char *what, int status)
{
	if (status > 0)
		return spw_error(spw_nvme__errno((uint32_t)status),
				 "%s: the drive refuses %s: %s (%03xh)", path, what,
				 spw_nvme_status_text((uint32_t)status), (unsigned)status & 0x7ffu);
	return spw_error_errno(-errno, "%s: %s cannot be asked for%s", path, what,
			       errno == EACCES || errno == EPERM
				       ? " without the right to send commands (run as root)"
				       : "");
}

static int identify(spw_nvme_ioctl *ask, int fd, const char *path, uint32_t cns,
		    uint32_t namespace_id, uint8_t *data)
{
	struct nvme_passthru_cmd cmd = {
		.opcode = SPW_NVME_IDENTIFY,
		.nsid = namespace_id,
		.addr = (uintptr_t)data,
		.data_len = SPW_NVME_IDENTIFY_BYTES,
		.cdw10 = cns,
	};
	int ret = ask(fd, NVME_IOCTL_ADMIN_CMD, &cmd);

	return ret ? refusal(path,
			     cns == SPW_NVME_IDENTIFY_CONTROLLER ? "its identity" : "its namespace",
			     ret)
		   : 0;
}

int spw_nvme__ask_namespace(spw_nvme_ioctl *ask, int fd, const char *path,
			    struct spw_nvme_namespace *ns)
{
	uint8_t data[SPW_NVME_IDENTIFY_BYTES] __attribute__((aligned(4096))) = {0};
	int ret = ask(fd, NVME_IOCTL_ID, NULL);

	if (ret <= 0)
		return spw_error_errno(ret < 0 ? -errno : -ENODEV, "%s does not tell its namespace",
				       path);
	ns->id = (uint32_t)ret;
	ret = identify(ask, fd, path, SPW_NVME_IDENTIFY_NAMESPACE, ns->id, data);
	if (ret)
		return ret;
	ret = spw_nvme__decode_namespace(data, ns);
	return ret ? spw_error(ret, "%s: the drive gives its namespace %u an impossible size", path,
			       ns->id)
		   : 0;
}

static int ask_health(spw_nvme_ioctl *ask, int fd, const char *path, struct spw_nvme_info *info)
{
	uint8_t data[SPW_NVME_HEALTH_BYTES] __attribute__((aligned(512))) = {0};
	struct nvme_passthru_cmd cmd = {
		.opcode = SPW_NVME_GET_LOG_PAGE,
		.nsid = ALL_NAMESPACES,
		.addr = (uintptr_t)data,
		.data_len = sizeof(data),
		.cdw10 = SPW_NVME_LOG_HEALTH | (uint32_t)(sizeof(data) / 4 - 1) << 16,
	};
	int ret = ask(fd, NVME_IOCTL_ADMIN_CMD, &cmd);

	if (ret)
		return refusal(path, "its health", ret);
	spw_nvme__decode_health(data, info);
	return 0;
}

int spw_nvme__ask_placements(spw_nvme_ioctl *ask, int fd, const char *path, uint32_t namespace_id,
			     uint16_t ids[SPW_NVME_PLACEMENTS_MAX])
{
	uint8_t data[SPW_NVME_PLACEMENTS_BYTES] __attribute__((aligned(4096))) = {0};
	struct nvme_passthru_cmd cmd = {
		.opcode = SPW_NVME_IO_MANAGEMENT_RECEIVE,
		.nsid = namespace_id,
		.addr = (uintptr_t)data,
		.data_len = sizeof(data),
		.cdw10 = MANAGEMENT_RUH_STATUS,
		.cdw11 = (uint32_t)(sizeof(data) / 4 - 1),
	};
	int ret = ask(fd, NVME_IOCTL_IO_CMD, &cmd);

	if (ret > 0 && ((uint32_t)ret & SPW_NVME_STATUS_CODE) == SPW_NVME_FDP_DISABLED)
		return 0;
	return ret ? refusal(path, "its placement handles", ret)
		   : (int)spw_nvme__decode_placements(data, sizeof(data), ids);
}

int spw_nvme__find_placements(spw_nvme_ioctl *ask, int fd, const char *path, uint32_t namespace_id,
			      uint16_t ids[SPW_NVME_PLACEMENTS_MAX])
{
	uint8_t data[SPW_NVME_IDENTIFY_BYTES] __attribute__((aligned(4096))) = {0};
	struct spw_nvme_info info = {.size = sizeof(info)};
	int ret = identify(ask, fd, path, SPW_NVME_IDENTIFY_CONTROLLER, 0, data);

	if (ret)
		return ret;
	spw_nvme__decode_controller(data, &info);
	return info.places_data ? spw_nvme__ask_placements(ask, fd, path, namespace_id, ids) : 0;
}

static int ask_about_namespace(spw_nvme_ioctl *ask, int fd, const char *path,
			       struct spw_nvme_info *info)
{
	uint16_t ids[SPW_NVME_PLACEMENTS_MAX];
	struct spw_nvme_namespace ns = {0};
	int ret = spw_nvme__ask_namespace(ask, fd, path, &ns);

	if (ret)
		return ret;
	info->namespace_id = ns.id;
	info->block_bytes = 1u << ns.block_shift;
	info->metadata_bytes = ns.metadata_bytes;
	info->namespace_bytes = ns.blocks << ns.block_shift;
	info->namespace_used_bytes = ns.used_blocks << ns.block_shift;
	info->protection_type = ns.protection_type;
	if (!info->places_data)
		return 0;
	ret = spw_nvme__ask_placements(ask, fd, path, ns.id, ids);
	/* A drive that refuses this command still answers the others. */
	if (ret > 0)
		info->placement_handles = (uint32_t)ret;
	return 0;
}

int spw_nvme__ask_all(spw_nvme_ioctl *ask, int fd, const char *path, struct spw_nvme_info *info)
{
	uint8_t data[SPW_NVME_IDENTIFY_BYTES] __attribute__((aligned(4096))) = {0};
	int ret = identify(ask, fd, path, SPW_NVME_IDENTIFY_CONTROLLER, 0, data);

	if (ret)
		return ret;
	spw_nvme__decode_controller(data, info);
	/* Not for a controller's own node, which has no namespace. */
	if (ask(fd, NVME_IOCTL_ID, NULL) > 0)
		ret = ask_about_namespace(ask, fd, path, info);
	return ret ? ret : ask_health(ask, fd, path, info);
}
