# SPDX-License-Identifier: Apache-2.0
"""``obmm demo``: the main job on two emulated nodes."""

from __future__ import annotations

import json
import subprocess
import threading
from contextlib import ExitStack
from typing import IO, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import obmm
from obmm.children import python_module
from obmm.cli import output
from obmm.demo import DIM, ROWS, TABLES

DEADLINE_S = 120


@click.command()
@click.option("--json", "as_json", is_flag=True, help="for programs")
def demo(as_json: bool) -> None:
    """Start two emulated nodes; export a table on one, import and verify every byte on the other, measure reads."""
    console = output.console(stderr=as_json)
    console.print(
        f"[bold]obmm demo[/bold]: {TABLES} x {ROWS:,} rows of {DIM} float32, two processes on two nodes "
        "[yellow](backend: emulator; its figures say nothing about hardware)[/yellow]"
    )
    with obmm.emulator.start(nodes=2) as fabric, _bars(console) as progress, ExitStack() as stack:
        exporter = _side(stack, "export", fabric.device("a"))
        _follow(progress, "node a: fill", exporter.stderr)
        served = _answer(exporter, "exporter")
        importer = _side(stack, "import", fabric.device("b"), f"127.0.0.1:{served['port']}")
        _follow(progress, "node b: verify", importer.stderr)
        result = _answer(importer, "importer")
        importer.wait(DEADLINE_S)
        exporter.communicate("", DEADLINE_S)
    if as_json:
        click.echo(json.dumps({"backend": "emulator", "nodes": 2, **result}, indent=2))
        return
    table = Table("read", "rows", "p50 us", "p99 us", title="guarded reads on node b (emulator: local memory)")
    for timing in result["timings"]:
        table.add_row(timing["what"], str(timing["rows"] or "-"), f"{timing['p50_us']:.1f}", f"{timing['p99_us']:.1f}")
    console.print(table)
    click.echo(f"demo ok: rows={result['rows']} bytes_verified={result['bytes_verified']} backend=emulator nodes=2")


def _bars(console: Console) -> Progress:
    return output.bars(
        TextColumn("{task.description:<16}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), where=console
    )


def _side(stack: ExitStack, *arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    process = subprocess.Popen(python_module("obmm.demo", *arguments), stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    stack.callback(_stop, process)
    return process


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


def _follow(progress: Progress, title: str, lines: IO[str] | None) -> None:
    """Turn a side's progress lines into a bar; what is not a progress line is an error text and shown as it is."""
    task = progress.add_task(title, total=None)

    def read() -> None:
        for line in lines or ():
            words = line.split()
            if len(words) == 3 and words[1].isdigit() and words[2].isdigit():
                progress.update(task, completed=int(words[1]), total=int(words[2]))
            else:
                progress.console.print(line, end="", markup=False)

    threading.Thread(target=read, daemon=True).start()


def _answer(process: subprocess.Popen[str], who: str) -> dict[str, Any]:
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise click.ClickException(f"the {who} failed with status {process.wait(DEADLINE_S)}")
    answer: dict[str, Any] = json.loads(line)
    return answer
