/* SPDX-License-Identifier: MIT */
/*
 * store/pressure.c - spw_store_pressure(): bytes in flight, and how long further bytes would take
 *
 * A request counts from its submission until it ends, in the class that it was submitted with, even
 * if it is raised later.
 */
#include "store/pressure.h"

#include <errno.h>
#include <string.h>

#include "store/drive_health.h"
#include "store/open_store.h"
#include "store/priority.h"
#include "store/request.h"
#include "util/util.h"

void spw_store__pressure_begin(struct spw_request *request)
{
	int cls = atomic_load_explicit(&request->cls, memory_order_relaxed);

	request->asked = request->kind == REQUEST_PUT ? PRIORITY_WRITE : (enum priority)cls;
	(void)atomic_fetch_add(&request->store->queued_bytes[request->asked], request->len_bytes);
}

void spw_store__pressure_end(struct spw_request *request)
{
	SPW_ASSERT(atomic_load(&request->store->queued_bytes[request->asked]) >=
		   request->len_bytes);
	(void)atomic_fetch_sub(&request->store->queued_bytes[request->asked], request->len_bytes);
}

uint64_t spw_store__pressure_all(const struct spw_store *store)
{
	uint64_t bytes = 0;

	for (int priority = 0; priority < PRIORITIES; priority++)
		bytes += atomic_load_explicit(&store->queued_bytes[priority], memory_order_relaxed);
	return bytes;
}

/* A drive that failed is read only where it has the only copy; one that rests serves reads. */
static void add_drive(const struct store_drive *drive, struct spw_store_pressure *all)
{
	int retired = atomic_load_explicit(&drive->retired, memory_order_relaxed);

	all->in_flight += atomic_load_explicit(&drive->in_flight_now, memory_order_relaxed);
	if (!retired)
		all->put_bytes_per_second += atomic_load_explicit(
			&drive->dir[SPW_WRITE].rate.bytes_per_second, memory_order_relaxed);
	if (!retired || spw_store__drive_rests(retired))
		all->get_bytes_per_second += atomic_load_explicit(
			&drive->dir[SPW_READ].rate.bytes_per_second, memory_order_relaxed);
}

static uint64_t time_ns(uint64_t bytes, uint64_t bytes_per_second)
{
	if (bytes == 0)
		return 0;
	if (bytes_per_second == 0)
		return SPW_PRESSURE_UNKNOWN;
	return (uint64_t)((double)bytes * 1e9 / (double)bytes_per_second);
}

static uint64_t one_after_the_other(uint64_t first_ns, uint64_t second_ns)
{
	return first_ns == SPW_PRESSURE_UNKNOWN || second_ns == SPW_PRESSURE_UNKNOWN
		       ? SPW_PRESSURE_UNKNOWN
		       : first_ns + second_ns;
}

void spw_store_pressure(struct spw_store *store, uint64_t len, struct spw_store_pressure *pressure,
			size_t size)
{
	struct spw_store_pressure all = {
		.size = SPW_MIN(size, sizeof(all)),
		.put_bytes = atomic_load_explicit(&store->queued_bytes[PRIORITY_WRITE],
						  memory_order_relaxed),
		.depth = store->drive_count * store->slots_per_drive,
	};
	uint64_t gets_bytes = 0;

	for (uint32_t i = 0; i < store->drive_count; i++)
		add_drive(&store->drives[i], &all);
	for (int cls = 0; cls < SPW_CLASSES; cls++) {
		all.get_bytes[cls] =
			atomic_load_explicit(&store->queued_bytes[cls], memory_order_relaxed);
		gets_bytes += all.get_bytes[cls];
		all.get_ns[cls] = time_ns(gets_bytes + len, all.get_bytes_per_second);
	}
	all.put_ns = one_after_the_other(time_ns(gets_bytes, all.get_bytes_per_second),
					 time_ns(all.put_bytes + len, all.put_bytes_per_second));
	memcpy(pressure, &all, all.size);
}
