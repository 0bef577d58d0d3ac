/* SPDX-License-Identifier: Apache-2.0 */
/*
 * obmm_abi.h against the driver specification, number by number (sections
 * 3-5 and 18).  No code: this file either compiles, as C and
 * as C++, or does not.
 */
#include <assert.h>
#include <stdalign.h>
#include <stddef.h>

#include "obmm_abi.h"

#define SIZE(type, bytes, alignment)                                          \
	static_assert(sizeof(struct type) == (bytes), #type ": size");       \
	static_assert(alignof(struct type) == (alignment), #type ": alignment")

#define FIELD(type, field, offset, bytes)                                                       \
	static_assert(offsetof(struct type, field) == (offset), #type "." #field ": offset"); \
	static_assert(sizeof(((struct type *)0)->field) == (bytes), #type "." #field ": size")

#define VALUE(name, value) static_assert((name) == (value), #name)

/* 3 */
VALUE(OBMM_MAX_LOCAL_NUMA_NODES, 16);
VALUE(OBMM_MAX_NUMA_DIST, 255);
VALUE(OBMM_MAX_PRIV_LEN, 512);
VALUE(OBMM_MAX_VENDOR_LEN, 128);
VALUE(OBMM_MIN_MEM_ID, 1);
VALUE(OBMM_MAX_MEM_ID, 1048575);
VALUE(OBMM_EID_LEN, 16);
VALUE(OBMM_BASIC_GRANULARITY, 2 * 1024 * 1024);

VALUE(OBMM_EXPORT_FLAG_ALLOW_MMAP, 0x1);
VALUE(OBMM_EXPORT_FLAG_FAST, 0x2);
VALUE(OBMM_EXPORT_FLAG_MASK, 0x3);
VALUE(OBMM_IMPORT_FLAG_ALLOW_MMAP, 0x1);
VALUE(OBMM_IMPORT_FLAG_PREIMPORT, 0x2);
VALUE(OBMM_IMPORT_FLAG_NUMA_REMOTE, 0x4);
VALUE(OBMM_IMPORT_FLAG_MASK, 0x7);
VALUE(OBMM_UNEXPORT_FLAG_MASK, 0);
VALUE(OBMM_UNIMPORT_FLAG_MASK, 0);
VALUE(OBMM_PREIMPORT_FLAG_MASK, 0);
VALUE(OBMM_UNPREIMPORT_FLAG_MASK, 0);

VALUE(OBMM_QUERY_BY_PA, 0);
VALUE(OBMM_QUERY_BY_ID_OFFSET, 1);

VALUE(OBMM_SHM_MEM_CACHE_RESV, 0x0);
VALUE(OBMM_SHM_MEM_NORMAL, 0x1);
VALUE(OBMM_SHM_MEM_NORMAL_NC, 0x2);
VALUE(OBMM_SHM_MEM_DEVICE, 0x3);
VALUE(OBMM_SHM_MEM_CACHE_MASK, 0x3);
VALUE(OBMM_SHM_MEM_READONLY, 0x0);
VALUE(OBMM_SHM_MEM_READEXEC, 0x4);
VALUE(OBMM_SHM_MEM_READWRITE, 0x8);
VALUE(OBMM_SHM_MEM_NO_ACCESS, 0xc);
VALUE(OBMM_SHM_MEM_ACCESS_MASK, 0xc);

VALUE(OBMM_SHM_CACHE_NONE, 0);
VALUE(OBMM_SHM_CACHE_INVAL, 1);
VALUE(OBMM_SHM_CACHE_WB_INVAL, 2);
VALUE(OBMM_SHM_CACHE_WB_ONLY, 3);
VALUE(OBMM_SHM_CACHE_INFER, 4);

VALUE(OBMM_MMAP_FLAG_HUGETLB_PMD, 1ULL << 63);

/* 4 */
VALUE(OBMM_CMD_EXPORT, 0xC0E07800);
VALUE(OBMM_CMD_IMPORT, 0xC0607801);
VALUE(OBMM_CMD_UNEXPORT, 0x40107802);
VALUE(OBMM_CMD_UNIMPORT, 0x40107803);
VALUE(OBMM_CMD_ADDR_QUERY, 0xC0207804);
VALUE(OBMM_CMD_EXPORT_PID, 0xC0687805);
VALUE(OBMM_CMD_DECLARE_PREIMPORT, 0xC0507806);
VALUE(OBMM_CMD_UNDECLARE_PREIMPORT, 0x40507807);
VALUE(OBMM_SHMDEV_UPDATE_RANGE, 0x40185800);
VALUE(OBMM_U23_CMD_ADDR_QUERY, 0x00007804);

/* 5.1 */
SIZE(obmm_cmd_export, 224, 8);
FIELD(obmm_cmd_export, size, 0, 128);
FIELD(obmm_cmd_export, length, 128, 8);
FIELD(obmm_cmd_export, flags, 136, 8);
FIELD(obmm_cmd_export, uba, 144, 8);
FIELD(obmm_cmd_export, mem_id, 152, 8);
FIELD(obmm_cmd_export, tokenid, 160, 4);
FIELD(obmm_cmd_export, pxm_numa, 164, 4);
FIELD(obmm_cmd_export, priv_len, 168, 2);
FIELD(obmm_cmd_export, vendor_len, 170, 2);
FIELD(obmm_cmd_export, deid, 172, 16);
FIELD(obmm_cmd_export, seid, 188, 16);
FIELD(obmm_cmd_export, vendor_info, 208, 8);
FIELD(obmm_cmd_export, priv, 216, 8);

/* 5.2 */
SIZE(obmm_cmd_export_pid, 104, 8);
FIELD(obmm_cmd_export_pid, va, 0, 8);
FIELD(obmm_cmd_export_pid, length, 8, 8);
FIELD(obmm_cmd_export_pid, flags, 16, 8);
FIELD(obmm_cmd_export_pid, uba, 24, 8);
FIELD(obmm_cmd_export_pid, mem_id, 32, 8);
FIELD(obmm_cmd_export_pid, tokenid, 40, 4);
FIELD(obmm_cmd_export_pid, pid, 44, 4);
FIELD(obmm_cmd_export_pid, pxm_numa, 48, 4);
FIELD(obmm_cmd_export_pid, priv_len, 52, 2);
FIELD(obmm_cmd_export_pid, vendor_len, 54, 2);
FIELD(obmm_cmd_export_pid, deid, 56, 16);
FIELD(obmm_cmd_export_pid, seid, 72, 16);
FIELD(obmm_cmd_export_pid, priv, 88, 8);
FIELD(obmm_cmd_export_pid, vendor_info, 96, 8);

/* 5.3 */
SIZE(obmm_cmd_unexport, 16, 8);
FIELD(obmm_cmd_unexport, mem_id, 0, 8);
FIELD(obmm_cmd_unexport, flags, 8, 8);
SIZE(obmm_cmd_unimport, 16, 8);
FIELD(obmm_cmd_unimport, mem_id, 0, 8);
FIELD(obmm_cmd_unimport, flags, 8, 8);

/* 5.4 */
SIZE(obmm_cmd_addr_query, 32, 8);
FIELD(obmm_cmd_addr_query, key_type, 0, 4);
FIELD(obmm_cmd_addr_query, mem_id, 8, 8);
FIELD(obmm_cmd_addr_query, offset, 16, 8);
FIELD(obmm_cmd_addr_query, pa, 24, 8);

/* 5.5 */
SIZE(obmm_cmd_import, 96, 8);
FIELD(obmm_cmd_import, flags, 0, 8);
FIELD(obmm_cmd_import, mem_id, 8, 8);
FIELD(obmm_cmd_import, addr, 16, 8);
FIELD(obmm_cmd_import, length, 24, 8);
FIELD(obmm_cmd_import, tokenid, 32, 4);
FIELD(obmm_cmd_import, scna, 36, 4);
FIELD(obmm_cmd_import, dcna, 40, 4);
FIELD(obmm_cmd_import, numa_id, 44, 4);
FIELD(obmm_cmd_import, priv_len, 48, 2);
FIELD(obmm_cmd_import, base_dist, 50, 1);
FIELD(obmm_cmd_import, deid, 51, 16);
FIELD(obmm_cmd_import, seid, 67, 16);
FIELD(obmm_cmd_import, priv, 88, 8);

/* 5.6 */
SIZE(obmm_cmd_update_range, 24, 8);
FIELD(obmm_cmd_update_range, start, 0, 8);
FIELD(obmm_cmd_update_range, end, 8, 8);
FIELD(obmm_cmd_update_range, mem_state, 16, 1);
FIELD(obmm_cmd_update_range, cache_ops, 17, 1);

/* 5.7 */
SIZE(obmm_cmd_preimport, 80, 16);
FIELD(obmm_cmd_preimport, pa, 0, 8);
FIELD(obmm_cmd_preimport, length, 8, 8);
FIELD(obmm_cmd_preimport, flags, 16, 8);
FIELD(obmm_cmd_preimport, scna, 24, 4);
FIELD(obmm_cmd_preimport, dcna, 28, 4);
FIELD(obmm_cmd_preimport, numa_id, 32, 4);
FIELD(obmm_cmd_preimport, priv_len, 36, 2);
FIELD(obmm_cmd_preimport, base_dist, 38, 1);
FIELD(obmm_cmd_preimport, deid, 39, 16);
FIELD(obmm_cmd_preimport, seid, 55, 16);
FIELD(obmm_cmd_preimport, priv, 71, 8);

/* 18 */
SIZE(obmm_vendor_info, 24, 8);
FIELD(obmm_vendor_info, version, 0, 4);
FIELD(obmm_vendor_info, ummu_mask, 8, 8);
FIELD(obmm_vendor_info, on_chip, 16, 1);
