# SPDX-License-Identifier: Apache-2.0
"""What native code reads while the interpreter lock is away belongs to one call (docs/safety.md)."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import obmm
from obmm import emulator

PACKAGE = Path(obmm.__file__).parent

# glibc gives freed memory back filled with 0x5a at once: a late read of it gives nonsense
POISONED = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0", "MALLOC_PERTURB_": "165"}

LONG_AND_SHORT = """
import sys, threading
import numpy as np
import obmm

a = obmm.open(sys.argv[1])
with a.export_region(4 << 20) as region, region.map("rw") as mapping:
    local = np.arange(2048 * 64, dtype="<u8").view("u1").reshape(-1, 64)
    mapping.write(0, local)
    rows = mapping.rows(64)
    long = np.arange(4_000_000) % len(local)
    out = np.empty((len(long), 64), "u1")
    over = threading.Event()
    wrong = []

    def gather_long():
        rows.gather(long, out)
        over.set()

    def gather_short(seed):
        ids = np.random.default_rng(seed).integers(0, len(local), 3)
        while not over.is_set():
            if not np.array_equal(rows.gather(ids), local[ids]):
                wrong.append(seed)

    threads = [threading.Thread(target=gather_long)]
    threads += [threading.Thread(target=gather_short, args=(seed,)) for seed in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and np.array_equal(out[: 1 << 20], local[long[: 1 << 20]])
a.close()
"""


def test_a_row_view_is_gathered_from_by_eight_threads_of_different_length():
    with emulator.start(nodes=1) as fabric:
        done = subprocess.run(
            [sys.executable, "-P", "-c", LONG_AND_SHORT, fabric.device("a")],
            env={**os.environ, **POISONED},
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert done.returncode == 0, done.stderr[-2000:]


# Structs that native code reads or writes without the interpreter lock.
SHARED = ("obmm_table", "obmm_request", "obmm_outcome", "obmm_failures", "obmm_header_place", "obmm_call")


def fields() -> set[str]:
    """Every field name of these structs, from the declarations that the binding is made of."""
    from obmm._native import ffi

    return {name for struct in SHARED for name, _ in ffi.typeof(f"struct {struct}").fields}


def own_structs(function: ast.AST) -> set[str]:
    """Expressions that this very function made by ``ffi.new``, as source text, and what it read out of them."""
    made: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and "ffi.new" in ast.unparse(node.value):
            targets = node.targets[0]
            made |= {ast.unparse(t) for t in (targets.elts if isinstance(targets, ast.Tuple) else [targets])}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and ast.unparse(node.value) in made:
            made |= {ast.unparse(target) for target in node.targets}
    return made


def writes(tree: ast.AST, names: set[str]):
    """(line, text) of each store to a field of a native struct outside the function that made the struct."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        mine = own_structs(function)
        for node in ast.walk(function):
            if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in names):
                continue
            owner = ast.unparse(node.value)
            if owner != "self" and owner not in mine and owner.partition("[")[0] not in mine:
                yield node.lineno, f"{owner}.{node.attr}"


# Who may, by file and owner, and why.
ALLOWED = {
    ("stream_gather.py", "late.request"): "a deadline's own copy of the request, before the native call that reads it",
    ("native_rows.py", "request"): "a helper of the request's maker, before the native call that reads it",
    ("requests.py", "request"): "filled before the native call that reads it",
    ("requests.py", "self.array[i]"): "the same, in the constructor",
    ("bound.py", "request"): "a helper of the constructor of Requests",
    ("bound.py", "self.template"): "at attach, before the store is anybody's",
    ("bound.py", "other.struct"): "a subset that is not handed out yet",
    ("planner.py", "bound.struct"): "at attach, before the store is anybody's",
    ("prepared.py", "request"): "a prepared step is one thread's, and at most once under way",
}
NAMES = re.compile(r"(table|request|outcome|template|struct|failures|place|array\[i\])$")


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_native_struct_that_others_may_share_is_written_by_a_call(path):
    found = [
        (line, text)
        for line, text in writes(ast.parse(path.read_text()), fields())
        if NAMES.search(owner := text.rpartition(".")[0]) and (path.name, owner) not in ALLOWED
    ]
    assert not found
