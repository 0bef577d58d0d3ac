# SPDX-License-Identifier: Apache-2.0
"""Calls that only the kernel's own files and memory have: driver specification 9.2 and 9.4, through the preload library."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..driver import BIT63, NONE, PAGE, PMD, READ, Driver
from ..machine import Machine
from ..replay.port import Port

MREMAP_MAYMOVE, MREMAP_FIXED = 1, 2


@pytest.fixture
def foreign(preload_port: Port) -> Iterator[Machine]:
    machine = Machine(preload_port, "A")
    yield machine
    machine.close()


@pytest.fixture
def program(foreign: Machine) -> Driver:
    """A process that knows nothing of the emulator."""
    return foreign.process()


def test_9_2_read_and_write(program: Driver) -> None:
    """EINVAL, also for length 0; EBADF when the mode does not fit."""
    mem_id, fd = program.exported()
    for op in ("read", "pread", "readv", "write", "pwrite", "writev"):
        assert program.do(op, fd=fd).errno == "EINVAL", op
    assert program.do("read", fd=fd, n=0).errno == "EINVAL"
    read_only = program.open(mem_id, "O_RDONLY").handle
    assert program.do("write", fd=read_only).errno == "EBADF"
    write_only = program.open(mem_id, "O_WRONLY").handle
    assert program.do("read", fd=write_only).errno == "EBADF"


@pytest.mark.parametrize(
    ("op", "errno"),
    [
        ("lseek", "ESPIPE"),
        ("fsync", "EINVAL"),
        ("fdatasync", "EINVAL"),
        ("ftruncate", "EINVAL"),
        ("fallocate", "ENODEV"),
    ],
)
def test_9_2_other_file_calls(program: Driver, op: str, errno: str) -> None:
    _, fd = program.exported()
    assert program.do(op, fd=fd).errno == errno


def test_9_2_fallocate_on_a_read_only_descriptor(program: Driver) -> None:
    _, fd = program.exported(flags="O_RDONLY")
    assert program.do("fallocate", fd=fd).errno == "EBADF"


def test_9_2_poll_is_always_ready_and_epoll_refuses(program: Driver) -> None:
    _, fd = program.exported()
    assert program.do("poll", fd=fd).events == ["POLLIN", "POLLOUT"]
    assert program.do("epoll_add", fd=fd).errno == "EPERM"


def test_9_2_fstat(program: Driver) -> None:
    mem_id, fd = program.exported()
    status = program.do("fstat", fd=fd)
    assert (status.char_device, status.size, status.major_is_OBMM_SHMDEV) == (True, 0, True)
    assert status.rdev_minor == mem_id


def test_9_2_msync(program: Driver) -> None:
    """MS_SYNC on a mapping made through a writable descriptor is EINVAL."""
    mem_id, fd = program.exported()
    mapping = program.mapped(fd)
    assert program.do("msync", map=mapping, flags="SYNC").errno == "EINVAL"
    assert program.do("msync", map=mapping, flags="ASYNC").ok
    read_only = program.mapped(program.open(mem_id, "O_RDONLY").handle, PMD, "R")
    assert program.do("msync", map=read_only, flags="SYNC").ok


def test_9_1_fcntl_cannot_change_the_mode(program: Driver) -> None:
    _, fd = program.exported()
    assert program.do("setfl", fd=fd, flags="O_SYNC").ok
    mapping = program.mapped(fd)
    assert program.own(fd, mapping, READ).ok, "still a cacheable descriptor"


@pytest.mark.parametrize("advice", ["DONTNEED", "FREE", "COLD", "PAGEOUT", "POPULATE_READ", "DODUMP", "DOFORK"])
def test_9_4_madvise_that_is_refused(program: Driver, advice: str) -> None:
    _, fd = program.exported()
    mapping = program.mapped(fd)
    program.store(mapping, 0, 9)
    assert program.do("madvise", map=mapping, advice=advice).errno == "EINVAL"
    assert program.load(mapping).value == 9


def test_9_4_madvise_remove(program: Driver) -> None:
    _, fd = program.exported()
    assert program.do("madvise", map=program.mapped(fd), advice="REMOVE").errno == "ENODEV"


@pytest.mark.parametrize("advice", ["NORMAL", "WILLNEED", "HUGEPAGE", "NOHUGEPAGE", "DONTDUMP", "DONTFORK"])
def test_9_4_madvise_without_effect(program: Driver, advice: str) -> None:
    _, fd = program.exported()
    mapping = program.mapped(fd)
    program.store(mapping, 0, 9)
    assert program.do("madvise", map=mapping, advice=advice).ok
    assert program.load(mapping).value == 9


@pytest.mark.parametrize("prot", ["R", "RW", "NONE"])
def test_9_4_mprotect_is_refused(program: Driver, prot: str) -> None:
    _, fd = program.exported()
    mapping = program.mapped(fd)
    assert program.do("mprotect", map=mapping, prot=prot).errno == "EOPNOTSUPP"
    assert program.store(mapping, 0, 1).ok


def test_9_4_mprotect_beyond_what_the_mapping_may(program: Driver) -> None:
    _, fd = program.exported(flags="O_RDONLY")
    mapping = program.mapped(fd, PMD, "R")
    assert program.do("mprotect", map=mapping, prot="RW").errno == "EACCES"


def test_9_4_mremap_of_the_same_size(program: Driver) -> None:
    _, fd = program.exported()
    mapping = program.mapped(fd)
    reply = program.do("mremap", map=mapping, old=PMD, new=PMD, flags=0)
    assert reply.ok
    assert not reply.moved


def test_9_4_mremap_shrinks_like_munmap_of_the_tail(program: Driver) -> None:
    _, fd = program.exported()
    mapping = program.mapped(fd)
    reply = program.do("mremap", map=mapping, old=PMD, new=4 * PAGE, flags=0)
    assert reply.flush == (("WB_INVAL", 4 * PAGE, PMD - 4 * PAGE),)
    assert program.store(mapping, 0, 1).ok


@pytest.mark.parametrize("flags", [0, MREMAP_MAYMOVE])
def test_9_4_mremap_never_grows(program: Driver, flags: int) -> None:
    _, fd = program.exported(2 * PMD)
    mapping = program.mapped(fd, PMD)
    assert program.do("mremap", map=mapping, old=PMD, new=PMD + PAGE, flags=flags).errno == "EFAULT"
    assert program.store(mapping, 0, 1).ok


def test_9_4_mremap_never_moves(program: Driver) -> None:
    _, fd = program.exported()
    mapping = program.mapped(fd)
    area = program.reserve(2 * PMD)
    flags = MREMAP_MAYMOVE | MREMAP_FIXED
    assert program.do("mremap", map=mapping, old=PMD, new=PMD, flags=flags, to=[area, 0]).errno == "EOPNOTSUPP"
    assert program.own(fd, mapping, NONE).flush == (("WB_INVAL", 0, PMD),), "Q29: no side effects here"


def test_9_4_mremap_cuts_block_mappings_at_blocks(program: Driver) -> None:
    _, fd = program.exported(2 * PMD)
    mapping = program.mapped(fd, 2 * PMD, offset=BIT63)
    assert program.do("mremap", map=mapping, old=2 * PMD, new=PMD + PAGE, flags=0).errno == "EINVAL"
    assert program.do("mremap", map=mapping, old=2 * PMD, new=PMD, flags=0).ok


def test_9_4_anonymous_mapping_over_a_region_releases_it(program: Driver) -> None:
    mem_id, fd = program.exported()
    mapping = program.mapped(fd)
    reply = program.mmap(None, PMD, "RW", flags="PRIVATE|FIXED|ANON", at=(mapping, 0))  # type: ignore[arg-type]
    assert reply.flush == (("WB_INVAL", 0, PMD),)
    program.close(fd)
    assert program.unexport(mem_id).ok


def test_9_4_plain_read_and_write_with_the_mapping_as_buffer(program: Driver) -> None:
    _, fd = program.exported()
    mapping = program.mapped(fd)
    assert program.do("write_from_map", map=mapping).ok
    assert program.do("read_into_map", map=mapping).ok
    assert program.own(fd, mapping, READ).ok
    assert program.do("read_into_map", map=mapping).errno == "EFAULT"
    assert program.own(fd, mapping, NONE).ok
    assert program.do("write_from_map", map=mapping).errno == "EFAULT"


@pytest.mark.parametrize("path", ["/dev/obmm", "/dev/obmm_shmdev1"])
def test_2_nodes_are_character_devices_of_root(program: Driver, path: str) -> None:
    program.export()
    status = program.do("stat", path=path)
    assert (status.kind, status.mode, status.uid, status.gid, status.size) == ("char", "0o600", 0, 0, 0)


def test_2_minor_of_a_region_node_is_its_id(program: Driver) -> None:
    program.export()
    program.export()
    assert program.do("stat", path="/dev/obmm_shmdev2").rdev_minor == 2


def test_2_mode_is_back_when_the_id_is_reused(program: Driver) -> None:
    mem_id = program.export().mem_id
    assert program.do("chmod", path=f"/dev/obmm_shmdev{mem_id}", mode="0666").ok
    assert program.do("stat", path=f"/dev/obmm_shmdev{mem_id}").mode == "0o666"
    assert program.unexport(mem_id).ok
    assert program.export().mem_id == mem_id
    assert program.do("stat", path=f"/dev/obmm_shmdev{mem_id}").mode == "0o600"


def test_11_1_attributes_are_pages_of_root(program: Driver) -> None:
    base = f"/sys/devices/obmm/obmm_shmdev{program.export().mem_id}"
    for name, size in (("size", 4096), ("priv", 512), ("export_info/uba", 4096)):
        status = program.do("stat", path=f"{base}/{name}")
        assert (status.mode, status.uid, status.size, status.kind) == ("0o400", 0, size, "file"), name
