# SPDX-License-Identifier: Apache-2.0
"""The plots of the report, each an SVG text to put into a page."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from obmm.bench.results import Document
from obmm.bench.units import BYTES, duration, figure

COLOURS = {
    "local": "#1b7f5c",
    "numpy-shm": "#5aa9e6",
    "tcp": "#7a5195",
    "obmm-cc": "#d1495b",
    "obmm-nc": "#edae49",
    "obmm-pmd": "#8d5524",
    "sdk-cacheable": "#00798c",
    "sdk-nc": "#52489c",
    "sdk-pmd": "#30638e",
    "urma": "#b5338a",
}
Row = dict[str, Any]
NOT_DRAWN = "Stand-in arms are in no plot of the data plane: their memory is local memory, not a fabric."


def colour(arm: str) -> str:
    """Of an arm, in plots and bars."""
    return COLOURS.get(arm, "#555555")


FEW = 3
"""A line of fewer points says no more than its values do."""


def all_plots(document: Document) -> list[tuple[str, str]]:
    """(title, SVG) of every plot that the results can fill: measured arms and emulated ones never in one picture.

    Stand-ins are left out (SDK specification 16.3, B3), and so is what `said` tells.
    """
    return [
        (f"{title}{group}", svg)
        for group, rows in _groups(document)
        for title, draw, _, points in _PLOTS
        if points(rows) >= FEW and (svg := draw(rows))
    ]


def said(document: Document) -> list[tuple[str, str]]:
    """(title, values) of what has too few points for a plot."""
    return [
        (f"{title}{group}", tell(rows) + " (too few points to plot)")
        for group, rows in _groups(document)
        for title, _, tell, points in _PLOTS
        if 0 < points(rows) < FEW
    ]


def _groups(document: Document) -> list[tuple[str, list[Row]]]:
    """What was measured, what was emulated, and what waited as modelled."""
    rows = [r for r in document["results"] if r["kind"] != "stand-in"]
    measured = [r for r in rows if not r["mark"]]
    others = [
        (f": {kind.upper()}, no hardware", [r for r in rows if r["kind"] == kind]) for kind in ("emulated", "modelled")
    ]
    return [("", measured), *others]


def _label(r: Row) -> str:
    mark = f" ({r['kind'].upper()})" if r["mark"] else " (loopback)" if r["kind"] == "loopback" else ""
    return f"{r['arm']}{mark}"


def _series(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for r in rows:
        found.setdefault(_label(r), []).append(r)
    return found


def _style(r: Row) -> dict[str, Any]:
    # what is not hardware is never a solid line
    return {"color": colour(r["arm"]), "linestyle": "--" if r["mark"] else "-", "label": _label(r)}


def _svg(draw: Callable[[Any], None], width: float = 7.2, height: float = 4.0) -> str:
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    out = io.StringIO()
    # text stays text: to search, to select, to check for overlaps; a dollar in a name is a dollar
    with rc_context({"svg.fonttype": "none", "text.parse_math": False}):
        figure = Figure((width, height), layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, which="major", color="#e4e4e4", linewidth=0.7)
        axes.set_axisbelow(True)
        draw(axes)
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(out, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _cdf(rows: list[Row]) -> str:
    loads = [
        r
        for r in rows
        if r["workload"] == "loads" and r["row_bytes"] == 8 and r["temperature"] != "hot" and r["threads"] == 1
    ]
    if not loads:
        return ""

    def draw(axes: Any) -> None:
        for r in loads:
            axes.plot([max(v, 1) for v in r["cdf"]], [i / 100 for i in range(101)], linewidth=1.8, **_style(r))
        axes.set(xscale="log", xlabel="time of one (logarithmic)", ylabel="share of operations", ylim=(0, 1.01))
        axes.xaxis.set_major_formatter(lambda value, _: duration(value))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.minorticks_off()
        _legend(axes)

    return _svg(draw)


def _legend(axes: Any) -> None:
    """Above the axes, where no line runs."""
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)


def _lines(workload: str, x: str, y: str, xlabel: str, ylabel: str) -> Callable[[list[Row]], str]:
    def make(rows: list[Row]) -> str:
        chosen = [r for r in rows if r["workload"] == workload and r["threads"] == 1 and r["temperature"] != "hot"]
        if not chosen:
            return ""
        from matplotlib.ticker import LogLocator, NullLocator

        def draw(axes: Any) -> None:
            for each in _series(chosen).values():
                each = sorted(each, key=lambda r: r[x])
                points = [(r[x], r[y]) for r in each if r[y]]
                if points:
                    axes.plot(*zip(*points, strict=True), marker="o", markersize=4, linewidth=1.8, **_style(each[0]))
            ticks = sorted({r[x] for r in chosen})
            axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
            axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5), numticks=12))
            axes.yaxis.set_major_formatter(lambda value, _: figure(value, BYTES if y == "bytes_per_s" else "ns"))
            axes.yaxis.set_minor_locator(NullLocator())
            _legend(axes)

        return _svg(draw)

    return make


def _bars(rows: list[Row]) -> str:
    chosen = [
        max(each, key=lambda r: r["count"])
        for each in _series(
            r
            for r in rows
            if r["workload"] == "batch" and r["threads"] == 1 and r["temperature"] != "hot" and r["bytes_per_s"]
        ).values()
    ]
    if not chosen:
        return ""

    def draw(axes: Any) -> None:
        chosen.sort(key=lambda r: r["bytes_per_s"])
        for r in chosen:
            hatch = "///" if r["mark"] else ""
            axes.barh(_label(r), r["bytes_per_s"] / 1e9, color=colour(r["arm"]), hatch=hatch, edgecolor="white")
            axes.annotate(
                f" {r['bytes_per_s'] / 1e9:.2f}", (r["bytes_per_s"] / 1e9, _label(r)), va="center", fontsize=9
            )
        axes.set(
            xscale="log", xlabel=f"GB/s (logarithmic), {chosen[0]['count']:,} rows of {chosen[0]['row_bytes']} B, mean"
        )
        # room for the figure behind the longest bar
        axes.set_xlim(min(r["bytes_per_s"] for r in chosen) / 2e9, max(r["bytes_per_s"] for r in chosen) * 2 / 1e9)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.minorticks_off()

    return _svg(draw, height=0.55 * len(chosen) + 1)


def _chosen(workload: str, rows: list[Row]) -> list[Row]:
    return [r for r in rows if r["workload"] == workload and r["threads"] == 1 and r["temperature"] != "hot"]


def _along(workload: str, x: str) -> Callable[[list[Row]], int]:
    """How many points the longest line has."""

    def points(rows: list[Row]) -> int:
        return max((len({r[x] for r in each}) for each in _series(_chosen(workload, rows)).values()), default=0)

    return points


def _values(workload: str, x: str, y: str, what: str) -> Callable[[list[Row]], str]:
    """The values themselves, arm by arm."""
    unit = BYTES if y == "bytes_per_s" else "ns"

    def tell(rows: list[Row]) -> str:
        lines = []
        for label, each in _series(_chosen(workload, rows)).items():
            values = [f"{figure(r[y], unit)} at {r[x]:,} {what}" for r in sorted(each, key=lambda r: r[x]) if r[y]]
            lines.append(f"{label} {', '.join(values)}")
        return "; ".join(lines)

    return tell


def _loads(rows: list[Row]) -> list[Row]:
    return [r for r in _chosen("loads", rows) if r["row_bytes"] == 8]


def _told_loads(rows: list[Row]) -> str:
    return "; ".join(f"{_label(r)} p50 {duration(r['p50'])} of {r['samples']} samples" for r in _loads(rows))


def _samples(rows: list[Row]) -> int:
    """Enough for a distribution, or few."""
    return min((r["samples"] // 30 for r in _loads(rows)), default=0)


def _arms(rows: list[Row]) -> int:
    return len(_series(r for r in _chosen("batch", rows) if r["bytes_per_s"]))


Told: TypeAlias = Callable[[list[Row]], str]
_PLOTS: tuple[tuple[str, Told, Told, Callable[[list[Row]], int]], ...] = (
    (
        "Latency of one 8-byte load or request: share of operations that were at most this slow",
        _cdf,
        _told_loads,
        _samples,
    ),
    (
        "Gather rate by row size",
        _lines("row-size", "row_bytes", "bytes_per_s", "bytes per row", "gathered per second (mean)"),
        _values("row-size", "row_bytes", "bytes_per_s", "B"),
        _along("row-size", "row_bytes"),
    ),
    (
        "Cost by batch",
        _lines("batch", "count", "p99", "rows per batch", "p99"),
        _values("batch", "count", "p99", "rows"),
        _along("batch", "count"),
    ),
    (
        "Cost of a step by tokens",
        _lines("tables", "count", "p99", "tokens (rows from each table)", "p99"),
        _values("tables", "count", "p99", "tokens"),
        _along("tables", "count"),
    ),
    (
        "Arms side by side",
        _bars,
        _values("batch", "count", "bytes_per_s", "rows"),
        _arms,
    ),
)
