# SPDX-License-Identifier: Apache-2.0
"""Compiles the C programs of tests/foreign, which know nothing of an emulator."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = ROOT / "tests" / "foreign"


def compile_program(name: str, folder: Path, *flags: str) -> Path:
    """The program of tests/foreign/`name`.c, with the vendor-style client library beside it."""
    program = folder / name
    sources = [FOREIGN / f"{name}.c", FOREIGN / "mem.c"]
    command = ["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-I", ROOT / "native"]
    done = subprocess.run(
        [*command, "-o", program, *sources, *flags, "-pthread"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return program
