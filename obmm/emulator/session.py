# SPDX-License-Identifier: Apache-2.0
"""One client process at the server: its requests, one at a time, on a thread of its own."""

from __future__ import annotations

import array
import contextlib
import errno
import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import protocol
from .model.calls import Action, Answer, KernelError, Unmap
from .model.host import REGION_NODE
from .model.structs import CMD_EXPORT, CMD_UNEXPORT, SHMDEV_UPDATE_RANGE
from .protocol import Call, FileOperation, ProtocolError
from .user_memory import CallMemory, NeedMemory

if TYPE_CHECKING:
    from .model.files import OpenFile
    from .model.host import Host
    from .model.process import Process
    from .server import Server

log = logging.getLogger("obmm.emulator")

PAGE = 4096
_BUFFER = protocol.REQUEST.size + protocol.PAYLOAD_MAX
_IOC_SIZE_SHIFT, _IOC_SIZE_MASK = 16, 0x3FFF
_MAP_FIXED = 0x10
_MOVE_POOLS = frozenset({CMD_EXPORT, CMD_UNEXPORT})
_NOT_KEPT = os.O_CREAT | os.O_EXCL | os.O_NOCTTY | os.O_TRUNC | os.O_CLOEXEC
"""Flags of open that F_GETFL does not show."""

Reply = list[tuple[bytes, list[int]]]
"""Frames of an answer, each with the descriptors that travel with it."""

_DONE: Reply = [(protocol.done(0), [])]
_FOREIGN: Reply = [(protocol.foreign(), [])]


class Session:
    """The requests of one connection.

    The connection is the process: its end of file is the process's exit, and until then its mappings
    live. The thread blocks only on its own client, so a client that stops stalls no other.
    """

    def __init__(self, server: Server, host: Host, connection: socket.socket, pid: int, uid: int) -> None:
        self.server = server
        self.host = host
        self.pid = pid
        self.uid = uid
        self.calls = 0
        self.busy = False
        """A call is inside the model, perhaps waiting there."""
        self.done = threading.Event()
        """The process's exit is over."""
        self._socket = connection
        self._process: Process | None = None
        self._windows: set[int] = set()
        """Decoder entries that this process had programmed, by address."""
        self._undo: Callable[[], Answer] | None = None
        """Takes the last call back, should the client be unable to do its actions."""
        self._buffer = bytearray(_BUFFER)
        self._filled = 0
        self._handlers: dict[int, Callable[[int, tuple[int, ...], bytes | None], Reply]] = {
            Call.OPEN: self._open,
            Call.IOCTL: self._ioctl,
            Call.MMAP: self._mmap,
            Call.MUNMAP: self._munmap,
            Call.MPROTECT: self._mprotect,
            Call.MREMAP: self._mremap,
            Call.MADVISE: self._madvise,
            Call.MSYNC: self._msync,
            Call.FILE: self._file,
            Call.PROGRAM: self._program,
            Call.UNPROGRAM: self._unprogram,
            Call.UNDO: self._take_back,
            Call.LEAVE: self._leave,
            Call.CHMOD: self._chmod,
            Call.CHOWN: self._chown,
            Call.OPENS: self._opens,
        }

    @property
    def process(self) -> Process:
        """The model's process, which appears with its first call."""
        if self._process is None:
            self._process = self.host.process(self.pid, self.uid)
        return self._process

    def run(self) -> None:
        """Serve until the client is gone."""
        try:
            while (request := self._receive()) is not None:
                self._answer(*request)
        except ProtocolError as error:
            log.warning("node %s: process %d dropped: %s", self.host.name, self.pid, error)
        except OSError as error:
            log.debug("node %s: process %d: %s", self.host.name, self.pid, error)
        except Exception:
            self.server.internal_errors += 1
            log.exception("node %s: process %d dropped", self.host.name, self.pid)
        finally:
            try:
                if self._process is not None:
                    self._process.exit()
                self.host.unprogram_unused(self._windows)
            finally:
                self.done.set()
                self.server.forget(self, self._socket)

    def close(self) -> None:
        """End the connection from this side; the thread then ends by itself."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _answer(self, call: int, file: int, arguments: tuple[int, ...], payload: bytes | None) -> None:
        self.server.settle()
        handler = self._handlers.get(call)
        if handler is None:
            raise ProtocolError(f"unknown call {call}")
        self.calls += 1
        if call != Call.UNDO:
            self._undo = None
        self.busy = True
        refusal: KernelError | None = None
        try:
            frames = handler(file, arguments, payload)
        except KernelError as error:
            refusal = error
            log.debug("node %s: process %d: %s: %s", self.host.name, self.pid, Call(call).name, error)
            frames = protocol.with_actions(-1, error.actions, error=error.errno)
            if error.errno == errno.ENOMEM:
                self.server.out_of_memory()
        except ConnectionError:
            raise
        except OSError as error:
            number = self.server.out_of_resources(error)
            refusal = KernelError(number, "server", f"the emulator itself: {error.strerror or error}")
            frames = [(protocol.done(-1, number), [])]
        except (ProtocolError, RecursionError):
            raise
        except Exception:
            self.server.internal_errors += 1
            log.exception("node %s: %s failed inside the emulator", self.host.name, Call(call).name)
            refusal = KernelError(errno.EIO, "server", "an error of the emulator's own: see its log")
            frames = [(protocol.done(-1, errno.EIO), [])]
        finally:
            self.busy = False
        self._note(call, file, arguments, payload, frames, refusal)
        try:
            self._send(frames)
        except OSError as error:
            raise ConnectionResetError(error.errno, f"the answer cannot be sent: {error}") from None

    def _note(
        self,
        call: int,
        file: int,
        arguments: tuple[int, ...],
        payload: bytes | None,
        frames: Reply,
        refusal: KernelError | None,
    ) -> None:
        """For the trace: calls that did not reach this server are left out."""
        if frames is _FOREIGN:
            return
        served = self._served(file) if file else None
        value = protocol.value(frames[-1][0]) if frames and refusal is None else 0
        path = served.path if served else "-"
        self.server.trace.add(self.host.name, self.pid, call, path, arguments, payload, value, refusal)

    # --- the stream -------------------------------------------------------------------------------

    def _receive(self) -> tuple[int, int, tuple[int, ...], bytes | None] | None:
        """The next request, or None at the end of the stream. The payload is None if it could not be read."""
        header = protocol.REQUEST.size
        if not self._fill(header):
            return None
        size, call, flags, file, *arguments = protocol.REQUEST.unpack_from(self._buffer)
        if size > protocol.PAYLOAD_MAX:
            raise ProtocolError(f"a payload of {size} bytes; the limit is {protocol.PAYLOAD_MAX}")
        if not self._fill(header + size):
            return None
        payload = None if flags & protocol.REQUEST_FAULT else bytes(self._buffer[header : header + size])
        rest = self._filled - header - size
        if rest:
            self._buffer[:rest] = self._buffer[header + size : self._filled]
        self._filled = rest
        return call, file, tuple(arguments), payload

    def _fill(self, size: int) -> bool:
        """Have at least `size` bytes in the buffer; False at the end of the stream."""
        while self._filled < size:
            got = self._socket.recv_into(memoryview(self._buffer)[self._filled :])
            if not got:
                return False
            self._filled += got
        return True

    def _send(self, frames: Reply) -> None:
        for data, descriptors in frames:
            if not descriptors:
                self._socket.sendall(data)
                continue
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            sent = self._socket.sendmsg([data], rights)
            if sent < len(data):
                self._socket.sendall(data[sent:])

    def _fetch(self, memory: CallMemory, address: int, size: int) -> None:
        """Get `size` bytes at `address` from the client."""
        data = bytearray()
        while len(data) < size:
            part = min(size - len(data), protocol.PAYLOAD_MAX)
            self._socket.sendall(protocol.need(address + len(data), part))
            request = self._receive()
            if request is None:
                raise ConnectionResetError(errno.ECONNRESET, "the client died in the middle of a call")
            call, _, _, payload = request
            if call != Call.MEMORY or (payload is not None and len(payload) != part):
                raise ProtocolError(f"call {call} where memory was asked for")
            if payload is None:
                memory.add(address, size, None)
                return
            data += payload
        memory.add(address, size, bytes(data))

    # --- the calls --------------------------------------------------------------------------------

    def _served(self, file: int) -> OpenFile | None:
        return self.server.files.get(self.host, file)

    def _open(self, _file: int, arguments: tuple[int, ...], payload: bytes | None) -> Reply:
        flags, uid = arguments[:2]
        self.process.uid = self.server.kernel_uid(uid)
        opened = self.process.open(_path(payload), flags)
        self.server.files.serve(self.host, opened, self._deliver)
        return []

    def _deliver(self, descriptor: int) -> None:
        """Send the answer of an open. Never waits: a client that asked has read all earlier answers."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        frame = protocol.ANSWER.pack(protocol.Reply.DONE, 0, 0, 0, 1, 0, 0, 0)
        try:
            sent = self._socket.sendmsg([frame], rights, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        if sent != len(frame):
            raise ProtocolError("a client that asks without reading answers")

    def _ioctl(self, file: int, arguments: tuple[int, ...], payload: bytes | None) -> Reply:
        served = self._served(file)
        if served is None:
            return _FOREIGN
        request, argument = arguments[:2]
        memory = CallMemory()
        if payload is None:
            memory.add(argument, request >> _IOC_SIZE_SHIFT & _IOC_SIZE_MASK, None)
        elif payload:
            memory.add(argument, len(payload), payload)
        while True:
            try:
                answer = self.process.ioctl(served, request, argument, memory)
                break
            except NeedMemory as need:
                self._fetch(memory, need.address, need.size)
            finally:
                if request in _MOVE_POOLS:
                    self.server.pools_moved()
        if request == SHMDEV_UPDATE_RANGE:
            self._undo = self.process.undo_update
        if not answer.actions:
            return [(protocol.done(answer.value, 0, memory.copy_back_address, memory.copy_back), [])]
        return protocol.with_actions(answer.value, answer.actions, memory.copy_back_address, memory.copy_back)

    def _mmap(self, file: int, arguments: tuple[int, ...], _payload: bytes | None) -> Reply:
        served = self._served(file)
        if served is None:
            return _FOREIGN
        address, length, prot, flags, offset, no_room = arguments
        if no_room:
            if no_room not in errno.errorcode:
                raise ProtocolError(f"{no_room} is not an errno")
            # M1 comes before the search for room, everything else after it
            if not length or offset % PAGE:
                raise KernelError(errno.EINVAL, "M1", f"length {length:#x}, offset {offset:#x}")
            raise KernelError(no_room, "M2", "no room in the caller's address space")
        if flags & _MAP_FIXED and address % PAGE:
            raise KernelError(errno.EINVAL, "M1", f"address {address:#x} is not page aligned")
        process = self.process
        if not flags & _MAP_FIXED and process.vmas.overlapping(address, address + length):
            # the caller's kernel gave this address away: what was mapped there went without a word
            process.munmap(address, length)
        answer = process.mmap(served, address, length, prot, flags, offset)
        self._undo = lambda: Answer(0, tuple(_without_unmap(process.munmap(address, length))))
        # MAP_FIXED replaces what it covers in one step: unmapping first would offer the addresses to other threads
        return protocol.with_actions(answer.value, _without_unmap(answer))

    def _munmap(self, _file: int, arguments: tuple[int, ...], _payload: bytes | None) -> Reply:
        address, length = arguments[:2]
        # the client unmaps the whole range once: twice would hit what another thread mapped there in between
        answer = self.process.munmap(address, length)
        return protocol.with_actions(answer.value, _without_unmap(answer))

    def _mprotect(self, _file: int, arguments: tuple[int, ...], _payload: bytes | None) -> Reply:
        address, length, prot = arguments[:3]
        return self._on_range(address, length, lambda process: process.mprotect(address, length, prot))

    def _mremap(self, _file: int, arguments: tuple[int, ...], _payload: bytes | None) -> Reply:
        address, old = arguments[:2]
        return self._on_range(address, max(old, 1), lambda process: process.mremap(*arguments[:5]))

    def _madvise(self, _file: int, arguments: tuple[int, ...], _payload: bytes | None) -> Reply:
        address, length, advice = arguments[:3]
        return self._on_range(address, length, lambda process: process.madvise(address, length, advice))

    def _msync(self, _file: int, arguments: tuple[int, ...], _payload: bytes | None) -> Reply:
        address, length, flags = arguments[:3]
        return self._on_range(address, length, lambda process: process.msync(address, length, flags))

    def _on_range(self, address: int, length: int, call: Callable[[Process], Answer | None]) -> Reply:
        """A call about a range: the kernel's own when no region of this process is mapped there."""
        process = self.process
        answer = call(process) if process.vmas.overlapping(address, address + length) else None
        return _FOREIGN if answer is None else self._frames(answer)

    def _file(self, file: int, arguments: tuple[int, ...], _payload: bytes | None) -> Reply:
        served = self._served(file)
        if served is None:
            return _FOREIGN
        operation = arguments[0]
        if operation == FileOperation.DEVICE:
            return [(protocol.done(int(served.path[len(REGION_NODE) :] or 0)), [])]
        if operation == FileOperation.FLAGS:
            return [(protocol.done(served.flags & ~_NOT_KEPT), [])]
        return self._frames(self.process.file_operation(served, *arguments[:4]))

    @staticmethod
    def _frames(answer: Answer) -> Reply:
        return protocol.with_actions(answer.value, answer.actions)

    def _program(self, _file: int, _arguments: tuple[int, ...], payload: bytes | None) -> Reply:
        if payload is None:
            raise KernelError(errno.EFAULT, "22.3", "the window request cannot be read")
        window = protocol.WindowRequest.unpack(payload)
        address = self.server.program(self.host, window)
        self._windows.add(address)
        return [(protocol.done(address), [])]

    def _unprogram(self, _file: int, arguments: tuple[int, ...], _payload: bytes | None) -> Reply:
        self.host.unprogram(arguments[0])
        self._windows.discard(arguments[0])
        return _DONE

    def _opens(self, _file: int, arguments: tuple[int, ...], _payload: bytes | None) -> Reply:
        return [(protocol.done(self.host.opens(arguments[0])), [])]

    def _chmod(self, _file: int, arguments: tuple[int, ...], payload: bytes | None) -> Reply:
        mode, uid = arguments[:2]
        self._must_be_root(uid)
        self.host.chmod(_path(payload), mode & 0o7777)
        return _DONE

    def _chown(self, _file: int, arguments: tuple[int, ...], payload: bytes | None) -> Reply:
        owner, group, uid = arguments[:3]
        self._must_be_root(uid)
        self.host.chown(_path(payload), owner, group)
        return _DONE

    def _must_be_root(self, uid: int) -> None:
        if self.server.kernel_uid(uid):
            raise KernelError(errno.EPERM, "VFS", f"uid {uid} may not change a device of root")

    def _take_back(self, _file: int, _arguments: tuple[int, ...], _payload: bytes | None) -> Reply:
        return _DONE if self._undo is None else self._frames(self._undo())

    def _leave(self, _file: int, _arguments: tuple[int, ...], _payload: bytes | None) -> Reply:
        if self._process is not None and len(self._process.vmas):
            raise KernelError(errno.EBUSY, "9.5", "the process still has mappings")
        return _DONE


def _without_unmap(answer: Answer) -> list[Action]:
    return [one for one in answer.actions if not isinstance(one, Unmap)]


def _path(payload: bytes | None) -> str:
    if payload is None:
        raise KernelError(errno.EFAULT, "VFS", "the path cannot be read")
    return payload.decode("utf-8", "surrogateescape")
