// SPDX-License-Identifier: GPL-2.0-only
/*
 * Decoder entries: a piece of a window that leads to an export of this same
 * host, by token, as a bus controller in loopback would.  The driver never
 * looks at them; only accesses do.  Where no entry is, a window is plain memory.
 */
#include <linux/rwsem.h>
#include <linux/slab.h>

#include "sim.h"

struct entry {
	u64 pa;
	u64 length;
	u32 tokenid;
};

static struct entry entries[16];
static DEFINE_SPINLOCK(entries_lock);

/* Read: a fault turns an address into a frame and maps it.  Write: an export goes away. */
DECLARE_RWSEM(sim_decoder_sem);

int sim_decoder_program(u64 pa, u64 length, u32 tokenid)
{
	struct entry *free = NULL;
	int i;

	spin_lock(&entries_lock);
	for (i = 0; i < ARRAY_SIZE(entries); i++)
		if (!entries[i].length || entries[i].pa == pa)
			free = &entries[i];
	if (free)
		*free = (struct entry){ pa, length, tokenid };
	spin_unlock(&entries_lock);
	return free ? 0 : -ENOSPC;
}

bool sim_decoder_lookup(u64 pa, u32 *tokenid, u64 *offset)
{
	bool found = false;
	int i;

	spin_lock(&entries_lock);
	for (i = 0; i < ARRAY_SIZE(entries) && !found; i++) {
		found = pa - entries[i].pa < entries[i].length;
		*tokenid = entries[i].tokenid;
		*offset = pa - entries[i].pa;
	}
	spin_unlock(&entries_lock);
	return found;
}

/* 22.3, rule 7: the export is removed; who imported it gets bus errors from now on. */
void sim_decoder_revoke(u32 tokenid)
{
	struct entry entry;
	int i;

	down_write(&sim_decoder_sem); /* the export is dying already: no new frame of it is handed out */
	for (i = 0; i < ARRAY_SIZE(entries); i++) {
		spin_lock(&entries_lock);
		entry = entries[i];
		spin_unlock(&entries_lock);
		if (entry.length && entry.tokenid == tokenid)
			sim_regions_zap(entry.pa, entry.length);
	}
	up_write(&sim_decoder_sem);
}
