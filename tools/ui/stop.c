/* SPDX-License-Identifier: MIT */
/* tools/ui/stop.c - remember an interrupting signal, and wake the thread that sleeps */
#include "tools/ui/stop.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "util/util.h"

static const int signals[] = {SIGINT, SIGTERM, SIGHUP};

/* Globals, as a signal handler can reach nothing else. */
static atomic_bool came;
static int stop_eventfd = -1; /* a sleep that begins after the signal must not miss it */

static struct sigaction before[SPW_ARRAY_LEN(signals)];

void tool_stop(void)
{
	static const uint64_t one = 1;
	int saved = errno;
	ssize_t wrote;

	atomic_store(&came, true);
	wrote = write(stop_eventfd, &one, sizeof(one));
	(void)wrote; /* write() fails if the eventfd is readable already */
	errno = saved;
}

static void on_signal(int signal_number)
{
	(void)signal_number;
	tool_stop();
}

void tool_stop_catch(void)
{
	struct sigaction action = {.sa_handler = on_signal,
				   .sa_flags = (int)(SA_RESETHAND | SA_RESTART)};

	atomic_store(&came, false);
	stop_eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (stop_eventfd < 0)
		return; /* without an eventfd a signal ends the process, as by default */
	(void)sigemptyset(&action.sa_mask);
	for (size_t i = 0; i < SPW_ARRAY_LEN(signals); i++) {
		(void)sigaction(signals[i], NULL, &before[i]);
		/* Under nohup SIGHUP stays ignored, so that the process outlives the terminal. */
		if (signals[i] != SIGHUP || before[i].sa_handler != SIG_IGN)
			(void)sigaction(signals[i], &action, NULL);
	}
}

void tool_stop_release(void)
{
	if (stop_eventfd < 0)
		return;
	for (size_t i = 0; i < SPW_ARRAY_LEN(signals); i++)
		(void)sigaction(signals[i], &before[i], NULL);
	(void)close(stop_eventfd);
	stop_eventfd = -1;
}

bool tool_stopped(void)
{
	return atomic_load(&came);
}

int tool_stop_fd(void)
{
	return stop_eventfd;
}

int tool_stop_poll(struct pollfd fds[], unsigned count, uint64_t until_ns)
{
	uint64_t left_ns = spw_since_ns(spw_clock_ns(), until_ns);
	struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000),
				.tv_nsec = (long)(left_ns % 1000000000)};
	int ready = ppoll(fds, count, &left, NULL);

	return ready < 0 && errno == EINTR ? 0 : ready;
}

void tool_stop_sleep_until(uint64_t ns)
{
	struct pollfd stopped = {.fd = stop_eventfd, .events = POLLIN};

	while (!tool_stopped() && spw_clock_ns() < ns)
		(void)tool_stop_poll(&stopped, 1, ns);
}
