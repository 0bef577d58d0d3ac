# SPDX-License-Identifier: Apache-2.0
"""Result files: JSON that `results.schema.json` describes."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from obmm.bench import plausible
from obmm.regular import read_regular

FORMAT, VERSION = "obmm-bench", 3
_MOST_BYTES = 256 << 20
Document = dict[str, Any]
AGAIN, CLOSE = "open again", "close"
"""In `skipped`, in place of a workload: the arm was there, and then it was lost."""
SCHEMA = Path(__file__).with_name("results.schema.json")


class NotResults(ValueError):
    """A file that holds no results of this benchmark."""


def read(path: str | os.PathLike[str]) -> Document:
    """The document in `path`, as the schema wants it: a figure without its mark is none.  NotResults with the reason.

    ImportError without the package jsonschema (extra `bench`).
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    name = os.fsencode(path).decode("utf-8", "replace")
    try:
        document = json.loads(read_regular(path, _MOST_BYTES).decode(), parse_float=_finite, parse_constant=_finite)
    except OSError as error:
        raise NotResults(f"{name}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise NotResults(f"{name}: no results of `obmm bench run`, which are JSON: {error}") from error
    if not isinstance(document, dict) or (document.get("format"), document.get("version")) != (FORMAT, VERSION):
        raise NotResults(f"{name}: no results of `obmm bench run` (format {FORMAT}, version {VERSION})")
    wrong = best_match(Draft202012Validator(json.loads(SCHEMA.read_text("utf-8"))).iter_errors(document))
    if wrong is not None:
        raise NotResults(f"{name}: not what `obmm bench run` writes: {wrong.json_path}: {wrong.message[:200]}")
    wrong = next(plausible.faults(document), None)
    if wrong is not None:
        raise NotResults(f"{name}: not what `obmm bench run` writes: {wrong}")
    if any(_CONTROL.search(text) for text in _texts(document)):
        raise NotResults(f"{name}: not what `obmm bench run` writes: control characters in a text")
    return document


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""What could tell a terminal anything, or cannot be written."""


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a figure")


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def writable(path: str | os.PathLike[str]) -> None:
    """OSError if `write` could not write there: asked before a run that may take an hour."""
    part = _part(path)
    with part.open("wb"):
        pass
    part.unlink()


def write(document: Document, path: str | os.PathLike[str]) -> None:
    """Whole or not at all.  OSError leaves what was there."""
    part = _part(path)
    try:
        part.write_text(text(document), "utf-8")
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def text(document: Document) -> str:
    """What `write` puts into a file."""
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _part(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    return target.with_name(target.name + ".part")
