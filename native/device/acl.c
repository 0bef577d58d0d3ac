/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ascend, through its ACL.  NOT RUN ON HARDWARE: written from the published
 * interface and tested against a library that records the calls.
 *
 * Host functions: aclrtLaunchHostFunc where the runtime has it; before that,
 * aclrtLaunchCallback, which runs them on a thread that was subscribed to the
 * stream and asks for reports.  Streams that others made stay subscribed for as
 * long as the device is in use here.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "accelerator.h"

enum {
	SUCCESS = 0,
	INVALID_PARAM = 100000,
	BAD_ALLOC = 200000,
	NOT_COMPLETE = 0, /* aclrtQueryEventStatus: complete is 1 */
	HUGE_FIRST = 0,
	HOST_TO_DEVICE = 1,
	DEVICE_TO_HOST = 2,
	CALLBACK_BLOCK = 1,
	EVENT_SYNC = 1,
	REGISTER_MAPPED = 0,
	CAPTURES = 1, /* aclmdlRICaptureGetInfo */
	REPORT_MS = 100,
	STREAMS = 64, /* with host functions, at once */
};

struct functions {
	int (*Init)(const char *config);
	int (*SetDevice)(int32_t device);
	int (*MallocHost)(void **host, size_t bytes);
	int (*FreeHost)(void *host);
	int (*Malloc)(void **device, size_t bytes, int policy);
	int (*Free)(void *device);
	int (*Memset)(void *device, size_t room, int32_t value, size_t bytes);
	int (*CreateStream)(void **stream);
	int (*DestroyStream)(void *stream);
	int (*SynchronizeStream)(void *stream);
	int (*StreamWaitEvent)(void *stream, void *event);
	int (*CreateEvent)(void **event);
	int (*DestroyEvent)(void *event);
	int (*RecordEvent)(void *event, void *stream);
	int (*QueryEventStatus)(void *event, int *status);
	int (*MemcpyAsync)(void *to, size_t room, const void *from, size_t bytes, int kind, void *stream);
	int (*LaunchCallback)(void (*call)(void *), void *argument, int block, void *stream);
	int (*SubscribeReport)(uint64_t thread, void *stream);
	int (*UnSubscribeReport)(uint64_t thread, void *stream);
	int (*ProcessReport)(int32_t milliseconds);
};

/* What later releases have and are better than what was there before; NULL where they are missing. */
struct later {
	int (*LaunchHostFunc)(void *stream, void (*call)(void *), void *argument);
	int (*CreateEventExWithFlag)(void **event, uint32_t flag); /* may be recorded again without a reset */
	int (*HostRegister)(void *host, uint64_t bytes, int type, void **device);
	int (*HostUnregister)(void *host);
	int (*CaptureGetInfo)(void *stream, int *status, void **graph);
	const char *(*RecentErrMsg)(void);
};

static const char *const NAMES[] = {
	"aclInit", "aclrtSetDevice", "aclrtMallocHost", "aclrtFreeHost", "aclrtMalloc", "aclrtFree", "aclrtMemset",
	"aclrtCreateStream", "aclrtDestroyStream", "aclrtSynchronizeStream", "aclrtStreamWaitEvent", "aclrtCreateEvent",
	"aclrtDestroyEvent", "aclrtRecordEvent", "aclrtQueryEventStatus", "aclrtMemcpyAsync", "aclrtLaunchCallback",
	"aclrtSubscribeReport", "aclrtUnSubscribeReport", "aclrtProcessReport",
};
static const char *const LATER[] = {
	"aclrtLaunchHostFunc", "aclrtCreateEventExWithFlag", "aclrtHostRegister", "aclrtHostUnregister",
	"aclmdlRICaptureGetInfo", "aclGetRecentErrMsg",
};
_Static_assert(sizeof(struct later) == sizeof(LATER), "a name for every function");
_Static_assert(sizeof(struct functions) == sizeof(NAMES), "a name for every function");

struct acl {
	struct obmm_accelerator base;
	struct functions acl;
	struct later later;
	/* Without aclrtLaunchHostFunc: host functions run on a thread that asks for them, of the streams that it is named to. */
	pthread_mutex_t lock;
	pthread_t reporter;
	bool reports;
	_Atomic bool ending;
	uint64_t subscribed[STREAMS];
};

static _Thread_local char words[256];
static _Thread_local int current = -1; /* the device that this thread has set, or -1 */

static void *handle(uint64_t number)
{
	return (void *)(uintptr_t)number;
}

static _Thread_local const struct later *at_hand;

static int answer(const char *what, int code)
{
	const char *text = code != SUCCESS && at_hand && at_hand->RecentErrMsg ? at_hand->RecentErrMsg() : NULL;

	if (code == SUCCESS)
		return 0;
	snprintf(words, sizeof(words), "%s: ACL error %d%s%s", what, code, text ? ", " : "", text ? text : "");
	return code == INVALID_PARAM ? -EINVAL : code == BAD_ALLOC ? -ENOMEM : -EIO;
}

static struct acl *enter(struct obmm_accelerator *self)
{
	struct acl *acl = (struct acl *)self;

	if (current != self->ordinal && acl->acl.SetDevice(self->ordinal) == SUCCESS)
		current = self->ordinal;
	at_hand = &acl->later;
	return acl;
}

static int pin(struct obmm_accelerator *self, uint64_t bytes, void **host)
{
	int code = answer("pinned memory", enter(self)->acl.MallocHost(host, bytes));

	if (!code)
		memset(*host, 0, bytes);
	return code;
}

static int unpin(struct obmm_accelerator *self, void *host)
{
	return answer("free pinned memory", enter(self)->acl.FreeHost(host));
}

static int allocate(struct obmm_accelerator *self, uint64_t bytes, uint64_t *device)
{
	struct acl *acl = enter(self);
	int code = answer("device memory", acl->acl.Malloc((void **)device, bytes, HUGE_FIRST));

	if (!code) {
		code = answer("clear device memory", acl->acl.Memset(handle(*device), bytes, 0, bytes));
		if (code)
			acl->acl.Free(handle(*device));
	}
	return code;
}

static int release(struct obmm_accelerator *self, uint64_t device)
{
	return answer("free device memory", enter(self)->acl.Free(handle(device)));
}

/* ---- host functions where a thread has to ask for them ---- */

static void *report(void *argument)
{
	struct acl *acl = argument;

	acl->acl.SetDevice(acl->base.ordinal);
	while (!atomic_load(&acl->ending))
		acl->acl.ProcessReport(REPORT_MS); /* runs what is due; a time-out is not a failure */
	return NULL;
}

/* With the lock. */
static int start_reporter(struct acl *acl)
{
	if (!acl->reports && pthread_create(&acl->reporter, NULL, report, acl)) {
		snprintf(words, sizeof(words), "host functions: no thread can be started");
		return -ENOMEM;
	}
	acl->reports = true;
	return 0;
}

static int subscribe(struct acl *acl, uint64_t stream)
{
	int code = 0, free = -1;

	pthread_mutex_lock(&acl->lock);
	for (int i = 0; i < STREAMS; i++) {
		if (acl->subscribed[i] == stream + 1)
			goto out;
		free = acl->subscribed[i] || free >= 0 ? free : i;
	}
	if (free < 0) {
		snprintf(words, sizeof(words), "host functions: in %d streams at most", STREAMS);
		code = -ENOMEM;
		goto out;
	}
	code = start_reporter(acl);
	if (!code)
		code = answer("host functions", acl->acl.SubscribeReport((uint64_t)acl->reporter, handle(stream)));
	if (!code)
		acl->subscribed[free] = stream + 1;
out:
	pthread_mutex_unlock(&acl->lock);
	return code;
}

static void unsubscribe(struct acl *acl, uint64_t stream)
{
	pthread_mutex_lock(&acl->lock);
	for (int i = 0; i < STREAMS; i++) {
		if (acl->subscribed[i] != stream + 1)
			continue;
		acl->acl.UnSubscribeReport((uint64_t)acl->reporter, handle(stream));
		acl->subscribed[i] = 0;
	}
	pthread_mutex_unlock(&acl->lock);
}

static int make_stream(struct obmm_accelerator *self, uint64_t *stream)
{
	return answer("stream", enter(self)->acl.CreateStream((void **)stream));
}

static int end_stream(struct obmm_accelerator *self, uint64_t stream)
{
	unsubscribe(enter(self), stream);
	return answer("end stream", enter(self)->acl.DestroyStream(handle(stream)));
}

static int make_event(struct obmm_accelerator *self, uint64_t *event)
{
	struct acl *acl = enter(self);

	if (acl->later.CreateEventExWithFlag)
		return answer("event", acl->later.CreateEventExWithFlag((void **)event, EVENT_SYNC));
	return answer("event", acl->acl.CreateEvent((void **)event));
}

static int end_event(struct obmm_accelerator *self, uint64_t event)
{
	return answer("end event", enter(self)->acl.DestroyEvent(handle(event)));
}

static int to_device(struct obmm_accelerator *self, uint64_t device, const void *host, uint64_t bytes, uint64_t stream)
{
	return answer("copy to the device",
		      enter(self)->acl.MemcpyAsync(handle(device), bytes, host, bytes, HOST_TO_DEVICE, handle(stream)));
}

static int to_host(struct obmm_accelerator *self, void *host, uint64_t device, uint64_t bytes, uint64_t stream)
{
	return answer("copy to the host",
		      enter(self)->acl.MemcpyAsync(host, bytes, handle(device), bytes, DEVICE_TO_HOST, handle(stream)));
}

static int record(struct obmm_accelerator *self, uint64_t event, uint64_t stream)
{
	return answer("record an event", enter(self)->acl.RecordEvent(handle(event), handle(stream)));
}

static int wait_for(struct obmm_accelerator *self, uint64_t stream, uint64_t event)
{
	return answer("wait for an event", enter(self)->acl.StreamWaitEvent(handle(stream), handle(event)));
}

static int host(struct obmm_accelerator *self, uint64_t stream, void (*call)(void *), void *argument)
{
	struct acl *acl = enter(self);
	int code;

	if (acl->later.LaunchHostFunc)
		return answer("queue a host function", acl->later.LaunchHostFunc(handle(stream), call, argument));
	code = subscribe(acl, stream);
	/* what is queued behind it waits for it */
	return code ? code : answer("queue a host function",
				    acl->acl.LaunchCallback(call, argument, CALLBACK_BLOCK, handle(stream)));
}

static int query(struct obmm_accelerator *self, uint64_t event)
{
	int status = NOT_COMPLETE;
	int code = answer("ask for an event", enter(self)->acl.QueryEventStatus(handle(event), &status));

	return code ? code : status == NOT_COMPLETE ? -EBUSY : 0;
}

static int synchronize(struct obmm_accelerator *self, uint64_t stream)
{
	return answer("wait for a stream", enter(self)->acl.SynchronizeStream(handle(stream)));
}

/* A handle's context is not told here: an unreadable one is refused, no more. */
static int knows(struct obmm_accelerator *self, uint64_t stream)
{
	(void)self;
	if (!stream || obmm_is_readable(stream))
		return 0;
	snprintf(words, sizeof(words), "%#llx is not a stream: nothing lies there", (unsigned long long)stream);
	return -EINVAL;
}

static int capturing(struct obmm_accelerator *self, uint64_t stream)
{
	struct acl *acl = enter(self);
	void *graph = NULL;
	int status = 0;

	if (!acl->later.CaptureGetInfo)
		return 0;
	return acl->later.CaptureGetInfo(handle(stream), &status, &graph) == SUCCESS && status == CAPTURES;
}

/* ACL has no question for it. */
static int owns(struct obmm_accelerator *self, uint64_t device)
{
	(void)self;
	(void)device;
	return 0;
}

static int share_host(struct obmm_accelerator *self, void *host, uint64_t bytes, uint64_t *device)
{
	struct acl *acl = enter(self);

	if (!acl->later.HostRegister || !acl->later.HostUnregister) {
		snprintf(words, sizeof(words), "this runtime has no aclrtHostRegister");
		return -ENOSYS;
	}
	return answer("register host memory",
		      acl->later.HostRegister(host, bytes, REGISTER_MAPPED, (void **)device));
}

static int unshare_host(struct obmm_accelerator *self, void *host)
{
	return answer("unregister host memory", enter(self)->later.HostUnregister(host));
}

static const char *why(struct obmm_accelerator *self)
{
	(void)self;
	return words;
}

static void destroy(struct obmm_accelerator *self)
{
	struct acl *acl = (struct acl *)self;

	atomic_store(&acl->ending, true);
	if (acl->reports)
		pthread_join(acl->reporter, NULL);
	pthread_mutex_destroy(&acl->lock);
	if (at_hand == &acl->later)
		at_hand = NULL;
	free(acl); /* the library stays: others of this process may use it */
}

int obmm_accelerator_acl(const char *library, int ordinal, struct obmm_accelerator **out, const char **said)
{
	const char *name = library ? library : "libascendcl.so";
	void *opened = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	struct acl *acl;
	void **functions;

	*said = words;
	if (!opened) {
		snprintf(words, sizeof(words), "no Ascend runtime: %s", dlerror());
		return -ENOSYS;
	}
	acl = calloc(1, sizeof(*acl));
	if (!acl)
		return -ENOMEM;
	functions = (void **)&acl->acl;
	for (unsigned int i = 0; i < sizeof(NAMES) / sizeof(*NAMES); i++) {
		functions[i] = dlsym(opened, NAMES[i]);
		if (!functions[i]) {
			snprintf(words, sizeof(words), "%s has no %s: a runtime that is too old", name, NAMES[i]);
			free(acl);
			return -ELIBBAD;
		}
	}
	for (unsigned int i = 0; i < sizeof(LATER) / sizeof(*LATER); i++)
		((void **)&acl->later)[i] = dlsym(opened, LATER[i]);
	acl->acl.Init(NULL); /* a second start is refused and harmless: engines start it themselves */
	at_hand = &acl->later; /* the one before may be freed */
	if (answer("enter the device", acl->acl.SetDevice(ordinal))) {
		at_hand = NULL;
		free(acl);
		return -ENODEV;
	}
	current = ordinal;
	pthread_mutex_init(&acl->lock, NULL);
	acl->base = (struct obmm_accelerator){
		.name = "acl", .ordinal = ordinal, .pin = pin, .unpin = unpin, .allocate = allocate, .release = release,
		.make_stream = make_stream, .end_stream = end_stream, .make_event = make_event, .end_event = end_event,
		.to_device = to_device, .to_host = to_host, .record = record, .wait = wait_for, .host = host,
		.query = query, .synchronize = synchronize, .knows = knows, .capturing = capturing, .owns = owns,
		.share = share_host, .unshare = unshare_host, .why = why, .destroy = destroy, .users = 1,
	};
	*out = &acl->base;
	return 0;
}
