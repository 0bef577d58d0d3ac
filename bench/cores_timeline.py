# SPDX-License-Identifier: Apache-2.0
"""Who did what and when in a gather: the profile behind `bench.cores`' figures.

Every thread notes when it woke, when it could take rows, when it had copied its last one, and how many it copied; the caller
also when all were done.  Medians over the rounds, in microseconds since the call.  What a row takes one thread of many
against one thread alone says how much of the time is memory's; what lies before `came` and behind `last` is hand-over.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

from obmm._native import ffi, lib
from obmm.bench.shared_table import AlignedPages, SharedTable, describe_pages
from obmm.bench.timing import percentiles
from obmm.rows import GatherEngine

Record = dict[str, Any]
CASES = tuple((size, rows) for size in (264, 1360) for rows in (384, 1536, 6144))
NAMES = ("awake", "came", "last", "ended", "rows", "spun", "room")


def timeline(arguments: argparse.Namespace, engine: GatherEngine) -> Iterator[Record]:
    """Back to back and told 0.2 ms ahead, on one thread, on half of them, and on all."""
    rounds, most = 60 if arguments.quick else 200, engine.threads + 1
    table = SharedTable(arguments.region << 20, huge=True)
    out = AlignedPages(6144 * 1360, huge=True)
    out.array[:] = 0
    for row_bytes, count in CASES:
        store = table.store(row_bytes, engine, plan=True)
        target = out.array[: count * row_bytes].reshape(count, row_bytes)
        requests = store.prepare_many([("t", np.zeros(count, np.int64), target)])._requests
        single = 0.0
        for threads, lead in (
            (1, 0),
            *((n, lead) for n in dict.fromkeys((max(2, most // 2), most)) for lead in (0, 200_000)),
        ):
            times = watch(engine, requests.array[0].table, out, count, rounds, threads, lead)
            record = summary(times[rounds // 4 :])
            if threads == 1:
                single = record["caller_ns_per_row"] = round(record["ended"][0] * 1e3 / count, 1)
            record |= {"part": "timeline", "pages": describe_pages(table.huge), "row_bytes": row_bytes, "rows": count}
            record |= {"threads": threads, "told": bool(lead), "alone_ns_per_row": single}
            record["text"] = words(record)
            yield record
        store.close()
    out.close()
    table.close()


def watch(
    engine: GatherEngine, table: Any, out: AlignedPages, count: int, rounds: int, threads: int, lead: int
) -> np.ndarray[Any, Any]:
    """[rounds, threads of the engine + 1, NAMES] of so many gathers, in nanoseconds since the call."""
    width = engine.threads + 1
    times = ffi.new("struct obmm_thread_times[]", rounds * width)
    ids, target = ffi.new("int64_t[]", count), ffi.cast("uint8_t *", out.array.ctypes.data)
    result = lib.obmm_probe_timeline(engine.pointer, table, ids, target, count, rounds, threads, lead, 7, times)
    assert not result, result
    rows = np.array([[getattr(entry, name) for name in NAMES] for entry in times], np.int64)
    return rows.reshape(rounds, width, len(NAMES))


def summary(times: np.ndarray[Any, Any]) -> Record:
    """Medians over the rounds."""
    awake, came, last, ended, rows, spun, room = (times[:, :, i] for i in range(len(NAMES)))
    helped = (came[:, 1:] > 0) & (rows[:, 1:] > 0)
    caller_time = np.maximum(last[:, 0] - came[:, 0], 1)

    def of_helpers(values: np.ndarray[Any, Any], pick: Any) -> float | None:
        found = [pick(row[mask]) for row, mask in zip(values[:, 1:], helped, strict=True) if mask.any()]
        return round(float(np.median(found)) / 1e3, 1) if found else None

    worked = [
        (np.maximum(end[m] - begin[m], 1) / n[m])
        for end, begin, n, m in zip(last[:, 1:], came[:, 1:], rows[:, 1:], helped, strict=True)
    ]
    return {
        "helpers": float(np.median(helped.sum(axis=1))),
        "awake_before_the_call": float(np.median((spun[:, 1:] * helped).sum(axis=1))),
        "spinning_and_allowed": [float(np.median(spun[:, 0])), float(np.median(room[:, 0]))],
        "first_awake": of_helpers(awake, np.min),
        "first_came": of_helpers(came, np.min),
        "median_came": of_helpers(came, np.median),
        "last_came": of_helpers(came, np.max),
        "caller_came": round(float(np.median(came[:, 0])) / 1e3, 1),
        "caller_last": round(float(np.median(last[:, 0])) / 1e3, 1),
        "last_of_all": of_helpers(last, np.max),
        "ended": [round(v / 1e3, 1) for v in percentiles([float(v) for v in ended[:, 0]], 50, 99)],
        "caller_rows": float(np.median(rows[:, 0])),
        "caller_ns_per_row": round(float(np.median(caller_time / np.maximum(rows[:, 0], 1))), 1),
        "helper_ns_per_row": round(float(np.median(np.concatenate(worked))), 1) if any(map(len, worked)) else None,
    }


def words(record: Record) -> str:
    how = "told" if record["told"] else "back to back"
    text = (
        f"{record['pages']} {record['row_bytes']:>5} B x {record['rows']:<5} x{record['threads']:<2} {how:<12} "
        f"ended {record['ended']}; caller: takes rows at {record['caller_came']}, last at {record['caller_last']} "
        f"({record['caller_rows']:.0f} rows, {record['caller_ns_per_row']} ns each; alone {record['alone_ns_per_row']})"
    )
    if record["helpers"]:
        text += (
            f"; {record['helpers']:.0f} helped ({record['awake_before_the_call']:.0f} were awake, "
            f"{record['spinning_and_allowed'][0]:.0f} of {record['spinning_and_allowed'][1]:.0f} allowed spun): saw it from "
            f"{record['first_awake']}, took rows at {record['first_came']} / {record['median_came']} / {record['last_came']} "
            f"(first, median, last), the last row of all at {record['last_of_all']}, {record['helper_ns_per_row']} ns a row"
        )
    return text
