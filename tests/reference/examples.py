# SPDX-License-Identifier: Apache-2.0
"""Runs the examples of docstrings, and notes what they call."""

from __future__ import annotations

import contextlib
import doctest
import enum
import functools
import inspect
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tests.reference.surface import doors, surface

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
_THROUGH = {contextlib.__file__, functools.__file__, enum.__file__}


@dataclass
class Ran:
    """What became of all examples: texts of failures by place, what was called on which type, and all their words."""

    failures: dict[str, str] = field(default_factory=dict)
    called: set[tuple[Any, str]] = field(default_factory=set)
    text: dict[str, str] = field(default_factory=dict)


def collect() -> dict[str, tuple[str, str]]:
    """Every docstring with an example: place -> (text, file).  Doors, classes, functions, members, module docstrings."""
    found: dict[str, tuple[str, str]] = {}
    for name, module in doors().items():
        found[name] = (module.__doc__ or "", module.__file__ or name)
    for thing in surface():
        found[thing.place] = (thing.value.__doc__ or "", thing.door)
        for member in thing.members:
            found.setdefault(member.place, (member.value.__doc__ or "", thing.door))
            if member.owner is not None:  # what a base shows holds for all that are made of it
                found.setdefault(f"{thing.door}.{member.owner.__name__}", (member.owner.__doc__ or "", thing.door))
    return {place: (inspect.cleandoc(text), where) for place, (text, where) in found.items() if ">>>" in text}


def _note(called: set[tuple[Any, str]], frame: FrameType, event: str, _: Any) -> None:
    if event != "call":
        return
    caller = frame.f_back
    while caller is not None and caller.f_code.co_filename in _THROUGH:
        caller = caller.f_back
    if caller is None or not caller.f_code.co_filename.startswith("<doctest "):
        return
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount]
    first = frame.f_locals.get(names[0]) if names else None
    if names and names[0] in ("self", "cls"):
        called.add((first if inspect.isclass(first) else type(first), code.co_name))
    else:
        called.add((code.co_filename, code.co_name))
        if names:
            called.add((type(first), code.co_name))


def run(given: dict[str, Any], folder: Path) -> Ran:
    """Run all; `given` are the names that every example may use, and each has an empty `folder`."""
    ran = Ran()
    parser = doctest.DocTestParser()
    for number, (place, (text, where)) in enumerate(collect().items()):
        ran.text[place] = text
        own = folder / str(number)
        own.mkdir()
        test = parser.get_doctest(text, {**given, "folder": own}, place, where, 0)
        said: list[str] = []
        runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
        before, environment = sys.getprofile(), dict(os.environ)
        with contextlib.chdir(own):
            sys.setprofile(functools.partial(_note, ran.called))
            try:
                runner.run(test, out=said.append, clear_globs=False)
            finally:
                sys.setprofile(before)
                os.environ.clear()
                os.environ.update(environment)
        for value in list(test.globs.values()):
            _close(value, given)
        if runner.failures:
            ran.failures[place] = "".join(said)
    return ran


def _close(value: Any, given: dict[str, Any]) -> None:
    """After a failure: what the example did not come to close, so that the next one is judged by itself."""
    if any(value is each for each in given.values()) or inspect.isclass(value) or inspect.ismodule(value):
        return
    if type(value).__module__.startswith("obmm") and callable(getattr(value, "close", None)):
        with contextlib.suppress(Exception):
            value.close()
