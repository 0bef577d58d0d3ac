/* SPDX-License-Identifier: Apache-2.0 */
/*
 * obmm_rw_*: the driver's commands as C functions over a system-call table.
 * They never validate: what the caller passes is what the driver gets, and
 * what the driver answers is what the caller gets.  Python validates.
 *
 * Every function returns a non-negative result or a negative errno, and is
 * safe to call from any thread.
 */
#ifndef OBMM_RW_H
#define OBMM_RW_H

#include "../abi/lp64.h"

#include <stdint.h>

#include "../abi/obmm_abi.h"
#include "sys.h"

#ifdef __cplusplus
extern "C" {
#endif

/* /dev/obmm, O_RDWR | O_CLOEXEC.  Returns the descriptor, or -ENOSYS for a table without a size (sys.h), as obmm_rw_shmdev_open(). */
int obmm_rw_open(struct obmm_sys *sys);
int obmm_rw_close(struct obmm_sys *sys, int fd);

/* Any request: probes (spec 20) and conformance tests.  The others are this with a struct. */
int obmm_rw_ioctl(struct obmm_sys *sys, int fd, uint64_t request, void *arg);

/* The command struct is both input and output (spec 5.1, 5.2, 5.5, 5.7). */
int obmm_rw_export(struct obmm_sys *sys, int fd, struct obmm_cmd_export *cmd);
int obmm_rw_export_useraddr(struct obmm_sys *sys, int fd, struct obmm_cmd_export_pid *cmd);
int obmm_rw_unexport(struct obmm_sys *sys, int fd, uint64_t mem_id, uint64_t flags);
int obmm_rw_import(struct obmm_sys *sys, int fd, struct obmm_cmd_import *cmd);
int obmm_rw_unimport(struct obmm_sys *sys, int fd, uint64_t mem_id, uint64_t flags);
int obmm_rw_declare_preimport(struct obmm_sys *sys, int fd, struct obmm_cmd_preimport *cmd);
int obmm_rw_undeclare_preimport(struct obmm_sys *sys, int fd, struct obmm_cmd_preimport *cmd);

int obmm_rw_query_pa(struct obmm_sys *sys, int fd, uint64_t mem_id, uint64_t offset, uint64_t *pa);
int obmm_rw_query_id(struct obmm_sys *sys, int fd, uint64_t pa, uint64_t *mem_id, uint64_t *offset);

/* /dev/obmm_shmdev<mem_id>; flags as open(2): O_SYNC selects NC (spec 9.1). O_CLOEXEC is added. */
int obmm_rw_shmdev_open(struct obmm_sys *sys, uint64_t mem_id, int flags);

/*
 * Map [offset, offset + length) of the region shared.  pmd != 0 sets bit 63 of
 * the offset.  addr != NULL maps there with MAP_FIXED.
 */
int obmm_rw_map(struct obmm_sys *sys, int fd, void *addr, uint64_t offset, uint64_t length, int prot,
		int pmd, void **out);
int obmm_rw_unmap(struct obmm_sys *sys, void *addr, uint64_t length);

/*
 * Unmap, but keep the addresses taken by inaccessible pages, in one step (an
 * anonymous MAP_FIXED mapping over it): late accesses fault, and nothing else
 * is ever mapped where somebody may still look.
 */
int obmm_rw_seal(struct obmm_sys *sys, void *addr, uint64_t length);

/* SHMDEV_UPDATE_RANGE over [start, end) user addresses (spec 9.6). */
int obmm_rw_set_ownership(struct obmm_sys *sys, int fd, uint64_t start, uint64_t end, uint8_t mem_state,
			  uint8_t cache_ops);

#ifdef __cplusplus
}
#endif

#endif
