# SPDX-License-Identifier: Apache-2.0
"""Which tests run in one process, in their order, and which begin first, when pytest-xdist shares them out.

A file is a unit: what its tests share (an emulated fabric, a wheel, the figures of a run) is made once.  Long units begin
first, so that no process works on one while the others are done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

#: Files whose tests share nothing that is dear, and that would be too long for one process: each test is a unit.
APART = (
    "tests/exchange/test_every_command_fails.py",
    "tests/exchange/test_every_other_command_fails.py",
    "tests/safety/test_once_noted.py",
)

#: The longest units, the longest first.  `pytest --durations=0` says what belongs here; the rest takes seconds.
FIRST = (
    "tests/test_packaging.py",
    "tests/bench/test_twonodes.py",
    "tests/exchange/test_every_other_command_fails.py",
    "tests/safety/test_once_noted.py",
    "tests/blocks/test_failures.py",
    "tests/sdk/test_bad_bytes.py",
    "tests/sdk/test_conformance.py",
    "tests/broker/test_broker.py",
    "tests/safety/test_injected.py",
    "tests/bench/test_honest.py",
    "tests/conformance/test_transcript.py",
    "tests/bench/test_browser.py",
    "tests/exchange/test_ending.py",
    "tests/exchange/test_commands.py",
    "tests/urma/test_prefetching.py",
    "tests/sdk/test_daemon.py",
    "tests/bench/test_urma_arm.py",
    "tests/bench/test_files.py",
    "tests/typing/test_typing.py",
    "tests/test_site.py",
    "tests/test_smoke_c.py",
    "tests/safety/test_threads.py",
    "tests/integrations/test_table_client.py",
    "tests/bench/test_report.py",
    "tests/prefetch/test_shared_staging.py",
    "tests/bench/test_headlines.py",
    "tests/bench/test_sdk_arm.py",
    "tests/pages/test_consoles.py",
    "tests/safety/test_lifetimes.py",
    "tests/exchange/test_every_call_fails.py",
    "tests/exchange/test_chaos.py",
    "tests/urma/test_faults.py",
    "tests/hardship/test_storm.py",
    "tests/blocks/test_commands.py",
    "tests/test_preflight.py",
    "tests/exchange/test_every_command_fails.py",
)


def unit_of(nodeid: str) -> str:
    """The unit of a test: its file, or itself where the file's tests run apart."""
    file = nodeid.partition("::")[0]
    return nodeid if file in APART else file


def place_of(nodeid: str) -> int:
    """Where a test stands among units: those of `FIRST` in that order, before all others."""
    file = nodeid.partition("::")[0]
    return FIRST.index(file) if file in FIRST else len(FIRST)


def scheduler(config: pytest.Config, log: Any) -> Any:
    """What shares the tests out, in the order in which they were collected."""
    # xdist's own groups (`xdist_group`) are marks in a test's name that pytest 9.2 loses without a word: tests of one
    # group ran in all processes at once.
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False
    return Units(config, log)
