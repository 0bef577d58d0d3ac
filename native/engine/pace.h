/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many threads gather a table fastest, learned while it is gathered: for
 * each order of magnitude of rows, and apart for a team that was ready and one
 * that had to be woken.  Now and then a neighbouring number is tried, so that a
 * plan which is wrong, or becomes so, is noticed.
 *
 * Any number of threads at once; what they overwrite of each other is one
 * observation among many.  All zeroes: nothing is known.
 */
#ifndef OBMM_PACE_H
#define OBMM_PACE_H

#include "../abi/lp64.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OBMM_PACE_SIZES = 20, OBMM_PACE_LEVELS = 14 };

struct obmm_pace_size {
	uint32_t calls;
	uint32_t level;			/* the best so far, plus 1; 0: not known */
	uint32_t ps[OBMM_PACE_LEVELS];	/* picoseconds per row with so many threads, or 0 */
};
struct obmm_pace {
	struct obmm_pace_size woken[OBMM_PACE_SIZES];
	struct obmm_pace_size ready[OBMM_PACE_SIZES];
};

/* The numbers of threads that are told apart: 1, 2, 3, 4, 6, 8, 12, ... */
unsigned int obmm_pace_threads(unsigned int level);

/*
 * Threads for a gather of `rows` rows, at most `most`.  row_ns: what a row costs
 * one thread, for the first guess.  `tries`: may be one of those that try another
 * number.
 */
unsigned int obmm_pace_choose(struct obmm_pace *pace, uint64_t rows, bool ready, unsigned int most, uint32_t row_ns,
			      bool tries);

/* Begin with so many threads for about so many rows; nothing was learned yet. */
void obmm_pace_begin(struct obmm_pace *pace, uint64_t rows, bool ready, unsigned int threads);

/* So it went.  Numbers of threads that are not told apart teach nothing. */
void obmm_pace_learn(struct obmm_pace *pace, uint64_t rows, bool ready, unsigned int threads, uint64_t nanoseconds);

#ifdef __cplusplus
}
#endif

#endif
