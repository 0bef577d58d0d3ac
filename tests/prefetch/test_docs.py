# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_acceptance_test_is_where_the_page_says() -> None:
    table = (ROOT / "docs" / "prefetch.md").read_text().split("## Where the acceptance tests are")[1]
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == list(range(1, 16))
    path = ""
    for place, test in re.findall(r"`((?:native|tests)/[\w/.]+)?(?:::(\w+))?`", table):
        path = place or path
        assert f"def {test}(" in (ROOT / path).read_text() if test else (ROOT / path).is_file(), (path, test)
