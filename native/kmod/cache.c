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

struct entry {
	const char *op;
	u32 mem_id, scna;
	u64 pa, offset, length;
	int ret;
};

static DEFINE_MUTEX(engine_lock); /* all flushes of the host, one after another */
static struct entry log[1024];
static unsigned int log_head, log_tail;

static const char *const op_name[] = {
	[OBMM_SHM_CACHE_INVAL] = "INVAL",
	[OBMM_SHM_CACHE_WB_INVAL] = "WB_INVAL",
	[OBMM_SHM_CACHE_WB_ONLY] = "WB_ONLY",
};

static void record(struct entry entry)
{
	log[log_head++ % ARRAY_SIZE(log)] = entry;
	if (log_head - log_tail > ARRAY_SIZE(log))
		log_tail = log_head - ARRAY_SIZE(log);
}

ssize_t sim_cache_log_read(char *buf, size_t size)
{
	const struct entry *entry;
	ssize_t at = 0;

	mutex_lock(&engine_lock);
	for (; log_tail != log_head && size - at > 160; log_tail++) {
		entry = &log[log_tail % ARRAY_SIZE(log)];
		at += scnprintf(buf + at, size - at, "%s mem_id=%u pa=%#llx offset=%#llx length=%#llx scna=%#x ret=%d\n",
				entry->op, entry->mem_id, entry->pa, entry->offset, entry->length, entry->scna,
				entry->ret);
	}
	mutex_unlock(&engine_lock);
	return at;
}

static int injected_error(void)
{
	if (sim_inject.flush_busy > 0) {
		sim_inject.flush_busy--;
		return -EBUSY;
	}
	if (sim_inject.flush_err && sim_inject.flush_skip-- <= 0)
		return -sim_inject.flush_err;
	return 0;
}

static int run_engine(const struct sim_region *region, u64 offset, u64 length, u8 op)
{
	struct entry entry = {
		.op = op_name[op],
		.mem_id = region->mem_id,
		.pa = sim_region_pa(region, offset),
		.offset = offset,
		.length = length,
	};

	for (;;) {
		if (sim_inject.flush_sleep)
			msleep(sim_inject.flush_sleep);
		entry.ret = injected_error();
		record(entry);
		if (entry.ret != -EBUSY)
			return entry.ret;
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
	record((struct entry){ .op = "DRAIN", .scna = region->imp.scna });
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
	if (!sim_param_skip_cache && sim_inject.flush_err && sim_inject.flush_skip <= 0)
		err = -sim_inject.flush_err;
	mutex_unlock(&engine_lock);
	return err;
}
