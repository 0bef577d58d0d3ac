/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guarded copies and scalar accesses (guard.h).  All return 0 or a negative
 * errno; -EFAULT comes with *fault filled.  After it the destination holds a
 * prefix of the source, of unspecified length.
 */
#ifndef OBMM_COPY_H
#define OBMM_COPY_H

#include "../abi/lp64.h"

#include <stddef.h>
#include <stdint.h>

#include "guard.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Into and out of a cacheable mapping.  The ranges may not overlap. */
int obmm_copy_from(void *dst, const void *src, size_t length, struct obmm_fault *fault);
int obmm_copy_to(void *dst, const void *src, size_t length, struct obmm_fault *fault);

/*
 * The same for a non-cacheable mapping: whole aligned 64-byte lines of the
 * mapping in the widest accesses there are, the rest in naturally aligned
 * ones.  A barrier comes before a read and after a write (order.h).
 */
int obmm_copy_nc_from(void *dst, const void *src, size_t length, struct obmm_fault *fault);
int obmm_copy_nc_to(void *dst, const void *src, size_t length, struct obmm_fault *fault);

int obmm_fill(void *dst, int byte, size_t length, struct obmm_fault *fault);

/* 0 equal, 1 different, or -EFAULT. */
int obmm_compare(const void *left, const void *right, size_t length, struct obmm_fault *fault);

/*
 * One naturally aligned access of 1, 2, 4 or 8 bytes, never torn; -EINVAL for
 * another width or a misaligned address.  Host byte order.
 */
int obmm_load(const void *src, unsigned int width, uint64_t *value, struct obmm_fault *fault);
int obmm_store(void *dst, unsigned int width, uint64_t value, struct obmm_fault *fault);

/* The barriers of order.h as functions. */
void obmm_fence_load(void);
void obmm_fence_store(void);
void obmm_fence_full(void);

#ifdef __cplusplus
}
#endif

#endif
