# SPDX-License-Identifier: Apache-2.0
"""The library without the classes around it: what the conformance list asks of its functions."""

from __future__ import annotations

import itertools
from typing import Any

from obmm.urma.abi import ffi

RM, RC, UM = 1, 2, 4
READ, WRITE = 0x10, 0x00
COMP_ORDER = 1 << 2
SIGNALLED = 1 << 5


class Raw:
    """A device, a context, and short ways to make things; `errno` is cleared before each call."""

    def __init__(self, library: Any) -> None:
        self.lib = library
        self.device = library.urma_get_device_by_name(b"standin0")
        self.context = library.urma_create_context(self.device, 0)
        self.kept: list[Any] = []

    def call(self, name: str, *arguments: Any) -> tuple[Any, int]:
        ffi.errno = 0
        answer = getattr(self.lib, "urma_" + name)(*arguments)
        return answer, ffi.errno

    def refusal(self, name: str, *arguments: Any) -> int | None:
        """errno of a NULL, or None for an object."""
        answer, number = self.call(name, *arguments)
        return None if answer else number

    def jfc(self, depth: int = 128, jfce: Any = ffi.NULL, flag: int = 0) -> Any:
        return self.lib.urma_create_jfc(
            self.context, ffi.new("urma_jfc_cfg_t *", {"depth": depth, "jfce": jfce, "flag": flag})
        )

    def jfr(self, jfc: Any, mode: int = RM) -> Any:
        cfg = ffi.new("urma_jfr_cfg_t *", {"depth": 8, "trans_mode": mode, "max_sge": 1, "jfc": jfc})
        return self.lib.urma_create_jfr(self.context, cfg)

    def jfs(self, jfc: Any, depth: int = 64, max_sge: int = 6) -> Any:
        cfg = ffi.new(
            "urma_jfs_cfg_t *", {"depth": depth, "trans_mode": RM, "max_sge": max_sge, "max_rsge": 1, "jfc": jfc}
        )
        return self.lib.urma_create_jfs(self.context, cfg)

    def jetty_cfg(self, jfc: Any, jfr: Any, mode: int = RM, share: int = 1) -> Any:
        cfg = ffi.new("urma_jetty_cfg_t *", {"flag": share, "jfr": jfr, "jfc": jfc})
        cfg.jfs_cfg.depth, cfg.jfs_cfg.trans_mode, cfg.jfs_cfg.max_sge = 64, mode, 1
        cfg.jfs_cfg.max_rsge, cfg.jfs_cfg.jfc = 1, jfc
        return cfg

    def register(
        self, nbytes: int = 4096, access: int = 1, policy: int = 1, token: int = 5, **more: Any
    ) -> tuple[Any, Any]:
        memory = ffi.new("uint8_t[]", nbytes)
        cfg = ffi.new("urma_seg_cfg_t *", {"va": int(ffi.cast("uintptr_t", memory)), "len": nbytes, **more})
        cfg.token_value.token = token
        cfg.flag |= policy | access << 5
        self.kept.append(memory)
        return self.lib.urma_register_seg(self.context, cfg), memory

    def wr(
        self,
        opcode: int,
        target: Any,
        local: list[tuple[int, int, Any]],
        remote: list[tuple[int, int, Any]],
        ctx: int,
        flag: int,
    ) -> Any:
        wr = ffi.new("urma_jfs_wr_t *", {"opcode": opcode, "flag": flag, "tjetty": target, "user_ctx": ctx})
        sides = []
        for pieces in (local, remote):
            sges = ffi.new("urma_sge_t[]", max(1, len(pieces)))
            for sge, (address, length, segment) in zip(sges, pieces, strict=False):
                sge.addr, sge.len, sge.tseg = address, length, segment
            sides.append((sges, len(pieces)))
        self.kept += [wr, *(sges for sges, _ in sides)]
        into, source = (wr.rw.dst, wr.rw.src) if opcode != WRITE else (wr.rw.src, wr.rw.dst)
        (into.sge, into.num_sge), (source.sge, source.num_sge) = sides
        return wr

    def post(self, jfs: Any, *wrs: Any) -> tuple[int, int | None]:
        """(result, place of the first request that was not taken)."""
        for first, second in itertools.pairwise(wrs):
            first.next = second
        bad = ffi.new("urma_jfs_wr_t **")
        result = self.lib.urma_post_jfs_wr(jfs, wrs[0], bad)
        return result, next((i for i, wr in enumerate(wrs) if bad[0] == wr), None)

    def poll(self, jfc: Any, most: int = 128) -> list[tuple[int, int]]:
        records = ffi.new("urma_cr_t[]", most)
        got = self.lib.urma_poll_jfc(jfc, most, records)
        assert got >= 0
        return [(records[i].status, records[i].user_ctx) for i in range(got)]
