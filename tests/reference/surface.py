# SPDX-License-Identifier: Apache-2.0
"""What users can reach: everything in the `__all__` of a door, and the public members of those classes."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BEHIND = {"obmm.cli", "obmm.emulator.model"}  # rooms without users in Python: commands, the driver's model


@cache
def doors() -> dict[str, ModuleType]:
    """Every package of obmm that names what it offers, and the two modules that do; nn only where torch is installed."""
    found = {}
    packages = [path.parent for path in sorted((ROOT / "obmm").rglob("__init__.py"))]
    names = [".".join(path.relative_to(ROOT).parts) for path in packages]
    for name in [*names, "obmm.errors", "obmm.exchange.aio"]:
        if name in BEHIND:
            continue
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            if "torch" not in str(error):
                raise
            continue
        if getattr(module, "__all__", ()):
            found[name] = module
    return found


@dataclass(eq=False)
class Thing:
    """One public object: where it is reached, and where its words may stand."""

    door: str
    name: str
    value: Any
    owner: type | None = None
    doc: str = ""
    around: str = ""
    """Of a member: the docstring of its class."""
    members: list[Thing] = field(default_factory=list)

    @property
    def place(self) -> str:
        return f"{self.door}.{self.name}"

    @property
    def function(self) -> FunctionType | None:
        """The code behind it; of a property its getter, of a class its constructor if it wrote one."""
        value = self.value
        if inspect.isclass(value):
            return vars(value).get("__init__")
        if isinstance(value, property):
            return value.fget
        return inspect.unwrap(getattr(value, "__func__", value))

    @property
    def words(self) -> str:
        """What is said of it: its docstring, its class's, and those of the members that its own one refers to by name."""
        return "\n".join([self.doc, self.around, *_referred(self)])


def _members(kind: type, door: str, seen: set[Any]) -> Iterator[Thing]:
    for owner in kind.__mro__:
        if not owner.__module__.startswith("obmm"):
            continue
        for name, value in vars(owner).items():
            called = isinstance(value, FunctionType | staticmethod | classmethod | property)
            if name.startswith("_") or not called or (owner, name) in seen:
                continue
            seen.add((owner, name))
            doc = inspect.getdoc(getattr(owner, name)) or ""
            if not doc:  # a protocol's or a base's words hold for those who keep it
                doc = next((inspect.getdoc(getattr(each, name)) or "" for each in kept(kind) if name in vars(each)), "")
            around = "\n".join(inspect.getdoc(each) or "" for each in dict.fromkeys((kind, owner)))
            yield Thing(door, f"{owner.__name__}.{name}", value, owner, doc, around)


@cache
def kept(kind: type) -> tuple[type, ...]:
    """The protocols that `kind` says it keeps: ``(a `RowMemory`)`` in its docstring."""
    names = re.findall(r"\(a `([\w.]+)`\)", "\n".join(each.__doc__ or "" for each in kind.__mro__))
    found = (getattr(module, name, None) for name in names for module in doors().values())
    return tuple(dict.fromkeys(each for each in found if inspect.isclass(each)))


def _referred(thing: Thing) -> Iterator[str]:
    for named in re.findall(r"`(\w+(?:\.\w+)?)`", thing.doc):
        holder, _, name = named.rpartition(".")
        kinds = [thing.owner] if not holder else [getattr(module, holder, None) for module in doors().values()]
        for kind in kinds:
            if kind is not None and (found := inspect.getattr_static(kind, name, None)) not in (None, thing.value):
                yield inspect.getdoc(found) or ""
        if not holder and name in doors()[thing.door].__all__:
            yield inspect.getdoc(getattr(doors()[thing.door], name)) or ""


def _nearness(item: tuple[str, ModuleType]) -> tuple[bool, bool, str]:
    """Shared memory first, then the rooms, the front door last: an object is described where it is at home."""
    return item[0] == "obmm", item[0] != "obmm.mapping", item[0]


@cache
def surface() -> list[Thing]:
    """Every public class and function once, with its members."""
    found: dict[int, Thing] = {}
    seen: set[Any] = set()
    for door, module in sorted(doors().items(), key=_nearness):
        for name in module.__all__:
            value = getattr(module, name)
            if id(value) in found or not (inspect.isclass(value) or inspect.isroutine(value)):
                continue
            if not str(getattr(value, "__module__", "")).startswith("obmm"):
                continue
            thing = Thing(door, name, value, None, inspect.getdoc(value) or "", "")
            if inspect.isclass(value):
                thing.owner = value
                init = vars(value).get("__init__")
                thing.around = "\n".join([inspect.getdoc(init) or "", *_attribute_docs(value)])
                thing.members = list(_members(value, door, seen))
            found[id(value)] = thing
    return sorted(found.values(), key=lambda thing: thing.place)


def _attribute_docs(kind: type) -> list[str]:
    """``name: its docstring`` for every field that is followed by a text."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError, ValueError):
        return []
    found = []
    body = list(getattr(tree, "body", []))
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            body += node.body
    for this, then in pairwise(body):
        if isinstance(then, ast.Expr) and isinstance(then.value, ast.Constant) and isinstance(then.value.value, str):
            target = getattr(this, "target", None) or next(iter(getattr(this, "targets", [])), None)
            found.append(f"{getattr(target, 'id', getattr(target, 'attr', ''))}: {then.value.value}")
    return found


# --- what a docstring must say ----------------------------------------------------------------------------------------


def parameters(thing: Thing) -> list[inspect.Parameter]:
    """The parameters that a caller gives.  None of an enum, an error, or what only another object makes."""
    value = thing.value
    if isinstance(value, property):
        return []
    if inspect.isclass(value):
        import enum

        made = "ade by " in thing.doc or "not made by itself" in thing.doc
        if issubclass(value, enum.Enum | BaseException) or made or getattr(value, "_is_protocol", False):
            return []
    try:
        signature = inspect.signature(getattr(value, "__func__", value))
    except (TypeError, ValueError):
        return []
    return [each for name, each in signature.parameters.items() if name not in ("self", "cls") and name[0] != "_"]


@cache
def _tree(function: FunctionType) -> ast.AST | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None


def raises(function: FunctionType | None, owner: type | None, depth: int = 2) -> set[type[BaseException]]:
    """The errors that a function's own lines raise, and those of the private helpers that it calls in its module."""
    if function is None or (tree := _tree(function)) is None:
        return set()
    names = function.__globals__
    found: set[type[BaseException]] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            found |= _error(node.exc.func, names)
        elif depth and isinstance(node, ast.Call):
            helper = _helper(node.func, names, owner)
            if helper is not None and helper.__module__ == function.__module__:
                found |= raises(helper, owner, depth - 1)
    return found


def _error(called: ast.expr, names: dict[str, Any]) -> set[type[BaseException]]:
    if isinstance(called, ast.Attribute):  # X.because(...), X.refused(...)
        called = called.value
    value = names.get(called.id) if isinstance(called, ast.Name) else None
    if value is None and isinstance(called, ast.Name):
        value = (
            getattr(__builtins__, called.id, None)
            if not isinstance(__builtins__, dict)
            else __builtins__.get(called.id)
        )
    if isinstance(value, FunctionType):  # a helper that makes the error
        made = value.__annotations__.get("return")
        value = value.__globals__.get(made) if isinstance(made, str) else made
    return {value} if inspect.isclass(value) and issubclass(value, Exception) and value.__name__[0] != "_" else set()


def _helper(called: ast.expr, names: dict[str, Any], owner: type | None) -> FunctionType | None:
    value: Any = None
    if isinstance(called, ast.Name) and called.id.startswith("_"):
        value = names.get(called.id)
    elif isinstance(called, ast.Attribute) and ast.unparse(called.value) in ("self", "cls") and called.attr[0] == "_":
        value = inspect.getattr_static(owner, called.attr, None) if owner else None
    value = getattr(value, "__func__", value)
    return value if isinstance(value, FunctionType) else None


def names_of(error: type[BaseException]) -> set[str]:
    """The names by which a docstring may promise an error: its own, and its bases' in obmm."""
    return {each.__name__ for each in error.__mro__ if each is error or each.__module__.startswith("obmm")}


Check = Callable[[Thing], Iterator[str]]
