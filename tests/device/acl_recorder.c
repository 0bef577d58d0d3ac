/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays an Ascend runtime and writes every call down.  Streams do what is queued
 * at once; a host function runs where ACL runs it: on the thread that was
 * subscribed to the stream and asks for reports, while the stream waits.  With
 * -DLATER it has what later releases have, too.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
enum { OK = 0, INVALID_PARAM = 100000, REPEATED = 100002, BAD_ALLOC = 200000, TIMED_OUT = 107012 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static char log_text[1 << 20];
static size_t log_bytes;
static int starts, refuse_pinned, memories, streams, events;
static _Thread_local int device = -1;

static void note(const char *what, uint64_t a, uint64_t b)
{
	pthread_mutex_lock(&lock);
	if (log_bytes < sizeof(log_text) - 128)
		log_bytes += (size_t)sprintf(log_text + log_bytes, "%s %llu %llu device %d\n", what, (unsigned long long)a,
					     (unsigned long long)b, device);
	pthread_mutex_unlock(&lock);
}

static void count(int *counter, int more)
{
	pthread_mutex_lock(&lock);
	*counter += more;
	pthread_mutex_unlock(&lock);
}

/* ---- for the test ---- */

EXPORT const char *recorder_log(void)
{
	return log_text;
}

EXPORT void recorder_clear(void)
{
	pthread_mutex_lock(&lock);
	log_bytes = 0;
	log_text[0] = 0;
	pthread_mutex_unlock(&lock);
}

EXPORT void recorder_refuse_pinned(int on)
{
	refuse_pinned = on;
}

EXPORT int recorder_left(int what)
{
	return what == 0 ? memories : what == 1 ? streams : events;
}

/* ---- acl ---- */

EXPORT int aclInit(const char *config)
{
	note("aclInit", config != NULL, 0);
	return starts++ ? REPEATED : OK;
}

EXPORT int aclrtSetDevice(int32_t number)
{
	if (number > 7)
		return INVALID_PARAM;
	device = number;
	note("aclrtSetDevice", (uint64_t)number, 0);
	return OK;
}

static int give(void **out, size_t bytes)
{
	*out = device < 0 ? NULL : malloc(bytes ? bytes : 1);
	if (*out)
		memset(*out, 0xee, bytes); /* ACL's memory is not zeroed */
	count(&memories, *out != NULL);
	return *out ? OK : BAD_ALLOC;
}

EXPORT int aclrtMallocHost(void **host, size_t bytes)
{
	note("aclrtMallocHost", bytes, 0);
	return refuse_pinned ? BAD_ALLOC : give(host, bytes);
}

EXPORT int aclrtFreeHost(void *host)
{
	note("aclrtFreeHost", 0, 0);
	count(&memories, -1);
	free(host);
	return OK;
}

EXPORT int aclrtMalloc(void **out, size_t bytes, int policy)
{
	note("aclrtMalloc", bytes, (uint64_t)policy);
	return give(out, bytes);
}

EXPORT int aclrtFree(void *memory)
{
	note("aclrtFree", 0, 0);
	count(&memories, -1);
	free(memory);
	return OK;
}

EXPORT int aclrtMemset(void *memory, size_t room, int32_t value, size_t bytes)
{
	note("aclrtMemset", bytes, (uint64_t)value);
	if (bytes > room)
		return INVALID_PARAM;
	memset(memory, value, bytes);
	return OK;
}

struct stream {
	uint64_t thread; /* subscribed */
	void (*call)(void *);
	void *argument;
	struct stream *next;
};
static struct stream *first;

EXPORT int aclrtCreateStream(void **out)
{
	struct stream *stream = calloc(1, sizeof(*stream));

	note("aclrtCreateStream", 0, 0);
	count(&streams, 1);
	pthread_mutex_lock(&lock);
	stream->next = first;
	first = stream;
	pthread_mutex_unlock(&lock);
	*out = stream;
	return OK;
}

EXPORT int aclrtDestroyStream(void *handle)
{
	struct stream *stream = handle, **at = &first;
	int subscribed;

	note("aclrtDestroyStream", 0, 0);
	count(&streams, -1);
	pthread_mutex_lock(&lock);
	while (*at != stream)
		at = &(*at)->next;
	*at = stream->next;
	subscribed = stream->thread != 0;
	pthread_mutex_unlock(&lock);
	free(stream);
	return subscribed ? INVALID_PARAM : OK;
}

EXPORT int aclrtSynchronizeStream(void *stream)
{
	note("aclrtSynchronizeStream", stream != NULL, 0);
	return OK;
}

struct event {
	int recorded;
};

static int make_event(const char *how, void **out, uint64_t flag)
{
	note(how, flag, 0);
	count(&events, 1);
	*out = calloc(1, sizeof(struct event));
	return OK;
}

EXPORT int aclrtCreateEvent(void **out)
{
	return make_event("aclrtCreateEvent", out, 0);
}

EXPORT int aclrtDestroyEvent(void *event)
{
	note("aclrtDestroyEvent", 0, 0);
	count(&events, -1);
	free(event);
	return OK;
}

EXPORT int aclrtRecordEvent(void *event, void *stream)
{
	note("aclrtRecordEvent", event != NULL, stream != NULL);
	((struct event *)event)->recorded = 1;
	return OK;
}

EXPORT int aclrtStreamWaitEvent(void *stream, void *event)
{
	note("aclrtStreamWaitEvent", stream != NULL, event != NULL);
	return ((struct event *)event)->recorded ? OK : INVALID_PARAM;
}

EXPORT int aclrtQueryEventStatus(void *event, int *status)
{
	note("aclrtQueryEventStatus", 0, 0);
	*status = ((struct event *)event)->recorded;
	return OK;
}

EXPORT int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t bytes, int kind, void *stream)
{
	note("aclrtMemcpyAsync", bytes, (uint64_t)kind);
	(void)stream;
	if (bytes > room || kind < 1 || kind > 2)
		return INVALID_PARAM;
	memcpy(to, from, bytes);
	return OK;
}

EXPORT int aclrtSubscribeReport(uint64_t thread, void *handle)
{
	struct stream *stream = handle;

	note("aclrtSubscribeReport", thread != 0, handle != NULL);
	if (!stream || stream->thread)
		return INVALID_PARAM;
	stream->thread = thread;
	return OK;
}

EXPORT int aclrtUnSubscribeReport(uint64_t thread, void *handle)
{
	struct stream *stream = handle;

	note("aclrtUnSubscribeReport", thread != 0, handle != NULL);
	if (!stream || stream->thread != thread)
		return INVALID_PARAM;
	stream->thread = 0;
	return OK;
}

EXPORT int aclrtProcessReport(int32_t milliseconds)
{
	struct timespec until;
	struct stream *stream = NULL;
	int late = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += milliseconds * 1000000l;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_mutex_lock(&lock);
	while (!late) {
		for (stream = first; stream; stream = stream->next)
			if (stream->call && stream->thread == (uint64_t)pthread_self())
				break;
		if (stream)
			break;
		late = pthread_cond_timedwait(&changed, &lock, &until);
	}
	pthread_mutex_unlock(&lock);
	if (!stream)
		return TIMED_OUT;
	note("runs a callback", 0, 0);
	stream->call(stream->argument);
	pthread_mutex_lock(&lock);
	stream->call = NULL;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return OK;
}

EXPORT int aclrtLaunchCallback(void (*call)(void *), void *argument, int block, void *handle)
{
	struct stream *stream = handle;

	note("aclrtLaunchCallback", (uint64_t)block, handle != NULL);
	if (!stream || !stream->thread)
		return INVALID_PARAM; /* no thread was subscribed */
	pthread_mutex_lock(&lock);
	stream->argument = argument;
	stream->call = call;
	pthread_cond_broadcast(&changed);
	while (block && stream->call)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	return OK;
}

#ifdef LATER
EXPORT int aclrtLaunchHostFunc(void *stream, void (*call)(void *), void *argument)
{
	note("aclrtLaunchHostFunc", stream != NULL, 0);
	call(argument);
	return OK;
}

EXPORT int aclrtCreateEventExWithFlag(void **out, uint32_t flag)
{
	return make_event("aclrtCreateEventExWithFlag", out, flag);
}

EXPORT int aclrtHostRegister(void *host, uint64_t bytes, int type, void **out)
{
	note("aclrtHostRegister", bytes, (uint64_t)type);
	*out = host;
	return OK;
}

EXPORT int aclrtHostUnregister(void *host)
{
	note("aclrtHostUnregister", host != NULL, 0);
	return OK;
}

EXPORT int aclmdlRICaptureGetInfo(void *stream, int *status, void **graph)
{
	note("aclmdlRICaptureGetInfo", stream != NULL, 0);
	*status = 0;
	*graph = NULL;
	return OK;
}

EXPORT const char *aclGetRecentErrMsg(void)
{
	return "the device has no more memory";
}
#endif
