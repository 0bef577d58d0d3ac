# SPDX-License-Identifier: Apache-2.0
"""Call a function when a module is imported, without importing it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Then = Callable[[ModuleType], None]


class _Loader(importlib.abc.Loader):
    """The module's own loader, and what is to be done afterwards."""

    def __init__(self, loader: Any, then: Then) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.wanted: dict[str, Then] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        then = self.wanted.get(fullname)
        if then is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find is not None and finder is not self else None
            if spec is not None and spec.loader is not None:
                del self.wanted[fullname]
                spec.loader = _Loader(spec.loader, then)
                found: importlib.machinery.ModuleSpec = spec
                return found
        return None


_finder = _Finder()


def when_imported(name: str, then: Then) -> None:
    """Call `then` with the module `name`: now if it was imported, else right after its own code has run, once."""
    module = sys.modules.get(name)
    if module is not None:
        then(module)
        return
    _finder.wanted[name] = then
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
