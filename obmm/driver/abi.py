# SPDX-License-Identifier: Apache-2.0
"""Names for what ``native/abi/obmm_abi.h`` declares: the driver's constants, requests and structs.

Every number comes from the C compiler.  Importing this module fails if a struct's size or a request number is
not the one of driver specification 4 and 5: a driver must never be called with a struct that it does not know.

Structs are made and read through cffi: ``ffi.new(COMMANDS[Request.EXPORT].pointer)`` or, over bytes that came
from elsewhere, ``ffi.from_buffer(COMMANDS[request].pointer, data)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, IntFlag
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from obmm._native import ffi, lib

DEV_PATH: Final[str] = ffi.string(lib.OBMM_DEV_PATH).decode()
SHMDEV_PREFIX: Final[str] = ffi.string(lib.OBMM_SHMDEV_PREFIX).decode()
"""A region's node is the prefix and its mem_id in decimal (driver specification 2)."""

MAX_LOCAL_NUMA_NODES: Final[int] = lib.OBMM_MAX_LOCAL_NUMA_NODES
MAX_NUMA_DIST: Final[int] = lib.OBMM_MAX_NUMA_DIST
MAX_PRIV_LEN: Final[int] = lib.OBMM_MAX_PRIV_LEN
MAX_VENDOR_LEN: Final[int] = lib.OBMM_MAX_VENDOR_LEN
MIN_MEM_ID: Final[int] = lib.OBMM_MIN_MEM_ID
MAX_MEM_ID: Final[int] = lib.OBMM_MAX_MEM_ID
EID_LEN: Final[int] = lib.OBMM_EID_LEN
BASIC_GRANULARITY: Final[int] = lib.OBMM_BASIC_GRANULARITY
MMAP_FLAG_HUGETLB_PMD: Final[int] = lib.OBMM_MMAP_FLAG_HUGETLB_PMD
"""Bit 63 of the mmap offset: block mappings (driver specification 9.3)."""

PAGE: Final[int] = 4096
"""Bytes of a page mapping: what one right covers (driver specification 9.3)."""
PMD: Final[int] = 2 << 20
"""Bytes of a block mapping."""

Cache = Literal["cc", "nc"]
"""How a mapping reaches memory: cacheable or non-cacheable."""


class ExportFlag(IntFlag):
    """``flags`` of EXPORT (driver specification 3, 6.1)."""

    ALLOW_MMAP = lib.OBMM_EXPORT_FLAG_ALLOW_MMAP
    FAST = lib.OBMM_EXPORT_FLAG_FAST


class ImportFlag(IntFlag):
    """``flags`` of IMPORT; exactly one of ALLOW_MMAP and NUMA_REMOTE (rule I3)."""

    ALLOW_MMAP = lib.OBMM_IMPORT_FLAG_ALLOW_MMAP
    PREIMPORT = lib.OBMM_IMPORT_FLAG_PREIMPORT
    NUMA_REMOTE = lib.OBMM_IMPORT_FLAG_NUMA_REMOTE


EXPORT_FLAG_MASK: Final[int] = lib.OBMM_EXPORT_FLAG_MASK
IMPORT_FLAG_MASK: Final[int] = lib.OBMM_IMPORT_FLAG_MASK
UNEXPORT_FLAG_MASK: Final[int] = lib.OBMM_UNEXPORT_FLAG_MASK
UNIMPORT_FLAG_MASK: Final[int] = lib.OBMM_UNIMPORT_FLAG_MASK
PREIMPORT_FLAG_MASK: Final[int] = lib.OBMM_PREIMPORT_FLAG_MASK
UNPREIMPORT_FLAG_MASK: Final[int] = lib.OBMM_UNPREIMPORT_FLAG_MASK


class QueryKey(IntEnum):
    """``key_type`` of ADDR_QUERY (driver specification 6.8)."""

    BY_PA = lib.OBMM_QUERY_BY_PA
    BY_ID_OFFSET = lib.OBMM_QUERY_BY_ID_OFFSET


class MemType(IntEnum):
    """The memory type in ``mem_state`` of UPDATE_RANGE, bits 0-1 (driver specification 9.6)."""

    RESERVED = lib.OBMM_SHM_MEM_CACHE_RESV
    NORMAL = lib.OBMM_SHM_MEM_NORMAL
    NORMAL_NC = lib.OBMM_SHM_MEM_NORMAL_NC
    DEVICE = lib.OBMM_SHM_MEM_DEVICE


class MemAccess(IntEnum):
    """The access right in ``mem_state`` of UPDATE_RANGE, bits 2-3 (driver specification 9.6)."""

    READONLY = lib.OBMM_SHM_MEM_READONLY
    READEXEC = lib.OBMM_SHM_MEM_READEXEC
    READWRITE = lib.OBMM_SHM_MEM_READWRITE
    NO_ACCESS = lib.OBMM_SHM_MEM_NO_ACCESS


MEM_TYPE_MASK: Final[int] = lib.OBMM_SHM_MEM_CACHE_MASK
MEM_ACCESS_MASK: Final[int] = lib.OBMM_SHM_MEM_ACCESS_MASK


class CacheOp(IntEnum):
    """``cache_ops`` of UPDATE_RANGE (driver specification 9.8)."""

    NONE = lib.OBMM_SHM_CACHE_NONE
    INVAL = lib.OBMM_SHM_CACHE_INVAL
    WB_INVAL = lib.OBMM_SHM_CACHE_WB_INVAL
    WB_ONLY = lib.OBMM_SHM_CACHE_WB_ONLY
    INFER = lib.OBMM_SHM_CACHE_INFER


class Request(IntEnum):
    """ioctl request numbers (driver specification 4)."""

    EXPORT = lib.OBMM_CMD_EXPORT
    IMPORT = lib.OBMM_CMD_IMPORT
    UNEXPORT = lib.OBMM_CMD_UNEXPORT
    UNIMPORT = lib.OBMM_CMD_UNIMPORT
    ADDR_QUERY = lib.OBMM_CMD_ADDR_QUERY
    EXPORT_PID = lib.OBMM_CMD_EXPORT_PID
    DECLARE_PREIMPORT = lib.OBMM_CMD_DECLARE_PREIMPORT
    UNDECLARE_PREIMPORT = lib.OBMM_CMD_UNDECLARE_PREIMPORT
    UPDATE_RANGE = lib.OBMM_SHMDEV_UPDATE_RANGE


U23_ADDR_QUERY: Final[int] = lib.OBMM_U23_CMD_ADDR_QUERY
"""ADDR_QUERY of the 2023 interface, which is only ever recognised (driver specification 20)."""


class Command(NamedTuple):
    """What a request number says about its argument."""

    struct: str
    """C name of the argument, ``"struct obmm_cmd_export"``."""
    size: int
    """Bytes of the argument."""
    writes_back: bool
    """The kernel copies the whole struct back on success."""

    @property
    def pointer(self) -> str:
        """The C type for ``ffi.new`` and ``ffi.from_buffer``."""
        return f"{self.struct} *"


_READ: Final = 2  # _IOC_READ: the kernel writes the struct back


def _command(request: Request, struct: str, size: int, number: int) -> Command:
    """The argument of `request`, or ImportError if `number` and `size` (the specification's) do not fit."""
    if request != number:
        raise ImportError(f"{request.name} is {request:#x}, the driver's is {number:#x} (specification 4)")
    if (built := ffi.sizeof(struct)) != size:
        raise ImportError(f"{struct} has {built} bytes, the driver's has {size} (specification 5)")
    return Command(struct, size, bool(request >> 30 & _READ))


COMMANDS: Final[Mapping[Request, Command]] = MappingProxyType(
    {
        request: _command(request, f"struct obmm_cmd_{struct}", size, number)
        for request, struct, size, number in (
            (Request.EXPORT, "export", 224, 0xC0E07800),
            (Request.IMPORT, "import", 96, 0xC0607801),
            (Request.UNEXPORT, "unexport", 16, 0x40107802),
            (Request.UNIMPORT, "unimport", 16, 0x40107803),
            (Request.ADDR_QUERY, "addr_query", 32, 0xC0207804),
            (Request.EXPORT_PID, "export_pid", 104, 0xC0687805),
            (Request.DECLARE_PREIMPORT, "preimport", 80, 0xC0507806),
            (Request.UNDECLARE_PREIMPORT, "preimport", 80, 0x40507807),
            (Request.UPDATE_RANGE, "update_range", 24, 0x40185800),
        )
    }
)
"""Argument struct of every request."""
