# SPDX-License-Identifier: Apache-2.0
"""What each errno means for each operation, and what to do about it.

One table for the messages of `obmm.errors`, for ``obmm explain`` and for the documentation.  Rule ids are anchors of
docs/spec/driver.md, or name the page.
"""

from __future__ import annotations

import errno as _errno
import re

from obmm.causes import GATE, GENERATION, POINTER, Cause, Causes
from obmm.causes import because as _c
from obmm.causes.control import CONTROL
from obmm.causes.faults import FAULTS
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

    `answer`, in any case: an errno's name or number; of the SDK and URMA first the number or name that their headers have
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
    named = {name: found for name, found in named.items() if found}
    by_number = _of_number(answer)
    return named or ({by_number: known} if (known := causes(operation, by_number)) else {})


def sought(word: str) -> dict[tuple[str, str], tuple[Cause, ...]]:
    """(where, answer) -> causes of what `word` names without an operation, in any case; empty when nothing is known.

    An errno by name or number, an answer of a library by its own, a signal, or a rule of the driver's specification.

    >>> list(sought("ekeyrevoked")), list(sought("SIGBUS")), list(sought("I9"))[:1]
    ([(<Operation.EXCHANGE: 'EXCHANGE'>, 'EKEYREVOKED')], [('a load or a store', 'SIGBUS')], [(<Operation.IMPORT: 'IMPORT'>, 'EINVAL')])
    """
    wanted = word.upper()
    if wanted in FAULTS:
        return {("a load or a store", wanted): FAULTS[wanted]}
    name = _of_number(word) or wanted
    found: dict[tuple[str, str], tuple[Cause, ...]] = {}
    for (operation, answer), known in EXPLANATIONS.items():
        fits = known if answer == name else tuple(one for one in known if one.is_called(word) or _cites(one, wanted))
        if fits:
            found[Operation(operation), answer] = fits
    if not found and name in _EVERYWHERE:
        found["every operation of the driver", name] = _EVERYWHERE[name]
    return found


def _of_number(word: str) -> str:
    """The errno of that number by name, of two the one that is spoken of here; empty for other words."""
    if not (word.isascii() and word.isdigit()):
        return ""
    names = [name for _, name in EXPLANATIONS if getattr(_errno, name) == int(word)]
    return names[0] if names else _errno.errorcode.get(int(word), "")


def _cites(cause: Cause, rule: str) -> bool:
    """Whether `rule` (``X14``) is one that the cause names, also within a range (``X5-X8``)."""
    wanted = re.fullmatch(r"([A-Z]+)(\d+)[A-Z]?", rule)
    for part in re.split(r"[/,; ]+", cause.rules.upper()) if wanted else ():
        ends = re.fullmatch(r"([A-Z]+)(\d+)-\1(\d+)", part)
        if part == rule or (
            ends and wanted and ends[1] == wanted[1] and int(ends[2]) <= int(wanted[2]) <= int(ends[3])
        ):
            return True
    return False


def _library(operation: str) -> str:
    """What the functions of its library have in common stands under this name; empty for all other operations."""
    return "SDK" if operation in OF_THE_SDK else "URMA" if operation in OF_LIBURMA else ""
