// SPDX-License-Identifier: GPL-2.0-only
/*
 * The cache engine and the write queue (9.8).  Nothing is flushed: TCG has no
 * caches.  What was asked for is counted and kept in a log.
 */
#include <linux/delay.h>

#include "sim.h"

#define CHUNK (1ULL << 30)
#define DRAIN_TIMEOUT_MS 1000
#define BUSY_RETRY_MS 10

static DEFINE_MUTEX(engine_lock); /* all flushes of the host, one after another */

static const char *const op_name[] = {
	[OBMM_SHM_CACHE_INVAL] = "INVAL",
	[OBMM_SHM_CACHE_WB_INVAL] = "WB_INVAL",
	[OBMM_SHM_CACHE_WB_ONLY] = "WB_ONLY",
};

static int injected_error(void)
{
	int err = READ_ONCE(sim_inject.flush_err);

	if (sim_inject.flush_busy > 0) {
		sim_inject.flush_busy--;
		return -EBUSY;
	}
	return err && sim_inject.flush_skip-- <= 0 ? -err : 0;
}

static int run_engine(const struct sim_region *region, u64 offset, u64 length, u8 op)
{
	int err;

	for (;;) {
		if (sim_inject.flush_sleep)
			msleep(sim_inject.flush_sleep);
		err = injected_error();
		sim_log("%s mem_id=%u pa=%#llx offset=%#llx length=%#llx ret=%d\n", op_name[op], region->mem_id,
			sim_region_pa(region, offset), offset, length, err);
		if (err != -EBUSY)
			return err;
		msleep(BUSY_RETRY_MS);
	}
}

/* An export goes on after an error and reports the first; an import stops. */
static int flush_range(const struct sim_region *region, u64 offset, u64 length, u8 op)
{
	int first = 0, err;
	u64 piece;

	for (; length; offset += piece, length -= piece) {
		piece = min(length, CHUNK);
		err = run_engine(region, offset, piece, op);
		if (err && !first)
			first = err;
		if (err && region->type == SIM_IMPORT)
			break;
	}
	return first;
}

static int drain_write_queue(const struct sim_region *region)
{
	int waited;

	atomic64_inc(&sim_counters.drain);
	sim_log("DRAIN scna=%#x\n", region->imp.scna);
	for (waited = 0; !sim_inject.drain_state; waited += BUSY_RETRY_MS) {
		if (waited >= DRAIN_TIMEOUT_MS)
			return -ETIMEDOUT;
		msleep(BUSY_RETRY_MS);
	}
	return 0;
}

static void count(u8 op)
{
	switch (op) {
	case OBMM_SHM_CACHE_INVAL:
		atomic64_inc(&sim_counters.inval);
		break;
	case OBMM_SHM_CACHE_WB_INVAL:
		atomic64_inc(&sim_counters.wb_inval);
		break;
	case OBMM_SHM_CACHE_WB_ONLY:
		atomic64_inc(&sim_counters.wb_only);
		break;
	}
}

int sim_cache_flush(struct sim_region *region, u64 offset, u64 length, u8 op)
{
	int err = 0;

	if (op == OBMM_SHM_CACHE_NONE)
		return 0;
	mutex_lock(&engine_lock);
	count(op);
	if (!sim_param_skip_cache)
		err = flush_range(region, offset, length, op);
	if (!err && region->type == SIM_IMPORT && op != OBMM_SHM_CACHE_INVAL)
		err = drain_write_queue(region);
	mutex_unlock(&engine_lock);
	return err;
}

int sim_cache_clear(void)
{
	int err = 0;

	mutex_lock(&engine_lock);
	if (!sim_param_skip_cache && sim_inject.flush_skip <= 0)
		err = -READ_ONCE(sim_inject.flush_err);
	mutex_unlock(&engine_lock);
	return err;
}
