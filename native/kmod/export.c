// SPDX-License-Identifier: GPL-2.0-only
/*
 * EXPORT and UNEXPORT (6.1, 6.3), with the token and address rules of 7 and 18.
 */
#include <linux/idr.h>
#include <linux/log2.h>
#include <linux/overflow.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <asm/unaligned.h>

#include "sim.h"

/* ---- UMMU: who takes the request, which token (7, 18) ---- */

#define UMMU_LOGICAL 2
static struct ida tokens[3] = {
	IDA_INIT(tokens[0]),
	IDA_INIT(tokens[1]),
	IDA_INIT(tokens[UMMU_LOGICAL]),
};

static int choose_ummu(const u8 *vendor, u16 len)
{
	u64 mask;

	if (!len)
		return UMMU_LOGICAL;
	if (len < sizeof(struct obmm_vendor_info))
		return -EPERM;
	if (!vendor[offsetof(struct obmm_vendor_info, on_chip)])
		return UMMU_LOGICAL;
	mask = get_unaligned((u64 *)(vendor + offsetof(struct obmm_vendor_info, ummu_mask)));
	if (!mask || !sim_has_ummu(__ffs64(mask)))
		return -EPERM;
	return __ffs64(mask);
}

/* X13 */
static int take_token(struct sim_export *exp, const u8 *vendor, u16 vendor_len)
{
	int ummu = choose_ummu(vendor, vendor_len);
	int token = -EPERM;

	if (ummu >= 0 && !sim_inject.tdev_fail)
		token = ida_alloc_range(&tokens[ummu], sim_inject.tid_min, sim_inject.tid_max, GFP_KERNEL);
	if (token < 0) {
		sim_log("alloc_tdev vendor_len=%u refused=1\n", vendor_len);
		return -EPERM;
	}
	sim_log("alloc_tdev vendor_len=%u tid=%d\n", vendor_len, token);
	exp->ummu = ummu;
	exp->tokenid = token;
	return 0;
}

static int give_token(const struct sim_export *exp)
{
	int err = -sim_inject.tdev_free_err;

	sim_log("free_tdev tid=%u ret=%d\n", exp->tokenid, err);
	if (!err)
		ida_free(&tokens[exp->ummu], exp->tokenid);
	return err;
}

void sim_tokens_exit(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(tokens); i++)
		ida_destroy(&tokens[i]);
}

/* X14: the DMA layer lets four errors through, every other becomes EIO */
static int map_into_ummu(const struct sim_region *region)
{
	int err = sim_inject.map_err;

	if (!err) {
		sim_log("dma_map size=%#llx uba=%#llx\n", region->size, region->exp.uba);
		return 0;
	}
	sim_log("dma_map ret=%d\n", -err);
	return err == EINVAL || err == ENOMEM || err == EREMOTEIO ? -err : -EIO;
}

/* Top down, naturally aligned, in an empty 48-bit space (7). */
static u64 uba_of(u64 size)
{
	if (size > 1ULL << 47) /* X12 refuses it: no host has as much */
		return 0;
	return ((1ULL << 48) - size) & ~(roundup_pow_of_two(size) - 1);
}

/* ---- checks ---- */

/* X3, X4 */
static int check_sizes(const struct obmm_cmd_export *cmd, u64 *total)
{
	int i;

	*total = 0;
	for (i = 0; i < cmd->length; i++) {
		if (cmd->size[i] % sim_param_memseg) /* X3a */
			return -EINVAL;
		if (cmd->size[i] && !sim_topology->nodes[i].online) /* X3b */
			return -ENODEV;
		if (check_add_overflow(*total, cmd->size[i], total)) /* X3c */
			return -EOVERFLOW;
	}
	return *total ? 0 : -EINVAL; /* X4 */
}

/* X5: memory and controller on one package, by nodes that have CPUs */
static int check_package(const struct obmm_cmd_export *cmd)
{
	const struct sim_node *node;
	int package = -1;
	int i;

	for (i = 0; i < OBMM_MAX_LOCAL_NUMA_NODES; i++) {
		if (i != cmd->pxm_numa && (i >= cmd->length || !cmd->size[i]))
			continue;
		node = &sim_topology->nodes[i];
		if (!node->online || !node->has_cpus)
			return -EINVAL;
		if (package >= 0 && node->package != package)
			return -EINVAL;
		package = node->package;
	}
	return 0;
}

static int check(const struct obmm_cmd_export *cmd, u64 *total)
{
	int err;

	if (cmd->length > OBMM_MAX_LOCAL_NUMA_NODES) /* X1 */
		return -E2BIG;
	if (cmd->pxm_numa < 0 || cmd->pxm_numa > OBMM_MAX_LOCAL_NUMA_NODES) /* X2 */
		return -EINVAL;
	err = check_sizes(cmd, total);
	if (err)
		return err;
	return check_package(cmd);
}

/* ---- the commands ---- */

static int take_memory(struct sim_region *region)
{
	u64 count = region->size >> SIM_CHUNK_SHIFT;
	int err = sim_cache_clear();

	if (err || sim_inject.lin_err)
		return -ENOMEM;
	if (count > totalram_pages()) /* never mind allocating the list */
		return -ENOMEM;
	region->exp.chunks = kvcalloc(count, sizeof(*region->exp.chunks), GFP_KERNEL | __GFP_NOWARN);
	if (!region->exp.chunks)
		return -ENOMEM;
	return sim_chunks_alloc(region->exp.chunks, count);
}

static int fill(struct sim_region *region, const struct obmm_cmd_export *cmd, u8 *vendor)
{
	int err;

	if (cmd->flags & ~OBMM_EXPORT_FLAG_MASK) /* X7 */
		return -EINVAL;
	err = sim_region_set_priv(region, cmd->priv_len, cmd->priv); /* X8 */
	if (err)
		return err;
	if (cmd->vendor_len > OBMM_MAX_VENDOR_LEN) /* X9 */
		return -EINVAL;
	if (cmd->vendor_len && copy_from_user(vendor, (const void __user *)cmd->vendor_info, cmd->vendor_len))
		return -EFAULT;
	region->allow_mmap = cmd->flags & OBMM_EXPORT_FLAG_ALLOW_MMAP;
	region->cap_cc = region->cap_nc = true;
	memcpy(region->exp.node_size, cmd->size, cmd->length * sizeof(cmd->size[0]));
	memcpy(region->exp.deid, cmd->deid, OBMM_EID_LEN);
	region->exp.uba = uba_of(region->size);
	return sim_region_reserve_id(region); /* X10 */
}

static int back_and_publish(struct sim_region *region, const u8 *vendor, u16 vendor_len)
{
	int err = take_memory(region); /* X12 */

	if (err)
		return err;
	err = take_token(&region->exp, vendor, vendor_len); /* X13 */
	if (err)
		goto free_memory;
	err = map_into_ummu(region); /* X14 */
	if (!err)
		err = sim_region_publish(region);
	if (!err)
		return 0;
	give_token(&region->exp);
free_memory:
	sim_chunks_free(region->exp.chunks, region->size >> SIM_CHUNK_SHIFT);
	return err;
}

int sim_export(struct obmm_cmd_export *cmd)
{
	u8 vendor[OBMM_MAX_VENDOR_LEN] = { 0 };
	struct sim_region *region;
	u64 total;
	int err = check(cmd, &total);

	if (err)
		return err;
	region = sim_region_alloc(SIM_EXPORT, total);
	if (!region) /* X6 */
		return -ENOMEM;
	err = fill(region, cmd, vendor);
	if (!err)
		err = back_and_publish(region, vendor, cmd->vendor_len);
	if (err) {
		sim_region_discard(region);
		return err;
	}
	cmd->uba = region->exp.uba;
	cmd->mem_id = region->mem_id;
	cmd->tokenid = region->exp.tokenid;
	return 0;
}

int sim_unexport(const struct obmm_cmd_unexport *cmd)
{
	struct sim_region *region = sim_region_begin_removal(cmd->mem_id, cmd->flags, SIM_EXPORT);
	int err;

	if (IS_ERR(region))
		return PTR_ERR(region);
	sim_log("dma_unmap\n");
	err = give_token(&region->exp);
	if (err) { /* U6: back to what it was, if that works */
		if (map_into_ummu(region))
			err = -ENOTRECOVERABLE;
		sim_region_cancel_removal(region);
		return err;
	}
	sim_decoder_revoke(region->exp.tokenid);
	sim_chunks_free(region->exp.chunks, region->size >> SIM_CHUNK_SHIFT);
	sim_region_finish_removal(region);
	return 0;
}
