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
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from obmm.bench import compare as comparing
from obmm.bench import results
from obmm.bench.compiled import CompilerError
from obmm.bench.content import VerificationError
from obmm.bench.environment import last_level_cache
from obmm.bench.footprint import Footprint
from obmm.bench.presets import PRESETS, Preset
from obmm.bench.seeds import SEED_BITS, Seeds
from obmm.cli.bench_compare import compared_json, compared_text
from obmm.cli.bench_model import model
from obmm.cli.exchange_options import exchange_options, protection
from obmm.cli.output import bars, console
from obmm.driver.abi import DEV_PATH
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
    return bars(text, BarColumn(), TaskProgressColumn(), TimeElapsedColumn())


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
            if error.errno == errno.EPIPE:  # the reader closed the pipe; click handles that
                raise
            raise click.ClickException(str(error)) from error


class _Finite(click.FloatRange):
    """A number that compares: NaN is in every range, and below no threshold."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value!r} is not a finite number", param, ctx)


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


bench.add_command(model)


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
@click.option(
    "--stand-in", is_flag=True, help="SDK and URMA arms on stand-ins of both libraries on the emulated nodes; marked"
)
@click.option(
    "--fabric",
    metavar="PROFILE",
    help="OBMM arms on emulated nodes whose gathers take as long as on this modelled fabric; marked",
)
@click.option("--seed", type=click.IntRange(0, (1 << SEED_BITS) - 1), help="repeat the random rows of an earlier run")
@click.option("--samples", is_flag=True, help="keep every single time in the file")
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
    fabric: str | None,
    seed: int | None,
    samples: bool,
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
    from obmm.bench.nodes import modelled_nodes, nodes, stand_in_nodes
    from obmm.bench.own_far import OwnFar
    from obmm.bench.twonodes import connected

    if fabric is not None and (stand_in or address):
        raise click.BadParameter("--fabric is of this run's own emulated nodes: leave out --stand-in and HOST:PORT")
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
            if fabric is not None:
                where = modelled_nodes(stack, device, fabric)
            else:
                where = (stand_in_nodes if stand_in else nodes)(stack, device)
            every = running.arms(where.measuring, OwnFar(stack, where.exporting, size.nbytes, where.far_environment))
        work = [w for w in running.WORKLOADS if w.name in what]
        seeds = Seeds(seed) if seed is not None else Seeds.new()
        wanted = [a for a in every if a.name in names]
        measured = running.Run(chosen, size, wanted, work, repeat, seeds=seeds, samples=samples)
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
    from obmm.bench.report_terminal import show

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
@click.option("--json", "as_json", is_flag=True, help="headlines and decisions as one object for programs")
def report(files: tuple[str, ...], output: str, budgets: tuple[float, ...], full: bool, as_json: bool) -> None:
    """Tables here; Markdown and one self-contained HTML page with plots in a folder.

    With several files also how far their headline figures spread.
    """
    _need("matplotlib", "jsonschema")
    from obmm.bench import decision, headlines, report_html, report_markdown
    from obmm.bench.report_terminal import headline_tables, show

    chosen = tuple(b * 1000 for b in budgets) or decision.BUDGETS_NS
    documents = [_read(each) for each in files]
    names = [click.format_filename(each, shorten=True) for each in files]
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in zip(files, documents, strict=True):
        if not as_json:
            click.echo(click.format_filename(name))
            show(document, console(), chosen, full=full)
    if len(documents) > 1 and not as_json:
        headline_tables(headlines.across(documents), console(), f"All {len(documents)} files")
    with _progress() as progress:
        task = progress.add_task("draw", total=len(documents))
        page = report_html.page(documents, names, chosen, lambda: progress.advance(task))
    (folder / "report.html").write_text(page, "utf-8")
    (folder / "report.md").write_text(report_markdown.text(documents, names, chosen), "utf-8")
    written = [str(folder / "report.html"), str(folder / "report.md")]
    if as_json:
        from obmm.bench.report_json import told

        click.echo(json.dumps({**told(documents, names, chosen), "written": written}, indent=1))
    else:
        click.echo("\n".join(written))


@bench.command(short_help="ratios of two runs, case by case")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option(
    "--threshold",
    type=_Finite(min=1.0),
    help="status 1 when B needs more than so many times A's time, lacks a case of A, or ran under other conditions",
)
@click.option("--percentile", type=click.Choice(["p50", "p90", "p99", "mean"]), default="p50", show_default=True)
@click.option("--arms", help="only these, separated by commas")
@click.option("--allow", multiple=True, metavar="CONDITION", help="may differ, such as git_revision")
@click.option("--json", "as_json", is_flag=True, help="one object for programs")
def compare(
    first: str,
    second: str,
    threshold: float | None,
    percentile: str,
    arms: str | None,
    allow: tuple[str, ...],
    as_json: bool,
) -> None:
    """Ratios B/A of every case that both have; above 1, B is slower.

    Slower is what exceeds the threshold (1.1 without one) and what figures wander by themselves: the spread of the
    headline figures over --repeat, and that of a case's own fifths.
    """
    _need("jsonschema")
    one, two = _read(first), _read(second)
    unlike = [each for each in comparing.differences(one, two) if each.name not in allow]
    found, gone = comparing.ratios(one, two, percentile), comparing.missing(one, two, percentile)
    if arms:
        found = [each for each in found if each.case["arm"] in arms.split(",")]
        gone = [each for each in gone if each["arm"] in arms.split(",")]
    if not found:
        raise click.ClickException("the two have no case in common")
    slow = [each for each in found if threshold is not None and each.beyond(threshold)]
    failed = threshold is not None and bool(slow or gone or unlike)
    if as_json:
        click.echo(json.dumps(compared_json(found, gone, unlike, slow, percentile, threshold, failed), indent=1))
    else:
        compared_text(found, gone, unlike, slow, percentile, threshold)
    if failed:
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
    from obmm.cli.observing import observed
    from obmm.cli.serving import until_interrupted, until_ready_no_reload

    nbytes = Footprint.choose(_preset(preset, footprint).footprint).nbytes
    until_ready_no_reload()
    how = protection(key, tls, plain)
    with ExitStack() as stack:
        with _progress() as progress:
            served = serving(stack, nbytes, host, port, device, how, _Bar(progress).step)
        stack.enter_context(observed(served.server, None))
        port_of = {"port": served.server.port, "rows_port": served.rows[1]}

        def announce() -> None:
            if as_json:
                click.echo(json.dumps({"bytes": served.nbytes, **port_of}))
            else:
                ports = f"port {port_of['port']}, rows over TCP at port {port_of['rows_port']}"
                click.echo(f"serving {served.nbytes} bytes at {ports}; Ctrl-C ends")
            sys.stdout.flush()

        until_interrupted(served.server, how, GRACE_S, announce)


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
