# SPDX-License-Identifier: Apache-2.0
"""Layouts and constants (conformance list 1)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from obmm.urma import abi

HEADER = Path(__file__).parents[2] / "native" / "urma_standin" / "urma.h"


def test_the_structures_have_the_published_sizes_and_offsets() -> None:
    assert abi.layout_faults(abi.ffi) == []


@pytest.mark.parametrize("compiler", ["gcc", "aarch64-linux-gnu-gcc"])
def test_the_stand_ins_header_has_them_too_on_both_machines(compiler: str, tmp_path: Path) -> None:
    wide = compiler.startswith("aarch64")  # pthread_mutex_t has 8 bytes more there (4.4)
    sizes = {name: size for name, (size, _) in abi.LAYOUT.items() if name not in OURS}
    sizes |= {name: size + 8 * wide for name, size in RETURNED.items()} | {"urma_ubva_t": 28, "urma_target_jetty_t": 64}
    checks = [f'_Static_assert(sizeof({name}) == {size}, "{name}");' for name, size in sizes.items()]
    checks += [
        f'_Static_assert(offsetof({name}, {field}) == {at}, "{name}.{field}");'
        for name, (_, fields) in abi.LAYOUT.items()
        if name not in OURS
        for field, at in fields.items()
    ]
    checks += [f'_Static_assert({flag} == 1 << {bit}, "{flag}");' for flag, bit in FLAGS.items()]
    source = tmp_path / "check.c"
    source.write_text("\n".join(["#include <stddef.h>", f'#include "{HEADER}"', *checks, ""]))
    try:
        done = subprocess.run(
            [compiler, "-std=gnu11", "-Wall", "-Werror", "-c", source, "-o", tmp_path / "check.o"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip(f"{compiler} is not installed")
    assert done.returncode == 0, done.stderr


RETURNED = {
    "urma_context_t": 104,
    "urma_jfc_t": 248,
    "urma_jfs_t": 256,
    "urma_jfr_t": 264,
    "urma_jetty_t": 344,
}
"""4.4 on x86-64."""
FLAGS = {"URMA_WR_COMP_ORDER": 2, "URMA_WR_COMPLETE": 5}


def test_flag_words_have_their_bits() -> None:
    """4.6, as far as this side sets them."""
    assert abi.POLICY_PLAIN == 1 << 0
    assert (abi.SEG_ACCESS_SHIFT, abi.SEG_TOKEN_ID_VALID, abi.ATTR_HAS_USER_INFO) == (5, 1 << 13, 1 << 14)
    assert (abi.JETTY_SHARE_JFR, abi.JETTY_STATE_MASK) == (1 << 0, 1 << 1)
    assert (abi.ORDER_SHIFT_IMPORT, abi.ORDER_SHIFT_JFR) == (3, 5)


OURS = ("urma_named_t", "urma_rw_t")


def test_all_functions_are_there_once() -> None:
    assert len(set(abi.FUNCTIONS)) == len(abi.FUNCTIONS) == 43
