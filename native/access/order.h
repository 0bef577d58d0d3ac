/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ordering towards another node (driver specification 16).  On NC mappings
 * the order of stores is seen by the peer only behind a barrier that reaches
 * the outer-shareable domain; a compiler's or language's release store stops
 * at the inner one.
 *
 * Writer: data, obmm_fence_store(), flag.  Reader: flag, obmm_fence_load(), data.
 */
#ifndef OBMM_ORDER_H
#define OBMM_ORDER_H

#include "../abi/lp64.h"

static inline void obmm_order_load(void)
{
#if defined(__x86_64__)
	__asm__ volatile("lfence" ::: "memory");
#elif defined(__aarch64__)
	__asm__ volatile("dmb oshld" ::: "memory");
#endif
}

static inline void obmm_order_store(void)
{
#if defined(__x86_64__)
	__asm__ volatile("sfence" ::: "memory");
#elif defined(__aarch64__)
	__asm__ volatile("dmb oshst" ::: "memory");
#endif
}

static inline void obmm_order_full(void)
{
#if defined(__x86_64__)
	__asm__ volatile("mfence" ::: "memory");
#elif defined(__aarch64__)
	__asm__ volatile("dmb osh" ::: "memory");
#endif
}

#endif
