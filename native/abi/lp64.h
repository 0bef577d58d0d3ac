/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What every struct here is laid out for: 64-bit pointers and longs,
 * little-endian (driver specification 3).  Anything else is refused here, in
 * one sentence, before a wrong layout reaches a kernel.
 */
#ifndef OBMM_LP64_H
#define OBMM_LP64_H

#ifndef __LP64__
#error "obmm: the driver's interface is 64-bit; compile without -m32 and -mx32"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "obmm: the driver's interface is little-endian"
#endif

#endif
