/* SPDX-License-Identifier: Apache-2.0 */
/* The two operations of futex(2) that are used: linux/futex.h belongs to the kernel's headers, which a C library need not bring. */
#ifndef OBMM_FUTEX_H
#define OBMM_FUTEX_H

enum { OBMM_FUTEX_WAIT = 0, OBMM_FUTEX_WAKE = 1, OBMM_FUTEX_PRIVATE = 128 };

#endif
