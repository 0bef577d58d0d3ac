# SPDX-License-Identifier: Apache-2.0
"""``obmm bench``: the reference benchmark (`obmm.bench`)."""

from __future__ import annotations

import errno
import importlib.util
import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from obmm.abi import DEV_PATH
from obmm.bench import compare as comparing
from obmm.bench import results
from obmm.bench.compiled import CompilerError
from obmm.bench.content import VerificationError
from obmm.bench.environment import last_level_cache
from obmm.bench.footprint import Footprint
from obmm.bench.presets import PRESETS, Preset
from obmm.bench.results import duration
from obmm.cli.exchange_options import exchange_options, protection
from obmm.errors import ObmmError
from obmm.exchange.net import DEFAULT_PORT
from obmm.sizes import parse_size


class _Bar:
    """A run's progress on standard error."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("start", total=1.0)

    def step(self, text: str, share: float) -> None:
        self._progress.update(self._task, description=text, completed=share)


def _progress() -> Progress:
    text = TextColumn("{task.description:<44}")
    return Progress(text, BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), console=Console(stderr=True))


class _Explained(click.Group):
    """What the package refuses is a sentence here, not a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ObmmError as error:
            raise click.ClickException(error.strerror or str(error)) from error
        except CompilerError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # whoever reads has seen enough; click knows that
                raise
            raise click.ClickException(str(error)) from error


class _Finite(click.FloatRange):
    """A number that compares: NaN is in every range, and below no threshold."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value!r} is no finite number", param, ctx)


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind as Ctrl-C does: what a run started ends with it."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {each: signal.signal(each, end) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@click.group(cls=_Explained)
def bench() -> None:
    """The reference benchmark: every path to a table, measured alike, every byte verified."""


@bench.command(short_help="measure here, or against another node's table")
@click.argument("address", required=False, metavar="[HOST:PORT]")
@click.option("--preset", type=click.Choice(list(PRESETS)), default="honest", show_default=True)
@click.option("--arms", help="names, separated by commas (default: all)")
@click.option("--workloads", help="names, separated by commas (default: all)")
@click.option("--threads", help="thread counts, separated by commas (default: the preset's)")
@click.option("--footprint", help="bytes of table, such as 2GiB (default: 4 times the last-level cache)")
@click.option(
    "--repeat",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="measure the headline figures so many times, to tell how far they spread",
)
@click.option("--stand-in", is_flag=True, help="the SDK arms on a stand-in of the SDK on the emulated nodes; marked")
@click.option("-o", "--output", type=click.Path(dir_okay=False), default="bench.json", show_default=True)
@click.option("--full", is_flag=True, help="show every figure, not only the headlines")
@exchange_options
def run(
    address: str | None,
    preset: str,
    arms: str | None,
    workloads: str | None,
    threads: str | None,
    footprint: str | None,
    repeat: int,
    stand_in: bool,
    output: str,
    full: bool,
    key: tuple[str, ...],
    tls: tuple[str, str, str] | None,
    plain: bool,
    device: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Measure on this node, or against the table that `obmm bench serve` holds at HOST:PORT.

    Without OBMM_DEVICE (or --device) the OBMM arms run on two emulated nodes and are marked so.  A run in which a byte is
    wrong writes no figures and ends with status 1.  --key, --tls and --plain are for HOST:PORT.
    """
    from obmm.bench import run as running
    from obmm.bench.nodes import nodes, stand_in_nodes
    from obmm.bench.own_far import OwnFar
    from obmm.bench.twonodes import connected

    chosen = _preset(preset, footprint)
    if threads:
        chosen = replace(chosen, threads=tuple(_numbers(threads)))
    names = _chosen(arms, running.ARM_NAMES, "arm")
    what = _chosen(workloads, tuple(w.name for w in running.WORKLOADS), "workload")
    results.writable(output)
    with _ending_in_order(), ExitStack() as stack:
        if address:
            if stand_in:
                raise click.BadParameter("--stand-in is a cluster of this machine; leave it out with HOST:PORT")
            served = connected(stack, address, protection(key, tls, plain))
            size = Footprint(served.nbytes, last_level_cache())
            every = running.arms(device or os.environ.get("OBMM_DEVICE") or DEV_PATH, lambda progress: served, served)
        else:
            size = Footprint.choose(chosen.footprint)
            where = (stand_in_nodes if stand_in else nodes)(stack, device)
            every = running.arms(where.measuring, OwnFar(stack, where.exporting, size.nbytes))
        work = [w for w in running.WORKLOADS if w.name in what]
        measured = running.Run(chosen, size, [a for a in every if a.name in names], work, repeat)
        try:
            with _progress() as progress:
                document = measured.document(_Bar(progress))
        except VerificationError as error:
            raise click.ClickException(f"verification failed, no figures: {error}") from None
    if not document["results"]:
        reasons = [f"{each['arm']}: {each['reason']}" for each in document["unavailable"] + document["skipped"]]
        raise click.ClickException("nothing was measured: " + "; ".join(reasons))
    try:
        results.write(document, output)
    except OSError as error:
        _show(document, as_json, full)
        raise click.ClickException(f"{output}: {error.strerror}; the figures above are in no file") from error
    _show(document, as_json, full)
    if not as_json:
        click.echo(f"{output}: {len(document['results'])} figures; `obmm bench report {output}` draws them")


def _show(document: results.Document, as_json: bool, full: bool) -> None:
    if as_json:
        click.echo(results.text(document), nl=False)
        return
    from obmm.bench.report_terminal import console, show

    show(document, console(), full=full)


@bench.command(short_help="tables, Markdown and one HTML page with plots")
@click.argument("files", nargs=-1, required=True, metavar="RESULTS...")
@click.option("-o", "--output", type=click.Path(file_okay=False), default="bench-report", show_default=True)
@click.option(
    "--budget-us",
    "budgets",
    multiple=True,
    type=_Finite(min=0, min_open=True),
    help="step budgets of the decision, microseconds",
)
@click.option("--full", is_flag=True, help="show every figure, not only the headlines")
def report(files: tuple[str, ...], output: str, budgets: tuple[float, ...], full: bool) -> None:
    """Tables here; Markdown and one self-contained HTML page with plots in a folder.

    With several files also how far their headline figures spread.
    """
    _need("matplotlib", "jsonschema")
    from obmm.bench import decision, headlines, report_html, report_markdown
    from obmm.bench.report_terminal import console, headline_tables, show

    chosen = tuple(b * 1000 for b in budgets) or decision.BUDGETS_NS
    documents = [_read(each) for each in files]
    names = [click.format_filename(each, shorten=True) for each in files]
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in zip(files, documents, strict=True):
        click.echo(click.format_filename(name))
        show(document, console(), chosen, full=full)
    if len(documents) > 1:
        headline_tables(headlines.across(documents), console(), f"All {len(documents)} files")
    with _progress() as progress:
        task = progress.add_task("draw", total=len(documents))
        page = report_html.page(documents, names, chosen, lambda: progress.advance(task))
    (folder / "report.html").write_text(page, "utf-8")
    (folder / "report.md").write_text(report_markdown.text(documents, names, chosen), "utf-8")
    click.echo(f"{folder / 'report.html'}\n{folder / 'report.md'}")


@bench.command(short_help="ratios of two runs, case by case")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option(
    "--threshold",
    type=_Finite(min=1.0),
    help="status 1 when B needs more than so many times A's time, or lacks a case of A",
)
@click.option("--percentile", type=click.Choice(["p50", "p90", "p99", "mean"]), default="p50", show_default=True)
@click.option("--arms", help="only these, separated by commas")
def compare(first: str, second: str, threshold: float | None, percentile: str, arms: str | None) -> None:
    """Ratios B/A of every case that both have; above 1, B is slower."""
    _need("jsonschema")
    one, two = _read(first), _read(second)
    for unlike in comparing.differences(one, two):
        click.echo(f"not alike, so ratios mean less: {unlike}", err=True)
    found, gone = comparing.ratios(one, two, percentile), comparing.missing(one, two, percentile)
    if arms:
        found = [each for each in found if each.case["arm"] in arms.split(",")]
        gone = [each for each in gone if each["arm"] in arms.split(",")]
    if not found:
        raise click.ClickException("the two have no case in common")
    table = Table("arm", "kind", "workload", "case", "x", f"A {percentile}", f"B {percentile}", "B/A")
    slow = 0
    for each in found:
        case, late = each.case, threshold is not None and each.ratio > threshold
        slow += late
        table.add_row(
            *(
                escape(case["arm"]),
                case["kind"],
                escape(f"{case['workload']} ({case['temperature']})"),
                escape(case["case"]),
            ),
            *(str(case["threads"]), duration(each.first_ns), duration(each.second_ns)),
            f"[red]{each.ratio:.2f}[/red]" if late else f"{each.ratio:.2f}",
        )
    Console().print(table)
    for arm, workload in dict.fromkeys((each["arm"], each["workload"]) for each in gone):
        cases = [each["case"] for each in gone if (each["arm"], each["workload"]) == (arm, workload)]
        click.echo(f"only in A: {arm}, {workload}: {', '.join(dict.fromkeys(cases))}", err=True)
    if slow:
        click.echo(f"{slow} of {len(found)} cases are slower than {threshold} times A", err=True)
    if threshold is not None and gone:
        click.echo(f"{len(gone)} cases of A are not in B: nothing says that they are not slower", err=True)
    if slow or (threshold is not None and gone):
        sys.exit(1)


@bench.command(short_help="hold the table for a run on another node")
@click.option("--preset", type=click.Choice(list(PRESETS)), default="honest", show_default=True)
@click.option("--footprint", help="bytes of table, such as 2GiB (default: the preset's)")
@click.option("--host", help="address to bind to (default: all; loopback with --plain)")
@click.option("--port", default=DEFAULT_PORT, show_default=True, help="0 picks a free one")
@exchange_options
def serve(
    preset: str,
    footprint: str | None,
    host: str | None,
    port: int,
    key: tuple[str, ...],
    tls: tuple[str, str, str] | None,
    plain: bool,
    device: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Hold the table on this node for `obmm bench run HOST:PORT` on another, until interrupted."""
    from obmm.bench.own_far import GRACE_S
    from obmm.bench.twonodes import serving
    from obmm.cli.serve import until_interrupted

    nbytes = Footprint.choose(_preset(preset, footprint).footprint).nbytes
    with ExitStack() as stack:
        with _progress() as progress:
            served = serving(stack, nbytes, host, port, device, protection(key, tls, plain), _Bar(progress).step)
        if as_json:
            click.echo(json.dumps({"bytes": served.nbytes, "port": served.server.port, "rows_port": served.rows[1]}))
        else:
            click.echo(
                f"serving {served.nbytes} bytes at port {served.server.port}, rows over TCP at port {served.rows[1]}; Ctrl-C ends"
            )
        sys.stdout.flush()
        until_interrupted(served.server, None, GRACE_S)


def _need(*modules: str) -> None:
    """Asked for before anything is read or drawn."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise click.ClickException(
                f"this needs {module}, of the extra `bench`: pip install {module}, or `make dev` in the source tree"
            )


def _read(path: str) -> results.Document:
    try:
        return results.read(path)
    except results.NotResults as error:
        raise click.ClickException(str(error)) from None


def _preset(name: str, footprint: str | None) -> Preset:
    if not footprint:
        return PRESETS[name]
    try:
        nbytes = parse_size(footprint)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if not nbytes:
        raise click.BadParameter(f"--footprint {footprint}: a table has bytes; fix: leave it out for the preset's")
    return replace(PRESETS[name], footprint=nbytes)


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(each) for each in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise click.BadParameter(f"{text!r}: whole numbers from 1 on, separated by commas")
    return numbers


def _chosen(text: str | None, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    if not text:
        return known
    names = tuple(text.split(","))
    for name in names:
        if name not in known:
            raise click.BadParameter(f"no {what} {name!r}; there are {', '.join(known)}")
    return names
