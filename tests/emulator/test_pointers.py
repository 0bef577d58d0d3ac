# SPDX-License-Identifier: Apache-2.0
"""A pointer that leads nowhere is the kernel's to judge: a program gets the same answers with the preload library as without.

What the library looks at before the kernel (paths, ranges, addresses of sockets, environments) it must not trip over.
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
import ctypes, errno, json, mmap, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
pages = libc.mmap
pages.restype = ctypes.c_void_p
base = pages(None, ctypes.c_size_t(8192), 3, 0x22, -1, ctypes.c_long(0))
libc.mprotect(ctypes.c_void_p(base + 4096), ctypes.c_size_t(4096), 0)
EDGE = base + 4096 - 8
ctypes.memmove(EDGE, b"/no/such", 8)  # a text that nothing ends
POINTERS = {"none": 0, "low": 8, "edge": EDGE, "high": (1 << 64) - 4096}
NOW = -100
FILE = os.open("/dev/null", os.O_RDWR)
PIPE = os.pipe()[1]
SOCKET = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).fileno()
room = ctypes.create_string_buffer(8192)
HOW = ctypes.create_string_buffer(24)
ARGV = (ctypes.c_char_p * 2)(b"x", None)
UN = 110

def V(value):
    return ctypes.c_void_p(value)

CALLS = {
    "open": lambda p: libc.open(p, 0), "openat": lambda p: libc.openat(NOW, p, 0), "creat": lambda p: libc.creat(p, 0),
    "openat2": lambda p: libc.syscall(437, NOW, p, HOW, 24),
    "openat2, how": lambda p: libc.syscall(437, NOW, b"/dev/null", p, 24),
    "stat": lambda p: libc.stat(p, room), "lstat": lambda p: libc.lstat(p, room),
    "fstatat": lambda p: libc.fstatat(NOW, p, room, 0), "statx": lambda p: libc.statx(NOW, p, 0, 0, room),
    "access": lambda p: libc.access(p, 0), "euidaccess": lambda p: libc.euidaccess(p, 0),
    "faccessat": lambda p: libc.faccessat(NOW, p, 0, 0),
    "chmod": lambda p: libc.chmod(p, 0o600), "fchmodat": lambda p: libc.fchmodat(NOW, p, 0o600, 0),
    "chown": lambda p: libc.chown(p, -1, -1), "lchown": lambda p: libc.lchown(p, -1, -1),
    "fchownat": lambda p: libc.fchownat(NOW, p, -1, -1, 0x1000),
    "link": lambda p: libc.link(p, p), "symlink": lambda p: libc.symlink(b"x", p), "unlink": lambda p: libc.unlink(p),
    "unlinkat": lambda p: libc.unlinkat(NOW, p, 0), "rmdir": lambda p: libc.rmdir(p), "remove": lambda p: libc.remove(p),
    "rename": lambda p: libc.rename(p, p), "renameat2": lambda p: libc.renameat2(NOW, p, NOW, p, 0),
    "mkdir": lambda p: libc.mkdir(p, 0o700), "mknod": lambda p: libc.mknod(p, 0, 0), "mkfifo": lambda p: libc.mkfifo(p, 0),
    "truncate": lambda p: libc.truncate(p, 0), "readlink": lambda p: libc.readlink(p, room, 9),
    "readlinkat": lambda p: libc.readlinkat(NOW, p, room, 9), "chdir": lambda p: libc.chdir(p),
    "chroot": lambda p: libc.chroot(p), "utime": lambda p: libc.utime(p, None), "utimes": lambda p: libc.utimes(p, None),
    "lutimes": lambda p: libc.lutimes(p, None), "utimensat": lambda p: libc.utimensat(NOW, p, None, 0x1000),
    "utimensat by number": lambda p: libc.syscall(280, FILE, p, None, 0),
    "statfs": lambda p: libc.statfs(p, room), "getxattr": lambda p: libc.getxattr(p, b"user.x", room, 9),
    "setxattr": lambda p: libc.setxattr(p, b"user.x", room, 1, 0), "listxattr": lambda p: libc.listxattr(p, room, 9),
    "removexattr": lambda p: libc.removexattr(p, b"user.x"), "inotify": lambda p: libc.inotify_add_watch(NOTES, p, 1),
    "swapon": lambda p: libc.swapon(p, 0), "swapoff": lambda p: libc.swapoff(p),
    "mount from": lambda p: libc.mount(p, b"/there-is-none", b"tmpfs", 0, None),
    "mount at": lambda p: libc.mount(b"x", p, b"tmpfs", 0, None), "umount2": lambda p: libc.umount2(p, 0),
    "handle": lambda p: libc.name_to_handle_at(NOW, p, room, room, 0), "open_tree": lambda p: libc.open_tree(NOW, p, 0),
    "fanotify": lambda p: libc.fanotify_mark(-1, 0x80, 0, NOW, p),
    "execve": lambda p: libc.execve(p, ARGV, None), "execveat": lambda p: libc.syscall(322, NOW, p, ARGV, None, 0x1000),
    "execve, argv": lambda p: libc.execve(b"/there-is-none", p, None),
    "execve, env": lambda p: libc.execve(b"/there-is-none", ARGV, p),
    "posix_spawn": lambda p: libc.posix_spawn(room, p, None, None, ARGV, None),
    "bind": lambda p: libc.bind(SOCKET, p, UN), "connect": lambda p: libc.connect(SOCKET, p, UN) if p.value else -1,
    "sendto": lambda p: libc.sendto(SOCKET, b"x", 1, 0, p, UN) if p.value else -1,
    "sendmsg": lambda p: libc.sendmsg(SOCKET, p, 0), "sendmmsg": lambda p: libc.sendmmsg(SOCKET, p, 2, 0),
    "readv": lambda p: libc.readv(FILE, p, 1), "writev": lambda p: libc.writev(FILE, p, 1),
    "vmsplice": lambda p: libc.vmsplice(PIPE, p, 1, 0),
    "process_vm_readv": lambda p: libc.process_vm_readv(os.getpid(), p, 1, p, 1, 0),
    "process_madvise": lambda p: libc.syscall(440, -1, p, 1, 0, 0), "futex_waitv": lambda p: libc.syscall(449, p, 1, 0, None, 0),
    "io_submit": lambda p: libc.syscall(209, CONTEXT, 1, p),
}
if os.uname().machine != "x86_64":
    for name in ("utimensat by number", "execveat", "io_submit"):
        del CALLS[name]
NOTES = libc.inotify_init()
context = ctypes.c_ulong(0)
libc.syscall(206, 4, ctypes.byref(context))
CONTEXT = context
answers = {}
for name, made in CALLS.items():
    for which, value in POINTERS.items():
        print(name, which, file=sys.stderr, flush=True)  # the last one, when it ends the program
        ctypes.set_errno(0)
        result = made(V(value))
        answers[f"{name}: {which}"] = errno.errorcode.get(ctypes.get_errno()) if result < 0 else result
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    with emulator.start(nodes=1) as fabric:
        yield fabric


def answers(env: dict[str, str]) -> dict[str, object]:
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"signal {-done.returncode} in: {done.stderr.splitlines()[-1]}"
    return dict(json.loads(done.stdout))


def test_a_pointer_to_nowhere_is_answered_by_the_kernel(fabric: Fabric) -> None:
    plain = answers(dict(os.environ))
    assert "EFAULT" in plain.values()
    assert answers(environment(fabric.device(), dict(os.environ))) == plain
