# SPDX-License-Identifier: Apache-2.0
"""The library's own checks (URMA specification 3, 6; conformance list 2 to 11)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest

from obmm import urma
from obmm.urma.abi import ffi

from .raw import RC, RM, UM, Raw

EINVAL = errno.EINVAL
NULL = ffi.NULL


@pytest.fixture
def raw(library: urma.Library) -> Iterator[Raw]:
    assert library.raw.urma_init(NULL) == 0
    yield Raw(library.raw)
    assert library.raw.urma_uninit() == 0


def test_init_and_uninit_answer_as_the_core_does(library: urma.Library) -> None:
    lib = library.raw
    steps = [lib.urma_uninit, *[lambda: lib.urma_init(NULL)] * 2, *[lib.urma_uninit] * 2, lambda: lib.urma_init(NULL)]
    assert [step() for step in steps] == [0, 0, 17, 0, 0, 0]
    lib.urma_uninit()


def test_a_device_list_before_init_is_no_endless_loop(library: urma.Library) -> None:
    ffi.errno = 0
    assert not library.raw.urma_get_device_list(ffi.new("int *"))
    assert ffi.errno == errno.ENODEV


@pytest.mark.parametrize(("name", "expected"), [(NULL, EINVAL), (b"x" * 64, EINVAL), (b"nothing", errno.ENODEV)])
def test_a_device_that_is_not_there(raw: Raw, name: Any, expected: int) -> None:
    given = name if name == NULL else ffi.new("char[]", name)
    assert raw.refusal("get_device_by_name", given) == expected


def test_depths_of_completion_queues(raw: Raw) -> None:
    def made(depth: int) -> int | None:
        return raw.refusal("create_jfc", raw.context, ffi.new("urma_jfc_cfg_t *", {"depth": depth}))

    assert made(0) == EINVAL
    assert made((1 << 20) + 1) == EINVAL
    assert made(1 << 20) is None


def test_what_is_in_use_is_not_deleted(raw: Raw) -> None:
    jfce = raw.lib.urma_create_jfce(raw.context)
    jfc = raw.jfc(jfce=jfce)
    assert raw.lib.urma_delete_context(raw.context) == 11
    assert raw.lib.urma_delete_jfce(jfce) == 0x1000
    assert [raw.lib.urma_delete_jfc(jfc), raw.lib.urma_delete_jfce(jfce)] == [0, 0]
    assert raw.lib.urma_delete_context(raw.context) == 0


@pytest.mark.parametrize(
    "name",
    [
        "delete_context",
        "delete_jfce",
        "delete_jfc",
        "delete_jfs",
        "delete_jfr",
        "delete_jetty",
        "free_token_id",
        "unregister_seg",
        "unimport_seg",
        "unimport_jfr",
        "unimport_jetty",
    ],
)
def test_ending_nothing_is_refused(raw: Raw, name: str) -> None:
    assert raw.call(name, NULL)[0] == EINVAL


def test_a_jetty_needs_a_shared_receive_queue_of_its_mode(raw: Raw) -> None:
    jfc = raw.jfc()
    jfr = raw.jfr(jfc)
    assert raw.refusal("create_jetty", raw.context, raw.jetty_cfg(jfc, jfr, share=0)) == EINVAL
    assert raw.refusal("create_jetty", raw.context, raw.jetty_cfg(jfc, jfr, mode=RC)) == EINVAL
    assert raw.refusal("create_jetty", raw.context, raw.jetty_cfg(jfc, jfr)) is None


@pytest.mark.parametrize("order", range(6))
@pytest.mark.parametrize(("mode", "allowed", "usual"), [(RM, {0, 2}, 2), (RC, {0, 1, 3, 4}, 3), (UM, {0, 4}, 4)])
def test_order_types_of_send_queues(raw: Raw, mode: int, allowed: set[int], usual: int, order: int) -> None:
    cfg = ffi.new("urma_jfs_cfg_t *", {"depth": 8, "trans_mode": mode, "flag": order << 3, "jfc": raw.jfc()})
    assert raw.refusal("create_jfs", raw.context, cfg) == (None if order in allowed else EINVAL)
    if order in allowed:
        assert cfg.flag >> 3 & 0xFF == (order or usual)


@pytest.mark.parametrize("access", range(16))
def test_access_sets_of_a_registration(raw: Raw, access: int) -> None:
    ffi.errno = 0
    segment, _ = raw.register(access=access)
    assert (bool(segment), ffi.errno) == ((True, 0) if access in (0, 1, 2, 6, 14) else (False, EINVAL))


def test_the_attributes_of_a_segment_are_its_flags(raw: Raw) -> None:
    token_id = raw.lib.urma_alloc_token_id(raw.context)
    segment, _ = raw.register(access=6, token_id=token_id, flag=1 << 13)
    assert segment.seg.attr == 0x20C1
    assert segment.seg.token_id == token_id.token_id
    assert token_id.token_id % 256 == 0


def test_a_token_id_and_its_bit_belong_together(raw: Raw) -> None:
    token_id = raw.lib.urma_alloc_token_id(raw.context)
    ffi.errno = 0
    assert not raw.register(token_id=token_id)[0]
    assert not raw.register(flag=1 << 13)[0]
    assert ffi.errno == EINVAL
    segment, _ = raw.register(token_id=token_id, flag=1 << 13)
    assert raw.lib.urma_free_token_id(token_id) == EINVAL
    assert raw.lib.urma_unregister_seg(segment) == 0
    assert raw.lib.urma_free_token_id(token_id) == 0


def test_imports_ask_for_a_token_and_a_transport(raw: Raw) -> None:
    seg = ffi.new("urma_seg_t *", {"attr": 1, "len": 1})
    assert raw.refusal("import_seg", raw.context, seg, NULL, 0, 0) == EINVAL
    remote = ffi.new("urma_rjetty_t *", {"trans_mode": RM, "tp_type": 2})
    ffi.errno = errno.EXDEV
    assert not raw.lib.urma_import_jetty(raw.context, remote, NULL)
    assert ffi.errno == errno.EXDEV  # a refusal without a reason


def test_polling_flushing_and_waiting_with_bad_counts(raw: Raw) -> None:
    jfc = raw.jfc()
    jfs = raw.jfs(jfc, depth=64)
    records = ffi.new("urma_cr_t[]", 65)
    assert [raw.lib.urma_poll_jfc(*a) for a in [(NULL, 1, records), (jfc, -1, records), (jfc, 0, records)]] == [
        -1,
        -1,
        0,
    ]
    assert [raw.lib.urma_flush_jfs(jfs, n, records) for n in (0, 65)] == [-22, -22]
    jfce = raw.lib.urma_create_jfce(raw.context)
    assert raw.lib.urma_wait_jfc(jfce, 0, 0, ffi.new("void *[1]")) == -1


def test_posting_nothing(raw: Raw) -> None:
    jfs = raw.jfs(raw.jfc())
    wr, bad = ffi.new("urma_jfs_wr_t *"), ffi.new("urma_jfs_wr_t **")
    for arguments in ((NULL, wr, bad), (jfs, NULL, bad), (jfs, wr, NULL)):
        assert raw.lib.urma_post_jfs_wr(*arguments) == EINVAL
    assert bad[0] == NULL


def test_a_missing_acknowledgement_is_told_in_time(raw: Raw) -> None:
    jfce = raw.lib.urma_create_jfce(raw.context)
    jfc = raw.jfc(jfce=jfce)
    jfs = raw.jfs(jfc)
    assert raw.lib.urma_rearm_jfc(jfc, False) == 0
    assert raw.lib.urma_modify_jfs(jfs, ffi.new("urma_jfs_attr_t *", {"mask": 1, "state": 3})) == 0  # makes a marker
    woken = ffi.new("void *[1]")
    assert raw.lib.urma_wait_jfc(jfce, 1, 1000, woken) == 1
    assert woken[0] == jfc
    assert raw.lib.urma_wait_jfc(jfce, 1, 0, woken) == 0  # once
    assert raw.lib.urma_delete_jfc(jfc) == 11
    raw.lib.urma_ack_jfc(woken, ffi.new("uint32_t[1]", [1]), 1)
    assert raw.lib.urma_delete_jfc(jfc) == 0
