/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first include of every file: this library defines libc's names
 * themselves, so the flags that turn them into others (a distribution's
 * hardening, large files) must not reach the headers.
 */
#ifndef OBMM_PRELOAD_FLAGS_H
#define OBMM_PRELOAD_FLAGS_H

#undef _FORTIFY_SOURCE
#undef _FILE_OFFSET_BITS
#undef _TIME_BITS

#endif
