/* SPDX-License-Identifier: Apache-2.0 */
#include "recheck.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "../core/obmm_rw.h"

struct obmm_recheck {
	struct obmm_sys *sys;
	struct obmm_header_place place;
	pthread_mutex_t mutex; /* held during a run */
	pthread_cond_t resumed;
	pid_t owner;
	bool held;
	bool readonly;
};

struct obmm_recheck *obmm_recheck_create(struct obmm_sys *sys, const struct obmm_header_place *place)
{
	struct obmm_recheck *recheck = calloc(1, sizeof(*recheck));

	if (!recheck)
		return NULL;
	recheck->sys = sys;
	recheck->place = *place;
	recheck->owner = getpid();
	recheck->held = true;
	pthread_mutex_init(&recheck->mutex, NULL);
	pthread_cond_init(&recheck->resumed, NULL);
	return recheck;
}

void obmm_recheck_free(struct obmm_recheck *recheck)
{
	/* In a forked child a thread that waited in the parent never leaves, and destroying would wait for it. */
	if (recheck->owner == getpid()) {
		pthread_cond_destroy(&recheck->resumed);
		pthread_mutex_destroy(&recheck->mutex);
	}
	free(recheck);
}

void obmm_recheck_hold(struct obmm_recheck *recheck)
{
	pthread_mutex_lock(&recheck->mutex);
	recheck->held = true;
	pthread_mutex_unlock(&recheck->mutex);
}

void obmm_recheck_resume(struct obmm_recheck *recheck, int readonly)
{
	pthread_mutex_lock(&recheck->mutex);
	recheck->held = false;
	recheck->readonly = readonly;
	pthread_cond_broadcast(&recheck->resumed);
	pthread_mutex_unlock(&recheck->mutex);
}

static int drop_and_load(const struct obmm_recheck *recheck, uint64_t *version, struct obmm_fault *fault)
{
	const struct obmm_header_place *place = &recheck->place;
	int result = obmm_rw_set_ownership(recheck->sys, place->fd, place->start, place->end,
					   OBMM_SHM_MEM_NORMAL | OBMM_SHM_MEM_READONLY, OBMM_SHM_CACHE_INVAL);

	return result ? result : obmm_load(place->version, sizeof(*version), version, fault);
}

int obmm_recheck_run(struct obmm_recheck *recheck, uint64_t *version, struct obmm_fault *fault)
{
	int result;

	pthread_mutex_lock(&recheck->mutex);
	while (recheck->held)
		pthread_cond_wait(&recheck->resumed, &recheck->mutex);
	result = recheck->readonly ? obmm_gate_enter(recheck->place.gate) : -EPERM;
	if (!result) {
		result = drop_and_load(recheck, version, fault);
		obmm_gate_leave(recheck->place.gate);
	}
	pthread_mutex_unlock(&recheck->mutex);
	return result;
}
