/* SPDX-License-Identifier: MIT */
/* tools/cmd_export.c - spillway export: serve open stores' counters over HTTP, for Prometheus */
#include "tools/ui/tool.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "tools/metrics/openmetrics.h"
#include "tools/metrics/serve.h"
#include "tools/ui/stop.h"
#include "util/util.h"

static const char *address = "127.0.0.1:9755";
static struct tool_number endurance = {0, 1e-6, 1e9};

static const struct tool_option options[] = {
	{"listen", TOOL_TEXT, &address, "ADDRESS:PORT",
	 "numeric address and port (127.0.0.1:9755); port 0: any free port"},
	{"endurance", TOOL_NUMBER, &endurance, "N",
	 "rated endurance of one drive in terabytes (default: from its health page)"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

static char *make(size_t *len)
{
	static struct spw_status partitions[TOOL_PARTITIONS_MAX];
	struct tool_snapshot snapshot = {.partitions = partitions};
	char *text = NULL;
	FILE *out;

	if (tool_snapshot_take(&snapshot) < 0)
		return NULL;
	out = open_memstream(&text, len);
	if (!out)
		return NULL;
	openmetrics_write(&snapshot, endurance.value * 1e12, out);
	if (fclose(out) == 0)
		return text;
	free(text);
	return NULL;
}

static bool is_loopback(const struct sockaddr *bound)
{
	const struct sockaddr_in *four = (const struct sockaddr_in *)bound;
	const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)bound;

	return bound->sa_family == AF_INET ? ntohl(four->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET
					   : IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

/* Print the address that is listened on, and who can reach it. */
static void announce(int fd)
{
	struct sockaddr_storage bound;
	socklen_t len = sizeof(bound);
	char port[NI_MAXSERV] = "?";

	memset(&bound, 0, sizeof(bound));
	if (getsockname(fd, (struct sockaddr *)&bound, &len) == 0)
		(void)getnameinfo((const struct sockaddr *)&bound, len, NULL, 0, port, sizeof(port),
				  NI_NUMERICSERV);
	(void)fprintf(stderr, "spillway export: http://%.*s:%s/metrics\n",
		      (int)(strrchr(address, ':') - address), address, port);
	if (!is_loopback((const struct sockaddr *)&bound))
		(void)fprintf(stderr,
			      "spillway export: anyone who can reach that address sees names of "
			      "drives and processes: there is no password\n");
}

static int export(const struct tool_command *command)
{
	static const struct serve_document document = {
		.path = "/metrics", .type = OPENMETRICS_TYPE, .make = make};
	int fd = serve_listen(address), rc;

	if (fd == -EINVAL)
		return tool_usage_error(command, "--listen: %s", spw_last_error());
	if (fd < 0)
		return tool_fail(command, fd, false);
	tool_stop_catch();
	announce(fd);
	rc = serve_until_stopped(fd, &document);
	tool_stop_release();
	return rc ? tool_fail(command, rc, false) : TOOL_DONE;
}

const struct tool_command command_export = {
	.name = "export",
	.summary = "serve counters of open stores to Prometheus",
	.synopsis = "[--listen ADDRESS:PORT] [--endurance N]",
	.description = "Answers GET /metrics with the output of 'spillway top --openmetrics': per\n"
		       "drive bytes, latencies, errors and wear, per store space and requests,\n"
		       "and of a tensor cache steps, stalls and plan. Sees the same stores as\n"
		       "top: yours, or all as root. Listens on localhost unless told otherwise,\n"
		       "and serves up to 16 connections. Press Ctrl-C to quit.\n",
	.examples = "  spillway export\n"
		    "  spillway export --listen 127.0.0.1:9100 --endurance 600\n",
	.action = export,
	.options = options,
};
