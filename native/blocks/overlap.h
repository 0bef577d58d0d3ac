/* SPDX-License-Identifier: Apache-2.0 */
#ifndef OBMM_OVERLAP_H
#define OBMM_OVERLAP_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

/* Whether two of these ranges share a byte: 0, 1, or -ENOMEM.  Cheap where they come in ascending order. */
int obmm_ranges_overlap(const uint64_t *addresses, const uint32_t *sizes, uint64_t count);

#pragma GCC visibility pop

#endif
