/* SPDX-License-Identifier: Apache-2.0 */
#include "landing.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct obmm_zone {
	struct obmm_accelerator *accelerator; /* the lane's */
	struct obmm_lane *lane;
	uint64_t device;
	_Atomic int users;
	pthread_mutex_t lock; /* held while a copy is queued, which never waits */
	uint64_t turn;
};

struct obmm_landing {
	struct obmm_zone *zone;
	const void *host;
	uint64_t event;
	/* Under the zone's lock. */
	uint64_t bytes, turn;
	uint64_t number; /* of its copy in the lane */
	bool queued;
};

int obmm_zone_create(struct obmm_lane *lane, uint64_t device, struct obmm_zone **out)
{
	struct obmm_zone *zone = calloc(1, sizeof(*zone));

	if (!zone)
		return -ENOMEM;
	obmm_lane_hold(lane);
	zone->lane = lane;
	zone->accelerator = obmm_lane_accelerator(lane);
	zone->device = device;
	zone->users = 1;
	pthread_mutex_init(&zone->lock, NULL);
	*out = zone;
	return 0;
}

void obmm_zone_free(struct obmm_zone *zone)
{
	if (--zone->users)
		return;
	pthread_mutex_destroy(&zone->lock);
	obmm_lane_drop(zone->lane);
	free(zone);
}

int obmm_landing_create(struct obmm_zone *zone, const void *host, struct obmm_landing **out)
{
	struct obmm_landing *landing = calloc(1, sizeof(*landing));
	int code;

	if (!landing)
		return -ENOMEM;
	landing->zone = zone;
	landing->host = host;
	code = zone->accelerator->make_event(zone->accelerator, &landing->event);
	if (code) {
		free(landing);
		return code;
	}
	zone->users++;
	*out = landing;
	return 0;
}

void obmm_landing_free(struct obmm_landing *landing)
{
	struct obmm_zone *zone = landing->zone;

	zone->accelerator->synchronize(zone->accelerator, obmm_lane_stream(zone->lane));
	zone->accelerator->end_event(zone->accelerator, landing->event);
	free(landing);
	obmm_zone_free(zone);
}

void obmm_landing_arm(struct obmm_landing *landing, uint64_t bytes)
{
	pthread_mutex_lock(&landing->zone->lock);
	landing->bytes = bytes;
	landing->queued = false;
	if (bytes)
		landing->turn = ++landing->zone->turn;
	pthread_mutex_unlock(&landing->zone->lock);
}

/* With the zone's lock. */
static int copy(struct obmm_landing *landing)
{
	struct obmm_zone *zone = landing->zone;
	int code = obmm_lane_copy(zone->lane, zone->device, landing->host, landing->bytes, landing->event,
				  &landing->number);

	landing->queued = !code;
	return code;
}

void obmm_landing_arrived(void *context, const struct obmm_outcome *outcome)
{
	struct obmm_landing *landing = context;

	pthread_mutex_lock(&landing->zone->lock);
	if (landing->bytes && landing->turn == landing->zone->turn && !outcome->status)
		copy(landing); /* one that fails is tried, and told, by who joins */
	pthread_mutex_unlock(&landing->zone->lock);
}

int obmm_landing_copy(struct obmm_landing *landing, uint64_t bytes)
{
	int code;

	pthread_mutex_lock(&landing->zone->lock);
	landing->bytes = bytes;
	landing->turn = ++landing->zone->turn;
	code = copy(landing);
	pthread_mutex_unlock(&landing->zone->lock);
	return code;
}

int obmm_landing_queued(struct obmm_landing *landing)
{
	int queued;

	pthread_mutex_lock(&landing->zone->lock);
	queued = landing->queued;
	pthread_mutex_unlock(&landing->zone->lock);
	return queued;
}

int obmm_landing_join(struct obmm_landing *landing, uint64_t stream)
{
	struct obmm_accelerator *to = landing->zone->accelerator;

	int code;

	if (!obmm_landing_queued(landing))
		return -EAGAIN;
	code = obmm_accelerator_knows(to, stream);
	return code ? code : to->wait(to, stream, landing->event);
}

int obmm_landing_done(struct obmm_landing *landing)
{
	uint64_t number;
	bool queued;

	pthread_mutex_lock(&landing->zone->lock);
	queued = landing->queued;
	number = landing->number;
	pthread_mutex_unlock(&landing->zone->lock);
	return queued ? obmm_lane_done(landing->zone->lane, landing->event, number) : 0;
}

int obmm_read_by(struct obmm_accelerator *accelerator, uint64_t event, uint64_t stream, uint64_t copies)
{
	int code = obmm_accelerator_knows(accelerator, stream);

	if (!code)
		code = accelerator->record(accelerator, event, stream);
	return code ? code : accelerator->wait(accelerator, copies, event);
}
