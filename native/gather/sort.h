/* SPDX-License-Identifier: Apache-2.0 */
#ifndef OBMM_SORT_H
#define OBMM_SORT_H

#include <stddef.h>
#include <stdint.h>

#include "gather.h"

#pragma GCC visibility push(hidden)

/*
 * Sort n keys of scratch->keys[0] by bits [low, high) of their upper half
 * (radix, 11 bits a pass, stable).  Returns where the sorted keys are.
 */
uint64_t *obmm_sort(struct obmm_scratch *scratch, size_t n, unsigned int low, unsigned int high);

#pragma GCC visibility pop

#endif
