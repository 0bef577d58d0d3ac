# SPDX-License-Identifier: Apache-2.0
"""``obmm smoke``: the loopback smoke test, step by step."""

from __future__ import annotations

import dataclasses
import json

import click

from obmm.driver.backend import Backend
from obmm.errors import ObmmError
from obmm.sizes import parse_size
from obmm.smoke import LoopbackTest, Step

_COLOURS = {"ok": "green", "skipped": "yellow", "failed": "red"}


@click.command()
@click.argument("size", default="4MiB")
@click.option("--device", help="default: OBMM_DEVICE, else /dev/obmm")
@click.option("--nc", is_flag=True, help="map non-cacheable")
@click.option("--window", type=str, help="local physical address of a programmed loopback window (hardware)")
@click.option("--json", "as_json", is_flag=True, help="for programs")
def smoke(size: str, device: str | None, nc: bool, window: str | None, as_json: bool) -> None:
    """Export SIZE bytes, import them back and compare: one host against itself."""
    try:
        count = parse_size(size)
        address = int(window, 0) if window else None
        backend = Backend.parse(device)
    except (ValueError, ObmmError) as error:
        raise click.ClickException(str(error)) from error
    test = LoopbackTest(device, count, cache="nc" if nc else "cc", window=address)
    if not as_json:
        click.echo(f"obmm smoke on {backend}")
    steps = []
    for step in test.steps():
        steps.append(step)
        if not as_json:
            _show(step)
    verdict = "failed" if test.failed else "ok"
    if as_json:
        document = {
            "backend": str(backend),
            "emulated": backend.is_emulator,
            "result": verdict,
            "latency_ns": test.latency_ns,
            "steps": [dataclasses.asdict(step) for step in steps],
        }
        click.echo(json.dumps(document, indent=2))
    else:
        click.secho(f"smoke {verdict}: backend={backend}", bold=True)
    raise SystemExit(1 if test.failed else 0)


def _show(step: Step) -> None:
    click.echo(f"  {step.name:<13} {click.style(step.status, fg=_COLOURS[step.status])}: {step.text}")
