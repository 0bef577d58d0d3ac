# SPDX-License-Identifier: Apache-2.0
"""Paths under the preload library lead where the kernel leads them: both are asked about the same random paths.

The reference is the kernel itself, in a changed root with a plain file at /dev/obmm and the same folders and links.
"""

from __future__ import annotations

import json
import os
import random
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from obmm import emulator
from obmm.emulator.program import environment

PATHS = 3000
LINKS = ("/dev/obmm", "/dev", "/dev/obmm/", "/dev/../dev/obmm", "/dev/obmm/x", "a", "..", ".", "/", "a/b", "nothing")
LINKS += ("a/file", "l0", "l1/obmm", "l1/..", "l12", "l5/l0", "../l0")
COMPONENTS = ("a", "b", "..", ".", "", "file", "dev", "obmm", "nothing", *(f"l{i}" for i in range(len(LINKS))))


def build(tree: Path) -> None:
    """Folders, a file, and links in each folder: good ones, loops, and links into nothing."""
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "file").touch()
    for folder in (tree, tree / "a", tree / "a" / "b"):
        for index, target in enumerate(LINKS):
            (folder / f"l{index}").symlink_to(target)


def paths(tree: Path, seed: int) -> Iterator[tuple[str, bool]]:
    chance = random.Random(seed)
    for _ in range(PATHS):
        path = "/".join(chance.choice(COMPONENTS) for _ in range(chance.randint(1, 7)))
        if chance.random() < 0.5:
            path = f"{tree}/{path}"
        yield path + "/" * chance.randint(0, 1), chance.random() < 0.7


def where(path: str, follow: bool) -> str | int:
    """What is there, or why nothing is."""
    try:
        found = os.stat(path) if follow else os.lstat(path)
    except OSError as error:
        return error.errno or 0
    return "obmm" if path_is_node(found) else stat.filemode(found.st_mode)[0]


def path_is_node(found: os.stat_result) -> bool:
    node = os.stat("/dev/obmm")
    return (found.st_dev, found.st_ino) == (node.st_dev, node.st_ino)


def answers(tree: Path, seed: int) -> list[str | int]:
    os.chdir(tree)
    return [where(path, follow) for path, follow in paths(tree, seed)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask the kernel in a changed root")
@pytest.mark.parametrize("seed", [1, 2])
def test_a_path_leads_where_the_kernel_leads_it(tmp_path: Path, seed: int) -> None:
    tree, jail = tmp_path / "tree", tmp_path / "jail"
    build(tree)
    build(jail / tree.relative_to("/"))
    (jail / "dev").mkdir()
    (jail / "dev" / "obmm").touch()
    reference = _in_child(jail, tree, seed)
    with emulator.start(nodes=1) as fabric:
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(tree), str(seed)],
            env=environment(fabric.device()),
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert (done.returncode, done.stderr) == (0, "")
    asked = list(paths(tree, seed))
    assert reference.count("obmm") > PATHS // 100
    assert [
        (path, follow, expected, found)
        for (path, follow), expected, found in zip(asked, reference, json.loads(done.stdout), strict=True)
        if expected != found
    ] == []


def _in_child(jail: Path, tree: Path, seed: int) -> list[str | int]:
    """`answers` of the kernel alone, with `jail` as the root."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reader)
            os.chroot(jail)
            with os.fdopen(writer, "w") as out:
                json.dump(answers(tree, seed), out)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as told:
        result: list[str | int] = json.load(told)
    os.waitpid(child, 0)
    return result


if __name__ == "__main__":
    json.dump(answers(Path(sys.argv[1]), int(sys.argv[2])), sys.stdout)
