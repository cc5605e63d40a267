/* SPDX-License-Identifier: MIT */
/* tools/ui/stop.c - an interrupt is remembered, and wakes who sleeps */
#include "tools/ui/stop.h"

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "util/util.h"

static const int signals[] = {SIGINT, SIGTERM, SIGHUP};

/* The only things that a signal handler can reach. */
static atomic_bool came;
static sem_t wake; /* a sleep that begins after the signal must not miss it */

static struct sigaction before[SPW_ARRAY_LEN(signals)];

static void on_signal(int signal_number)
{
	int saved = errno;

	(void)signal_number;
	atomic_store(&came, true);
	(void)sem_post(&wake);
	errno = saved;
}

void tool_stop_catch(void)
{
	struct sigaction action = {.sa_handler = on_signal,
				   .sa_flags = (int)(SA_RESETHAND | SA_RESTART)};

	atomic_store(&came, false);
	(void)sem_init(&wake, 0, 0);
	(void)sigemptyset(&action.sa_mask);
	for (size_t i = 0; i < SPW_ARRAY_LEN(signals); i++) {
		(void)sigaction(signals[i], NULL, &before[i]);
		/* nohup: who is to survive the terminal does. */
		if (signals[i] != SIGHUP || before[i].sa_handler != SIG_IGN)
			(void)sigaction(signals[i], &action, NULL);
	}
}

void tool_stop_release(void)
{
	for (size_t i = 0; i < SPW_ARRAY_LEN(signals); i++)
		(void)sigaction(signals[i], &before[i], NULL);
	(void)sem_destroy(&wake);
}

bool tool_stopped(void)
{
	return atomic_load(&came);
}

void tool_stop_sleep_until(uint64_t ns)
{
	struct timespec until = {.tv_sec = (time_t)(ns / 1000000000),
				 .tv_nsec = (long)(ns % 1000000000)};

	while (!tool_stopped() && sem_clockwait(&wake, CLOCK_MONOTONIC, &until) != 0 &&
	       errno == EINTR)
		;
}
