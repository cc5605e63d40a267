/* SPDX-License-Identifier: MIT */
/* tools/metrics/serve.c - a small HTTP server: listen, read a request, answer it, close */
#include "tools/metrics/serve.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tools/ui/stop.h"
#include "util/util.h"

#define ENDED     (-1)
#define GOES_ON   0
#define SOME_NS   UINT64_C(60000000000) /* how long to sleep if nothing is due */
#define PAUSE_NS  UINT64_C(100000000)   /* how long not to accept after accept() failed */
#define STATUS(s) ((struct answer){.status = (s)})

struct answer {
	const char *status; /* "200 OK" */
	const char *type;   /* of the body */
	char *body;         /* for free(); NULL: send the status text */
	size_t len;
};

struct connection {
	int fd; /* -1: none */
	uint64_t until_ns;
	char request[SERVE_REQUEST_BYTES];
	size_t got;
	char *answer; /* set once the request is complete; for free() */
	size_t len, sent;
};

/* ---- The address ---- */

/* Split an address at the last colon. Return: false if there is none, or a part is too long. */
static bool split(const char *text, char host[64], char port[8])
{
	const char *colon = strrchr(text, ':');
	size_t len = colon ? (size_t)(colon - text) : 0;

	if (len > 1 && text[0] == '[' && text[len - 1] == ']') {
		text++;
		len -= 2;
	}
	if (len == 0 || len >= 64 || strlen(colon + 1) == 0 || strlen(colon + 1) >= 8)
		return false;
	/* getaddrinfo() takes larger ports modulo 65536. */
	if (strspn(colon + 1, "0123456789") != strlen(colon + 1) || atoi(colon + 1) > UINT16_MAX)
		return false;
	(void)snprintf(host, 64, "%.*s", (int)len, text);
	(void)snprintf(port, 8, "%s", colon + 1);
	return true;
}

static int listen_on(const struct addrinfo *found, const char *address)
{
	static const int one = 1;
	int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), rc;

	if (fd < 0)
		return spw_error_errno(-errno, "cannot make a socket for %s", address);
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, found->ai_addr, found->ai_addrlen) || listen(fd, SERVE_CONNECTIONS)) {
		rc = spw_error_errno(-errno, "cannot listen on %s", address);
		(void)close(fd);
		return rc;
	}
	return fd;
}

int serve_listen(const char *address)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
				       .ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV};
	struct addrinfo *found = NULL;
	char host[64], port[8];
	int fd;

	if (!split(address, host, port) || getaddrinfo(host, port, &hints, &found) != 0)
		return spw_error(-EINVAL,
				 "%s is not a numeric address and port (up to 65535), such as "
				 "127.0.0.1:9755 or [::1]:9755",
				 address);
	fd = listen_on(found, address);
	freeaddrinfo(found);
	return fd;
}

/* ---- The answer ---- */

/* Make a page that leads to the document, for people who open the address in a browser. */
static struct answer landing_page(const struct serve_document *document)
{
	struct answer answer = {.status = "200 OK", .type = "text/html; charset=utf-8"};
	int len = asprintf(&answer.body,
			   "<!doctype html><title>spillway</title><a href=\"%s\">%s</a>\n",
			   document->path, document->path);

	if (len < 0)
		return STATUS("503 Service Unavailable");
	answer.len = (size_t)len;
	return answer;
}

/* Make the answer. @request: the request line and all headers, with the empty line at the end. */
static struct answer answer_to(const char *request, const struct serve_document *document)
{
	struct answer answer = {.status = "200 OK", .type = document->type};
	const char *method_end = strchr(request, ' '), *line_end = strstr(request, "\r\n");
	const char *path_end;
	size_t path_len;

	if (!method_end || !line_end || method_end > line_end)
		return STATUS("400 Bad Request");
	path_end = strchr(method_end + 1, ' ');
	if (!path_end || path_end > line_end || strncmp(path_end + 1, "HTTP/1.", 7) != 0)
		return STATUS("400 Bad Request");
	if (strncmp(request, "GET ", 4) != 0 && strncmp(request, "HEAD ", 5) != 0)
		return STATUS("405 Method Not Allowed");
	path_len = strcspn(method_end + 1, " ?"); /* a query changes nothing */
	if (path_len == 1 && method_end[1] == '/')
		return landing_page(document);
	if (path_len != strlen(document->path) ||
	    memcmp(method_end + 1, document->path, path_len) != 0)
		return STATUS("404 Not Found");
	answer.body = document->make(&answer.len);
	return answer.body ? answer : STATUS("503 Service Unavailable");
}

static int begin_answer(struct connection *connection, struct answer answer)
{
	bool head = strncmp(connection->request, "HEAD ", 5) == 0;
	const char *type = answer.body ? answer.type : "text/plain; charset=utf-8";
	const char *body = answer.body ? answer.body : answer.status;
	size_t len = answer.body ? answer.len : strlen(answer.status);
	FILE *out = open_memstream(&connection->answer, &connection->len);

	if (out) {
		(void)fprintf(out,
			      "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
			      "Connection: close\r\n\r\n",
			      answer.status, type, len);
		if (!head)
			(void)fwrite(body, 1, len, out);
		if (fclose(out)) {
			free(connection->answer);
			connection->answer = NULL;
		}
	}
	free(answer.body);
	return connection->answer ? GOES_ON : ENDED;
}

/* ---- A connection ---- */

static void end(struct connection *connection)
{
	free(connection->answer);
	(void)close(connection->fd);
	*connection = (struct connection){.fd = -1};
}

static int read_request(struct connection *connection, const struct serve_document *document)
{
	size_t room = sizeof(connection->request) - 1 - connection->got;
	ssize_t got = recv(connection->fd, connection->request + connection->got, room, 0);

	if (got <= 0)
		return got < 0 && (errno == EAGAIN || errno == EINTR) ? GOES_ON : ENDED;
	connection->got += (size_t)got;
	connection->request[connection->got] = '\0';
	if (strlen(connection->request) < connection->got)
		return begin_answer(connection, STATUS("400 Bad Request"));
	if (strstr(connection->request, "\r\n\r\n"))
		return begin_answer(connection, answer_to(connection->request, document));
	if (connection->got < sizeof(connection->request) - 1)
		return GOES_ON;
	return begin_answer(connection, STATUS("431 Request Header Fields Too Large"));
}

static int send_answer(struct connection *connection)
{
	ssize_t sent = send(connection->fd, connection->answer + connection->sent,
			    connection->len - connection->sent, MSG_NOSIGNAL);

	if (sent < 0)
		return errno == EAGAIN || errno == EINTR ? GOES_ON : ENDED;
	connection->sent += (size_t)sent;
	return connection->sent == connection->len ? ENDED : GOES_ON;
}

static void serve(struct connection *connection, const struct serve_document *document, bool ready,
		  uint64_t now_ns)
{
	int rc = now_ns >= connection->until_ns ? ENDED : GOES_ON;

	if (rc == GOES_ON && ready)
		rc = connection->answer ? send_answer(connection)
					: read_request(connection, document);
	if (rc == ENDED)
		end(connection);
}

/* ---- All connections ---- */

/* Accept a connection. Return: until when not to accept more, as a resource is exhausted; 0 */
static uint64_t accept_one(int fd, struct connection connections[])
{
	struct connection *unused = connections;
	uint64_t now_ns = spw_clock_ns();

	while (unused->fd >= 0)
		unused++;
	unused->fd = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (unused->fd >= 0) {
		unused->until_ns = now_ns + SERVE_NS;
		return 0;
	}
	return errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS
		       ? now_ns + PAUSE_NS
		       : 0;
}

/* Fill @fds with what connections wait for. Return: the time of the next timeout. */
static uint64_t wait_for(const struct connection connections[], struct pollfd fds[],
			 unsigned *count)
{
	uint64_t until_ns = spw_clock_ns() + SOME_NS;

	*count = 0;
	for (unsigned i = 0; i < SERVE_CONNECTIONS; i++) {
		const struct connection *connection = &connections[i];

		fds[i] = (struct pollfd){.fd = connection->fd,
					 .events = connection->answer ? POLLOUT : POLLIN};
		if (connection->fd < 0)
			continue;
		(*count)++;
		until_ns = SPW_MIN(until_ns, connection->until_ns);
	}
	return until_ns;
}

int serve_until_stopped(int fd, const struct serve_document *document)
{
	static struct connection connections[SERVE_CONNECTIONS];
	/* the last two: the listening socket, and the end by a signal */
	struct pollfd fds[SERVE_CONNECTIONS + 2];
	uint64_t paused_ns = 0, until_ns;
	unsigned count;
	int rc = 0;

	for (unsigned i = 0; i < SERVE_CONNECTIONS; i++)
		connections[i] = (struct connection){.fd = -1};
	while (!tool_stopped() && rc >= 0) {
		until_ns = wait_for(connections, fds, &count);
		if (paused_ns > spw_clock_ns())
			until_ns = SPW_MIN(until_ns, paused_ns);
		else
			paused_ns = 0;
		fds[SERVE_CONNECTIONS] = (struct pollfd){
			.fd = count < SERVE_CONNECTIONS && !paused_ns ? fd : -1, .events = POLLIN};
		fds[SERVE_CONNECTIONS + 1] =
			(struct pollfd){.fd = tool_stop_fd(), .events = POLLIN};
		rc = tool_stop_poll(fds, SPW_ARRAY_LEN(fds), until_ns);
		for (unsigned i = 0; i < SERVE_CONNECTIONS && rc >= 0; i++)
			if (connections[i].fd >= 0)
				serve(&connections[i], document, fds[i].revents != 0,
				      spw_clock_ns());
		if (rc > 0 && fds[SERVE_CONNECTIONS].revents)
			paused_ns = accept_one(fd, connections);
	}
	if (rc < 0)
		rc = spw_error_errno(-errno, "cannot wait for connections");
	for (unsigned i = 0; i < SERVE_CONNECTIONS; i++)
		if (connections[i].fd >= 0)
			end(&connections[i]);
	(void)close(fd);
	return rc < 0 ? rc : 0;
}
