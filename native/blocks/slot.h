/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slot: a header of one line, then the bytes of one block.
 *
 * The writer stores the header with state WRITING, the bytes, and the header
 * again with state READY, a barrier between each.  The reader knows from the
 * directory what the header must say, looks at it before and after its copy,
 * and sums what it copied.  Whatever does not fit is a miss: a slot that was
 * reused, one that is half written, bytes that a cache or a dead writer mixed.
 */
#ifndef OBMM_SLOT_H
#define OBMM_SLOT_H

#include "../abi/lp64.h"

#include <assert.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum obmm_slot_state {
	OBMM_SLOT_FREE = 0,
	OBMM_SLOT_WRITING = 1,
	OBMM_SLOT_READY = 2,
};

enum { OBMM_SLOT_MAGIC = 0x314b424f, OBMM_SLOT_VERSION = 1, OBMM_SLOT_HASH = 16 };

/* Little-endian on every processor that is built for; no holes. */
struct obmm_slot_header {
	uint32_t magic; /* "OBK1" */
	uint16_t version;
	uint16_t state;
	uint64_t generation; /* of the slot's use: never the same twice, never 0 */
	uint8_t hash[OBMM_SLOT_HASH];
	uint32_t length; /* of the block, bytes */
	uint32_t crc;	 /* CRC-32C of them */
	uint64_t incarnation; /* of the store */
	uint64_t fingerprint; /* of the model */
	uint32_t reserved;
	uint32_t header_crc; /* CRC-32C of everything before */
};

static_assert(sizeof(struct obmm_slot_header) == 64, "a slot's header is one line");

/* What the directory said of a block, or where it granted one. */
struct obmm_block_place {
	uint8_t hash[OBMM_SLOT_HASH];
	uint64_t generation; /* 0: of no block */
	uint32_t slot;
	uint32_t length;
};

static_assert(sizeof(struct obmm_block_place) == 32, "places are packed in Python");

#ifdef __cplusplus
}
#endif

#endif
