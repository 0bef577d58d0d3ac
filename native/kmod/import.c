// SPDX-License-Identifier: GPL-2.0-only
/*
 * IMPORT and UNIMPORT (6.4, 6.5) on a host that was booted without remote
 * NUMA: those imports are checked as far as the driver checks them and then
 * refused as it refuses them there (I23).  So are preimports (R14).
 */
#include <linux/overflow.h>

#include "sim.h"

#define NUMA_REMOTE OBMM_IMPORT_FLAG_NUMA_REMOTE
#define PREIMPORT OBMM_IMPORT_FLAG_PREIMPORT
#define ALLOW_MMAP OBMM_IMPORT_FLAG_ALLOW_MMAP

static DEFINE_MUTEX(import_lock);

static int check_flags(u64 flags)
{
	if (flags & ~OBMM_IMPORT_FLAG_MASK) /* I2 */
		return -EINVAL;
	if (!(flags & ALLOW_MMAP) == !(flags & NUMA_REMOTE)) /* I3 */
		return -EINVAL;
	if ((flags & PREIMPORT) && !(flags & NUMA_REMOTE)) /* I4 */
		return -EINVAL;
	return 0;
}

static int check_range(const struct obmm_cmd_import *cmd)
{
	u64 end;

	if (!cmd->length) /* I6 */
		return -EINVAL;
	if (!IS_ALIGNED(cmd->addr | cmd->length, OBMM_BASIC_GRANULARITY)) /* I7 */
		return -EINVAL;
	if (!cmd->addr) /* I8 */
		return -EINVAL;
	if (check_add_overflow(cmd->addr, cmd->length, &end) || !end) /* I9 */
		return -EINVAL;
	if ((cmd->flags & (NUMA_REMOTE | PREIMPORT)) == NUMA_REMOTE && cmd->base_dist >= 1 &&
	    cmd->base_dist <= 10) /* I10 */
		return -EINVAL;
	return 0;
}

/* A foreign entry in the host's address map: fine when it holds the whole range. */
static bool blocked(u64 pa, u64 length, bool inside)
{
	u64 start = sim_inject.blocker_start, end = start + sim_inject.blocker_length;

	if (start == end || pa + length <= start || end <= pa)
		return false;
	if (start <= pa && pa + length <= end)
		return false;
	return (pa <= start && end <= pa + length) == inside;
}

static int check_place(const struct obmm_cmd_import *cmd, const struct sim_window **window)
{
	bool preimport = cmd->flags & PREIMPORT;

	if (!sim_controller_by_cna(cmd->scna)) /* I12 */
		return -ENODEV;
	if (!preimport && sim_region_import_overlaps(cmd->addr, cmd->length)) /* I13 */
		return -EEXIST;
	*window = sim_window_of(cmd->scna, cmd->addr, cmd->length);
	if (!*window) /* I14 */
		return -EINVAL;
	if (!preimport && blocked(cmd->addr, cmd->length, false)) /* I15 */
		return -EBUSY;
	if (preimport) /* I17, I16 */
		return sim_region_import_overlaps(cmd->addr, 1) ? -EINVAL : -EFAULT;
	if (cmd->flags & NUMA_REMOTE)
		return (*window)->cache == SIM_NC ? -EINVAL : -EPERM; /* I22, I23 */
	if (blocked(cmd->addr, cmd->length, true)) /* I25 */
		return -EBUSY;
	return 0;
}

static int fill(struct sim_region *region, const struct obmm_cmd_import *cmd)
{
	const struct sim_window *window;
	int err = sim_region_set_priv(region, cmd->priv_len, cmd->priv); /* I5 */

	if (!err)
		err = check_range(cmd);
	if (!err)
		err = sim_region_reserve_id(region); /* I11 */
	if (!err)
		err = check_place(cmd, &window);
	if (err)
		return err;
	region->allow_mmap = cmd->flags & ALLOW_MMAP;
	region->cap_cc = window->cache == SIM_CC;
	region->cap_nc = window->cache == SIM_NC;
	region->imp.pa = cmd->addr;
	region->imp.scna = cmd->scna;
	region->imp.dcna = cmd->dcna;
	memcpy(region->imp.seid, cmd->seid, OBMM_EID_LEN);
	memcpy(region->imp.deid, cmd->deid, OBMM_EID_LEN);
	return 0;
}

int sim_import(struct obmm_cmd_import *cmd)
{
	struct sim_region *region = sim_region_alloc(SIM_IMPORT, cmd->length);
	int err;

	if (!region) /* I1 */
		return -ENOMEM;
	err = check_flags(cmd->flags);
	if (!err) {
		mutex_lock(&import_lock);
		err = fill(region, cmd);
		if (!err)
			err = sim_region_publish(region);
		mutex_unlock(&import_lock);
	}
	if (err) {
		sim_region_discard(region);
		return err;
	}
	cmd->mem_id = region->mem_id;
	cmd->numa_id = -1;
	return 0;
}

int sim_unimport(const struct obmm_cmd_unimport *cmd)
{
	struct sim_region *region = sim_region_begin_removal(cmd->mem_id, cmd->flags, SIM_IMPORT);
	int err;

	if (IS_ERR(region))
		return PTR_ERR(region);
	/* 6.5 step 3: no write-back, dirty lines are dropped */
	err = sim_cache_flush(region, 0, region->size, OBMM_SHM_CACHE_INVAL);
	if (err) {
		sim_region_cancel_removal(region);
		return err;
	}
	sim_region_finish_removal(region);
	return 0;
}

/* ---- preimports: remote NUMA memory declared ahead (6.6, 6.7) ---- */

#define MEMORY_BLOCK (128ULL << 20) /* of the recorded host */

int sim_declare_preimport(const struct obmm_cmd_preimport *cmd)
{
	const struct sim_window *window;
	u64 end;

	if (cmd->length % MEMORY_BLOCK) /* R2 */
		return -EINVAL;
	if (cmd->pa % MEMORY_BLOCK) /* R3 */
		return -EINVAL;
	if (check_add_overflow(cmd->pa, cmd->length, &end)) /* R4 */
		return -EINVAL;
	if (!cmd->length) /* R5 */
		return -EINVAL;
	if (cmd->flags) /* R6 */
		return -EINVAL;
	if (!sim_controller_by_cna(cmd->scna)) /* R7 */
		return -ENODEV;
	if (cmd->base_dist >= 1 && cmd->base_dist <= 10) /* R8 */
		return -EINVAL;
	if (!cmd->pa) /* R9 */
		return -EINVAL;
	if (sim_region_import_overlaps(cmd->pa, cmd->length)) /* R10 */
		return -EEXIST;
	if (blocked(cmd->pa, cmd->length, false) || blocked(cmd->pa, cmd->length, true)) /* R12 */
		return -EBUSY;
	window = sim_window_of(cmd->scna, cmd->pa, cmd->length);
	if (!window || window->cache != SIM_CC) /* R13 */
		return -EINVAL;
	return -EPERM; /* R14 */
}

int sim_undeclare_preimport(const struct obmm_cmd_preimport *cmd)
{
	if (cmd->flags) /* V1 */
		return -EINVAL;
	return sim_region_import_overlaps(cmd->pa, 1) ? -EINVAL : -EFAULT; /* V3, V2 */
}
