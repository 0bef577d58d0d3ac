# SPDX-License-Identifier: Apache-2.0
"""Every function of this machine's libc has its place in the preload library's table (native/preload/functions.toml)."""

from __future__ import annotations

import re
import struct
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from obmm.emulator.program import preload_library

from .foreign import ROOT

TABLE: dict[str, Any] = tomllib.loads((ROOT / "native" / "preload" / "functions.toml").read_text(encoding="utf-8"))
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SHT_DYNSYM = 11
_FUNCTIONS = (2, 10)
"""STT_FUNC and STT_GNU_IFUNC."""


def functions(library: Path) -> set[str]:
    """The functions that a shared library defines for others, from its dynamic symbols."""
    data = library.read_bytes()
    assert data.startswith(b"\x7fELF\x02\x01"), library
    (offset,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [_SECTION.unpack_from(data, offset + i * size) for i in range(count)]
    symbols = next(section for section in sections if section[1] == _SHT_DYNSYM)
    names = sections[symbols[6]][4]
    found = set()
    for name, info, _, section, _, _ in _SYMBOL.iter_unpack(data[symbols[4] : symbols[4] + symbols[5]]):
        if section and info & 15 in _FUNCTIONS:
            end = data.index(b"\0", names + name)
            found.add(data[names + name : end].decode())
    return found


def libc() -> Path:
    found = re.search(r" (/\S*/libc\.so\.6)$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    if found is None:
        pytest.skip("this Python runs on another libc than glibc: the preload library is not for it")
    return Path(found[1])


def listed() -> dict[str, list[str]]:
    return {
        "answered": TABLE["answered"].split(),
        "refused": TABLE["refused"].split(),
        "passed": [name for group in TABLE["passed"] for name in group["functions"].split()],
        "neither": TABLE["neither"]["functions"].split(),
    }


def test_every_function_of_libc_is_in_the_table() -> None:
    known = {name for names in listed().values() for name in names}
    unknown = sorted(functions(libc()) - known)
    assert unknown == [], "new in this libc: decide for each what becomes of it, and write it into functions.toml"


def test_no_function_is_in_the_table_twice() -> None:
    counts = Counter(name for names in listed().values() for name in names)
    assert [name for name, number in counts.items() if number > 1] == []


def test_the_library_replaces_what_the_table_says_and_nothing_else() -> None:
    table = listed()
    assert sorted(functions(preload_library())) == sorted(table["answered"] + table["refused"])


def test_what_is_passed_on_has_its_reason() -> None:
    assert all(len(group["reason"]) > 20 and group["functions"].split() for group in TABLE["passed"])
