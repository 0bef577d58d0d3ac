/* SPDX-License-Identifier: Apache-2.0 */
#include "held.h"

#include <errno.h>
#include <stddef.h>
#include <unistd.h>

#include "../core/obmm_rw.h"
#include "../core/owned.h"
#include "../core/sys.h"
#include "guard.h"

void obmm_held_init(struct obmm_held *held)
{
	*held = (struct obmm_held)OBMM_HELD_INIT;
}

int obmm_held_open(struct obmm_sys *sys, struct obmm_held *held, uint64_t mem_id, int flags)
{
	int fd = obmm_rw_shmdev_open(sys, mem_id, flags);

	if (fd < 0)
		return fd;
	held->fd = fd;
	return 0;
}

int obmm_held_map(struct obmm_sys *sys, struct obmm_held *held, void *addr, uint64_t offset, uint64_t length,
		  int prot, int pmd)
{
	held->length = length;
	return obmm_rw_map(sys, held->fd, addr, offset, length, prot, pmd, &held->base);
}

int obmm_held_guard(struct obmm_held *held, uint64_t identity)
{
	int slot = obmm_guard_add(held->base, held->length, identity);

	if (slot < 0)
		return slot;
	held->slot = slot;
	return 0;
}

static void let_go(struct obmm_sys *sys, struct obmm_held *held)
{
	if (held->slot >= 0)
		obmm_guard_remove(held->slot);
	held->slot = -1;
	if (held->fd >= 0)
		obmm_rw_close(sys, held->fd);
	held->fd = -1;
}

int obmm_held_release(struct obmm_sys *sys, struct obmm_held *held)
{
	if (held->base) {
		int result = obmm_rw_unmap(sys, held->base, held->length);

		if (result == -ESHUTDOWN) /* the emulator is gone, the addresses are not */
			result = obmm_rw_unmap(obmm_sys_kernel(), held->base, held->length);
		if (result)
			return result;
		held->base = NULL;
	}
	let_go(sys, held);
	if (held->sealed)
		obmm_rw_unmap(obmm_sys_kernel(), held->sealed, held->length);
	held->sealed = NULL;
	return 0;
}

void obmm_held_end(struct obmm_node *node, struct obmm_held *held)
{
	/* a node that was closed first took what the device knew; addresses and descriptors are the kernel's */
	if (node->pid == getpid())
		obmm_held_release(node->sys ? node->sys : obmm_sys_kernel(), held);
}

int obmm_held_seal(struct obmm_sys *sys, struct obmm_held *held)
{
	int result = obmm_rw_seal(sys, held->base, held->length);

	if (result)
		return result;
	held->sealed = held->base;
	held->base = NULL;
	let_go(sys, held);
	return 0;
}
