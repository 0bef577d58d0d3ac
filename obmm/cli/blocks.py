# SPDX-License-Identifier: Apache-2.0
"""``obmm blocks``: a store of blocks in this node's memory, and what there is to know about one."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

import obmm
from obmm.blocks import BlockOwner, BlockStore, Namespace, SlotLayout
from obmm.blocks.errors import BlockStoreError
from obmm.blocks.exposition import OwnerCollector
from obmm.blocks.proof import Proof, load_blocks, new_seed, store_blocks
from obmm.blocks.wire import COUNT, Op, Question
from obmm.children import python_module
from obmm.cli.blocks_status import show_store
from obmm.cli.elsewhere import other_node, printed, reachable
from obmm.cli.exchange_options import SECONDS, exchange_options, log_to_stderr, protection
from obmm.cli.observing import check_metrics, observed
from obmm.cli.serving import allow_many_clients, tell_of_the_dead, until_interrupted, until_ready_no_reload
from obmm.closing import ending
from obmm.errors import ObmmError
from obmm.exchange import DEFAULT_PORT, Key, Server, connect
from obmm.region.device import Device
from obmm.sizes import parse_size

ASK_S = 5.0
MOST = (1 << 32) - 1
NO_STORE = "name a store of `obmm blocks serve`, of this version"


@click.group()
def blocks() -> None:
    """Blocks of bytes under keys in another node's memory: an owner, its directory, users."""


@blocks.command("serve")
@click.option("--name", default="kv", show_default=True, help="users find the store as HOST:PORT/NAME")
@click.option("--block-bytes", default="256KiB", show_default=True, help="most bytes of a block")
@click.option("--size", default="1GiB", show_default=True, help="memory to lend")
@click.option("--cache", type=click.Choice(["nc", "cc"]), default="nc", show_default=True, help="how it is mapped")
@click.option("--limit", "limits", multiple=True, metavar="TENANT=SIZE", help="most memory of a tenant (repeatable)")
@click.option("--user-term", default=10.0, show_default=True, help="seconds that a user may be silent")
@click.option("--host", help="address to bind to (default: all; loopback with --plain)")
@click.option("--port", default=DEFAULT_PORT, show_default=True, help="0 picks a free one")
@click.option("--numa", default=0, show_default=True, help="NUMA node of the memory")
@click.option(
    "--journal", type=click.Path(), help="lease journal (default: ~/.local/state/obmm/leases-HOST-PORT.journal)"
)
@click.option(
    "--grace", type=SECONDS, default=10.0, show_default=True, help="seconds that users have to let go at the end"
)
@click.option("--metrics", metavar="HOST:PORT", help="answer GET /metrics and /healthz here (off by default)")
@exchange_options
def serve(
    name: str,
    block_bytes: str,
    size: str,
    cache: Any,
    limits: tuple[str, ...],
    user_term: float,
    host: str | None,
    port: int,
    numa: int,
    journal: str | None,
    grace: float,
    metrics: str | None,
    key: tuple[str, ...],
    tls: tuple[str, str, str] | None,
    plain: bool,
    device: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Lend memory for blocks, and answer for it until interrupted.

    There is one owner and no copy: when it ends, every block is a miss.
    """
    log_to_stderr(verbose)
    until_ready_no_reload()
    try:
        how = protection(key, tls, plain)
        check_metrics(metrics)
        layout = SlotLayout.for_bytes(parse_size(block_bytes), parse_size(size), cache=cache)
        shares = {tenant: share // layout.stride for tenant, share in map(_limit, limits)}
        allow_many_clients()
        with ExitStack() as stack:
            # bound first: a port that is taken is found before memory is
            server = obmm.serve({}, host=host, port=port, journal=journal, **how)
            stack.callback(server.close, timeout=0, force=True)
            local = stack.enter_context(obmm.open(device))
            tell_of_the_dead(local)
            owner = BlockOwner(local, layout, name=name, term=user_term, limits=shares, numa=numa)
            stack.callback(owner.close, force=True)
            owner.serve(server)
            announce = partial(_announce, server, owner, local, how, as_json)
            stack.enter_context(observed(server, metrics, lambda: [OwnerCollector(owner.status)]))
            until_interrupted(server, how, grace, announce)
    except (ObmmError, OSError, ValueError) as error:
        raise _failure(error) from error


@blocks.command("status")
@click.argument("source", metavar="HOST:PORT/NAME")
@exchange_options
def status(
    source: str,
    key: tuple[str, ...],
    tls: tuple[str, str, str] | None,
    plain: bool,
    device: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """What a store holds, who uses it, and what it has counted."""
    try:
        facts = _facts(_ask(source, protection(key[:1], tls, plain), Question(Op.STATUS, bytes(16), 0)))
    except (ObmmError, OSError, ValueError) as error:
        raise _failure(error) from error
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    show_store(source, facts)


@blocks.command("evict")
@click.argument("source", metavar="HOST:PORT/NAME")
@click.option("--count", default=MOST, help="at most so many, longest unused first (default: all that are not pinned)")
@click.option("--tenant", default="", help="only this tenant's")
@exchange_options
def evict(
    source: str,
    count: int,
    tenant: str,
    key: tuple[str, ...],
    tls: tuple[str, str, str] | None,
    plain: bool,
    device: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Drop unpinned blocks."""
    if not 0 <= count <= MOST:
        raise click.BadParameter(f"0..{MOST}", param_hint="--count")
    try:
        question = Question(Op.EVICT, bytes(16), 0, count, text=tenant[:64])
        answer = _ask(source, protection(key[:1], tls, plain), question)
        if len(answer) != COUNT.size:
            raise BlockStoreError.because(errno.EPROTO, f"an answer of {len(answer)} bytes", NO_STORE)
        gone, _ = COUNT.unpack(answer)
    except (ObmmError, OSError, ValueError) as error:
        raise _failure(error) from error
    click.echo(json.dumps({"evicted": gone}) if as_json else f"{gone} block(s) dropped")


@blocks.command("prove")
@click.argument("source", metavar="[HOST:PORT/NAME]", required=False)
@click.option("--seed", help="load what the first run stored, as it said")
@exchange_options
def prove(
    source: str | None,
    seed: str | None,
    key: tuple[str, ...],
    tls: tuple[str, str, str] | None,
    plain: bool,
    device: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Show that one process loads what another one stored.

    Run it on one node with the store's address: it stores blocks and prints the command for another node, which loads
    them, compares every byte, and sees that another model finds none.  Without an address: both, on two emulated nodes.
    """
    try:
        if source is None:
            _prove_emulated(as_json)
            return
        given = protection(key[:1], tls, plain)
        how = {**given, "key": given["key"][0] if given["key"] else None}

        def open_store(namespace: Namespace) -> BlockStore:
            return BlockStore.open(source, namespace, device=device, tenant="proof", **how)

        proof = load_blocks(open_store, seed) if seed else store_blocks(open_store, new_seed())
    except (ObmmError, OSError, ValueError) as error:
        raise _failure(error) from error
    _say(proof, as_json)
    if not seed and proof.holds and not as_json:
        click.echo(f"  on another node: obmm blocks prove {source} --seed {proof.seed} {printed(given)}")
    if not proof.holds:
        raise click.ClickException("the proof failed: not every block was there and right")


def _prove_emulated(as_json: bool) -> None:
    """An owner and a writer on node a, a reader on node b, each a process of its own."""
    from obmm import emulator

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        fabric = stack.enter_context(emulator.start(nodes=2))
        Key.generate(Path(folder) / "key")
        local = stack.enter_context(obmm.open(fabric.device("a")))
        owner = BlockOwner(local, SlotLayout.for_blocks(256 << 10, 64))
        stack.callback(owner.close, force=True)
        key = str(Path(folder) / "key")
        server = obmm.serve({}, host="127.0.0.1", port=0, key=key, journal=Path(folder) / "journal")
        stack.callback(server.close, timeout=0, force=True)
        owner.serve(server)
        address = f"127.0.0.1:{server.port}/{owner.name}"
        first = _run("a", fabric.device("a"), address, key, None)
        second = _run("b", fabric.device("b"), address, key, first.seed)
        for proof in (first, second):
            _say(proof, as_json)
        if not (first.holds and second.holds and first.incarnation == second.incarnation):
            raise click.ClickException("the proof failed")
        if not as_json:
            click.echo("one process stored, the other one, on another (emulated) node, loaded the same bytes")


def _run(node: str, device: str, address: str, key: str, seed: str | None) -> Proof:
    command = python_module("obmm.cli.main", "blocks", "prove", address, "--key", key, "--device", device)
    command += ["--json", *(["--seed", seed] if seed else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise click.ClickException(f"the process on node {node} failed: {done.stderr.strip()}")
    facts = json.loads(done.stdout)
    facts.pop("holds")
    return Proof(**facts)


def _say(proof: Proof, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(proof) | {"holds": proof.holds}))
        return
    what = (
        f"stored {proof.stored} blocks of {proof.nbytes // proof.blocks} bytes"
        if proof.role == "store"
        else f"stored {proof.stored}, loaded {proof.hits} of {proof.blocks} blocks, {proof.verified} right to the last byte, "
        f"{proof.hits_of_another_model} for another model"
    )
    click.echo(
        f"{proof.host} (boot {proof.boot}, pid {proof.pid}, {proof.device}): {what}; incarnation {proof.incarnation}"
    )


def _announce(server: Server, owner: BlockOwner, local: Device, how: dict[str, Any], as_json: bool) -> None:
    layout = owner.layout
    facts = {
        "backend": str(local.backend),
        "addresses": list(server.addresses),
        "port": server.port,
        "mode": server.mode.name.lower(),
        "name": owner.name,
        "slots": layout.slots,
        "block_bytes": layout.capacity,
        "cache": layout.cache,
        "bytes": layout.nbytes,
        "incarnation": f"{owner.incarnation:016x}",
    }
    if as_json:
        click.echo(json.dumps(facts))
    else:
        click.echo(
            f"{layout.slots} slots for blocks of up to {layout.capacity} bytes, {layout.cache}, backend={local.backend}\n"
            f"  on {', '.join(server.addresses)} in {facts['mode']} mode\n"
            f"  elsewhere: {other_node(local)}obmm blocks prove {reachable(server)}/{owner.name} {printed(how)}"
        )
    sys.stdout.flush()


def _ask(source: str, how: dict[str, Any], question: Question) -> bytes:
    server, slash, name = source.partition("/")
    if not slash or not name:
        raise click.BadParameter("HOST:PORT/NAME, as `obmm blocks serve` says it", param_hint="source")
    how["key"] = how["key"][0] if how["key"] else None
    peer = connect(server, **how)
    with ending(partial(peer.close, timeout=1.0), "closing the connection"):
        return peer.call(name, question.pack(), timeout=ASK_S)[1:]


def _facts(answer: bytes) -> dict[str, Any]:
    try:
        facts = json.loads(answer)
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise BlockStoreError.because(errno.EPROTO, "an answer that is no status", NO_STORE)
    return facts


def _limit(text: str) -> tuple[str, int]:
    tenant, sign, share = text.rpartition("=")
    if not sign or not tenant:
        raise click.BadParameter(f"{text!r} is not TENANT=SIZE", param_hint="--limit")
    return tenant, parse_size(share)


def _failure(error: Exception) -> click.ClickException:
    return click.ClickException(getattr(error, "strerror", None) or str(error))
