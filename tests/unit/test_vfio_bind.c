/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_vfio_bind.c - NVMe controllers taken from the kernel and returned, in a sysfs
 * of the test's own
 *
 * A folder of plain files and links is the sysfs, a function that obeys what is written there is
 * the kernel. Namespaces are plain files: what they hold, and who has locked them, is asked of the
 * real code. What only block devices have, partitions and mounts, the test says.
 */
/* wrap: spw_drives__safety_in_use spw_drives__safety_aliases_locked spw_drives__safety_opener */
#include <endian.h>
#include <fcntl.h>

#include "tests/unit/tree.h"
#include "tests/wrap.h"

#include <spillway/format.h>

#include "drives/safety.h"
#include "drives/vfio/bind.h"

#define ADDRESS         "0000:3d:00.0"
#define NEIGHBOUR       "0000:3d:00.1"
#define OTHER           "0000:3e:00.0"
#define NAMESPACE_BYTES (32u << 20)

/* ---- A sysfs ---- */

static struct spw_vfio_system fake;
static char sysfs[PATH_MAX], dev[PATH_MAX], char_devices[PATH_MAX];
static struct kernel {
	unsigned writes;
	unsigned fails_at; /* this write, counted from 1; 0: none */
	int error;
	bool stays_failed;  /* all writes from there on */
	bool refuses_vfio;  /* vfio-pci does not take the controller */
	bool has_no_driver; /* nor does nvme */
} kernel;
static char log_text[1024];

/* ---- What is known of block devices alone ---- */

static struct use {
	bool partition_locked; /* a process has a store on a partition open */
	bool only_meanwhile;   /* mounted between the first question and the claim */
	unsigned questions;
} use;

WRAP(int, spw_drives__safety_in_use, (const char *path, const struct spw_loops *loops))
{
	if (use.only_meanwhile && ++use.questions > 1)
		return spw_error(-EBUSY, "%s: is mounted on /somewhere", path);
	return __real_spw_drives__safety_in_use(path, loops);
}

WRAP(int, spw_drives__safety_aliases_locked, (const char *path, const struct spw_loops *loops))
{
	if (use.partition_locked)
		return spw_error(-EBUSY, "%s: a process has a store on %sp1 open", path, path);
	return __real_spw_drives__safety_aliases_locked(path, loops);
}

/* Who has locked the partition lives. */
WRAP(bool, spw_drives__safety_opener, (const char *path, int but_fd, char *words, size_t len))
{
	if (use.partition_locked)
		(void)snprintf(words, len, "process 1 (init)");
	return use.partition_locked || __real_spw_drives__safety_opener(path, but_fd, words, len);
}

static const char *device_file(const char *name)
{
	return path_of("sys/bus/pci/devices/" ADDRESS "/%s", name);
}

static void put_driver(const char *driver)
{
	if (driver)
		put_link(device_file("driver"), driver);
	else
		assert_true(unlink(device_file("driver")) == 0 || errno == ENOENT);
}

static const char *driver(void)
{
	static char name[32];

	(void)spw_vfio__read_link(&fake, ADDRESS, "driver", name, sizeof(name));
	return name;
}

static const char * override(void)
{
	static char text[64];

	assert_true(spw_read_text(device_file("driver_override"), text, sizeof(text)));
	return text;
}

static int obey(const char *path, const char *text)
{
	const char *name = strrchr(path, '/') + 1;

	kernel.writes++;
	if (kernel.fails_at && (kernel.writes == kernel.fails_at ||
				(kernel.stays_failed && kernel.writes > kernel.fails_at)))
		return kernel.error;
	if (strcmp(name, "driver_override") == 0) {
		put(path, strcmp(text, "\n") == 0 ? "(null)\n" : text);
	} else if (strcmp(name, "unbind") == 0) {
		assert_string_equal(text, ADDRESS);
		put_driver(NULL);
	} else {
		assert_string_equal(path, path_of("sys/bus/pci/drivers_probe"));
		assert_string_equal(text, ADDRESS);
		assert_string_equal(driver(), "");
		if (strcmp(override(), "vfio-pci") == 0)
			put_driver(kernel.refuses_vfio ? NULL : "../../drivers/vfio-pci");
		else
			put_driver(kernel.has_no_driver ? NULL : "../../drivers/nvme");
	}
	return 0;
}

static void keep_log(void *context, enum spw_log_level level, const char *message)
{
	(void)context;
	if (level >= SPW_LOG_WARNING)
		(void)snprintf(log_text, sizeof(log_text), "%s", message);
}

static void put_namespace(const char *entry, const char *node)
{
	put(path_of("sys/bus/pci/devices/" ADDRESS "/nvme/nvme0/%s/size", entry), "65536\n");
	put(path_of("dev/%s", node), "");
	assert_int_equal(truncate(path_of("dev/%s", node), NAMESPACE_BYTES), 0);
}

static int set_up(void **state)
{
	(void)state;
	begin_tree();
	memset(&kernel, 0, sizeof(kernel));
	memset(&use, 0, sizeof(use));
	log_text[0] = '\0';
	put(device_file("class"), "0x010802\n");
	put(device_file("numa_node"), "1\n");
	put(device_file("driver_override"), "(null)\n");
	put(device_file("nvme/nvme0/model"), "A Drive of Ours       \n");
	put(device_file("nvme/nvme0/serial"), "S1\033[2J\n");
	put_link(device_file("iommu_group"), path_of("sys/kernel/iommu_groups/42"));
	put(path_of("sys/kernel/iommu_groups/42/devices/" ADDRESS), "");
	put(path_of("sys/bus/pci/drivers/vfio-pci/bind"), "");
	put(path_of("sys/bus/pci/drivers_probe"), "");
	put(path_of("sys/module/vfio_iommu_type1/refcnt"), "");
	put(path_of("dev/vfio/42"), "");
	put(path_of("proc/devices"), "Character devices:\n  1 mem\n 10 misc\n");
	put_driver("../../drivers/nvme");
	put_namespace("nvme0n1", "nvme0n1");
	fake = (struct spw_vfio_system){.sysfs = strcpy(sysfs, path_of("sys")),
					.dev = strcpy(dev, path_of("dev")),
					.char_devices =
						strcpy(char_devices, path_of("proc/devices")),
					.write = obey,
					.namespaces_are_files = true,
					.memlock_bytes = UINT64_MAX};
	return 0;
}

static int bind_by(struct spw_vfio_bind_opts opts)
{
	opts.size = sizeof(opts);
	opts.log.write = keep_log;
	return spw_drives__vfio_bind_in(&fake, ADDRESS, &opts);
}

static int bind(bool force)
{
	return bind_by((struct spw_vfio_bind_opts){.force = force});
}

static int unbind(void)
{
	const struct spw_log log = {.write = keep_log};

	return spw_drives__vfio_unbind_in(&fake, ADDRESS, &log);
}

static void assert_untouched(void)
{
	assert_int_equal(kernel.writes, 0);
	assert_string_equal(driver(), "nvme");
	assert_string_equal(override(), "(null)");
}

static void assert_refused(int got, int want, const char *words)
{
	assert_int_equal(got, want);
	if (!strstr(spw_last_error(), words))
		fail_msg("\"%s\" does not say \"%s\"", spw_last_error(), words);
}

/* By force or not. */
static void assert_never_bound(int error, const char *words)
{
	for (unsigned force = 0; force < 2; force++) {
		use.questions = 0;
		assert_refused(bind(force), error, words);
		assert_untouched();
	}
}

static struct spw_vfio_probe_info examined(void)
{
	struct spw_vfio_probe_info controller;

	assert_int_equal(spw_drives__vfio_examine_in(&fake, ADDRESS, &controller), 0);
	return controller;
}

#define FIXTURE_CASE(name) CASE_WITH(name, set_up, remove_tree)

/* ---- There and back ---- */

FIXTURE_CASE(test_there_and_back)
{
	assert_int_equal(bind(false), 0);
	assert_string_equal(driver(), "vfio-pci");
	assert_string_equal(override(), "vfio-pci");
	assert_int_equal(kernel.writes, 3);
	assert_int_equal(bind(false), 0);
	assert_int_equal(kernel.writes, 3);
	assert_int_equal(unbind(), 0);
	assert_string_equal(driver(), "nvme");
	assert_string_equal(override(), "(null)");
	assert_int_equal(kernel.writes, 6);
	assert_int_equal(unbind(), 0);
	assert_int_equal(kernel.writes, 6);
	assert_string_equal(log_text, "");
}

FIXTURE_CASE(test_a_controller_without_a_driver)
{
	put_driver(NULL);
	assert_int_equal(bind(false), 0);
	assert_string_equal(driver(), "vfio-pci");
	put_driver(NULL);
	assert_int_equal(unbind(), 0);
	assert_string_equal(driver(), "nvme");
}

FIXTURE_CASE(test_a_dry_run_changes_nothing)
{
	assert_int_equal(bind_by((struct spw_vfio_bind_opts){.dry_run = true}), 0);
	assert_untouched();
}

/* BIND-2: whichever step fails. */
FIXTURE_CASE(test_what_fails_is_put_back)
{
	for (unsigned at = 1; at <= 3; at++) {
		kernel = (struct kernel){.fails_at = at, .error = -EIO};
		assert_int_equal(bind(false), -EIO);
		assert_string_equal(driver(), "nvme");
		assert_string_equal(override(), "(null)");
		assert_string_equal(log_text, "");
	}
	put(device_file("driver_override"), "nvme\n");
	kernel = (struct kernel){.refuses_vfio = true};
	assert_refused(bind(false), -EIO, "the kernel does not give it to vfio-pci");
	assert_string_equal(driver(), "nvme");
	assert_string_equal(override(), "nvme");
}

FIXTURE_CASE(test_what_cannot_be_put_back_is_said)
{
	kernel = (struct kernel){.fails_at = 3, .stays_failed = true, .error = -EIO};
	assert_refused(bind(false), -EIO, "drivers_probe cannot be set");
	assert_non_null(strstr(log_text, "could not be returned to nvme"));
	assert_non_null(strstr(log_text, "/driver_override; "));
	assert_non_null(strstr(log_text, "echo " ADDRESS " > "));
}

/* Nothing had been changed then. */
FIXTURE_CASE(test_an_override_that_cannot_be_set)
{
	kernel = (struct kernel){.fails_at = 1, .stays_failed = true, .error = -EIO};
	assert_refused(bind(false), -EIO, "driver_override cannot be set");
	assert_string_equal(driver(), "nvme");
	assert_null(strstr(log_text, "could not be returned"));
	assert_non_null(strstr(log_text, "is with nvme as before"));
}

FIXTURE_CASE(test_without_root)
{
	kernel = (struct kernel){.fails_at = 1, .stays_failed = true, .error = -EACCES};
	assert_refused(bind(false), -EACCES, "run as root");
}

/* ---- Namespaces ---- */

static void write_at(const char *path, off_t offset, const void *bytes, size_t len)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, bytes, len, offset), (ssize_t)len);
	assert_int_equal(close(fd), 0);
}

/* A swap area of version 1 with some pages. */
static void put_signature(const char *node)
{
	static const uint32_t header[] = {1, 100, 0};

	write_at(path_of("dev/%s", node), 1024, header, sizeof(header));
	write_at(path_of("dev/%s", node), 4096 - 10, "SWAPSPACE2", 10);
}

FIXTURE_CASE(test_a_signature_takes_force)
{
	struct spw_vfio_probe_info controller;

	put_signature("nvme0n1");
	assert_refused(bind(false), -EEXIST, "nvme0n1: carries swap area");
	assert_untouched();
	controller = examined();
	assert_false(controller.bindable);
	assert_int_equal(controller.obstacles, 1);
	assert_int_equal(controller.obstacle[0].error, -EEXIST);
	assert_int_equal(bind(true), 0);
	assert_string_equal(driver(), "vfio-pci");
	assert_non_null(strstr(log_text, "although it carries swap area"));
}

FIXTURE_CASE(test_the_second_namespace_counts)
{
	struct spw_vfio_probe_info controller;

	put_namespace("nvme0c1n2", "nvme0n2");
	assert_true(examined().bindable);
	put_signature("nvme0n2");
	assert_refused(bind(false), -EEXIST, "nvme0n2: carries swap area");
	assert_untouched();
	controller = examined();
	assert_non_null(strstr(controller.block_devices, "nvme0n1"));
	assert_non_null(strstr(controller.block_devices, "nvme0n2"));
}

/*
 * The kernel looks for them after it has taken the controller, and there is no way to tell what
 * they will hold.
 */
FIXTURE_CASE(test_no_namespace_is_shown_yet)
{
	struct spw_vfio_probe_info controller;

	drop(path_of("sys/bus/pci/devices/" ADDRESS "/nvme/nvme0/nvme0n1/size"));
	assert_never_bound(-EAGAIN, "shows no namespace");
	controller = examined();
	assert_false(controller.bindable);
}

FIXTURE_CASE(test_a_store_is_no_obstacle)
{
	char node[PATH_MAX];
	const char *paths[] = {node};

	(void)snprintf(node, sizeof(node), "%s", path_of("dev/nvme0n1"));
	assert_int_equal(spw_format(paths, 1, NULL, NULL), 0);
	assert_int_equal(bind(false), 0);
	assert_int_equal(unbind(), 0);
	assert_int_equal(spw_check(paths, 1, NULL, NULL), 0);
}

FIXTURE_CASE(test_an_open_store_is)
{
	struct spw_device *device;

	assert_int_equal(spw_device_open(path_of("dev/nvme0n1"), NULL, &device), 0);
	assert_int_equal(spw_device_lock(device, 1u << 20, 1), 0);
	assert_never_bound(-EBUSY, "a process has a store on it open");
	assert_int_equal(examined().obstacle[0].error, -EBUSY);
	spw_device_close(device);
	assert_int_equal(bind(true), 0);
}

/* Also one whose drive has become smaller: its lock is behind the end. */
FIXTURE_CASE(test_a_lock_behind_the_end)
{
	struct spw_device *device;

	assert_int_equal(spw_device_open(path_of("dev/nvme0n1"), NULL, &device), 0);
	assert_int_equal(spw_device_lock(device, NAMESPACE_BYTES + (1u << 20), 1), 0);
	assert_never_bound(-EBUSY, "a process has a store on it open");
	assert_int_equal(examined().obstacle[0].error, -EBUSY);
	spw_device_close(device);
	assert_int_equal(bind(false), 0);
}

FIXTURE_CASE(test_an_open_store_on_a_partition)
{
	use.partition_locked = true;
	assert_never_bound(-EBUSY, "nvme0n1p1 open");
	assert_int_equal(examined().obstacle[0].error, -EBUSY);
	use.partition_locked = false;
	assert_int_equal(bind(false), 0);
}

FIXTURE_CASE(test_mounted_before_it_was_claimed)
{
	use.only_meanwhile = true;
	assert_never_bound(-EBUSY, "is mounted on");
}

FIXTURE_CASE(test_in_doubt_nothing_is_taken)
{
	assert_int_equal(unlink(path_of("dev/nvme0n1")), 0);
	assert_never_bound(-ENOENT, "by which its use would be seen");
	assert_false(examined().bindable);
	/* A node of that name that is not that device. */
	put(path_of("dev/nvme0n1"), "");
	put(path_of("sys/class/block/nvme0n1/dev"), "259:0\n");
	fake.namespaces_are_files = false;
	assert_never_bound(-ESTALE, "is not the block device of that name");
}

/* ---- Obstacles ---- */

static void assert_obstacle(int error, bool of_bind, const char *words)
{
	struct spw_vfio_probe_info controller = examined();

	assert_int_equal(controller.obstacles, 1);
	assert_int_equal(controller.obstacle[0].error, error);
	assert_int_equal(controller.obstacle[0].of_bind, of_bind);
	if (!strstr(controller.obstacle[0].text, words))
		fail_msg("\"%s\" does not say \"%s\"", controller.obstacle[0].text, words);
	assert_false(controller.ready);
	assert_int_equal(controller.bindable, !of_bind && strcmp(driver(), "vfio-pci") != 0);
	if (!of_bind)
		return;
	assert_never_bound(error, words);
}

FIXTURE_CASE(test_without_an_iommu)
{
	assert_int_equal(unlink(device_file("iommu_group")), 0);
	assert_obstacle(-EOPNOTSUPP, true, "intel_iommu=on");
	assert_int_equal(examined().iommu_group, -1);
}

FIXTURE_CASE(test_no_iommu_mode_is_not_used)
{
	put(path_of("sys/kernel/iommu_groups/42/name"), "vfio-noiommu\n");
	assert_obstacle(-EOPNOTSUPP, true, "no-IOMMU mode");
}

FIXTURE_CASE(test_a_shared_group)
{
	put(path_of("sys/kernel/iommu_groups/42/devices/" NEIGHBOUR), "");
	put(path_of("sys/bus/pci/devices/" NEIGHBOUR "/class"), "0x020000\n");
	assert_obstacle(-EBUSY, true, "shares IOMMU group 42 with " NEIGHBOUR);
	/* Neither a bridge nor what is behind vfio-pci as well does any harm. */
	put(path_of("sys/bus/pci/devices/" NEIGHBOUR "/class"), "0x060400\n");
	assert_true(examined().bindable);
	put(path_of("sys/bus/pci/devices/" NEIGHBOUR "/class"), "0x020000\n");
	put_link(path_of("sys/bus/pci/devices/" NEIGHBOUR "/driver"), "../../drivers/vfio-pci");
	assert_int_equal(bind(false), 0);
}

static int bind_alone(void)
{
	return bind_by((struct spw_vfio_bind_opts){.force = true, .alone = true});
}

/* The owner of a group gets what else is in it, by whatever driver, now or later. */
FIXTURE_CASE(test_a_shared_group_is_not_handed_over)
{
	static const char *const drivers[] = {"../../drivers/vfio-pci", "../../drivers/e1000",
					      NULL};

	put(path_of("sys/kernel/iommu_groups/42/devices/" NEIGHBOUR), "");
	put(path_of("sys/bus/pci/devices/" NEIGHBOUR "/class"), "0x020000\n");
	for (size_t i = 0; i < SPW_ARRAY_LEN(drivers); i++) {
		assert_true(unlink(path_of("sys/bus/pci/devices/" NEIGHBOUR "/driver")) == 0 ||
			    errno == ENOENT);
		if (drivers[i])
			put_link(path_of("sys/bus/pci/devices/" NEIGHBOUR "/driver"), drivers[i]);
		assert_refused(bind_alone(), -EBUSY, "shares IOMMU group 42 with " NEIGHBOUR);
		assert_untouched();
	}
	/* One that is bound already is handed over no more than one that is not. */
	put_link(path_of("sys/bus/pci/devices/" NEIGHBOUR "/driver"), drivers[0]);
	assert_int_equal(bind(false), 0);
	assert_refused(bind_alone(), -EBUSY, NEIGHBOUR);
	put(path_of("sys/bus/pci/devices/" NEIGHBOUR "/class"), "0x060400\n");
	assert_int_equal(bind_alone(), 0);
	/* A group that cannot be read may have anything in it. */
	assert_int_equal(unlink(device_file("iommu_group")), 0);
	put_link(device_file("iommu_group"), path_of("sys/kernel/iommu_groups/43"));
	assert_refused(bind_alone(), -ENOENT, "IOMMU group 43 cannot be read");
}

/* ---- Two controllers of one drive ---- */

/* A block device of a namespace, by whichever controller. */
static void put_identity(const char *name, const char *nqn, const char *nsid)
{
	put(path_of("sys/class/block/%s/wwid", name), "eui.0025385b91b00000\n");
	put(path_of("sys/class/block/%s/nsid", name), nsid);
	put(path_of("sys/class/block/%s/device/subsysnqn", name), nqn);
}

static void put_other_controller(const char *entry)
{
	put(path_of("sys/class/nvme/nvme0/address"), ADDRESS "\n");
	put(path_of("sys/class/nvme/nvme1/address"), OTHER "\n");
	put(path_of("sys/class/nvme/nvme1/%s/size", entry), "65536\n");
}

FIXTURE_CASE(test_another_path_of_its_own)
{
	put_identity("nvme0n1", "nqn.one", "1\n");
	put_identity("nvme1n1", "nqn.one", "1\n");
	put_other_controller("nvme1n1");
	put(path_of("sys/class/nvme/nvme0/nvme0n1/size"), "65536\n");
	assert_obstacle(-EBUSY, true,
			"nvme0n1 is reached by controller nvme1 (" OTHER ") too, as nvme1n1");
	assert_refused(bind(true), -EBUSY, "echo " OTHER " > /sys/bus/pci/drivers/nvme/unbind");
	/* Another namespace of the same drive, the same number of another drive. */
	put_identity("nvme1n1", "nqn.one", "2\n");
	assert_true(examined().bindable);
	put_identity("nvme1n1", "nqn.two", "1\n");
	assert_true(examined().bindable);
	assert_int_equal(bind(false), 0);
}

/* One block device, and a hidden one below each controller. */
FIXTURE_CASE(test_another_path_that_the_kernel_has_joined)
{
	drop(path_of("sys/bus/pci/devices/" ADDRESS "/nvme/nvme0/nvme0n1/size"));
	put_namespace("nvme0c0n1", "nvme0n1");
	put_other_controller("nvme0c1n1");
	assert_obstacle(-EBUSY, true, "nvme0n1 is reached by controller nvme1 (" OTHER ") too");
	drop(path_of("sys/class/nvme/nvme1/nvme0c1n1/size"));
	put_other_controller("nvme0c1n2");
	assert_int_equal(bind(false), 0);
}

FIXTURE_CASE(test_missing_modules)
{
	drop(path_of("sys/module/vfio_iommu_type1/refcnt"));
	assert_obstacle(-ENOENT, false, "modprobe vfio_iommu_type1");
	put(path_of("sys/module/vfio_iommu_type1/refcnt"), "");
	drop(path_of("sys/bus/pci/drivers/vfio-pci/bind"));
	assert_obstacle(-ENOENT, false, "modprobe vfio-pci");
	assert_refused(bind(false), -ENOENT, "modprobe vfio-pci");
	assert_untouched();
}

FIXTURE_CASE(test_too_little_locked_memory)
{
	fake.memlock_bytes = 8u << 20;
	assert_obstacle(-ENOMEM, false, "may lock 8 MiB");
	assert_int_equal(bind(false), 0);
	assert_obstacle(-ENOMEM, false, "ulimit -l");
}

FIXTURE_CASE(test_another_driver)
{
	put_driver("../../drivers/uio_pci_generic");
	assert_refused(bind(true), -EBUSY, "is driven by uio_pci_generic");
	assert_refused(unbind(), -EBUSY, "is driven by uio_pci_generic");
	assert_int_equal(kernel.writes, 0);
	assert_false(examined().bindable);
}

static void assert_kept_by_opener_of(const char *node)
{
	char words[64];
	int fd = open(path_of("%s", node), O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(bind(false), 0);
	(void)snprintf(words, sizeof(words), "process %d", (int)getpid());
	assert_obstacle(-EBUSY, false, words);
	assert_refused(unbind(), -EBUSY, words);
	assert_string_equal(driver(), "vfio-pci");
	assert_int_equal(close(fd), 0);
	assert_true(examined().ready);
	assert_int_equal(unbind(), 0);
}

FIXTURE_CASE(test_whoever_drives_it_keeps_it)
{
	assert_kept_by_opener_of("dev/vfio/42");
}

FIXTURE_CASE(test_unbinding_that_fails)
{
	assert_int_equal(bind(false), 0);
	kernel = (struct kernel){.fails_at = 2, .error = -EIO};
	assert_int_equal(unbind(), -EIO);
	assert_string_equal(driver(), "vfio-pci");
	assert_string_equal(override(), "vfio-pci");
	kernel = (struct kernel){.has_no_driver = true};
	assert_refused(unbind(), -ENODEV, "modprobe nvme");
	assert_string_equal(override(), "(null)");
}

FIXTURE_CASE(test_an_override_that_was_left)
{
	put(device_file("driver_override"), "vfio-pci\n");
	assert_int_equal(unbind(), 0);
	assert_string_equal(driver(), "nvme");
	assert_string_equal(override(), "(null)");
}

FIXTURE_CASE(test_what_is_no_controller)
{
	struct spw_vfio_probe_info controller;

	put(device_file("class"), "0x020000\n");
	assert_refused(bind(true), -EMEDIUMTYPE,
		       "is not an NVMe controller (its PCI class is 020000)");
	assert_int_equal(spw_drives__vfio_examine_in(&fake, "0000:3e:00.0", &controller), -ENODEV);
	assert_int_equal(spw_drives__vfio_examine_in(&fake, "../../etc", &controller), -EINVAL);
	assert_int_equal(spw_drives__vfio_examine_in(&fake, "", &controller), -EINVAL);
	assert_int_equal(spw_drives__vfio_unbind_in(&fake, "3d:00", NULL), -EINVAL);
	assert_int_equal(kernel.writes, 0);
}

FIXTURE_CASE(test_what_it_is)
{
	struct spw_vfio_probe_info controller = examined();

	assert_string_equal(controller.address, ADDRESS);
	assert_string_equal(controller.driver, "nvme");
	assert_string_equal(controller.model, "A Drive of Ours");
	assert_string_equal(controller.serial, "S1?[2J");
	assert_int_equal(controller.iommu_group, 42);
	assert_int_equal(controller.numa_node, 1);
	assert_true(controller.bindable);
	assert_false(controller.ready);
	assert_int_equal(controller.obstacles, 0);
	assert_int_equal(spw_drives__vfio_examine_in(&fake, "3D:00.0", &controller), 0);
	assert_string_equal(controller.address, ADDRESS);
}

/*
 * Not root's case: nothing is said of a machine that has none, and asking for all of them harms
 * nothing.
 */
FIXTURE_CASE(test_the_list)
{
	struct spw_vfio_probe_info controller = {.size = sizeof(controller)};
	char **addresses;
	int count = spw_vfio_list(&addresses);

	assert_true(count >= 0);
	for (int i = 0; i < count; i++)
		assert_int_equal(spw_vfio_examine(addresses[i], &controller), 0);
	assert_null(addresses[count]);
	spw_probe_list_free(addresses);
}

/* ---- By iommufd, or by its group ---- */

static void put_iommufd(void)
{
	put(path_of("proc/devices"), "Character devices:\n  1 mem\n511 vfio-dev\n");
	put(path_of("dev/iommu"), "");
	put(device_file("vfio-dev/vfio7/dev"), "511:7\n");
	put(path_of("dev/vfio/devices/vfio7"), "");
}

static void assert_way(const char *way, const char *words)
{
	struct spw_vfio_probe_info controller = examined();

	assert_string_equal(controller.way, way);
	assert_int_equal(controller.not_iommufd[0] == '\0', words[0] == '\0');
	if (!strstr(controller.not_iommufd, words))
		fail_msg("\"%s\" does not say \"%s\"", controller.not_iommufd, words);
}

FIXTURE_CASE(test_which_way_before_it_is_bound)
{
	assert_way("group", "makes no nodes of vfio devices");
	put(path_of("proc/devices"), "Character devices:\n511 vfio-dev\n");
	assert_way("group", "there is no");
	put(path_of("dev/iommu"), "");
	assert_way("iommufd", "");
	assert_string_equal(examined().device_node, "");
	/* There is no way to tell what vfio will do. */
	drop(path_of("sys/bus/pci/drivers/vfio-pci/bind"));
	assert_way("", "");
}

FIXTURE_CASE(test_which_way_when_bound)
{
	assert_int_equal(bind(false), 0);
	put_iommufd();
	assert_way("iommufd", "");
	assert_string_equal(examined().device_node, path_of("dev/vfio/devices/vfio7"));
	assert_int_equal(unlink(path_of("dev/vfio/devices/vfio7")), 0);
	assert_way("group", "this user may not open");
	assert_int_equal(unlink(path_of("dev/iommu")), 0);
	assert_way("group", "modprobe iommufd");
	/* Older kernels have the folder, but no number in it. */
	assert_int_equal(unlink(device_file("vfio-dev/vfio7/dev")), 0);
	assert_way("group", "makes no nodes of vfio devices");
	assert_true(examined().ready);
}

/* What only groups need is missing, and does not matter. */
FIXTURE_CASE(test_iommufd_needs_less)
{
	assert_int_equal(bind(false), 0);
	put_iommufd();
	drop(path_of("sys/module/vfio_iommu_type1/refcnt"));
	assert_int_equal(unlink(path_of("dev/vfio/42")), 0);
	assert_true(examined().ready);
	fake.memlock_bytes = 8u << 20;
	assert_obstacle(-ENOMEM, false, "may lock 8 MiB of memory in all processes together");
	fake.memlock_bytes = UINT64_MAX;
	assert_int_equal(unlink(path_of("dev/iommu")), 0);
	assert_false(examined().ready);
	assert_int_equal(examined().obstacles, 2);
}

FIXTURE_CASE(test_whoever_drives_it_by_iommufd_keeps_it)
{
	put_iommufd();
	assert_kept_by_opener_of("dev/vfio/devices/vfio7");
}

/* ---- What libblkid is shown of a drive without a node ---- */

static struct spw_signatures signatures_of(bool by_image)
{
	struct spw_signatures signatures;
	struct spw_device *device;

	if (!by_image) {
		assert_int_equal(spw_drives__safety_signatures(path_of("dev/nvme0n1"), &signatures),
				 0);
		return signatures;
	}
	assert_int_equal(spw_device_open(path_of("dev/nvme0n1"), NULL, &device), 0);
	assert_int_equal(spw_drives__safety_image_signatures(device, &signatures), 0);
	spw_device_close(device);
	return signatures;
}

static void assert_same_signatures(unsigned count)
{
	struct spw_signatures file = signatures_of(false), image = signatures_of(true);

	assert_int_equal(file.count, count);
	assert_int_equal(image.count, count);
	for (unsigned i = 0; i < count; i++) {
		assert_string_equal(file.found[i].what, image.found[i].what);
		assert_int_equal(file.found[i].offset_bytes, image.found[i].offset_bytes);
		assert_int_equal(file.found[i].len_bytes, image.found[i].len_bytes);
	}
}

FIXTURE_CASE(test_an_image_shows_both_ends)
{
	static const uint32_t vmfs = 0xc001d00d;
	static const uint32_t mdraid = 0xa92b4efc;
	const off_t sizes[] = {
		NAMESPACE_BYTES, NAMESPACE_BYTES - 512, 3 << 20, 5 << 20, 6 << 20, 65536};

	for (size_t i = 0; i < SPW_ARRAY_LEN(sizes); i++) {
		assert_int_equal(truncate(path_of("dev/nvme0n1"), 0), 0);
		assert_int_equal(truncate(path_of("dev/nvme0n1"), sizes[i]), 0);
		assert_same_signatures(0);
		put_signature("nvme0n1");
		assert_same_signatures(1);
	}
	assert_int_equal(truncate(path_of("dev/nvme0n1"), 0), 0);
	assert_int_equal(truncate(path_of("dev/nvme0n1"), NAMESPACE_BYTES), 0);
	write_at(path_of("dev/nvme0n1"), 1 << 20, &vmfs, sizeof(vmfs));
	assert_same_signatures(1);
	/* Version 0.90 of Linux RAID lies in the last 64 KiB. */
	write_at(path_of("dev/nvme0n1"), NAMESPACE_BYTES - 65536, &mdraid, sizeof(mdraid));
	assert_int_equal(signatures_of(true).count, signatures_of(false).count);
}

/* Where the first header was destroyed, the second one is all that tells. */
FIXTURE_CASE(test_the_second_header_of_luks)
{
	static const uint64_t offsets_kib[] = {16, 32, 64, 128, 256, 512, 1024, 2048, 4096};

	for (size_t i = 0; i < SPW_ARRAY_LEN(offsets_kib); i++) {
		uint8_t header[4096] = {'S', 'K', 'U', 'L', 0xba, 0xbe, 0, 2};
		uint64_t offset_bytes = offsets_kib[i] << 10, big_endian = htobe64(offset_bytes);

		memcpy(header + 256, &big_endian, sizeof(big_endian));
		assert_int_equal(truncate(path_of("dev/nvme0n1"), 0), 0);
		assert_int_equal(truncate(path_of("dev/nvme0n1"), NAMESPACE_BYTES), 0);
		write_at(path_of("dev/nvme0n1"), (off_t)offset_bytes, header, sizeof(header));
		assert_same_signatures(1);
	}
}

FIXTURE_CASE(test_a_boot_sector_is_somebodys)
{
	struct spw_signatures signatures;

	write_at(path_of("dev/nvme0n1"), 3, "NTFS    ", 8);
	write_at(path_of("dev/nvme0n1"), 510, "\x55\xaa", 2);
	signatures = signatures_of(true);
	assert_int_equal(signatures.count, 1);
	assert_int_equal(signatures.found[0].offset_bytes, 510);
	assert_int_equal(signatures.found[0].len_bytes, 2);
}

/* Names are compared as names: there is nothing that stat(2) could find. */
FIXTURE_CASE(test_names_of_one_namespace)
{
	static const char *const same[] = {"pci:0000:3d:00.0/1", "pci:3D:00.0"};
	static const char *const others[] = {"pci:0000:3d:00.0/1", "pci:3d:00.0/2", "pci:3e:00.0",
					     "/dev/null", "pci:x"};

	assert_refused(spw_drives_distinct(same, 2), -ENOTUNIQ, "are the same device");
	assert_int_equal(spw_drives_distinct(others, SPW_ARRAY_LEN(others)), 0);
}

RUN_CASES(NULL, NULL)
