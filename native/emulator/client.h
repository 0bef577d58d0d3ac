/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the emulator offers beyond the system-call table (obmm_sys_emulator is
 * in core/sys.h): the decoder, which a management plane programs on hardware,
 * and the calls of driver specification 9.2 and 9.4 that the core never makes.
 *
 * `sys` must come from obmm_sys_emulator.
 */
#ifndef OBMM_EMULATOR_CLIENT_H
#define OBMM_EMULATOR_CLIENT_H

#include "../abi/lp64.h"

#include <stddef.h>
#include <stdint.h>

#include "../core/sys.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which memory of which node a decoder entry leads to. */
struct obmm_emulator_window {
	uint8_t owner_eid[16];
	uint32_t owner_cna;
	uint32_t tokenid;
	uint64_t uba;
	uint64_t length;
	uint64_t pa;	    /* wanted local physical address, 0: any */
	uint32_t local_cna; /* local controller whose window to use, 0: any */
	uint32_t cache;	    /* 1 cacheable, 2 non-cacheable */
};

/* Program this node's decoder; the local physical address goes to *pa.  0 or a negative errno. */
int obmm_emulator_program(struct obmm_sys *sys, const struct obmm_emulator_window *window, uint64_t *pa);
/* Forget the decoder entry that starts at pa. */
int obmm_emulator_unprogram(struct obmm_sys *sys, uint64_t pa);
/* The same for the entry noted in *pa, if it is not 0, and the note is cleared. */
int obmm_emulator_release(struct obmm_sys *sys, uint64_t *pa);

/*
 * As libc's calls of the same names, for ranges that this node's regions are
 * mapped at; other ranges go to the kernel.
 */
int obmm_emulator_mprotect(struct obmm_sys *sys, void *addr, size_t length, int prot);
void *obmm_emulator_mremap(struct obmm_sys *sys, void *addr, size_t old_length, size_t new_length, int flags,
			   void *new_addr);
int obmm_emulator_madvise(struct obmm_sys *sys, void *addr, size_t length, int advice);
int obmm_emulator_msync(struct obmm_sys *sys, void *addr, size_t length, int flags);

/*
 * A file operation without memory of its own (enum obmm_wire_operation) on an
 * emulated descriptor.  -1 and ENOTSUP when fd is not one.
 */
int64_t obmm_emulator_file(struct obmm_sys *sys, int fd, int operation, uint64_t a, uint64_t b, uint64_t c);

/* As libc's calls of the same names, for the node's devices. */
int obmm_emulator_chmod(struct obmm_sys *sys, const char *path, unsigned int mode);
int obmm_emulator_chown(struct obmm_sys *sys, const char *path, unsigned int uid, unsigned int gid);

/* How many open files a region has: while there are any it is not removed.  Or a negative errno. */
int64_t obmm_emulator_opens(struct obmm_sys *sys, uint64_t mem_id);

/* The device that fd is an open file of: length of its path, or 0 when fd is none of the node's. */
size_t obmm_emulator_device(struct obmm_sys *sys, int fd, char *device, size_t size);
/* Whether fd is an open file of the emulated node. */
int obmm_emulator_is_open(struct obmm_sys *sys, int fd);
/* The connection's own descriptor, which programs must not close; -1 before the first call of a forked child. */
int obmm_emulator_descriptor(struct obmm_sys *sys);
/* Move the connection away if it is at the number fd, for a dup2. */
void obmm_emulator_vacate(struct obmm_sys *sys, int fd);

#ifdef __cplusplus
}
#endif

#endif
