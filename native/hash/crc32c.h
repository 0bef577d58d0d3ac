/* SPDX-License-Identifier: Apache-2.0 */
#ifndef OBMM_CRC32C_H
#define OBMM_CRC32C_H

#include "../abi/lp64.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * CRC-32C (Castagnoli) of local memory, as the canary rows of a manifest use it
 * (Engram specification 5.4).  crc: 0, or the result for what came before.
 */
uint32_t obmm_crc32c(uint32_t crc, const void *data, size_t length);

#ifdef __cplusplus
}
#endif

#endif
