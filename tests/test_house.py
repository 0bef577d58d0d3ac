# SPDX-License-Identifier: Apache-2.0
"""The plan of the house (docs/architecture.md), kept by a test: arrows point down, rooms keep their own, files stay small.

Every rule reads the source as text and tree; nothing is imported, so a broken module cannot hide one.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "obmm"

# From the roof to the ground.  A module imports from floors below its own, and from its own room.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"cli"}),
    frozenset({"demo", "smoke"}),
    frozenset({"bench", "integrations"}),
    frozenset({"nn", "files"}),
    frozenset({"engram"}),
    frozenset({"prefetch", "blocks"}),
    frozenset({"broker"}),
    frozenset({"host"}),
    frozenset({"sdk", "urma"}),
    frozenset({"rows"}),
    frozenset({"exchange"}),
    frozenset({"mapping"}),
    frozenset({"region"}),
    frozenset({"windows"}),
    frozenset({"driver"}),
    frozenset(
        {
            "arguments",
            "causes",
            "operations",
            "background",
            "children",
            "closing",
            "undisturbed",
            "errors",
            "explanations",
            "exposition",
            "handle",
            "names",
            "regular",
            "sizes",
            "toml_text",
        }
    ),  # WORDS
    frozenset({"_native"}),
)
WORDS = FLOORS[-2]  # words and life: what every room speaks; among themselves only circles are forbidden
# a second kernel: reached through the system-call table, so no room on the way to the memory may know it
EMULATOR_MAY_BE_KNOWN_TO = {"cli", "bench", "sdk", "urma", "demo", "smoke"}
# `import obmm` is the front door: for programs, which stand above the rooms
FRONT_DOOR_MAY_BE_USED_BY = {"cli", "bench", "demo", "prefetch", "integrations", "nn", "engram", "blocks", "smoke"}

# An arrow that points up, or closes a circle, with the sentence that defends it.
DEFENDED = {
    (
        "obmm.region.region",
        "obmm.mapping.mapping",
    ): "Region.map() is where mappings come from; loaded at its first call",
    ("obmm.region.device", "obmm.mapping.ownership_probe"): "Device.ownership_takes_effect() maps a scratch region",
    ("obmm.bench.__main__", "obmm.cli.bench"): "`python -m obmm.bench` is the command `obmm bench`",
}

LINES = 450
# Files above it, with their sizes: they may only shrink.
TOO_LONG: dict[str, int] = {}
# A reader of another room's members, with the reason; the list ends empty.
READS_PRIVATE: dict[str, str] = {}


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package, by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = ast.parse(path.read_text(), str(path))
    return found


def is_module(name: str) -> bool:
    return name in modules() or name == "obmm._native"


def package_of(name: str) -> str:
    path = ROOT.joinpath(*name.split("."))
    return name if path.is_dir() else name.rpartition(".")[0]


@cache
def imports(name: str) -> tuple[str, ...]:
    """The modules of the package that `name` imports, in functions too; not those for type checkers only."""
    return tuple(_imports(name))


def _imports(name: str) -> Iterator[str]:
    tree = modules()[name]
    typing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if is_module(alias.name))
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package_of(name).split(".")
                base = ".".join([*above[: len(above) - node.level + 1], *filter(None, [node.module])])
            if is_module(base):
                submodules = [f"{base}.{alias.name}" for alias in node.names]
                yield from (sub for sub in submodules if is_module(sub))
                if not all(is_module(sub) for sub in submodules):
                    yield base


def room(name: str) -> str:
    """The second word of a dotted name, the front door's is `obmm`."""
    words = name.split(".")
    return words[1] if len(words) > 1 else "obmm"


def floor(of: str) -> int:
    return next((index for index, rooms in enumerate(FLOORS) if of in rooms), -1)


def allowed(importer: str, imported: str) -> bool:
    here, there = room(importer), room(imported)
    if here == there or importer == "obmm":
        return True
    if there == "emulator":
        return here in EMULATOR_MAY_BE_KNOWN_TO
    if there == "obmm":
        return here in FRONT_DOOR_MAY_BE_USED_BY
    if here == "emulator":
        return floor(there) >= floor("driver")
    return floor(here) < floor(there) or {here, there} <= WORDS


def test_every_room_stands_on_a_floor():
    rooms = {room(name) for name in modules()} - {"obmm", "emulator"}
    assert {one for one in rooms if floor(one) < 0} == set()


def test_the_page_names_every_room():
    """docs/architecture.md, from the roof to the ground: the order of FLOORS."""
    table = (ROOT / "docs" / "architecture.md").read_text().split("## Journey", 1)[0]
    rooms = [room for rooms in FLOORS for room in sorted(rooms - WORDS - {"_native"})]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    at = {one: row for row, line in enumerate(rows) for one in rooms if f"`{one}`" in line.split("|")[2]}
    assert [one for one in rooms if one not in at] == []
    assert [at[one] for one in rooms] == sorted(at[one] for one in rooms)


def test_arrows_point_down():
    up = {
        (importer, imported)
        for importer in modules()
        for imported in imports(importer)
        if not allowed(importer, imported) and (importer, imported) not in DEFENDED
    }
    assert up == set()


def test_no_circle_of_imports():
    """In functions too: an import that waits for a call only hides a circle."""
    graph = {
        name: {
            other for other in imports(name) if other != name and (name, other) not in DEFENDED and other in modules()
        }
        for name in modules()
    }
    graph["obmm"] = set()  # the front door knows all rooms, and what comes through it is above them
    assert circle(graph) == []


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of `graph`, or nothing."""
    done: set[str] = set()
    for start in graph:
        path: list[str] = []
        work = [(start, iter(sorted(graph[start])))]
        on_path = {start}
        while work:
            node, rest = work[-1]
            following = next(rest, None)
            if following is None:
                work.pop()
                on_path.discard(node)
                done.add(node)
            elif following in on_path:
                path = [entry for entry, _ in work]
                return [*path[path.index(following) :], following]
            elif following not in done:
                on_path.add(following)
                work.append((following, iter(sorted(graph[following]))))
    return []


def test_what_is_defended_is_still_there():
    gone = {
        (importer, imported)
        for importer, imported in DEFENDED
        if importer not in modules() or imported not in set(imports(importer))
    }
    assert gone == set()


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def test_no_private_name_is_imported_from_another_room():
    taken = [
        f"{name}: from {node.module} import {alias.name}"
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("obmm.")
        for alias in node.names
        if is_private(alias.name) and alias.name != "_native" and room(node.module or "") != room(name)
    ]
    assert taken == []


def private_names(trees: list[ast.Module]) -> set[str]:
    """Every private name that these modules define: methods, functions, fields, slots."""
    names: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # __slots__
    return {name for name in names if is_private(name)}


def test_no_room_reads_another_rooms_private_members():
    """An attribute with an underscore, on something else than `self`, that the reader's own room does not define."""
    of_room: dict[str, list[ast.Module]] = defaultdict(list)
    for name, tree in modules().items():
        of_room[room(name)].append(tree)
    own = {key: private_names(trees) for key, trees in of_room.items()}
    all_members = set().union(*own.values())
    reads = [
        f"{name}:{node.lineno}: {ast.unparse(node)}"
        for name, tree in modules().items()
        if name not in READS_PRIVATE
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and is_private(node.attr)
        and node.attr in all_members
        and node.attr not in own[room(name)]
        and ast.unparse(node.value) not in ("self", "super()")  # what it inherits is its own
    ]
    assert reads == []


def test_files_stay_small():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sorted(PACKAGE.rglob("*.py"))
    }
    long = {name: lines for name, lines in lengths.items() if lines > LINES}
    assert {name: lines for name, lines in long.items() if lines > TOO_LONG.get(name, LINES)} == {}
    assert {name for name in TOO_LONG if name not in long} == set(), "shorter now: take them off the list"


def documented(node: ast.AST) -> bool:
    return ast.get_docstring(node) is not None  # type: ignore[arg-type]


def test_every_public_name_is_documented():
    """Modules, and their classes and functions without an underscore."""
    missing = [name for name, tree in modules().items() if not documented(tree)]
    missing += [
        f"{name}.{node.name}"
        for name, tree in modules().items()
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_") and not documented(node)
    ]
    assert missing == []
