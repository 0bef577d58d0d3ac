# SPDX-License-Identifier: Apache-2.0
"""Every file of a node's sysfs is one that the specification has a line for, with that format and mode; none is missing.

The lines are read from the tables of docs/spec/driver.md (2, 11.1, 11.2, 12, 13.1), and each file that the recording read or
listed must have one too.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from obmm import emulator
from obmm.emulator import Fabric

from ..conformance.replay.transcript import Transcript
from .foreign import ROOT
from .node import MIB, Node

SPECIFICATION = (ROOT / "docs" / "spec" / "driver.md").read_text(encoding="utf-8")
REGION = r"/sys/devices/obmm/obmm_shmdev\d+"

#: What a column of the specification calls a format, as what a reader finds.
HEX, DECIMAL, FLAG = rb"0x[0-9a-f]+\n", rb"-?\d+\n", rb"[01]\n"
FORMATS = {
    "`0x<hex>`": HEX,
    "`0x<hi>:0x<lo>`": rb"0x[0-9a-f]+:0x[0-9a-f]+\n",
    "`export` or `import`": rb"(export|import)\n",
    "decimal": DECIMAL,
    "`0`/`1`": FLAG,
    "binary, always 512 bytes, zero padded": rb"[\0-\xff]{512}",
    "`0x..,0x..,…` entries for node 0 … highest used node": rb"0x[0-9a-f]+(,0x[0-9a-f]+)*\n",
    "first line hex mask, then `name+`/`name-` lines": rb"0x[0-9a-f]+\n(\w+[+-]\n)*",
    "string": rb"[^\n]+\n",
    "int ms": DECIMAL,
    "bool": rb"[YN]\n",
    "hex": HEX,
    "hex, `0x` + at least 4 digits": rb"0x[0-9a-f]{4,}\n",
    "hex, `0x` + at least 2 digits": rb"0x[0-9a-f]{2,}\n",
}


@dataclass(frozen=True)
class Line:
    """A file that the specification knows: a pattern of its path, of its content, and its mode."""

    path: str
    content: bytes
    mode: int
    exists_for: str = "all"


def table(anchor: str) -> list[list[str]]:
    """The cells of the first table behind a heading's anchor, without its head."""
    text = SPECIFICATION[SPECIFICATION.index(f'<a id="{anchor}">') :]
    rows = re.search(r"(?m)^\|.*\n(?:\|.*\n)+", text)
    assert rows
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[0].splitlines()[2:]]


def lines() -> Iterator[Line]:
    for name, kinds, text, *_ in table("11.1"):
        if name.startswith("dev, uevent"):
            assert text == "standard (world-readable)"
            yield Line(f"{REGION}/dev", rb"\d+:\d+\n", 0o444)
            yield Line(f"{REGION}/uevent", rb"", 0o644)  # "a device with neither bus nor class": no properties (2)
            yield Line(f"{REGION}/power/control", rb"(auto|on)\n", 0o644)
            continue
        folder, slash, names = name.rpartition("/")
        for one in names.split(", "):
            yield Line(f"{REGION}/{folder}{slash}{one}", FORMATS[text], 0o400, kinds)
    for name, mode, text, *_ in table("11.2"):
        path = re.sub(r"^…", "/sys/kernel/obmm_mempool/obmm-<nid>", name).replace("<nid>", r"\d+")
        if path.startswith("/sys/") and "<" not in path:
            yield Line(path, FORMATS[text], int(mode, 8), "firmware" if "ub_feature" in path else "all")
    for name, kind, *_ in table("12"):
        text, mode = kind.split(", ")
        yield Line(f"/sys/module/obmm/parameters/{name}", FORMATS[text], int(mode, 8))
    for name, text, *_ in table("13.1"):
        for folder in (r"/sys/devices/ub_bus_controller\d+", "/sys/bus/ub/devices"):
            if text:
                yield Line(f"{folder}/[0-9a-f]{{5}}/{name}", FORMATS[text], 0o444)
    # the control device is of the class misc (2): what the kernel gives each of its devices
    yield Line("/sys/devices/virtual/misc/obmm/dev", rb"10:\d+\n", 0o444)
    yield Line("/sys/devices/virtual/misc/obmm/uevent", rb"MAJOR=10\nMINOR=\d+\nDEVNAME=obmm\n", 0o644)
    yield Line("/sys/devices/virtual/misc/obmm/power/control", rb"(auto|on)\n", 0o644)
    # the folder of the regions lists `module`, `power`, `uevent` in the recording
    yield Line("/sys/devices/obmm/uevent", rb"", 0o644)
    yield Line("/sys/devices/obmm/power/control", rb"(auto|on)\n", 0o644)


LINES = tuple(lines())
LINKS = {
    r"/sys/dev/char/\d+:\d+",
    "/sys/class/misc/obmm",
    "/sys/devices/obmm/module",
    "/sys/devices/virtual/misc/obmm/subsystem",
}


def found(path: str) -> list[Line]:
    return [line for line in LINES if re.fullmatch(line.path, path)]


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    """A node with an export of its own and an import of the other's."""
    with emulator.start(nodes=2) as fabric:
        a, b = Node(fabric, "a"), Node(fabric, "b")
        a.export()
        exported = b.export(2 * MIB)
        imported = a.import_(a.program("b", exported, 2 * MIB), 2 * MIB, "b")
        assert imported == 2
        yield fabric
        a.close()
        b.close()


@pytest.fixture(scope="module")
def files(fabric: Fabric) -> dict[str, Path]:
    root = fabric.root("a")
    return {
        "/" + str(path.relative_to(root)): path
        for path in sorted((root / "sys").rglob("*"))
        if path.is_symlink() or not path.is_dir()
    }


def test_every_file_has_one_line_of_the_specification(files: dict[str, Path]) -> None:
    links = {path for path in files if files[path].is_symlink()}
    assert [path for path in files.keys() - links if len(found(path)) != 1] == []
    assert [path for path in links if not any(re.fullmatch(link, path) for link in LINKS)] == []


def test_every_link_leads_to_a_folder_of_the_tree(files: dict[str, Path]) -> None:
    for path, file in files.items():
        if file.is_symlink():
            # the tree is a copy: what its links say is what a reader sees, relative as in the kernel
            assert not os.path.isabs(os.readlink(file)), path
            assert file.resolve().is_dir(), path


def test_every_content_and_mode_is_the_lines(files: dict[str, Path]) -> None:
    wrong = [
        (path, file.read_bytes(), oct(mode))
        for path, file in files.items()
        if not file.is_symlink()
        for line in found(path)
        if (mode := stat.S_IMODE(file.stat().st_mode)) != line.mode or not re.fullmatch(line.content, file.read_bytes())
    ]
    assert wrong == []


@pytest.mark.parametrize(("region", "kind"), [("1", "export"), ("2", "import")])
def test_no_attribute_of_the_specification_is_missing(files: dict[str, Path], region: str, kind: str) -> None:
    """Those of a region by its kind, those of remote NUMA memory on no other, and all of the node itself."""
    for line in LINES:
        path = line.path.replace(REGION, f"/sys/devices/obmm/obmm_shmdev{region}")
        there = any(re.fullmatch(path, name) for name in files)
        if line.path.startswith(REGION):
            assert there is (line.exists_for in ("all", kind)), path
        elif line.exists_for == "all":
            assert there, path


def test_what_the_recording_read_has_a_line_too() -> None:
    paths = {
        (step["op"], step["in"]["path"])
        for case in Transcript.load()
        for step in case.steps
        if step["in"].get("path", "").startswith("/sys/") and "errno" not in step
    }
    read = {path for op, path in paths if op in ("readfile", "stat")}
    assert len(read) > 25
    assert [path for path in sorted(read) if len(found(path)) != 1] == []
