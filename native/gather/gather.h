/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Row gather: random rows of a table in mapped memory, copied in the order
 * asked for into a buffer of the caller (Engram specification 5.2, 13.2).
 *
 * All row numbers are checked before the first row is read.  Nothing here
 * allocates.  A fault in the table ends the gather with -EFAULT; the output
 * then holds unspecified bytes, unless the request asks for struct obmm_failures.
 */
#ifndef OBMM_GATHER_H
#define OBMM_GATHER_H

#include "../abi/lp64.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../access/gate.h"
#include "../access/guard.h"
#include "hot.h"

#ifdef __cplusplus
extern "C" {
#endif

struct obmm_pace;
struct obmm_recheck;

enum obmm_table_flags {
	OBMM_TABLE_NC = 1,   /* the mapping is non-cacheable: wide loads, no prefetch */
	OBMM_TABLE_HUGE = 2, /* it is mapped by 2 MiB pages or larger */
};

/* What the planner decides (obmm_tuning_default() without measurements). */
struct obmm_tuning {
	uint32_t prefetch_bytes; /* how far ahead lines are asked for; 0: never */
	uint32_t stream_bytes;	 /* results of at least this size are written past the caches */
	uint32_t stream_alone;	 /* ... and those of one thread alone already from this one */
	uint32_t stream_row;	 /* ... when the rows have at least this size */
	uint32_t order_rows;	 /* batches of at least this many rows are read in address order */
	uint32_t order_row;	 /* ... when the rows have at least this size */
	uint32_t row_ns;	 /* what a row of a small batch costs one thread */
	uint32_t most_threads;	 /* for gathers that do not say how many; 0: any number */
	uint32_t node;		 /* the NUMA node of the rows, plus 1; 0: no single one, or all the same */
	uint32_t near_cpus;	 /* of that node: up to so many threads, only those there take part */
};

/* What was gathered from a table; added to atomically when a gather ends. */
struct obmm_totals {
	uint64_t gathers;
	uint64_t ids;
	uint64_t rows_read;
	uint64_t rows_zero;
	uint64_t rows_hot;
	uint64_t rows_missed;
	uint64_t nanoseconds; /* sums up gathers that overlapped */
	uint64_t refused;
	uint64_t faults;
	uint64_t stale;
	uint64_t cancelled; /* abandoned, or the memory was closed */
};

/*
 * How rows are read that no load reaches: by requests over another way.  An
 * error is -EFAULT, with *fault filled.
 */
struct obmm_fetch {
	void *context;
	/* n rows of row_bytes at byte offsets into the memory, each to its place. */
	int (*rows)(void *context, const uint64_t *offsets, uint8_t *const *out, size_t n, uint32_t row_bytes,
		    struct obmm_fault *fault);
	/* The content version now; 0 where there is none. */
	int (*version)(void *context, uint64_t *version, struct obmm_fault *fault);
};

/*
 * How long a gather takes at least, for memory that plays a slower one (a
 * modelled fabric): a thread that has read its rows sooner waits.
 */
struct obmm_delay {
	uint64_t call_ns; /* of each thread that takes part */
	uint64_t row_ps;  /* of each row that it read */
};

/* Wait until ns have passed since began_ns (CLOCK_MONOTONIC): asleep, then looking at the clock. */
void obmm_delay_wait(uint64_t began_ns, uint64_t ns);

/* One table; immutable while gathers run. */
struct obmm_table {
	const uint8_t *base;
	uint64_t rows;
	uint64_t row_stride;
	uint64_t rows_per_segment; /* 0: contiguous; else slot mode, address = base + id / n * segment_bytes + ... */
	uint64_t segment_bytes;
	uint32_t row_bytes;
	uint32_t flags;
	struct obmm_tuning tuning;
	/* The gates of the mappings that the table lies in, entered while rows are read; n_gates may be 0. */
	struct obmm_gate *const *gates;
	uint32_t n_gates;
	/*
	 * The content version in the region's header, or NULL: read before and
	 * after the rows; odd or changed gives -ESTALE.
	 */
	const uint64_t *version;
	/*
	 * The version that this host's caches may hold rows of, or NULL or 0:
	 * any other gives -ESTALE, because cached rows can be older than it.
	 */
	const uint64_t *cached;
	struct obmm_totals *totals; /* may be NULL */
	/* NULL where loads reach the rows; else base is an offset, and version and cached are NULL. */
	const struct obmm_fetch *fetch;
	struct obmm_pace *pace;	    /* what was learned of threads (../engine/pace.h), or NULL */
	const struct obmm_delay *delay; /* or NULL */
};

enum obmm_invalid {
	OBMM_INVALID_ERROR = 0, /* an id outside the table refuses the whole request */
	OBMM_INVALID_ZERO = 1,	/* it gives a row of zero bytes */
};

/*
 * With it a load that faults spoils its row only: that row becomes zero bytes
 * and is marked, the others are read, and the gather ends with -EFAULT.
 *
 * Each fault may take a peer's time-out, and behind a dead peer every row has
 * one: after OBMM_MOST_FAULTS of them the gather is given up.  It is too when
 * not even the content version can be read.  Then failed is 0, and nothing is
 * known of any row.
 */
enum { OBMM_MOST_FAULTS = 64 };
struct obmm_failures {
	uint8_t *rows;	 /* one for each id: 1, its row could not be read */
	uint64_t failed; /* how many of them */
	uint64_t faults;
	struct obmm_fault first;
	int64_t spoiled[OBMM_MOST_FAULTS]; /* the rows that faulted, so that their repeats are not tried again */
};

/*
 * What is to follow a submitted gather at once, before its waiters run: rows that
 * go on to a device are queued there by the thread that gathered them.
 *
 * call(context, outcome) is made once for every ticket, after the rows passed
 * their checks and outcome->status is final (0 or not), and before anybody can
 * see that the gather has ended.  It runs on the thread that ended it: a worker,
 * or the one that abandoned the ticket, stopped the engine, or submitted no rows.  No
 * lock of the engine is held.  It must not wait, nor call the engine for this
 * ticket; while it runs, the worker gathers nothing.  Both must live until the
 * ticket is done.
 */
struct obmm_outcome;
struct obmm_completion {
	void (*call)(void *context, const struct obmm_outcome *outcome); /* or NULL */
	void *context;
};

/*
 * Other work that is done in numbered parts, for the engine's threads: blocks,
 * for one.  A request that has it reads no rows; its count is the number of
 * parts, and of its table only the tuning is looked at.
 */
struct obmm_work {
	/* Parts [from, to), on any thread, guarded by itself.  0, or a negative errno that ends all. */
	int (*run)(struct obmm_work *work, uint64_t from, uint64_t to);
	uint64_t chunk; /* parts that a thread takes at a time */
};

/* One gather.  ids and out are the caller's until it is done. */
struct obmm_request {
	const struct obmm_table *table;
	const void *ids; /* int32 or int64, natively aligned */
	uint64_t count;
	uint8_t *out;
	uint64_t out_stride; /* >= row_bytes */
	uint32_t id_bytes;   /* 4 or 8 */
	uint32_t invalid;
	/*
	 * Columns: the ids' last dimension, 0 if it has no meaning.
	 * head_offsets (columns + 1 entries): ids are local to their column's
	 * head.  column_mask (columns entries): 0 gives a zero row, unread.
	 */
	const int64_t *head_offsets;
	const uint8_t *column_mask;
	uint64_t columns;
	/*
	 * For submitted gathers: asked once the rows are read, and the gather is
	 * -ESTALE unless it answers the version that they are of.  May be NULL.
	 */
	struct obmm_recheck *recheck;
	/* Flat ids outside [low, high) give a zero row, unread; 0, UINT64_MAX: all are read. */
	uint64_t low;
	uint64_t high;
	struct obmm_failures *failures; /* or NULL; of one gather at a time */
	/*
	 * Of this table, or NULL: rows are taken from there, and those that had to
	 * be read are kept.  Only for tables with a content version, and for no
	 * more ids than it has rows: others would only flush it.
	 */
	struct obmm_hot *hot;
	struct obmm_completion then; /* for submitted gathers */
	struct obmm_work *work; /* or NULL */
};

/* Rows [first, first + count) of a request, as one of its own; `first` a multiple of its columns, where it has some. */
static inline struct obmm_request obmm_request_part(const struct obmm_request *request, uint64_t first, uint64_t count)
{
	struct obmm_request part = *request;

	part.ids = (const uint8_t *)request->ids + first * request->id_bytes;
	part.out = request->out + first * request->out_stride;
	part.count = count;
	return part;
}

struct obmm_outcome {
	int64_t bad_index; /* of the first id that was refused, or -1 */
	int64_t bad_id;
	uint64_t rows_read; /* from the table; repeats that were copied from the output do not count */
	uint64_t rows_zero;
	uint64_t rows_hot; /* from the cache */
	uint64_t nanoseconds;
	uint64_t version; /* of the content that the rows are from */
	struct obmm_fault fault;
	/*
	 * 0, -ERANGE (an id), -EFAULT, -ESTALE (published meanwhile), -EBADF (a
	 * mapping was closed), -ECANCELED, -EINPROGRESS
	 */
	int32_t status;
	int32_t threads;
	/*
	 * Of a submitted gather: version + 1 once it has ended with status 0,
	 * else 0.  Stored last, with release: who reads it needs no call.
	 */
	uint64_t ready;
};

/* Room for one address-ordered tile; one per thread at work. */
enum { OBMM_TILE_ROWS = 1 << 17 };
struct obmm_scratch {
	uint64_t keys[2][OBMM_TILE_ROWS];
	uint32_t histogram[3][2048];
};

void obmm_tuning_default(struct obmm_tuning *tuning, uint32_t row_bytes, uint32_t flags);

/*
 * Before anything else.  0, -ERANGE with bad_index and bad_id, -EINVAL when the
 * output lies over the table's rows or the ids, which are read while it is
 * written, or -EFAULT when the ids themselves lie in memory that is gone.  Reads
 * no row.
 */
int obmm_gather_check(const struct obmm_request *request, struct obmm_outcome *outcome);

/*
 * Copy the rows of ids [from, to), guarded, on this thread.  scratch may be
 * NULL: then the rows are read as given.  Adds to rows_read and rows_zero.
 */
int obmm_gather_range(const struct obmm_request *request, uint64_t from, uint64_t to, struct obmm_scratch *scratch,
		      struct obmm_outcome *outcome);

/*
 * A gather that several threads share.  Its rows are divided into lanes, one for
 * each thread, and lanes into shares of `size` rows.  A thread takes shares of
 * its own lane, then what is left of the others': the same thread writes the
 * same part of the output from call to call, where its cache has it, and threads
 * do not queue for one counter.
 */
enum { OBMM_SHARE_ROWS = 64, OBMM_LANES = 32 };
struct obmm_lane {
	uint64_t next __attribute__((aligned(64)));
	uint64_t end;
	/* By the threads that began here, one as a rule: a counter of all would be what a small gather takes. */
	uint64_t rows_read, rows_zero, rows_hot;
	uint64_t version; /* that the first of them read, plus 1; 0: none yet */
};
struct obmm_shares {
	uint64_t size __attribute__((aligned(64)));
	uint32_t n_lanes;
	uint32_t stop;	/* no thread takes another one */
	uint32_t empty; /* all were taken */
	struct obmm_lane lanes[OBMM_LANES];
};

/* Shares that keep `threads` threads busy to the end. */
void obmm_shares_make(struct obmm_shares *shares, const struct obmm_request *request, unsigned int threads);

/*
 * obmm_gather_range() for as many shares as this thread gets, those of `lane`
 * (modulo the number of lanes) first, until there are none or *leave (may be
 * NULL) is set.  1: there was none.  A share that was
 * taken is copied, or the result is an error.
 */
int obmm_gather_shares(const struct obmm_request *request, struct obmm_shares *shares, unsigned int lane,
		       const bool *leave, struct obmm_scratch *scratch, struct obmm_outcome *outcome);

/* What a thread that began at `lane` has read: 0, or -ESTALE when others there read another version. */
int obmm_shares_add(struct obmm_shares *shares, unsigned int lane, const struct obmm_outcome *part);
/* All of it, into the outcome's rows and version, once nobody adds any more.  0, or -ESTALE: of several versions. */
int obmm_shares_sum(const struct obmm_shares *shares, struct obmm_outcome *outcome);

/* After the last range: rows that failed become the outcome's status, and the table's totals are added to. */
void obmm_gather_finish(const struct obmm_request *request, struct obmm_outcome *outcome);

/*
 * The instruction set of the kernels: "avx512", "avx2", "neon" or "generic".
 * use() is for tests and benchmarks: 0, or -ENOTSUP on a CPU without it; NULL
 * returns to the best.
 */
const char *obmm_gather_isa(void);
int obmm_gather_use(const char *isa);

#ifdef __cplusplus
}
#endif

#endif
