/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The kernel interface of openEuler's OBMM driver: limits, flags, request
 * numbers and argument structs (driver specification 3-5, reference profile).
 * LP64, little-endian; x86-64 and aarch64 agree on every byte.  Each size,
 * offset and number is asserted in obmm_abi_check.c.
 */
#ifndef OBMM_ABI_H
#define OBMM_ABI_H

#include "lp64.h"

#ifdef __KERNEL__
#include <linux/ioctl.h>
#include <linux/types.h>
#else
#include <stdint.h>
#include <sys/ioctl.h>
#endif

/* Device nodes (specification 2).  A region's node is the prefix plus its mem_id in decimal. */
#define OBMM_DEV_PATH "/dev/obmm"
#define OBMM_SHMDEV_PREFIX "/dev/obmm_shmdev"

/* Limits */
#define OBMM_MAX_LOCAL_NUMA_NODES 16
#define OBMM_MAX_NUMA_DIST 255
#define OBMM_MAX_PRIV_LEN 512
#define OBMM_MAX_VENDOR_LEN 128
#define OBMM_MIN_MEM_ID 1
#define OBMM_MAX_MEM_ID 0xfffff
#define OBMM_EID_LEN 16
/* addr and length of an import (I7); also the smallest unit of an export */
#define OBMM_BASIC_GRANULARITY 0x200000

/* struct obmm_cmd_export.flags, struct obmm_cmd_export_pid.flags */
#define OBMM_EXPORT_FLAG_ALLOW_MMAP 0x1ULL
#define OBMM_EXPORT_FLAG_FAST 0x2ULL
#define OBMM_EXPORT_FLAG_MASK 0x3ULL

/* struct obmm_cmd_import.flags: exactly one of ALLOW_MMAP and NUMA_REMOTE (I3) */
#define OBMM_IMPORT_FLAG_ALLOW_MMAP 0x1ULL
#define OBMM_IMPORT_FLAG_PREIMPORT 0x2ULL
#define OBMM_IMPORT_FLAG_NUMA_REMOTE 0x4ULL
#define OBMM_IMPORT_FLAG_MASK 0x7ULL

/* The other commands have no flags yet */
#define OBMM_UNEXPORT_FLAG_MASK 0x0ULL
#define OBMM_UNIMPORT_FLAG_MASK 0x0ULL
#define OBMM_PREIMPORT_FLAG_MASK 0x0ULL
#define OBMM_UNPREIMPORT_FLAG_MASK 0x0ULL

/* struct obmm_cmd_addr_query.key_type */
#define OBMM_QUERY_BY_PA 0
#define OBMM_QUERY_BY_ID_OFFSET 1

/* struct obmm_cmd_update_range.mem_state = one memory type | one access (9.6) */
#define OBMM_SHM_MEM_CACHE_RESV 0x0
#define OBMM_SHM_MEM_NORMAL 0x1
#define OBMM_SHM_MEM_NORMAL_NC 0x2
#define OBMM_SHM_MEM_DEVICE 0x3
#define OBMM_SHM_MEM_CACHE_MASK 0x3
#define OBMM_SHM_MEM_READONLY 0x0
#define OBMM_SHM_MEM_READEXEC 0x4
#define OBMM_SHM_MEM_READWRITE 0x8
#define OBMM_SHM_MEM_NO_ACCESS 0xc
#define OBMM_SHM_MEM_ACCESS_MASK 0xc

/* struct obmm_cmd_update_range.cache_ops (9.8) */
#define OBMM_SHM_CACHE_NONE 0
#define OBMM_SHM_CACHE_INVAL 1
#define OBMM_SHM_CACHE_WB_INVAL 2
#define OBMM_SHM_CACHE_WB_ONLY 3
#define OBMM_SHM_CACHE_INFER 4

/* In the offset of mmap(2): block (PMD) mappings (9.3) */
#define OBMM_MMAP_FLAG_HUGETLB_PMD 0x8000000000000000ULL

/* "I" input, "O" output, "-" not read by the kernel */

struct obmm_cmd_export {
	uint64_t size[OBMM_MAX_LOCAL_NUMA_NODES]; /* I: bytes from each local node */
	uint64_t length;			  /* I: entries of size[] in use, not bytes */
	uint64_t flags;				  /* I */
	uint64_t uba;				  /* O */
	uint64_t mem_id;			  /* O */
	uint32_t tokenid;			  /* O */
	int32_t pxm_numa;			  /* I: node of the controller */
	uint16_t priv_len;			  /* I */
	uint16_t vendor_len;			  /* I */
	uint8_t deid[OBMM_EID_LEN];		  /* I: recorded only */
	uint8_t seid[OBMM_EID_LEN];		  /* - */
	const void *vendor_info;		  /* I: here vendor comes first ... */
	const void *priv;			  /* I */
};

struct obmm_cmd_export_pid {
	void *va;		    /* I: in the target process */
	uint64_t length;	    /* I: bytes */
	uint64_t flags;		    /* I: 0 */
	uint64_t uba;		    /* O */
	uint64_t mem_id;	    /* O */
	uint32_t tokenid;	    /* O */
	int32_t pid;		    /* I: 0 = caller, else in the initial PID namespace */
	int32_t pxm_numa;	    /* I */
	uint16_t priv_len;	    /* I */
	uint16_t vendor_len;	    /* I */
	uint8_t deid[OBMM_EID_LEN]; /* I: recorded only */
	uint8_t seid[OBMM_EID_LEN]; /* - */
	const void *priv;	    /* I: ... and here priv does */
	const void *vendor_info;    /* I */
};

struct obmm_cmd_unexport {
	uint64_t mem_id; /* I */
	uint64_t flags;	 /* I: 0 */
};

struct obmm_cmd_unimport {
	uint64_t mem_id; /* I */
	uint64_t flags;	 /* I: 0 */
};

struct obmm_cmd_addr_query {
	uint32_t key_type; /* I */
	uint32_t pad;	   /* named, so that an initialiser clears it */
	uint64_t mem_id;   /* I by id and offset, O by pa */
	uint64_t offset;   /* I by id and offset, O by pa */
	uint64_t pa;	   /* I by pa, O by id and offset */
};

struct obmm_cmd_import {
	uint64_t flags;		    /* I */
	uint64_t mem_id;	    /* O */
	uint64_t addr;		    /* I: physical address in a local UB window, not the uba */
	uint64_t length;	    /* I: bytes */
	uint32_t tokenid;	    /* - */
	uint32_t scna;		    /* I: primary CNA of a local controller */
	uint32_t dcna;		    /* I: the owner's; recorded */
	int32_t numa_id;	    /* I, O */
	uint16_t priv_len;	    /* I */
	uint8_t base_dist;	    /* I */
	uint8_t deid[OBMM_EID_LEN]; /* I: the owner's, at an odd offset */
	uint8_t seid[OBMM_EID_LEN]; /* I: the local controller's, at an odd offset */
	const void *priv;	    /* I */
};

struct obmm_cmd_preimport {
	uint64_t pa;		    /* I */
	uint64_t length;	    /* I: bytes */
	uint64_t flags;		    /* I: 0 */
	uint32_t scna;		    /* I */
	uint32_t dcna;		    /* I */
	int32_t numa_id;	    /* I, O */
	uint16_t priv_len;	    /* - */
	uint8_t base_dist;	    /* I */
	uint8_t deid[OBMM_EID_LEN]; /* I */
	uint8_t seid[OBMM_EID_LEN]; /* I */
	const void *priv;	    /* -, unaligned */
} __attribute__((packed, aligned(16)));

struct obmm_cmd_update_range {
	uint64_t start;	   /* I: user address */
	uint64_t end;	   /* I: user address, exclusive */
	uint8_t mem_state; /* I */
	uint8_t cache_ops; /* I */
	uint8_t pad[6];
};

/* What vendor_info points to on UB hardware (specification 18, V1). */
struct obmm_vendor_info {
	uint32_t version;   /* 0 */
	uint32_t pad;
	uint64_t ummu_mask; /* 1 << ummu_map of the controller */
	uint8_t on_chip;    /* 1 */
	uint8_t pad2[7];
};

/* On /dev/obmm */
#define OBMM_CMD_EXPORT _IOWR('x', 0, struct obmm_cmd_export)
#define OBMM_CMD_IMPORT _IOWR('x', 1, struct obmm_cmd_import)
#define OBMM_CMD_UNEXPORT _IOW('x', 2, struct obmm_cmd_unexport)
#define OBMM_CMD_UNIMPORT _IOW('x', 3, struct obmm_cmd_unimport)
#define OBMM_CMD_ADDR_QUERY _IOWR('x', 4, struct obmm_cmd_addr_query)
#define OBMM_CMD_EXPORT_PID _IOWR('x', 5, struct obmm_cmd_export_pid)
#define OBMM_CMD_DECLARE_PREIMPORT _IOWR('x', 6, struct obmm_cmd_preimport)
#define OBMM_CMD_UNDECLARE_PREIMPORT _IOW('x', 7, struct obmm_cmd_preimport)

/* On /dev/obmm_shmdev<id> */
#define OBMM_SHMDEV_UPDATE_RANGE _IOW('X', 0, struct obmm_cmd_update_range)

/* ADDR_QUERY of the 2023 generation: only ever a probe (specification 20) */
#define OBMM_U23_CMD_ADDR_QUERY 0x00007804

#endif
