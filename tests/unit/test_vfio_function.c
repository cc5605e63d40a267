/* SPDX-License-Identifier: MIT */
/* tests/unit/test_vfio_function.c - vfio-pci by iommufd and by groups, on a kernel in memory */
/* link: util engine/vfio/domain engine/vfio/function engine/vfio/container */
/* link: engine/vfio/iommufd engine/vfio/space engine/vfio/system engine/vfio/name */
/* wrap: open close ioctl mmap pread pwrite fstat calloc eventfd opendir fopen readlink access */
#include "tests/unit/vfio_kernel.h"

#include "engine/vfio/link.h"

#define MEMORY_BYTES 65536u

static char memory[MEMORY_BYTES] __attribute__((aligned(4096)));
static const char *way; /* by which the kernel lets devices be reached */

static void have_only_groups(void)
{
	way = "group";
	drop(path_of("dev/iommu"));
}

static int start(void **state)
{
	way = "iommufd";
	return start_kernel(state);
}

static int start_with_groups(void **state)
{
	(void)start(state);
	have_only_groups();
	return 0;
}

#define FIXTURE_CASE(name) CASE_WITH(name, start, stop_kernel)
/* By iommufd, and with groups alone. */
#define EITHER_CASE(name)                                \
	CASE_ENTRY(name, start_with_groups, stop_kernel) \
	FIXTURE_CASE(name)

static struct spw_vfio_link *opened_by(const char *wanted, unsigned i)
{
	struct spw_vfio_link *link;

	assert_int_equal(spw_vfio__link_open(addresses[i], &link), 0);
	assert_string_equal(link->way, wanted);
	assert_int_equal(link->why_group[0] == '\0', strcmp(wanted, "iommufd") == 0);
	assert_true(reaches_memory(i));
	assert_false(masters_the_bus(i));
	return link;
}

static struct spw_vfio_link *opened(unsigned i)
{
	return opened_by(way, i);
}

/* What the kernel does from now on. */
static void refuse_path(const char *path, int error)
{
	kernel.refused = path;
	kernel.error = error;
}

static void refuse_request(unsigned long request, int error)
{
	kernel.refused_request = request;
	kernel.error = error;
}

static void assert_refused(unsigned i, int error, const char *words)
{
	struct spw_vfio_link *link;

	assert_int_equal(spw_vfio__link_open(addresses[i], &link), error);
	if (!strstr(spw_last_error(), words))
		fail_msg("\"%s\" does not say \"%s\"", spw_last_error(), words);
}

static uint64_t mapped(struct spw_vfio_link *link, void *at, uint64_t len_bytes)
{
	uint64_t iova;

	assert_int_equal(link->ops->map(link, at, len_bytes, &iova), 0);
	return iova;
}

static void map_and_unmap(struct spw_vfio_link *link)
{
	(void)mapped(link, memory, 4096);
	link->ops->unmap(link, memory, 4096);
}

static struct space *space_of_device(unsigned i)
{
	int of = kernel.devices[i].attached >= 0 ? kernel.devices[i].attached
						 : kernel.devices[i].group_space;

	assert_true(of >= 0);
	return &kernel.spaces[of];
}

static uint32_t register_of(unsigned i)
{
	return read_node(i, 64);
}

/* ---- Life ---- */

EITHER_CASE(test_life)
{
	struct spw_vfio_link *link;
	uint64_t iova, one = 1;

	link = opened(0);
	assert_int_equal(link->numa_node, 1);
	iova = mapped(link, memory, MEMORY_BYTES);
	assert_int_equal(space_of_device(0)->mappings[0].iova, iova);
	assert_int_equal(link->ops->let_transfer(link), 0);
	assert_true(masters_the_bus(0));
	spw_vfio__set32(link, 64, 4711);
	assert_int_equal(register_of(0), 4711);
	assert_false(link->ops->is_wanted_back(link));
	assert_int_equal(write(kernel.devices[0].wants_back, &one, sizeof(one)), sizeof(one));
	assert_true(link->ops->is_wanted_back(link));
	link->ops->relax(link);
	link->ops->cut(link);
	assert_false(reaches_memory(0) || masters_the_bus(0) || kernel.devices[0].granted);
	/* It has no effect. */
	spw_vfio__set32(link, 64, 42);
	assert_int_equal(register_of(0), 4711);
	link->ops->cut(link);
	link->ops->unmap(link, memory, MEMORY_BYTES);
	link->ops->close(link);
}

EITHER_CASE(test_closed_without_being_cut)
{
	struct spw_vfio_link *link = opened(0);
	struct spw_vfio_memory own;

	assert_int_equal(spw_vfio__memory_alloc(link, 5000, &own), 0);
	assert_int_equal(own.len_bytes, 8192);
	assert_int_equal(space_of_device(0)->count, 1);
	spw_vfio__memory_free(link, &own);
	assert_int_equal(space_of_device(0)->count, 0);
	spw_vfio__memory_free(link, &own);
	link->ops->close(link);
}

/* ---- Which way ---- */

static void assert_by_group(const char *words)
{
	struct spw_vfio_link *link = opened_by("group", 0);

	if (!strstr(link->why_group, words))
		fail_msg("\"%s\" does not say \"%s\"", link->why_group, words);
	link->ops->close(link);
}

FIXTURE_CASE(test_what_leads_to_the_group)
{
	refuse_path("/dev/iommu", EACCES);
	assert_by_group("/dev/iommu cannot be opened: ");
	kernel.refused = "/dev/vfio/devices/";
	assert_by_group("/dev/vfio/devices/vfio0 cannot be opened: ");
	kernel.refused = NULL;
	refuse_request(SPW_IOMMUFD_ALLOC, ENOTTY);
	assert_by_group("gives no address space");
	kernel.refused_request = 0;
	put(file_of(0, "vfio-dev/vfio0/dev"), "511:0\n");
	assert_by_group("/dev/vfio/devices/vfio0 is not the node of that device");
	assert_int_equal(unlink(file_of(0, "vfio-dev/vfio0/dev")), 0);
	assert_by_group("the kernel shows no vfio device of it");
	assert_int_equal(rmdir(file_of(0, "vfio-dev/vfio0")), 0);
	/* So is a device without an IOMMU named. */
	put(file_of(0, "vfio-dev/noiommu-vfio0/dev"), "0:0\n");
	assert_by_group("the kernel shows no vfio device of it");
}

/*
 * What fails only once the node and a space are there: nothing was let transfer, so the group may
 * still have it.
 */
FIXTURE_CASE(test_what_leads_to_the_group_late)
{
	static const struct {
		unsigned long request;
		int error;
		const char *words;
	} cases[] = {
		{SPW_VFIO_BIND, EPERM, "iommufd.allow_unsafe_interrupts=1"},
		{SPW_VFIO_BIND, ENOTTY, "cannot be bound to /dev/iommu"},
		/* It is free; the kernel means something else. */
		{SPW_VFIO_BIND, EINVAL, "as when another process has it"},
		{SPW_VFIO_ATTACH, ENOTTY, "cannot share the address space"},
		{SPW_VFIO_ATTACH, EINVAL, "cannot share the address space"},
		{SPW_VFIO_ATTACH, EOPNOTSUPP, "cannot share the address space"},
		{SPW_VFIO_ATTACH, EPERM, "cannot share the address space"},
		{SPW_VFIO_ATTACH, EADDRINUSE, "open it before them"},
		{SPW_VFIO_ATTACH, ENOMEM, "all processes of this user"},
		{SPW_IOMMUFD_RANGES, EOPNOTSUPP, "does not tell its addresses"},
	};

	for (size_t i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		refuse_request(cases[i].request, cases[i].error);
		assert_by_group(cases[i].words);
	}
}

/* Those that iommufd has stay with it, and it takes the next as before. */
FIXTURE_CASE(test_one_of_two_by_its_group)
{
	struct spw_vfio_link *first = opened_by("iommufd", 0), *second;

	(void)mapped(first, memory, MEMORY_BYTES);
	refuse_request(SPW_VFIO_ATTACH, EADDRINUSE);
	second = opened_by("group", 1);
	assert_ptr_not_equal(space_of_device(0), space_of_device(1));
	assert_int_equal(space_of_device(0)->members, 1);
	(void)mapped(second, memory, MEMORY_BYTES);
	second->ops->unmap(second, memory, MEMORY_BYTES);
	assert_int_equal(space_of_device(0)->count, 1);
	second->ops->close(second);
	kernel.refused_request = 0;
	second = opened_by("iommufd", 1);
	assert_ptr_equal(space_of_device(0), space_of_device(1));
	second->ops->close(second);
	first->ops->unmap(first, memory, MEMORY_BYTES);
	first->ops->close(first);
}

/* Neither way works: the first error is told, unless the group knows who has it. */
FIXTURE_CASE(test_neither_way)
{
	refuse_path("/dev/vfio/11", EPERM);
	kernel.refused_request = SPW_VFIO_BIND;
	assert_refused(0, -EPERM, "iommufd.allow_unsafe_interrupts=1");
	kernel.error = ENODEV;
	assert_refused(0, -ENODEV, "cannot be bound to /dev/iommu");
	refuse_request(SPW_VFIO_ATTACH, ENOMEM);
	assert_refused(0, -ENOMEM, "ulimit -l");
	/* That the group is taken says nothing of what is wrong here. */
	kernel.refused = NULL;
	kernel.devices[0].other = BY_ANOTHER_DRIVER;
	refuse_request(SPW_VFIO_BIND, EPERM);
	assert_refused(0, -EPERM, "iommufd.allow_unsafe_interrupts=1");
}

/* Each has a space of its own then, and the same memory an address in both. */
FIXTURE_CASE(test_one_by_either_way)
{
	struct spw_vfio_link *first = opened_by("iommufd", 0), *second;

	refuse_path("/dev/vfio/devices/vfio1", EACCES);
	second = opened_by("group", 1);
	(void)mapped(first, memory, MEMORY_BYTES);
	(void)mapped(second, memory, MEMORY_BYTES);
	assert_int_equal(space_of_device(0)->count, 1);
	assert_int_equal(space_of_device(1)->count, 1);
	assert_ptr_not_equal(space_of_device(0), space_of_device(1));
	first->ops->unmap(first, memory, MEMORY_BYTES);
	assert_int_equal(space_of_device(1)->count, 1);
	first->ops->close(first);
	second->ops->unmap(second, memory, MEMORY_BYTES);
	second->ops->close(second);
}

FIXTURE_CASE(test_who_has_it)
{
	kernel.devices[0].other = BY_NODE;
	assert_refused(0, -EBUSY, "is in use by another process");
	kernel.devices[0].other = BY_GROUP;
	assert_refused(0, -EBUSY, "is in use by another process");
	kernel.devices[0].other = BY_ANOTHER_DRIVER;
	assert_refused(0, -EBUSY, "shares its IOMMU group 11 with devices that other drivers have");
	refuse_path("/dev/vfio/11", EACCES);
	assert_refused(0, -EBUSY, "when another process has it (see fuser /dev/vfio/devices/*)");
	kernel.refused = NULL;
	kernel.devices[0].other = NO_HOLDER;
}

FIXTURE_CASE(test_who_has_its_group)
{
	have_only_groups();
	kernel.devices[0].other = BY_NODE;
	assert_refused(0, -EBUSY, "is in use by another process");
	kernel.devices[0].other = BY_ANOTHER_DRIVER;
	assert_refused(0, -EBUSY, "shares its IOMMU group 11");
	kernel.devices[0].other = NO_HOLDER;
	refuse_request(VFIO_SET_IOMMU, EPERM);
	assert_refused(0, -EPERM, "vfio_iommu_type1.allow_unsafe_interrupts=1");
	refuse_request(VFIO_GROUP_SET_CONTAINER, EIO);
	assert_refused(0, -EIO, "its IOMMU group 11 cannot be used");
	refuse_request(VFIO_GROUP_GET_DEVICE_FD, ENODEV);
	assert_refused(0, -ENODEV, "cannot be opened");
}

/* ---- One space for all ---- */

EITHER_CASE(test_one_space_for_all)
{
	struct spw_vfio_link *links[DEVICES];
	uint64_t iova;

	for (unsigned i = 0; i < DEVICES; i++)
		links[i] = opened(i);
	assert_ptr_equal(space_of_device(0), space_of_device(1));
	assert_int_equal(space_of_device(0)->members, 2);
	iova = mapped(links[0], memory, MEMORY_BYTES);
	assert_int_equal(mapped(links[1], memory, MEMORY_BYTES), iova);
	assert_int_equal(kernel.mapped_count, 1);
	/* A part of it is another mapping. */
	assert_int_not_equal(mapped(links[1], memory, 4096), iova);
	links[1]->ops->unmap(links[1], memory, 4096);
	links[0]->ops->unmap(links[0], memory, MEMORY_BYTES);
	assert_int_equal(space_of_device(1)->count, 1);
	links[0]->ops->cut(links[0]);
	assert_int_equal(space_of_device(1)->count, 1);
	links[1]->ops->unmap(links[1], memory, MEMORY_BYTES);
	assert_int_equal(space_of_device(1)->count, 0);
	for (unsigned i = 0; i < DEVICES; i++)
		links[i]->ops->close(links[i]);
}

/* The first is cut with memory mapped when the second comes, which is unaffected. */
EITHER_CASE(test_after_the_last)
{
	struct spw_vfio_link *first, *second;

	first = opened(0);
	(void)mapped(first, memory, 4096);
	first->ops->cut(first);
	second = opened(1);
	(void)mapped(second, memory + 4096, 4096);
	(void)mapped(first, memory + 8192, 4096);
	first->ops->unmap(first, memory + 8192, 4096);
	first->ops->unmap(first, memory, 4096);
	assert_int_equal(space_of_device(1)->count, 1);
	first->ops->close(first);
	assert_int_equal(space_of_device(1)->count, 1);
	second->ops->unmap(second, memory + 4096, 4096);
	second->ops->close(second);
}

static int map_4_gib(struct spw_vfio_link *link)
{
	uint64_t iova;
	int ret = link->ops->map(link, memory, UINT64_C(1) << 32, &iova);

	if (ret == 0)
		link->ops->unmap(link, memory, UINT64_C(1) << 32);
	return ret;
}

/* Each device may take some addresses away from all. */
EITHER_CASE(test_addresses_of_all)
{
	struct spw_vfio_link *links[DEVICES];
	uint64_t iova;

	links[0] = opened(0);
	assert_int_equal(map_4_gib(links[0]), 0);
	/* One that cannot be asked does not join, and what the others have stays. */
	kernel.range_count = 1;
	kernel.error = EINVAL;
	if (strcmp(way, "group") == 0) {
		kernel.refused_request = VFIO_IOMMU_GET_INFO;
	} else {
		kernel.refused_request = SPW_IOMMUFD_RANGES;
		kernel.refused = "/dev/vfio/12"; /* nor does it join by its group */
	}
	assert_refused(1, -EINVAL, "does not tell its addresses");
	kernel.refused_request = 0;
	kernel.refused = NULL;
	assert_int_equal(space_of_device(0)->members, 1);
	kernel.range_count = 2;
	assert_int_equal(map_4_gib(links[0]), 0);
	kernel.range_count = 1;
	links[1] = opened(1);
	expect_refusal(-ENOMEM, "has no addresses left", map_4_gib(links[0]));
	iova = mapped(links[0], memory, 4096);
	assert_in_range(iova, 4096, 0xfedfffff);
	links[0]->ops->unmap(links[0], memory, 4096);
	for (unsigned i = 0; i < DEVICES; i++)
		links[i]->ops->close(links[i]);
}

EITHER_CASE(test_more_ranges_than_room)
{
	struct spw_vfio_link *link;

	kernel.range_count = SPW_ARRAY_LEN(kernel.ranges);
	for (uint64_t i = 0; i < kernel.range_count; i++)
		kernel.ranges[i] =
			(struct spw_iommufd_range){.first = i << 24, .last = (i << 24) + 0x3fffff};
	link = opened(0);
	map_and_unmap(link);
	link->ops->close(link);
}

/* ---- What is refused ---- */

EITHER_CASE(test_locked_memory)
{
	bool by_iommufd = strcmp(way, "iommufd") == 0;
	struct spw_vfio_link *link = opened(0);
	uint64_t iova;

	kernel.error = ENOMEM;
	kernel.refused_request =
		by_iommufd ? (unsigned long)SPW_IOMMUFD_MAP : (unsigned long)VFIO_IOMMU_MAP_DMA;
	expect_refusal(-ENOMEM, "ulimit -l", link->ops->map(link, memory, 4096, &iova));
	/* Not so in a process's own account. */
	assert_int_equal(strstr(spw_last_error(), "all processes of this user") != NULL,
			 by_iommufd);
	link->ops->close(link);
}

FIXTURE_CASE(test_what_cannot_be_driven)
{
	struct spw_vfio_link *link;

	assert_int_equal(spw_vfio__link_open("0000:3f:00.0", &link), -ENODEV);
	put_link(file_of(0, "driver"), "../../drivers/nvme");
	assert_refused(0, -ENODEV, "belongs to the kernel's driver nvme");
	drop(file_of(0, "driver"));
	assert_refused(0, -ENODEV, "has no driver");
	put(file_of(1, "class"), "0x020000\n");
	assert_refused(1, -ENODEV, "is not an NVMe controller");
	assert_int_equal(kernel.space_count, 0);
}

FIXTURE_CASE(test_without_an_iommu)
{
	put_link(file_of(0, "iommu_group"), "../../groups/none");
	assert_refused(0, -EOPNOTSUPP, "in no IOMMU group that vfio knows");
	drop(file_of(0, "iommu_group"));
	assert_refused(0, -EOPNOTSUPP, "has no IOMMU");
	have_only_groups();
	drop(path_of("dev/vfio/%u", FIRST_GROUP + 1));
	assert_refused(1, -ENOENT, "/dev/vfio/12 cannot be opened");
	put(path_of("dev/vfio/noiommu-0"), "");
	assert_refused(1, -EOPNOTSUPP, "is not driven without one");
}

/* ---- Every step fails once ---- */

static bool try_open(unsigned step)
{
	struct spw_vfio_link *link = NULL, *other = opened(1);
	int ret;

	kernel.steps = 0;
	kernel.failed = NULL;
	kernel.fails_at = step;
	kernel.error = EIO;
	ret = spw_vfio__link_open(addresses[0], &link);
	kernel.fails_at = 0;
	if (ret == 0) {
		assert_true(reaches_memory(0));
		map_and_unmap(link);
		link->ops->close(link);
	} else {
		assert_non_null(kernel.failed);
		assert_true(ret < 0 && spw_last_error()[0]);
	}
	assert_false(kernel.devices[0].granted || reaches_memory(0));
	/* The one that was there goes on. */
	assert_true(reaches_memory(1));
	map_and_unmap(other);
	other->ops->close(other);
	return kernel.failed != NULL;
}

EITHER_CASE(test_each_step_fails_once)
{
	unsigned step = 1;

	while (try_open(step)) {
		kernel.space_count = 0;
		step++;
	}
	printf("%s: %u steps\n", way, step - 1);
	assert_true(step > 10);
}

RUN_CASES(NULL, NULL)
