/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which release the headers are of, for #if, and which the library is of, for
 * a program that wants to be sure that both are the same.
 */
#ifndef OBMM_VERSION_H
#define OBMM_VERSION_H

#include "../abi/lp64.h"

#include <stdint.h>

#define OBMM_VERSION_MAJOR 0
#define OBMM_VERSION_MINOR 1
#define OBMM_VERSION_PATCH 0

#define OBMM_VERSION_NUMBER(major, minor, patch) ((major) << 16 | (minor) << 8 | (patch))
/* #if OBMM_VERSION >= OBMM_VERSION_NUMBER(0, 2, 0) */
#define OBMM_VERSION OBMM_VERSION_NUMBER(OBMM_VERSION_MAJOR, OBMM_VERSION_MINOR, OBMM_VERSION_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

/* OBMM_VERSION as it was when the library was built. */
uint32_t obmm_version(void);

#ifdef __cplusplus
}
#endif

#endif
