# SPDX-License-Identifier: Apache-2.0
"""The judge of the transcript replay: equal answers pass, any other answer is found."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from .replay.judge import compare
from .replay.transcript import Case, Transcript, number

TRANSCRIPT = Transcript.load()


def recorded(case: Case) -> list[dict[str, Any]]:
    """The recording as if a backend had answered it."""
    return [copy.deepcopy(step) for step in case.steps]


def with_real_addresses(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A backend gives addresses where the recording has tokens."""
    for step in steps:
        pa = step.get("out", {}).get("pa")
        if isinstance(pa, str) and pa.startswith("@pa"):
            step["out"]["pa"] = 0x1_0000_0000 + int(pa[3:]) * 0x20_0000
    return steps


def test_recording_equals_itself() -> None:
    different = [case.id for case in TRANSCRIPT if compare(case, with_real_addresses(recorded(case)))]
    assert different == []


def mutate_errno(step: dict[str, Any]) -> bool:
    if "errno" not in step:
        return False
    step["errno"] = "EXDEV"
    return True


def mutate_success(step: dict[str, Any]) -> bool:
    if step.get("ret") != 0:
        return False
    step["ret"] = -1
    return True


def mutate_signal(step: dict[str, Any]) -> bool:
    return step.pop("signal", None) is not None


def mutate_flush(step: dict[str, Any]) -> bool:
    if not step.get("flush") or "length" not in step["flush"][0]:
        return False
    step["flush"][0]["length"] = number(step["flush"][0]["length"]) + 4096
    return True


def mutate_missing_flush(step: dict[str, Any]) -> bool:
    return step.pop("flush", None) is not None


def mutate_extra_flush(step: dict[str, Any]) -> bool:
    if "flush" in step:
        return False
    step["flush"] = [{"op": "INVAL", "mem_id": 1, "offset": 0, "length": 4096}]
    return True


def mutate_numa(step: dict[str, Any]) -> bool:
    if not step.get("numa_calls"):
        return False
    step["numa_calls"][0]["nid"] = 14
    return True


def mutate_text(step: dict[str, Any]) -> bool:
    if "text" not in step.get("out", {}):
        return False
    step["out"]["text"] = step["out"]["text"].replace("\n", "")
    return True


def mutate_mem_id(step: dict[str, Any]) -> bool:
    if "mem_id" not in step.get("out", {}):
        return False
    step["out"]["mem_id"] += 1
    return True


def mutate_permission(step: dict[str, Any]) -> bool:
    if not step.get("out", {}).get("vmas"):
        return False
    step["out"]["vmas"][0]["perm"] = "----"
    return True


def mutate_missing_value(step: dict[str, Any]) -> bool:
    return step.pop("value", None) is not None


def mutate_missing_answer(step: dict[str, Any]) -> bool:
    return step.pop("ret", None) is not None


MUTATIONS = [value for name, value in list(globals().items()) if name.startswith("mutate_")]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda function: function.__name__.removeprefix("mutate_"))
def test_any_other_answer_is_found(mutation: Any) -> None:
    missed, tried = [], 0
    for case in TRANSCRIPT:
        steps = with_real_addresses(recorded(case))
        for index, step in enumerate(steps):
            if mutation(step):
                tried += 1
                if index not in {difference.step for difference in compare(case, steps)}:
                    missed.append((case.id, index))
                break
    assert tried > 10
    assert missed == []


@pytest.mark.parametrize(("cut", "joined"), [(2 << 20, True), (1 << 20, False)])
def test_pieces_of_an_export_join_only_at_a_2_mib_border(cut: int, joined: bool) -> None:
    case = TRANSCRIPT["o9-two-fds-one-region"]
    steps = with_real_addresses(recorded(case))
    flushing = next(step for step in steps if "flush" in step)
    (whole,) = flushing["flush"]
    rest = number(whole["length"]) - cut
    flushing["flush"] = [whole | {"length": cut}, whole | {"offset": cut, "length": rest}]
    assert bool(compare(case, steps)) is not joined


def test_load_of_an_import_counts_only_behind_a_store() -> None:
    """Imports keep what other cases stored at that address."""
    ignored = 0
    for case in TRANSCRIPT:
        steps = with_real_addresses(recorded(case))
        for step in steps:
            if "value" in step:
                step["value"] = number(step["value"]) ^ 1
        found = {difference.step for difference in compare(case, steps) if difference.what == "value"}
        loads = {index for index, step in enumerate(steps) if "value" in step}
        ignored += len(loads - found)
    assert 0 < ignored < 40


#: Steps that the replay does by itself: they say nothing about what is replayed against.
OF_THE_REPLAY = {
    "sleep",
    "start",
    "fork",
    "kill",
    "reserve",
    "hugemap",
    "max_map_count",
    "stub",
    "remount_dev",
    "feature",
}


def test_every_case_asks_what_is_replayed_something_that_can_be_wrong() -> None:
    empty = [
        case.id
        for case in TRANSCRIPT
        if not any(
            step["op"] not in OF_THE_REPLAY and {"ret", "errno", "signal", "value", "out", "hang"} & step.keys()
            for step in case.steps
            if not step["in"].get("path", "").startswith("/proc/sys/")
        )
    ]
    assert empty == []
