# SPDX-License-Identifier: Apache-2.0
"""The command structs, from the tables of the driver specification, section 5.

Written out here a second time on purpose: the replay must not inherit a
mistake of the package under test.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """One ioctl: its number, its size and where its fields are."""

    name: str
    request: int
    size: int
    fields: Mapping[str, tuple[int, str]]
    outputs: tuple[str, ...] = ()
    defaults: Mapping[str, int] = None  # type: ignore[assignment]

    def pack(self, values: Mapping[str, int | bytes]) -> bytearray:
        raw = bytearray(self.size)
        for name, value in {**(self.defaults or {}), **values}.items():
            offset, code = self.fields[name]
            if isinstance(value, bytes):
                if len(value) > struct.calcsize(code):
                    raise ValueError(f"{self.name}.{name}: {len(value)} bytes")
                raw[offset : offset + len(value)] = value
            else:
                wrapped = value & ((1 << 8 * struct.calcsize(code)) - 1)
                struct.pack_into("<" + code.upper(), raw, offset, wrapped)
        return raw

    def unpack(self, raw: bytes | bytearray, names: tuple[str, ...] | None = None) -> dict[str, int]:
        out = {}
        for name in self.outputs if names is None else names:
            offset, code = self.fields[name]
            (out[name],) = struct.unpack_from("<" + code, raw, offset)
        return out


_SIZES = {f"size{i}": (8 * i, "Q") for i in range(16)}

COMMANDS = {
    command.name: command
    for command in (
        Command(
            "EXPORT",
            0xC0E07800,
            224,
            {
                **_SIZES,
                "length": (128, "Q"),
                "flags": (136, "Q"),
                "uba": (144, "Q"),
                "mem_id": (152, "Q"),
                "tokenid": (160, "I"),
                "pxm_numa": (164, "i"),
                "priv_len": (168, "H"),
                "vendor_len": (170, "H"),
                "deid": (172, "16s"),
                "seid": (188, "16s"),
                "vendor_info": (208, "Q"),
                "priv": (216, "Q"),
            },
            ("uba", "mem_id", "tokenid"),
            {"length": 16},
        ),
        Command(
            "IMPORT",
            0xC0607801,
            96,
            {
                "flags": (0, "Q"),
                "mem_id": (8, "Q"),
                "addr": (16, "Q"),
                "length": (24, "Q"),
                "tokenid": (32, "I"),
                "scna": (36, "I"),
                "dcna": (40, "I"),
                "numa_id": (44, "i"),
                "priv_len": (48, "H"),
                "base_dist": (50, "B"),
                "deid": (51, "16s"),
                "seid": (67, "16s"),
                "priv": (88, "Q"),
            },
            ("mem_id", "numa_id"),
            {"numa_id": -1},
        ),
        Command("UNEXPORT", 0x40107802, 16, {"mem_id": (0, "Q"), "flags": (8, "Q")}),
        Command("UNIMPORT", 0x40107803, 16, {"mem_id": (0, "Q"), "flags": (8, "Q")}),
        Command(
            "ADDR_QUERY",
            0xC0207804,
            32,
            {"key_type": (0, "I"), "mem_id": (8, "Q"), "offset": (16, "Q"), "pa": (24, "Q")},
            ("mem_id", "offset", "pa"),
        ),
        Command(
            "EXPORT_PID",
            0xC0687805,
            104,
            {
                "va": (0, "Q"),
                "length": (8, "Q"),
                "flags": (16, "Q"),
                "uba": (24, "Q"),
                "mem_id": (32, "Q"),
                "tokenid": (40, "I"),
                "pid": (44, "i"),
                "pxm_numa": (48, "i"),
                "priv_len": (52, "H"),
                "vendor_len": (54, "H"),
                "deid": (56, "16s"),
                "seid": (72, "16s"),
                "priv": (88, "Q"),
                "vendor_info": (96, "Q"),
            },
            ("uba", "mem_id", "tokenid"),
        ),
        *(
            Command(
                name,
                request,
                80,
                {
                    "pa": (0, "Q"),
                    "length": (8, "Q"),
                    "flags": (16, "Q"),
                    "scna": (24, "I"),
                    "dcna": (28, "I"),
                    "numa_id": (32, "i"),
                    "priv_len": (36, "H"),
                    "base_dist": (38, "B"),
                    "deid": (39, "16s"),
                    "seid": (55, "16s"),
                    "priv": (71, "Q"),
                },
                outputs,
                {"numa_id": -1},
            )
            for name, request, outputs in (
                ("DECLARE_PREIMPORT", 0xC0507806, ("numa_id",)),
                ("UNDECLARE_PREIMPORT", 0x40507807, ()),
            )
        ),
        Command(
            "UPDATE_RANGE",
            0x40185800,
            24,
            {"start": (0, "Q"), "end": (8, "Q"), "mem_state": (16, "B"), "cache_ops": (17, "B")},
        ),
    )
}


def eid(value: int | str) -> bytes:
    """A number (``0x`` marks a large one) is little-endian; other strings are hex, byte 0 first."""
    if isinstance(value, int) or value.startswith("0x"):
        return int(str(value), 0).to_bytes(16, "little")
    return bytes.fromhex(value).ljust(16, b"\0")
