# SPDX-License-Identifier: Apache-2.0
"""The binary interface of ``liburma.so.0`` (URMA specification 4 to 6), checked when this module is imported.

Control calls only: lists of reads and writes are built natively (``native/urma``).  Objects of the library are opaque
but for the parts that 4.4 declares safe to read.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

from cffi import FFI

DECLARATIONS: Final = """
typedef struct { uint64_t token; uint32_t uasid; } urma_init_attr_t;
typedef union { uint8_t raw[16]; uint64_t words[2]; } urma_eid_t;
typedef struct { uint32_t token; } urma_token_t;
typedef struct { urma_eid_t eid; uint32_t uasid; uint32_t id; } urma_jetty_id_t;
typedef struct { char name[64]; char path[4096]; int type; uint8_t rest[20]; } urma_device_t;
typedef struct { urma_eid_t eid; uint32_t eid_index; uint32_t reserved; } urma_eid_info_t;
typedef struct urma_context urma_context_t;
typedef struct { urma_context_t *urma_ctx; int fd; uint64_t rest; } urma_jfce_t;
typedef struct { urma_context_t *urma_ctx; urma_jetty_id_t id; } urma_named_t;
typedef struct { uint32_t depth; uint32_t flag; uint32_t ceqn; urma_jfce_t *jfce; uint64_t user_ctx; } urma_jfc_cfg_t;
typedef struct {
    uint32_t depth; uint32_t flag; uint32_t trans_mode;
    uint8_t priority; uint8_t max_sge; uint8_t max_rsge;
    uint32_t max_inline_data; uint8_t rnr_retry; uint8_t err_timeout;
    void *jfc; uint64_t user_ctx;
} urma_jfs_cfg_t;
typedef struct {
    uint32_t id; uint32_t depth; uint32_t flag; uint32_t trans_mode; uint8_t max_sge; uint8_t min_rnr_timer;
    void *jfc; urma_token_t token; uint64_t user_ctx;
} urma_jfr_cfg_t;
typedef struct {
    uint32_t id; uint32_t flag; urma_jfs_cfg_t jfs_cfg; void *jfr; void *jfc; void *jetty_grp; uint64_t user_ctx;
} urma_jetty_cfg_t;
typedef struct { urma_jetty_id_t jfr_id; uint32_t trans_mode; uint32_t flag; uint32_t tp_type; } urma_rjfr_t;
typedef struct {
    urma_jetty_id_t jetty_id; uint32_t trans_mode; uint32_t policy; uint32_t type; uint32_t flag; uint32_t tp_type;
} urma_rjetty_t;
typedef struct {
    urma_context_t *urma_ctx; uint32_t token_id; uint64_t handle; uint64_t ref; uint32_t flag;
} urma_token_id_t;
typedef struct {
    uint64_t va; uint64_t len; urma_token_id_t *token_id; urma_token_t token_value; uint32_t flag;
    uint64_t user_ctx; uint64_t iova;
} urma_seg_cfg_t;
typedef struct { uint8_t ubva[28]; uint64_t len; uint32_t attr; uint32_t token_id; } urma_seg_t;
typedef struct {
    urma_seg_t seg; uint64_t user_ctx; uint64_t mva; urma_context_t *urma_ctx; urma_token_id_t *token_id;
    uint64_t handle;
} urma_target_seg_t;
typedef struct { uint32_t mask; uint32_t state; } urma_jfs_attr_t;
typedef struct { uint32_t mask; uint32_t rx_threshold; uint32_t state; } urma_jetty_attr_t;
typedef struct { uint64_t addr; uint32_t len; void *tseg; void *user_tseg; } urma_sge_t;
typedef struct { urma_sge_t *sge; uint32_t num_sge; } urma_sg_t;
typedef struct { urma_sg_t src; urma_sg_t dst; uint8_t target_hint; uint64_t notify_data; } urma_rw_t;
typedef struct urma_jfs_wr {
    uint32_t opcode; uint32_t flag; void *tjetty; uint64_t user_ctx; urma_rw_t rw; struct urma_jfs_wr *next;
} urma_jfs_wr_t;
typedef struct {
    uint32_t status; uint64_t user_ctx; uint32_t opcode; uint8_t flag; uint32_t completion_len; uint32_t local_id;
    urma_jetty_id_t remote_id; uint64_t imm_data; uint32_t tpn; uint64_t user_data;
} urma_cr_t;

int urma_init(urma_init_attr_t *attr);
int urma_uninit(void);
void urma_log_set_level(uint32_t level);
urma_device_t **urma_get_device_list(int *count);
void urma_free_device_list(urma_device_t **list);
void urma_free_eid_list(urma_eid_info_t *list);
urma_device_t *urma_get_device_by_name(char *name);
urma_eid_info_t *urma_get_eid_list(urma_device_t *device, uint32_t *count);
int urma_query_device(urma_device_t *device, void *attr);
urma_context_t *urma_create_context(urma_device_t *device, uint32_t eid_index);
int urma_delete_context(urma_context_t *context);
urma_jfce_t *urma_create_jfce(urma_context_t *context);
int urma_delete_jfce(urma_jfce_t *jfce);
void *urma_create_jfc(urma_context_t *context, urma_jfc_cfg_t *cfg);
int urma_delete_jfc(void *jfc);
void *urma_create_jfs(urma_context_t *context, urma_jfs_cfg_t *cfg);
int urma_modify_jfs(void *jfs, urma_jfs_attr_t *attr);
int urma_flush_jfs(void *jfs, int count, urma_cr_t *cr);
int urma_delete_jfs(void *jfs);
void *urma_create_jfr(urma_context_t *context, urma_jfr_cfg_t *cfg);
int urma_delete_jfr(void *jfr);
void *urma_create_jetty(urma_context_t *context, urma_jetty_cfg_t *cfg);
int urma_modify_jetty(void *jetty, urma_jetty_attr_t *attr);
int urma_flush_jetty(void *jetty, int count, urma_cr_t *cr);
int urma_delete_jetty(void *jetty);
urma_token_id_t *urma_alloc_token_id(urma_context_t *context);
int urma_free_token_id(urma_token_id_t *token_id);
urma_target_seg_t *urma_register_seg(urma_context_t *context, urma_seg_cfg_t *cfg);
int urma_unregister_seg(urma_target_seg_t *seg);
urma_target_seg_t *urma_import_seg(urma_context_t *context, urma_seg_t *seg, urma_token_t *token, uint64_t addr,
                                   uint32_t flag);
int urma_unimport_seg(urma_target_seg_t *seg);
void *urma_import_jfr(urma_context_t *context, urma_rjfr_t *rjfr, urma_token_t *token);
int urma_unimport_jfr(void *target);
void *urma_import_jetty(urma_context_t *context, urma_rjetty_t *rjetty, urma_token_t *token);
int urma_unimport_jetty(void *target);
int urma_post_jfs_wr(void *jfs, urma_jfs_wr_t *wr, urma_jfs_wr_t **bad);
int urma_post_jetty_send_wr(void *jetty, urma_jfs_wr_t *wr, urma_jfs_wr_t **bad);
int urma_read(void *jfs, void *target, urma_target_seg_t *dst_seg, urma_target_seg_t *src_seg, uint64_t dst,
              uint64_t src, uint32_t len, uint32_t flag, uint64_t ctx);
int urma_write(void *jfs, void *target, urma_target_seg_t *dst_seg, urma_target_seg_t *src_seg, uint64_t dst,
               uint64_t src, uint32_t len, uint32_t flag, uint64_t ctx);
int urma_poll_jfc(void *jfc, int count, urma_cr_t *cr);
int urma_rearm_jfc(void *jfc, _Bool solicited);
int urma_wait_jfc(urma_jfce_t *jfce, uint32_t count, int timeout_ms, void **jfc);
void urma_ack_jfc(void **jfc, uint32_t *events, uint32_t count);

/* how installed builds are told apart (4.7) */
void urma_alloc_jfs(void);
void urma_get_seg_ctx(void);

/* the stand-in's own: the real library has none of them */
typedef struct { uint64_t posts, polls, requests, bytes, copies, references; } urma_standin_counts_t;
const char *urma_standin_version(void);
void urma_standin_counters(urma_standin_counts_t *counts);
const char *urma_standin_trouble(void);
"""

FUNCTIONS: Final = tuple(
    "urma_" + name
    for name in [
        "init",
        "uninit",
        "log_set_level",
        "get_device_list",
        "free_device_list",
        "free_eid_list",
        "get_device_by_name",
        "get_eid_list",
        "query_device",
        "create_context",
        "delete_context",
        "create_jfce",
        "delete_jfce",
        "create_jfc",
        "delete_jfc",
        "create_jfs",
        "modify_jfs",
        "flush_jfs",
        "delete_jfs",
        "create_jfr",
        "delete_jfr",
        "create_jetty",
        "modify_jetty",
        "flush_jetty",
        "delete_jetty",
        "alloc_token_id",
        "free_token_id",
        "register_seg",
        "unregister_seg",
        "import_seg",
        "unimport_seg",
        "import_jfr",
        "unimport_jfr",
        "import_jetty",
        "unimport_jetty",
        "post_jfs_wr",
        "post_jetty_send_wr",
        "read",
        "write",
        "poll_jfc",
        "rearm_jfc",
        "wait_jfc",
        "ack_jfc",
    ]
)
"""The 43 functions of section 6."""

MARKER: Final = "urma_standin_version"

#: type -> size, offset of each field (4.1 to 4.4)
LAYOUT: Final[dict[str, tuple[int, dict[str, int]]]] = {
    "urma_init_attr_t": (16, {"token": 0, "uasid": 8}),
    "urma_eid_t": (16, {"raw": 0}),
    "urma_token_t": (4, {"token": 0}),
    "urma_jfc_cfg_t": (32, {"depth": 0, "flag": 4, "ceqn": 8, "jfce": 16, "user_ctx": 24}),
    "urma_jfs_cfg_t": (
        40,
        {"depth": 0, "flag": 4, "trans_mode": 8, "priority": 12, "max_sge": 13, "max_rsge": 14, "max_inline_data": 16}
        | {"rnr_retry": 20, "err_timeout": 21, "jfc": 24, "user_ctx": 32},
    ),
    "urma_jfr_cfg_t": (
        48,
        {"id": 0, "depth": 4, "flag": 8, "trans_mode": 12, "max_sge": 16, "min_rnr_timer": 17, "jfc": 24}
        | {"token": 32, "user_ctx": 40},
    ),
    "urma_jetty_cfg_t": (
        80,
        {"id": 0, "flag": 4, "jfs_cfg": 8, "jfr": 48, "jfc": 56, "jetty_grp": 64, "user_ctx": 72},
    ),
    "urma_jetty_id_t": (24, {"eid": 0, "uasid": 16, "id": 20}),
    "urma_rjfr_t": (40, {"jfr_id": 0, "trans_mode": 24, "flag": 28, "tp_type": 32}),
    "urma_rjetty_t": (48, {"jetty_id": 0, "trans_mode": 24, "policy": 28, "type": 32, "flag": 36, "tp_type": 40}),
    "urma_seg_cfg_t": (
        48,
        {"va": 0, "len": 8, "token_id": 16, "token_value": 24, "flag": 28, "user_ctx": 32, "iova": 40},
    ),
    "urma_jfs_attr_t": (8, {"mask": 0, "state": 4}),
    "urma_jetty_attr_t": (12, {"mask": 0, "rx_threshold": 4, "state": 8}),
    "urma_seg_t": (48, {"ubva": 0, "len": 32, "attr": 40, "token_id": 44}),
    "urma_target_seg_t": (88, {"seg": 0, "user_ctx": 48, "mva": 56, "urma_ctx": 64, "token_id": 72, "handle": 80}),
    "urma_token_id_t": (40, {"urma_ctx": 0, "token_id": 8, "handle": 16, "ref": 24, "flag": 32}),
    "urma_sge_t": (32, {"addr": 0, "len": 8, "tseg": 16, "user_tseg": 24}),
    "urma_sg_t": (16, {"sge": 0, "num_sge": 8}),
    "urma_jfs_wr_t": (80, {"opcode": 0, "flag": 4, "tjetty": 8, "user_ctx": 16, "rw": 24, "next": 72}),
    "urma_rw_t": (48, {"src": 0, "dst": 16, "target_hint": 32, "notify_data": 40}),
    "urma_cr_t": (
        80,
        {"status": 0, "user_ctx": 8, "opcode": 16, "flag": 20, "completion_len": 24, "local_id": 28, "remote_id": 32}
        | {"imm_data": 56, "tpn": 64, "user_data": 72},
    ),
    "urma_device_t": (4184, {"name": 0, "path": 64, "type": 4160}),
    "urma_jfce_t": (24, {"fd": 8}),
    "urma_eid_info_t": (24, {"eid": 0, "eid_index": 16}),
    "urma_named_t": (32, {"id": 8}),
}

ATTRIBUTES_BYTES: Final = 4096
"""What `urma_query_device` is given: each build of the library writes its own size (4.5)."""
DEV_CAP: Final = 16
#: in dev_cap: name -> offset of a u32 (4.5)
CAPABILITIES: Final[dict[str, int]] = {
    "feature": 0,
    "max_jfc": 4,
    "max_jfs": 8,
    "max_jfr": 12,
    "max_jetty": 16,
    "max_jfc_depth": 28,
    "max_jfs_depth": 32,
    "max_jfr_depth": 36,
    "max_jfs_inline_len": 40,
    "max_jfs_sge": 44,
    "max_jfs_rsge": 48,
    "max_jfr_sge": 52,
    "max_read_size": 64,
    "max_write_size": 68,
    "max_eid_cnt": 120,
    "rm_tp_cap": 156,
}
PRIORITY_INFO: Final = 172
PRIORITIES: Final = 16


class Access(IntEnum):
    """Rights of a segment (section 5): all sets that a registration may have but 0, which grants nothing."""

    LOCAL = 1
    READ = 2
    READ_WRITE = 6


class Transport(IntEnum):
    """How requests travel (section 5)."""

    RTP = 0
    CTP = 1


POLICY_PLAIN: Final = 1
MODE_RM: Final = 1
TARGET_JETTY: Final = 1
STATE_ERROR: Final = 3
RNR_RETRY, ERR_TIMEOUT, MIN_RNR_TIMER = 7, 17, 12
SEG_ACCESS_SHIFT, SEG_TOKEN_ID_VALID = 5, 1 << 13
ATTR_HAS_USER_INFO: Final = 1 << 14
JETTY_SHARE_JFR: Final = 1
JETTY_STATE_MASK: Final = 2
ORDER_SHIFT_IMPORT: Final = 3
ORDER_SHIFT_JFR: Final = 5

ffi: Final[Any] = FFI()  # structures have no static types
ffi.cdef(DECLARATIONS)


def layout_faults(of: Any) -> list[str]:
    """How the structures of the cffi object `of` differ from sections 4.1 to 4.4."""
    faults = []
    for name, (size, fields) in LAYOUT.items():
        if of.sizeof(name) != size:
            faults.append(f"sizeof({name}) is {of.sizeof(name)}, not {size}")
        faults += [
            f"offsetof({name}, {field}) is {of.offsetof(name, field)}, not {at}"
            for field, at in fields.items()
            if of.offsetof(name, field) != at
        ]
    return faults


if _faults := layout_faults(ffi):
    raise ImportError(f"the structures of liburma.so.0 do not fit this platform: {'; '.join(_faults)}")
