/* SPDX-License-Identifier: Apache-2.0 */
#include "accelerator.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../access/guard.h"

void obmm_accelerator_hold(struct obmm_accelerator *accelerator)
{
	accelerator->users++;
}

void obmm_accelerator_drop(struct obmm_accelerator *accelerator)
{
	if (--accelerator->users == 0)
		accelerator->destroy(accelerator);
}

int obmm_is_readable(uint64_t address)
{
	/* reads a set of 8 bytes there, then refuses ~0 as what to do with it: EFAULT comes first */
	return syscall(SYS_rt_sigprocmask, ~0, (void *)(uintptr_t)address, NULL, 8) && errno == EFAULT ? 0 : 1;
}

int obmm_accelerator_knows(struct obmm_accelerator *accelerator, uint64_t stream)
{
	static _Atomic unsigned int turn;
	int code;

	for (unsigned int i = 0; i < 4; i++) {
		if (atomic_load_explicit(&accelerator->known[i], memory_order_relaxed) == stream + 1)
			return 0;
	}
	code = accelerator->knows(accelerator, stream);
	if (!code)
		atomic_store_explicit(&accelerator->known[atomic_fetch_add(&turn, 1) % 4], stream + 1,
				      memory_order_relaxed);
	return code;
}

int obmm_accelerator_share(struct obmm_accelerator *accelerator, void *host, uint64_t bytes, uint64_t *device)
{
	enum { STEP = 4096 };

	for (uint64_t at = 0; at < bytes; at += STEP) {
		if (obmm_guard_covers((uint8_t *)host + at))
			return -EPERM;
	}
	if (bytes && obmm_guard_covers((uint8_t *)host + bytes - 1))
		return -EPERM;
	return accelerator->share(accelerator, host, bytes, device);
}

void obmm_accelerator_unshare(struct obmm_accelerator *accelerator, void *host)
{
	accelerator->unshare(accelerator, host);
	obmm_accelerator_drop(accelerator);
}

void obmm_accelerator_unpin(struct obmm_accelerator *accelerator, void *host)
{
	accelerator->unpin(accelerator, host);
	obmm_accelerator_drop(accelerator);
}

void obmm_accelerator_release(struct obmm_accelerator *accelerator, uint64_t device)
{
	accelerator->release(accelerator, device);
	obmm_accelerator_drop(accelerator);
}

void obmm_accelerator_end_event(struct obmm_accelerator *accelerator, uint64_t event)
{
	accelerator->end_event(accelerator, event);
	obmm_accelerator_drop(accelerator);
}

struct obmm_lane {
	struct obmm_accelerator *accelerator;
	uint64_t stream;
	_Atomic int users;
	pthread_mutex_t lock; /* held while a copy is queued: numbers are in the order of the stream */
	uint64_t queued;
	_Atomic uint64_t done; /* so many are known to be */
};

int obmm_lane_create(struct obmm_accelerator *accelerator, struct obmm_lane **out)
{
	struct obmm_lane *lane = calloc(1, sizeof(*lane));
	int code;

	if (!lane)
		return -ENOMEM;
	code = accelerator->make_stream(accelerator, &lane->stream);
	if (code) {
		free(lane);
		return code;
	}
	obmm_accelerator_hold(accelerator);
	lane->accelerator = accelerator;
	lane->users = 1;
	pthread_mutex_init(&lane->lock, NULL);
	*out = lane;
	return 0;
}

uint64_t obmm_lane_stream(const struct obmm_lane *lane)
{
	return lane->stream;
}

struct obmm_accelerator *obmm_lane_accelerator(const struct obmm_lane *lane)
{
	return lane->accelerator;
}

void obmm_lane_hold(struct obmm_lane *lane)
{
	lane->users++;
}

void obmm_lane_drop(struct obmm_lane *lane)
{
	if (--lane->users)
		return;
	lane->accelerator->synchronize(lane->accelerator, lane->stream);
	lane->accelerator->end_stream(lane->accelerator, lane->stream);
	obmm_accelerator_drop(lane->accelerator);
	pthread_mutex_destroy(&lane->lock);
	free(lane);
}

int obmm_lane_copy(struct obmm_lane *lane, uint64_t device, const void *host, uint64_t bytes, uint64_t event,
		   uint64_t *number)
{
	struct obmm_accelerator *to = lane->accelerator;
	int code;

	pthread_mutex_lock(&lane->lock);
	code = to->to_device(to, device, host, bytes, lane->stream);
	if (!code)
		code = to->record(to, event, lane->stream);
	if (!code)
		*number = ++lane->queued;
	pthread_mutex_unlock(&lane->lock);
	return code;
}

int obmm_lane_done(struct obmm_lane *lane, uint64_t event, uint64_t number)
{
	uint64_t known = atomic_load(&lane->done);
	int code;

	if (known >= number)
		return 0;
	code = lane->accelerator->query(lane->accelerator, event);
	while (!code && known < number && !atomic_compare_exchange_weak(&lane->done, &known, number))
		;
	return code;
}
