/* SPDX-License-Identifier: MIT */
/* drives/share.c - claim the drives of a store; pass the descriptors to its other processes */
#include "drives/share.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/device.h"
#include "drives/opener.h"
#include "status/status.h"
#include "util/fork.h"
#include "util/parallel.h"
#include "util/util.h"

#define MAGIC          0x6d69616c63777073u /* "spwclaim" */
#define ANSWER_MS_MAX  1000                /* longest wait for a stopped process */
#define REQUEST_MS_MAX 100                 /* a client sends its request at once */
#define BACKLOG        256                 /* all ranks of a store may connect at the same time */

struct drive {
	struct spw_device *device;
	dev_t number;
};

struct spw_share {
	const struct spw_share_store *store; /* valid while opening */
	const struct spw_log *log;           /* valid while opening */
	int listener;                        /* -1: other processes cannot connect */
	pthread_t server;
	bool serving;
	unsigned count;
	struct drive drives[SPW_DRIVES_MAX]; /* only block devices, by index */
};

struct message {
	uint64_t magic;
	/* number of claims; 0 in a request, which has the one descriptor of SHARE-2 */
	uint32_t count;
	uint32_t reserved;
};

union control {
	char bytes[CMSG_SPACE(SPW_DRIVES_MAX * sizeof(int))];
	struct cmsghdr align;
};

/* ---- Messages ---- */

static socklen_t name_of(const struct spw_share_store *store, uint32_t partition,
			 struct sockaddr_un *address)
{
	SPW_ASSERT(partition < store->partition_count);
	*address = (struct sockaddr_un){.sun_family = AF_UNIX};
	/* Abstract socket: the name begins with a zero byte, and disappears with its process. */
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
			   (size_t)snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1,
					    "spillway-claim-%s-%u", store->uuid, partition));
}

static int send_fds(int socket, const struct message *message, const int fds[], unsigned count)
{
	struct iovec vector = {.iov_base = (void *)(uintptr_t)message, .iov_len = sizeof(*message)};
	union control control = {.bytes = {0}};
	struct msghdr header = {
		.msg_iov = &vector,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = CMSG_SPACE(count * sizeof(int)),
	};
	struct cmsghdr *rights = CMSG_FIRSTHDR(&header);

	SPW_ASSERT(count > 0 && count <= SPW_DRIVES_MAX);
	rights->cmsg_level = SOL_SOCKET;
	rights->cmsg_type = SCM_RIGHTS;
	rights->cmsg_len = CMSG_LEN(count * sizeof(int));
	memcpy(CMSG_DATA(rights), fds, count * sizeof(int));
	return sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(*message)
		       ? 0
		       : -errno;
}

static void close_all(const int fds[], unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		(void)close(fds[i]);
}

/* Wait for a message. Return: 0 it can be received; -ETIMEDOUT; another negative errno. */
static int await_message(int socket, int ms)
{
	struct pollfd event = {.fd = socket, .events = POLLIN};
	int ready;

	do
		ready = poll(&event, 1, ms);
	while (ready < 0 && errno == EINTR);
	return ready < 0 ? -errno : ready == 0 ? -ETIMEDOUT : 0;
}

/* Called under spw_fork_hold(). Return: number of descriptors, which the caller closes; -errno. */
static int receive_fds(int socket, struct message *message, int fds[SPW_DRIVES_MAX])
{
	struct iovec vector = {.iov_base = message, .iov_len = sizeof(*message)};
	union control control = {.bytes = {0}};
	struct msghdr header = {
		.msg_iov = &vector,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes),
	};
	ssize_t got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	const struct cmsghdr *rights = got < 0 ? NULL : CMSG_FIRSTHDR(&header);
	unsigned count = 0;

	if (got < 0)
		return -errno;
	if (rights && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS) {
		count = (unsigned)((rights->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		SPW_ASSERT(count <= SPW_DRIVES_MAX);
		memcpy(fds, CMSG_DATA(rights), count * sizeof(int));
	}
	if (got == (ssize_t)sizeof(*message) && message->magic == MAGIC &&
	    (header.msg_flags & MSG_CTRUNC) == 0)
		return (int)count;
	close_all(fds, count);
	return -EPROTO;
}

static bool is_of_drive(int fd, const struct drive *drive)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISBLK(st.st_mode) && st.st_rdev == drive->number;
}

/* ---- Handing claims over ---- */

/* May a process get the claims? It must present a writable first drive (SHARE-2). */
static bool may_have(const struct spw_share *share, const int fds[], unsigned count)
{
	SPW_ASSERT(share->count > 0);
	return count == 1 && is_of_drive(fds[0], &share->drives[0]) &&
	       (fcntl(fds[0], F_GETFL) & O_ACCMODE) == O_RDWR;
}

static bool is_granted(const struct spw_share *share, int socket)
{
	struct message message = {0};
	int fds[SPW_DRIVES_MAX], count;
	bool granted;

	if (await_message(socket, REQUEST_MS_MAX))
		return false;
	spw_fork_hold();
	count = receive_fds(socket, &message, fds);
	granted = count > 0 && may_have(share, fds, (unsigned)count);
	close_all(fds, count > 0 ? (unsigned)count : 0);
	spw_fork_release();
	return granted;
}

/* Ignore errors: a client that gets no answer asks another process, or again. */
static void answer(const struct spw_share *share, int socket)
{
	const struct message message = {.magic = MAGIC, .count = share->count};
	int fds[SPW_DRIVES_MAX];

	if (!is_granted(share, socket))
		return;
	for (unsigned i = 0; i < share->count; i++)
		fds[i] = share->drives[i].device->claim_fd;
	SPW_ASSERT(fds[0] >= 0 && fds[share->count - 1] >= 0); /* we have all claims (SHARE-1) */
	(void)send_fds(socket, &message, fds, share->count);
}

static void *serve(void *context)
{
	const struct spw_share *share = context;

	(void)pthread_setname_np(pthread_self(), "spillway-claim");
	for (;;) {
		int socket = accept4(share->listener, NULL, NULL, SOCK_CLOEXEC);

		/* spw_drives__share_close() has shut down the listener. */
		if (socket < 0 && errno == EINVAL)
			return NULL;
		if (socket < 0)
			continue;
		answer(share, socket);
		(void)close(socket);
	}
}

/* Create the socket for other processes of the store. Without it, they will be refused. */
static void listen_here(struct spw_share *share)
{
	struct sockaddr_un address;
	socklen_t len = name_of(share->store, share->store->partition, &address);
	int rc = 0;

	spw_fork_hold();
	share->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (share->listener < 0 || bind(share->listener, (struct sockaddr *)&address, len) ||
	    listen(share->listener, BACKLOG))
		rc = -errno;
	if (rc == 0)
		rc = spw_fork_add(share->listener);
	spw_fork_release();
	if (rc == 0)
		return;
	spw_log(share->log, SPW_LOG_WARNING,
		"other processes cannot get the claim on the drives from this one, so they may be "
		"refused: %s",
		spw_strerror(rc));
	if (share->listener >= 0)
		(void)close(share->listener);
	share->listener = -1;
}

static int start_server(struct spw_share *share)
{
	int rc;

	SPW_ASSERT(share->drives[share->count - 1].device->claim_fd >= 0); /* all (SHARE-1) */
	if (share->listener < 0)
		return 0;
	rc = spw_thread_start(&share->server, NULL, serve, share);
	share->serving = rc == 0;
	return rc == 0 ? 0
		       : spw_error_errno(-rc, "cannot start the thread that hands the claim on the "
					      "drives to other processes");
}

/* ---- Getting claims ---- */

static void release(struct spw_share *share)
{
	for (unsigned i = 0; i < share->count; i++) {
		spw_fork_close(share->drives[i].device->claim_fd);
		share->drives[i].device->claim_fd = -1;
	}
}

/* Open the same device again, even if its path has changed. */
static int reopen(const struct drive *drive, int flags)
{
	int fd = open(SPW_PATH("/proc/self/fd/%d", drive->device->fd), flags | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

static int keep(const struct drive *drive, int fd)
{
	int rc = spw_fork_add(fd);

	SPW_ASSERT(fd >= 0 && drive->device->claim_fd < 0); /* not claimed yet */
	if (rc)
		(void)close(fd);
	else
		drive->device->claim_fd = fd;
	return rc;
}

/* Claim all drives in order (SHARE-1). *busy: index of a claimed one. Return: 0; -EBUSY; -errno. */
static int claim_all(struct spw_share *share, unsigned *busy)
{
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < share->count; i++) {
		const struct drive *drive = &share->drives[i];
		int fd;

		spw_fork_hold();
		fd = reopen(drive, O_RDONLY | O_EXCL);
		rc = fd < 0 ? fd : keep(drive, fd);
		spw_fork_release();
		*busy = i;
		if (fd < 0 && rc != -EBUSY)
			(void)spw_error_errno(rc, "%s cannot be claimed",
					      spw_device_path(drive->device));
	}
	if (rc)
		release(share);
	return rc;
}

/* Verify received claims (SHARE-3); keep or close the descriptors. Return: 0; -EPROTO invalid. */
static int accept_claims(struct spw_share *share, const struct message *message, const int fds[],
			 unsigned count)
{
	bool good = count == share->count && message->count == share->count;
	int rc = 0;

	for (unsigned i = 0; good && i < count; i++) {
		int own = -EBUSY;

		good = is_of_drive(fds[i], &share->drives[i]);
		if (good)
			own = reopen(&share->drives[i], O_RDONLY | O_EXCL);
		if (own >= 0)
			(void)close(own);
		good = good && own == -EBUSY;
	}
	if (!good) {
		close_all(fds, count);
		return -EPROTO;
	}
	for (unsigned i = 0; i < count; i++)
		if (rc)
			(void)close(fds[i]);
		else
			rc = keep(&share->drives[i], fds[i]);
	if (rc)
		release(share);
	return rc;
}

/* Send the first drive (SHARE-2), reopened: a shared description would keep locks while unread. */
static int send_request(const struct spw_share *share, int socket)
{
	const struct message request = {.magic = MAGIC};
	int fd = reopen(&share->drives[0], O_RDWR), rc;

	if (fd < 0)
		return fd;
	rc = send_fds(socket, &request, &fd, 1);
	(void)close(fd);
	return rc;
}

static int ask(struct spw_share *share, int socket)
{
	struct message message = {0};
	int fds[SPW_DRIVES_MAX] = {0};
	int rc = send_request(share, socket);

	if (rc == 0)
		rc = await_message(socket, ANSWER_MS_MAX);
	if (rc)
		return rc;
	spw_fork_hold();
	rc = receive_fds(socket, &message, fds);
	if (rc >= 0)
		rc = accept_claims(share, &message, fds, (unsigned)rc);
	spw_fork_release();
	return rc;
}

/* Ask all processes of the store. Return: 0 one has passed its claims; -ENOENT none has. */
static int ask_others(struct spw_share *share)
{
	int rc = -ENOENT;

	for (uint32_t partition = 0; rc && partition < share->store->partition_count; partition++) {
		struct sockaddr_un address;
		socklen_t len = name_of(share->store, partition, &address);
		int fd;

		if (partition == share->store->partition)
			continue;
		fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		if (fd < 0)
			return -errno;
		if (connect(fd, (struct sockaddr *)&address, len) == 0)
			rc = ask(share, fd);
		(void)close(fd);
	}
	return rc == 0 ? 0 : -ENOENT;
}

static void name_holder(const struct drive *drive, char *words, size_t len)
{
	const struct stat st = {.st_mode = S_IFBLK, .st_rdev = drive->number};

	if (!spw_drives__opener_find(&st, drive->device->fd, words, len))
		(void)snprintf(words, len, "another program, or one that was killed");
}

static int refuse(const struct spw_share *share, const struct drive *drive)
{
	const char *path = spw_device_path(drive->device);
	char holder[64];

	if (spw_status__others(share->store->uuid, share->store->partition_count,
			       share->store->partition))
		return spw_error(-EBUSY,
				 "%s: processes that have other partitions of the store open did "
				 "not hand over their claim on it; run all in one network "
				 "namespace, and see whether one of them is stopped",
				 path);
	name_holder(drive, holder, sizeof(holder));
	return spw_error(-EBUSY, "%s: is held exclusively by %s; end that first (see fuser %s)",
			 path, holder, path);
}

/*
 * Claim the drives, or get the claims of another process. A drive may be claimed by a process of
 * the store, a killed process, or another program. We wait the same time for all, because they
 * cannot be distinguished: a process of the store has claims for a short time before it answers,
 * and after.
 */
static int claim(struct spw_share *share)
{
	uint64_t deadline_ns = 0;
	unsigned busy = 0;

	SPW_ASSERT(share->count > 0 && !share->serving); /* not before all (SHARE-1) */
	for (;;) {
		int rc = claim_all(share, &busy);
		const struct drive *drive = &share->drives[busy];
		char holder[64] = "";

		if (rc == -EBUSY && busy == 0 && ask_others(share) == 0)
			return 0;
		if (rc != -EBUSY)
			return rc;
		if (deadline_ns == 0)
			name_holder(drive, holder, sizeof(holder));
		if (!spw_drives__opener_await(
			    &deadline_ns, share->log,
			    "%s: is held exclusively by %s; waiting up to %u s for it to "
			    "come free",
			    spw_device_path(drive->device), holder, SPW_TEARDOWN_S_MAX))
			return refuse(share, drive);
	}
}

/* ---- Opening and closing ---- */

static int collect(struct spw_share *share, struct spw_device *const devices[], unsigned count)
{
	struct stat st;

	for (unsigned i = 0; i < count; i++) {
		if (devices[i]->fd < 0)
			continue;
		if (fstat(devices[i]->fd, &st))
			return spw_error_errno(-errno, "%s cannot be examined",
					       spw_device_path(devices[i]));
		if (S_ISBLK(st.st_mode))
			share->drives[share->count++] =
				(struct drive){.device = devices[i], .number = st.st_rdev};
	}
	SPW_ASSERT(share->count <= SPW_DRIVES_MAX);
	return 0;
}

int spw_drives__share_open(struct spw_device *const devices[], unsigned count,
			   const struct spw_share_store *store, const struct spw_log *log,
			   struct spw_share **out)
{
	struct spw_share *share = calloc(1, sizeof(*share));
	int rc;

	*out = NULL;
	if (!share)
		return spw_error(-ENOMEM, "no memory for the claim on %u drives", count);
	*share = (struct spw_share){.store = store, .log = log, .listener = -1};
	rc = collect(share, devices, count);
	if (rc || share->count == 0) {
		free(share);
		return rc;
	}
	/* Listen first: processes that connect during the claim wait instead of being refused. */
	listen_here(share);
	rc = claim(share);
	if (rc == 0)
		rc = start_server(share);
	if (rc) {
		spw_drives__share_close(share);
		return rc;
	}
	*out = share;
	return 0;
}

void spw_drives__share_close(struct spw_share *share)
{
	if (!share)
		return;
	if (share->serving) {
		SPW_MUST(shutdown(share->listener, SHUT_RDWR));
		(void)pthread_join(share->server, NULL);
	}
	spw_fork_close(share->listener);
	release(share);
	free(share);
}
