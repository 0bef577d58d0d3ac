# SPDX-License-Identifier: Apache-2.0
"""What each errno means for each operation, and what to do about it.

One table for the messages of `obmm.errors`, for ``obmm explain`` and for the documentation.  Rule ids are anchors of
docs/spec/driver.md, or name the page.
"""

from __future__ import annotations

from obmm.causes import GATE, GENERATION, POINTER, Cause, Causes
from obmm.causes import because as _c
from obmm.causes.control import CONTROL
from obmm.causes.package import PACKAGE
from obmm.causes.region import REGION
from obmm.causes.sdk import SDK
from obmm.causes.urma import URMA
from obmm.operations import OF_LIBURMA, OF_THE_DRIVER, OF_THE_SDK, Operation

#: (operation, errno name) -> causes, most likely first.
EXPLANATIONS: Causes = {**CONTROL, **REGION, **PACKAGE, **SDK, **URMA}

_EVERYWHERE: dict[str, tuple[Cause, ...]] = {
    "EOPNOTSUPP": (GATE,),
    "ENOTTY": (GENERATION,),
    "EFAULT": (POINTER,),
    "EMFILE": (_c("vfs", "this process has no free descriptor", "raise RLIMIT_NOFILE or close regions"),),
    "EBADF": (_c("vfs", "the descriptor is closed or of another kind", "use an open device"),),
    "ESHUTDOWN": (_c("docs/emulator.md", "the emulator's server went away", "start the fabric again"),),
}

OPERATIONS: tuple[Operation, ...] = tuple(Operation)


def causes(operation: str, errno_name: str) -> tuple[Cause, ...]:
    """Everything known to make `operation` end with `errno_name`, most likely first; empty when nothing is known."""
    found = EXPLANATIONS.get((operation, errno_name)) or EXPLANATIONS.get((_library(operation), errno_name))
    if found is None and operation in OF_THE_DRIVER:
        found = _EVERYWHERE.get(errno_name)
    return found or ()


def answers(operation: str) -> tuple[str, ...]:
    """The errnos that `operation` is known to end with, by name; of a library's function first those that are its own."""
    kinds = (operation, _library(operation))
    return tuple(dict.fromkeys(name for kind in kinds for of, name in EXPLANATIONS if of == kind))


def explained(operation: str, answer: str | None = None) -> dict[str, tuple[Cause, ...]]:
    """errno name -> causes of what `answer` means for `operation`; empty when nothing is known.

    `answer`, in any case: an errno's name; of the SDK and URMA also the number or name that their headers have
    (``6020``); None: every answer of the operation.
    """
    if answer is None:
        return {name: causes(operation, name) for name in answers(operation)}
    known = causes(operation, answer.upper())
    if known:
        return {answer.upper(): known}
    named = {
        name: tuple(one for one in causes(operation, name) if one.is_called(answer)) for name in answers(operation)
    }
    return {name: found for name, found in named.items() if found}


def _library(operation: str) -> str:
    """What the functions of its library have in common stands under this name; empty for all other operations."""
    return "SDK" if operation in OF_THE_SDK else "URMA" if operation in OF_LIBURMA else ""
