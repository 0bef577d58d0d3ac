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
    "walk of a folder": ["ENOTSUP"],
    "fchmodat2": 0,
    "mode": "0o20640",
    "setxattrat": "ENOTSUP",
    "file_getattr": "ENOTSUP",
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
