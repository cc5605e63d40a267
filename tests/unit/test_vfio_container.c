/* SPDX-License-Identifier: MIT */
/* tests/unit/test_vfio_container.c - groups that join a container, with a kernel of the test's own */
/* link: util engine/vfio_space */
/* wrap: ioctl */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/vfio_container.c"

#define ADDRESS      "0000:3d:00.0"
#define CONTAINER_FD 1000
#define GROUP_FD     2000

/* What the IOMMU takes, and what has happened. */
static struct iommu {
	struct vfio_iova_range ranges[3];
	unsigned range_count;
	int error;
	unsigned attached, set;
} iommu;

static void tell(struct vfio_iommu_type1_info *info)
{
	struct vfio_iommu_type1_info_cap_iova_range *cap = (void *)(info + 1);
	size_t room = info->argsz;

	info->flags = VFIO_IOMMU_INFO_CAPS;
	info->cap_offset = sizeof(*info);
	info->argsz = (uint32_t)(sizeof(*info) + sizeof(*cap) + sizeof(iommu.ranges));
	assert_true(room >= info->argsz);
	cap->header.id = VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE;
	cap->header.next = 0;
	cap->nr_iovas = iommu.range_count;
	memcpy(cap->iova_ranges, iommu.ranges, sizeof(iommu.ranges));
}

int __wrap_ioctl(int fd, unsigned long request, ...);

int __wrap_ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	void *argument;

	va_start(args, request);
	argument = va_arg(args, void *);
	va_end(args);
	assert_int_equal(fd >= GROUP_FD, request == VFIO_GROUP_SET_CONTAINER || request == VFIO_GROUP_UNSET_CONTAINER);
	switch (request) {
	case VFIO_GROUP_SET_CONTAINER:
		assert_int_equal(*(int *)argument, CONTAINER_FD);
		iommu.attached++;
		return 0;
	case VFIO_GROUP_UNSET_CONTAINER: iommu.attached--; return 0;
	case VFIO_SET_IOMMU: iommu.set++; return 0;
	case VFIO_IOMMU_GET_INFO:
		if (!iommu.error)
			tell(argument);
		errno = iommu.error;
		return iommu.error ? -1 : 0;
	default: fail_msg("an ioctl that nobody expects: %lx", request); return -1;
	}
}

static bool has_room_above_4_gib(const struct container *c)
{
	uint64_t iova;

	return spw_vfio_space_find(&c->space, NULL, UINT64_C(1) << 32, &iova);
}

/* Each group's devices may take some addresses away from all. */
static void test_addresses_of_all_groups(void **state)
{
	static struct container c = {.fd = CONTAINER_FD};
	struct group groups_of_test[4] = {
		{.fd = GROUP_FD}, {.fd = GROUP_FD + 1}, {.fd = GROUP_FD + 2}, {.fd = GROUP_FD + 3}};

	(void)state;
	current = &c;
	iommu.ranges[0] = (struct vfio_iova_range){.start = 0, .end = 0xfedfffff};
	iommu.ranges[1] = (struct vfio_iova_range){.start = 0xfef00000, .end = UINT64_MAX};
	iommu.range_count = 2;
	assert_int_equal(attach_group(&groups_of_test[0], ADDRESS), 0);
	assert_int_equal(c.space.range_count, 2);
	assert_true(has_room_above_4_gib(&c));
	iommu.ranges[1] = (struct vfio_iova_range){.start = 0xfef00000, .end = 0xffffffff};
	assert_int_equal(attach_group(&groups_of_test[1], ADDRESS), 0);
	assert_int_equal(c.space.range_count, 2);
	assert_false(has_room_above_4_gib(&c));
	/* One that cannot be asked does not join, and what the others have stays. */
	iommu.error = EINVAL;
	assert_int_equal(attach_group(&groups_of_test[2], ADDRESS), -EINVAL);
	assert_int_equal(c.groups, 2);
	assert_int_equal(iommu.attached, 2);
	assert_int_equal(c.space.range_count, 2);
	iommu.error = 0;
	iommu.range_count = 1;
	assert_int_equal(attach_group(&groups_of_test[3], ADDRESS), 0);
	assert_int_equal(c.space.range_count, 1);
	assert_true(c.space.ranges[0].last == 0xfedfffff);
	assert_int_equal(iommu.set, 1);
	current = NULL;
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_addresses_of_all_groups)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
