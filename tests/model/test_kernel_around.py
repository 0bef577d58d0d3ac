# SPDX-License-Identifier: Apache-2.0
"""What the kernel around the driver answers: file operations, mprotect, mremap, madvise, msync (9.2, 9.4)."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
from pathlib import Path

import pytest

from obmm.emulator.model import KernelError, Unmap, structs
from obmm.emulator.model.user_memory import Extent
from obmm.emulator.model.vfs import FileOperation

from .harness import PAGE, PMD, VENDOR, Client, N, R, W, fabric, refusal


@pytest.fixture
def client():
    made = fabric(1)
    yield Client(made.hosts["a"])
    made.check()
    made.close()


@pytest.fixture
def mapped(client):
    return client.map(client.export(2 * PMD).mem_id, W)


@pytest.mark.parametrize(
    ("operation", "read_only", "write_only"),
    [
        (FileOperation.READ, errno.EINVAL, errno.EBADF),
        (FileOperation.WRITE, errno.EBADF, errno.EINVAL),
        (FileOperation.LSEEK, errno.ESPIPE, errno.ESPIPE),
        (FileOperation.FSYNC, errno.EINVAL, errno.EINVAL),
        (FileOperation.FALLOCATE, errno.EBADF, errno.ENODEV),
        (FileOperation.FTRUNCATE, errno.EINVAL, errno.EINVAL),
    ],
)
def test_9_2_file_operations_are_refused(client, operation, read_only, write_only):
    mem_id = client.export().mem_id
    for flags, expected in ((os.O_RDONLY, read_only), (os.O_WRONLY, write_only)):
        file = client.open(mem_id, flags)
        assert refusal(lambda file=file: client.process.file_operation(file, operation)).errno == expected


def test_D2_requests_that_the_vfs_answers_itself_gate_or_not(client):
    file, memory = client.control, client.memory
    client.host.fabric.inject("a", "gate-closed")

    def call(request: int, data: bytes | None = bytes(4)) -> int:
        argument = 0 if data is None else memory.put(data)
        try:
            return client.process.ioctl(file, request, argument, memory).value
        except KernelError as error:
            return error.errno

    assert [call(request) for request in (0x5450, 0x5451, 0x5421, 0x5452, 0x2)] == [0] * 5
    assert call(0x5452, b"\1\0\0\0") == errno.ENOTTY
    assert call(0x5421, None) == call(0x2, None) == errno.EFAULT
    assert (call(0x5460), call(0xC020660B)) == (errno.ENOTTY, errno.EOPNOTSUPP)
    assert call(0x5401) == errno.EOPNOTSUPP, "the terminal's number reaches the driver, whose gate is closed"


def test_9_4_mprotect_is_eacces_for_rights_that_ownership_took_and_eopnotsupp_for_others(client, mapped):
    def answer(prot: int) -> int:
        return refusal(lambda: client.process.mprotect(mapped.address, PAGE, prot)).errno

    assert [answer(prot) for prot in (N, R, W)] == [errno.EOPNOTSUPP] * 3
    mapped.update(R)
    assert [answer(prot) for prot in (R, W)] == [errno.EOPNOTSUPP, errno.EACCES]
    mapped.update(N)
    assert [answer(prot) for prot in (N, R, mmap.PROT_EXEC)] == [errno.EOPNOTSUPP, errno.EACCES, errno.EOPNOTSUPP]


def test_9_4_mremap_same_size_shrink_grow_move(client, mapped):
    at, call = mapped.address, client.process.mremap
    assert call(at, PMD, PMD).actions == ()
    assert call(at, PMD, PMD // 2).actions == (Unmap(at + PMD // 2, PMD // 2),)
    assert refusal(lambda: call(at, PMD // 2, PMD, 1)).errno == errno.EFAULT
    assert refusal(lambda: call(at, 0, PMD, 1)).errno == errno.EFAULT
    assert refusal(lambda: call(at, PMD, 0)).errno == errno.EINVAL
    client.host.take_journal()
    assert refusal(lambda: call(at, PAGE, PAGE, 3, at + PMD)).errno == errno.EOPNOTSUPP
    assert not client.host.take_journal(), "Q29: the refused move has no side effect"


def test_9_4_mremap_of_a_pmd_region_shrinks_by_blocks_only(client):
    file = client.open(client.export(2 * PMD).mem_id)
    mapped = client.map_file(file, W, 2 * PMD, structs.HUGETLB_PMD - (1 << 64))
    assert refusal(lambda: client.process.mremap(mapped.address, 2 * PMD, PAGE)).errno == errno.EINVAL
    assert client.process.mremap(mapped.address, 2 * PMD, PMD).actions == (Unmap(mapped.address + PMD, PMD),)


def test_9_4_madvise(client, mapped):
    def answer(advice: int) -> int:
        return refusal(lambda: client.process.madvise(mapped.address, PAGE, advice)).errno

    assert {answer(advice) for advice in (4, 8, 11, 17, 20, 21, 22, 23, 99)} == {errno.EINVAL}
    assert answer(9) == errno.ENODEV
    for advice in (0, 3, 10, 12, 14, 15, 16):
        assert client.process.madvise(mapped.address, PAGE, advice).value == 0


def test_9_2_msync(client, mapped):
    assert refusal(lambda: client.process.msync(mapped.address, PAGE, 4)).errno == errno.EINVAL
    assert client.process.msync(mapped.address, PAGE, 1).value == 0
    readable = client.map(1, R, flags=os.O_RDONLY)
    assert client.process.msync(readable.address, PAGE, 4).value == 0
    assert refusal(lambda: client.process.msync(0x1000, PAGE, 1)).errno == errno.ENOMEM


def test_M_fixed_mapping_that_the_driver_refuses_has_unmapped_the_range(client, mapped):
    file = client.open(1)
    error = refusal(lambda: client.process.mmap(file, mapped.address, PMD, W, 0x11, 2 * PMD))
    assert (error.rule, error.errno) == ("M11", errno.EINVAL)
    assert error.actions == (Unmap(mapped.address, PMD),)
    assert not client.process.vmas.overlapping(mapped.address, mapped.address + PMD)


def test_M2_map_count_limits_mmap_and_splits(client, mapped):
    client.host.max_map_count = 1
    assert refusal(lambda: mapped.update(R, start=PAGE, end=2 * PAGE)).errno == errno.ENOMEM
    assert refusal(lambda: mapped.unmap(PAGE, 2 * PAGE)).errno == errno.ENOMEM
    client.host.max_map_count = 0
    assert refusal(lambda: client.map(1)).errno == errno.ENOMEM


def test_M4_noexec_dev(client):
    mem_id = client.export().mem_id
    client.host.dev_noexec = True
    assert refusal(lambda: client.map(mem_id, R | mmap.PROT_EXEC)).errno == errno.EPERM
    mapped = client.map(mem_id, R)
    error = refusal(lambda: client.process.mprotect(mapped.address, PAGE, mmap.PROT_EXEC))
    assert error.errno == errno.EACCES


def test_2_node_mode_and_owner_decide_who_opens(client):
    mem_id = client.export().mem_id
    user = client.host.process(7, uid=1000)
    path = f"/dev/obmm_shmdev{mem_id}"
    assert refusal(lambda: user.open(path, os.O_RDONLY)).errno == errno.EACCES
    client.host.chmod(path, 0o644)
    user.open(path, os.O_RDONLY).release()
    assert refusal(lambda: user.open(path, os.O_RDWR)).errno == errno.EACCES
    client.host.chown(path, 1000, 1000)
    user.open(path, os.O_RDWR).release()
    client.unexport(mem_id)
    client.export()
    assert refusal(lambda: user.open(path, os.O_RDONLY)).errno == errno.EACCES


def export_pid(client: Client, va: int, length: int = PMD, **fields: int) -> int:
    raw = structs.EXPORT_PID.store(bytes(104), va=va, length=length, **fields)
    return structs.EXPORT_PID.unpack(client.ioctl(client.control, structs.CMD_EXPORT_PID, raw)).mem_id


def test_6_2_export_pid_knows_real_pages_of_a_real_process(client):
    """Without a declaration the kernel's account of the process counts: ordinary memory is not hugetlb memory."""
    client.process = client.host.process(os.getpid())
    area = mmap.mmap(-1, 2 * PMD)
    address = _address(area)
    assert refusal(lambda: export_pid(client, address)).errno == errno.EOPNOTSUPP
    assert refusal(lambda: export_pid(client, 0)).errno == errno.EFAULT


def test_6_2_pinned_memory_is_counted_and_survives_the_process(client):
    other = Client(client.host)
    base = 0x7000_0000_0000
    other.process.memory.declare(Extent(base, base + 4 * PMD, hugetlb=True))
    mem_id = export_pid(other, base, 2 * PMD)
    again = export_pid(client, base, PMD, pid=other.process.pid)
    assert client.host.pinned_bytes(other.process.pid) == 3 * PMD
    assert client.query(mem_id) == client.query(again)
    other.exit()
    assert client.host.pinned_bytes(other.process.pid) == 0
    client.unexport(mem_id)
    client.unexport(again)


def processes_without_memory():
    """A zombie, which its parent has not waited for, and a kernel thread where this machine shows one."""
    dead = os.fork()
    if not dead:
        os._exit(0)
    os.waitid(os.P_PID, dead, os.WEXITED | os.WNOWAIT)
    try:
        yield dead
    finally:
        os.waitpid(dead, 0)
    if Path("/proc/2/comm").exists() and Path("/proc/2/comm").read_text() == "kthreadd\n":
        yield 2


def test_6_2_partly_unmapped_or_read_only_pages(client):
    base = 0x7000_0000_0000
    client.process.memory.declare(Extent(base, base + 4 * PMD, hugetlb=True))
    client.process.memory.declare(Extent(base, base + PMD, hugetlb=True, writable=False))
    client.process.munmap(base + 3 * PMD, PMD)
    assert refusal(lambda: export_pid(client, base)).errno == errno.EFAULT
    assert refusal(lambda: export_pid(client, base + PMD, 4 * PMD)).errno == errno.ENOMEM
    assert export_pid(client, base + PMD, 2 * PMD) == 1
    assert refusal(lambda: export_pid(client, base + PMD, PMD, pid=4242)).errno == errno.ESRCH
    for other in processes_without_memory():
        assert refusal(lambda other=other: export_pid(client, base + PMD, PMD, pid=other)).errno == errno.ESRCH


def test_6_2_importer_and_process_share_exported_pages():
    made = fabric()
    a, b = Client(made.hosts["a"]), Client(made.hosts["b"])
    area = a.area(2 * PMD)
    a.process.memory.declare(Extent(area.address, area.address + area.length, hugetlb=True))
    area.store(8, 0x1122)
    vendor = {"vendor_len": len(VENDOR), "vendor_info": a.memory.put(VENDOR)}
    mem_id = export_pid(a, area.address, 2 * PMD, **vendor)
    region = a.host.regions[mem_id]
    window = b.host.program(0x40A, region.tokenid, region.uba, 2 * PMD)
    theirs = b.map(b.import_(window, 2 * PMD).mem_id, W, 2 * PMD)
    assert theirs.load(8) == 0x1122
    theirs.store(PMD, 5)
    assert area.load(PMD) == 5
    again = export_pid(a, area.address, 2 * PMD, **vendor)
    assert a.host.regions[again].memory is region.memory
    a.unexport(mem_id)
    a.unexport(again)
    assert area.load(8) == 0x1122, "content stays on UNEXPORT"
    assert b.map(1, R).signal() == signal.SIGBUS
    made.check()
    made.close()


def _address(area: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(area))
