/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "accelerator.h"

/* The driver's interface as far as it is used; its names and types are the vendor's. */
enum {
	SUCCESS = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	INVALID_CONTEXT = 201,
	INVALID_HANDLE = 400,
	NOT_READY = 600,
	CAPTURE_UNSUPPORTED = 900,
	CAPTURE_LAST = 908,
	STREAM_NON_BLOCKING = 1,
	EVENT_DISABLE_TIMING = 2,
	HOST_PORTABLE = 1,
	HOST_MAPPED = 2,
	POINTER_ORDINAL = 9,
	LAST_DEFAULT_STREAM = 2, /* 0, 1 and 2 are names of the default streams */
};

struct functions {
	int (*Init)(unsigned int flags);
	int (*DeviceGet)(int *device, int ordinal);
	int (*DevicePrimaryCtxRetain)(void **context, int device);
	int (*DevicePrimaryCtxRelease_v2)(int device);
	int (*CtxGetCurrent)(void **context);
	int (*CtxSetCurrent)(void *context);
	int (*MemHostAlloc)(void **host, size_t bytes, unsigned int flags);
	int (*MemFreeHost)(void *host);
	int (*MemAlloc_v2)(uint64_t *device, size_t bytes);
	int (*MemFree_v2)(uint64_t device);
	int (*MemsetD8_v2)(uint64_t device, unsigned char value, size_t bytes);
	int (*StreamCreate)(void **stream, unsigned int flags);
	int (*StreamDestroy_v2)(void *stream);
	int (*StreamSynchronize)(void *stream);
	int (*StreamWaitEvent)(void *stream, void *event, unsigned int flags);
	int (*EventCreate)(void **event, unsigned int flags);
	int (*EventDestroy_v2)(void *event);
	int (*EventRecord)(void *event, void *stream);
	int (*EventQuery)(void *event);
	int (*MemcpyHtoDAsync_v2)(uint64_t device, const void *host, size_t bytes, void *stream);
	int (*MemcpyDtoHAsync_v2)(void *host, uint64_t device, size_t bytes, void *stream);
	int (*LaunchHostFunc)(void *stream, void (*call)(void *), void *argument);
	int (*GetErrorString)(int error, const char **text);
	int (*StreamGetCtx)(void *stream, void **context);
	int (*StreamIsCapturing)(void *stream, int *status);
	int (*PointerGetAttribute)(void *data, int attribute, uint64_t address);
	int (*MemHostRegister_v2)(void *host, size_t bytes, unsigned int flags);
	int (*MemHostUnregister)(void *host);
	int (*MemHostGetDevicePointer_v2)(uint64_t *device, void *host, unsigned int flags);
};

static const char *const NAMES[] = {
	"cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxGetCurrent",
	"cuCtxSetCurrent", "cuMemHostAlloc", "cuMemFreeHost", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemsetD8_v2",
	"cuStreamCreate", "cuStreamDestroy_v2", "cuStreamSynchronize", "cuStreamWaitEvent", "cuEventCreate",
	"cuEventDestroy_v2", "cuEventRecord", "cuEventQuery", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
	"cuLaunchHostFunc", "cuGetErrorString", "cuStreamGetCtx", "cuStreamIsCapturing", "cuPointerGetAttribute",
	"cuMemHostRegister_v2", "cuMemHostUnregister", "cuMemHostGetDevicePointer_v2",
};
_Static_assert(sizeof(struct functions) == sizeof(NAMES), "a name for every function");

struct cuda {
	struct obmm_accelerator base;
	struct functions cu;
	void *library;
	void *context;
	int device;
};

static _Thread_local char words[256];

static struct cuda *of(struct obmm_accelerator *self)
{
	return (struct cuda *)self;
}

static void *handle(uint64_t number)
{
	return (void *)(uintptr_t)number;
}

static int answer(struct cuda *cuda, const char *what, int code)
{
	const char *text = NULL;

	if (code == SUCCESS)
		return 0;
	if (code == NOT_READY)
		return -EBUSY;
	cuda->cu.GetErrorString(code, &text);
	snprintf(words, sizeof(words), "%s: CUDA error %d, %s", what, code, text ? text : "unknown");
	if (code == OUT_OF_MEMORY)
		return -ENOMEM;
	if (code == INVALID_VALUE || code == INVALID_CONTEXT || code == INVALID_HANDLE ||
	    (code >= CAPTURE_UNSUPPORTED && code <= CAPTURE_LAST))
		return -EINVAL;
	return -EIO;
}

/* This thread's context is ours until restored: what another library made current is its own. */
static void *enter(struct cuda *cuda)
{
	void *before = NULL;

	cuda->cu.CtxGetCurrent(&before);
	if (before != cuda->context)
		cuda->cu.CtxSetCurrent(cuda->context);
	return before;
}

static void leave(struct cuda *cuda, void *before)
{
	if (before && before != cuda->context)
		cuda->cu.CtxSetCurrent(before);
}

#define CALL(what, call)                                                  \
	do {                                                              \
		struct cuda *cuda = of(self);                             \
		void *before = enter(cuda);                               \
		int code = answer(cuda, what, cuda->cu.call);             \
		leave(cuda, before);                                      \
		return code;                                              \
	} while (0)

static int pin(struct obmm_accelerator *self, uint64_t bytes, void **host)
{
	struct cuda *cuda = of(self);
	void *before = enter(cuda);
	int code = answer(cuda, "pinned memory", cuda->cu.MemHostAlloc(host, bytes, HOST_PORTABLE));

	leave(cuda, before);
	if (!code)
		memset(*host, 0, bytes);
	return code;
}

static int unpin(struct obmm_accelerator *self, void *host)
{
	CALL("free pinned memory", MemFreeHost(host));
}

static int allocate(struct obmm_accelerator *self, uint64_t bytes, uint64_t *device)
{
	struct cuda *cuda = of(self);
	void *before = enter(cuda);
	int code = answer(cuda, "device memory", cuda->cu.MemAlloc_v2(device, bytes));

	if (!code) {
		code = answer(cuda, "clear device memory", cuda->cu.MemsetD8_v2(*device, 0, bytes));
		if (code)
			cuda->cu.MemFree_v2(*device);
	}
	leave(cuda, before);
	return code;
}

static int release(struct obmm_accelerator *self, uint64_t device)
{
	CALL("free device memory", MemFree_v2(device));
}

static int make_stream(struct obmm_accelerator *self, uint64_t *stream)
{
	CALL("stream", StreamCreate((void **)stream, STREAM_NON_BLOCKING));
}

static int end_stream(struct obmm_accelerator *self, uint64_t stream)
{
	CALL("end stream", StreamDestroy_v2(handle(stream)));
}

static int make_event(struct obmm_accelerator *self, uint64_t *event)
{
	CALL("event", EventCreate((void **)event, EVENT_DISABLE_TIMING));
}

static int end_event(struct obmm_accelerator *self, uint64_t event)
{
	CALL("end event", EventDestroy_v2(handle(event)));
}

static int to_device(struct obmm_accelerator *self, uint64_t device, const void *host, uint64_t bytes, uint64_t stream)
{
	CALL("copy to the device", MemcpyHtoDAsync_v2(device, host, bytes, handle(stream)));
}

static int to_host(struct obmm_accelerator *self, void *host, uint64_t device, uint64_t bytes, uint64_t stream)
{
	CALL("copy to the host", MemcpyDtoHAsync_v2(host, device, bytes, handle(stream)));
}

static int record(struct obmm_accelerator *self, uint64_t event, uint64_t stream)
{
	CALL("record an event", EventRecord(handle(event), handle(stream)));
}

static int wait_for(struct obmm_accelerator *self, uint64_t stream, uint64_t event)
{
	CALL("wait for an event", StreamWaitEvent(handle(stream), handle(event), 0));
}

static int host(struct obmm_accelerator *self, uint64_t stream, void (*call)(void *), void *argument)
{
	CALL("queue a host function", LaunchHostFunc(handle(stream), call, argument));
}

static int query(struct obmm_accelerator *self, uint64_t event)
{
	CALL("ask for an event", EventQuery(handle(event)));
}

static int synchronize(struct obmm_accelerator *self, uint64_t stream)
{
	CALL("wait for a stream", StreamSynchronize(handle(stream)));
}

static int knows(struct obmm_accelerator *self, uint64_t stream)
{
	struct cuda *cuda = of(self);
	void *before, *found = NULL;
	int code;

	if (stream <= LAST_DEFAULT_STREAM)
		return 0;
	if (!obmm_is_readable(stream)) {
		snprintf(words, sizeof(words), "%#llx is not a stream: nothing lies there", (unsigned long long)stream);
		return -EINVAL;
	}
	before = enter(cuda);
	code = cuda->cu.StreamGetCtx(handle(stream), &found);
	leave(cuda, before);
	if (code >= CAPTURE_UNSUPPORTED && code <= CAPTURE_LAST)
		return 0; /* it is one, and it captures */
	if (code)
		return answer(cuda, "look at a stream", code);
	if (found == cuda->context)
		return 0;
	snprintf(words, sizeof(words), "the stream belongs to another context than device %d's primary one", self->ordinal);
	return -EINVAL;
}

static int capturing(struct obmm_accelerator *self, uint64_t stream)
{
	struct cuda *cuda = of(self);
	void *before = enter(cuda);
	int status = 0, code = cuda->cu.StreamIsCapturing(handle(stream), &status);

	leave(cuda, before);
	return code ? answer(cuda, "look at a stream", code) : status != 0;
}

static int owns(struct obmm_accelerator *self, uint64_t device)
{
	struct cuda *cuda = of(self);
	int ordinal = -1;

	if (cuda->cu.PointerGetAttribute(&ordinal, POINTER_ORDINAL, device) == SUCCESS && ordinal == self->ordinal)
		return 0;
	if (ordinal < 0)
		snprintf(words, sizeof(words), "%#llx is not memory of a device", (unsigned long long)device);
	else
		snprintf(words, sizeof(words), "the memory is device %d's", ordinal);
	return -EINVAL;
}

static int share_host(struct obmm_accelerator *self, void *host, uint64_t bytes, uint64_t *device)
{
	struct cuda *cuda = of(self);
	void *before = enter(cuda);
	int code = answer(cuda, "register host memory",
			  cuda->cu.MemHostRegister_v2(host, bytes, HOST_PORTABLE | HOST_MAPPED));

	if (!code) {
		code = answer(cuda, "where the device sees it", cuda->cu.MemHostGetDevicePointer_v2(device, host, 0));
		if (code)
			cuda->cu.MemHostUnregister(host);
	}
	leave(cuda, before);
	return code;
}

static int unshare_host(struct obmm_accelerator *self, void *host)
{
	CALL("unregister host memory", MemHostUnregister(host));
}

static const char *why(struct obmm_accelerator *self)
{
	(void)self;
	return words;
}

static void destroy(struct obmm_accelerator *self)
{
	struct cuda *cuda = of(self);

	cuda->cu.DevicePrimaryCtxRelease_v2(cuda->device);
	free(cuda); /* the library stays: its threads may still run */
}

static int resolve(struct cuda *cuda, const char *library, const char **said)
{
	void **functions = (void **)&cuda->cu;

	cuda->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!cuda->library) {
		snprintf(words, sizeof(words), "no CUDA driver: %s", dlerror());
		*said = words;
		return -ENOSYS;
	}
	for (unsigned int i = 0; i < sizeof(NAMES) / sizeof(*NAMES); i++) {
		functions[i] = dlsym(cuda->library, NAMES[i]);
		if (!functions[i]) {
			snprintf(words, sizeof(words), "%s has no %s: a driver that is too old", library, NAMES[i]);
			*said = words;
			return -ELIBBAD;
		}
	}
	return 0;
}

int obmm_accelerator_cuda(const char *library, int ordinal, struct obmm_accelerator **out, const char **said)
{
	struct cuda *cuda = calloc(1, sizeof(*cuda));
	int code;

	if (!cuda)
		return -ENOMEM;
	code = resolve(cuda, library ? library : "libcuda.so.1", said);
	if (code)
		goto fail;
	if (answer(cuda, "start the driver", cuda->cu.Init(0)) ||
	    answer(cuda, "find the device", cuda->cu.DeviceGet(&cuda->device, ordinal)) ||
	    answer(cuda, "enter the device", cuda->cu.DevicePrimaryCtxRetain(&cuda->context, cuda->device))) {
		*said = words;
		code = -ENODEV;
		goto fail;
	}
	cuda->base = (struct obmm_accelerator){
		.name = "cuda", .ordinal = ordinal, .pin = pin, .unpin = unpin, .allocate = allocate, .release = release,
		.make_stream = make_stream, .end_stream = end_stream, .make_event = make_event, .end_event = end_event,
		.to_device = to_device, .to_host = to_host, .record = record, .wait = wait_for, .host = host,
		.query = query, .synchronize = synchronize, .knows = knows, .capturing = capturing, .owns = owns,
		.share = share_host, .unshare = unshare_host, .why = why, .destroy = destroy, .users = 1,
	};
	*out = &cuda->base;
	return 0;
fail:
	free(cuda);
	return code;
}
