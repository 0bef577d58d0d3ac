/* SPDX-License-Identifier: Apache-2.0 */
/* Landings and gathers in a stream, on the fake device: whose bytes are where, and when. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../device/landing.h"
#include "../device/stream_gather.h"
#include "test.h"

enum { BYTES = 4096 };

static struct obmm_accelerator *fake(void)
{
	struct obmm_accelerator *accelerator = NULL;

	CHECK(obmm_accelerator_fake(&accelerator) == 0);
	return accelerator;
}

TEST(a_gather_that_ended_well_is_copied)
{
	struct obmm_accelerator *device = fake();
	struct obmm_outcome good = { .status = 0 }, bad = { .status = -EFAULT };
	struct obmm_lane *lane;
	struct obmm_zone *zone;
	struct obmm_landing *landing;
	uint64_t memory;
	void *host;

	CHECK(!device->pin(device, BYTES, &host) && !device->allocate(device, BYTES, &memory));
	CHECK(!obmm_lane_create(device, &lane) && !obmm_zone_create(lane, memory, &zone));
	CHECK(!obmm_landing_create(zone, host, &landing));
	memset(host, 7, BYTES);
	obmm_landing_arm(landing, BYTES);
	obmm_landing_arrived(landing, &bad);
	CHECK(!obmm_landing_queued(landing));
	CHECK(obmm_landing_join(landing, 0) == -EAGAIN);
	obmm_landing_arm(landing, 0);
	obmm_landing_arrived(landing, &good);
	CHECK(!obmm_landing_queued(landing));
	obmm_landing_arm(landing, BYTES);
	obmm_landing_arrived(landing, &good);
	CHECK(obmm_landing_queued(landing));
	CHECK(obmm_landing_join(landing, 0) == 0);
	CHECK(device->synchronize(device, 0) == 0);
	CHECK(memcmp((void *)(uintptr_t)memory, host, BYTES) == 0);
	CHECK(obmm_landing_done(landing) == 0);
	obmm_landing_free(landing);
	obmm_zone_free(zone);
	obmm_lane_drop(lane);
	device->unpin(device, host);
	device->release(device, memory);
	obmm_accelerator_drop(device);
}

TEST(a_gather_that_was_overtaken_is_not)
{
	struct obmm_accelerator *device = fake();
	struct obmm_outcome good = { .status = 0 };
	struct obmm_lane *lane;
	struct obmm_zone *zone;
	struct obmm_landing *old, *young;
	uint64_t memory;
	void *hosts[2];

	CHECK(!device->allocate(device, BYTES, &memory));
	CHECK(!device->pin(device, BYTES, &hosts[0]) && !device->pin(device, BYTES, &hosts[1]));
	CHECK(!obmm_lane_create(device, &lane) && !obmm_zone_create(lane, memory, &zone));
	CHECK(!obmm_landing_create(zone, hosts[0], &old) && !obmm_landing_create(zone, hosts[1], &young));
	memset(hosts[0], 1, BYTES);
	memset(hosts[1], 2, BYTES);
	obmm_landing_arm(old, BYTES);
	obmm_landing_arm(young, BYTES);
	obmm_landing_arrived(young, &good);
	obmm_landing_arrived(old, &good); /* late: of a step that was given up */
	CHECK(!obmm_landing_queued(old) && obmm_landing_queued(young));
	/* in any order of collection */
	obmm_accelerator_drop(device);
	obmm_lane_drop(lane);
	obmm_zone_free(zone);
	obmm_landing_free(old);
	CHECK(obmm_landing_join(young, 0) == 0);
	CHECK(((unsigned char *)(uintptr_t)memory)[BYTES - 1] <= 2);
	device->synchronize(device, 0);
	CHECK(memcmp((void *)(uintptr_t)memory, hosts[1], BYTES) == 0);
	device->unpin(device, hosts[0]);
	device->unpin(device, hosts[1]);
	device->release(device, memory);
	obmm_landing_free(young);
}

TEST(copies_wait_for_the_readers_before)
{
	struct obmm_accelerator *device = fake();
	uint64_t reader, copies, event, memory;
	unsigned char *host, *seen;

	CHECK(!device->make_stream(device, &reader) && !device->make_stream(device, &copies));
	CHECK(!device->make_event(device, &event) && !device->allocate(device, BYTES, &memory));
	CHECK(!device->pin(device, BYTES, (void **)&host) && !device->pin(device, BYTES, (void **)&seen));
	for (int round = 1; round < 100; round++) {
		memset(host, round, BYTES);
		CHECK(!device->to_device(device, memory, host, BYTES, copies));
		CHECK(!device->record(device, event, copies) && !device->wait(device, reader, event));
		CHECK(!device->to_host(device, seen, memory, BYTES, reader));
		CHECK(!obmm_read_by(device, event, reader, copies));
		CHECK(!device->synchronize(device, reader));
		CHECK(seen[0] == round && seen[BYTES - 1] == round);
	}
	device->unpin(device, host);
	device->unpin(device, seen);
	device->release(device, memory);
	device->end_stream(device, reader);
	device->end_stream(device, copies);
	device->end_event(device, event);
	obmm_accelerator_drop(device);
}

/* ---- one event, recorded in two streams ---- */

static _Atomic int gate_is_open, second_came, third_came;

static void pass_the_gate(void *unused)
{
	(void)unused;
	while (!gate_is_open)
		usleep(100);
}

static void note(void *flag)
{
	*(_Atomic int *)flag = 1;
}

static void until(const _Atomic int *flag)
{
	while (!*flag)
		usleep(100);
}

TEST(who_waits_for_an_event_waits_for_the_record_of_then)
{
	struct obmm_accelerator *device = fake();
	uint64_t slow, quick, first, second, third, event;

	CHECK(!device->make_stream(device, &slow) && !device->make_stream(device, &quick));
	CHECK(!device->make_stream(device, &first) && !device->make_stream(device, &second));
	CHECK(!device->make_stream(device, &third) && !device->make_event(device, &event));
	CHECK(!device->host(device, slow, pass_the_gate, NULL));
	CHECK(!device->record(device, event, slow) && !device->wait(device, first, event));
	CHECK(!device->host(device, first, note, (void *)&third_came));
	/* recorded anew by a stream that is there before */
	CHECK(!device->record(device, event, quick) && !device->wait(device, second, event));
	CHECK(!device->host(device, second, note, (void *)&second_came));
	until(&second_came);
	CHECK(!device->query(device, event) && !third_came);
	gate_is_open = 1;
	until(&third_came);
	CHECK(!device->synchronize(device, slow) && !device->query(device, event));
	/* the slow one came last, and takes nothing back */
	CHECK(!device->wait(device, third, event) && !device->synchronize(device, third));
	CHECK(!device->end_event(device, event));
	for (int i = 0; i < 5; i++)
		CHECK(!device->end_stream(device, (uint64_t[]){ slow, quick, first, second, third }[i]));
	obmm_accelerator_drop(device);
}

TEST(a_missing_library_is_said)
{
	struct obmm_accelerator *device = NULL;
	const char *why = NULL;

	CHECK(obmm_accelerator_cuda("/no-such-library.so", 0, &device, &why) == -ENOSYS);
	CHECK(strstr(why, "no-such-library"));
	CHECK(obmm_accelerator_acl("/no-such-library.so", 0, &device, &why) == -ENOSYS);
	CHECK(obmm_accelerator_cuda("libc.so.6", 0, &device, &why) == -ELIBBAD);
	CHECK(strstr(why, "cuInit"));
}
