# SPDX-License-Identifier: Apache-2.0
"""``obmm emulate``: a fabric of emulated nodes to test and learn with."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import click

from obmm.driver.backend import Backend
from obmm.emulator.control import ControlClient
from obmm.emulator.fabric import FabricError, start_daemon
from obmm.emulator.program import ProgramError, check_program, environment, find_program
from obmm.emulator.runtime import DEFAULT, fabric_directory, remove_stale
from obmm.errors import ObmmError
from obmm.sizes import parse_size

from .emulate_status import print_status

STOP_SECONDS = 10.0
FOLLOW_SECONDS = 10.0
"""How long one request waits for new calls; Ctrl-C ends it at once."""

_as_json = click.option("--json", "as_json", is_flag=True, help="for programs")
_fabric = click.option(
    "--fabric",
    "--name",
    "socket",
    metavar="NAME|SOCKET",
    help="which fabric: a name given to `up`, or a socket (default: OBMM_DEVICE, else the one of `obmm emulate up`)",
)
_node = click.option("--node", help="emulated node (default: the first)")


class _Number(click.ParamType):  # type: ignore[type-arg]
    """An integer as C writes it: decimal, 0x, 0o or 0b."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else int(value, 0)
        except ValueError:
            self.fail(f"{value!r} is not a number", param, context)


class _Size(click.ParamType):  # type: ignore[type-arg]
    """Bytes, with a unit or without."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, context)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def emulate() -> None:
    """Nodes that answer like the driver, for machines without the hardware.

    \b
        obmm emulate up
        OBMM_DEVICE=emulator#a obmm smoke
        obmm emulate run --node b -- ./my-c-program
        obmm emulate down
    """


@emulate.command()
@click.option("--nodes", default="2", metavar="N|NAMES", help="how many nodes (a, b, c, ...), or their names: x,y")
@click.option("--topology", type=click.Path(exists=True, dir_okay=False), help="TOML file that describes the fabric")
@click.option("--name", default=DEFAULT, show_default=True, help="of the fabric")
@click.option("--strict", is_flag=True, help="model caches: forgotten ownership calls show as stale data")
@click.option("--seed", default=0, help="of the random early evictions in strict mode")
@click.option("--log-level", default="INFO", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]))
@click.option(
    "--fabric",
    "profile",
    metavar="PROFILE",
    help="guarded calls and gathers on imports take as long as on this modelled fabric: a profile of `obmm bench model`, or a "
    "TOML file",
)
@_as_json
def up(
    nodes: str,
    topology: str | None,
    name: str,
    strict: bool,
    seed: int,
    log_level: str,
    profile: str | None,
    as_json: bool,
) -> None:
    """Start a fabric that runs until `obmm emulate down`."""
    names: int | list[str] = int(nodes) if nodes.isdigit() else [n for n in nodes.split(",") if n]
    try:
        ready = start_daemon(names, topology, name=name, strict=strict, seed=seed, log_level=log_level, fabric=profile)
    except ObmmError as error:
        raise click.ClickException(error.strerror or str(error)) from None
    except (FabricError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    directory = fabric_directory(name)
    ready |= {"fabric": profile, "name": name, "socket": str(directory.socket), "log": str(directory.log)}
    if as_json:
        click.echo(json.dumps(ready))
        return
    click.echo(f"fabric {name!r} runs: nodes {', '.join(ready['nodes'])}, pid {ready['pid']}, log {directory.log}")
    if profile is not None:
        click.echo(
            f"MODELLED: guarded calls and gathers on imports take as long as {profile} is calculated to; see docs/fabric.md"
        )
    if name == DEFAULT:
        devices = " or ".join(f"OBMM_DEVICE=emulator#{node}" for node in ready["nodes"][:2])
        click.echo(f'use it: obmm.open("emulator#{ready["nodes"][0]}"), or {devices}')
    else:
        click.echo(f"use it: OBMM_DEVICE=emulator:{directory.socket}#{ready['nodes'][0]}")


@emulate.command()
@_fabric
@_as_json
def down(socket: str | None, as_json: bool) -> None:
    """Stop a fabric. Its memory goes: programs that still map it get SIGBUS."""
    path = _socket(socket)
    with _control(path) as control:
        fabric = control.request("status")
        control.request("shutdown")
    pid = fabric["pid"]
    deadline = time.monotonic() + STOP_SECONDS
    while fabric_directory(fabric["name"]).path.exists():
        if time.monotonic() > deadline:
            raise click.ClickException(f"the server (pid {pid}) does not stop")
        time.sleep(0.01)
    click.echo(json.dumps({"stopped": str(path), "pid": pid}) if as_json else f"stopped {path} (pid {pid})")


@emulate.command()
@_fabric
@_as_json
def status(socket: str | None, as_json: bool) -> None:
    """Nodes, regions and who uses them, decoder entries, armed faults."""
    for name in remove_stale():
        click.echo(f"removed what the dead fabric {name!r} left behind", err=True)
    result = _ask(socket, "status")
    if as_json:
        click.echo(json.dumps(result, indent=2))
        return
    print_status(result)


@emulate.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_fabric
@_node
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def run(socket: str | None, node: str | None, program: tuple[str, ...]) -> None:
    """Run an unmodified PROGRAM on an emulated node.

    /dev/obmm, the region nodes and the driver's sysfs and procfs files are the node's for it and for the
    programs that it starts. Needs a dynamically linked program; write `--` before its name.
    """
    path = _socket(socket)
    name = _node_name(path, node)
    try:
        found = find_program(program[0])
        remark = check_program(found)
        env = environment(f"emulator:{path}#{name}")
    except (ProgramError, OSError) as error:
        raise click.ClickException(str(error)) from None
    if remark:
        click.echo(f"obmm: {remark}", err=True)
    os.execve(found, list(program), env)


@emulate.command()
@_fabric
@_node
@click.argument("fault", required=False)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@_as_json
def inject(socket: str | None, node: str | None, fault: str | None, arguments: tuple[str, ...], as_json: bool) -> None:
    """Make something go wrong. Without FAULT: list the faults. `obmm emulate status` shows what is armed.

    \b
        obmm emulate inject flush-error value=EIO
        obmm emulate inject reset name=flush-error      # that one; without name= all
    """
    if fault is None:
        faults = _ask(socket, "faults")
        if as_json:
            click.echo(json.dumps(faults, indent=2))
            return
        for name, text in faults.items():
            click.echo(f"{name:<18} {text}")
        return
    values: dict[str, Any] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise click.BadParameter(f"{argument!r}: write KEY=VALUE", param_hint="KEY=VALUE")
        values[key] = _value(value)
    path = _socket(socket)
    name = _node_name(path, node)
    result = _ask(socket, "inject", node=name, fault=fault, arguments=values)
    if as_json:
        click.echo(json.dumps({"node": name, "fault": fault, "arguments": values, "result": result}))
    else:
        click.echo(f"{name}: {fault} {values or ''}".rstrip() + (f" -> {result}" if result is not None else ""))


@emulate.command()
@_fabric
@click.option("--node", help="calls of this node only (default: of all)")
@click.option("-f", "--follow", is_flag=True, help="go on with the calls to come, until Ctrl-C")
@click.option("--failed", is_flag=True, help="refused calls only")
@click.option(
    "-n", "--last", type=click.IntRange(0), default=100, show_default=True, help="how many past calls to show"
)
@_as_json
def trace(socket: str | None, node: str | None, follow: bool, failed: bool, last: int, as_json: bool) -> None:
    """What the programs of a fabric asked, as strace prints it, with the rule behind each refusal.

    \b
        obmm emulate trace --failed
        a 4711 ioctl(/dev/obmm, OBMM_CMD_EXPORT, {size=[0x300000], length=1}) = -1 EINVAL by X3a: ...

    The fabric remembers the last 4,096 calls. Rules are those of the driver specification (`obmm explain`).
    """
    path = _socket(socket)
    seen = _request(path, "trace", {"node": node})
    _show_calls([one for one in seen["calls"] if one["errno"] or not failed][-last:] if last else [], as_json)
    try:
        with _control(path) as control:
            while follow:
                seen = control.request("trace", node=node, after=seen["last"], wait=FOLLOW_SECONDS)
                _show_calls([one for one in seen["calls"] if one["errno"] or not failed], as_json)
    except KeyboardInterrupt:
        return
    except OSError as error:
        raise click.ClickException(f"the fabric is gone: {error.strerror or error}") from None


def _show_calls(calls: list[dict[str, Any]], as_json: bool) -> None:
    for one in calls:
        click.echo(json.dumps(one) if as_json else f"{one['node']} {one['pid']} {one['text']}")


@emulate.command("program-window", short_help="Program a node's decoder.")
@_fabric
@_node
@click.option("--owner", help="node that exports")
@click.option("--mem-id", type=int, help="its export; stands for tokenid, uba and length")
@click.option("--owner-cna", type=_Number(), help="instead of --owner")
@click.option("--owner-eid", help="instead of --owner: an integer or 32 hex digits")
@click.option("--tokenid", type=_Number())
@click.option("--uba", type=_Number())
@click.option("--length", type=_Size(), help="bytes, or with KiB, MiB, GiB")
@click.option("--cache", type=click.Choice(["cc", "nc"]), default="cc", show_default=True)
@click.option("--pa", type=_Number(), default="0", help="wanted local physical address")
@click.option("--remove", is_flag=True, help="forget the entry at --pa instead")
@_as_json
def program_window(
    socket: str | None,
    node: str | None,
    owner: str | None,
    mem_id: int | None,
    owner_cna: int | None,
    owner_eid: str | None,
    tokenid: int | None,
    uba: int | None,
    length: int | None,
    cache: str,
    pa: int,
    remove: bool,
    as_json: bool,
) -> None:
    """Program a node's decoder, as the management plane of a real cluster does.

    Prints the local physical address that IMPORT takes. The memory is an export of --owner by --mem-id, or
    --owner-cna, --owner-eid, --tokenid, --uba and --length.
    """
    path = _socket(socket)
    name = _node_name(path, node)
    if remove:
        _ask(socket, "unprogram", node=name, pa=pa)
        click.echo(json.dumps({"node": name, "removed": pa}) if as_json else f"{name}: removed {pa:#x}")
        return
    if owner is not None and mem_id is not None:
        arguments: dict[str, Any] = {"owner": owner, "mem_id": mem_id, "length": length}
        address = _ask(socket, "program_export", node=name, cache=cache, pa=pa, **arguments)
    else:
        arguments = _target(path, owner, owner_cna, owner_eid, tokenid, uba, length)
        address = _ask(socket, "program", node=name, cache=cache, pa=pa, **arguments)
    click.echo(json.dumps({"node": name, "pa": address, "cache": cache}) if as_json else f"{address:#x}")


@emulate.command(short_help="A node's sysfs, procfs and device files.")
@_fabric
@_node
@_as_json
def tree(socket: str | None, node: str | None, as_json: bool) -> None:
    """The node's sysfs, procfs and device files: where they are, and what they say."""
    path = _socket(socket)
    root = Path(_status(path)["nodes"][_node_name(path, node)]["root"])
    files = {f"/{file.relative_to(root)}": _text(file) for file in sorted(root.rglob("*")) if file.is_file()}
    if as_json:
        click.echo(json.dumps({"root": str(root), "files": files}, indent=2))
        return
    click.echo(f"root: {root}")
    for name, text in files.items():
        lines = text.rstrip("\n").split("\n")
        click.echo(f"{name}: {lines[0]}" if len(lines) == 1 else f"{name}:\n  " + "\n  ".join(lines))


def _socket(given: str | None) -> Path:
    """The socket of the fabric that the options or OBMM_DEVICE name."""
    if given is None:
        device = os.environ.get("OBMM_DEVICE", "")
        return Path(Backend.parse(device if device.startswith("emulator") else "emulator").socket or "")
    return Path(given) if "/" in given else fabric_directory(given).socket


def _control(path: Path) -> ControlClient:
    try:
        return ControlClient(path)
    except (FileNotFoundError, ConnectionRefusedError):
        raise click.ClickException(f"no fabric answers on {path}; start one with `obmm emulate up`") from None
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror or error}") from None


def _request(path: Path, operation: str, arguments: dict[str, Any]) -> Any:
    with _control(path) as control:
        try:
            return control.request(operation, **arguments)
        except OSError as error:
            raise click.ClickException(error.strerror or str(error)) from None


def _ask(socket: str | None, operation: str, **arguments: Any) -> Any:
    return _request(_socket(socket), operation, arguments)


def _status(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = _request(path, "status", {})
    return result


def _node_name(path: Path, given: str | None) -> str:
    """The node that was asked for, by option or OBMM_DEVICE, or the fabric's first."""
    nodes: list[str] = list(_status(path)["nodes"])
    device = os.environ.get("OBMM_DEVICE", "")
    if given is None and device.startswith("emulator"):
        given = Backend.parse(device).node
    if given is None:
        return nodes[0]
    if given not in nodes:
        raise click.ClickException(f"no node {given!r}; the fabric has {', '.join(nodes)}")
    return given


def _target(
    path: Path,
    owner: str | None,
    owner_cna: int | None,
    owner_eid: str | None,
    tokenid: int | None,
    uba: int | None,
    length: int | None,
) -> dict[str, Any]:
    """What the decoder entry leads to."""
    status = _status(path)
    if owner is not None:
        node = status["nodes"].get(owner)
        if node is None:
            raise click.ClickException(f"no node {owner!r}; the fabric has {', '.join(status['nodes'])}")
        controller = node["controllers"][0]
        owner_cna, owner_eid = controller["cna"], controller["eid"]
    elif owner_eid is not None and len(owner_eid) != 32:
        owner_eid = int(owner_eid, 0).to_bytes(16, "little").hex()
    target = {
        "owner_cna": owner_cna,
        "owner_eid": owner_eid,
        "tokenid": tokenid,
        "uba": uba,
        "length": length,
    }
    missing = [f"--{key.replace('_', '-')}" for key, value in target.items() if value is None]
    if missing:
        raise click.UsageError(f"missing {', '.join(missing)} (or --owner and --mem-id)")
    return target


def _value(text: str) -> Any:
    """A number, a JSON value, or the text itself."""
    for parse in (lambda t: int(t, 0), json.loads):
        try:
            return parse(text)
        except ValueError:
            continue
    return text


def _text(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        return f"({error.strerror})"
    return (
        data.decode() if data.strip(b"\0").isascii() and b"\0" not in data else f"({len(data)} bytes) {data[:32].hex()}"
    )
