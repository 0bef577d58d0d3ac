/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A counter in memory that processes of one host share.  Who waits for its
 * next change sleeps in the kernel.  What was written before obmm_bell_ring()
 * is seen by all who have seen the new count.  Waiting never writes: the memory
 * may be mapped read-only.
 */
#ifndef OBMM_BELL_H
#define OBMM_BELL_H

#include "../abi/lp64.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

uint32_t obmm_bell_count(const uint32_t *bell);
void obmm_bell_ring(uint32_t *bell);

/* 0 when the count is not `seen` any more, or for no reason; -ETIMEDOUT. */
int obmm_bell_wait(const uint32_t *bell, uint32_t seen, int64_t timeout_ns);

#ifdef __cplusplus
}
#endif

#endif
