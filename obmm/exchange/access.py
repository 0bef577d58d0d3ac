# SPDX-License-Identifier: Apache-2.0
"""Who may fetch which region: a TOML file, or nothing at all (then every client with a key or a certificate).

::

    [[key]]                             # named keys; several of one name during a rotation
    name = "serving"
    file = "serving.key"                # beside this file, unless it is absolute

    [[allow]]
    keys = ["serving"]                  # names of keys, and ...
    identities = ["spiffe://prod/llm/*"]  # ... names in certificates (with * and ?); one of them must fit
    regions = ["embeddings*"]           # names of regions, with * and ?

With such a file, what no ``[[allow]]`` names is neither listed nor granted.  A rule for ``keys = ["*"]`` fits every key.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import shlex
import stat
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from obmm.errors import ObmmArgumentError
from obmm.exchange.keys import Key, mistaken
from obmm.regular import never_waiting
from obmm.toml_text import parse_toml

KEYS = 64
MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class AccessRule:
    """One ``[[allow]]``: patterns of who, patterns of which regions."""

    who: tuple[str, ...]
    regions: tuple[str, ...]

    def allows(self, who: str, region: str) -> bool:
        return any(fnmatch.fnmatchcase(who, each) for each in self.who) and any(
            fnmatch.fnmatchcase(region, each) for each in self.regions
        )


@dataclass(frozen=True)
class Access:
    """The ``rules`` of a server; None: every client that may connect may fetch every region.

    ``keys`` are those that the file names, ``path`` is where it was read.

    >>> _ = obmm.exchange.Key.generate(folder / "serving.key")
    >>> rules = folder / "access.toml"
    >>> _ = rules.write_text('''
    ... [[key]]
    ... name = "serving"
    ... file = "serving.key"
    ... [[allow]]
    ... keys = ["serving"]
    ... regions = ["words*"]
    ... ''')
    >>> rules.chmod(0o600)
    >>> access = obmm.exchange.Access.load(rules)
    >>> access.allows("serving", "words-2"), access.allows("serving", "secrets"), len(access.keys)
    (True, False, 1)
    """

    rules: tuple[AccessRule, ...] | None = None
    keys: tuple[Key, ...] = ()
    path: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_decide", lru_cache(maxsize=4096)(self._allows))

    def allows(self, who: str, region: str) -> bool:
        """Whether the client `who` (a key's or certificate's name) may fetch the `region`."""
        answer: bool = self.rules is None or self._decide(who, region)  # type: ignore[attr-defined]
        return answer

    def _allows(self, who: str, region: str) -> bool:
        return any(rule.allows(who, region) for rule in self.rules or ())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Access:
        """The rules and keys of the file at ``path``; ObmmArgumentError, with file, place and fix, for anything unfit.

        The file must belong to root or this user, and no other user may write it.
        """
        place = Path(path)
        try:
            with open(place, "rb", opener=never_waiting) as file:
                facts = os.fstat(file.fileno())
                if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_BYTES:
                    raise _bad(f"{place} is not a regular file of at most {MAX_BYTES} bytes", "name the rules' file")
                if stat.S_IMODE(facts.st_mode) & 0o022 or facts.st_uid not in (0, os.geteuid()):
                    raise _bad(
                        f"{place} has mode {stat.S_IMODE(facts.st_mode):04o} and owner {facts.st_uid}: others could write it",
                        f"chown root {shlex.quote(str(place))}; chmod 0644 {shlex.quote(str(place))}",
                        errno.EACCES,
                    )
                document = parse_toml(file.read(MAX_BYTES))
        except ObmmArgumentError:
            raise
        except ValueError as error:
            raise _bad(f"{place} is not TOML: {error}", "see docs/operators.md") from None
        except OSError as error:
            if isinstance(error, ObmmArgumentError):
                raise
            raise _bad(
                f"{place} cannot be read: {error.strerror}", "name the rules' file", error.errno or errno.EIO
            ) from None
        unknown = sorted(set(document) - {"key", "allow"})
        if unknown:
            raise _bad(f"{place} has unknown keys {unknown}", "only [[key]] and [[allow]] tables")
        keys = tuple(_key(place, number, raw) for number, raw in enumerate(_tables(place, document, "key"), 1))
        if len(keys) > KEYS:
            raise _bad(f"{place} has {len(keys)} keys", f"at most {KEYS}: each is tried at every handshake")
        names = {key.who for key in keys}
        if problem := mistaken(keys):
            raise _bad(f"{place}: {problem}", "give each name a key of its own")
        rules = tuple(
            _rule(place, number, raw, names) for number, raw in enumerate(_tables(place, document, "allow"), 1)
        )
        return cls(rules, keys, place)


EVERYONE = Access()


def _tables(place: Path, document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    value = document.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise _bad(f"{place}: {name} = {value!r:.80}", f"write [[{name}]] tables")
    return value


def _key(place: Path, number: int, raw: dict[str, Any]) -> Key:
    where = f"{place}, [[key]] {number}"
    if set(raw) != {"name", "file"} or not all(isinstance(each, str) and each for each in raw.values()):
        raise _bad(f"{where}: {sorted(raw)}", 'name = "..." and file = "...", both texts')
    name: str = raw["name"]
    if len(name) > 64 or not name.isascii() or not name.isprintable() or "*" in name or "?" in name:
        raise _bad(f"{where}: name = {name!r:.80}", "at most 64 printable ASCII characters, none of them * or ?")
    return Key.load(place.parent / raw["file"], who=name)


def _rule(place: Path, number: int, raw: dict[str, Any], names: set[str]) -> AccessRule:
    where = f"{place}, [[allow]] {number}"
    unknown = sorted(set(raw) - {"keys", "identities", "regions"})
    if unknown:
        raise _bad(f"{where}: unknown keys {unknown}", "keys, identities and regions")
    who = _texts(where, raw, "keys") + _texts(where, raw, "identities")
    regions = _texts(where, raw, "regions")
    if not who or not regions:
        raise _bad(f"{where}: allows nothing", 'name keys or identities, and regions = ["*"] for all')
    for name in _texts(where, raw, "keys"):
        if names and not fnmatch.filter(names, name):
            raise _bad(f"{where}: no [[key]] is called {name!r:.80}", f"one of {sorted(names)}")
    return AccessRule(who, regions)


def _texts(where: str, raw: dict[str, Any], key: str) -> tuple[str, ...]:
    value = raw.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise _bad(f"{where}: {key} = {value!r:.80}", "a list of texts")
    return tuple(value)


def _bad(problem: str, fix: str, number: int = errno.EINVAL) -> ObmmArgumentError:
    return ObmmArgumentError.because("ACCESS", number, problem, fix, "docs/operators.md")
