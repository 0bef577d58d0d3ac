# SPDX-License-Identifier: Apache-2.0
"""obmm bench model: what fabrics would make of a step, from published figures.  Nothing is measured."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from obmm.bench.cluster import MOST_HOSTS, Cluster, Outcome, simulate
from obmm.bench.model import WINDOWS_NS, Crossing, Modelled, Step, StepModel, crossing, step_model
from obmm.bench.units import duration, rate
from obmm.cli import output
from obmm.emulator.profile import Profile, names

FORMAT, VERSION = "obmm-bench-model", 1
SENTENCE = "MODELLED from profiles: calculated from figures of others, measured nowhere here; never to be ranked with measured ones"


@click.command(short_help="what fabrics would make of a step: modelled, nothing is measured")
@click.option("--fabric", "fabrics", multiple=True, help="a profile's name or TOML file (default: all that ship)")
@click.option("--rows", "rows", multiple=True, type=click.IntRange(1, 1 << 24), help="rows of a step (default: 1,536)")
@click.option("--row-bytes", "sizes", multiple=True, type=click.IntRange(1, 1 << 20), help="(default: 264 and 1,364)")
@click.option("--threads", multiple=True, type=click.IntRange(1, 1024), help="(default: 1)")
@click.option(
    "--period-us", default=10_000.0, show_default=True, type=click.FloatRange(1.0, 1e9), help="from step to step"
)
@click.option("--hosts", type=click.IntRange(1, MOST_HOSTS), help="simulate a cluster of so many readers")
@click.option(
    "--owners", type=click.IntRange(1, MOST_HOSTS), default=1, show_default=True, help="of them hold the tables"
)
@click.option(
    "--fanout", type=click.IntRange(1, MOST_HOSTS), default=1, show_default=True, help="owners asked in a step"
)
@click.option("--steps", type=click.IntRange(1, 10_000), default=20, show_default=True, help="of each reader")
@click.option("--link-gbps", type=click.FloatRange(0, min_open=True), help="of a host's link (default: the profile's)")
@click.option("--seed", default=1, show_default=True, help="of the simulation")
@click.option("--json", "as_json", is_flag=True, help="one object for programs")
def model(
    fabrics: tuple[str, ...],
    rows: tuple[int, ...],
    sizes: tuple[int, ...],
    threads: tuple[int, ...],
    period_us: float,
    hosts: int | None,
    owners: int,
    fanout: int,
    steps: int,
    link_gbps: float | None,
    seed: int,
    as_json: bool,
) -> None:
    """The time of a step by fabric, batch and threads; from where on hot rows pay; how far ahead to prefetch; how many
    readers one owner feeds; which path is the quicker one from how many rows on.  With --hosts also a simulated cluster.

    All of it is calculated from fabric profiles (docs/fabric.md).
    """
    profiles = [Profile.named(name) for name in fabrics or names()]
    shapes = itertools.product(rows or (1536,), sizes or (264, 1364), threads or (1,))
    wanted = [Step(count, size, n, period_us * 1000) for count, size, n in shapes]
    models = [step_model(profile, step) for step in wanted for profile in profiles]
    crossings = [
        (one, other, size, crossing(one, other, size))
        for size in sizes or (264, 1364)
        for one, other in itertools.permutations(profiles, 2)
        if one.way == "loads" and other.way == "lists"
    ]
    clusters: list[tuple[Profile, Step, Outcome]] = []
    if hosts:
        shape = Cluster(hosts, owners, fanout, steps, link_gbps)
        clusters = [(profile, step, simulate(profile, step, shape, seed)) for step in wanted for profile in profiles]
    if as_json:
        click.echo(json.dumps(_told(profiles, models, crossings, clusters, hosts, owners, fanout, steps), indent=1))
        return
    console = output.console()
    console.print(_steps(models))
    console.print(_crossings(crossings))
    if clusters:
        console.print(_clusters(clusters, hosts, owners, fanout, steps))
    for profile in profiles:
        console.print(f"[b]{escape(profile.name)}[/b] ({escape(profile.title)})")
        for key, figure in profile.figures.items():
            span = f", {figure.low:g} to {figure.high:g}" if figure.low != figure.high else ""
            points = (
                f" at {', '.join(f'{n:g} lines {v:g}' for n, v in figure.points)}"
                if figure.points
                else f" {figure.value:g}"
            )
            console.print(f"  {key}{points}{span}: {escape(figure.source)} ({figure.kind})", highlight=False)
    console.print(SENTENCE, style="bold")


def _range(figure: Modelled) -> str:
    if figure.low == figure.high:
        return duration(figure.value)
    return f"{duration(figure.value)} ({duration(figure.low)} .. {duration(figure.high)})"


def _steps(models: list[StepModel]) -> Table:
    columns = (
        "fabric",
        "step",
        "x",
        "time of the step",
        "of it bytes",
        "hot rows pay from",
        "prefetch ahead",
        "readers per owner",
    )
    table = Table(*columns, title="MODELLED: steps")
    for each in models:
        step = each.step
        ahead = ", ".join(
            f"{duration(window)}: {'never' if depth is None else depth}" for window, depth in each.depth.items()
        )
        table.add_row(
            escape(each.profile.name),
            f"{step.rows:,} x {step.row_bytes} B",
            str(step.threads),
            _range(each.time_ns),
            rate(step.nbytes / each.time_ns.value * 1e9),
            "never" if each.hot_share is None else f"{each.hot_share:.0%} hits",
            ahead,
            f"{each.readers:,}",
        )
    return table


def _crossings(crossings: list[tuple[Profile, Profile, int, Crossing]]) -> Table:
    table = Table("rows of", "instead of", "take", "from", title="MODELLED: which path is quicker, one thread")
    for one, other, size, found in crossings:
        when = _rows_on(found.start)
        if found.earliest != found.surely:
            when += f" ({_rows_on(found.earliest)} .. {_rows_on(found.surely)})"
        table.add_row(f"{size} B", escape(one.name), escape(other.name), when)
    return table


def _rows_on(start: int | None) -> str:
    return "never" if start is None else "always" if start == 1 else f"{start:,} rows on"


def _clusters(
    clusters: list[tuple[Profile, Step, Outcome]], hosts: int | None, owners: int, fanout: int, steps: int
) -> Table:
    title = f"MODELLED: {hosts:,} hosts, {owners:,} of them owners, {fanout} asked in each of {steps} steps"
    table = Table(
        "fabric", "step", "alone", "p50", "p99", "slowest", "late", "busiest owner", "all readers", title=title
    )
    for profile, step, found in clusters:
        table.add_row(
            escape(profile.name),
            f"{step.rows:,} x {step.row_bytes} B",
            *(duration(ns) for ns in (found.alone_ns, found.p50_ns, found.p99_ns, found.max_ns)),
            f"{found.late:.1%}",
            f"{found.busiest:.0%}",
            rate(found.gbps * 1e9),
        )
    return table


def _told(
    profiles: list[Profile],
    models: list[StepModel],
    crossings: list[tuple[Profile, Profile, int, Crossing]],
    clusters: list[tuple[Profile, Step, Outcome]],
    hosts: int | None,
    owners: int,
    fanout: int,
    steps: int,
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "mark": SENTENCE,
        "profiles": {
            profile.name: {
                "title": profile.title,
                "way": profile.way,
                "figures": {k: asdict(f) for k, f in profile.figures.items()},
            }
            for profile in profiles
        },
        "windows_ns": list(WINDOWS_NS),
        "steps": [
            {
                "fabric": each.profile.name,
                **asdict(each.step),
                "time_ns": asdict(each.time_ns),
                "hot_share": each.hot_share,
                "depth": list(each.depth.values()),
                "readers": each.readers,
            }
            for each in models
        ],
        "crossings": [
            {
                "instead_of": one.name,
                "take": other.name,
                "row_bytes": size,
                "from_rows": found.start,
                "earliest_rows": found.earliest,
                "surely_rows": found.surely,
            }
            for one, other, size, found in crossings
        ],
        "cluster": {"hosts": hosts, "owners": owners, "fanout": fanout, "steps": steps} if clusters else None,
        "cluster_steps": [
            {"fabric": profile.name, **asdict(step), **asdict(found)} for profile, step, found in clusters
        ],
    }
