/* SPDX-License-Identifier: Apache-2.0 */
/* What tests want of the fake device: what is left of it, refusals, captured graphs. */
#include <errno.h>
#include <stdlib.h>

#include "fake_internal.h"

void obmm_fake_left(struct obmm_accelerator *accelerator, struct obmm_fake_counts *counts)
{
	struct fake *fake = of(accelerator);

	pthread_mutex_lock(&fake->lock);
	*counts = (struct obmm_fake_counts){ .memories = fake->memories };
	for (struct stream *stream = fake->streams; stream; stream = stream->next)
		counts->streams++;
	for (struct event *event = fake->events; event; event = event->next)
		counts->events++;
	pthread_mutex_unlock(&fake->lock);
}

void obmm_fake_refuse(struct obmm_accelerator *accelerator, unsigned int others)
{
	pthread_mutex_lock(&of(accelerator)->lock);
	of(accelerator)->refuses = true;
	of(accelerator)->others = others;
	pthread_mutex_unlock(&of(accelerator)->lock);
}

int obmm_fake_capture(struct obmm_accelerator *accelerator, uint64_t where)
{
	struct fake *fake = of(accelerator);
	struct obmm_fake_graph *graph = calloc(1, sizeof(*graph));
	struct stream *stream;
	int code = graph ? 0 : -ENOMEM;

	pthread_mutex_lock(&fake->lock);
	stream = fake_stream(fake, where);
	if (!stream || !where || stream->graph)
		code = fake_say(-EINVAL, "that stream cannot be captured");
	if (!code) {
		graph->last = &graph->first;
		stream->graph = graph;
	}
	pthread_mutex_unlock(&fake->lock);
	if (code)
		free(graph);
	return code;
}

int obmm_fake_end_capture(struct obmm_accelerator *accelerator, uint64_t where, struct obmm_fake_graph **out)
{
	struct fake *fake = of(accelerator);
	struct obmm_fake_graph *graph;
	struct stream *stream;

	pthread_mutex_lock(&fake->lock);
	stream = fake_stream(fake, where);
	graph = stream ? stream->graph : NULL;
	for (struct stream *each = fake->streams; graph && each; each = each->next)
		each->graph = each->graph == graph ? NULL : each->graph;
	for (struct event *event = fake->events; graph && event; event = event->next)
		event->graph = event->graph == graph ? NULL : event->graph;
	pthread_mutex_unlock(&fake->lock);
	if (!graph)
		return fake_say(-EINVAL, "that stream is not captured");
	if (graph->spoiled) {
		obmm_fake_forget(graph);
		return fake_say(-EINVAL, "the capture was spoiled");
	}
	*out = graph;
	return 0;
}

/* In the order of the capture, which is one that its branches allow. */
int obmm_fake_replay(struct obmm_accelerator *accelerator, struct obmm_fake_graph *graph, uint64_t stream)
{
	int code = 0;

	for (struct action *action = graph->first; !code && action; action = action->next) {
		if (action->kind == COPY || action->kind == HOST)
			code = fake_queue(accelerator, stream, *action);
	}
	return code;
}

void obmm_fake_forget(struct obmm_fake_graph *graph)
{
	while (graph->first) {
		struct action *action = graph->first;

		graph->first = action->next;
		free(action);
	}
	free(graph);
}
