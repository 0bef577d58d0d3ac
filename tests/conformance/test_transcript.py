# SPDX-License-Identifier: Apache-2.0
"""Every recorded case of the real driver, answered by the emulator: the oracle of conformance."""

from __future__ import annotations

import pytest

from . import known
from .replay.judge import compare
from .replay.port import Port
from .replay.replay import Replay
from .replay.table_port import needs_libc
from .replay.transcript import Case, Transcript

TRANSCRIPT = Transcript.load()


def test_only_informative_cases_may_differ() -> None:
    listed = {**known.DIFFERS, **known.NOT_RUN}
    assert [case_id for case_id in listed if not TRANSCRIPT[case_id].informative] == []
    assert all(reason.strip() for reason in listed.values())


@pytest.mark.parametrize("case", TRANSCRIPT.cases, ids=lambda case: case.id)
def test_case(case: Case, port: Port, preload_port: Port) -> None:
    if case.id in known.NOT_RUN:
        pytest.skip(known.NOT_RUN[case.id])
    if needs_libc(case):
        port = preload_port
    reason = port.unable(case)
    if reason:
        pytest.skip(f"{port.name}: {reason}")
    differences = [str(difference) for difference in compare(case, Replay(port, case).run())]
    if case.id not in known.DIFFERS:
        assert not differences, "\n".join(differences)
    elif not differences:
        pytest.fail(f"{case.id} is equal now: take it off data/known.toml")
