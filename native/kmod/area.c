// SPDX-License-Identifier: GPL-2.0-only
/*
 * A mapping of a region: page faults, splits, the end (9.4, 9.5, 9.9).
 *
 * The driver fills the page tables inside mmap; no stock kernel exports a way
 * to do that with blocks, so here they fill at the first touch.
 */
#include <linux/fs.h>
#include <linux/pfn_t.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "sim.h"

/* private data of a VMA that a refused mremap made: its end must not count (Q29) */
static char refused_move;

static struct sim_file *area_file(const struct vm_area_struct *vma)
{
	return vma->vm_file->private_data;
}

struct sim_region *sim_area_region(const struct vm_area_struct *vma)
{
	return area_file(vma)->region;
}

bool sim_area_is_nc(const struct vm_area_struct *vma)
{
	return area_file(vma)->nc;
}

u64 sim_area_offset(const struct vm_area_struct *vma)
{
	return (u64)vma->vm_pgoff << PAGE_SHIFT;
}

enum sim_access sim_area_access(const struct vm_area_struct *vma)
{
	if (vma->vm_flags & VM_WRITE)
		return SIM_WRITE;
	return vma->vm_flags & VM_READ ? SIM_READ : SIM_NONE;
}

static bool poisoned(const struct sim_region *region, u64 offset, u64 length)
{
	return offset < READ_ONCE(region->poison_end) && READ_ONCE(region->poison_start) < offset + length;
}

void sim_area_zap(struct sim_region *region, u64 start, u64 end)
{
	unmap_mapping_range(region->inode->i_mapping, start, end - start, 1);
}

/* ---- faults ---- */

/*
 * A failed access over the fabric: BUS_OBJERR at the exact address.  The fault
 * handler's own SIGBUS carries another code, so the signal is sent from here,
 * unless the kernel itself touched the page or the process cannot take a signal.
 */
static vm_fault_t bus_error(const struct vm_fault *fault)
{
	struct kernel_siginfo info;

	atomic64_inc(&sim_counters.bus_faults);
	if (!(fault->flags & FAULT_FLAG_USER) || sigismember(&current->blocked, SIGBUS) ||
	    current->sighand->action[SIGBUS - 1].sa.sa_handler == SIG_IGN ||
	    (current->signal->flags & SIGNAL_UNKILLABLE)) /* a container's init: it would not take it, and fault for ever */
		return VM_FAULT_SIGBUS;
	clear_siginfo(&info);
	info.si_signo = SIGBUS;
	info.si_code = BUS_OBJERR;
	info.si_addr = (void __user *)fault->real_address;
	return send_sig_info(SIGBUS, &info, current) ? VM_FAULT_SIGBUS : VM_FAULT_NOPAGE;
}

static vm_fault_t insert_block(struct vm_fault *fault, struct sim_region *region)
{
	struct vm_area_struct *vma = fault->vma;
	unsigned long start = fault->address & PMD_MASK;
	u64 offset = sim_area_offset(vma) + (start - vma->vm_start);
	unsigned long pfn;

	if (start < vma->vm_start || start + PMD_SIZE > vma->vm_end || poisoned(region, offset, PMD_SIZE))
		return VM_FAULT_FALLBACK;
	if (sim_region_pfn(region, offset, &pfn)) /* nor a page: what one thread maps as pages, none maps as a block */
		return bus_error(fault);
	/* mbind(MPOL_MF_STRICT) reads the struct page behind any block, without a look at its marks: none where none is */
	if (!IS_ALIGNED(pfn, PTRS_PER_PTE) || !pfn_valid(pfn))
		return VM_FAULT_FALLBACK;
	atomic64_inc(&sim_counters.pmd_faults);
	/*
	 * A block has no "special" bit as a page entry has.  Marked as device memory of which the kernel knows no
	 * device, every way that looks for its struct page (vmsplice, futex, direct I/O, ...) ends in EFAULT.
	 */
	return vmf_insert_pfn_pmd(fault, phys_to_pfn_t(PFN_PHYS(pfn), PFN_DEV | PFN_MAP),
				  fault->flags & FAULT_FLAG_WRITE);
}

static vm_fault_t insert_page(struct vm_fault *fault, struct sim_region *region)
{
	u64 offset = (u64)fault->pgoff << PAGE_SHIFT;
	unsigned long pfn;
	int err;

	err = poisoned(region, offset, PAGE_SIZE) ? -EFAULT : sim_region_pfn(region, offset, &pfn);
	if (err)
		return bus_error(fault);
	atomic64_inc(&sim_counters.pte_faults);
	return vmf_insert_pfn(fault->vma, fault->address, pfn);
}

static vm_fault_t insert(struct vm_fault *fault, struct sim_region *region)
{
	pmd_t slot = READ_ONCE(*fault->pmd);
	vm_fault_t result;

	/* Linux 6.1 never calls .huge_fault for a PFN mapping: try the block while the slot is empty */
	if (region->granularity == SIM_GRAN_PMD && pmd_none(slot)) {
		result = insert_block(fault, region);
		if (result != VM_FAULT_FALLBACK)
			return result;
	}
	/* another thread was faster: a page entry would be written into the block's own bytes */
	if (pmd_trans_huge(slot) || pmd_devmap(slot))
		return VM_FAULT_NOPAGE;
	return insert_page(fault, region);
}

static vm_fault_t area_fault(struct vm_fault *fault)
{
	vm_fault_t result;

	down_read(&sim_decoder_sem);
	result = insert(fault, sim_area_region(fault->vma));
	up_read(&sim_decoder_sem);
	/* the kernel would try again, and find as little memory, for ever */
	return result & VM_FAULT_OOM ? VM_FAULT_SIGBUS : result;
}

/* ---- life ---- */

/* The second half of a split; rights and counters stay what they are. */
static void area_open(struct vm_area_struct *vma)
{
	atomic_inc(&sim_area_region(vma)->areas);
}

static void area_close(struct vm_area_struct *vma)
{
	struct sim_region *region = sim_area_region(vma);
	u64 offset = sim_area_offset(vma);
	u64 length = vma->vm_end - vma->vm_start;
	u8 op;

	/* empty: what a failed split undoes, with region->lock held by sim_update_range() */
	if (length && vma->vm_private_data != &refused_move && !sim_area_is_nc(vma)) {
		mutex_lock(&region->lock);
		op = sim_ownership_change(region, offset, length, sim_area_access(vma), SIM_NONE);
		if (sim_cache_flush(region, offset, length, op)) /* 9.5: only logged */
			pr_warn_ratelimited("obmm_sim: flush at unmap of region %u failed\n", region->mem_id);
		mutex_unlock(&region->lock);
	}
	atomic_dec(&region->areas);
}

static int area_may_split(struct vm_area_struct *vma, unsigned long addr)
{
	return IS_ALIGNED(addr, sim_region_unit(sim_area_region(vma))) ? 0 : -EINVAL;
}

static int area_mremap(struct vm_area_struct *vma)
{
	vma->vm_private_data = &refused_move;
	return -EOPNOTSUPP;
}

static int area_mprotect(struct vm_area_struct *vma, unsigned long start, unsigned long end,
			 unsigned long flags)
{
	return -EOPNOTSUPP;
}

static unsigned long area_pagesize(struct vm_area_struct *vma)
{
	return sim_region_unit(sim_area_region(vma));
}

/* ptrace and /proc/PID/mem (9.4) */
static int area_access(struct vm_area_struct *vma, unsigned long addr, void *buf, int len, int write)
{
	struct sim_region *region = sim_area_region(vma);
	u64 offset = sim_area_offset(vma) + (addr - vma->vm_start);
	unsigned long pfn;
	void *page;

	if (sim_area_access(vma) < (write ? SIM_WRITE : SIM_READ))
		return -EACCES;
	len = min_t(u64, len, PAGE_SIZE - offset_in_page(offset));
	/* the frame is an export's of this host perhaps: it stays until the bytes are copied */
	down_read(&sim_decoder_sem);
	if (poisoned(region, offset & PAGE_MASK, PAGE_SIZE) || sim_region_pfn(region, offset, &pfn)) {
		len = -EFAULT;
	} else {
		page = sim_pfn_to_kaddr(pfn) + offset_in_page(offset);
		if (write)
			memcpy(page, buf, len);
		else
			memcpy(buf, page, len);
	}
	up_read(&sim_decoder_sem);
	return len;
}

const struct vm_operations_struct sim_area_ops = {
	.open = area_open,
	.close = area_close,
	.may_split = area_may_split,
	.mremap = area_mremap,
	.mprotect = area_mprotect,
	.fault = area_fault,
	.pagesize = area_pagesize,
	.access = area_access,
};
