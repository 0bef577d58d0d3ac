# SPDX-License-Identifier: Apache-2.0
"""Recorded cases with steps exchanged, left out or given something unknown: the replay says so, none passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from .replay.judge import compare
from .replay.port import Port
from .replay.replay import Replay
from .replay.transcript import Case, Transcript

TRANSCRIPT = Transcript.load()

#: Steps that the next step needs where it is (or needs the next one): export, import, preimport, query, fork, armed faults.
ORDER = {
    "x7-flags-ok-0": (0, 1),
    "eid-text-3": (0, 1, 2, 3, 5),
    "u4-forked-child-holds": (0, 1, 3, 4),
    "q-inputs-kept": (0, 2),
    "i13-overlap-5": (0, 1, 2, 3),
    "ui2-remove-error-16": (1, 5),
    "ui-preimport-flush-error": (0, 2, 5, 6),
}
#: Steps without which what follows cannot be answered as recorded.
NEEDED = {
    "x7-flags-ok-0": (0,),
    "eid-text-3": (0, 2, 3),
    "u4-forked-child-holds": (0, 1, 2, 4),
    "q-inputs-kept": (0,),
    "i13-overlap-5": (0, 2, 3),
    "ui2-remove-error-16": (0, 1, 5),
    "ui-preimport-flush-error": (0, 1, 2, 5, 6),
}


def answered_as_recorded(port: Port, case: Case, recorded: Case | None = None) -> bool:
    """Whether the steps of `case` are answered as those of `recorded` (its own) were; a replay that stops does not count."""
    try:
        observed = Replay(port, case).run()
    except (KeyError, NotImplementedError, TypeError, ValueError):
        return False
    return not compare(recorded or case, observed)


def exchanged(case: Case, at: int) -> Case:
    steps = list(case.steps)
    steps[at], steps[at + 1] = steps[at + 1], steps[at]
    return replace(case, steps=tuple(steps))


def without(case: Case, at: int) -> Case:
    return replace(case, steps=case.steps[:at] + case.steps[at + 1 :])


def with_step(case: Case, at: int, given: dict[str, Any]) -> Case:
    return replace(case, steps=(*case.steps[:at], case.steps[at] | {"in": given}, *case.steps[at + 1 :]))


@pytest.mark.parametrize("case_id", ORDER)
def test_the_case_itself_is_answered_as_recorded(case_id: str, port: Port) -> None:
    assert answered_as_recorded(port, TRANSCRIPT[case_id])


@pytest.mark.parametrize("case_id", ORDER)
def test_steps_in_another_order_are_found(case_id: str, port: Port) -> None:
    case = TRANSCRIPT[case_id]
    assert [at for at in ORDER[case_id] if answered_as_recorded(port, exchanged(case, at))] == []


@pytest.mark.parametrize("case_id", NEEDED)
def test_a_step_that_others_need_is_missed_by_them(case_id: str, port: Port) -> None:
    case = TRANSCRIPT[case_id]
    assert [at for at in NEEDED[case_id] if answered_as_recorded(port, without(case, at))] == []


@pytest.mark.parametrize("case_id", ORDER)
def test_a_replay_that_stops_early_or_leaves_a_step_out_is_found(case_id: str, port: Port) -> None:
    """Against the whole recording: also where nothing later needs the step."""
    case = TRANSCRIPT[case_id]
    passed = [at for at in range(len(case.steps)) if answered_as_recorded(port, without(case, at), case)]
    assert passed == []


@pytest.mark.parametrize("case_id", ORDER)
def test_an_input_that_is_not_read_is_found_in_every_step(case_id: str, port: Port) -> None:
    case = TRANSCRIPT[case_id]
    passed = []
    for at, step in enumerate(case.steps):
        given = step["in"]
        variants = [given | {"sideways": 1}]
        if "args" in given:
            variants.append(given | {"args": given["args"] | {"sideways": 1}})
        passed += [(at, step["op"]) for variant in variants if answered_as_recorded(port, with_step(case, at, variant))]
    assert passed == []
