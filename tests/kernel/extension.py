# SPDX-License-Identifier: Apache-2.0
"""Write the C of ``obmm._native`` into the file named by the first argument; print the compiler's other arguments."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "native" / "ffi"))

from build import ffibuilder  # noqa: E402  (native/ffi/build.py)


def main() -> None:
    ffibuilder.emit_c_code(sys.argv[1])
    words = ffibuilder._assigned_source[3]
    macros = [f"-D{name}={value}" for name, value in words["define_macros"]]
    includes = [f"-I{folder}" for folder in words["include_dirs"]]
    print(*macros, *includes, *words["extra_compile_args"], *words["extra_link_args"], *words["sources"])


if __name__ == "__main__":
    main()
