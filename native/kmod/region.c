// SPDX-License-Identifier: GPL-2.0-only
/*
 * Regions: their ids, their nodes, who may remove them and when (6.3, 7, 8).
 */
#include <linux/fs.h>
#include <linux/idr.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/pseudo_fs.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "sim.h"

static DEFINE_IDA(ids);
static DEFINE_SPINLOCK(registry_lock);
static LIST_HEAD(registry); /* newest first */
static dev_t first_devt;
static struct device *root;
static struct vfsmount *inodes; /* never registered: it cannot be mounted */

/* ---- life ---- */

static void region_release(struct device *dev)
{
	struct sim_region *region = container_of(dev, struct sim_region, dev);

	if (region->type == SIM_EXPORT)
		kvfree(region->exp.chunks);
	kvfree(region->ownership);
	iput(region->inode);
	kfree(region);
}

struct sim_region *sim_region_alloc(enum sim_type type, u64 size)
{
	struct sim_region *region = kzalloc(sizeof(*region), GFP_KERNEL);

	if (!region)
		return NULL;
	region->inode = alloc_anon_inode(inodes->mnt_sb);
	if (IS_ERR(region->inode)) {
		kfree(region);
		return NULL;
	}
	device_initialize(&region->dev);
	region->dev.release = region_release;
	region->dev.parent = root;
	region->dev.groups = type == SIM_EXPORT ? sim_export_groups : sim_import_groups;
	region->type = type;
	region->size = size;
	mutex_init(&region->lock);
	return region;
}

void sim_region_discard(struct sim_region *region)
{
	if (region->mem_id)
		ida_free(&ids, region->mem_id);
	put_device(&region->dev);
}

int sim_region_set_priv(struct sim_region *region, u16 len, const void __user *priv)
{
	if (len > OBMM_MAX_PRIV_LEN)
		return -EINVAL;
	if (len && copy_from_user(region->priv, priv, len))
		return -EFAULT;
	region->priv_len = len;
	return 0;
}

int sim_region_reserve_id(struct sim_region *region)
{
	int id = ida_alloc_range(&ids, OBMM_MIN_MEM_ID, OBMM_MAX_MEM_ID, GFP_KERNEL);

	if (id < 0)
		return id;
	region->mem_id = id;
	return 0;
}

int sim_region_publish(struct sim_region *region)
{
	int err;

	if (!try_module_get(THIS_MODULE)) /* X15: a live region keeps the module */
		return -EPERM;
	region->dev.devt = first_devt + region->mem_id;
	err = dev_set_name(&region->dev, "obmm_shmdev%u", region->mem_id);
	if (!err) {
		cdev_init(&region->cdev, &sim_shmdev_fops);
		region->cdev.owner = THIS_MODULE;
		err = cdev_device_add(&region->cdev, &region->dev);
	}
	if (err) {
		module_put(THIS_MODULE);
		return err;
	}
	spin_lock(&registry_lock);
	list_add(&region->link, &registry);
	region->live = true;
	spin_unlock(&registry_lock);
	return 0;
}

/* ---- look-up ---- */

static struct sim_region *find(u64 mem_id)
{
	struct sim_region *region;

	list_for_each_entry(region, &registry, link)
		if (region->mem_id == mem_id)
			return region;
	return NULL;
}

struct sim_region *sim_region_get(u64 mem_id)
{
	struct sim_region *region;

	spin_lock(&registry_lock);
	region = find(mem_id);
	if (region && region->dying)
		region = NULL;
	if (region)
		region->users++;
	spin_unlock(&registry_lock);
	return region;
}

void sim_region_put(struct sim_region *region)
{
	spin_lock(&registry_lock);
	region->users--;
	spin_unlock(&registry_lock);
}

int sim_region_open(struct sim_region *region)
{
	int err = -EAGAIN;

	spin_lock(&registry_lock);
	if (region->live && !region->dying) {
		region->users++;
		err = 0;
	}
	spin_unlock(&registry_lock);
	return err;
}

bool sim_region_import_overlaps(u64 pa, u64 length)
{
	struct sim_region *region;
	bool found = false;

	spin_lock(&registry_lock);
	list_for_each_entry(region, &registry, link)
		if (region->type == SIM_IMPORT && pa < region->imp.pa + region->size &&
		    region->imp.pa < pa + length)
			found = true;
	spin_unlock(&registry_lock);
	return found;
}

/* ---- addresses ---- */

u64 sim_region_pa(const struct sim_region *region, u64 offset)
{
	if (region->type == SIM_IMPORT)
		return region->imp.pa + offset;
	return PFN_PHYS(region->exp.chunks[offset >> SIM_CHUNK_SHIFT]) + (offset & (SIM_CHUNK - 1));
}

int sim_region_pfn(const struct sim_region *region, u64 offset, unsigned long *pfn)
{
	if (region->type == SIM_IMPORT)
		return sim_window_pfn(region->imp.pa + offset, pfn);
	*pfn = PHYS_PFN(sim_region_pa(region, offset));
	return 0;
}

int sim_region_pfn_by_token(u32 tokenid, u64 offset, unsigned long *pfn)
{
	const struct sim_region *region;
	int err = -EFAULT;

	spin_lock(&registry_lock);
	list_for_each_entry(region, &registry, link) {
		if (region->type != SIM_EXPORT || region->dying || region->exp.tokenid != tokenid ||
		    offset >= region->size)
			continue;
		*pfn = PHYS_PFN(sim_region_pa(region, offset));
		err = 0;
		break;
	}
	spin_unlock(&registry_lock);
	return err;
}

static struct sim_region *next_import_in(u64 pa, u64 length, u32 after)
{
	struct sim_region *region, *next = NULL;

	spin_lock(&registry_lock);
	list_for_each_entry(region, &registry, link)
		if (region->type == SIM_IMPORT && !region->dying && region->mem_id > after &&
		    pa < region->imp.pa + region->size && region->imp.pa < pa + length &&
		    (!next || region->mem_id < next->mem_id))
			next = region;
	if (next)
		next->users++;
	spin_unlock(&registry_lock);
	return next;
}

void sim_regions_zap(u64 pa, u64 length)
{
	struct sim_region *region;
	u32 after = 0;

	while ((region = next_import_in(pa, length, after))) {
		after = region->mem_id;
		sim_area_zap(region, 0, region->size);
		sim_region_put(region);
	}
}

static bool offset_of_pa(const struct sim_region *region, u64 pa, u64 *offset)
{
	u64 i;

	if (region->type == SIM_IMPORT) {
		*offset = pa - region->imp.pa;
		return *offset < region->size;
	}
	for (i = 0; i < region->size >> SIM_CHUNK_SHIFT; i++) {
		u64 into = pa - PFN_PHYS(region->exp.chunks[i]);

		if (into < SIM_CHUNK) {
			*offset = (i << SIM_CHUNK_SHIFT) + into;
			return true;
		}
	}
	return false;
}

static int query_by_pa(struct obmm_cmd_addr_query *cmd)
{
	struct sim_region *region;
	int err = -ENOENT;

	spin_lock(&registry_lock);
	list_for_each_entry(region, &registry, link) {
		if (!region->dying && offset_of_pa(region, cmd->pa, &cmd->offset)) {
			cmd->mem_id = region->mem_id;
			err = 0;
			break;
		}
	}
	spin_unlock(&registry_lock);
	return err;
}

/* 6.8 */
int sim_region_query(struct obmm_cmd_addr_query *cmd)
{
	struct sim_region *region;
	int err = 0;

	if (cmd->key_type == OBMM_QUERY_BY_PA)
		return query_by_pa(cmd);
	if (cmd->key_type != OBMM_QUERY_BY_ID_OFFSET)
		return -EINVAL;
	region = sim_region_get(cmd->mem_id);
	if (!region)
		return -ENOENT;
	if (cmd->offset < region->size)
		cmd->pa = sim_region_pa(region, cmd->offset);
	else
		err = -EINVAL;
	sim_region_put(region);
	return err;
}

/* ---- removal ---- */

struct sim_region *sim_region_begin_removal(u64 mem_id, u64 flags, enum sim_type type)
{
	struct sim_region *region;

	if (mem_id < OBMM_MIN_MEM_ID || mem_id > OBMM_MAX_MEM_ID) /* U1 */
		return ERR_PTR(-ENOENT);
	if (flags) /* U2 */
		return ERR_PTR(-EINVAL);
	spin_lock(&registry_lock);
	region = find(mem_id);
	if (!region) /* U3 */
		region = ERR_PTR(-ENOENT);
	else if (region->users || region->dying) /* U4 */
		region = ERR_PTR(-EBUSY);
	else if (region->type != type) /* U5 */
		region = ERR_PTR(-EINVAL);
	else
		region->dying = true;
	spin_unlock(&registry_lock);
	return region;
}

void sim_region_cancel_removal(struct sim_region *region)
{
	spin_lock(&registry_lock);
	region->dying = false;
	spin_unlock(&registry_lock);
}

void sim_region_finish_removal(struct sim_region *region)
{
	u32 mem_id = region->mem_id;

	cdev_device_del(&region->cdev, &region->dev);
	spin_lock(&registry_lock);
	list_del(&region->link);
	region->live = false;
	spin_unlock(&registry_lock);
	put_device(&region->dev);
	ida_free(&ids, mem_id); /* only now: the next node takes this name */
	module_put(THIS_MODULE);
}

/* ---- module ---- */

static int inodes_init(struct fs_context *context)
{
	return init_pseudo(context, 0x6f626d6d) ? 0 : -ENOMEM;
}

/* no owner: its inodes are regions', and those hold the module already */
static struct file_system_type inodes_type = {
	.name = "obmm_sim",
	.init_fs_context = inodes_init,
	.kill_sb = kill_anon_super,
};

int sim_regions_init(void)
{
	int err;

	inodes = kern_mount(&inodes_type);
	if (IS_ERR(inodes))
		return PTR_ERR(inodes);
	err = alloc_chrdev_region(&first_devt, 0, OBMM_MAX_MEM_ID + 1, "OBMM_SHMDEV");
	if (err)
		goto unmount;
	root = root_device_register("obmm");
	if (IS_ERR(root)) {
		err = PTR_ERR(root);
		goto unregister;
	}
	return 0;
unregister:
	unregister_chrdev_region(first_devt, OBMM_MAX_MEM_ID + 1);
unmount:
	kern_unmount(inodes);
	return err;
}

void sim_regions_exit(void)
{
	root_device_unregister(root);
	unregister_chrdev_region(first_devt, OBMM_MAX_MEM_ID + 1);
	kern_unmount(inodes);
	ida_destroy(&ids);
}
