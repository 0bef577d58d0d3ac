/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * obmm_sim: a driver that answers like openEuler's OBMM driver (reference
 * profile) in a guest without Unified Bus hardware.  It makes system calls,
 * page tables, signals and lifetimes real; hardware is bookkeeping.
 *
 * Rule ids in comments (X5, I14, M10, O9) and section numbers are those of
 * the driver specification.
 */
#ifndef OBMM_SIM_H
#define OBMM_SIM_H

#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>
#include <linux/version.h>

#include "../abi/obmm_abi.h"

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0) || LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
#error "obmm_sim follows the memory management of Linux 6.1 (Debian 12); other kernels were never tried"
#endif

#define SIM_CHUNK OBMM_BASIC_GRANULARITY
#define SIM_CHUNK_SHIFT 21

/* ---- topology.c: what hardware this host pretends to have (13, 14) ---- */

struct sim_node {
	bool online; /* a local node with memory */
	bool has_cpus;
	int package;
};

struct sim_controller {
	u32 eid;
	u32 cna;
	int node;
	u32 ummu;
};

enum sim_cache { SIM_CC, SIM_NC };

struct sim_window {
	u32 cna;
	enum sim_cache cache;
	u64 base;
	u64 size;
	bool backed; /* false: nothing answers there */
};

struct sim_topology {
	struct sim_node nodes[OBMM_MAX_LOCAL_NUMA_NODES];
	const struct sim_controller *controllers;
	int nr_controllers;
	const struct sim_window *windows;
	int nr_windows;
};

extern const struct sim_topology *sim_topology;

int sim_topology_init(void);
void sim_topology_exit(void);
const struct sim_controller *sim_controller_by_cna(u32 cna);
bool sim_has_ummu(u32 ummu);
/* The window of controller `cna` that holds the whole range, or NULL (I14). */
const struct sim_window *sim_window_of(u32 cna, u64 pa, u64 length);

/* ---- memory.c: guest pages or the fabric ---- */

int sim_memory_init(void);
void sim_memory_exit(void);
/* pfns of `count` zeroed chunks, or -ENOMEM and nothing taken. */
int sim_chunks_alloc(unsigned long *pfns, u64 count);
void sim_chunks_free(const unsigned long *pfns, u64 count);
/* The frame that answers at window address `pa`; -EFAULT where nothing does. */
int sim_window_pfn(u64 pa, unsigned long *pfn);
void *sim_pfn_to_kaddr(unsigned long pfn);

/* ---- decoder.c: windows that lead to this host's own exports ---- */

extern struct rw_semaphore sim_decoder_sem;
/*
 * [pa, pa + length) leads to the export with that token; length 0 removes the entry at `pa`.  -EEXIST where another
 * entry begins elsewhere, -ENOSPC when the table is full.  What was mapped through the range faults again.
 */
int sim_decoder_program(u64 pa, u64 length, u32 tokenid);
/* Under sim_decoder_sem, which the caller keeps until it is done with what it found. */
bool sim_decoder_lookup(u64 pa, u32 *tokenid, u64 *offset);
void sim_decoder_revoke(u32 tokenid);

/* ---- region.c: regions and their ids ---- */

enum sim_type { SIM_EXPORT, SIM_IMPORT };
enum sim_granularity { SIM_GRAN_UNDECIDED, SIM_GRAN_PAGE, SIM_GRAN_PMD };

/* Mappings on this host that can read, that can write: per unit of the granularity (9.8). */
struct sim_users {
	u32 readers;
	u32 writers;
};

struct sim_export {
	u64 node_size[OBMM_MAX_LOCAL_NUMA_NODES];
	u64 uba;
	u32 tokenid;
	u32 ummu;
	u8 deid[OBMM_EID_LEN];
	unsigned long *chunks; /* first frame of each chunk */
};

struct sim_import {
	u64 pa;
	u32 scna;
	u32 dcna;
	u8 seid[OBMM_EID_LEN];
	u8 deid[OBMM_EID_LEN];
};

struct sim_region {
	struct device dev;
	struct cdev cdev;
	struct list_head link;
	enum sim_type type;
	u32 mem_id;
	u64 size;
	bool allow_mmap;
	bool cap_cc;
	bool cap_nc;
	u16 priv_len;
	u8 priv[OBMM_MAX_PRIV_LEN];
	/* the address space of all its mappings; no file system's but ours, so that it holds no mount */
	struct inode *inode;
	union {
		struct sim_export exp;
		struct sim_import imp;
	};

	/* under the registry's spinlock */
	bool live;    /* in the list, may be opened */
	bool dying;   /* being removed */
	int users;    /* open files, queries */

	/* under lock; the memory map's lock comes before it */
	struct mutex lock;
	enum sim_granularity granularity;
	bool nc;	      /* kind of the live mappings; free when none is left */
	atomic_t areas;	      /* VMAs of this region on this host */
	struct sim_users *ownership; /* NULL until the first cacheable mapping */

	/* a range whose next touch raises SIGBUS; under sim_decoder_sem */
	u64 poison_start;
	u64 poison_end;
};

int sim_regions_init(void);
void sim_regions_exit(void);
struct sim_region *sim_region_alloc(enum sim_type type, u64 size);
/* Undo sim_region_alloc() before publication. */
void sim_region_discard(struct sim_region *region);
/* priv of EXPORT and IMPORT (X8, I5). */
int sim_region_set_priv(struct sim_region *region, u16 len, const void __user *priv);
int sim_region_reserve_id(struct sim_region *region);
int sim_region_publish(struct sim_region *region);
/* U1-U5: the region of that id and type, marked dying; or an error. */
struct sim_region *sim_region_begin_removal(u64 mem_id, u64 flags, enum sim_type type);
void sim_region_cancel_removal(struct sim_region *region);
void sim_region_finish_removal(struct sim_region *region);
int sim_region_query(struct obmm_cmd_addr_query *cmd);
/* Does a live or dying import overlap (I13)? */
bool sim_region_import_overlaps(u64 pa, u64 length);
/* The frame at `offset` of the live export with that token. */
int sim_region_pfn_by_token(u32 tokenid, u64 offset, unsigned long *pfn);
/* Take away every mapping of imports that overlap [pa, pa + length). */
void sim_regions_zap(u64 pa, u64 length);
/* The region, as long as it is not dying; to be paired with sim_region_put(). */
struct sim_region *sim_region_get(u64 mem_id);
int sim_region_open(struct sim_region *region);
void sim_region_put(struct sim_region *region);
u64 sim_region_pa(const struct sim_region *region, u64 offset);
/* The frame behind `offset`; -EFAULT where nothing answers.  Under sim_decoder_sem. */
int sim_region_pfn(const struct sim_region *region, u64 offset, unsigned long *pfn);
static inline u64 sim_region_unit(const struct sim_region *region)
{
	return region->granularity == SIM_GRAN_PMD ? PMD_SIZE : PAGE_SIZE;
}

/* ---- attributes.c ---- */

extern const struct attribute_group *sim_export_groups[];
extern const struct attribute_group *sim_import_groups[];

/* ---- control.c, export.c, import.c: /dev/obmm ---- */

int sim_control_init(void);
void sim_control_exit(void);
int sim_export(struct obmm_cmd_export *cmd);
int sim_unexport(const struct obmm_cmd_unexport *cmd);
int sim_import(struct obmm_cmd_import *cmd);
int sim_unimport(const struct obmm_cmd_unimport *cmd);
/* Checked as the driver checks them, then refused as where there is no remote NUMA: R14, V2 and V3. */
int sim_declare_preimport(const struct obmm_cmd_preimport *cmd);
int sim_undeclare_preimport(const struct obmm_cmd_preimport *cmd);
void sim_tokens_exit(void);

/* ---- shmdev.c, area.c, ownership.c: /dev/obmm_shmdev<id> ---- */

struct sim_file {
	struct sim_region *region;
	bool nc; /* opened with O_SYNC */
};

extern const struct file_operations sim_shmdev_fops;
extern const struct vm_operations_struct sim_area_ops;

/* What a mapping may do with a page (9.7).  Read and execute counts as read. */
enum sim_access { SIM_NONE, SIM_READ, SIM_WRITE };

enum sim_access sim_area_access(const struct vm_area_struct *vma);
bool sim_area_is_nc(const struct vm_area_struct *vma);
struct sim_region *sim_area_region(const struct vm_area_struct *vma);
u64 sim_area_offset(const struct vm_area_struct *vma);
/* A mapping made `from` one access `to` another: counters, and the cache operation that this infers. */
u8 sim_ownership_change(struct sim_region *region, u64 offset, u64 length, enum sim_access from,
			enum sim_access to);
int sim_ownership_init(void);
int sim_update_range(struct file *file, const struct obmm_cmd_update_range *cmd);
/* Take the mappings of [start, end) away so that the next touch faults. */
void sim_area_zap(struct sim_region *region, u64 start, u64 end);

/* ---- cache.c: the cache engine, which only counts and logs ---- */

int sim_cache_flush(struct sim_region *region, u64 offset, u64 length, u8 op);
/* As sim_cache_flush(), not logged: clearing of new memory. */
int sim_cache_clear(void);

/* ---- debug.c: /sys/kernel/debug/obmm_sim ---- */

struct sim_inject {
	/* names and meanings as in the driver transcript's `stub` */
	int flush_err, flush_skip, flush_busy, flush_sleep;
	int drain_state;
	int tdev_fail, tdev_free_err, tid_min, tid_max, map_err;
	int alloc_fail, alloc_limit, lin_err;
	int split_err, split_skip, remap_err;
	u64 blocker_start, blocker_length;
};

extern struct sim_inject sim_inject;

struct sim_counters {
	atomic64_t pmd_faults, pte_faults, bus_faults;
	atomic64_t inval, wb_inval, wb_only, drain;
};

extern struct sim_counters sim_counters;

/* One line about what the hardware was asked for. */
__printf(1, 2) void sim_log(const char *format, ...);
int sim_debug_init(void);
void sim_debug_exit(void);

/* ---- module parameters (main.c) ---- */

extern char *sim_param_topology;
extern ulong sim_param_feature;
extern bool sim_param_skip_cache;
extern ulong sim_param_memseg;
extern ulong sim_param_fabric_base, sim_param_fabric_size;
extern uint sim_param_fabric_share;

#endif
