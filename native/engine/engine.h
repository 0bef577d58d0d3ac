/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fixed set of worker threads and a fixed set of tickets for gathers.
 *
 * A gather runs on the caller's thread, with helpers when that pays, or is
 * submitted and waited for with a deadline.  A load cannot be cancelled: an
 * abandoned gather ends at its next share, or when its load comes back, and
 * until then its request, ids, out and outcome stay in use (Engram
 * specification 11.3, rule 4).
 *
 * In a forked child the threads do not exist: gathers run on the caller's
 * thread, submitting and waiting answer -EOWNERDEAD.
 *
 * A handler that was put in front of the fault guard is noticed by a gather that
 * begins 20 microseconds or more after the last look, and put behind it again.
 */
#ifndef OBMM_ENGINE_H
#define OBMM_ENGINE_H

#include "../abi/lp64.h"

#include <stdint.h>

#include "../gather/gather.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OBMM_MAX_THREADS = 256, OBMM_TICKETS = 256 };

struct obmm_engine;

/*
 * threads: workers, 0 to OBMM_MAX_THREADS.  spin_ns: how long a worker looks
 * for the next job before it sleeps, when none is expected.  cpus[n_cpus]: where worker i is pinned,
 * cpus[i % n_cpus]; none: the scheduler decides.  A refused pin is not an error
 * (obmm_engine_pinned()).
 * 0 or a negative errno.
 */
int obmm_engine_create(unsigned int threads, uint64_t spin_ns, const int *cpus, unsigned int n_cpus,
		       struct obmm_engine **engine);

/*
 * Abandon what is queued and end the workers.  -ETIMEDOUT when one did not come
 * back from a load in time: stop again later.  timeout_ns < 0: wait for ever.
 * Tickets can still be waited for and released; gathers and submissions answer
 * -ESHUTDOWN.
 */
int obmm_engine_stop(struct obmm_engine *engine, int64_t timeout_ns);

/*
 * Free an engine after its last call; stops it first.  An engine with a
 * worker that does not come back within a second is leaked instead.
 */
void obmm_engine_free(struct obmm_engine *engine);
/* The same for where obmm_engine_create() put it, if it did; again does nothing. */
void obmm_engine_drop(struct obmm_engine **engine);

/*
 * A gather comes within that time: workers wake up now and spin until it is
 * there, half a millisecond at most, so that it need not wake them.  No more of
 * them than this process has CPUs to spare (room.h).  Returns at once: how many
 * were told.  What is expected is over when nothing is left to gather; a wrong
 * expectation costs its time on those CPUs.
 */
unsigned int obmm_engine_expect(struct obmm_engine *engine, int64_t within_ns);

/*
 * Several gathers of one caller come right after each other: from begin to end
 * workers that are ready stay so between them, as long as obmm_engine_expect()
 * allows.  Begin expects within_ns.  Every begin has its end.
 */
void obmm_engine_begin_row(struct obmm_engine *engine, int64_t within_ns);
void obmm_engine_end_row(struct obmm_engine *engine);

/* Nanoseconds that workers have spent spinning so far, and those that no gather followed. */
uint64_t obmm_engine_spun_ns(const struct obmm_engine *engine, uint64_t *in_vain);

unsigned int obmm_engine_threads(const struct obmm_engine *engine);
unsigned int obmm_engine_pinned(const struct obmm_engine *engine);
/* Tickets that are not released. */
unsigned int obmm_engine_in_use(struct obmm_engine *engine);

/*
 * Check and gather now, on this thread and up to `threads` - 1 workers; 0: as
 * many as the table's pace says.  Small shares of the rows are taken by the threads
 * that are there: a worker that does not come is not waited for.  The rows read, or
 * outcome->status.
 */
int64_t obmm_engine_gather(struct obmm_engine *engine, const struct obmm_request *request, unsigned int threads,
		       struct obmm_outcome *outcome);

/* The same for a call that recurs: one argument, which costs an interpreter a quarter of what four do. */
struct obmm_call {
	struct obmm_engine *engine;
	const struct obmm_request *request;
	struct obmm_outcome *outcome;
};
int64_t obmm_engine_call(const struct obmm_call *call);

/*
 * Several gathers one after the other on the caller's thread, the first one
 * first, in pieces of ENGINE_PIECE_ROWS: 0, or the status of outcomes[*bad],
 * behind which nothing was read.  Before each piece but the first the clock is
 * looked at, -ETIMEDOUT once deadline_ns (CLOCK_MONOTONIC) has come: a load that
 * hangs is not cut short.  -ESTALE too when the pieces are of two publications.
 * Not for requests with struct obmm_failures.
 */
enum { ENGINE_PIECE_ROWS = 1 << 16 };
int obmm_engine_gather_all(struct obmm_engine *engine, const struct obmm_request *requests, unsigned int n,
			   uint64_t deadline_ns, struct obmm_outcome *outcomes, unsigned int *bad);

/*
 * Check all requests, then queue them all, each with a ticket of its own, in
 * the order given.  -ERANGE (outcomes[*bad] says which id), -EAGAIN (not enough
 * free tickets) or -EOWNERDEAD queue nothing.
 */
int obmm_engine_submit(struct obmm_engine *engine, const struct obmm_request *requests, unsigned int n,
		       unsigned int threads, struct obmm_outcome *outcomes, uint64_t *tickets, unsigned int *bad);

/*
 * Wait until the ticket's gather has ended: 0 (its outcome is complete),
 * -ETIMEDOUT, or -ESTALE for a released ticket.  timeout_ns 0 only looks,
 * < 0 waits for ever.
 */
int obmm_ticket_wait(struct obmm_engine *engine, uint64_t ticket, int64_t timeout_ns);

/* Wait, and when it has ended give the ticket back in the same call. */
int obmm_ticket_collect(struct obmm_engine *engine, uint64_t ticket, int64_t timeout_ns);

/* End early: status becomes -ECANCELED unless it ended before. */
int obmm_ticket_abandon(struct obmm_engine *engine, uint64_t ticket);

/* Give the ticket back.  -EBUSY while its gather runs. */
int obmm_ticket_release(struct obmm_engine *engine, uint64_t ticket);

#ifdef __cplusplus
}
#endif

#endif
