# SPDX-License-Identifier: Apache-2.0
"""What stands in for a device that is not here.  No class of an engine is replaced, only what reaches for a GPU.

A CPU thread does things in the order of its program: streams and events have nothing to do.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from typing import Any

PINNED: list[int] = []
"""Bytes of every piece of pinned memory that was asked for: an engine with no table asks for none."""


class _Missing:
    def __init__(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("torchvision is not here")


def without_torchvision() -> None:
    """Engines import image processors from it and never use them here; the registry's build needs CUDA libraries."""
    from transformers.utils.import_utils import is_torchvision_available

    is_torchvision_available()  # asked before there is a module of that name: the answer stays
    names = ["", ".transforms", ".transforms.functional", ".transforms.v2", ".transforms.v2.functional", ".io", ".ops"]
    for name in names:
        module = types.ModuleType("torchvision" + name)
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        module.__path__ = []

        def missing(attribute: str) -> Any:
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            return type(attribute, (_Missing,), {})

        module.__getattr__ = missing  # type: ignore[method-assign]
        sys.modules[module.__name__] = module
        parent, _, child = module.__name__.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


class Stream:
    device = None

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, other: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def synchronize(self) -> None: ...


class Event:
    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None: ...
    def wait(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True


@contextlib.contextmanager
def _on(stream: Any) -> Iterator[None]:
    yield


def without_a_device() -> None:
    """Streams, events and pinned memory of torch, as far as engines use them."""
    import torch

    torch.cuda.Stream, torch.cuda.Event = Stream, Event  # type: ignore[misc,assignment]
    torch.cuda.stream = _on  # type: ignore[assignment]
    torch.cuda.current_stream = lambda device=None: Stream()  # type: ignore[assignment]
    torch.cuda.current_device = lambda: 0
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.Tensor.record_stream = lambda self, stream: None  # type: ignore[method-assign]
    plain = torch.empty

    def empty(*size: Any, pin_memory: bool = False, **options: Any) -> Any:
        made = plain(*size, **options)
        if pin_memory:
            PINNED.append(made.nbytes)
        return made

    torch.empty = empty
