# SPDX-License-Identifier: Apache-2.0
"""Modules for torch whose weights lie in another node's memory.  Importing this needs torch, and loads it at first use."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("torch") is None:
    raise ImportError("obmm.nn is for models in torch: pip install torch")

if TYPE_CHECKING:
    from obmm.nn.embedding import Embedding as Embedding
    from obmm.nn.fp8_rows import dequantise as dequantise
    from obmm.nn.fp8_rows import dequantised as dequantised

_BEHIND = {"Embedding": "embedding", "dequantise": "fp8_rows", "dequantised": "fp8_rows"}


if not TYPE_CHECKING:  # for checkers only the names above exist

    def __getattr__(name: str) -> Any:
        """torch takes seconds: who only looks through `obmm` (help, Tab) does not wait for it."""
        if name in _BEHIND:
            return getattr(import_module(f"obmm.nn.{_BEHIND[name]}"), name)
        raise AttributeError(f"module 'obmm.nn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)


__all__ = ["Embedding", "dequantise", "dequantised"]
