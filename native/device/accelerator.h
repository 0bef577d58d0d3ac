/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What carries rows to an accelerator: one small table of functions.
 *
 * Filled for CUDA from the driver's own library, for Ascend from its ACL, both
 * opened at run time and never linked, and by a fake device of this process for
 * tests.  Addresses of device memory are never dereferenced here.
 *
 * All functions may be called by any thread.  They return 0 or a negative errno:
 * -ENOMEM, -EBUSY (not done yet), -EINVAL (the device refuses the arguments,
 * for example a stream of another context or a capture that cannot take this),
 * -EIO (anything else).  why() has the words.
 */
#ifndef OBMM_ACCELERATOR_H
#define OBMM_ACCELERATOR_H

#include <stdint.h>

struct obmm_accelerator {
	const char *name; /* "cuda", "acl", "fake" */
	int ordinal;
	/* Host memory that the device copies from without a bounce, zeroed. */
	int (*pin)(struct obmm_accelerator *self, uint64_t bytes, void **host);
	int (*unpin)(struct obmm_accelerator *self, void *host);
	/* Device memory, zeroed. */
	int (*allocate)(struct obmm_accelerator *self, uint64_t bytes, uint64_t *device);
	int (*release)(struct obmm_accelerator *self, uint64_t device);
	/* Streams and events; a stream of our own never waits for the default one. */
	int (*make_stream)(struct obmm_accelerator *self, uint64_t *stream);
	int (*end_stream)(struct obmm_accelerator *self, uint64_t stream);
	int (*make_event)(struct obmm_accelerator *self, uint64_t *event);
	int (*end_event)(struct obmm_accelerator *self, uint64_t event);
	/* Queued in `stream`; legal while it is captured into a graph. */
	int (*to_device)(struct obmm_accelerator *self, uint64_t device, const void *host, uint64_t bytes, uint64_t stream);
	int (*to_host)(struct obmm_accelerator *self, void *host, uint64_t device, uint64_t bytes, uint64_t stream);
	int (*record)(struct obmm_accelerator *self, uint64_t event, uint64_t stream);
	int (*wait)(struct obmm_accelerator *self, uint64_t stream, uint64_t event);
	int (*host)(struct obmm_accelerator *self, uint64_t stream, void (*call)(void *), void *argument);
	/* The host's: whether everything before the event is done; until a stream is empty. */
	int (*query)(struct obmm_accelerator *self, uint64_t event);
	int (*synchronize)(struct obmm_accelerator *self, uint64_t stream);
	/* 0, or -EINVAL: a handle that is not a stream of this device and context, as far as that can be told. */
	int (*knows)(struct obmm_accelerator *self, uint64_t stream);
	/* 1: what is queued in the stream becomes part of a graph. */
	int (*capturing)(struct obmm_accelerator *self, uint64_t stream);
	/* 0, or -EINVAL: the address is not memory of this device. */
	int (*owns)(struct obmm_accelerator *self, uint64_t device);
	/* Ordinary host memory that the device may read by itself, and where; -ENOSYS: this device cannot. */
	int (*share)(struct obmm_accelerator *self, void *host, uint64_t bytes, uint64_t *device);
	int (*unshare)(struct obmm_accelerator *self, void *host);
	/* What the last failure of this thread was, in the library's words. */
	const char *(*why)(struct obmm_accelerator *self);
	void (*destroy)(struct obmm_accelerator *self);
	/* Who uses it; made with 1.  Interpreters collect in any order. */
	_Atomic int users;
	_Atomic uint64_t known[4]; /* streams that knows() has passed, see obmm_accelerator_knows() */
};

/*
 * library: the driver's, NULL for its usual name.  0, -ENOSYS (there is no such
 * library), -ENODEV (no such device), -ELIBBAD (it lacks a function); *why then
 * has the words, static memory of this thread.
 */
int obmm_accelerator_cuda(const char *library, int ordinal, struct obmm_accelerator **out, const char **why);
int obmm_accelerator_acl(const char *library, int ordinal, struct obmm_accelerator **out, const char **why);

/* Streams are threads, events are counters, device memory is memory of this process.  More of it: fake.h. */
int obmm_accelerator_fake(struct obmm_accelerator **out);

/* One more user, one less; the last one's end destroys it. */
void obmm_accelerator_hold(struct obmm_accelerator *accelerator);
void obmm_accelerator_drop(struct obmm_accelerator *accelerator);

/*
 * knows(), asked once for each of the few streams that a program has: a stream
 * that is ended later is not noticed by it.
 */
int obmm_accelerator_knows(struct obmm_accelerator *accelerator, uint64_t stream);

/* Whether a handle that is an address can be read at all: a wrong one must not reach a driver, which trusts it. */
int obmm_is_readable(uint64_t address);

/*
 * Host memory that the device reads by itself.  -EPERM: it lies in a mapping of
 * another node's memory, whose pages the device's driver cannot hold.
 */
int obmm_accelerator_share(struct obmm_accelerator *accelerator, void *host, uint64_t bytes, uint64_t *device);
void obmm_accelerator_unshare(struct obmm_accelerator *accelerator, void *host);

/* What was made for a user: undone, and the user gone. */
void obmm_accelerator_unpin(struct obmm_accelerator *accelerator, void *host);
void obmm_accelerator_release(struct obmm_accelerator *accelerator, uint64_t device);
void obmm_accelerator_end_event(struct obmm_accelerator *accelerator, uint64_t event);

/* A stream that several hold: ended, when it is empty, with the last of them. */
struct obmm_lane;
int obmm_lane_create(struct obmm_accelerator *accelerator, struct obmm_lane **lane);
uint64_t obmm_lane_stream(const struct obmm_lane *lane);
struct obmm_accelerator *obmm_lane_accelerator(const struct obmm_lane *lane);
void obmm_lane_hold(struct obmm_lane *lane);
void obmm_lane_drop(struct obmm_lane *lane);

/*
 * Copy there through the lane, and record the event; *number is the copy's place
 * in the order of the stream.  0 or a negative errno.
 */
int obmm_lane_copy(struct obmm_lane *lane, uint64_t device, const void *host, uint64_t bytes, uint64_t event,
		   uint64_t *number);

/* 0: that copy, whose event this is, is done; -EBUSY: not yet.  The device is asked only if no later copy is known to be. */
int obmm_lane_done(struct obmm_lane *lane, uint64_t event, uint64_t number);

#endif
