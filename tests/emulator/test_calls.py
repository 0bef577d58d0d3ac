# SPDX-License-Identifier: Apache-2.0
"""System calls through the client and the server: descriptors, pointers, mappings."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import mmap
import os
import select
import socket
import stat
from collections.abc import Callable

import pytest

from obmm import emulator
from obmm._native import ffi, lib
from obmm.driver.abi import Request
from obmm.emulator import Fabric

from .children import Child
from .node import MIB, VENDOR, Node, memory

PAGE = 4096


def test_store_of_the_exporter_is_loaded_by_the_importer(a: Node, b: Node) -> None:
    exported = a.export(4 * MIB)
    local = a.map(a.open_region(exported.mem_id), 4 * MIB)
    memory(local, 4 * MIB)[3 * MIB : 3 * MIB + 5] = b"hello"
    imported = b.import_(b.program("a", exported, 4 * MIB), 4 * MIB, "a")
    remote = b.map(b.open_region(imported), 2 * MIB, mmap.PROT_READ, offset=2 * MIB)
    assert memory(remote, 2 * MIB)[MIB : MIB + 5] == b"hello"


def test_a_close_before_unexport_is_seen_by_unexport(a: Node) -> None:
    for _ in range(200):
        mem_id = a.export().mem_id
        os.close(a.open_region(mem_id))
        a.unexport(mem_id)


def test_unexport_is_busy_while_a_duplicate_is_open(a: Node) -> None:
    mem_id = a.export().mem_id
    fd = a.open_region(mem_id)
    duplicate = os.dup(fd)
    os.close(fd)
    with pytest.raises(OSError, match="busy") as refused:
        a.unexport(mem_id)
    assert refused.value.errno == errno.EBUSY
    os.close(duplicate)
    a.unexport(mem_id)


def test_a_descriptor_passed_to_another_process_keeps_the_region_busy(a: Node) -> None:
    mem_id = a.export().mem_id
    fd = a.open_region(mem_id)
    ours, theirs = socket.socketpair()
    socket.send_fds(ours, [b"x"], [fd])
    os.close(fd)
    with pytest.raises(OSError, match="busy"):
        a.unexport(mem_id)
    _, [received], _, _ = socket.recv_fds(theirs, 1, 1)
    assert a.map(received, 2 * MIB)
    ours.close(), theirs.close()


@pytest.mark.parametrize("flags", [0, os.O_CLOEXEC])
def test_open_honours_cloexec(a: Node, flags: int) -> None:
    fd = a.sys_open("/dev/obmm", os.O_RDWR | flags)
    assert os.get_inheritable(fd) == (flags == 0)
    os.close(fd)


def test_poll_finds_a_file_always_ready(a: Node) -> None:
    poll = select.poll()
    poll.register(a.control, select.POLLIN | select.POLLOUT)
    assert poll.poll(0) == [(a.control, select.POLLIN | select.POLLOUT)]


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND, os.O_RDWR | os.O_SYNC])
def test_by_no_system_call_does_a_byte_move_through_a_descriptor(a: Node, flags: int) -> None:
    """The bare descriptor, past the preload library: the kernel itself answers as for a device without the call."""
    fd = a.sys_open("/dev/obmm", flags)
    readable, writable = flags & os.O_ACCMODE != os.O_WRONLY, flags & os.O_ACCMODE != os.O_RDONLY
    other = os.memfd_create("other")
    os.write(other, b"bytes")
    reader, writer = os.pipe()
    os.write(writer, b"bytes")

    def refusal(call: Callable[[], object]) -> int:
        with pytest.raises(OSError) as refused:
            call()
        return refused.value.errno or 0

    for call in (
        lambda: os.read(fd, 1),
        lambda: os.readv(fd, [bytearray(1)]),
        lambda: os.sendfile(other, fd, None, 1),
        lambda: os.splice(fd, writer, 1),
    ):
        assert refusal(call) == (errno.EINVAL if readable else errno.EBADF)
    for call in (lambda: os.write(fd, b"x"), lambda: os.writev(fd, [b"x"])):
        assert refusal(call) == (errno.EINVAL if writable else errno.EBADF)
    assert refusal(lambda: os.splice(reader, fd, 1)) in (errno.EINVAL, errno.EBADF)
    assert refusal(lambda: os.sendfile(fd, other, 0, 1)) in (errno.EINVAL, errno.EBADF, errno.EPERM)
    assert refusal(lambda: os.pwrite(fd, b"x", 0)) in (errno.EPERM, errno.EBADF)
    if readable:
        assert os.pread(fd, 1, 0) == b""
    assert not stat.S_ISSOCK(os.fstat(fd).st_mode)
    poller = select.poll()
    poller.register(fd, select.POLLIN | select.POLLOUT)
    assert poller.poll(0) == [(fd, select.POLLIN | select.POLLOUT)]
    with select.epoll() as epoll:
        assert refusal(lambda: epoll.register(fd)) == errno.EPERM
    for one in (fd, other, reader, writer):
        os.close(one)
    assert a.export().mem_id == 1


def test_D2_unknown_request_wins_over_D3_bad_pointer(a: Node) -> None:
    with pytest.raises(OSError) as refused:
        a.ioctl(a.control, 0xC0E078FF, 8)
    assert refused.value.errno == errno.ENOTTY


@pytest.mark.parametrize("pointer", [0, 8, 1 << 63])
def test_D3_unreadable_argument_is_EFAULT(a: Node, pointer: int) -> None:
    with pytest.raises(OSError) as refused:
        a.ioctl(a.control, Request.EXPORT, pointer)
    assert refused.value.errno == errno.EFAULT


def test_D3_half_readable_argument_is_EFAULT(a: Node) -> None:
    area = mmap.mmap(-1, 2 * PAGE)
    start = int(ffi.cast("uintptr_t", ffi.from_buffer(area)))
    assert lib.obmm_emulator_mprotect(a.sys, ffi.cast("void *", start + PAGE), PAGE, 0) == 0
    with pytest.raises(OSError) as refused:
        a.ioctl(a.control, Request.EXPORT, start + PAGE - 100)
    assert refused.value.errno == errno.EFAULT


def test_D5_unwritable_argument_is_EFAULT_and_the_region_stays(a: Node) -> None:
    area = mmap.mmap(-1, PAGE)
    start = int(ffi.cast("uintptr_t", ffi.from_buffer(area)))
    command = ffi.cast("struct obmm_cmd_export *", start)
    vendor = ffi.new("uint8_t[]", VENDOR)
    command.length, command.size[0], command.flags = 1, 2 * MIB, 1
    command.vendor_len, command.vendor_info = len(VENDOR), vendor
    lib.obmm_emulator_mprotect(a.sys, ffi.cast("void *", start), PAGE, mmap.PROT_READ)
    with pytest.raises(OSError) as refused:
        a.ioctl(a.control, Request.EXPORT, start)
    assert refused.value.errno == errno.EFAULT
    lib.obmm_emulator_mprotect(a.sys, ffi.cast("void *", start), PAGE, mmap.PROT_READ | mmap.PROT_WRITE)
    assert command.mem_id == 0
    a.unexport(1)


def test_X8_unreadable_priv_is_EFAULT_and_nothing_is_left(a: Node) -> None:
    command = ffi.new("struct obmm_cmd_export *")
    command.length, command.size[0], command.flags = 1, 2 * MIB, 1
    command.priv_len, command.priv = 16, ffi.cast("void *", 8)
    with pytest.raises(OSError) as refused:
        a.ioctl(a.control, Request.EXPORT, command)
    assert refused.value.errno == errno.EFAULT
    assert a.export().mem_id == 1


def test_a_refused_mmap_leaves_no_reservation(a: Node) -> None:
    mem_id = a.export().mem_id
    fd = a.open_region(mem_id)

    def areas() -> int:
        with open("/proc/self/maps") as maps:
            return sum(1 for _ in maps)

    with pytest.raises(OSError):
        a.map(fd, 4 * MIB)
    before = areas()
    for _ in range(50):
        with pytest.raises(OSError):
            a.map(fd, 4 * MIB)
    # the interpreter's own areas come and go; a leak would leave one for each call
    assert areas() < before + 25


def test_M8_block_mapping_is_aligned(a: Node) -> None:
    fd = a.open_region(a.export(8 * MIB).mem_id)
    for _ in range(3):
        assert a.map(fd, 2 * MIB, block=1) % (2 * MIB) == 0


def test_partial_munmap_leaves_the_rest(a: Node) -> None:
    fd = a.open_region(a.export().mem_id)
    start = a.map(fd, 2 * MIB)
    memory(start, 1)[0:1] = b"x"
    a.unmap(start + PAGE, PAGE)
    assert memory(start, 1)[0:1] == b"x"
    with pytest.raises(OSError) as refused:
        a.own(fd, start, 3 * PAGE, 0x5)
    assert refused.value.errno == errno.EFAULT


def test_a_mapping_survives_the_last_user_of_the_table(fabric: Fabric) -> None:
    node = Node(fabric, "a")
    mem_id = node.export().mem_id
    fd = node.open_region(mem_id)
    start = node.map(fd, 2 * MIB)
    os.close(fd)
    node.close()
    memory(start, 2 * MIB)[:5] = b"alive"
    again = Node(fabric, "a")
    with pytest.raises(OSError, match="busy"):
        again.unexport(mem_id)
    again.unmap(start, 2 * MIB)
    again.unexport(mem_id)
    again.close()


def test_two_tables_of_one_process_are_one_process(fabric: Fabric) -> None:
    one, other = Node(fabric, "a"), Node(fabric, "a")
    fd = one.open_region(one.export().mem_id)
    start = one.map(fd, 2 * MIB)
    other.own(fd, start, 2 * MIB, 0x5)
    assert len(fabric.status()["nodes"]["a"]["processes"]) == 1
    one.close()
    other.close()


def test_a_fabric_that_is_gone_is_ESHUTDOWN() -> None:
    fabric = emulator.start()
    node = Node(fabric, "a")
    fabric.close()
    for _ in range(2):
        with pytest.raises(OSError) as refused:
            node.query(1)
        assert refused.value.errno == errno.ESHUTDOWN


def test_O10_no_room_for_a_split_leaves_rights_and_counters_as_they_were(fabric: Fabric, a: Node) -> None:
    """The kernel's own limit of mappings per process: mprotect fails in the client, the server takes it back."""
    mem_id = a.export().mem_id
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] * 5]

    def body() -> None:
        mine = Node(fabric, "a")
        fd = mine.open_region(mem_id)
        start = mine.map(fd, 2 * MIB)
        protections = itertools.cycle((mmap.PROT_READ, 0))
        while libc.mmap(0, PAGE, next(protections), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0) != 2**64 - 1:
            pass
        with pytest.raises(OSError, match="memory"):
            mine.own(fd, start + 8 * PAGE, 8 * PAGE, 0xD)
        memory(start, 2 * MIB)[8 * PAGE : 8 * PAGE + 1] = b"w"
        fabric.check()

    with Child(body) as child:
        region = fabric.status()["nodes"]["a"]["regions"][0]
        assert child.finish() == 0
        assert region["mappings"] >= 1
    fabric.check()


def test_an_mmap_without_a_free_descriptor_is_taken_back(fabric: Fabric, a: Node) -> None:
    mem_id = a.export().mem_id

    def body() -> None:
        mine = Node(fabric, "a")
        fd = mine.open_region(mem_id)
        copies = []
        with contextlib.suppress(OSError):
            while True:
                copies.append(os.dup(fd))
        with pytest.raises(OSError, match="Too many open files"):
            mine.map(fd, 2 * MIB)
        with pytest.raises(OSError, match="Too many open files"):
            mine.open_region(mem_id)
        for copy in copies:
            os.close(copy)
        mine.unmap(mine.map(fd, 2 * MIB), 2 * MIB)

    with Child(body) as child:
        assert fabric.status()["nodes"]["a"]["regions"][0]["mappings"] == 0
        assert child.finish() == 0
