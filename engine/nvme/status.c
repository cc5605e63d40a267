/* SPDX-License-Identifier: MIT */
/* engine/nvme/status.c - names and errnos of NVMe status codes */
#include <errno.h>

#include "engine/backend.h"
#include "engine/nvme/command.h"
#include "util/util.h"

struct status {
	uint16_t code;
	uint16_t error;
	const char *name;
};

/* Sorted by code. The errno is the kernel block layer's, for the same result by passthrough. */
static const struct status statuses[] = {
	/* Generic */
	{0x000, 0, "Successful Completion"},
	{0x001, EOPNOTSUPP, "Invalid Command Opcode"},
	{0x002, EOPNOTSUPP, "Invalid Field in Command"},
	{0x003, EIO, "Command ID Conflict"},
	{0x004, EIO, "Data Transfer Error"},
	{0x005, EIO, "Commands Aborted due to Power Loss Notification"},
	{0x006, EIO, "Internal Error"},
	{0x007, EIO, "Command Abort Requested"},
	{0x008, EIO, "Command Aborted due to SQ Deletion"},
	{0x009, EIO, "Command Aborted due to Failed Fused Command"},
	{0x00a, EIO, "Command Aborted due to Missing Fused Command"},
	{0x00b, EOPNOTSUPP, "Invalid Namespace or Format"},
	{0x00c, EIO, "Command Sequence Error"},
	{0x00d, EIO, "Invalid SGL Segment Descriptor"},
	{0x00e, EIO, "Invalid Number of SGL Descriptors"},
	{0x00f, EIO, "Data SGL Length Invalid"},
	{0x010, EIO, "Metadata SGL Length Invalid"},
	{0x011, EIO, "SGL Descriptor Type Invalid"},
	{0x012, EIO, "Invalid Use of Controller Memory Buffer"},
	{0x013, EIO, "PRP Offset Invalid"},
	{0x014, EIO, "Atomic Write Unit Exceeded"},
	{0x015, EACCES, "Operation Denied"},
	{0x016, EIO, "SGL Offset Invalid"},
	{0x018, EIO, "Host Identifier Inconsistent Format"},
	{0x019, EIO, "Keep Alive Timer Expired"},
	{0x01a, EIO, "Keep Alive Timeout Invalid"},
	{0x01b, EIO, "Command Aborted due to Preempt and Abort"},
	{0x01c, EIO, "Sanitize Failed"},
	{0x01d, EBUSY, "Sanitize In Progress"},
	{0x01e, EIO, "SGL Data Block Granularity Invalid"},
	{0x01f, EOPNOTSUPP, "Command Not Supported for Queue in CMB"},
	{0x020, EROFS, "Namespace is Write Protected"},
	{0x021, EREMOTEIO, "Command Interrupted"},
	{0x022, EIO, "Transient Transport Error"},
	{0x023, EACCES, "Command Prohibited by Command and Feature Lockdown"},
	{0x024, EIO, "Admin Command Media Not Ready"},
	{0x029, EINVAL, "FDP Disabled"},
	{0x02a, EINVAL, "Invalid Placement Handle List"},
	{0x080, EREMOTEIO, "LBA Out of Range"},
	{0x081, ENOSPC, "Capacity Exceeded"},
	{0x082, EREMOTEIO, "Namespace Not Ready"},
	{0x083, EBADE, "Reservation Conflict"},
	{0x084, EBUSY, "Format In Progress"},
	/* Command specific */
	{0x100, EIO, "Completion Queue Invalid"},
	{0x101, EIO, "Invalid Queue Identifier"},
	{0x102, EIO, "Invalid Queue Size"},
	{0x103, EIO, "Abort Command Limit Exceeded"},
	{0x109, EINVAL, "Invalid Log Page"},
	{0x10a, EINVAL, "Invalid Format"},
	{0x116, EACCES, "Namespace Is Private"},
	{0x118, ENODEV, "Namespace Is Attached Elsewhere"},
	{0x11a, ENODEV, "Namespace Not Attached"},
	{0x17f, EOPNOTSUPP, "I/O Command Set Not Supported"},
	{0x180, EOPNOTSUPP, "Conflicting Attributes"},
	{0x181, EILSEQ, "Invalid Protection Information"},
	{0x182, ENODATA, "Attempted Write to Read Only Range"},
	{0x183, EINVAL, "Command Size Limit Exceeded"},
	/* Media and data integrity */
	{0x280, ENODATA, "Write Fault"},
	{0x281, ENODATA, "Unrecovered Read Error"},
	{0x282, EILSEQ, "End-to-end Guard Check Error"},
	{0x283, EILSEQ, "End-to-end Application Tag Check Error"},
	{0x284, EILSEQ, "End-to-end Reference Tag Check Error"},
	{0x285, ENODATA, "Compare Failure"},
	{0x286, ENODATA, "Access Denied"},
	{0x287, ENODATA, "Deallocated or Unwritten Logical Block"},
	{0x288, EILSEQ, "End-to-End Storage Tag Check Error"},
	/* Path */
	{0x300, EIO, "Internal Path Error"},
	{0x301, EIO, "Asymmetric Access Persistent Loss"},
	{0x302, EIO, "Asymmetric Access Inaccessible"},
	{0x303, EIO, "Asymmetric Access Transition"},
	{0x360, EIO, "Controller Pathing Error"},
	{0x370, ENOLINK, "Host Pathing Error"},
	{0x371, EIO, "Command Aborted By Host"},
};

static const struct status *find(uint32_t status)
{
	uint32_t code = status & SPW_NVME_STATUS_CODE;

	for (size_t i = 0; i < SPW_ARRAY_LEN(statuses); i++)
		if (statuses[i].code == code)
			return &statuses[i];
	return NULL;
}

/* A status that is not in the table becomes -EIO. */
int spw_nvme__errno(uint32_t status)
{
	const struct status *found = find(status);

	return found ? -(int)found->error : -EIO;
}

int64_t spw_nvme__part_result(struct spw_queue *q, const struct spw_part *part, uint32_t status,
			      uint32_t bytes)
{
	int error = spw_nvme__errno(status);

	/* Zero also where the bit More points to the Error Information log page. */
	if (error == 0)
		return bytes;
	if (!(status & SPW_NVME_STATUS_DNR) && part->retries < SPW_NVME_RETRIES_MAX)
		return -EAGAIN;
	q->drive_status = status & SPW_NVME_STATUS_CODE;
	return error;
}

const char *spw_nvme_status_text(uint32_t status)
{
	const struct status *found = find(status);

	if (found)
		return found->name;
	/* Vendor specific are the codes from C0h on of every type, and all of type 7. */
	return (status & SPW_NVME_STATUS_CODE) >= 0x700 || (status & 0xff) >= 0xc0
		       ? "vendor specific"
		       : "unknown status";
}
