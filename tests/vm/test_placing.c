/* SPDX-License-Identifier: MIT */
/*
 * tests/vm/test_placing.c - drives that place data: what is put for a step and what lasts fill
 * reclaim units of handles of their own, to the block
 *
 * A drive says of each of its handles how much its reclaim unit still takes. By passthrough, and by
 * write streams where the kernel has them.
 */
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "engine/nvme/admin.h"
#include "tests/vm/objects.h"

#define DRIVES  4u
#define HANDLES 3u

static const int none[] = {0};

/* Blocks, by handle; and bytes that the store has written. */
struct account {
	uint64_t room[HANDLES], written;
};

static void ask_drive(const char *path, uint64_t room[HANDLES])
{
	uint8_t data[SPW_NVME_PLACEMENTS_BYTES] __attribute__((aligned(4096))) = {0};
	struct nvme_passthru_cmd cmd = {
		.opcode = SPW_NVME_IO_MANAGEMENT_RECEIVE,
		.addr = (uintptr_t)data,
		.data_len = sizeof(data),
		.cdw10 = 1, /* Reclaim Unit Handle Status */
		.cdw11 = sizeof(data) / 4 - 1,
	};
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	cmd.nsid = (uint32_t)ioctl(fd, NVME_IOCTL_ID);
	assert_int_equal(ioctl(fd, NVME_IOCTL_IO_CMD, &cmd), 0);
	assert_int_equal(close(fd), 0);
	assert_int_equal(spw_nvme__le16(data + 14), HANDLES);
	for (unsigned i = 0; i < HANDLES; i++)
		room[i] = spw_nvme__le64(data + 16 + 32 * i + 8);
}

static void take_account(struct spw_store *store, struct account accounts[DRIVES])
{
	for (unsigned i = 0; i < DRIVES; i++) {
		struct spw_drive_stats drive;

		ask_drive(drive_paths[i], accounts[i].room);
		spw_store_drive_stats(store, i, &drive, sizeof(drive));
		assert_string_equal(drive.path, drive_paths[i]);
		accounts[i].written = drive.bytes_written;
	}
}

/* Put and free an object: all of it went by this handle, and by no other. */
static void expect_handle(struct spw_store *store, bool lasts, unsigned handle)
{
	struct account before[DRIVES], after[DRIVES];
	struct spw_request *request;
	uint64_t written = 0;
	spw_object object;

	content_fill(memory[0], OBJECT_BYTES, lasts);
	take_account(store, before);
	assert_ok(lasts ? spw_store_put_copies(store, memory[0], OBJECT_BYTES, 1, NULL, &object,
					       &request)
			: spw_store_put(store, memory[0], OBJECT_BYTES, NULL, &object, &request));
	assert_ok(spw_request_wait(request));
	take_account(store, after);
	for (unsigned i = 0; i < DRIVES; i++) {
		uint64_t bytes = after[i].written - before[i].written;

		written += bytes;
		for (unsigned k = 0; k < HANDLES; k++)
			assert_int_equal(before[i].room[k] - after[i].room[k],
					 k == handle ? bytes / 512 : 0);
	}
	assert_int_equal(written, OBJECT_BYTES);
	assert_ok(spw_store_get(store, object, 0, memory[1], OBJECT_BYTES, SPW_URGENT_READ, NULL,
				&request));
	assert_ok(spw_request_wait(request));
	assert_content(memory[1], OBJECT_BYTES, lasts, 0);
	assert_ok(spw_store_free(store, object));
}

STORE_CASE(test_each_class_fills_units_of_its_own)
{
	const char *streams = SPW_PATH("/sys/class/block/%s/queue/max_write_streams",
				       strrchr(drive_paths[0], '/') + 1);
	struct spw_store *store;

	if (drive_backend == SPW_BACKEND_IO_URING && access(streams, F_OK) != 0) {
		printf("this kernel has no write streams (Linux 6.16)\n");
		skip();
	}
	(void)format_drives(DRIVES, 1, MIB);
	store = open_default();
	assert_non_null(strstr(spw_store_description(store), "4 of 4 drives place data"));
	for (unsigned round = 0; round < 3; round++) {
		expect_handle(store, true, 0);
		expect_handle(store, false, 1);
	}
	close_store(store);
}

RUN_OBJECT_CASES(none)
