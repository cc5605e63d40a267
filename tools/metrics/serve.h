/* SPDX-License-Identifier: MIT */
/*
 * tools/metrics/serve.h - serve one document over HTTP/1.1 to a few clients at a time
 *
 * One thread serves up to SERVE_CONNECTIONS at once; more wait to be accepted. The length of a
 * request and the time until its answer is sent are limited, so a slow client, or one that sends
 * too much, does not delay others. Every connection carries one request.
 */
#ifndef SPW_TOOLS_METRICS_SERVE_H
#define SPW_TOOLS_METRICS_SERVE_H

#include <stddef.h>
#include <stdint.h>

#define SERVE_CONNECTIONS   16u
#define SERVE_REQUEST_BYTES 4096u
#define SERVE_NS            UINT64_C(10000000000)

struct serve_document {
	const char *path; /* "/metrics" */
	const char *type;
	/* Make the current document, for free(), and set @len. Return: NULL if there is none. */
	char *(*make)(size_t *len);
};

/*
 * Listen on "127.0.0.1:9755" or "[::1]:9755". Return: a descriptor; -EINVAL if it is not such an
 * address; -errno; both with a message.
 */
int serve_listen(const char *address);
/*
 * Serve the document at its path, and at / a page that leads there, until a signal comes
 * (tools/ui/stop.h). Closes @fd. Return: 0; -errno, with a message.
 */
int serve_until_stopped(int fd, const struct serve_document *document);

#endif
