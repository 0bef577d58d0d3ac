# SPDX-License-Identifier: Apache-2.0
"""Who may have which node opened by `obmm open-broker`: a TOML file, read once, of ``[[allow]]`` rules.

::

    [[allow]]
    name = "serving"              # in the audit log
    users = ["llm", 1001]         # names or uids; a peer must match one ...
    groups = ["obmm"]             # ... and be in one of these, if given
    control = true                # /dev/obmm: all commands of the driver
    regions = "own"               # region nodes: "own" (made by the asking process), "any", or absent: none
    labels = ["embeddings*"]      # ... only those whose owner stamp has such a label
    kinds = ["import"]            # ... only imports, or only exports
    access = "r"                  # "r", or "rw" (default)

What no rule allows is denied.  Labels and owners are what the maker of a region wrote into its stamp: the process that has the
control node could write another's.  Give ``control`` only to whom you would give the whole device: it can export any
process's huge pages, and remove every region of the host.
"""

from __future__ import annotations

import errno
import fnmatch
import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from obmm.errors import ObmmArgumentError, other_version
from obmm.host.inventory import Kind
from obmm.region.stamp import OwnerStamp
from obmm.regular import never_waiting
from obmm.toml_text import parse_toml

Which = Literal["own", "any"]

MOST_BYTES = 1 << 20
VERSION = 1
_KEYS = {"name", "users", "groups", "control", "regions", "labels", "kinds", "access"}


@dataclass(frozen=True, slots=True)
class BrokerPeer:
    """Who asks, as the kernel says (SO_PEERCRED), with the supplementary groups of the account."""

    pid: int
    uid: int
    groups: frozenset[int]
    start_time: int | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """The node that is asked for.  `mem_id` is None for the control node; then the rest means nothing."""

    path: str
    writable: bool
    mem_id: int | None = None
    kind: Kind | None = None
    stamp: OwnerStamp | None = None

    def made_by(self, peer: BrokerPeer) -> bool:
        """The stamp names exactly that process."""
        stamp = self.stamp
        return (
            stamp is not None
            and peer.start_time is not None
            and (stamp.pid, stamp.start_time) == (peer.pid, peer.start_time)
            and stamp.liveness() == "alive"
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """One ``[[allow]]``."""

    name: str
    users: frozenset[int]
    groups: frozenset[int]
    control: bool
    regions: Which | None
    labels: tuple[str, ...]
    kinds: frozenset[Kind]
    writable: bool

    def matches(self, peer: BrokerPeer) -> bool:
        """The rule speaks of this peer."""
        return (not self.users or peer.uid in self.users) and (not self.groups or bool(self.groups & peer.groups))

    def allows(self, peer: BrokerPeer, wanted: Wanted) -> bool:
        """The peer gets that node by this rule."""
        if not self.matches(peer):
            return False
        if wanted.mem_id is None:
            return self.control
        if self.regions is None or (wanted.writable and not self.writable) or wanted.kind not in self.kinds:
            return False
        if self.regions == "own" and not wanted.made_by(peer):
            return False
        label = wanted.stamp.label if wanted.stamp else None
        return not self.labels or (
            label is not None and any(fnmatch.fnmatchcase(label, pattern) for pattern in self.labels)
        )


class Policy:
    """All rules of a file.  The file must belong to root or this user, and no other user may write it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            with open(self.path, "rb", opener=never_waiting) as file:
                _check(self.path, os.fstat(file.fileno()))
                document = parse_toml(file.read(MOST_BYTES))
        except ObmmArgumentError:
            raise
        except ValueError as error:
            raise _bad(f"{self.path} is not TOML: {error}", "see the documentation of obmm.broker.policy") from None
        found = document.pop("version", VERSION)
        if found != VERSION:
            raise _bad(other_version(str(self.path), found, VERSION), "write what this version's documentation says")
        if set(document) - {"allow"}:
            raise _bad(f"{self.path} has unknown keys {sorted(set(document) - {'allow'})}", "only [[allow]] tables")
        tables = document.get("allow", [])
        if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
            raise _bad(f"{self.path}: allow = {tables!r:.80}", "write [[allow]] tables")
        self.rules = tuple(
            _rule(f"{self.path}, [[allow]] {number}", number, raw) for number, raw in enumerate(tables, 1)
        )

    def rule_for(self, peer: BrokerPeer, wanted: Wanted) -> Rule | None:
        """The first rule that allows it, or None: denied."""
        return next((rule for rule in self.rules if rule.allows(peer, wanted)), None)

    def lists(self, uid: int) -> bool:
        """Some rule names this user itself, whatever its groups: told without asking the system's accounts."""
        return any(uid in rule.users for rule in self.rules)

    def knows(self, peer: BrokerPeer) -> bool:
        """Some rule speaks of this peer at all."""
        return any(rule.matches(peer) for rule in self.rules)


def _check(path: Path, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > MOST_BYTES:
        raise _bad(f"{path} is not a regular file of at most {MOST_BYTES} bytes", "name the policy's file")
    if stat.S_IMODE(facts.st_mode) & 0o022 or facts.st_uid not in (0, os.geteuid()):
        raise _bad(
            f"{path} has mode {stat.S_IMODE(facts.st_mode):04o} and owner {facts.st_uid}: others could write it",
            f"chown root {shlex.quote(str(path))}; chmod 0644 {shlex.quote(str(path))}",
            errno.EACCES,
        )


def _rule(place: str, number: int, raw: dict[str, Any]) -> Rule:
    if set(raw) - _KEYS:
        raise _bad(f"{place}: unknown keys {sorted(set(raw) - _KEYS)}", f"some of {sorted(_KEYS)}")
    users = frozenset(
        _account(place, one, lambda name: pwd.getpwnam(name).pw_uid) for one in _list(place, raw, "users")
    )
    groups = frozenset(
        _account(place, one, lambda name: grp.getgrnam(name).gr_gid) for one in _list(place, raw, "groups")
    )
    if not users and not groups:
        raise _bad(f"{place}: neither users nor groups", "name whom it allows")
    control, regions, access = raw.get("control", False), raw.get("regions"), raw.get("access", "rw")
    if not isinstance(control, bool):
        raise _bad(f"{place}: control = {control!r}", "true or false")
    if isinstance(regions, list | dict) or regions not in (None, "own", "any"):
        raise _bad(f"{place}: regions = {regions!r}", '"own" or "any", or leave it out')
    if isinstance(access, list | dict) or access not in ("r", "rw"):
        raise _bad(f"{place}: access = {access!r}", '"r" or "rw"')
    kinds: list[Kind] = _list(place, raw, "kinds") if "kinds" in raw else ["export", "import"]
    if not all(isinstance(kind, str) and kind in ("export", "import") for kind in kinds):
        raise _bad(f"{place}: kinds = {kinds!r}", '"export" and "import"')
    labels = _list(place, raw, "labels")
    if not all(isinstance(label, str) for label in labels):
        raise _bad(f"{place}: labels = {labels!r}", "texts, with * and ?")
    if regions is None and not control:
        raise _bad(f"{place}: allows nothing", 'control = true, or regions = "own" or "any"')
    if regions is None and ("labels" in raw or "kinds" in raw or "access" in raw):
        raise _bad(f"{place}: labels, kinds or access without regions", 'regions = "own" or "any"')
    name = raw.get("name", f"rule {number}")
    if not isinstance(name, str):
        raise _bad(f"{place}: name = {name!r}", "a text")
    return Rule(name, users, groups, control, regions, tuple(labels), frozenset(kinds), access == "rw")


def _list(place: str, raw: dict[str, Any], key: str) -> list[Any]:
    value = raw.get(key, [])
    if not isinstance(value, list) or (key in raw and not value):
        raise _bad(f"{place}: {key} = {value!r}", "a list that is not empty, or leave it out")
    return value


def _account(place: str, value: object, find: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32:
        return value
    try:
        if isinstance(value, str):
            return int(find(value))
    except (KeyError, ValueError):  # no such name, or one with a NUL in it
        pass
    raise _bad(f"{place}: {value!r} is not an account of this host", "a name that `getent` knows, or a number")


def _bad(problem: str, fix: str, number: int = errno.EINVAL) -> ObmmArgumentError:
    return ObmmArgumentError.because("BROKER_POLICY", number, problem, fix)


def groups_of(uid: int, gid: int) -> frozenset[int]:
    """The groups of an account: SO_PEERCRED tells only the first one."""
    try:
        groups: Iterable[int] = os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except (KeyError, OSError):
        groups = ()
    return frozenset({gid, *groups})
