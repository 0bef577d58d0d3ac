/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies that know the CRC-32C of what they copied: the sum is taken of the
 * bytes in the registers, so that it is a sum of what the destination got and
 * costs no second pass.
 *
 * One side lies in a mapping.  Its whole aligned 64-byte lines go in the widest
 * accesses there are, its ends in naturally aligned ones, as nc.h wants it.
 * Unguarded.
 */
#ifndef OBMM_SUMMED_H
#define OBMM_SUMMED_H

#include "../abi/lp64.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum obmm_summed_flags {
	OBMM_SUMMED_PAST_CACHES = 1, /* write whole lines of the destination past the caches */
};

/* src lies in the mapping.  crc: 0, or the sum of what came before.  The sum with these bytes. */
uint32_t obmm_summed_read(void *dst, const void *src, size_t length, uint32_t crc, unsigned int flags);
/* dst lies in the mapping. */
uint32_t obmm_summed_write(void *dst, const void *src, size_t length, uint32_t crc, unsigned int flags);

/* "vpclmul", "pclmul", "pmull" or "plain".  use() is for tests: 0, or -ENOTSUP; NULL returns to the best. */
const char *obmm_summed_isa(void);
int obmm_summed_use(const char *isa);

#ifdef __cplusplus
}
#endif

#endif
