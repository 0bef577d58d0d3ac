# SPDX-License-Identifier: Apache-2.0
"""One process of a case: performs recorded steps through a `System`.

The handles of a case (descriptors, mappings) live here, so that a forked
agent has its parent's, as the recording says.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from . import vfs
from .commands import COMMANDS, Command, eid
from .inputs import Inputs
from .system import Fault, System, errno_name, mmap_flags, open_flags, protection
from .transcript import number

PAGE = 4096
PMD = 2 << 20
CONTROL = "/dev/obmm"

#: What `hugemap` leaves in the first word of touched memory.
TOUCHED = 0x1122334455667788


class Agent:
    """The handle tables of one process and an operation for each recorded step."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.files: dict[str, int] = {}
        self.mappings: dict[str, tuple[int, int]] = {}
        self.many: list[tuple[int, int]] = []

    def perform(self, op: str, given: dict[str, Any]) -> dict[str, Any]:
        """The step's result with the transcript's keys: ret, errno, out, value, signal, si_code."""
        inputs = Inputs(given)
        try:
            result = self._operation(op)(inputs)
        except OSError as error:
            return {"ret": -1, "errno": errno_name(error.errno or 0)}
        except Fault as fault:
            return {"signal": signal.Signals(fault.signal).name, "si_code": fault.code}
        inputs.all_read_by(op)
        return result

    def _operation(self, op: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        if op.startswith("ioctl "):
            name = op.removeprefix("ioctl ")
            command = COMMANDS.get(name)
            return self._raw_ioctl if command is None else lambda given: self._ioctl(command, given)
        own = getattr(self, "op_" + op, None)
        if own is not None:
            return own  # type: ignore[no-any-return]
        function = vfs.OPERATIONS.get(op)
        if function is None:
            raise NotImplementedError(f"the replay does not know the operation {op!r}")
        return lambda given: function(self, given)

    # descriptors

    def op_open(self, given: dict[str, Any]) -> dict[str, Any]:
        self.files[given["fd"]] = self.system.open(given["path"], open_flags(given["flags"]))
        return {"ret": 0}

    def op_close(self, given: dict[str, Any]) -> dict[str, Any]:
        self.system.close(self.files[given["fd"]])
        return {"ret": 0}

    def op_dup(self, given: dict[str, Any]) -> dict[str, Any]:
        self.files[given["new"]] = self.system.dup(self.files[given["fd"]])
        return {"ret": 0}

    # ioctl

    def _ioctl(self, command: Command, given: dict[str, Any]) -> dict[str, Any]:
        values, memory = self._arguments(command, dict(given["args"]))
        sent = bytes(command.pack(values))
        mode = given.get("ptr_mode")
        address = self._place(sent, mode)
        result = self._control(given, command.request, address)
        if mode is None:
            raw = self.system.read(address, command.size)
            if result["ret"] == 0:
                if command.outputs:
                    result["out"] = command.unpack(raw)
            elif raw != sent:
                result["copied_back_on_failure"] = raw.hex()
        del memory
        return result

    def _raw_ioctl(self, given: dict[str, Any]) -> dict[str, Any]:
        if filled := [key for key in given["args"] if not key.endswith("_")]:
            raise NotImplementedError(
                f"the argument of a raw number is zeroed; {', '.join(filled)} cannot be placed in it"
            )
        return self._control(given, number(given["nr"]), self._place(bytes(256), given.get("ptr_mode")))

    def _control(self, given: dict[str, Any], request: int, address: int) -> dict[str, Any]:
        """The call on the step's handle, or on a private descriptor of the control node."""
        private = "fd" not in given
        file = self.system.open(CONTROL, os.O_RDWR) if private else self.files[given["fd"]]
        try:
            return {"ret": self.system.ioctl(file, request, address)}
        except OSError as error:
            return {"ret": -1, "errno": errno_name(error.errno or 0)}
        finally:
            if private:
                self.system.close(file)

    def _place(self, data: bytes, mode: str | None) -> int:
        if mode == "null":
            return 0
        if mode == "bad":
            return self.system.bad_address
        if mode == "partial":
            return self.system.place_partial(data)
        if mode == "readonly":
            return self.system.place_readonly(data)
        return self.system.place(data)

    def _arguments(self, command: Command, args: dict[str, Any]) -> tuple[dict[str, int | bytes], list[int]]:
        """Field values for the struct; the second result names the buffers that they point to."""
        values: dict[str, int | bytes] = {}
        buffers: list[int] = []
        mapping = args.pop("map", None)
        if mapping is not None:
            base, length = self.mappings[mapping]
            start = base + number(args.pop("off", 0))
            if command.name == "UPDATE_RANGE":
                values["start"] = start
                values["end"] = start + number(args.pop("len", length))
            else:
                values["va"] = start
        for key, value in args.items():
            if key.endswith("_"):
                continue
            if key == "size":
                values |= {f"size{i}": number(entry) for i, entry in enumerate(value)}
            elif key in ("priv", "vendor_info"):
                values[key] = self._buffer(value)
                buffers.append(int(values[key]))
            elif key in ("deid", "seid"):
                values[key] = eid(value)
            elif key == "pid" and value == "self":
                values[key] = self.system.pid
            else:
                values[key] = number(value)
        return values, buffers

    def _buffer(self, value: str) -> int:
        if value == "null":
            return 0
        if value == "bad":
            return self.system.bad_address
        if value == "kernel":
            return self.system.kernel_address
        if not value:
            return self.system.place(bytes(1))
        return self.system.place(bytes.fromhex(value))

    # mappings

    def op_mmap(self, given: dict[str, Any]) -> dict[str, Any]:
        address = 0
        if "at" in given:
            name, offset = given["at"]
            address = self.mappings[name][0] + number(offset)
        flags = mmap_flags(given.get("flags", "SHARED"))
        length = number(given["length"])
        at = self.system.mmap(
            address,
            length,
            protection(given["prot"]),
            flags,
            -1 if given["fd"] is None else self.files[given["fd"]],
            number(given.get("offset", 0)),
        )
        self.mappings[given["map"]] = (at, length)
        return {"ret": 0, "out": {"aligned_2m": at % PMD == 0}}

    def op_munmap(self, given: dict[str, Any]) -> dict[str, Any]:
        self.system.munmap(*self.span(given))
        return {"ret": 0}

    def op_mmap_many(self, given: dict[str, Any]) -> dict[str, Any]:
        length, prot = number(given.get("length", PAGE)), protection(given.get("prot", "R"))
        flags, offset = mmap_flags(given.get("flags", "SHARED")), number(given.get("offset", 0))
        for _ in range(given["count"]):
            at = self.system.mmap(0, length, prot, flags, self.files[given["fd"]], offset)
            self.many.append((at, length))
        return {"ret": 0, "out": {"mapped": len(self.many)}}

    def op_munmap_many(self, given: dict[str, Any]) -> dict[str, Any]:
        while self.many:
            self.system.munmap(*self.many.pop())
        return {"ret": 0}

    def op_reserve(self, given: dict[str, Any]) -> dict[str, Any]:
        length = number(given["length"])
        self.mappings[given["map"]] = (self.system.reserve(length), length)
        return {"ret": 0}

    def op_hugemap(self, given: dict[str, Any]) -> dict[str, Any]:
        length = number(given["length"])
        at = self.system.hugemap(length, given.get("huge", True), given.get("node"), given.get("touch", True))
        if given.get("touch", True):
            self.system.store(at, 8, TOUCHED)
        self.mappings[given["map"]] = (at, length)
        return {"ret": 0}

    def op_maps(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"ret": 0, "out": {"vmas": self.system.maps(*self.span(given))}}

    def span(self, given: dict[str, Any]) -> tuple[int, int]:
        """`off` and `length` of a step, by default the whole mapping."""
        at, length = self.mappings[given["map"]]
        offset = number(given.get("off", 0))
        return at + offset, number(given.get("length", length - offset))

    # accesses

    def op_load(self, given: dict[str, Any]) -> dict[str, Any]:
        at = self.mappings[given["map"]][0] + number(given.get("off", 0))
        return {"value": self.system.load(at, given.get("width", 8))}

    def op_store(self, given: dict[str, Any]) -> dict[str, Any]:
        at = self.mappings[given["map"]][0] + number(given.get("off", 0))
        self.system.store(at, given.get("width", 8), number(given["value"]))
        return {"ret": 0}

    def op_call(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"value": self.system.call(self.mappings[given["map"]][0] + number(given.get("off", 0)))}

    def op_fill_check(self, given: dict[str, Any]) -> dict[str, Any]:
        at, length = self.span(given)
        return {"ret": 0, "out": {"all_equal": self.system.all_equal(at, length, given["byte"])}}
