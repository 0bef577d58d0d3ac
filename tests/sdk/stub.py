# SPDX-License-Identifier: Apache-2.0
"""A library with the SDK's functions that answers whatever a test wants, and notes the calls."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from cffi import FFI

from obmm.sdk import Library, abi, load

_ALWAYS_GOOD = {"ubsmem_init_attributes", "ubsmem_set_logger_level", "ubsmem_finalize"}
_ffi: Any = FFI()
_ffi.cdef("void stub_answer(int code, unsigned int times); const char *stub_calls(void);")


class Stub:
    """`library` answers 0, until `answer` is told otherwise."""

    def __init__(self, folder: Path) -> None:
        path = folder / "libstub.so"
        source = """#include <string.h>
        static int answer;
        static unsigned int left;
        static char calls[1 << 16];
        void stub_answer(int code, unsigned int times) { answer = code; left = times; }
        const char *stub_calls(void) { return calls; }
        static int note(const char *name, int good)
        {
            strcat(strcat(calls, name), " ");
            return good || !left || !left-- ? 0 : answer;
        }
        """
        source += "\n".join(
            f'int {name}(void) {{ return note("{name.removeprefix("ubsmem_")}", {int(name in _ALWAYS_GOOD)}); }}'
            for name in abi.FUNCTIONS
        )
        subprocess.run(["gcc", "-shared", "-fPIC", "-xc", "-", "-o", path], input=source.encode(), check=True)
        self.library: Library = load(path)
        self._functions = _ffi.dlopen(str(path))

    def answer(self, code: int, times: int = 1 << 30) -> None:
        """The next `times` calls that can fail do so with `code`."""
        self._functions.stub_answer(code, times)

    @property
    def calls(self) -> list[str]:
        """The functions called so far, without their prefix."""
        return _ffi.string(self._functions.stub_calls()).decode().split()
