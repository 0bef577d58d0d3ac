// SPDX-License-Identifier: GPL-2.0-only
/*
 * UPDATE_RANGE and the counters behind it (9.6 - 9.8).  A right is the VMA's
 * own VM_READ and VM_WRITE, so a load without one is the kernel's SIGSEGV.
 */
#include <linux/fs.h>
#include <linux/kprobes.h>
#include <linux/slab.h>

#include "sim.h"

#define OP_INVAL 1
#define OP_WRITE_BACK 2
static const u8 op_of_need[] = {
	[0] = OBMM_SHM_CACHE_NONE,
	[OP_INVAL] = OBMM_SHM_CACHE_INVAL,
	[OP_WRITE_BACK] = OBMM_SHM_CACHE_WB_ONLY,
	[OP_INVAL | OP_WRITE_BACK] = OBMM_SHM_CACHE_WB_INVAL,
};

/* What one unit needs when its users change (9.8). */
static int need(const struct sim_users *before, const struct sim_users *after)
{
	if (before->writers && !after->writers)
		return after->readers ? OP_WRITE_BACK : OP_INVAL | OP_WRITE_BACK;
	if (before->readers && !after->readers && !before->writers)
		return OP_INVAL;
	return 0;
}

u8 sim_ownership_change(struct sim_region *region, u64 offset, u64 length, enum sim_access from,
			enum sim_access to)
{
	u64 unit = sim_region_unit(region);
	u64 last = (offset + length) / unit;
	struct sim_users before;
	int needs = 0;
	u64 i;

	for (i = offset / unit; i < last; i++) {
		before = region->ownership[i];
		region->ownership[i].readers += (to != SIM_NONE) - (from != SIM_NONE);
		region->ownership[i].writers += (to == SIM_WRITE) - (from == SIM_WRITE);
		needs |= need(&before, &region->ownership[i]);
	}
	return op_of_need[needs];
}

/* ---- checks O2 - O8 ---- */

static int check_state(u8 state)
{
	u8 access = state & OBMM_SHM_MEM_ACCESS_MASK;

	if (state & ~(OBMM_SHM_MEM_ACCESS_MASK | OBMM_SHM_MEM_CACHE_MASK))
		return -EINVAL;
	switch (state & OBMM_SHM_MEM_CACHE_MASK) {
	case OBMM_SHM_MEM_NORMAL:
		return 0;
	case OBMM_SHM_MEM_NORMAL_NC:
		return access == OBMM_SHM_MEM_NO_ACCESS ? 0 : -EINVAL;
	case OBMM_SHM_MEM_DEVICE:
		return access == OBMM_SHM_MEM_READEXEC ? -EINVAL : 0;
	default:
		return -EINVAL;
	}
}

static int check_mode(const struct file *file, u8 state)
{
	fmode_t wanted = 0;

	switch (state & OBMM_SHM_MEM_ACCESS_MASK) {
	case OBMM_SHM_MEM_READWRITE:
		wanted = FMODE_READ | FMODE_WRITE;
		break;
	case OBMM_SHM_MEM_READONLY:
	case OBMM_SHM_MEM_READEXEC:
		wanted = FMODE_READ;
		break;
	}
	return (file->f_mode & wanted) == wanted ? 0 : -EPERM;
}

static int check(const struct file *file, const struct obmm_cmd_update_range *cmd)
{
	const struct sim_file *own = file->private_data;
	int err;

	if (own->nc) /* O2 */
		return -EINVAL;
	if (!own->region->ownership) /* O3 */
		return -EINVAL;
	if (cmd->start >= cmd->end) /* O4 */
		return -EINVAL;
	if (!IS_ALIGNED(cmd->start | cmd->end, sim_region_unit(own->region))) /* O5 */
		return -EINVAL;
	err = check_mode(file, cmd->mem_state); /* O6 */
	if (!err)
		err = check_state(cmd->mem_state); /* O7 */
	if (!err && cmd->cache_ops > OBMM_SHM_CACHE_INFER) /* O8 */
		err = -EINVAL;
	return err;
}

/* ---- one VMA ---- */

/* Not exported; found by name through a kprobe that is never armed for long. */
static int (*kernel_split_vma)(struct mm_struct *mm, struct vm_area_struct *vma, unsigned long addr, int new_below);

static int split(struct vm_area_struct *vma, unsigned long addr, int new_below)
{
	int err = READ_ONCE(sim_inject.split_err);

	if (err && sim_inject.split_skip-- <= 0)
		return -err;
	return kernel_split_vma(vma->vm_mm, vma, addr, new_below);
}

/* After this the VMA lies in [start, end): O10. */
static int cut_to(struct vm_area_struct *vma, unsigned long start, unsigned long end)
{
	int err = 0;

	if (vma->vm_start < start)
		err = split(vma, start, 1);
	if (!err && end < vma->vm_end)
		err = split(vma, end, 0);
	return err;
}

static unsigned long flags_for(const struct vm_area_struct *vma, enum sim_access access)
{
	unsigned long flags = vma->vm_flags & ~(VM_READ | VM_MAYREAD | VM_WRITE | VM_MAYWRITE);

	if (access != SIM_NONE)
		flags |= VM_READ | VM_MAYREAD;
	if (access == SIM_WRITE)
		flags |= VM_WRITE | VM_MAYWRITE | VM_SHARED;
	return flags;
}

static void set_flags(struct vm_area_struct *vma, unsigned long flags)
{
	/* a mapping made through a read-only file (Q26): without VM_SHARED it would copy on write */
	if ((flags & VM_SHARED) && !(vma->vm_flags & VM_SHARED))
		mapping_allow_writable(vma->vm_file->f_mapping);
	vma->vm_flags = flags | (vma->vm_flags & VM_SHARED);
	vma->vm_page_prot = vm_get_page_prot(vma->vm_flags);
	if (sim_area_is_nc(vma))
		vma->vm_page_prot = pgprot_writecombine(vma->vm_page_prot);
	zap_vma_ptes(vma, vma->vm_start, vma->vm_end - vma->vm_start);
}

/* What to put back if a later VMA fails. */
struct step {
	struct list_head link;
	unsigned long start;
	unsigned long flags;
	enum sim_access from;
};

static u8 count_change(struct vm_area_struct *vma, enum sim_access from, enum sim_access to)
{
	if (sim_area_is_nc(vma)) /* never counted (Q12) */
		return OBMM_SHM_CACHE_NONE;
	return sim_ownership_change(sim_area_region(vma), sim_area_offset(vma), vma->vm_end - vma->vm_start,
				    from, to);
}

static int change_one(struct vm_area_struct *vma, const struct obmm_cmd_update_range *cmd,
		      enum sim_access to, struct list_head *done)
{
	enum sim_access from = sim_area_access(vma);
	struct step *step;
	u8 op;
	int err = cut_to(vma, max_t(u64, vma->vm_start, cmd->start), min_t(u64, vma->vm_end, cmd->end));

	if (err)
		return err;
	step = kmalloc(sizeof(*step), GFP_KERNEL);
	if (!step)
		return -ENOMEM;
	op = count_change(vma, from, to);
	if (cmd->cache_ops != OBMM_SHM_CACHE_INFER)
		op = cmd->cache_ops;
	err = sim_cache_flush(sim_area_region(vma), sim_area_offset(vma), vma->vm_end - vma->vm_start, op);
	if (err) { /* O11 */
		count_change(vma, to, from);
		kfree(step);
		return err;
	}
	step->start = vma->vm_start;
	step->flags = vma->vm_flags;
	step->from = from;
	list_add(&step->link, done);
	set_flags(vma, flags_for(vma, to));
	return 0;
}

static void finish(struct mm_struct *mm, struct list_head *done, bool undo, enum sim_access to)
{
	struct vm_area_struct *vma;
	struct step *step, *next;

	list_for_each_entry_safe(step, next, done, link) {
		if (undo) {
			vma = find_vma(mm, step->start);
			count_change(vma, to, step->from);
			set_flags(vma, step->flags);
		}
		kfree(step);
	}
}

/* O9: the VMA at `addr`, if it is one of this region */
static struct vm_area_struct *area_at(struct mm_struct *mm, unsigned long addr, const struct sim_region *region)
{
	struct vm_area_struct *vma = find_vma(mm, addr);

	if (!vma || vma->vm_start > addr || vma->vm_ops != &sim_area_ops || sim_area_region(vma) != region)
		return NULL;
	return vma;
}

static enum sim_access wanted_access(u8 state)
{
	switch (state & OBMM_SHM_MEM_ACCESS_MASK) {
	case OBMM_SHM_MEM_NO_ACCESS:
		return SIM_NONE;
	case OBMM_SHM_MEM_READWRITE:
		return SIM_WRITE;
	default:
		return SIM_READ;
	}
}

static int walk(struct sim_region *region, const struct obmm_cmd_update_range *cmd)
{
	enum sim_access to = wanted_access(cmd->mem_state);
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;
	u64 at = cmd->start;
	LIST_HEAD(done);
	int err = 0;

	while (!err && at < cmd->end) {
		vma = area_at(mm, at, region);
		err = vma ? change_one(vma, cmd, to, &done) : -EFAULT;
		if (!err)
			at = vma->vm_end;
	}
	finish(mm, &done, err, to);
	return err;
}

int sim_update_range(struct file *file, const struct obmm_cmd_update_range *cmd)
{
	struct sim_region *region = ((struct sim_file *)file->private_data)->region;
	int err = check(file, cmd);

	if (err)
		return err;
	mmap_write_lock(current->mm);
	mutex_lock(&region->lock);
	err = walk(region, cmd);
	mutex_unlock(&region->lock);
	mmap_write_unlock(current->mm);
	return err;
}

int sim_ownership_init(void)
{
	struct kprobe probe = { .symbol_name = "split_vma" };
	int err = register_kprobe(&probe);

	if (err)
		return err;
	kernel_split_vma = (void *)probe.addr;
	unregister_kprobe(&probe);
	return 0;
}
