# SPDX-License-Identifier: Apache-2.0
"""Every public object says what it takes, in which shapes and units, what it raises, and shows it by an example that runs.

An example may stand in the object's own docstring, in its class's, or in its room's; it counts for what it calls.
"""

from __future__ import annotations

import enum
import inspect
import re

import pytest

from tests.reference.examples import Ran
from tests.reference.surface import Thing, doors, kept, names_of, parameters, raises, surface

pytestmark = pytest.mark.timeout(300)  # the examples run once, in one process

DOORS = sorted(doors())
SECONDS = re.compile(r"(^|_)(timeout|seconds|deadline|term|patience|grace|interval)|_s$")
BYTES = re.compile(r"^(nbytes|size|offset|length)$")


BETWEEN_ROOMS = "Between rooms:"
"""In a docstring: public because another room calls it; programs have no use for it, and it needs no example."""


def things(door: str, members: bool = True) -> list[Thing]:
    found = []
    for thing in surface():
        if thing.door == door:
            found += [thing, *(thing.members if members else [])]
    return found


def nothing(problems: list[str]) -> None:
    assert not problems, f"{len(problems)} of the reference:\n" + "\n".join(problems)


def _named(word: str, text: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", text) is not None


@pytest.mark.parametrize("door", DOORS)
def test_every_public_object_is_described(door):
    nothing([thing.place for thing in things(door) if not thing.doc.strip()])


@pytest.mark.parametrize("door", DOORS)
def test_every_parameter_is_named(door):
    nothing(
        [
            f"{thing.place}: {each.name}"
            for thing in things(door)
            for each in parameters(thing)
            if BETWEEN_ROOMS not in thing.doc and not _named(each.name, thing.words)
        ]
    )


@pytest.mark.parametrize("door", DOORS)
def test_every_error_is_said(door):
    nothing(
        [
            f"{thing.place}: {error.__name__}"
            for thing in things(door)
            if not inspect.isclass(thing.value) or ("ade by " not in thing.doc and not _is_protocol(thing.value))
            for error in raises(thing.function, thing.owner)
            if not any(name in thing.words for name in names_of(error))
        ]
    )


@pytest.mark.parametrize("door", DOORS)
def test_sizes_have_units_and_arrays_have_shapes(door):
    problems = []
    for thing in things(door):
        for each in parameters(thing):
            if SECONDS.search(each.name) and "second" not in thing.words:
                problems.append(f"{thing.place}: {each.name} in seconds?")
            if BYTES.search(each.name) and not re.search(r"byte|row|token|block|KiB|MiB", thing.words):
                problems.append(f"{thing.place}: {each.name} in bytes?")
            if "NDArray" in str(each.annotation) and not re.search(r"\[|shape|axis|axes", thing.words):
                problems.append(f"{thing.place}: the shape of {each.name}?")
    nothing(problems)


@pytest.mark.parametrize("door", DOORS)
def test_every_example_gives_what_it_says(door, ran: Ran):
    nothing([f"{place}\n{said}" for place, said in ran.failures.items() if _belongs(place, door)])


def test_the_examples_leave_the_fabric_as_it_was(ran: Ran):
    assert "everything" not in ran.failures, ran.failures["everything"]


@pytest.mark.parametrize("door", DOORS)
def test_every_public_object_has_an_example(door, ran: Ran):
    nothing([thing.place for thing in things(door) if not _shown(thing, ran)])


def test_the_walk_finds_what_it_should():
    found = {thing.place for thing in surface()} | {each.place for thing in surface() for each in thing.members}
    assert {"obmm.open", "obmm.exchange.RemoteTable", "obmm.exchange.RemoteTable.gather", "obmm.rows.RowStore"} <= found
    assert len(found) > 700


def _belongs(place: str, door: str) -> bool:
    return place == door or max((each for each in DOORS if place.startswith(f"{each}.")), key=len, default="") == door


def _shown(thing: Thing, ran: Ran) -> bool:
    value = thing.value
    if BETWEEN_ROOMS in thing.doc:
        return True
    if inspect.isclass(value):
        used = any(value in kind.__mro__ for kind, _ in ran.called if not _is_text(kind))
        by_name = any(_named(value.__name__, text) or f".{value.__name__}" in text for text in ran.text.values())
        plain = issubclass(value, enum.Enum | BaseException) or all(BETWEEN_ROOMS in each.doc for each in thing.members)
        return used or ">>>" in thing.doc or (plain and by_name) or (_is_protocol(value) and by_name)
    function = thing.function
    if isinstance(value, property) and thing.owner is not None and _is_protocol(thing.owner):
        last = thing.name.rpartition(".")[2]  # a plain attribute where it is kept: no call is seen
        if any(f".{last}" in text for place, text in ran.text.items() if _belongs(place, thing.door)):
            return True
    name = function.__code__.co_name if hasattr(function, "__code__") else thing.name.rpartition(".")[2]
    for kind, called in ran.called:
        if called != name:
            continue
        if _is_text(kind):
            if function is not None and kind == function.__code__.co_filename:  # a function, or a static method
                return True
        elif any(
            owner in kind.__mro__ or _keeps(kind, owner) for owner in (thing.owner, _protocol(thing, name)) if owner
        ):
            return True
    return False


def _protocol(thing: Thing, name: str) -> type | None:
    """The protocol that the thing's class says it keeps, and that has a member of this name."""
    return next((each for each in kept(thing.owner) if name in vars(each)), None) if thing.owner else None


def _is_text(kind: object) -> bool:
    return isinstance(kind, str)


def _is_protocol(kind: type) -> bool:
    return bool(getattr(kind, "_is_protocol", False))


def _keeps(kind: type, owner: type) -> bool:
    """A protocol's member is shown where one who keeps the protocol is asked."""
    names = [name for name in vars(owner) if not name.startswith("_")]
    there = sum(hasattr(kind, name) for name in names)  # others may be attributes of each object
    return _is_protocol(owner) and (owner in kept(kind) or (len(names) > 1 and there >= len(names) / 2))
