/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The binary interface of liburma.so.0 (URMA specification 4 to 6), in the
 * layouts of profile C, and what the stand-in adds to it.
 *
 * Objects that the library returns begin with the public parts that 4.4
 * declares safe to read; the rest of their published size is left alone.
 */
#ifndef URMA_STANDIN_URMA_H
#define URMA_STANDIN_URMA_H

#include "../abi/lp64.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define URMA_API __attribute__((visibility("default")))

enum urma_status {
	URMA_OK = 0,
	URMA_ENOPERM = 1,
	URMA_EAGAIN = 11,
	URMA_ENOMEM = 12,
	URMA_EEXIST = 17,
	URMA_EINVAL = 22,
	URMA_FAIL = 0x1000,
};

enum urma_cr_status {
	URMA_CR_SUCCESS = 0,
	URMA_CR_LOC_LEN_ERR = 2,
	URMA_CR_LOC_ACCESS_ERR = 4,
	URMA_CR_REM_ACCESS_ABORT_ERR = 8,
	URMA_CR_ACK_TIMEOUT_ERR = 9,
	URMA_CR_WR_FLUSH_ERR = 11,
	URMA_CR_WR_FLUSH_ERR_DONE = 13,
	URMA_CR_WR_UNHANDLED = 14,
};

enum { URMA_TM_RM = 1, URMA_TM_RC = 2, URMA_TM_UM = 4 };
enum { URMA_RTP = 0, URMA_CTP = 1, URMA_UTP = 2 };
enum { URMA_OPC_WRITE = 0x00, URMA_OPC_READ = 0x10 };
enum { URMA_ACCESS_LOCAL_ONLY = 1, URMA_ACCESS_READ = 2, URMA_ACCESS_WRITE = 4, URMA_ACCESS_ATOMIC = 8 };
enum { URMA_RESET = 0, URMA_READY = 1, URMA_SUSPENDED = 2, URMA_ERROR = 3 };

/* flag words (4.6) */
enum {
	URMA_SEG_POLICY = 7,
	URMA_SEG_ACCESS_SHIFT = 5,
	URMA_SEG_ACCESS = 0x3f,
	URMA_SEG_TOKEN_ID_VALID = 1 << 13,
	URMA_WR_COMP_ORDER = 1 << 2,
	URMA_WR_COMPLETE = 1 << 5,
	URMA_JFS_ORDER_SHIFT = 3,
	URMA_JFR_ORDER_SHIFT = 5,
	URMA_JETTY_SHARE_JFR = 1,
	URMA_IMPORT_POLICY = 7,
	URMA_IMPORT_ORDER_SHIFT = 3,
	URMA_JFC_NON_BLOCKING = 1 << 2,
};

/* a mutex has 8 bytes more on aarch64 (URMA specification 4.4) */
#ifdef __aarch64__
#define URMA_MUTEX_MORE 8
#else
#define URMA_MUTEX_MORE 0
#endif

typedef struct urma_init_attr {
	uint64_t token;
	uint32_t uasid;
} urma_init_attr_t;

typedef union urma_eid {
	uint8_t raw[16];
	uint64_t words[2];
} urma_eid_t;

typedef struct urma_token {
	uint32_t token;
} urma_token_t;

typedef struct urma_id {
	urma_eid_t eid;
	uint32_t uasid;
	uint32_t id;
} urma_jetty_id_t;

typedef struct urma_device {
	char name[64];
	char path[4096];
	int type;
	uint8_t rest[20];
} urma_device_t;

typedef struct urma_device_attr {
	uint8_t guid[16];
	uint8_t dev_cap[304];
	uint8_t port_cnt;
	uint8_t reserved[3];
	uint8_t port_attr[8][20];
	uint8_t rest[12];
} urma_device_attr_t;

typedef struct urma_eid_info {
	urma_eid_t eid;
	uint32_t eid_index;
	uint32_t reserved;
} urma_eid_info_t;

typedef struct urma_context {
	uint8_t rest[64 + URMA_MUTEX_MORE];
	urma_eid_t eid;
	uint8_t more[24];
} urma_context_t;

typedef struct urma_jfce {
	urma_context_t *urma_ctx;
	int fd;
	uint64_t rest;
} urma_jfce_t;

typedef struct urma_jfc_cfg {
	uint32_t depth;
	uint32_t flag;
	uint32_t ceqn;
	urma_jfce_t *jfce;
	uint64_t user_ctx;
} urma_jfc_cfg_t;

typedef struct urma_jfc {
	urma_context_t *urma_ctx;
	urma_jetty_id_t jfc_id;
	uint8_t rest[216 + URMA_MUTEX_MORE];
} urma_jfc_t;

typedef struct urma_jfs_cfg {
	uint32_t depth;
	uint32_t flag;
	uint32_t trans_mode;
	uint8_t priority;
	uint8_t max_sge;
	uint8_t max_rsge;
	uint32_t max_inline_data;
	uint8_t rnr_retry;
	uint8_t err_timeout;
	urma_jfc_t *jfc;
	uint64_t user_ctx;
} urma_jfs_cfg_t;

typedef struct urma_jfs {
	urma_context_t *urma_ctx;
	urma_jetty_id_t jfs_id;
	uint8_t rest[224 + URMA_MUTEX_MORE];
} urma_jfs_t;

typedef struct urma_jfr_cfg {
	uint32_t id;
	uint32_t depth;
	uint32_t flag;
	uint32_t trans_mode;
	uint8_t max_sge;
	uint8_t min_rnr_timer;
	urma_jfc_t *jfc;
	urma_token_t token;
	uint64_t user_ctx;
} urma_jfr_cfg_t;

typedef struct urma_jfr {
	urma_context_t *urma_ctx;
	urma_jetty_id_t jfr_id;
	uint8_t rest[232 + URMA_MUTEX_MORE];
} urma_jfr_t;

typedef struct urma_jetty_cfg {
	uint32_t id;
	uint32_t flag;
	urma_jfs_cfg_t jfs_cfg;
	urma_jfr_t *jfr;
	urma_jfc_t *jfc;
	void *jetty_grp;
	uint64_t user_ctx;
} urma_jetty_cfg_t;

typedef struct urma_jetty {
	urma_context_t *urma_ctx;
	urma_jetty_id_t jetty_id;
	uint8_t rest[312 + URMA_MUTEX_MORE];
} urma_jetty_t;

typedef struct urma_rjfr {
	urma_jetty_id_t jfr_id;
	uint32_t trans_mode;
	uint32_t flag;
	uint32_t tp_type;
} urma_rjfr_t;

typedef struct urma_rjetty {
	urma_jetty_id_t jetty_id;
	uint32_t trans_mode;
	uint32_t policy;
	uint32_t type;
	uint32_t flag;
	uint32_t tp_type;
} urma_rjetty_t;

typedef struct urma_target_jetty {
	urma_context_t *urma_ctx;
	urma_jetty_id_t id;
	uint8_t rest[32];
} urma_target_jetty_t;

typedef struct urma_token_id {
	urma_context_t *urma_ctx;
	uint32_t token_id;
	uint64_t handle;
	uint64_t ref;
	uint32_t flag;
} urma_token_id_t;

typedef struct urma_seg_cfg {
	uint64_t va;
	uint64_t len;
	urma_token_id_t *token_id;
	urma_token_t token_value;
	uint32_t flag;
	uint64_t user_ctx;
	uint64_t iova;
} urma_seg_cfg_t;

typedef struct urma_ubva {
	uint8_t eid[16];
	uint32_t uasid;
	uint64_t va;
} __attribute__((packed)) urma_ubva_t;

typedef struct urma_seg {
	urma_ubva_t ubva;
	uint64_t len;
	uint32_t attr;
	uint32_t token_id;
} urma_seg_t;

typedef struct urma_target_seg {
	urma_seg_t seg;
	uint64_t user_ctx;
	uint64_t mva;
	urma_context_t *urma_ctx;
	urma_token_id_t *token_id;
	uint64_t handle;
} urma_target_seg_t;

typedef struct urma_jfs_attr {
	uint32_t mask;
	uint32_t state;
} urma_jfs_attr_t;

typedef struct urma_jetty_attr {
	uint32_t mask;
	uint32_t rx_threshold;
	uint32_t state;
} urma_jetty_attr_t;

typedef struct urma_sge {
	uint64_t addr;
	uint32_t len;
	urma_target_seg_t *tseg;
	void *user_tseg;
} urma_sge_t;

typedef struct urma_sg {
	urma_sge_t *sge;
	uint32_t num_sge;
} urma_sg_t;

typedef struct urma_jfs_wr {
	uint32_t opcode;
	uint32_t flag;
	urma_target_jetty_t *tjetty;
	uint64_t user_ctx;
	union {
		struct {
			urma_sg_t src;
			urma_sg_t dst;
			uint8_t target_hint;
			uint64_t notify_data;
		} rw;
		uint8_t rest[48];
	};
	struct urma_jfs_wr *next;
} urma_jfs_wr_t;

typedef struct urma_cr {
	uint32_t status;
	uint64_t user_ctx;
	uint32_t opcode;
	uint8_t flag;
	uint32_t completion_len;
	uint32_t local_id;
	urma_jetty_id_t remote_id;
	uint64_t imm_data;
	uint32_t tpn;
	uint64_t user_data;
} urma_cr_t;

#define URMA_SIZE(type, size) static_assert(sizeof(type) == (size), #type)
#define URMA_AT(type, field, at) static_assert(offsetof(type, field) == (at), #type "." #field)
URMA_SIZE(urma_init_attr_t, 16);
URMA_SIZE(urma_eid_t, 16);
URMA_SIZE(urma_token_t, 4);
URMA_SIZE(urma_context_t, 104 + URMA_MUTEX_MORE);
URMA_AT(urma_context_t, eid, 64 + URMA_MUTEX_MORE);
URMA_SIZE(urma_jfc_cfg_t, 32);
URMA_AT(urma_jfc_cfg_t, jfce, 16);
URMA_SIZE(urma_jfs_cfg_t, 40);
URMA_AT(urma_jfs_cfg_t, max_inline_data, 16);
URMA_AT(urma_jfs_cfg_t, rnr_retry, 20);
URMA_AT(urma_jfs_cfg_t, jfc, 24);
URMA_SIZE(urma_jfr_cfg_t, 48);
URMA_AT(urma_jfr_cfg_t, jfc, 24);
URMA_AT(urma_jfr_cfg_t, token, 32);
URMA_SIZE(urma_jetty_cfg_t, 80);
URMA_AT(urma_jetty_cfg_t, jfr, 48);
URMA_SIZE(urma_jetty_id_t, 24);
URMA_SIZE(urma_rjfr_t, 40);
URMA_SIZE(urma_rjetty_t, 48);
URMA_SIZE(urma_seg_cfg_t, 48);
URMA_AT(urma_seg_cfg_t, token_value, 24);
URMA_SIZE(urma_jfs_attr_t, 8);
URMA_SIZE(urma_jetty_attr_t, 12);
URMA_SIZE(urma_ubva_t, 28);
URMA_SIZE(urma_seg_t, 48);
URMA_AT(urma_seg_t, len, 32);
URMA_SIZE(urma_target_seg_t, 88);
URMA_SIZE(urma_token_id_t, 40);
URMA_SIZE(urma_sge_t, 32);
URMA_SIZE(urma_sg_t, 16);
URMA_SIZE(urma_jfs_wr_t, 80);
URMA_AT(urma_jfs_wr_t, rw.src, 24);
URMA_AT(urma_jfs_wr_t, rw.dst, 40);
URMA_AT(urma_jfs_wr_t, rw.target_hint, 56);
URMA_AT(urma_jfs_wr_t, rw.notify_data, 64);
URMA_AT(urma_jfs_wr_t, next, 72);
URMA_SIZE(urma_cr_t, 80);
URMA_AT(urma_cr_t, remote_id, 32);
URMA_AT(urma_cr_t, imm_data, 56);
URMA_AT(urma_cr_t, user_data, 72);
URMA_SIZE(urma_device_t, 4184);
URMA_SIZE(urma_jfce_t, 24);
URMA_SIZE(urma_target_jetty_t, 64);
URMA_SIZE(urma_eid_info_t, 24);
URMA_SIZE(urma_device_attr_t, 496);
URMA_SIZE(urma_jfc_t, 248 + URMA_MUTEX_MORE);
URMA_SIZE(urma_jfs_t, 256 + URMA_MUTEX_MORE);
URMA_SIZE(urma_jfr_t, 264 + URMA_MUTEX_MORE);
URMA_SIZE(urma_jetty_t, 344 + URMA_MUTEX_MORE);
URMA_AT(urma_jetty_t, jetty_id, 8);

/* library, device, context (6.1) */
URMA_API int urma_init(urma_init_attr_t *attr);
URMA_API int urma_uninit(void);
URMA_API void urma_log_set_level(uint32_t level);
URMA_API urma_device_t **urma_get_device_list(int *count);
URMA_API void urma_free_device_list(urma_device_t **list);
URMA_API void urma_free_eid_list(urma_eid_info_t *list);
URMA_API urma_device_t *urma_get_device_by_name(char *name);
URMA_API urma_eid_info_t *urma_get_eid_list(urma_device_t *device, uint32_t *count);
URMA_API int urma_query_device(urma_device_t *device, urma_device_attr_t *attr);
URMA_API urma_context_t *urma_create_context(urma_device_t *device, uint32_t eid_index);
URMA_API int urma_delete_context(urma_context_t *context);

/* queues (6.2) */
URMA_API urma_jfce_t *urma_create_jfce(urma_context_t *context);
URMA_API int urma_delete_jfce(urma_jfce_t *jfce);
URMA_API urma_jfc_t *urma_create_jfc(urma_context_t *context, urma_jfc_cfg_t *cfg);
URMA_API int urma_delete_jfc(urma_jfc_t *jfc);
URMA_API urma_jfs_t *urma_create_jfs(urma_context_t *context, urma_jfs_cfg_t *cfg);
URMA_API int urma_modify_jfs(urma_jfs_t *jfs, urma_jfs_attr_t *attr);
URMA_API int urma_flush_jfs(urma_jfs_t *jfs, int count, urma_cr_t *cr);
URMA_API int urma_delete_jfs(urma_jfs_t *jfs);
URMA_API urma_jfr_t *urma_create_jfr(urma_context_t *context, urma_jfr_cfg_t *cfg);
URMA_API int urma_delete_jfr(urma_jfr_t *jfr);
URMA_API urma_jetty_t *urma_create_jetty(urma_context_t *context, urma_jetty_cfg_t *cfg);
URMA_API int urma_modify_jetty(urma_jetty_t *jetty, urma_jetty_attr_t *attr);
URMA_API int urma_flush_jetty(urma_jetty_t *jetty, int count, urma_cr_t *cr);
URMA_API int urma_delete_jetty(urma_jetty_t *jetty);

/* memory and targets (6.3) */
URMA_API urma_token_id_t *urma_alloc_token_id(urma_context_t *context);
URMA_API int urma_free_token_id(urma_token_id_t *token_id);
URMA_API urma_target_seg_t *urma_register_seg(urma_context_t *context, urma_seg_cfg_t *cfg);
URMA_API int urma_unregister_seg(urma_target_seg_t *seg);
URMA_API urma_target_seg_t *urma_import_seg(urma_context_t *context, urma_seg_t *seg, urma_token_t *token,
					     uint64_t addr, uint32_t flag);
URMA_API int urma_unimport_seg(urma_target_seg_t *seg);
URMA_API urma_target_jetty_t *urma_import_jfr(urma_context_t *context, urma_rjfr_t *rjfr, urma_token_t *token);
URMA_API int urma_unimport_jfr(urma_target_jetty_t *target);
URMA_API urma_target_jetty_t *urma_import_jetty(urma_context_t *context, urma_rjetty_t *rjetty, urma_token_t *token);
URMA_API int urma_unimport_jetty(urma_target_jetty_t *target);

/* data (6.4) */
URMA_API int urma_post_jfs_wr(urma_jfs_t *jfs, urma_jfs_wr_t *wr, urma_jfs_wr_t **bad);
URMA_API int urma_post_jetty_send_wr(urma_jetty_t *jetty, urma_jfs_wr_t *wr, urma_jfs_wr_t **bad);
URMA_API int urma_read(urma_jfs_t *jfs, urma_target_jetty_t *target, urma_target_seg_t *dst_seg,
		       urma_target_seg_t *src_seg, uint64_t dst, uint64_t src, uint32_t len, uint32_t flag, uint64_t ctx);
URMA_API int urma_write(urma_jfs_t *jfs, urma_target_jetty_t *target, urma_target_seg_t *dst_seg,
			urma_target_seg_t *src_seg, uint64_t dst, uint64_t src, uint32_t len, uint32_t flag, uint64_t ctx);
URMA_API int urma_poll_jfc(urma_jfc_t *jfc, int count, urma_cr_t *cr);
URMA_API int urma_rearm_jfc(urma_jfc_t *jfc, bool solicited);
URMA_API int urma_wait_jfc(urma_jfce_t *jfce, uint32_t count, int timeout_ms, urma_jfc_t **jfc);
URMA_API void urma_ack_jfc(urma_jfc_t **jfc, uint32_t *events, uint32_t count);

/* --- the stand-in's own: the real library has none of these ------------------------------------------------------ */

/* The marker, by which programs know it. */
URMA_API const char *urma_standin_version(void);

/* The state of a stand-in in a new `folder`, with nodes named in `nodes`, separated by commas.  0 or a negative errno. */
URMA_API int urma_standin_create(const char *folder, const char *nodes);
/* What is known, as JSON without tokens.  -ENOSPC when `size` does not suffice. */
URMA_API int urma_standin_status(const char *folder, char *text, size_t size);
/* One rule (faults.h) for all processes, from now on; "" removes all rules. */
URMA_API int urma_standin_inject(const char *folder, const char *rule);
/* Whether requests reach a node. */
URMA_API int urma_standin_reach(const char *folder, const char *node, int reachable);

/* Since the library was loaded into this process (U12). */
struct urma_standin_counts {
	uint64_t posts; /* calls that post, with one list or one request each */
	uint64_t polls;
	uint64_t requests;
	uint64_t bytes;
	uint64_t copies; /* process_vm_readv and process_vm_writev */
	uint64_t references; /* now: contexts, and everything that was made from them and is not deleted */
};
URMA_API void urma_standin_counters(struct urma_standin_counts *counts);
/* Why the kernel last refused to reach another process's memory, or "". */
URMA_API const char *urma_standin_trouble(void);

#ifdef __cplusplus
}
#endif

#endif

