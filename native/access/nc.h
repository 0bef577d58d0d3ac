/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies for non-cacheable mappings, unguarded.  Every access goes over the
 * fabric, so the fewest and widest win: aligned 64-byte lines of the mapping
 * in one access where the CPU has it (AVX-512), in 16 or 32-byte streaming
 * loads that share one line fetch (SSE4.1, AVX2), or in register pairs
 * (aarch64).  The ends use naturally aligned accesses of at most 8 bytes.
 */
#ifndef OBMM_NC_H
#define OBMM_NC_H

#include <stddef.h>

#pragma GCC visibility push(hidden)

/* src lies in the mapping. */
void obmm_nc_read(void *dst, const void *src, size_t length);
/* dst lies in the mapping. */
void obmm_nc_write(void *dst, const void *src, size_t length);

#pragma GCC visibility pop

#endif
