# SPDX-License-Identifier: Apache-2.0
"""Leases that dead processes of this host held: their owners are told that the reader is gone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

import obmm
from obmm.errors import ObmmError
from obmm.exchange.held import HeldLease, HeldNotes, Proof, held_by_others
from obmm.exchange.peer import Peer
from obmm.exchange.tls import TlsFiles
from obmm.host.inventory import RegionRecord

PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class GivenBack:
    """One lease; ``problem`` says why its owner could not be told, "" if it was."""

    lease: HeldLease
    problem: str


def give_back(device: str, left: Iterable[RegionRecord], *, really: bool) -> tuple[GivenBack, ...]:
    """Release what the dead held, as far as none of their imports is ``left`` on ``device``; only with ``really``.

    Leases of imports on other devices are not touched: run the command on those devices for them.
    """
    remaining = list(left)
    out: list[GivenBack] = []
    for notes in held_by_others():
        if notes.owner.liveness() != "dead" or any(_same(notes, each) for each in remaining):
            continue
        ours = [lease for lease in notes.leases if lease.device in ("", device)]
        done = [*_released(ours)] if really else [GivenBack(lease, "") for lease in ours]
        out += done
        if really and len(ours) == len(notes.leases) and not any(each.problem for each in done):
            notes.path.unlink(missing_ok=True)
    return tuple(out)


def _same(notes: HeldNotes, record: RegionRecord) -> bool:
    """An import that the dead process left is still there."""
    stamp = record.stamp
    return (
        record.kind == "import"
        and stamp is not None
        and (stamp.boot_id, stamp.pid, stamp.start_time)
        == (notes.owner.boot_id, notes.owner.pid, notes.owner.start_time)
    )


def _released(leases: list[HeldLease]) -> Iterable[GivenBack]:
    """One connection per server."""
    for (server, proof), some in groupby(leases, key=lambda lease: (lease.server, lease.proof)):
        group = list(some)
        try:
            with _connected(server, proof) as peer:
                for lease in group:
                    told = peer.release_for_the_dead(lease.id, timeout=PATIENCE_S)
                    yield GivenBack(lease, "" if told else "its server did not confirm in time")
        except (ObmmError, OSError) as error:
            for lease in group:
                yield GivenBack(lease, error.strerror or str(error))


def _connected(server: str, proof: Proof) -> Peer:
    if proof.mode == "tls":
        return obmm.connect(server, tls=TlsFiles(*proof.files), server_name=proof.server_name, timeout=PATIENCE_S)
    if proof.mode == "key":
        return obmm.connect(server, key=proof.files[0], timeout=PATIENCE_S)
    return obmm.connect(server, plain=True, timeout=PATIENCE_S)
