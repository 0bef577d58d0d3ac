/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of one table that are asked for again and again, kept in local memory
 * (Engram specification 13.2): for tables behind a slow fabric.
 *
 * A row is kept under its number and the content version that it was read in,
 * so a row of another publication is never found.  Sets of eight rows with a
 * CLOCK hand each.  Any number of threads; no thread ever waits: one that meets a
 * writer in a set has a miss, one that would write where others read does not.
 * So a row is whole or not there, and a fork or a fault inside a call can cost
 * one set its use but no thread its progress.
 */
#ifndef OBMM_HOT_H
#define OBMM_HOT_H

#include "../abi/lp64.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Longer rows are the business of streaming copies. */
enum { OBMM_HOT_MOST_BYTES = 4096 };

struct obmm_hot;

/*
 * Room for at least `rows` rows, taken from the system at once.  0, -EINVAL (no
 * rows, or row_bytes outside 1..OBMM_HOT_MOST_BYTES) or -ENOMEM.
 */
int obmm_hot_create(uint64_t rows, uint32_t row_bytes, struct obmm_hot **hot);
/* NULL is allowed. */
void obmm_hot_free(struct obmm_hot *hot);

/* How many rows there is room for, and the memory that they take. */
uint64_t obmm_hot_rows(const struct obmm_hot *hot);
uint64_t obmm_hot_bytes(const struct obmm_hot *hot);

/* Copy the row of that version to dst; false when it is not there, or a writer is in its set. */
bool obmm_hot_get(struct obmm_hot *hot, uint64_t row, uint64_t version, uint8_t *dst);
/* Keep a row of that version, which replaces older versions and is replaced by none; or do nothing. */
void obmm_hot_put(struct obmm_hot *hot, uint64_t row, uint64_t version, const uint8_t *src);

/* A get, or a put, of this row follows soon. */
void obmm_hot_expect_get(const struct obmm_hot *hot, uint64_t row);
void obmm_hot_expect_put(const struct obmm_hot *hot, uint64_t row);

#ifdef __cplusplus
}
#endif

#endif

