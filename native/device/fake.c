/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device of this process: a stream is a thread that does what was queued, in
 * order; an event is a mark that the stream has reached; device memory is
 * ordinary memory.  Slow or wrong orders show here as they would on a device,
 * and handles that it did not make are refused as a careful driver would.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_internal.h"

static _Thread_local char words[128];

int fake_say(int code, const char *text)
{
	snprintf(words, sizeof(words), "%s", text);
	return code;
}

/* In a forked child nothing is given back: it is the parent's, and waiting for a thread there would never end. */
static bool is_inherited(const struct fake *fake)
{
	return fake->owner != getpid();
}

/* With the lock. */
static void drop_mark(struct mark *mark)
{
	if (mark && !--mark->users)
		free(mark);
}

static void act(struct fake *fake, struct action *action)
{
	switch (action->kind) {
	case COPY:
		memcpy(action->to, action->from, action->bytes);
		break;
	case HOST:
		action->call(action->to);
		break;
	case RECORD:
		pthread_mutex_lock(&fake->lock);
		action->mark->reached = true;
		drop_mark(action->mark);
		pthread_mutex_unlock(&fake->lock);
		break;
	case WAIT:
		pthread_mutex_lock(&fake->lock);
		while (action->mark && !action->mark->reached)
			pthread_cond_wait(&fake->changed, &fake->lock);
		drop_mark(action->mark);
		pthread_mutex_unlock(&fake->lock);
		break;
	case END:
		break;
	}
}

static void *run(void *argument)
{
	struct stream *stream = argument;
	struct fake *fake = stream->fake;
	bool more = true;

	while (more) {
		struct action *action;

		pthread_mutex_lock(&fake->lock);
		while (!stream->first)
			pthread_cond_wait(&fake->changed, &fake->lock);
		action = stream->first;
		stream->first = action->next;
		if (!stream->first)
			stream->last = &stream->first;
		stream->busy = true;
		pthread_mutex_unlock(&fake->lock);
		act(fake, action);
		more = action->kind != END;
		free(action);
		pthread_mutex_lock(&fake->lock);
		stream->busy = false;
		fake->pending--;
		pthread_cond_broadcast(&fake->changed);
		pthread_mutex_unlock(&fake->lock);
	}
	return NULL;
}

static int start(struct fake *fake, struct stream **out)
{
	struct stream *stream = calloc(1, sizeof(*stream));

	if (!stream)
		return fake_say(-ENOMEM, "no memory for a stream");
	stream->fake = fake;
	stream->last = &stream->first;
	if (pthread_create(&stream->thread, NULL, run, stream)) {
		free(stream);
		return fake_say(-ENOMEM, "no thread for a stream");
	}
	*out = stream;
	return 0;
}

/* ---- with the lock ---- */

static bool may_make(struct fake *fake)
{
	bool refused = fake->refuses && !fake->others;

	if (fake->refuses && fake->others)
		fake->others--;
	else
		fake->refuses = false;
	return !refused;
}

struct stream *fake_stream(struct fake *fake, uint64_t handle)
{
	struct stream *stream = handle ? fake->streams : fake->default_stream;

	while (handle && stream && (uintptr_t)stream != handle)
		stream = stream->next;
	return stream;
}

static bool has_event(const struct fake *fake, const struct event *event)
{
	const struct event *each = fake->events;

	while (each && each != event)
		each = each->next;
	return each != NULL;
}

/* What a capture makes of an action that is about to be queued; 0, or why it cannot be. */
static int captured(struct stream *stream, const struct action *action)
{
	const struct obmm_fake_graph *of_event = action->event ? action->event->graph : NULL;

	if (action->kind == RECORD)
		action->event->graph = stream->graph;
	if (action->kind != WAIT)
		return 0;
	if (!stream->graph)
		stream->graph = (struct obmm_fake_graph *)of_event; /* a branch of the graph begins */
	if (stream->graph != of_event) {
		stream->graph->spoiled = true;
		return fake_say(-EINVAL, "a captured stream cannot wait for an event from outside of its capture");
	}
	return 0;
}

/* A record makes the event's mark anew; a wait is for the one of now. */
static int mark(struct action *action)
{
	if (action->kind == RECORD) {
		struct mark *made = calloc(1, sizeof(*made));

		if (!made)
			return fake_say(-ENOMEM, "no memory for an event's mark");
		made->users = 1;
		drop_mark(action->event->last);
		action->event->last = made;
	}
	if (action->kind == RECORD || action->kind == WAIT)
		action->mark = action->event->last;
	if (action->mark)
		action->mark->users++;
	return 0;
}

static int put(struct fake *fake, struct stream *stream, struct action *action)
{
	int code;

	if (!stream)
		return fake_say(-EINVAL, "no stream of this device");
	if (action->event && !has_event(fake, action->event))
		return fake_say(-EINVAL, "no event of this device");
	code = captured(stream, action);
	if (code)
		return code;
	if (stream->graph) {
		*stream->graph->last = action;
		stream->graph->last = &action->next;
		return 0;
	}
	code = mark(action);
	if (code)
		return code;
	fake->pending++;
	*stream->last = action;
	stream->last = &action->next;
	pthread_cond_broadcast(&fake->changed);
	return 0;
}

/* ---- the table ---- */

int fake_queue(struct obmm_accelerator *self, uint64_t where, struct action what)
{
	struct fake *fake = of(self);
	struct action *action = malloc(sizeof(*action));
	int code;

	if (!action)
		return fake_say(-ENOMEM, "no memory for what is queued");
	*action = what;
	action->next = NULL;
	pthread_mutex_lock(&fake->lock);
	code = put(fake, fake_stream(fake, where), action);
	pthread_mutex_unlock(&fake->lock);
	if (code)
		free(action);
	return code;
}

static int pin(struct obmm_accelerator *self, uint64_t bytes, void **host)
{
	struct fake *fake = of(self);
	bool may;

	pthread_mutex_lock(&fake->lock);
	may = may_make(fake);
	*host = may ? calloc(1, bytes ? bytes : 1) : NULL;
	fake->memories += *host != NULL;
	pthread_mutex_unlock(&fake->lock);
	return *host ? 0 : fake_say(-ENOMEM, "the fake device has no more memory");
}

/* As on a device: memory goes when nothing that was queued can use it any more. */
static int unpin(struct obmm_accelerator *self, void *host)
{
	struct fake *fake = of(self);

	if (is_inherited(fake))
		return 0;
	pthread_mutex_lock(&fake->lock);
	while (fake->pending)
		pthread_cond_wait(&fake->changed, &fake->lock);
	fake->memories--;
	pthread_mutex_unlock(&fake->lock);
	free(host);
	return 0;
}

static int allocate(struct obmm_accelerator *self, uint64_t bytes, uint64_t *device)
{
	void *memory = NULL;
	int code = pin(self, bytes, &memory);

	*device = (uintptr_t)memory;
	return code;
}

static int release(struct obmm_accelerator *self, uint64_t device)
{
	return unpin(self, (void *)(uintptr_t)device);
}

static int make_stream(struct obmm_accelerator *self, uint64_t *out)
{
	struct fake *fake = of(self);
	struct stream *stream = NULL;
	int code;

	pthread_mutex_lock(&fake->lock);
	code = may_make(fake) ? start(fake, &stream) : fake_say(-ENOMEM, "the fake device has no more streams");
	if (!code) {
		stream->next = fake->streams;
		fake->streams = stream;
	}
	pthread_mutex_unlock(&fake->lock);
	*out = (uintptr_t)stream;
	return code;
}

static void end(struct fake *fake, struct stream *stream)
{
	struct action *action = calloc(1, sizeof(*action));

	if (!action)
		abort(); /* a test without memory for its end */
	action->kind = END;
	pthread_mutex_lock(&fake->lock);
	stream->graph = NULL;
	put(fake, stream, action);
	pthread_mutex_unlock(&fake->lock);
	pthread_join(stream->thread, NULL);
	free(stream);
}

static int end_stream(struct obmm_accelerator *self, uint64_t handle)
{
	struct fake *fake = of(self);
	struct stream *stream, **at;

	if (is_inherited(fake))
		return 0;
	pthread_mutex_lock(&fake->lock);
	stream = handle ? fake_stream(fake, handle) : NULL;
	for (at = &fake->streams; stream && *at != stream; at = &(*at)->next)
		;
	if (stream)
		*at = stream->next;
	pthread_mutex_unlock(&fake->lock);
	if (!stream)
		return fake_say(-EINVAL, "no stream of this device");
	end(fake, stream);
	return 0;
}

static int make_event(struct obmm_accelerator *self, uint64_t *out)
{
	struct fake *fake = of(self);
	struct event *event = NULL;

	pthread_mutex_lock(&fake->lock);
	if (may_make(fake))
		event = calloc(1, sizeof(*event));
	if (event) {
		event->next = fake->events;
		fake->events = event;
	}
	pthread_mutex_unlock(&fake->lock);
	*out = (uintptr_t)event;
	return event ? 0 : fake_say(-ENOMEM, "the fake device has no more events");
}

static int end_event(struct obmm_accelerator *self, uint64_t handle)
{
	struct fake *fake = of(self);
	struct event *event = (struct event *)(uintptr_t)handle, **at = &fake->events;

	if (is_inherited(fake))
		return 0;
	pthread_mutex_lock(&fake->lock);
	while (*at && *at != event)
		at = &(*at)->next;
	if (*at) {
		*at = event->next;
		event->next = fake->ended;
		fake->ended = event;
	} else {
		event = NULL;
	}
	pthread_mutex_unlock(&fake->lock);
	return event ? 0 : fake_say(-EINVAL, "no event of this device");
}

static int to_device(struct obmm_accelerator *self, uint64_t device, const void *host, uint64_t bytes, uint64_t stream)
{
	return fake_queue(self, stream, (struct action){ .kind = COPY, .to = (void *)(uintptr_t)device, .from = host, .bytes = bytes });
}

static int to_host(struct obmm_accelerator *self, void *host, uint64_t device, uint64_t bytes, uint64_t stream)
{
	return fake_queue(self, stream,
		     (struct action){ .kind = COPY, .to = host, .from = (void *)(uintptr_t)device, .bytes = bytes });
}

static int record(struct obmm_accelerator *self, uint64_t event, uint64_t stream)
{
	return fake_queue(self, stream, (struct action){ .kind = RECORD, .event = (struct event *)(uintptr_t)event });
}

static int wait_for(struct obmm_accelerator *self, uint64_t stream, uint64_t event)
{
	return fake_queue(self, stream, (struct action){ .kind = WAIT, .event = (struct event *)(uintptr_t)event });
}

static int host(struct obmm_accelerator *self, uint64_t stream, void (*call)(void *), void *argument)
{
	return fake_queue(self, stream, (struct action){ .kind = HOST, .call = call, .to = argument });
}

static int query(struct obmm_accelerator *self, uint64_t number)
{
	struct event *event = (struct event *)(uintptr_t)number;
	int code;

	pthread_mutex_lock(&of(self)->lock);
	if (!has_event(of(self), event))
		code = fake_say(-EINVAL, "no event of this device");
	else
		code = !event->last || event->last->reached ? 0 : -EBUSY;
	pthread_mutex_unlock(&of(self)->lock);
	return code;
}

static int synchronize(struct obmm_accelerator *self, uint64_t where)
{
	struct fake *fake = of(self);
	struct stream *stream;
	int code = 0;

	if (is_inherited(fake))
		return fake_say(-EINVAL, "the device is another process's");
	pthread_mutex_lock(&fake->lock);
	stream = fake_stream(fake, where);
	if (!stream) {
		code = fake_say(-EINVAL, "no stream of this device");
	} else if (stream->graph) {
		stream->graph->spoiled = true;
		code = fake_say(-EINVAL, "a captured stream cannot be waited for");
	}
	while (!code && (stream->first || stream->busy))
		pthread_cond_wait(&fake->changed, &fake->lock);
	pthread_mutex_unlock(&fake->lock);
	return code;
}

static int knows(struct obmm_accelerator *self, uint64_t where)
{
	int code;

	pthread_mutex_lock(&of(self)->lock);
	code = fake_stream(of(self), where) ? 0 : fake_say(-EINVAL, "no stream of this device");
	pthread_mutex_unlock(&of(self)->lock);
	return code;
}

static int capturing(struct obmm_accelerator *self, uint64_t where)
{
	struct stream *stream;
	int found;

	pthread_mutex_lock(&of(self)->lock);
	stream = fake_stream(of(self), where);
	found = !stream ? fake_say(-EINVAL, "no stream of this device") : stream->graph != NULL;
	pthread_mutex_unlock(&of(self)->lock);
	return found;
}

/* Any memory of this process may play a device's. */
static int owns(struct obmm_accelerator *self, uint64_t device)
{
	(void)self;
	return obmm_is_readable(device) ? 0 : fake_say(-EINVAL, "nothing lies at that address");
}

static int share_host(struct obmm_accelerator *self, void *memory, uint64_t bytes, uint64_t *device)
{
	(void)bytes;
	pthread_mutex_lock(&of(self)->lock);
	of(self)->memories++;
	pthread_mutex_unlock(&of(self)->lock);
	*device = (uintptr_t)memory;
	return 0;
}

static int unshare_host(struct obmm_accelerator *self, void *memory)
{
	(void)memory;
	if (is_inherited(of(self)))
		return 0;
	pthread_mutex_lock(&of(self)->lock);
	of(self)->memories--;
	pthread_mutex_unlock(&of(self)->lock);
	return 0;
}

static const char *why(struct obmm_accelerator *self)
{
	(void)self;
	return words;
}

static void destroy(struct obmm_accelerator *self)
{
	struct fake *fake = of(self);

	if (is_inherited(fake))
		return;
	end(fake, fake->default_stream);
	while (fake->ended) {
		struct event *event = fake->ended;

		fake->ended = event->next;
		drop_mark(event->last);
		free(event);
	}
	pthread_cond_destroy(&fake->changed);
	pthread_mutex_destroy(&fake->lock);
	free(fake);
}

int obmm_accelerator_fake(struct obmm_accelerator **out)
{
	struct fake *fake = calloc(1, sizeof(*fake));
	int code;

	if (!fake)
		return -ENOMEM;
	fake->owner = getpid();
	pthread_mutex_init(&fake->lock, NULL);
	pthread_cond_init(&fake->changed, NULL);
	fake->base = (struct obmm_accelerator){
		.name = "fake", .pin = pin, .unpin = unpin, .allocate = allocate, .release = release,
		.make_stream = make_stream, .end_stream = end_stream, .make_event = make_event, .end_event = end_event,
		.to_device = to_device, .to_host = to_host, .record = record, .wait = wait_for, .host = host,
		.query = query, .synchronize = synchronize, .knows = knows, .capturing = capturing, .owns = owns,
		.share = share_host, .unshare = unshare_host, .why = why, .destroy = destroy, .users = 1,
	};
	code = start(fake, &fake->default_stream);
	if (code) {
		pthread_cond_destroy(&fake->changed);
		pthread_mutex_destroy(&fake->lock);
		free(fake);
		return code;
	}
	*out = &fake->base;
	return 0;
}
