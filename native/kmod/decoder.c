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

static struct entry entries[16]; /* under sim_decoder_sem */

/*
 * Read: an address becomes a frame, and the frame is mapped or copied.  Write: what an address leads to changes, and
 * everything that was mapped through it is taken away.
 */
DECLARE_RWSEM(sim_decoder_sem);

static bool overlap(const struct entry *entry, u64 pa, u64 length)
{
	return entry->length && pa < entry->pa + entry->length && entry->pa < pa + length;
}

/* The entry that begins at `pa`, else an empty one, else NULL. */
static struct entry *place_for(u64 pa)
{
	struct entry *empty = NULL;
	int i;

	for (i = 0; i < ARRAY_SIZE(entries); i++) {
		if (entries[i].length && entries[i].pa == pa)
			return &entries[i];
		if (!entries[i].length && !empty)
			empty = &entries[i];
	}
	return empty;
}

static int program(u64 pa, u64 length, u32 tokenid)
{
	struct entry *place = place_for(pa);
	int i;

	if (!length && (!place || !place->length)) /* nothing to remove */
		return 0;
	if (!place)
		return -ENOSPC;
	for (i = 0; i < ARRAY_SIZE(entries); i++)
		if (&entries[i] != place && overlap(&entries[i], pa, length))
			return -EEXIST;
	/* what was there, and the plain memory that the entry hides */
	sim_regions_zap(pa, max(length, place->length));
	*place = (struct entry){ pa, length, tokenid };
	return 0;
}

int sim_decoder_program(u64 pa, u64 length, u32 tokenid)
{
	int err;

	down_write(&sim_decoder_sem);
	err = program(pa, length, tokenid);
	up_write(&sim_decoder_sem);
	return err;
}

bool sim_decoder_lookup(u64 pa, u32 *tokenid, u64 *offset)
{
	int i;

	lockdep_assert_held(&sim_decoder_sem);
	for (i = 0; i < ARRAY_SIZE(entries); i++) {
		if (pa - entries[i].pa >= entries[i].length)
			continue;
		*tokenid = entries[i].tokenid;
		*offset = pa - entries[i].pa;
		return true;
	}
	return false;
}

/* 22.3, rule 7: the export is removed; who imported it gets bus errors from now on. */
void sim_decoder_revoke(u32 tokenid)
{
	int i;

	down_write(&sim_decoder_sem); /* the export is dying already: no new frame of it is handed out */
	for (i = 0; i < ARRAY_SIZE(entries); i++)
		if (entries[i].length && entries[i].tokenid == tokenid)
			sim_regions_zap(entries[i].pa, entries[i].length);
	up_write(&sim_decoder_sem);
}
