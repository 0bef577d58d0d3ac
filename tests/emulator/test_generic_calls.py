# SPDX-License-Identifier: Apache-2.0
"""What the kernel around the driver answers for any device without operations, tried by a program that knows no emulator.

The answers are those of Linux 6.x for a character device whose driver has ioctl and little else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from obmm import emulator
from obmm.emulator import Fabric
from obmm.emulator.program import environment

PROGRAM = r"""
import ctypes, errno, fcntl, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open("/dev/obmm", os.O_RDWR)
here = os.open("/tmp", os.O_RDONLY)
NODE = b"/dev/obmm"
buffer = ctypes.create_string_buffer(4096)
WALK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int))
seen = []


def call(function, *arguments):
    ctypes.set_errno(0)
    result = function(*arguments)
    return errno.errorcode[ctypes.get_errno()] if result == -1 else result


def link():
    ctypes.memset(buffer, 0, len(buffer))
    length = libc.readlink(b"/proc/self/fd/%d" % fd, buffer, 4000)
    return [length, buffer.raw[:64].rstrip(b"\0").decode()]


def short_link():
    ctypes.memset(buffer, 0x2A, len(buffer))
    length = libc.readlink(b"/proc/self/fd/%d" % fd, buffer, 4)
    return [length, buffer.raw[:8].decode()]


def walk(path):
    seen.clear()
    each = WALK(lambda path, status, kind, where: seen.append([path.decode(), kind, where[0], where[1]]) or 7)
    return [call(libc.nftw, path, each, 8, 1), *seen]


def open_how(dirfd, path, resolve):
    how = (ctypes.c_uint64 * 3)(os.O_RDWR, 0, resolve)
    return call(libc.syscall, 437, dirfd, path, how, 24)


def kernels_read():
    context, places = ctypes.c_ulong(0), ctypes.c_void_p * 1
    request = (ctypes.c_uint64 * 8)(0, 0, fd << 32, ctypes.addressof(buffer), 16, 0, 0, 0)
    libc.syscall(SETUP, 4, ctypes.byref(context))
    return call(libc.syscall, SUBMIT, context, 1, places(ctypes.addressof(request)))


def given_away():
    libc.fchownat(fd, b"", 7, 8, EMPTY)
    return [os.stat(NODE).st_uid, os.stat(NODE).st_gid]


SETUP, SUBMIT, TIMES = (206, 209, 280) if os.uname().machine == "x86_64" else (0, 2, 88)
EMPTY, BENEATH, IN_ROOT = 0x1000, 8, 16
place = os.open("/dev/obmm", os.O_PATH)
root = os.open("/", os.O_PATH)
answers = {
    "clone to": call(libc.ioctl, fd, ctypes.c_ulong(0x40049409), here),
    "dedupe": call(libc.ioctl, fd, ctypes.c_ulong(0xC0189436), buffer),
    "dedupe, no memory": call(libc.ioctl, fd, ctypes.c_ulong(0xC0189436), None),
    "lease": call(libc.fcntl, fd, 1024, 0),
    "direct": call(libc.fcntl, fd, 4, os.O_RDWR | os.O_DIRECT),
    "nonblock": call(libc.fcntl, fd, 4, os.O_RDWR | os.O_NONBLOCK),
    "link": link(),
    "short link": short_link(),
    "walk": walk(NODE),
    "walk of a folder": walk(b"/sys/devices/obmm"),
    "fchmodat2": call(libc.syscall, 452, -100, NODE, 0o640, 0),
    "mode": oct(os.stat(NODE).st_mode),
    "setxattrat": call(libc.syscall, 463, -100, NODE, 0, b"user.a", buffer, 16),
    "file_getattr": call(libc.syscall, 468, -100, NODE, buffer, 24, 0),
    "open_tree_attr": call(libc.syscall, 467, -100, NODE, 0, buffer, 32),
    "file without a name": call(libc.open, b"/sys/devices/obmm", os.O_TMPFILE | os.O_RDWR, 0o600),
    "open beneath": open_how(root, NODE, BENEATH),
    "open in a root": os.fstat(open_how(root, NODE, IN_ROOT)).st_rdev == os.stat(NODE).st_rdev,
    "rmdir of a folder": call(libc.rmdir, b"/sys/devices/obmm"),
    "rmdir of a device": call(libc.rmdir, NODE),
    "unlink of a folder": call(libc.unlink, b"/sys/devices/obmm"),
    "unlink of a file": call(libc.unlink, b"/sys/devices/obmm/uevent"),
    "mode of a place": call(libc.fchmod, place, 0o600),
    "owner of a place": call(libc.fchown, place, 0, 0),
    "times of a place": call(libc.futimens, place, None),
    "mode by the descriptor": [call(libc.syscall, 452, place, b"", 0o620, EMPTY), oct(os.stat(NODE).st_mode)],
    "owner by the descriptor": given_away(),
    "times by the descriptor": call(libc.syscall, TIMES, fd, None, None, 0),
    "kernel's asynchronous read": kernels_read(),
}
print(json.dumps(answers))
"""

ANSWERS = {
    "clone to": "EXDEV",
    "dedupe": "EINVAL",
    "dedupe, no memory": "EFAULT",
    "lease": "EINVAL",
    "direct": "EINVAL",
    "nonblock": 0,
    "link": [9, "/dev/obmm"],
    "short link": [4, "/dev****"],
    "walk": [7, ["/dev/obmm", 0, 5, 0]],
    "walk of a folder": [7, ["/sys/devices/obmm", 1, 13, 0]],
    "fchmodat2": 0,
    "mode": "0o20640",
    "setxattrat": "ENOTSUP",
    "file_getattr": "ENOTSUP",
    "open_tree_attr": "ENOTSUP",
    "file without a name": "ENOTSUP",
    "open beneath": "EXDEV",
    "open in a root": True,
    "rmdir of a folder": "EPERM",
    "rmdir of a device": "ENOTDIR",
    "unlink of a folder": "EISDIR",
    "unlink of a file": "EPERM",
    "mode of a place": "EBADF",
    "owner of a place": "EBADF",
    "times of a place": "EBADF",
    "mode by the descriptor": [0, "0o20620"],
    "owner by the descriptor": [7, 8],
    "times by the descriptor": 0,
    "kernel's asynchronous read": "EINVAL",
}


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    with emulator.start(nodes=1) as fabric:
        yield fabric


@pytest.fixture(scope="module")
def answers(fabric: Fabric) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment(fabric.device(), dict(os.environ)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", ANSWERS)
def test_a_call_on_the_node(name: str, answers: dict[str, object]) -> None:
    assert answers[name] == ANSWERS[name]
