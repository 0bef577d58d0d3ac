// SPDX-License-Identifier: GPL-2.0-only
/*
 * /dev/obmm_shmdev<id>: open, mmap, ioctl (9.1 - 9.3).
 */
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "sim.h"

#define PMD_FLAG_PGOFF (OBMM_MMAP_FLAG_HUGETLB_PMD >> PAGE_SHIFT)

static int shmdev_open(struct inode *inode, struct file *file)
{
	struct sim_region *region = container_of(inode->i_cdev, struct sim_region, cdev);
	bool nc = file->f_flags & O_SYNC; /* O_DSYNC is a part of O_SYNC and suffices */
	struct sim_file *own;
	int err;

	if (nc ? !region->cap_nc : !region->cap_cc)
		return -EPERM;
	own = kmalloc(sizeof(*own), GFP_KERNEL);
	if (!own)
		return -ENOMEM;
	err = sim_region_open(region);
	if (err) {
		kfree(own);
		return err;
	}
	own->region = region;
	own->nc = nc;
	file->private_data = own;
	/* one address space for all files, so that sim_area_zap() reaches every mapping */
	file->f_mapping = region->inode->i_mapping;
	return 0;
}

static int shmdev_release(struct inode *inode, struct file *file)
{
	struct sim_file *own = file->private_data;

	sim_region_put(own->region);
	kfree(own);
	return 0;
}

static long shmdev_ioctl(struct file *file, unsigned int request, unsigned long arg)
{
	struct obmm_cmd_update_range cmd;

	if (request != OBMM_SHMDEV_UPDATE_RANGE)
		return -ENOTTY;
	if (copy_from_user(&cmd, (void __user *)arg, sizeof(cmd))) /* O1 */
		return -EFAULT;
	return sim_update_range(file, &cmd);
}

/* M10 - M13, under the region's lock */
static int admit(struct sim_region *region, u64 offset, u64 length, bool pmd, bool nc)
{
	enum sim_granularity wanted = pmd ? SIM_GRAN_PMD : SIM_GRAN_PAGE;
	u64 unit = pmd ? PMD_SIZE : PAGE_SIZE;
	int remap_err = READ_ONCE(sim_inject.remap_err); /* once: root may change it at any moment */

	if (region->granularity != SIM_GRAN_UNDECIDED && region->granularity != wanted) /* M10 */
		return -EPERM;
	if (offset >= region->size || length > region->size - offset) /* M11 */
		return -EINVAL;
	if (atomic_read(&region->areas) && region->nc != nc) /* M12 */
		return -EPERM;
	if (remap_err && pmd) /* M14 */
		return -remap_err;
	if (!nc && !region->ownership) {
		region->ownership = kvcalloc(region->size / unit, sizeof(*region->ownership),
					     GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
		if (!region->ownership) /* M13 */
			return -ENOMEM;
	}
	region->granularity = wanted;
	region->nc = nc;
	return 0;
}

static int shmdev_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct sim_file *own = file->private_data;
	struct sim_region *region = own->region;
	bool pmd = vma->vm_pgoff & PMD_FLAG_PGOFF;
	u64 offset = (u64)(vma->vm_pgoff & ~PMD_FLAG_PGOFF) << PAGE_SHIFT;
	u64 length = vma->vm_end - vma->vm_start;
	int err;

	if (!(vma->vm_flags & VM_MAYSHARE)) /* M5 */
		return -EINVAL;
	if (!region->allow_mmap) /* M6 */
		return -EPERM;
	if (pmd && !IS_ALIGNED(vma->vm_start | vma->vm_end, PMD_SIZE)) /* M8 */
		return -EINVAL;
	if (pmd && !IS_ALIGNED(offset, PMD_SIZE)) /* M9 */
		return -EINVAL;

	mutex_lock(&region->lock);
	err = admit(region, offset, length, pmd, own->nc);
	if (!err) {
		vma->vm_flags |= VM_PFNMAP | VM_IO | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY;
		vma->vm_pgoff = offset >> PAGE_SHIFT;
		vma->vm_ops = &sim_area_ops;
		if (own->nc)
			vma->vm_page_prot = pgprot_writecombine(vma->vm_page_prot);
		atomic_inc(&region->areas);
		if (!own->nc)
			sim_ownership_change(region, offset, length, SIM_NONE, sim_area_access(vma));
	}
	mutex_unlock(&region->lock);
	return err;
}

static unsigned long shmdev_get_unmapped_area(struct file *file, unsigned long addr, unsigned long len,
					      unsigned long pgoff, unsigned long flags)
{
	return thp_get_unmapped_area(file, addr, len, pgoff & ~PMD_FLAG_PGOFF, flags);
}

const struct file_operations sim_shmdev_fops = {
	.owner = THIS_MODULE,
	.open = shmdev_open,
	.release = shmdev_release,
	.unlocked_ioctl = shmdev_ioctl,
	.mmap = shmdev_mmap,
	.get_unmapped_area = shmdev_get_unmapped_area,
	.llseek = no_llseek,
};
