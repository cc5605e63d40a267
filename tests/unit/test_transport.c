/* SPDX-License-Identifier: MIT */
/* tests/unit/test_transport.c - how NVMe drives are reached, in a made-up sysfs */
/* link: util engine/transport */
#include "tests/unit/tree.h"

#include "engine/transport.h"

static struct spw_transport transport;

static int set_up(void **state)
{
	(void)state;
	begin_tree();
	return 0;
}

#define TREE_CASE(name) CASE_WITH(name, set_up, remove_tree)

static void put_controller(const char *place, const char *name, const char *address)
{
	put(path_of("%s/transport", place), name);
	put(path_of("%s/address", place), address);
}

/* A drive whose controller sysfs shows as its device. */
static void put_single(const char *name, const char *address)
{
	put_controller("ctl/nvme0", name, address);
	put(path_of("ctl/nvme0/nvme0n1/size"), "8192\n");
	put_link(path_of("ctl/nvme0/nvme0n1/device"), "../../nvme0");
}

/* A drive below a subsystem, which has controllers; and one of them that has a path to it. */
static void put_head(void)
{
	put(path_of("subsystem/nvme4n2/size"), "8192\n");
	put_link(path_of("subsystem/nvme4n2/device"), "../../subsystem");
}

static void put_path(const char *controller, const char *name, const char *address)
{
	char place[64];

	(void)snprintf(place, sizeof(place), "subsystem/%s", controller);
	put_controller(place, name, address);
	put(path_of("%s/nvme4c%sn2/size", place, controller + strlen("nvme")), "8192\n");
}

static void expect(const char *drive, const char *name, const char *address, bool far)
{
	spw_engine__transport_read(path_of("%s", drive), &transport);
	assert_string_equal(transport.name, name);
	assert_string_equal(transport.address, address);
	assert_int_equal(transport.far, far);
	assert_int_equal(transport.words[0] != '\0', far);
}

TREE_CASE(test_a_drive_on_the_bus)
{
	put_single("pcie\n", "0000:3d:00.0\n");
	expect("ctl/nvme0/nvme0n1", "pcie", "0000:3d:00.0", false);
	assert_int_equal(transport.kept_s, 0);
}

TREE_CASE(test_a_drive_over_a_network)
{
	static const char *const networks[] = {"tcp", "rdma", "fc"};

	for (size_t i = 0; i < SPW_ARRAY_LEN(networks); i++) {
		put_single(networks[i], "traddr=10.0.0.7,trsvcid=4420\n");
		expect("ctl/nvme0/nvme0n1", networks[i], "traddr=10.0.0.7,trsvcid=4420", true);
	}
	assert_string_equal(transport.words,
			    ", which is reached over fc at traddr=10.0.0.7,trsvcid=4420");
	/* A target of this machine. */
	put_single("loop\n", "\n");
	expect("ctl/nvme0/nvme0n1", "loop", "", false);
}

TREE_CASE(test_how_long_the_kernel_keeps_transfers)
{
	static const struct {
		const char *fail, *loss;
		uint32_t kept_s;
	} cases[] = {
		{"off\n", "600\n", 600},       {"5\n", "600\n", 5},
		{"0\n", "600\n", 0},           {"off\n", "off\n", UINT32_MAX},
		{"off\n", "-7\n", UINT32_MAX}, {"off\n", "99999999999\n", UINT32_MAX},
	};

	put_single("tcp\n", "traddr=10.0.0.7\n");
	for (size_t i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		put(path_of("ctl/nvme0/fast_io_fail_tmo"), cases[i].fail);
		put(path_of("ctl/nvme0/ctrl_loss_tmo"), cases[i].loss);
		spw_engine__transport_read(path_of("ctl/nvme0/nvme0n1"), &transport);
		assert_int_equal(transport.kept_s, cases[i].kept_s);
	}
}

/* The nearest path says how the drive is reached, and all say where. */
TREE_CASE(test_several_paths)
{
	put_head();
	expect("subsystem/nvme4n2", "", "", false);
	put_path("nvme11", "tcp\n", "traddr=10.0.0.7\n");
	expect("subsystem/nvme4n2", "tcp", "traddr=10.0.0.7", true);
	put(path_of("subsystem/nvme11/ctrl_loss_tmo"), "600\n");
	/* Of the same subsystem, but without a path to this namespace. */
	put_controller("subsystem/nvme7", "pcie\n", "0000:3d:00.0\n");
	put(path_of("subsystem/nvme7/nvme4c7n1/size"), "8192\n");
	expect("subsystem/nvme4n2", "tcp", "traddr=10.0.0.7", true);
	put_path("nvme12", "rdma\n", "traddr=10.0.1.7\n");
	put(path_of("subsystem/nvme12/ctrl_loss_tmo"), "30\n");
	spw_engine__transport_read(path_of("subsystem/nvme4n2"), &transport);
	assert_true(transport.far);
	assert_int_equal(transport.kept_s, 600);
	assert_non_null(strstr(transport.address, "traddr=10.0.0.7"));
	assert_non_null(strstr(transport.address, "; "));
	assert_non_null(strstr(transport.address, "traddr=10.0.1.7"));
	put_path("nvme2", "pcie\n", "0000:3d:00.0\n");
	spw_engine__transport_read(path_of("subsystem/nvme4n2"), &transport);
	assert_string_equal(transport.name, "pcie");
	assert_false(transport.far);
	assert_string_equal(transport.words, "");
}

TREE_CASE(test_what_is_no_nvme_drive)
{
	put(path_of("block/sda/device/transport"), "tcp\n");
	expect("block/sda", "", "", false);
	expect("block/nvme9n1", "", "", false);
}

/* More paths than there is room for: what is there is whole text. */
TREE_CASE(test_many_paths)
{
	put_head();
	for (unsigned i = 10; i < 40; i++) {
		char name[16];

		(void)snprintf(name, sizeof(name), "nvme%u", i);
		put_path(name, "tcp\n", "traddr=fe80:0000:0000:0000:0202:b3ff:fe1e:8329\n");
	}
	spw_engine__transport_read(path_of("subsystem/nvme4n2"), &transport);
	assert_true(transport.far);
	assert_int_equal(strlen(transport.address), sizeof(transport.address) - 1);
}

RUN_CASES(NULL, NULL)
