/* SPDX-License-Identifier: Apache-2.0 */
/* What the fake device's files share. */
#ifndef OBMM_FAKE_INTERNAL_H
#define OBMM_FAKE_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "fake.h"

#pragma GCC visibility push(hidden)

/* One recording of an event: a stream that waits for it waits for no later one, whichever stream is first. */
struct mark {
	bool reached;
	unsigned int users;
};

struct event {
	struct mark *last; /* NULL: never recorded */
	const struct obmm_fake_graph *graph; /* recorded while that was captured */
	struct event *next;
};

struct action {
	enum { COPY, RECORD, WAIT, HOST, END } kind;
	void *to;
	const void *from;
	uint64_t bytes;
	struct event *event;
	struct mark *mark;
	void (*call)(void *);
	struct action *next;
};

struct obmm_fake_graph {
	struct action *first, **last;
	bool spoiled;
};

struct stream {
	struct fake *fake;
	pthread_t thread;
	struct action *first, **last;
	bool busy;
	struct obmm_fake_graph *graph; /* what is queued becomes part of it */
	struct stream *next;
};

struct fake {
	struct obmm_accelerator base;
	pid_t owner; /* a forked child has neither its threads nor, for sure, its lock */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct stream *default_stream, *streams;
	struct event *events;
	struct event *ended; /* what is queued or captured may still name them, as on a device */
	uint64_t memories;
	uint64_t pending; /* actions that are not done */
	bool refuses;
	unsigned int others; /* that are made before one is refused */
};

static inline struct fake *of(struct obmm_accelerator *self)
{
	return (struct fake *)self;
}

/* What the last failure of this thread was; the code. */
int fake_say(int code, const char *text);
/* With the lock: the stream behind a handle, NULL for one that is none. */
struct stream *fake_stream(struct fake *fake, uint64_t handle);
/* Queue it, or make it part of the graph that is captured. */
int fake_queue(struct obmm_accelerator *self, uint64_t where, struct action what);

#pragma GCC visibility pop

#endif
