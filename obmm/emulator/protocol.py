# SPDX-License-Identifier: Apache-2.0
"""The emulator's wire protocol: the Python mirror of ``native/emulator/wire.h`` (docs/emulator.md).

Every struct is little-endian and without holes; the sizes are asserted on both sides.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from .model.calls import Action, Map, Protect

MAGIC = 0x4D4D424F
VERSION = 2
PAYLOAD_MAX = 16384
ACTIONS_MAX = 64
REQUEST_FAULT = 1

HELLO = struct.Struct("<IHH64s")
WELCOME = struct.Struct("<IHHiI64s256s")
REQUEST = struct.Struct("<IHHQ6Q")
ANSWER = struct.Struct("<IiqHHIQQ")
ACTION = struct.Struct("<HHIQQQ")
WINDOW = struct.Struct("<16sIIQQQII")

assert [s.size for s in (HELLO, WELCOME, REQUEST, ANSWER, ACTION, WINDOW)] == [72, 336, 64, 40, 32, 56]


class Kind(IntEnum):
    """What a connection is for."""

    CALLS = 1
    CONTROL = 2


class Call(IntEnum):
    """Requests of a client (``enum obmm_wire_call``)."""

    OPEN = 1
    IOCTL = 2
    MMAP = 3
    MUNMAP = 4
    MPROTECT = 5
    MREMAP = 6
    MADVISE = 7
    MSYNC = 8
    FILE = 9
    PROGRAM = 10
    UNPROGRAM = 11
    MEMORY = 12
    UNDO = 13
    LEAVE = 14
    CHMOD = 15
    CHOWN = 16
    OPENS = 17


class FileOperation(IntEnum):
    """Operations on an open file without memory of their own (``enum obmm_wire_operation``)."""

    READ = 1
    WRITE = 2
    LSEEK = 3
    FSYNC = 4
    FALLOCATE = 5
    FTRUNCATE = 6
    DEVICE = 7
    FLAGS = 8


class Reply(IntEnum):
    """Kinds of answers (``enum obmm_wire_answer_kind``)."""

    DONE = 1
    NEED = 2
    MORE = 3
    FOREIGN = 4


class Step(IntEnum):
    """Kinds of actions (``enum obmm_wire_action_kind``)."""

    MAP = 1
    PROTECT = 2
    UNMAP = 3


class ProtocolError(Exception):
    """A peer that does not speak this protocol: its connection is dropped."""


@dataclass(frozen=True, slots=True)
class WindowRequest:
    """A decoder entry that a client asks for (``struct obmm_wire_window``)."""

    owner_eid: bytes
    owner_cna: int
    tokenid: int
    uba: int
    length: int
    pa: int
    local_cna: int
    cache: int

    @classmethod
    def unpack(cls, payload: bytes) -> WindowRequest:
        """From 56 bytes; ProtocolError for any other number."""
        if len(payload) != WINDOW.size:
            raise ProtocolError(f"a window request has {WINDOW.size} bytes, not {len(payload)}")
        return cls(*WINDOW.unpack(payload))


def text(raw: bytes) -> str:
    """A zero-padded name from the wire."""
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


def need(address: int, size: int) -> bytes:
    """The answer that asks for `size` bytes of the caller's memory at `address`."""
    return ANSWER.pack(Reply.NEED, 0, 0, 0, 0, 0, address, size)


def done(value: int, error: int = 0, address: int = 0, copy_back: bytes = b"") -> bytes:
    """The last answer of a call without actions."""
    return ANSWER.pack(Reply.DONE, error, value, 0, 0, 0, address, len(copy_back)) + copy_back


def value(answer: bytes) -> int:
    """The result that an answer tells."""
    result: int = ANSWER.unpack_from(answer)[2]
    return result


def foreign() -> bytes:
    """The answer for a descriptor or range that is none of the fabric's."""
    return ANSWER.pack(Reply.FOREIGN, 0, 0, 0, 0, 0, 0, 0)


def with_actions(
    value: int, actions: Sequence[Action], address: int = 0, copy_back: bytes = b"", error: int = 0
) -> list[tuple[bytes, list[int]]]:
    """The answers of a call: frames, each with the descriptors that go with it."""
    frames: list[tuple[bytes, list[int]]] = []
    parts = [actions[i : i + ACTIONS_MAX] for i in range(0, len(actions), ACTIONS_MAX)] or [()]
    for part in parts:
        descriptors: list[int] = []
        packed = [_pack_action(action, descriptors) for action in part]
        counts = len(packed), len(descriptors)
        if part is parts[-1]:
            header = ANSWER.pack(Reply.DONE, error, value, *counts, 0, address, len(copy_back))
            packed.append(copy_back)
        else:
            header = ANSWER.pack(Reply.MORE, 0, 0, *counts, 0, 0, 0)
        frames.append((b"".join((header, *packed)), descriptors))
    return frames


def _pack_action(action: Action, descriptors: list[int]) -> bytes:
    """One action; a backing's descriptor is passed once per frame."""
    if isinstance(action, Map):
        fd = action.backing.fd
        if fd not in descriptors:
            descriptors.append(fd)
        index = descriptors.index(fd)
        return ACTION.pack(Step.MAP, index, action.prot, action.address, action.length, action.backing.offset)
    if isinstance(action, Protect):
        return ACTION.pack(Step.PROTECT, 0, action.prot, action.address, action.length, 0)
    return ACTION.pack(Step.UNMAP, 0, 0, action.address, action.length, 0)
