# SPDX-License-Identifier: Apache-2.0
"""nftw and ftw go through the node's folders as libc goes through the same folders on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from obmm.emulator import Fabric
from obmm.emulator.program import environment

from .one_node import fabric

__all__ = ["fabric"]

PHYS, MOUNT, CHDIR, DEPTH, ACTIONRETVAL = 1, 2, 4, 8, 16
SKIP_SUBTREE, SKIP_SIBLINGS = 2, 3
PROGRAM = r"""
import ctypes, errno, json, sys
top, flags, level, kind, answer = sys.argv[1], *map(int, sys.argv[2:])
libc = ctypes.CDLL(None, use_errno=True)
told = []


def each(path, status, what, where):
    told.append([path.decode().removeprefix(top), what, where[0] - len(top), where[1]])
    return answer if (where[1], what) == (level, kind) else 0


def plainly(path, status, what):
    told.append([path.decode().removeprefix(top), what])
    return 0


walk = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int))
old = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int)
result = libc.ftw(top.encode(), old(plainly), 9) if flags < 0 else libc.nftw(top.encode(), walk(each), 9, flags)
print(json.dumps([result, errno.errorcode.get(ctypes.get_errno()) if result < 0 else None, told]))
"""
FOLDER = "/sys/devices/obmm"


def walk(fabric: Fabric, top: str, *how: int, node: bool) -> list[object]:
    env = environment(fabric.device(), dict(os.environ)) if node else None
    command = [sys.executable, "-c", PROGRAM, top, *map(str, how)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("flags", "level", "kind", "answer"),
    [
        pytest.param(-1, 0, 9, 0, id="ftw"),
        pytest.param(0, 0, 9, 0, id="through links"),
        pytest.param(PHYS, 0, 9, 0, id="links as links"),
        pytest.param(PHYS | DEPTH, 0, 9, 0, id="contents first"),
        pytest.param(PHYS | MOUNT, 0, 9, 0, id="one file system"),
        pytest.param(PHYS, 1, 1, 7, id="ends where it is told to"),
        pytest.param(PHYS | ACTIONRETVAL, 1, 1, SKIP_SUBTREE, id="leaves a folder out"),
        pytest.param(PHYS | ACTIONRETVAL, 2, 0, SKIP_SIBLINGS, id="leaves the rest of a folder out"),
        pytest.param(PHYS | ACTIONRETVAL, 1, 1, SKIP_SIBLINGS, id="leaves a folder and what follows out"),
    ],
)
def test_a_walk_is_libcs(fabric: Fabric, flags: int, level: int, kind: int, answer: int) -> None:
    on_disk = str(fabric.root("a") / FOLDER[1:])
    found = walk(fabric, FOLDER, flags, level, kind, answer, node=True)
    assert found == walk(fabric, on_disk, flags, level, kind, answer, node=False)
    assert ["/uevent", 0] in [entry[:2] for entry in found[2]] or answer  # type: ignore[attr-defined]


def test_a_walk_through_a_folder_of_both_machines_comes_to_the_nodes_device(fabric: Fabric) -> None:
    result, _, told = walk(fabric, "/dev", PHYS | MOUNT, 0, 9, 0, node=True)
    assert (result, [entry for entry in told if "obmm" in entry[0][:6]]) == (0, [["/obmm", 0, 1, 1]])  # type: ignore[attr-defined]


def test_a_walk_that_would_change_the_folder_is_refused(fabric: Fabric) -> None:
    assert walk(fabric, FOLDER, PHYS | CHDIR, 0, 9, 0, node=True) == [-1, "ENOTSUP", []]
