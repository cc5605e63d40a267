/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_vfio_function.c - controllers behind vfio-pci by iommufd and by their groups,
 * with a kernel in memory
 */
/* link: util engine/vfio/domain engine/vfio/function engine/vfio/container */
/* link: engine/vfio/iommufd engine/vfio/space */
/* wrap: open close ioctl mmap pread pwrite fstat calloc eventfd opendir fopen readlink access */
#include "tests/unit/vfio_kernel.h"

#include "engine/vfio/link.h"

#define MEMORY_BYTES 65536u

static char memory[MEMORY_BYTES] __attribute__((aligned(4096)));
static const char *const ways[] = {"iommufd", "group"};

/* From now on, until the end of the test. */
static void have_only(const char *way)
{
	char path[PATH_MAX];

	if (strcmp(way, "group") == 0)
		assert_int_equal(unlink(place(path, "/dev/iommu")), 0);
}

static struct spw_vfio_link *opened(unsigned i, const char *way)
{
	struct spw_vfio_link *link;

	assert_int_equal(spw_vfio_link_open(addresses[i], &link), 0);
	assert_string_equal(link->way, way);
	assert_int_equal(link->why_group[0] == '\0', strcmp(way, "iommufd") == 0);
	assert_true(reaches_memory(i));
	assert_false(masters_the_bus(i));
	return link;
}

static void assert_refused(unsigned i, int error, const char *words)
{
	struct spw_vfio_link *link;

	assert_int_equal(spw_vfio_link_open(addresses[i], &link), error);
	if (!strstr(spw_last_error(), words))
		fail_msg("\"%s\" does not say \"%s\"", spw_last_error(), words);
}

static uint64_t mapped(struct spw_vfio_link *link, void *at, uint64_t len_bytes)
{
	uint64_t iova;

	assert_int_equal(link->ops->map(link, at, len_bytes, &iova), 0);
	return iova;
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
	char path[PATH_MAX];
	uint32_t value;
	int fd = __real_open(place(path, "/dev/vfio/devices/vfio%u", i), O_RDONLY | O_CLOEXEC);

	assert_int_equal(__real_pread(fd, &value, sizeof(value), 64), sizeof(value));
	assert_int_equal(__real_close(fd), 0);
	return value;
}

/* ---- Life ---- */

static void live(const char *way)
{
	struct spw_vfio_link *link;
	uint64_t iova, one = 1;

	have_only(way);
	link = opened(0, way);
	assert_int_equal(link->numa_node, 1);
	iova = mapped(link, memory, MEMORY_BYTES);
	assert_int_equal(space_of_device(0)->mappings[0].iova, iova);
	assert_int_equal(link->ops->let_transfer(link), 0);
	assert_true(masters_the_bus(0));
	spw_vfio_set32(link, 64, 4711);
	assert_int_equal(register_of(0), 4711);
	assert_false(link->ops->is_wanted_back(link));
	assert_int_equal(write(kernel.devices[0].wants_back, &one, sizeof(one)), sizeof(one));
	assert_true(link->ops->is_wanted_back(link));
	link->ops->relax(link);
	link->ops->cut(link);
	assert_false(reaches_memory(0) || masters_the_bus(0) || kernel.devices[0].granted);
	/* Nobody hears of it. */
	spw_vfio_set32(link, 64, 42);
	assert_int_equal(register_of(0), 4711);
	link->ops->cut(link);
	link->ops->unmap(link, memory, MEMORY_BYTES);
	link->ops->close(link);
}

static void test_life_by_iommufd(void **state)
{
	(void)state;
	live("iommufd");
}

static void test_life_by_group(void **state)
{
	(void)state;
	live("group");
}

static void test_closed_without_being_cut(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct spw_vfio_memory own;
		struct spw_vfio_link *link;

		have_only(ways[i]);
		link = opened(0, ways[i]);
		assert_int_equal(spw_vfio_memory_alloc(link, 5000, &own), 0);
		assert_int_equal(own.len_bytes, 8192);
		assert_int_equal(space_of_device(0)->count, 1);
		spw_vfio_memory_free(link, &own);
		assert_int_equal(space_of_device(0)->count, 0);
		spw_vfio_memory_free(link, &own);
		link->ops->close(link);
	}
}

/* ---- Which way ---- */

static void assert_by_group(const char *words)
{
	struct spw_vfio_link *link = opened(0, "group");

	if (!strstr(link->why_group, words))
		fail_msg("\"%s\" does not say \"%s\"", link->why_group, words);
	link->ops->close(link);
}

static void test_what_leads_to_the_group(void **state)
{
	char path[PATH_MAX];

	(void)state;
	kernel.error = EACCES;
	kernel.refused = "/dev/iommu";
	assert_by_group("/dev/iommu cannot be opened: ");
	kernel.refused = "/dev/vfio/devices/";
	assert_by_group("/dev/vfio/devices/vfio0 cannot be opened: ");
	kernel.refused = NULL;
	kernel.error = ENOTTY;
	kernel.refused_request = SPW_IOMMUFD_ALLOC;
	assert_by_group("gives no address space");
	kernel.refused_request = 0;
	put(place(path, "/sys/bus/pci/devices/%s/vfio-dev/vfio0/dev", addresses[0]), "511:0\n");
	assert_by_group("/dev/vfio/devices/vfio0 is not the node of that device");
	assert_int_equal(unlink(path), 0);
	assert_by_group("is not the node of that device");
	assert_int_equal(rmdir(place(path, "/sys/bus/pci/devices/%s/vfio-dev/vfio0", addresses[0])),
			 0);
	/* So is a device without an IOMMU named. */
	put(place(path, "/sys/bus/pci/devices/%s/vfio-dev/noiommu-vfio0/dev", addresses[0]),
	    "0:0\n");
	assert_by_group("the kernel shows no vfio device of it");
}

/*
 * What fails only once the node and a space are there: nothing was let transfer, so the group may
 * still have it.
 */
static void test_what_leads_to_the_group_late(void **state)
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

	(void)state;
	for (size_t i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		kernel.refused_request = cases[i].request;
		kernel.error = cases[i].error;
		assert_by_group(cases[i].words);
	}
}

/* Those that iommufd has stay with it, and it takes the next as before. */
static void test_one_of_two_by_its_group(void **state)
{
	struct spw_vfio_link *first = opened(0, "iommufd"), *second;

	(void)state;
	(void)mapped(first, memory, MEMORY_BYTES);
	kernel.refused_request = SPW_VFIO_ATTACH;
	kernel.error = EADDRINUSE;
	second = opened(1, "group");
	assert_ptr_not_equal(space_of_device(0), space_of_device(1));
	assert_int_equal(space_of_device(0)->members, 1);
	(void)mapped(second, memory, MEMORY_BYTES);
	second->ops->unmap(second, memory, MEMORY_BYTES);
	assert_int_equal(space_of_device(0)->count, 1);
	second->ops->close(second);
	kernel.refused_request = 0;
	second = opened(1, "iommufd");
	assert_ptr_equal(space_of_device(0), space_of_device(1));
	second->ops->close(second);
	first->ops->unmap(first, memory, MEMORY_BYTES);
	first->ops->close(first);
}

/* Neither way works: the first error is told, unless the group knows who has it. */
static void test_neither_way(void **state)
{
	(void)state;
	kernel.refused = "/dev/vfio/11";
	kernel.error = EPERM;
	kernel.refused_request = SPW_VFIO_BIND;
	assert_refused(0, -EPERM, "iommufd.allow_unsafe_interrupts=1");
	kernel.error = ENODEV;
	assert_refused(0, -ENODEV, "cannot be bound to /dev/iommu");
	kernel.error = ENOMEM;
	kernel.refused_request = SPW_VFIO_ATTACH;
	assert_refused(0, -ENOMEM, "ulimit -l");
	/* That the group is taken says nothing of what is wrong here. */
	kernel.refused = NULL;
	kernel.devices[0].other = BY_ANOTHER_DRIVER;
	kernel.refused_request = SPW_VFIO_BIND;
	kernel.error = EPERM;
	assert_refused(0, -EPERM, "iommufd.allow_unsafe_interrupts=1");
}

/* Each has a space of its own then, and the same memory an address in both. */
static void test_one_by_either_way(void **state)
{
	struct spw_vfio_link *first = opened(0, "iommufd"), *second;

	(void)state;
	kernel.error = EACCES;
	kernel.refused = "/dev/vfio/devices/vfio1";
	second = opened(1, "group");
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

static void test_who_has_it(void **state)
{
	(void)state;
	kernel.devices[0].other = BY_NODE;
	assert_refused(0, -EBUSY, "is in use by another process");
	kernel.devices[0].other = BY_GROUP;
	assert_refused(0, -EBUSY, "is in use by another process");
	kernel.devices[0].other = BY_ANOTHER_DRIVER;
	assert_refused(0, -EBUSY, "shares its IOMMU group 11 with devices that other drivers have");
	kernel.error = EACCES;
	kernel.refused = "/dev/vfio/11";
	assert_refused(0, -EBUSY, "when another process has it (see fuser /dev/vfio/devices/*)");
	kernel.refused = NULL;
	kernel.devices[0].other = NOBODY;
}

static void test_who_has_its_group(void **state)
{
	(void)state;
	have_only("group");
	kernel.devices[0].other = BY_NODE;
	assert_refused(0, -EBUSY, "is in use by another process");
	kernel.devices[0].other = BY_ANOTHER_DRIVER;
	assert_refused(0, -EBUSY, "shares its IOMMU group 11");
	kernel.devices[0].other = NOBODY;
	kernel.error = EPERM;
	kernel.refused_request = VFIO_SET_IOMMU;
	assert_refused(0, -EPERM, "vfio_iommu_type1.allow_unsafe_interrupts=1");
	kernel.error = EIO;
	kernel.refused_request = VFIO_GROUP_SET_CONTAINER;
	assert_refused(0, -EIO, "its IOMMU group 11 cannot be used");
	kernel.error = ENODEV;
	kernel.refused_request = VFIO_GROUP_GET_DEVICE_FD;
	assert_refused(0, -ENODEV, "cannot be opened");
}

/* ---- One space for all ---- */

static void share(const char *way)
{
	struct spw_vfio_link *links[DEVICES];
	uint64_t iova;

	have_only(way);
	for (unsigned i = 0; i < DEVICES; i++)
		links[i] = opened(i, way);
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

static void test_shared_by_iommufd(void **state)
{
	(void)state;
	share("iommufd");
}

static void test_shared_by_group(void **state)
{
	(void)state;
	share("group");
}

/*
 * The first is cut, and still has memory mapped, when the second comes: to which that is nothing.
 */
static void come_after(const char *way)
{
	struct spw_vfio_link *first, *second;

	have_only(way);
	first = opened(0, way);
	(void)mapped(first, memory, 4096);
	first->ops->cut(first);
	second = opened(1, way);
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

static void test_after_the_last_by_iommufd(void **state)
{
	(void)state;
	come_after("iommufd");
}

static void test_after_the_last_by_group(void **state)
{
	(void)state;
	come_after("group");
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
static void narrow(const char *way)
{
	struct spw_vfio_link *links[DEVICES];
	uint64_t iova;

	have_only(way);
	links[0] = opened(0, way);
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
	links[1] = opened(1, way);
	assert_int_equal(map_4_gib(links[0]), -ENOMEM);
	assert_non_null(strstr(spw_last_error(), "has no addresses left"));
	iova = mapped(links[0], memory, 4096);
	assert_in_range(iova, 4096, 0xfedfffff);
	links[0]->ops->unmap(links[0], memory, 4096);
	for (unsigned i = 0; i < DEVICES; i++)
		links[i]->ops->close(links[i]);
}

static void test_addresses_of_all_by_iommufd(void **state)
{
	(void)state;
	narrow("iommufd");
}

static void test_addresses_of_all_by_group(void **state)
{
	(void)state;
	narrow("group");
}

static void test_more_ranges_than_room(void **state)
{
	struct spw_vfio_link *link;

	(void)state;
	kernel.range_count = SPW_ARRAY_LEN(kernel.ranges);
	for (uint64_t i = 0; i < kernel.range_count; i++)
		kernel.ranges[i] =
			(struct spw_iommufd_range){.first = i << 24, .last = (i << 24) + 0x3fffff};
	for (unsigned i = 0; i < 2; i++) {
		have_only(ways[i]);
		link = opened(0, ways[i]);
		(void)mapped(link, memory, 4096);
		link->ops->unmap(link, memory, 4096);
		link->ops->close(link);
	}
}

/* ---- What is refused ---- */

static void test_locked_memory(void **state)
{
	struct spw_vfio_link *link;
	uint64_t iova;

	(void)state;
	kernel.error = ENOMEM;
	for (unsigned i = 0; i < 2; i++) {
		have_only(ways[i]);
		link = opened(0, ways[i]);
		kernel.refused_request =
			i == 0 ? (unsigned long)SPW_IOMMUFD_MAP : (unsigned long)VFIO_IOMMU_MAP_DMA;
		assert_int_equal(link->ops->map(link, memory, 4096, &iova), -ENOMEM);
		assert_non_null(strstr(spw_last_error(), "ulimit -l"));
		/* Not so in a process's own account. */
		assert_int_equal(strstr(spw_last_error(), "all processes of this user") != NULL,
				 i == 0);
		kernel.refused_request = 0;
		link->ops->close(link);
	}
}

static void test_what_cannot_be_driven(void **state)
{
	char path[PATH_MAX];
	struct spw_vfio_link *link;

	(void)state;
	assert_int_equal(spw_vfio_link_open("0000:3f:00.0", &link), -ENODEV);
	put_link(place(path, "/sys/bus/pci/devices/%s/driver", addresses[0]), "../../drivers/nvme");
	assert_refused(0, -ENODEV, "belongs to the kernel's driver nvme");
	assert_int_equal(unlink(path), 0);
	assert_refused(0, -ENODEV, "has no driver");
	put(place(path, "/sys/bus/pci/devices/%s/class", addresses[1]), "0x020000\n");
	assert_refused(1, -ENODEV, "is not an NVMe controller");
	assert_int_equal(kernel.space_count, 0);
}

static void test_without_an_iommu(void **state)
{
	char path[PATH_MAX];

	(void)state;
	put_link(place(path, "/sys/bus/pci/devices/%s/iommu_group", addresses[0]),
		 "../../groups/none");
	assert_refused(0, -EOPNOTSUPP, "in no IOMMU group that vfio knows");
	assert_int_equal(unlink(path), 0);
	assert_refused(0, -EOPNOTSUPP, "has no IOMMU");
	have_only("group");
	assert_int_equal(unlink(place(path, "/dev/vfio/%u", FIRST_GROUP + 1)), 0);
	assert_refused(1, -ENOENT, "/dev/vfio/12 cannot be opened");
	put(place(path, "/dev/vfio/noiommu-0"), "");
	assert_refused(1, -EOPNOTSUPP, "is not driven without one");
}

/* ---- Every step fails once ---- */

static bool try_open(unsigned step, const char *way)
{
	struct spw_vfio_link *link = NULL, *other = opened(1, way);
	int ret;

	kernel.steps = 0;
	kernel.failed = NULL;
	kernel.fails_at = step;
	kernel.error = EIO;
	ret = spw_vfio_link_open(addresses[0], &link);
	kernel.fails_at = 0;
	if (ret == 0) {
		assert_true(reaches_memory(0));
		(void)mapped(link, memory, 4096);
		link->ops->unmap(link, memory, 4096);
		link->ops->close(link);
	} else {
		assert_non_null(kernel.failed);
		assert_true(ret < 0 && spw_last_error()[0]);
	}
	assert_false(kernel.devices[0].granted || reaches_memory(0));
	/* Whoever was there goes on. */
	assert_true(reaches_memory(1));
	(void)mapped(other, memory, 4096);
	other->ops->unmap(other, memory, 4096);
	other->ops->close(other);
	return kernel.failed != NULL;
}

static void fail_each_step(const char *way)
{
	unsigned step = 1;

	have_only(way);
	while (try_open(step, way)) {
		kernel.space_count = 0;
		step++;
	}
	printf("%s: %u steps\n", way, step - 1);
	assert_true(step > 10);
}

static void test_each_step_by_iommufd_fails_once(void **state)
{
	(void)state;
	fail_each_step("iommufd");
}

static void test_each_step_by_group_fails_once(void **state)
{
	(void)state;
	fail_each_step("group");
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, start_kernel, stop_kernel)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_life_by_iommufd),
		CASE(test_life_by_group),
		CASE(test_closed_without_being_cut),
		CASE(test_what_leads_to_the_group),
		CASE(test_what_leads_to_the_group_late),
		CASE(test_one_of_two_by_its_group),
		CASE(test_neither_way),
		CASE(test_one_by_either_way),
		CASE(test_who_has_it),
		CASE(test_who_has_its_group),
		CASE(test_shared_by_iommufd),
		CASE(test_shared_by_group),
		CASE(test_after_the_last_by_iommufd),
		CASE(test_after_the_last_by_group),
		CASE(test_addresses_of_all_by_iommufd),
		CASE(test_addresses_of_all_by_group),
		CASE(test_more_ranges_than_room),
		CASE(test_locked_memory),
		CASE(test_what_cannot_be_driven),
		CASE(test_without_an_iommu),
		CASE(test_each_step_by_iommufd_fails_once),
		CASE(test_each_step_by_group_fails_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
