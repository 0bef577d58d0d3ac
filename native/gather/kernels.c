/* SPDX-License-Identifier: Apache-2.0 */
/* Which set of kernels this CPU gets. */
#include "kernels.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "gather.h"

static const struct obmm_kernels *const all_kernels[] = {
#if defined(__x86_64__)
	&obmm_kernels_avx512,
	&obmm_kernels_avx2,
#elif defined(__aarch64__)
	&obmm_kernels_neon,
#endif
	&obmm_kernels_generic,
};
enum { KERNELS = sizeof(all_kernels) / sizeof(all_kernels[0]) };

static _Atomic(const struct obmm_kernels *) chosen;

const struct obmm_kernels *obmm_kernels(void)
{
	const struct obmm_kernels *set = atomic_load_explicit(&chosen, memory_order_relaxed);

	if (__builtin_expect(!set, 0)) {
		obmm_gather_use(NULL);
		set = atomic_load_explicit(&chosen, memory_order_relaxed);
	}
	return set;
}

int obmm_gather_use(const char *isa)
{
	for (int i = 0; i < KERNELS; i++) {
		if ((isa && strcmp(isa, all_kernels[i]->name)) || !all_kernels[i]->supported())
			continue;
		atomic_store_explicit(&chosen, all_kernels[i], memory_order_relaxed);
		return 0;
	}
	return -ENOTSUP;
}

const char *obmm_gather_isa(void)
{
	return obmm_kernels()->name;
}
