# SPDX-License-Identifier: Apache-2.0
"""Writes ``_native.pyi`` beside the built module: what type checkers and editors know of it.

``python native/ffi/stub.py FOLDER``, where FOLDER holds the package ``obmm`` with the module; setup.py does it after each
build.  Every name and type is asked of the module, so the stub cannot promise what C does not have.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

HEAD = '''# SPDX-License-Identifier: Apache-2.0
# Written by native/ffi/stub.py from the built module.
"""Everything in ``native/`` behind one cffi module: `lib` has the functions and constants, `ffi` makes and reads memory."""

from typing import Any

ffi: Any
"""cffi's interface object: `new`, `cast`, `from_buffer`, `string`, `NULL` ..."""

class _Lib:
'''


def python_type(ctype: Any, result: bool = False) -> str:
    """The Python type that cffi takes or gives for a C type."""
    if ctype.kind == "void":
        return "None"
    if ctype.kind == "primitive":
        if ctype.cname in ("float", "double"):
            return "float"
        return "bool" if ctype.cname == "_Bool" and result else "int"
    if ctype.kind == "enum":
        return "int"
    return "Any"  # pointers, structs, callbacks: cdata


def text(module: Any) -> str:
    """The stub of a built module."""
    ffi, lib = module.ffi, module.lib
    lines = []
    for name in sorted(dir(lib)):
        try:
            value = getattr(lib, name)
        except AttributeError:
            continue
        if isinstance(value, int):
            lines.append(f"    {name}: int")
            continue
        try:
            ctype = ffi.typeof(value)
        except TypeError:
            lines.append(f"    {name}: Any")
            continue
        if ctype.kind == "pointer" and ctype.item.kind == "function":
            ctype = ctype.item
        if ctype.kind != "function":
            lines.append(f"    {name}: Any")
            continue
        taken = "".join(f", a{index}: {python_type(kind)}" for index, kind in enumerate(ctype.args))
        slash = ", /" if ctype.args else ""
        lines.append(f"    def {name}(self{taken}{slash}) -> {python_type(ctype.result, True)}: ...")
    return HEAD + "\n".join(lines) + "\n\nlib: _Lib\n"


def load(path: Path) -> Any:
    """The module in this file, without the package around it."""
    spec = importlib.util.spec_from_file_location("obmm._native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    (built,) = Path(sys.argv[1], "obmm").glob("_native*.so")
    built.with_name("_native.pyi").write_text(text(load(built)))
