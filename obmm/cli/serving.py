# SPDX-License-Identifier: Apache-2.0
"""Serving until somebody ends it: signals, reloads, the service manager's watchdog, and an end in order."""

from __future__ import annotations

import queue
import resource
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

from obmm.background import BackgroundLogger
from obmm.cli.logs import tell
from obmm.cli.notify import Watchdog, notify
from obmm.cli.text import shown
from obmm.errors import ObmmError
from obmm.exchange import LeasesOutstandingError, Server
from obmm.exchange.leases import LeaseState
from obmm.host.inventory import regions
from obmm.region.device import Device

log = BackgroundLogger("obmm.exchange.server")

NAMED = 10  # leases in one message
LOOK_S = 0.5  # how often the server is looked at: it may end by itself


def until_interrupted(server: Server, how: dict[str, Any], grace: float, announce: Callable[[], None]) -> bool:
    """Serve until SIGINT or SIGTERM, then close; True when a second one gave leases up.

    ``how`` are the arguments of `serve` that SIGHUP reads again: key, tls and access.  `announce` is called once every
    signal is in good hands: who reads it may send one at once.

    ClickException when the server ended by itself: the command must not look as if it still served.
    """
    # SimpleQueue.put may interrupt itself; an Event's lock may not
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: signals.put(number))
    announce()
    notify("READY=1")
    _serve(server, how, signals)
    notify("STOPPING=1")
    _ask_for(server, grace)
    forced = _end(server, grace, signals)
    _check(server)
    return forced


def _serve(server: Server, how: dict[str, Any], signals: queue.SimpleQueue[int]) -> None:
    """Until a signal says that it is enough, or until the server has ended."""
    watchdog = Watchdog(lambda: server.alive)
    while not server.closed:
        watchdog.look()
        with suppress(queue.Empty):
            if signals.get(timeout=watchdog.patience(LOOK_S)) != signal.SIGHUP:
                return
            reload(server, how)


def _ask_for(server: Server, grace: float) -> None:
    with suppress(ObmmError):
        out = sum(server.counts()["leases"].values())
        if out:
            tell(f"{out} lease(s) are out: asking for them, up to {grace:g} s; interrupt once more to give them up")


def _end(server: Server, grace: float, signals: queue.SimpleQueue[int]) -> bool:
    """Ask all holders to let go, for ``grace`` seconds and then on; a second interrupt gives up on those who do not."""
    closing = threading.Thread(target=close_or_tell, args=(server, grace), daemon=True)
    closing.start()
    while not server.closed:
        with suppress(queue.Empty):
            if signals.get(timeout=0.1) != signal.SIGHUP:
                break
        if closing.is_alive() or _revoked(server):
            continue
        with suppress(ObmmError):  # a reader that let go meanwhile need not be asked again
            server.close(timeout=0.5)
    return bool(server.close(timeout=0, force=True))


def _revoked(server: Server) -> int:
    """How many leases were not released although it was asked for."""
    try:
        return int(server.counts()["leases"].get(LeaseState.REVOKED.value, 0))
    except ObmmError:
        return 0  # the loop has ended: close says how


def close_or_tell(server: Server, grace: float) -> None:
    """Close within ``grace`` seconds, or say who is in the way, and what an operator can do about that."""
    try:
        server.close(timeout=grace)
    except LeasesOutstandingError as error:
        tell(who_is_in_the_way(server, error))
    except ObmmError as error:
        log.error("%s", error.strerror)


def who_is_in_the_way(server: Server, error: LeasesOutstandingError) -> str:
    """Once, and with the commands that end it."""
    leases = error.leases
    who = [f"  {shown(each.holder)}: lease {each.short} on {shown(each.region)}" for each in leases[:NAMED]]
    if len(leases) > NAMED:
        who.append(f"  and {len(leases) - NAMED} more: obmm lease ls --port {server.port}")
    return "\n".join(
        (
            f"{len(leases)} lease(s) are not released; their regions stay exported until they are:",
            *who,
            "A reader that lives must let go. What a dead one left is released on its host by `obmm gc --yes`, or here by",
            f"  obmm lease end --lease {leases[0].short} --port {server.port} --yes",
            "This server ends when the last one is released. Interrupt it once more (Ctrl-C or SIGTERM) to give them up:",
            "for a reader that lives after all that is a machine-level error on its host.",
        )
    )


def _check(server: Server) -> None:
    if server.error is not None:
        raise click.ClickException(
            f"the server ended by itself ({server.error!r}); leases are kept in {server.journal}: start it again with the "
            "same journal, its importers reconnect"
        )


def reload(server: Server, how: dict[str, Any]) -> None:
    """Read keys, certificates and rules again; what is unfit leaves everything as it was."""
    try:
        ended = server.reload(key=how.get("key"), tls=how.get("tls"), access=how.get("access"))
    except Exception as error:  # whatever the files hold and the system says, who is served stays served
        log.error("keys, certificates and rules stay as they were: %s", getattr(error, "strerror", None) or repr(error))
    else:
        log.info("keys, certificates and rules read again; %d session(s) ended", ended)


def until_ready_no_reload() -> None:
    """For a service that starts: what SIGHUP would have read again is being read, so it changes nothing yet."""
    with suppress(ValueError):  # not the main thread's to say
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def tell_of_the_dead(device: Device) -> None:
    """A server that was killed leaves its exports, and the next one takes memory of its own: who starts it should know."""
    with suppress(OSError):  # what cannot be seen is not told
        dead = [each for each in regions(str(device.root), dict) if each.kind == "export" and each.owner == "dead"]
        if dead:
            labels = ", ".join(sorted({shown(each.stamp.label) for each in dead if each.stamp}))
            size = sum(each.size for each in dead) >> 20
            tell(
                f"dead processes left {len(dead)} export(s) of {size:,} MiB here ({labels}); `obmm gc` says what can go"
            )


def allow_many_clients() -> None:
    """One descriptor per client: take what the hard limit gives."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
