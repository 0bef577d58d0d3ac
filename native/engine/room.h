/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many CPUs threads of this process may keep busy by waiting: of those that
 * it may run on and pays for (affinity, control group), its part among the
 * processes of this user on this host that gather on the same ones, and one less
 * for the caller.
 *
 * Processes tell each other through a file in /dev/shm: who gathered when, on
 * which CPUs.  It is advice: without it, or with nonsense in it, gathers are as
 * right as before, and what is read there never counts for more than the number
 * of CPUs.  A process that ends without a word is forgotten in a second.
 */
#ifndef OBMM_ROOM_H
#define OBMM_ROOM_H

#include "../abi/lp64.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As of the last refresh; no system call. */
unsigned int obmm_room_free(void);

/* Look again, if the last look was long ago; system calls.  Whether it looked. */
bool obmm_room_refresh(uint64_t now_ns);

/* This process gathers.  Two loads and now and then a store. */
void obmm_room_use(uint64_t now_ns);

/*
 * The CPUs' worth of time that control groups allow, rounded up; UINT32_MAX: no
 * limit.  `groups` as /proc/self/cgroup, `mount` as /sys/fs/cgroup.
 */
unsigned int obmm_room_quota(const char *groups, const char *mount);

/* Among `others` processes whose CPUs are cpus[i] of ours in common, `mine` CPUs: what is free for waiting. */
unsigned int obmm_room_part(unsigned int mine, const unsigned int *common, unsigned int others);

#ifdef __cplusplus
}
#endif

#endif
