/* SPDX-License-Identifier: Apache-2.0 */
/* This process's place in the cluster, through a daemon or directly, and what is counted (SDK specification 5, 16.2). */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "standin.h"

#define UNIT_MAX (1UL << 40) /* no product of it and a count of units overflows */

enum way { NONE, LINKED, DIRECT };

static pthread_mutex_t lifetime = PTHREAD_MUTEX_INITIALIZER; /* connect and disconnect */
static atomic_int way;
static _Atomic pid_t owner;
static _Atomic(struct obmm_sys *) sys;

/* Nodes that this process has been on: kept, because mappings outlive finalize. */
struct place {
	struct place *next;
	struct standin_welcome where;
	struct obmm_sys *sys;
};

static struct place *places;
static atomic_uint_fast64_t round_trips, system_calls;

struct obmm_sys *standin_sys(void)
{
	return sys;
}

void standin_count_calls(unsigned int n)
{
	system_calls += n;
}

void standin_count_trip(void)
{
	round_trips++;
}

void ubsmem_standin_counters(uint64_t *trips_done, uint64_t *calls_done)
{
	*trips_done = round_trips;
	*calls_done = system_calls;
}

static void leave(enum way from)
{
	way = NONE;
	if (from == LINKED)
		standin_link_disconnect();
	else if (from == DIRECT)
		standin_direct_disconnect();
}

static struct obmm_sys *place_of(const struct standin_welcome *where)
{
	struct place *place = places;

	while (place && memcmp(&place->where, where, sizeof(*where)))
		place = place->next;
	if (place)
		return place->sys;
	place = calloc(1, sizeof(*place));
	if (!place || obmm_sys_emulator(where->socket, where->node, &place->sys)) {
		free(place);
		return NULL;
	}
	place->where = *where;
	place->next = places;
	places = place;
	return place->sys;
}

static int enter(void)
{
	struct standin_settings settings;
	struct standin_welcome welcome = { 0 };
	int code;

	standin_read_settings(&settings);
	code = settings.in_process ? standin_direct_connect(&settings, &welcome) :
				     standin_link_connect(&settings, &welcome);
	if (code)
		return code;
	owner = getpid();
	way = settings.in_process ? DIRECT : LINKED;
	sys = place_of(&welcome);
	if (sys)
		return UBSM_OK;
	leave(way);
	return UBSM_ERR_MEMLIB;
}

int standin_connect(void)
{
	int code;

	pthread_mutex_lock(&lifetime);
	code = way == NONE ? enter() : UBSM_OK;
	pthread_mutex_unlock(&lifetime);
	return code;
}

void standin_disconnect(void)
{
	pthread_mutex_lock(&lifetime);
	if (way != NONE && owner == getpid())
		leave(way);
	pthread_mutex_unlock(&lifetime);
}

int standin_call(const struct standin_request *request, const void *payload, void **body, size_t *size)
{
	enum way through = way;
	void *unwanted = NULL;
	size_t room;
	int code = UBSM_ERR_NET;

	if (!body)
		body = &unwanted;
	if (!size)
		size = &room;
	*body = NULL;
	*size = 0;
	/* the real library blocks for ever in a forked child; a stand-in need not */
	if (through == LINKED && owner == getpid())
		code = standin_link_call(request, payload, body, size);
	else if (through == DIRECT && owner == getpid())
		code = standin_direct_call(request, payload, body, size);
	free(unwanted);
	return code;
}

/* The peer is not trusted: nothing is read beyond the answer, nothing mapped beyond the object. */
static int are_units(const struct standin_units *units, size_t size)
{
	return size >= sizeof(*units) && units->unit && units->unit <= UNIT_MAX && units->count &&
	       units->count <= UBSM_MAX_UNITS && size == sizeof(*units) + units->count * sizeof(uint64_t) &&
	       units->size / units->unit + !!(units->size % units->unit) == units->count;
}

int standin_call_units(const struct standin_request *request, const void *payload, struct standin_units **units)
{
	void *body;
	size_t size;
	int code = standin_call(request, payload, &body, &size);

	if (!code && !are_units(body, size))
		code = UBSM_ERR_NET;
	if (code) {
		free(body);
		body = NULL;
	}
	*units = body;
	return code;
}
