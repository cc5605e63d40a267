/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/vfio_kernel.h - a kernel with vfio-pci, groups, containers and /dev/iommu, for one
 * test program
 *
 * A folder of plain files is its sysfs and its /dev: registers and configuration of a controller
 * lie in the file that is its node. What the library asks for by open(2), ioctl(2) and close(2) is
 * checked against what the real kernel demands, and kept: who is bound and attached where, and what
 * is mapped. The test has `wrap:` lines for all below.
 */
#ifndef SPW_TESTS_VFIO_KERNEL_H
#define SPW_TESTS_VFIO_KERNEL_H

#include "tests/unit/tree.h"
#include "tests/wrap.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <sys/mman.h>

#include "engine/vfio/iommufd.h"
#include "tests/sweep/wrap_ioctl.h"

#define DEVICES      2u
#define SPACES       64u
#define MAPPINGS     8u
#define FDS          256
#define BAR_BYTES    0x4000u
#define CONFIG_BYTES 0x8000u /* where it begins in the node */
#define FIRST_GROUP  11u
#define FIRST_IOAS   100u

enum kind { CLOSED, IOMMU, CONTAINER, GROUP, DEVICE };
enum holder { NO_HOLDER, BY_NODE, BY_GROUP, BY_ANOTHER_DRIVER };

static struct kernel {
	struct {
		enum kind kind;
		unsigned of; /* device, or space */
	} fds[FDS];
	struct space {
		unsigned members; /* groups in a container, devices of an IOAS */
		unsigned count;
		struct {
			uint64_t iova, len;
		} mappings[MAPPINGS];
	} spaces[SPACES];
	unsigned space_count, mapped_count; /* the latter: times that memory was mapped */
	struct {
		bool granted;    /* a descriptor of it may be used */
		bool registers;  /* are mapped */
		int attached;    /* to this space; -1 */
		int group_space; /* its group is in this container; -1 */
		bool group_open;
		enum holder other; /* another process */
		int wants_back;    /* eventfd */
	} devices[DEVICES];
	struct spw_iommufd_range ranges[64];
	unsigned range_count;
	const char *refused; /* a path, or part of one; NULL */
	unsigned long refused_request;
	int error;                /* of what is refused */
	unsigned steps, fails_at; /* this step fails, counted from 1; 0: none */
	const char *failed;
} kernel;

static const char *const addresses[DEVICES] = {"0000:3d:00.0", "0000:3e:00.0"};

/* ---- Its files ---- */

static const char *file_of(unsigned i, const char *file)
{
	return path_of("sys/bus/pci/devices/%s/%s", addresses[i], file);
}

static const char *node_of(unsigned i)
{
	return path_of("dev/vfio/devices/vfio%u", i);
}

static void put_device(unsigned i)
{
	char text[64];

	put(file_of(i, "class"), "0x010802\n");
	put(file_of(i, "numa_node"), "1\n");
	put_link(file_of(i, "driver"), "../../drivers/vfio-pci");
	(void)snprintf(text, sizeof(text), "../../groups/%u", FIRST_GROUP + i);
	put_link(file_of(i, "iommu_group"), text);
	/* A plain file's number. */
	(void)snprintf(text, sizeof(text), "vfio-dev/vfio%u/dev", i);
	put(file_of(i, text), "0:0\n");
	put(path_of("dev/vfio/%u", FIRST_GROUP + i), "");
	put(node_of(i), "");
	assert_int_equal(truncate(node_of(i), CONFIG_BYTES + 4096), 0);
	kernel.devices[i].attached = kernel.devices[i].group_space = -1;
	kernel.devices[i].wants_back = -1;
}

static int start_kernel(void **state)
{
	(void)state;
	kernel = (struct kernel){.ranges = {{.first = 0, .last = 0xfedfffff},
					    {.first = 0xfef00000, .last = UINT64_MAX}},
				 .range_count = 2};
	begin_tree();
	for (unsigned i = 0; i < DEVICES; i++)
		put_device(i);
	put(path_of("dev/iommu"), "");
	put(path_of("dev/vfio/vfio"), "");
	return 0;
}

/* Nothing of it may be in use any more. */
static int stop_kernel(void **state)
{
	for (int fd = 0; fd < FDS; fd++)
		assert_int_equal(kernel.fds[fd].kind, CLOSED);
	for (unsigned i = 0; i < DEVICES; i++)
		assert_false(kernel.devices[i].granted || kernel.devices[i].registers);
	return remove_tree(state);
}

/* ---- Steps that fail ---- */

static bool fails(const char *what)
{
	if (++kernel.steps != kernel.fails_at)
		return false;
	kernel.failed = what;
	errno = kernel.error;
	return true;
}

static int refuse(int error)
{
	errno = error;
	return -1;
}

static bool is_of_kernel(const char *path)
{
	return strncmp(path, "/sys/bus/", 9) == 0 || strncmp(path, "/dev/vfio/", 10) == 0 ||
	       strcmp(path, "/dev/iommu") == 0;
}

static const char *real_place(const char *path)
{
	return is_of_kernel(path) ? path_of("%s", path + 1) : path;
}

/* The real one, unless it is its turn to fail. */
#define FAILING(type, name, parameters, is_due, failure, arguments)    \
	WRAP(type, name, parameters)                                   \
	{                                                              \
		return (is_due) ? (failure) : __real_##name arguments; \
	}

FAILING(ssize_t, readlink, (const char *path, char *buf, size_t len), false, -1,
	(real_place(path), buf, len))
FAILING(int, access, (const char *path, int mode), false, -1, (real_place(path), mode))
FAILING(DIR *, opendir, (const char *path), fails("opendir"), NULL, (real_place(path)))
FAILING(FILE *, fopen, (const char *path, const char *mode), is_of_kernel(path) && fails("fopen"),
	NULL, (real_place(path), mode))
FAILING(int, fstat, (int fd, struct stat *st), fails("fstat"), -1, (fd, st))
FAILING(void *, calloc, (size_t count, size_t size), fails("calloc"), NULL, (count, size))
FAILING(int, eventfd, (unsigned value, int flags), fails("eventfd"), -1, (value, flags))
FAILING(ssize_t, pread, (int fd, void *buf, size_t len, off_t at), fails("pread"), -1,
	(fd, buf, len, at))
FAILING(ssize_t, pwrite, (int fd, const void *buf, size_t len, off_t at), fails("pwrite"), -1,
	(fd, buf, len, at))

/* ---- Opening ---- */

static unsigned device_of(int fd)
{
	assert_int_equal(kernel.fds[fd].kind, DEVICE);
	return kernel.fds[fd].of;
}

static struct space *space_of(int fd, enum kind kind)
{
	assert_in_range(fd, 0, FDS - 1);
	assert_int_equal(kernel.fds[fd].kind, kind);
	return &kernel.spaces[kernel.fds[fd].of];
}

static int note(int fd, enum kind kind, unsigned of)
{
	assert_in_range(fd, 0, FDS - 1);
	assert_int_equal(kernel.fds[fd].kind, CLOSED);
	kernel.fds[fd].kind = kind;
	kernel.fds[fd].of = of;
	return fd;
}

int __real_open(const char *path, int flags, ...);

static int open_group_node(unsigned i, const char *real, int flags)
{
	assert_in_range(i, 0, DEVICES - 1);
	if (kernel.devices[i].group_open || kernel.devices[i].granted ||
	    kernel.devices[i].other == BY_NODE || kernel.devices[i].other == BY_GROUP)
		return refuse(EBUSY);
	kernel.devices[i].group_open = true;
	return note(__real_open(real, flags), GROUP, i);
}

WRAP(int, open, (const char *path, int flags, ...))
{
	const char *real;
	unsigned i;
	int end = 0;

	if (!is_of_kernel(path))
		return __real_open(path, flags);
	if (fails("open"))
		return -1;
	if (kernel.refused && strstr(path, kernel.refused))
		return refuse(kernel.error);
	real = real_place(path);
	if (__real_access(real, F_OK))
		return refuse(ENOENT);
	assert_int_equal(flags, O_RDWR | O_CLOEXEC);
	if (sscanf(path, "/dev/vfio/devices/vfio%u%n", &i, &end) == 1 && path[end] == '\0')
		return note(__real_open(real, flags), DEVICE, i);
	if (sscanf(path, "/dev/vfio/%u%n", &i, &end) == 1 && path[end] == '\0')
		return open_group_node(i - FIRST_GROUP, real, flags);
	assert_in_range(kernel.space_count, 0, SPACES - 1);
	kernel.spaces[kernel.space_count] = (struct space){0};
	return note(__real_open(real, flags), strcmp(path, "/dev/iommu") == 0 ? IOMMU : CONTAINER,
		    kernel.space_count++);
}

static uint32_t read_node(unsigned i, off_t at)
{
	int fd = __real_open(node_of(i), O_RDONLY | O_CLOEXEC);
	uint32_t value;

	assert_int_equal(__real_pread(fd, &value, sizeof(value), at), sizeof(value));
	assert_int_equal(close(fd), 0);
	return value;
}

static bool masters_the_bus(unsigned i)
{
	return read_node(i, CONFIG_BYTES + PCI_COMMAND) & PCI_COMMAND_MASTER;
}

static bool reaches_memory(unsigned i)
{
	return kernel.devices[i].attached >= 0 || kernel.devices[i].group_space >= 0;
}

static void detach(unsigned i)
{
	kernel.spaces[kernel.devices[i].attached].members--;
	kernel.devices[i].attached = -1;
}

static void close_device_fd(unsigned i)
{
	if (!kernel.devices[i].granted)
		return;
	/* Else the mapping would keep the device open. */
	assert_false(kernel.devices[i].registers);
	kernel.devices[i].granted = false;
	if (kernel.devices[i].attached >= 0)
		detach(i);
}

static void leave_container(unsigned i)
{
	struct space *space = &kernel.spaces[kernel.devices[i].group_space];

	kernel.devices[i].group_space = -1;
	if (--space->members == 0)
		space->count = 0;
}

WRAP(int, close, (int fd))
{
	enum kind kind = fd < FDS ? kernel.fds[fd].kind : CLOSED;
	unsigned of = fd < FDS ? kernel.fds[fd].of : 0;

	if (kind == DEVICE) {
		close_device_fd(of);
	} else if (kind == GROUP) {
		kernel.devices[of].group_open = false;
		if (kernel.devices[of].group_space >= 0)
			leave_container(of);
	}
	if (fd < FDS)
		kernel.fds[fd].kind = CLOSED;
	return __real_close(fd);
}

WRAP(void *, mmap, (void *at, size_t len, int protection, int flags, int fd, off_t offset))
{
	static void *registers[DEVICES];
	void *memory;

	if (fails("mmap"))
		return MAP_FAILED;
	memory = __real_mmap(at, len, protection, flags, fd, offset);
	for (unsigned i = 0; i < DEVICES && flags & MAP_FIXED; i++)
		kernel.devices[i].registers &= registers[i] != at;
	if (fd < 0 || kernel.fds[fd].kind != DEVICE)
		return memory;
	assert_true(kernel.devices[device_of(fd)].granted && len == BAR_BYTES);
	registers[device_of(fd)] = memory;
	kernel.devices[device_of(fd)].registers = true;
	return memory;
}

/* ---- Addresses ---- */

static int add_mapping(struct space *space, uint64_t iova, uint64_t len, const void *memory)
{
	bool inside = false;

	assert_true(len > 0 && iova % 4096 == 0 && len % 4096 == 0 &&
		    (uintptr_t)memory % 4096 == 0);
	for (unsigned i = 0; i < kernel.range_count; i++)
		inside |=
			iova >= kernel.ranges[i].first && iova + (len - 1) <= kernel.ranges[i].last;
	assert_true(inside);
	for (unsigned i = 0; i < space->count; i++)
		assert_true(iova + len <= space->mappings[i].iova ||
			    space->mappings[i].iova + space->mappings[i].len <= iova);
	assert_in_range(space->count, 0, MAPPINGS - 1);
	space->mappings[space->count].iova = iova;
	space->mappings[space->count++].len = len;
	kernel.mapped_count++;
	return 0;
}

static int remove_mapping(struct space *space, uint64_t iova, uint64_t len)
{
	for (unsigned i = 0; i < space->count; i++) {
		if (space->mappings[i].iova != iova || space->mappings[i].len != len)
			continue;
		space->mappings[i] = space->mappings[--space->count];
		return 0;
	}
	fail_msg("what is unmapped is not mapped: %llx", (unsigned long long)iova);
	return -1;
}

/* ---- Requests ---- */

static int ask_iommu(int fd, unsigned long request, void *argument)
{
	struct space *space = space_of(fd, IOMMU);
	unsigned ioas = FIRST_IOAS + kernel.fds[fd].of;

	if (request == SPW_IOMMUFD_ALLOC) {
		struct spw_iommufd_alloc *alloc = argument;

		assert_true(alloc->size_bytes == sizeof(*alloc) && alloc->flags == 0);
		alloc->ioas = ioas;
	} else if (request == SPW_IOMMUFD_RANGES) {
		struct spw_iommufd_ranges *ask = argument;
		unsigned room = ask->count;

		assert_true(ask->size_bytes == sizeof(*ask) && ask->ioas == ioas &&
			    ask->reserved == 0);
		ask->count = kernel.range_count;
		ask->align_bytes = 4096;
		memcpy((void *)(uintptr_t)ask->ranges, kernel.ranges,
		       (room < kernel.range_count ? room : kernel.range_count) *
			       sizeof(kernel.ranges[0]));
		return room < kernel.range_count ? refuse(EMSGSIZE) : 0;
	} else if (request == SPW_IOMMUFD_MAP) {
		struct spw_iommufd_map *map = argument;

		assert_true(map->size_bytes == sizeof(*map) && map->ioas == ioas &&
			    map->reserved == 0);
		assert_int_equal(map->flags, SPW_IOMMUFD_MAP_FIXED | SPW_IOMMUFD_MAP_READABLE |
						     SPW_IOMMUFD_MAP_WRITABLE);
		return add_mapping(space, map->iova, map->len_bytes,
				   (void *)(uintptr_t)map->memory);
	} else {
		struct spw_iommufd_unmap *unmap = argument;

		assert_int_equal(request, SPW_IOMMUFD_UNMAP);
		assert_true(unmap->size_bytes == sizeof(*unmap) && unmap->ioas == ioas);
		return remove_mapping(space, unmap->iova, unmap->len_bytes);
	}
	return 0;
}

static void tell_ranges(struct vfio_iommu_type1_info *info)
{
	struct vfio_iommu_type1_info_cap_iova_range *cap = (void *)(info + 1);
	size_t len =
		sizeof(*info) + sizeof(*cap) + kernel.range_count * sizeof(cap->iova_ranges[0]);

	assert_true(info->argsz >= len);
	info->flags = VFIO_IOMMU_INFO_CAPS;
	info->cap_offset = sizeof(*info);
	info->argsz = (uint32_t)len;
	cap->header.id = VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE;
	cap->header.next = 0;
	cap->nr_iovas = kernel.range_count;
	memcpy(cap->iova_ranges, kernel.ranges, kernel.range_count * sizeof(kernel.ranges[0]));
}

static int ask_container(int fd, unsigned long request, void *argument)
{
	struct vfio_iommu_type1_dma_unmap *unmap = argument;
	struct vfio_iommu_type1_dma_map *map = argument;
	struct space *space = space_of(fd, CONTAINER);

	switch (request) {
	case VFIO_GET_API_VERSION: return VFIO_API_VERSION;
	case VFIO_CHECK_EXTENSION: return 1;
	case VFIO_SET_IOMMU: assert_int_equal(space->members, 1); return 0;
	case VFIO_IOMMU_GET_INFO: tell_ranges(argument); return 0;
	case VFIO_IOMMU_MAP_DMA:
		assert_true(space->members > 0);
		return add_mapping(space, map->iova, map->size, (void *)(uintptr_t)map->vaddr);
	case VFIO_IOMMU_UNMAP_DMA:
		assert_true(space->members > 0);
		return remove_mapping(space, unmap->iova, unmap->size);
	default: fail_msg("a container is asked for %lx", request); return -1;
	}
}

static int ask_group(int fd, unsigned long request, void *argument)
{
	unsigned i = kernel.fds[fd].of;
	struct vfio_group_status *status = argument;
	int container;

	switch (request) {
	case VFIO_GROUP_GET_STATUS:
		status->flags =
			kernel.devices[i].other == BY_ANOTHER_DRIVER ? 0 : VFIO_GROUP_FLAGS_VIABLE;
		return 0;
	case VFIO_GROUP_SET_CONTAINER:
		container = *(int *)argument;
		space_of(container, CONTAINER)->members++;
		kernel.devices[i].group_space = (int)kernel.fds[container].of;
		return 0;
	case VFIO_GROUP_UNSET_CONTAINER:
		assert_false(kernel.devices[i].granted);
		leave_container(i);
		return 0;
	case VFIO_GROUP_GET_DEVICE_FD:
		assert_string_equal(argument, addresses[i]);
		assert_true(kernel.devices[i].group_space >= 0);
		kernel.devices[i].granted = true;
		return note(__real_open(node_of(i), O_RDWR | O_CLOEXEC), DEVICE, i);
	default: fail_msg("a group is asked for %lx", request); return -1;
	}
}

static int bind_device_fd(unsigned i, const struct spw_vfio_bind *bind)
{
	assert_true(bind->size_bytes == sizeof(*bind) && bind->flags == 0);
	(void)space_of(bind->iommufd, IOMMU);
	if (kernel.devices[i].granted || kernel.devices[i].other == BY_NODE)
		return refuse(EINVAL);
	if (kernel.devices[i].group_open || kernel.devices[i].other != NO_HOLDER)
		return refuse(EBUSY);
	kernel.devices[i].granted = true;
	return 0;
}

static int tell_region(struct vfio_region_info *info)
{
	bool registers = info->index == VFIO_PCI_BAR0_REGION_INDEX;

	assert_true(registers || info->index == VFIO_PCI_CONFIG_REGION_INDEX);
	info->flags = registers ? VFIO_REGION_INFO_FLAG_MMAP : 0;
	info->size = registers ? BAR_BYTES : 4096;
	info->offset = registers ? 0 : CONFIG_BYTES;
	return 0;
}

static int ask_device(int fd, unsigned long request, void *argument)
{
	unsigned i = device_of(fd);
	struct spw_vfio_attach *attach = argument;
	struct vfio_irq_set *set = argument;

	if (request == SPW_VFIO_BIND)
		return bind_device_fd(i, argument);
	assert_true(kernel.devices[i].granted);
	switch (request) {
	case SPW_VFIO_ATTACH:
		assert_true(attach->size_bytes == sizeof(*attach) && attach->flags == 0 &&
			    attach->ioas >= FIRST_IOAS);
		assert_int_equal(kernel.devices[i].attached, -1);
		kernel.devices[i].attached = (int)(attach->ioas - FIRST_IOAS);
		kernel.spaces[attach->ioas - FIRST_IOAS].members++;
		return 0;
	case SPW_VFIO_DETACH:
		/* Else what it is at would become a fault. */
		assert_false(masters_the_bus(i));
		detach(i);
		return 0;
	case VFIO_DEVICE_GET_REGION_INFO: return tell_region(argument);
	case VFIO_DEVICE_SET_IRQS:
		assert_int_equal(set->index, VFIO_PCI_REQ_IRQ_INDEX);
		memcpy(&kernel.devices[i].wants_back, set->data, sizeof(int));
		return 0;
	default: fail_msg("a device is asked for %lx", request); return -1;
	}
}

static int answer_ioctl(int fd, unsigned long request, void *argument)
{
	assert_in_range(fd, 0, FDS - 1);
	if (fails("ioctl"))
		return -1;
	if (kernel.refused_request == request)
		return refuse(kernel.error);
	switch (kernel.fds[fd].kind) {
	case IOMMU: return ask_iommu(fd, request, argument);
	case CONTAINER: return ask_container(fd, request, argument);
	case GROUP: return ask_group(fd, request, argument);
	case DEVICE: return ask_device(fd, request, argument);
	default: fail_msg("what is not open is asked for %lx", request); return -1;
	}
}

#endif
