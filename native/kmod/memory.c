// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where the bytes are.  Exports take chunks of guest memory, or of this host's
 * half of the fabric.  Windows are backed by guest memory that appears when it
 * is first touched and then stays, as real memory behind a window would; or by
 * the whole fabric, its first byte at the window's first byte.
 */
#include <linux/bitmap.h>
#include <linux/gfp.h>
#include <linux/io.h>
#include <linux/pfn.h>
#include <linux/slab.h>
#include <linux/xarray.h>

#include "sim.h"

#define CHUNK_ORDER (SIM_CHUNK_SHIFT - PAGE_SHIFT)
/* What exports and windows leave to the guest itself. */
#define GUEST_RESERVE (64UL << 20)

static DEFINE_MUTEX(memory_lock);

/* chunk number of a window address -> its page */
static DEFINE_XARRAY(window_chunks);

static void *fabric;
static unsigned long *fabric_taken;
static unsigned long fabric_chunks, fabric_first;

static bool in_fabric(unsigned long pfn)
{
	return fabric && pfn - PFN_DOWN(sim_param_fabric_base) < PFN_DOWN(sim_param_fabric_size);
}

void *sim_pfn_to_kaddr(unsigned long pfn)
{
	if (in_fabric(pfn))
		return fabric + PFN_PHYS(pfn - PFN_DOWN(sim_param_fabric_base));
	return pfn_to_kaddr(pfn);
}

static unsigned long take_fabric_chunk(void)
{
	unsigned long bit = find_first_zero_bit(fabric_taken, fabric_chunks);

	if (bit >= fabric_chunks)
		return 0;
	set_bit(bit, fabric_taken);
	return PFN_DOWN(sim_param_fabric_base) + ((fabric_first + bit) << CHUNK_ORDER);
}

static struct page *guest_chunk(gfp_t more)
{
	if (si_mem_available() < (long)PFN_DOWN(GUEST_RESERVE))
		return NULL;
	return alloc_pages(GFP_KERNEL | __GFP_NOWARN | __GFP_NORETRY | more, CHUNK_ORDER);
}

static unsigned long take_guest_chunk(void)
{
	struct page *page = guest_chunk(0);

	return page ? page_to_pfn(page) : 0;
}

static void free_chunk(unsigned long pfn)
{
	if (in_fabric(pfn))
		clear_bit(((pfn - PFN_DOWN(sim_param_fabric_base)) >> CHUNK_ORDER) - fabric_first, fabric_taken);
	else
		__free_pages(pfn_to_page(pfn), CHUNK_ORDER);
}

void sim_chunks_free(const unsigned long *pfns, u64 count)
{
	mutex_lock(&memory_lock);
	while (count--)
		free_chunk(pfns[count]);
	mutex_unlock(&memory_lock);
}

int sim_chunks_alloc(unsigned long *pfns, u64 count)
{
	u64 i;

	if (sim_inject.alloc_fail || (sim_inject.alloc_limit && count > sim_inject.alloc_limit))
		return -ENOMEM;
	mutex_lock(&memory_lock);
	for (i = 0; i < count; i++) {
		pfns[i] = fabric ? take_fabric_chunk() : take_guest_chunk();
		if (!pfns[i]) {
			while (i--)
				free_chunk(pfns[i]);
			mutex_unlock(&memory_lock);
			return -ENOMEM;
		}
	}
	mutex_unlock(&memory_lock);
	for (i = 0; i < count; i++) {
		memset(sim_pfn_to_kaddr(pfns[i]), 0, SIM_CHUNK);
		cond_resched();
	}
	return 0;
}

static const struct sim_window *window_at(u64 pa)
{
	const struct sim_window *window;
	int i;

	for (i = 0; i < sim_topology->nr_windows; i++) {
		window = &sim_topology->windows[i];
		if (pa - window->base < window->size)
			return window;
	}
	return NULL;
}

static struct page *window_chunk(unsigned long index)
{
	struct page *page = xa_load(&window_chunks, index);

	if (page)
		return page;
	page = guest_chunk(__GFP_ZERO);
	if (page && xa_err(xa_store(&window_chunks, index, page, GFP_KERNEL))) {
		__free_pages(page, CHUNK_ORDER);
		page = NULL;
	}
	return page;
}

int sim_window_pfn(u64 pa, unsigned long *pfn)
{
	const struct sim_window *window = window_at(pa);
	struct page *page;
	u32 tokenid;
	u64 offset;

	if (sim_decoder_lookup(pa, &tokenid, &offset))
		return sim_region_pfn_by_token(tokenid, offset, pfn);
	if (!window || !window->backed)
		return -EFAULT;
	if (fabric) {
		*pfn = PFN_DOWN(sim_param_fabric_base + (pa - window->base));
		return 0;
	}
	mutex_lock(&memory_lock);
	page = window_chunk(pa >> SIM_CHUNK_SHIFT);
	mutex_unlock(&memory_lock);
	if (!page)
		return -ENOMEM;
	*pfn = page_to_pfn(page) + PFN_DOWN(pa & (SIM_CHUNK - 1));
	return 0;
}

int sim_memory_init(void)
{
	if (!sim_param_fabric_size)
		return 0;
	if (sim_param_fabric_share > 1 || !IS_ALIGNED(sim_param_fabric_base, SIM_CHUNK) ||
	    !sim_param_fabric_base || !IS_ALIGNED(sim_param_fabric_size, 2 * SIM_CHUNK)) {
		pr_err("obmm_sim: fabric_base is 2 MiB aligned, fabric_size a multiple of 4 MiB, fabric_share 0 or 1\n");
		return -EINVAL;
	}
	fabric_chunks = sim_param_fabric_size / SIM_CHUNK / 2;
	fabric_first = sim_param_fabric_share * fabric_chunks;
	fabric_taken = bitmap_zalloc(fabric_chunks, GFP_KERNEL);
	if (!fabric_taken)
		return -ENOMEM;
	/* claims the cacheable type on x86; else user mappings of a BAR would be uncached */
	fabric = memremap(sim_param_fabric_base, sim_param_fabric_size, MEMREMAP_WB);
	if (!fabric) {
		bitmap_free(fabric_taken);
		return -ENOMEM;
	}
	return 0;
}

void sim_memory_exit(void)
{
	struct page *page;
	unsigned long index;

	xa_for_each(&window_chunks, index, page)
		__free_pages(page, CHUNK_ORDER);
	xa_destroy(&window_chunks);
	if (fabric) {
		memunmap(fabric);
		bitmap_free(fabric_taken);
		fabric = NULL;
	}
}
