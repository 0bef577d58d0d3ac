/* SPDX-License-Identifier: Apache-2.0 */
#ifndef OBMM_BLAKE2B_H
#define OBMM_BLAKE2B_H

#include "../abi/lp64.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OBMM_BLAKE2B_BLOCK = 128, OBMM_BLAKE2B_KEY = 64, OBMM_BLAKE2B_DIGEST = 16 };

/* BLAKE2b (RFC 7693) of 16 bytes under one key, which is digested once for all messages. */
struct obmm_blake2b_key {
	uint64_t begun[8]; /* before the key's block, which is the last one of an empty message */
	uint64_t keyed[8]; /* behind it */
	uint8_t block[OBMM_BLAKE2B_BLOCK];
};

/* length: 1..OBMM_BLAKE2B_KEY; 0 or -EINVAL. */
int obmm_blake2b_key(struct obmm_blake2b_key *key, const uint8_t *bytes, size_t length);
/* `count` messages, one behind the other in `data`; 16 bytes for each. */
void obmm_blake2b_many(const struct obmm_blake2b_key *key, const uint8_t *data, const uint32_t *lengths, size_t count,
		       uint8_t *digests);

#ifdef __cplusplus
}
#endif

#endif
